"""`attngeo score`: symmetry and directionality of every layer and head."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from attngeo.checkpoints.access import HubAccess
from attngeo.errors import AttnGeoError, CheckpointError
from attngeo.options import RESULTS
from attngeo.scores.options import ResultOptions, ScoreOptions

from .declare import take_options
from .messages import TRACEBACK, describe_unexpected, say
from .options import MODEL_HELP, Output, OutputFormat, Quiet, RowsFormat, Verbose, complete_models
from .outputs import check_outputs, print_rows

if TYPE_CHECKING:
    import pandas as pd

    from attngeo.scores.conditions import Condition

CHECK_FAILED, SEVERAL_FAILED = 1, 4


@take_options(ScoreOptions)
@take_options(HubAccess, "hub")
@take_options(ResultOptions, "results")
def score(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False, autocompletion=complete_models)
    ],
    options: ScoreOptions,
    output: Output = None,
    format: RowsFormat = OutputFormat.table,
    plot: Annotated[
        list[Path] | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Draw the map of layers × heads to a .html .json .png .svg or .pdf file; may be repeated",
            rich_help_panel=RESULTS,
        ),
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            metavar="CONDITION",
            help="Exit with 1 if this condition is true, for example 'symmetry.median < 0.2'; may be repeated",
            rich_help_panel=RESULTS,
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Run the model with transformers; exit with 1 if it multiplies other weights than those that are read",
            rich_help_panel=RESULTS,
        ),
    ] = False,
    hub: HubAccess = HubAccess(),
    results: ResultOptions = ResultOptions(),
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Score how symmetric and how directional the query-key matrix of every layer is.

    Symmetry is 1 for a symmetric matrix, about 0 by chance and -1 for a skew-symmetric one. Directionality is negative
    if a few columns dominate, positive if a few rows do. The paper that defines them is Saponati et al. 2025 (arXiv
    2502.10927).

    Examples:
        attngeo score demo:minilm
        attngeo score google-bert/bert-base-uncased openai-community/gpt2 -o s.csv
        attngeo score ./checkpoint --plot heads.html --fail-if 'symmetry.median < 0.2'
        attngeo score ./checkpoint --verify
    """
    outputs, figures = output or [], plot or []
    conditions = _check(outputs, figures, fail_if or [], options)
    to_people, per_head = format is OutputFormat.table, options.per_head
    scored: list[tuple[str, pd.DataFrame]] = []
    failures: list[Failure] = []
    for model in models:
        try:
            frame = _score_one(
                model, options, hub=hub, results=results, quiet=quiet, verbose=verbose, to_people=to_people
            )
            scored.append((model, frame))
        except Exception as error:
            if len(models) == 1 or os.environ.get(TRACEBACK):
                raise
            failures.append(Failure.of(error, model))
    verified = _verify_all(scored, failures, hub=hub, quiet=quiet, verbose=verbose) if verify else []
    frames, failed = [frame for _, frame in scored], False
    if frames:
        _deliver(frames, outputs, format, per_head=per_head, quiet=quiet)
        _draw(frames, figures)
        failed = _report_failed_checks(frames, conditions)
    disagrees = _report_verified(verified, quiet=quiet)
    for failure in failures:
        say(failure.text)
    if failures:
        raise typer.Exit(failures[0].exit_code if len(models) == 1 else SEVERAL_FAILED)
    if failed or disagrees:
        raise typer.Exit(CHECK_FAILED)


class Failure(NamedTuple):
    """A model that was not scored, or not verified: the line that says why, and its exit code."""

    text: str
    exit_code: int

    @classmethod
    def of(cls, error: Exception, model: str) -> Failure:
        """What an error says about a model."""
        if isinstance(error, AttnGeoError):
            return cls(str(error), error.exit_code)
        return cls(f"{model}: {describe_unexpected(error)}", CheckpointError.exit_code)


def _check(outputs: list[Path], figures: list[Path], conditions: list[str], options: ScoreOptions) -> list[Condition]:
    """Refuse what cannot work, before anything is read. Returns the parsed conditions."""
    check_outputs(outputs, figures)

    from attngeo.scores.conditions import Condition

    parsed = [Condition(condition) for condition in conditions]
    if options.device != ScoreOptions.device:  # a device is looked for by torch, which takes long to import
        from attngeo.devices import pick_device

        pick_device(options.device)
    return parsed


