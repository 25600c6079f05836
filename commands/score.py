"""`attngeo score`: symmetry and directionality of every layer and head."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attngeo.choices import Convention, Precision
from attngeo.errors import AttnGeoError

from .messages import TRACEBACK, say, unexpected
from .options import MODEL_HELP, Device, Format, Offline, Output, Quiet, RowsFormat, Verbose, model_names, parse_layers
from .outputs import check_outputs, print_rows

if TYPE_CHECKING:
    import pandas as pd

    from attngeo.scores.conditions import Condition

CHECK_FAILED, SEVERAL_FAILED = 1, 4


def score(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False, autocompletion=model_names)
    ],
    per_head: Annotated[bool, typer.Option("--per-head", help="One row for each head, besides each layer's.")] = False,
    stack: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only this stack: encoder, decoder, cross, text, vision … (see inspect)."),
    ] = None,
    layers: Annotated[str | None, typer.Option(metavar="LIST", help="Only these layers, such as 0-3,7.")] = None,
    gamma: Annotated[float, typer.Option(help="Standard deviations above the mean that make a norm stand out.")] = 2.0,
    convention: Annotated[
        Convention, typer.Option(help="The definitions, or what the paper's tables S4 and S5 computed.")
    ] = "corrected",
    with_bias: Annotated[
        bool, typer.Option("--with-bias", help="Count the biases, as one more input that is always 1.")
    ] = False,
    fold_norm: Annotated[
        bool, typer.Option("--fold-norm", help="Fold in the gain of the normalisation in front of attention.")
    ] = False,
    rope_offset: Annotated[
        int, typer.Option(metavar="Δ", help="Query position minus key position, for rotary embeddings.")
    ] = 0,
    precision: Annotated[
        Precision, typer.Option(help="What to compute in; fast is bfloat16, norms to about 1e-3.")
    ] = "float32",
    output: Output = None,
    format: RowsFormat = Format.table,
    plot: Annotated[
        list[Path] | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Draw the map of layers × heads to a .html .json .png .svg or .pdf file; may be repeated.",
        ),
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            metavar="CONDITION",
            help="Exit with 1 where this is so, such as 'symmetry.median < 0.2'; may be repeated.",
        ),
    ] = None,
    device: Device = "auto",
    offline: Offline = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Score how symmetric and how directional the query-key matrix of every layer is.

    Symmetry is 1 for a symmetric matrix, about 0 by chance and -1 for a skew-symmetric one. Directionality is negative
    where a few columns dominate, positive where a few rows do.

    Examples:
        attngeo score demo:minilm
        attngeo score google-bert/bert-base-uncased openai-community/gpt2 -o s.csv
        attngeo score ./checkpoint --plot heads.html --fail-if 'symmetry.median < 0.2'
    """
    outputs, figures = output or [], plot or []
    conditions = _check(outputs, figures, fail_if or [], gamma, device)
    options = {
        "stack": stack, "layers": parse_layers(layers), "gamma": gamma, "convention": convention,
        "with_bias": with_bias, "fold_norm": fold_norm, "rope_offset": rope_offset, "device": device,
        "precision": precision, "offline": offline,
    }  # fmt: skip
    frames: list[pd.DataFrame] = []
    failures: list[str] = []
    for model in models:
        try:
            frames.append(_score_one(model, options, quiet=quiet, verbose=verbose, to_people=format is Format.table))
        except Exception as error:
            if len(models) == 1 or os.environ.get(TRACEBACK):
                raise
            failures.append(str(error) if isinstance(error, AttnGeoError) else f"{model}: {unexpected(error)}")
    failed = False
    if frames:
        _deliver(frames, outputs, format, per_head=per_head, quiet=quiet)
        _draw(frames, figures)
        failed = _fails(frames, conditions)
    for failure in failures:
        say(failure)
    if failures or failed:
        raise typer.Exit(SEVERAL_FAILED if failures else CHECK_FAILED)


def _score_one(model: str, options: dict[str, Any], *, quiet: bool, verbose: bool, to_people: bool) -> pd.DataFrame:
    """The rows of one model, heads included; says on stderr what they do not tell."""
    from attngeo.scores.scoring import score as score_model

    from .progress import Bar

    with Bar(model, quiet=quiet, verbose=verbose) as progress:
        frame = score_model(model, per_head=True, progress=progress, **options)
    if not quiet:
        for pattern in frame.attrs["skipped"]:
            say(f"{model}: left out, no known query-key form: {pattern}")
        if not to_people and (empty := int(frame["symmetry"].isna().sum())):
            say(f"{model}: {empty} of {len(frame)} layers and heads have no scores; their rows say why")
    return frame


def _check(
    outputs: list[Path], figures: list[Path], conditions: list[str], gamma: float, device: str
) -> list[Condition]:
    """Refuse what cannot work before anything is read."""
    check_outputs(outputs, figures)

    from attngeo.devices import pick_device
    from attngeo.geometry.directionality import check_choices
    from attngeo.scores.conditions import Condition

    parsed = [Condition(condition) for condition in conditions]
    check_choices(gamma, "corrected")
    pick_device(device)
    return parsed


def _draw(frames: list[pd.DataFrame], paths: list[Path]) -> None:
    if not paths:
        return
    from attngeo.figures.save import save_figure
    from attngeo.reporting.plots import plot

    figure = plot("heatmap", frames)
    for path in paths:
        save_figure(figure, path)


def _fails(frames: list[pd.DataFrame], conditions: list[Condition]) -> bool:
    """Say on stderr which models the conditions fail; whether there is one."""
    from attngeo.scores.summary import summarise

    failed = [
        outcome
        for condition in conditions
        for frame in frames
        for outcome in condition.outcomes(summarise(frame))
        if outcome.failed
    ]
    for each in failed:
        say(each.complaint)
    return bool(failed)


def _deliver(frames: list[pd.DataFrame], outputs: list[Path], format: Format, *, per_head: bool, quiet: bool) -> None:
    """Print the results and write them to files; files first, so that a closed pipe loses nothing."""
    import pandas as pd

    from attngeo.tables import write as tables

    rows = pd.concat(frames, ignore_index=True)
    if not per_head:
        rows = rows[rows["head"].isna()].reset_index(drop=True)
    rows.attrs = frames[0].attrs | {"model": ", ".join(frame.attrs["model"] for frame in frames)}
    for path in outputs:
        tables.write_table(rows, path)
    if format is Format.table:
        _print_tables(frames, per_head=per_head, quiet=quiet)
    else:
        print_rows(rows, format)


def _print_tables(frames: list[pd.DataFrame], *, per_head: bool, quiet: bool) -> None:
    from .console import Terminal
    from .render import print_scores, summary

    for frame in frames:
        print_scores(frame, per_head=per_head, quiet=quiet)
    if len(frames) > 1:
        Terminal().print(summary(frames, name_models=True))
