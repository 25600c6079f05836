"""`attngeo score`: symmetry and directionality of every layer and head, as tables for people and files for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from attngeo.bounds import printable
from attngeo.checkpoints.access import HubAccess
from attngeo.layouts.config import pattern_of
from attngeo.options import RESULTS, default_of
from attngeo.progress import ProgressCallback
from attngeo.scores.conditions import Condition
from attngeo.scores.options import ResultOptions, ScoreOptions
from attngeo.scores.spec import SCORES, score_names
from attngeo.scores.summary import spread_of, summarise
from attngeo.studies.engine import StudyOptions, run_study

from .declare import with_options
from .messages import describe_error, say
from .outputs import Output, OutputFormat, Quiet, RowsFormat, Verbose, check_outputs, print_rows
from .progress import Bar
from .study import SEVERAL_FAILED, Models, ModelsFile, list_all, raise_if_traced, run_all
from .tables import Terminal, drop_columns, format_number, format_quartiles, format_score, is_missing, name_layers

if TYPE_CHECKING:
    import pandas as pd

    from attngeo.scores.conditions import Condition
    from attngeo.studies.engine import RunOutcome

CHECK_FAILED = 1
HALF_BAR = 5
# On a narrower terminal, bars would leave too little room for numbers.
WIDTH_OF_BARS = 78
# Places that a footnote names at most.
MOST_PLACES = 6
# How the title shows an option that is not at its default.
DESCRIPTIONS = {
    "with_bias": "with biases",
    "fold_norm": "input gain folded",
    "rope_offset": "rotary offset {}",
    "precision": "{}",
    "gamma": "gamma {}",
}
# What is said of the sites that a verification gives a verdict.
MEANINGS = {
    "differs": "differs from what the running model multiplies",
    "no product": "has no product that goes through a softmax in the running model",
    "only in memory": "attends in the running model, and is not read from the file",
    "not run": "was not run",
    "only in the file": "is not in the running model",
}


@with_options
def score(
    options: ScoreOptions,
    models: Models = None,
    models_file: ModelsFile = None,
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
    study: StudyOptions = StudyOptions(),
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
        attngeo score --models models.txt --jobs 4 -o study.parquet
        attngeo score 'EleutherAI/pythia-70m@step*' -o steps.parquet
    """
    outputs, figures = output or [], plot or []
    conditions = _check(outputs, figures, fail_if or [], options)
    listed = list_all(models, models_file, hub, command="score")
    alone = len(listed) == 1
    to_people = format is OutputFormat.table

    def note(outcome: RunOutcome[pd.DataFrame]) -> None:
        if outcome.result is not None and not quiet:
            _report_gaps(outcome.name, outcome.result, to_people=to_people)
        for text in outcome.notes if alone and not quiet else ():
            say(f"{outcome.name}: {text}; --fresh computes them again")

    from attngeo.scores.score import score_models

    outcomes = run_all(
        listed[0] if alone else "score", listed, partial(score_models, options=options.replace(per_head=True), hub=hub),
        results, study, quiet=quiet, verbose=verbose, unit="models", alone=alone, note=note,
    )  # fmt: skip
    names = [outcome.name for outcome in outcomes if outcome.result is not None]
    frames = [outcome.result for outcome in outcomes if outcome.result is not None]
    verified = _verify(names, frames, hub, study, quiet=quiet, verbose=verbose) if verify else []
    failed = False
    if frames:
        _deliver(frames, outputs, format, per_head=options.per_head, quiet=quiet, summary_only=models_file is not None)
        _draw(frames, figures)
        failed = _report_failed_checks(frames, conditions)
    disagrees = _report_verified([outcome.result for outcome in verified if outcome.result is not None], quiet=quiet)
    failures = [outcome.failure for outcome in (*outcomes, *verified) if outcome.failure is not None]
    for failure in failures:
        say(describe_error(failure))
    if failures:
        raise typer.Exit(failures[0].exit_code if alone else SEVERAL_FAILED)
    if failed or disagrees:
        raise typer.Exit(CHECK_FAILED)


def _check(outputs: list[Path], figures: list[Path], conditions: list[str], options: ScoreOptions) -> list[Condition]:
    """Refuse what cannot work, before anything is read. Returns the parsed conditions."""
    check_outputs(outputs, figures)
    parsed = [Condition(condition) for condition in conditions]
    if "device" in options.model_fields_set:  # a device is looked for by torch, which takes long to import
        from attngeo.devices import pick_device

        pick_device(options.device)
    return parsed


def _verify(
    names: list[str], scored: list[pd.DataFrame], hub: HubAccess, study: StudyOptions, *, quiet: bool, verbose: bool
) -> list[RunOutcome[pd.DataFrame]]:
    """The verification of each model that was scored, by its name as it was given: tables name it as UTF-8.

    Notes in the provenance of its scores how many sites have each verdict. A model that cannot be verified is a
    failure, and its scores are delivered all the same.
    """

    def note(outcome: RunOutcome[pd.DataFrame]) -> None:
        raise_if_traced(outcome)
        if outcome.result is not None:
            counts = outcome.result["verdict"].value_counts()
            scored[outcome.number].attrs["verified"] = {verdict: int(n) for verdict, n in counts.items()}

    with Bar(names[0] if len(names) == 1 else "verify", quiet=quiet, verbose=verbose) as progress:
        return run_study(
            partial(_verify_one, hub=hub), names, names=names, options=study, progress=progress, on_outcome=note
        )