def _score_one(
    model: str,
    options: ScoreOptions,
    *,
    hub: HubAccess,
    results: ResultOptions,
    quiet: bool,
    verbose: bool,
    to_people: bool,
) -> pd.DataFrame:
    """The rows of one model, heads included. Reports on stderr what the rows do not contain."""
    from attngeo.scores.scoring import score as score_model
    from attngeo.scores.spec import score_names

    from .progress import Bar

    with Bar(model, quiet=quiet, verbose=verbose) as progress:
        frame = score_model(model, options=replace(options, per_head=True), hub=hub, results=results, progress=progress)
    if not quiet:
        for pattern, reason in frame.attrs["skipped"].items():
            say(f"{model}: left out: {pattern}: {reason}")
        if not to_people and (empty := int(frame[score_names()[0]].isna().sum())):
            say(f"{model}: {empty} of {len(frame)} layers and heads have no scores; the column note says why")
    return frame


def _verify_all(
    scored: list[tuple[str, pd.DataFrame]], failures: list[Failure], *, hub: HubAccess, quiet: bool, verbose: bool
) -> list[pd.DataFrame]:
    """The verification of each model that was scored.

    Notes in the provenance of its scores how many sites have each verdict. A model that cannot be verified is added to
    `failures`: its scores are delivered all the same.
    """
    from attngeo.verification.verifying import verify

    from .progress import Bar

    verified = []
    for model, frame in scored:
        try:
            with Bar(model, quiet=quiet, verbose=verbose) as progress:
                found = verify(model, hub=hub, progress=progress)
        except Exception as error:
            if os.environ.get(TRACEBACK):
                raise
            failures.append(Failure.of(error, model))
        else:
            frame.attrs["verified"] = {verdict: int(n) for verdict, n in found["verdict"].value_counts().items()}
            verified.append(found)
    return verified


def _report_verified(frames: list[pd.DataFrame], *, quiet: bool) -> bool:
    """Report on stderr which sites agree with the running model. Returns whether some do not."""
    if not frames:
        return False

    from .render_verify import list_complaints, list_notes

    complaints = [line for frame in frames for line in list_complaints(frame)]
    notes = [] if quiet else [line for frame in frames for line in list_notes(frame)]
    for line in (*complaints, *notes):
        say(line)
    return bool(complaints)


def _draw(frames: list[pd.DataFrame], paths: list[Path]) -> None:
    if not paths:
        return
    from attngeo.figures.save import save_figure
    from attngeo.reporting.plots import plot

    figure = plot("heatmap", frames)
    for path in paths:
        save_figure(figure, path)


def _report_failed_checks(frames: list[pd.DataFrame], conditions: list[Condition]) -> bool:
    """Report on stderr each model that fails a condition. Returns whether there is one."""
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


def _deliver(
    frames: list[pd.DataFrame], outputs: list[Path], format: OutputFormat, *, per_head: bool, quiet: bool
) -> None:
    """Write the files, then print, so that a closed pipe loses nothing."""
    import pandas as pd

    from attngeo.tables.write import write_table

    rows = pd.concat(frames, ignore_index=True)
    if not per_head:
        rows = rows[rows["head"].isna()].reset_index(drop=True)
    models = ", ".join(frame.attrs["model"] for frame in frames)
    rows.attrs = frames[0].attrs | {"model": models, "per_head": per_head}
    if verified := {frame.attrs["model"]: frame.attrs["verified"] for frame in frames if "verified" in frame.attrs}:
        rows.attrs["verified"] = verified
    for path in outputs:
        write_table(rows, path)
    if format is OutputFormat.table:
        _print_tables(frames, per_head=per_head, quiet=quiet)
    else:
        print_rows(rows, format)


def _print_tables(frames: list[pd.DataFrame], *, per_head: bool, quiet: bool) -> None:
    from .console import Terminal
    from .render_score import print_scores, tabulate_summary

    for frame in frames:
        print_scores(frame, per_head=per_head, quiet=quiet)
    if len(frames) > 1:
        Terminal().print(tabulate_summary(frames, name_models=True))