def _verify_one(model: str, progress: ProgressCallback, *, hub: HubAccess) -> pd.DataFrame:
    from attngeo.verification.verify import verify

    return verify(model, hub=hub, progress=progress)


def _report_gaps(model: str, frame: pd.DataFrame, *, to_people: bool) -> None:
    """Report on stderr what the rows do not contain."""
    for pattern, reason in frame.attrs["skipped"].items():
        say(f"{model}: left out: {pattern}: {reason}")
    if not to_people and (empty := int(frame[score_names()[0]].isna().sum())):
        say(f"{model}: {empty} of {len(frame)} layers and heads have no scores; the column note says why")


def _report_verified(frames: list[pd.DataFrame], *, quiet: bool) -> bool:
    """Report on stderr which sites agree with the running model. Returns whether some do not."""
    complaints = [line for frame in frames for line in _list_complaints(frame)]
    notes = [] if quiet else [line for frame in frames for line in _list_notes(frame)]
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
    failed = [
        outcome
        for condition in conditions
        for frame in frames
        for outcome in condition.outcomes(summarise(frame))
        if outcome.failed
    ]
    for outcome in failed:
        say(outcome.complaint)
    return bool(failed)


def _deliver(
    frames: list[pd.DataFrame],
    outputs: list[Path],
    format: OutputFormat,
    *,
    per_head: bool,
    quiet: bool,
    summary_only: bool,
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
    if format is not OutputFormat.table:
        print_rows(rows, format)
    elif summary_only:
        Terminal().print(_tabulate_study(frames))
    else:
        for frame in frames:
            _print_scores(frame, per_head=per_head, quiet=quiet)
        if len(frames) > 1:
            Terminal().print(_tabulate_summary(frames, name_models=True))


def _print_scores(frame: pd.DataFrame, *, per_head: bool, quiet: bool) -> None:
    """Print the layers (and heads) of one model, the quartiles of each stack, and on stderr the notes."""
    console = Terminal()
    console.print(_describe_frame(frame), style="bold", highlight=False)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("stack", overflow="fold", min_width=7)
    for name in ("layer", "head") if per_head else ("layer",):
        table.add_column(name, justify="right", no_wrap=True)
    for spec in SCORES.values():
        table.add_column(spec.label, no_wrap=True)
        if spec.chance_is_exact:
            table.add_column("z", justify="right", no_wrap=True)
    table.add_column("norm", justify="right", no_wrap=True)
    rows = frame if per_head else frame[frame["head"].isna()]
    previous = None
    for row in rows.to_dict("records"):
        if previous not in (None, row["stack"]):
            table.add_section()
        cells = _make_cells(row, per_head, first=row["stack"] != previous, bars=console.width >= WIDTH_OF_BARS)
        table.add_row(*map(Text, cells), style="bold" if per_head and is_missing(row["head"]) else "")
        previous = row["stack"]
    # The summary below shows the name of the stack, too.
    expendable = ["norm", "z", "stack"] if rows["stack"].nunique() == 1 else ["norm", "z"]
    console.print(drop_columns(table, console, expendable))
    console.print(_tabulate_summary([frame]))
    console.print()
    if not quiet:
        for line in _list_footnotes(frame):
            sys.stderr.write(f"{printable(line)}\n")


def _describe_frame(frame: pd.DataFrame) -> str:
    about = frame.attrs
    changed = [
        text.format(about[name])
        for name, text in DESCRIPTIONS.items()
        if about[name] != default_of(ScoreOptions, name) and name not in about["unused"]
    ]
    return printable(
        " · ".join(map(str, filter(None, [about["model"], frame["model_type"].iloc[0], about["convention"], *changed])))
    )


def _make_cells(row: dict[Any, Any], per_head: bool, *, first: bool, bars: bool) -> list[str]:
    cells = [printable(row["stack"]) if first else "", str(row["layer"])]
    if per_head:
        cells.append("all" if is_missing(row["head"]) else str(row["head"]))
    for name, spec in SCORES.items():
        signed = spec.low == -spec.high
        bar = f" {_draw_bar(row[name] / spec.high)}" if bars and signed else ""
        cells.append(format_score(row[name], name) + bar)
        if spec.chance_is_exact:
            cells.append(format_number(row[f"{name}_z"], "+.1f"))
    return [*cells, format_number(row["frobenius_norm"], ".4g")]


def _draw_bar(share: float) -> str:
    """A share in [−1, 1] as a bar to the left or right of a middle line."""
    if is_missing(share):
        return ""
    filled = "█" * round(abs(share) * HALF_BAR)
    return f"{filled if share < 0 else '':>{HALF_BAR}}│{filled if share >= 0 else '':<{HALF_BAR}}"


def _tabulate_summary(frames: Iterable[pd.DataFrame], *, name_models: bool = False) -> Table:
    """Median and quartiles over layers and over heads: two lines for each stack of each model."""
    labels = [spec.label for spec in SCORES.values()]
    table = Table("median [quartiles] over", *labels[:-1], box=None, pad_edge=False, header_style="")
    table.add_column(labels[-1], overflow="fold")
    table.columns[0].overflow = "fold"  # paths differ at their ends
    for frame in frames:
        if name_models:
            table.add_row(Text(printable(frame.attrs["model"]), style="bold"))
        for stack, members in frame.groupby("stack", sort=False):
            spread = spread_of(members)
            for what, rows in (
                ("layer", members[members["head"].isna()]),
                ("head", members[members["head"].notna()]),
            ):
                cells = [" ".join(format_quartiles(spread, name, heads=what == "head")) for name in SCORES]
                table.add_row(*map(Text, (f"{printable(stack)}, {_count_scored(rows, what)}", *cells)))
    return table


def _tabulate_study(frames: Iterable[pd.DataFrame]) -> Table:
    """Median and quartiles over layers: one line for each stack of each model."""
    table = Table("model", box=None, pad_edge=False, header_style="")
    table.columns[0].overflow = "fold"
    stacks = [
        (frame.attrs["model"], stack, members)
        for frame in frames
        for stack, members in frame.groupby("stack", sort=False)
    ]
    several = len({stack for _, stack, _ in stacks}) > 1
    for name in (*(["stack"] if several else []), "layers", *(spec.label for spec in SCORES.values())):
        table.add_column(name, justify="right" if name == "layers" else "left", no_wrap=name == "layers")
    previous = None
    for model, stack, members in stacks:
        layers = members[members["head"].isna()]
        cells = [" ".join(format_quartiles(spread_of(members), name, digits=2)) for name in SCORES]
        shown = [printable(stack)] if several else []
        table.add_row(*map(Text, (printable(model) if model != previous else "", *shown, str(len(layers)), *cells)))
        previous = model
    return table


def _count_scored(rows: pd.DataFrame, what: str) -> str:
    """How many have a score: "6 layers", "1 layer", "5 of 6 layers"."""
    total, scored = len(rows), int(rows[next(iter(SCORES))].notna().sum())
    share = f"{scored} of {total}" if scored < total else f"{total}"
    return f"{share} {what}" if total == 1 else f"{share} {what}s"


def _list_footnotes(frame: pd.DataFrame) -> list[str]:
    """Each note once, with the layers (and heads) that it is about, unless these are all."""
    places: dict[str, list[str]] = {}
    for row in frame.to_dict("records"):
        head = "" if is_missing(row["head"]) else f".{row['head']}"
        for text in filter(None, str(row["note"]).split("; ")):
            places.setdefault(text, []).append(f"{row['stack']} {row['layer']}{head}")
    lines = []
    for text, where in places.items():
        more = f" and {len(where) - MOST_PLACES} more" if len(where) > MOST_PLACES else ""
        suffix = "" if len(where) == len(frame) else f" ({', '.join(where[:MOST_PLACES])}{more})"
        lines.append(f"note: {text}{suffix}")
    return lines


def _list_complaints(frame: pd.DataFrame) -> list[str]:
    """One line for each group of sites that disagree, and for each module that attends and is not accounted for."""
    from attngeo.verification.verify import FAILING

    silent = (
        f"{pattern} attends in the running model, and is neither read nor left out"
        for pattern in frame.attrs["unexplained"]
    )
    return [f"{frame.attrs['model']}: {text}" for text in (*_describe_groups(frame, FAILING), *silent)]


def _list_notes(frame: pd.DataFrame) -> list[str]:
    """One line for each group of sites that were not checked, why the model does not run, and how many sites agree."""
    from attngeo.verification.verify import AGREEING, UNCHECKED

    agreeing, total = int(frame["verdict"].isin(AGREEING).sum()), len(frame)
    share = f"all {total} sites agree" if agreeing == total else f"{agreeing} of {total} sites agree"
    lines = list(_describe_groups(frame, UNCHECKED))
    if frame.attrs["problem"] and "not run" in set(frame["verdict"]):
        lines.append(f"the whole model does not run on random inputs: {frame.attrs['problem']}")
    lines.append(f"{share} with what the running model multiplies")
    return [f"{frame.attrs['model']}: {text}" for text in lines]


def _describe_groups(frame: pd.DataFrame, verdicts: Sequence[str]) -> Iterator[str]:
    for verdict in verdicts:
        rows = frame[frame["verdict"] == verdict]
        for (stack, pattern), group in rows.groupby(["stack", rows["module"].map(pattern_of)], sort=False):
            difference = f", difference {group['difference'].max():.2g}" if verdict == "differs" else ""
            where = f"{str(stack).partition(':')[0]}, {name_layers(group['layer'].tolist())}{difference}"
            yield f"{pattern or 'the model itself'} ({where}) {MEANINGS[verdict]}"
