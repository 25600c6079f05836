"""`attngeo score`: symmetry and directionality of every layer and head, as tables for people and files for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import attngeo
from attngeo.bounds.names import in_utf8, printable
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.reference import split_adapter_weight
from attngeo.choices import Circuit
from attngeo.errors import DataError, UsageError, shorten
from attngeo.options import RESULTS, default_of
from attngeo.provenance import merge_origins
from attngeo.questions.checks import parse_condition
from attngeo.questions.conditions import FILE, Condition, match_baseline
from attngeo.questions.frames import join_frames, order_frames
from attngeo.questions.rows import CIRCUIT, IDENTITY, name_circuits
from attngeo.questions.spread import QUARTILES
from attngeo.questions.table import QUESTIONS
from attngeo.scores.options import CHECKS, ScoreOptions
from attngeo.scores.spec import (
    SCORES,
    ScoreSpec,
    default_scores,
    head_scores,
    layer_scores,
    number_columns,
    score_names,
    scores_in,
    z_columns,
)
from attngeo.scores.summary import brief_columns, spread_of, summarize_briefly
from attngeo.scores.trajectory import find_departures
from attngeo.session import ResultOptions, Session, StudyOptions
from attngeo.studies.engine import run_study
from attngeo.studies.revisions import RevisionOptions, refuse_repeated_revisions
from attngeo.studies.steps import step_of
from attngeo.tables.read import read_results
from attngeo.tables.write import NOTES

from .asking import ask_models
from .cells import format_quartiles, score_format
from .checks import (
    Checks,
    check_conditions,
    condition_option,
    end_with_failures,
    require_conditions,
)
from .declare import with_options
from .models import ModelOutputs, Models, ModelsFile, list_all
from .outputs import Summary, Verbosity, plot_option
from .progress import Bar
from .selection import HeadSelection, Selection, print_summary
from .study import raise_if_traced
from .tables import MISSING, Cell, Terminal, format_number, is_missing, print_frame, print_table

if TYPE_CHECKING:
    import pandas as pd

    from attngeo.studies.run import RunOutcome

HALF_BAR = 5
# On a narrower terminal, bars would leave too little room for numbers.
WIDTH_OF_BARS = 78
# What the column of an optional score adds to that.
WIDTH_OF_OPTIONAL = 14
# Places that a footnote names at most.
MOST_PLACES_NAMED = 6
# Steps of a training that make a trajectory.
FEWEST_STEPS = 3

Plots = Annotated[list[Path] | None, plot_option("the map of layers × heads")]
Conditions = Annotated[list[str] | None, condition_option("symmetry.median < 0.2", CHECKS, has_per_head=True)]
Baseline = Annotated[
    Path | None,
    typer.Option(
        "--baseline",
        metavar="FILE",
        help="File of earlier scores, for conditions such as 'abs(symmetry.median - baseline.symmetry.median) > 0.05'",
        rich_help_panel=RESULTS,
        hidden=True,
    ),
]
Verify = Annotated[
    bool,
    typer.Option(
        "--verify",
        help="Run the model with transformers; exit with 1 if it uses different weights",
        rich_help_panel=RESULTS,
    ),
]


@with_options
def score(
    *,
    options: ScoreOptions,
    models: Models = None,
    models_file: ModelsFile = None,
    revisions: RevisionOptions,
    outputs: ModelOutputs,
    selection: HeadSelection,
    summary: Summary = False,
    plot: Plots = None,
    fail_if: Conditions = None,
    baseline: Baseline = None,
    checks: Checks = None,
    verify: Verify = False,
    hub: HubAccess,
    results: ResultOptions,
    study: StudyOptions,
    verbosity: Verbosity,
) -> None:
    """Score the symmetry and directionality of the query-key matrix of every layer.

    Symmetry is 1 for a symmetric matrix, about 0 by chance and -1 for a skew-symmetric one. Directionality is negative
    if a few columns dominate, positive if a few rows do. Both are defined in Saponati et al. 2025 (arXiv 2502.10927).
    With three or more training steps, such as org/name@step*, a table shows the step from which each score differs from
    chance: from there on, its median over layers is at least 2 standard deviations of a random form away.

    Examples:
        attngeo score demo:minilm
        attngeo score google-bert/bert-base-uncased openai-community/gpt2 -o s.csv
        attngeo score ./checkpoint --plot heads.html --fail-if 'symmetry.median < 0.2'
        attngeo score ./checkpoint --per-head --sort symmetry --top 10
        attngeo score ./checkpoint --verify
        attngeo score --models models.txt --jobs 4 -o study.parquet
        attngeo score 'EleutherAI/pythia-70m@step*' -o steps.parquet
    """
    read = [models_file, baseline, options.config, *(split_adapter_weight(text)[0] for text in options.adapter)]
    figures = plot or []
    outputs.check(*read, more=[checks], figures=figures)
    conditions = _parse_conditions(fail_if or [], baseline, per_head=options.per_head)
    require_conditions(checks, conditions)
    earlier = None if baseline is None else _read_baseline(baseline)
    if summary:
        summarized = brief_columns(options.scores, per_head=options.per_head)
        selection = selection.of_summary(summarized)
        selection.check(summarized)
    else:
        selection.check(attngeo.columns("score", scores=tuple(SCORES), circuit=options.circuit))
    _refuse_contradictions(options, conditions, selection, verify=verify)
    listed = list_all(models, models_file, hub, command="score", verbosity=verbosity)
    outputs.check(*listed, more=[checks], figures=figures)
    outputs.check_labels(listed)
    if earlier is not None:
        match_baseline(map(in_utf8, listed), earlier)
    alone = len(listed) == 1
    session = Session(hub=hub, study=study, results=results)
    with Bar("score", verbosity) as bar:
        refuse_repeated_revisions(listed, revisions, replace(session, progress=bar))

    outcomes = ask_models(
        QUESTIONS["score"],
        listed,
        session,
        verbosity,
        options=options.replace(per_head=True),
        note=partial(_report_outcome, verbosity=verbosity, is_table=outputs.format == "table"),
    )
    scored = {outcome.name: outcome.result for outcome in outcomes if outcome.result is not None}
    verified, disagreements, notes = _verify(scored, options.circuit, session, verbosity) if verify else ([], [], [])
    complaints: list[str] = []
    if scored:
        frames = order_frames([*scored.values()])
        if summary:
            _deliver_summary(frames, outputs, options, selection, verbosity)
        else:
            _deliver(frames, outputs, options, selection, verbosity, summary_only=models_file is not None)
        outputs.draw("heatmap", frames, figures)
        complaints += check_conditions(conditions, join_frames(frames), earlier, verbosity, checks)
        complaints += disagreements
        for text in notes:
            verbosity.note(text)
    failures = [outcome.failure for outcome in (*outcomes, *verified) if outcome.failure is not None]
    end_with_failures(complaints, failures, alone=alone)


def _parse_conditions(texts: list[str], baseline: Path | None, *, per_head: bool) -> list[Condition]:
    """The conditions. Raises UsageError for a name that could mean layers or heads, and for a baseline without use."""
    conditions = [parse_condition(text, CHECKS) for text in texts]
    for condition in conditions:
        if per_head:
            condition.require_clear()
        if condition.needs_baseline and baseline is None:
            raise UsageError(f"the condition {condition.expression!r} compares with a baseline; add --baseline FILE")
    if baseline is not None and not any(condition.needs_baseline for condition in conditions):
        raise UsageError("no condition uses --baseline; add --fail-if with a name such as baseline.symmetry.median")
    return conditions


def _read_baseline(path: Path) -> pd.DataFrame:
    """The earlier scores of a file. Raises DataError for a file of another command."""
    rows = read_results(path, IDENTITY, "attngeo score", numbers=number_columns())
    if "other" in rows:
        raise DataError(f"{path} is a table written by attngeo compare, expected one written by attngeo score -o FILE")
    rows.attrs = {FILE: path}
    return rows


def _refuse_contradictions(
    options: ScoreOptions, conditions: list[Condition], selection: Selection, *, verify: bool
) -> None:
    """Raise UsageError for options that contradict each other or this machine, before anything is read."""
    in_conditions = {quantity.column for condition in conditions for quantity in condition.quantities.values()}
    for name in (*selection.named_columns, *in_conditions):
        if name in SCORES and name not in score_names(options.scores):
            raise UsageError(f"{name} is an optional score; add $scores {name}", "scores")
    if "device" in options.model_fields_set:  # a device is looked for by torch, which takes long to import
        from attngeo.devices import pick_device

        pick_device(options.device)
    if verify and options.adapter:
        raise UsageError("$verify runs the model without adapters; leave out $verify or $adapter", "verify", "adapter")
    if verify and options.config is not None:
        raise UsageError(
            "$verify runs the model with the config.json beside its weights; leave out $verify or $config",
            "verify",
            "config",
        )


def _report_outcome(outcome: RunOutcome[pd.DataFrame], verbosity: Verbosity, *, is_table: bool) -> None:
    """Report on stderr that rows have no scores."""
    if outcome.result is None:
        return
    empty = int(outcome.result[score_names()[0]].isna().sum())
    total = len(outcome.result)
    if empty and not is_table:
        verbosity.note(
            f'{outcome.name}: {empty} of {total} layers and heads have no scores; the column "note" says why'
        )


def _verify(
    scored: dict[str, pd.DataFrame], circuit: Circuit, session: Session, verbosity: Verbosity
) -> tuple[list[RunOutcome[pd.DataFrame]], list[str], list[str]]:
    """The verification of each model that was scored, by its name as it was given: tables name it as UTF-8.

    Notes in the provenance of its scores how many sites have each verdict. A model that cannot be verified is a
    failure, and its scores are delivered all the same. Also returns what disagrees with the running models, and notes
    on how many sites agree with them.
    """
    from attngeo.verification.verify import describe_verification, verify_model

    names = [*scored]
    with Bar(names[0] if len(names) == 1 else "verify", verbosity) as bar:
        check = partial(verify_model, circuit=circuit)
        outcomes = run_study(check, names, replace(session, progress=bar), on_outcome=raise_if_traced)
    disagreements: list[str] = []
    notes: list[str] = []
    for outcome in outcomes:
        if outcome.result is None:
            continue
        counts = outcome.result["verdict"].value_counts()
        scored[outcome.name].attrs["verified"] = {verdict: int(n) for verdict, n in counts.items()}
        of_model, about_model = describe_verification(outcome.result)
        disagreements += of_model
        notes += about_model
    return outcomes, disagreements, notes


def _deliver(
    frames: list[pd.DataFrame],
    outputs: ModelOutputs,
    options: ScoreOptions,
    selection: Selection,
    verbosity: Verbosity,
    *,
    summary_only: bool,
) -> None:
    """Write the files, then print, so that a closed pipe loses nothing."""
    import pandas as pd

    rows = pd.concat(frames, ignore_index=True)
    if not options.per_head:
        rows = rows[rows["head"].isna()].reset_index(drop=True)
    elif selection.top is not None:  # whole layers would take the places of heads
        by_layers = selection.sort is not None and selection.sort.removeprefix("-") in layer_scores()
        rows = rows[rows["head"].isna() == by_layers].reset_index(drop=True)
    rows.attrs = merge_origins([frame.attrs for frame in frames]) | {"per_head": options.per_head}
    if verified := {frame.attrs["model"]: frame.attrs["verified"] for frame in frames if "verified" in frame.attrs}:
        rows.attrs["verified"] = verified

    brief = selection.choose(_columns_for_people(options, several=len(frames) > 1))

    named = [outputs.name(frame) for frame in frames]

    def print_tables(selected: pd.DataFrame) -> None:
        if selection.is_given:
            print_frame(selected[[*brief]])
            return
        if not summary_only:
            for frame in named:
                _print_scores(frame, verbosity, per_head=options.per_head)
        if summary_only or len(frames) > 1:
            _print_models(named)
            _print_departures(outputs.name(rows), verbosity)

    paper = list(selection.columns) or [
        name for name in brief if name != "frobenius_norm" and (name != "stack" or rows["stack"].nunique() > 1)
    ]
    outputs.deliver(selection.select(rows), print_tables, paper)


def _deliver_summary(
    frames: list[pd.DataFrame],
    outputs: ModelOutputs,
    options: ScoreOptions,
    selection: Selection,
    verbosity: Verbosity,
) -> None:
    """Write and print one row for each stack of each model."""
    rows = join_frames(frames)
    summarized = summarize_briefly(rows, per_head=options.per_head)
    summarized.attrs |= rows.attrs | summarized.attrs
    place = [name for name in ("model", "stack") if summarized[name].nunique() > 1]
    spread = [str(name) for name in summarized if str(name).endswith(QUARTILES)]
    brief = selection.choose([*place, "layers", *spread])

    def print_tables(selected: pd.DataFrame) -> None:
        if selection.is_given:
            print_summary(selected, ("model", "stack"))
        else:
            _print_models([outputs.name(frame) for frame in frames])
            _print_departures(outputs.name(rows), verbosity)

    outputs.deliver(selection.select(summarized), print_tables, brief)


def _columns_for_people(options: ScoreOptions, *, several: bool) -> list[str]:
    """The columns of a table of selected rows, without what all rows of one model have in common."""
    place = ["model"] if several else []
    place += ["stack", "layer"] if options.circuit == "qk" else ["stack", CIRCUIT, "layer"]
    place += ["head"] if options.per_head else []
    return [*place, *score_names(options.scores), *z_columns(), "frobenius_norm"]


def _print_scores(frame: pd.DataFrame, verbosity: Verbosity, *, per_head: bool) -> None:
    """Print the layers (and heads) of one model, the quartiles of each stack, and on stderr the notes."""
    about = frame.attrs
    frame = name_circuits(frame)
    title = [about["model"], frame["model_type"].iloc[0], about["convention"]]
    if about["precision"] != default_of(ScoreOptions, "precision"):
        title.append(about["precision"])
    rows = frame if per_head else frame[frame["head"].isna()]
    rows = rows.assign(stack=rows["stack"].mask(rows["stack"].duplicated(), ""), section=rows["stack"])
    scores = [SCORES[name] for name in scores_in(frame.columns)]
    optional = [spec for spec in scores if spec.is_optional]
    bars = Terminal().width >= WIDTH_OF_BARS + len(optional) * WIDTH_OF_OPTIONAL
    columns: list[tuple[str, Cell]] = [("stack", "stack"), ("layer", "layer")]
    if per_head:
        columns.append(("head", lambda row: "all" if is_missing(row["head"]) else row["head"]))
    for spec in scores:
        columns.append((spec.label, partial(_show_score, spec=spec, bars=bars)))
        if spec.chance_is_exact:
            columns.append(("z", f"{spec.name}_z:+.1f"))
    columns.append(("frobenius_norm", "frobenius_norm:.4g"))
    print_table(
        rows,
        columns,
        title=" · ".join(map(str, filter(None, title))),
        texts=["stack", *(spec.label for spec in scores)],
        section=["section"],
        style=lambda row: "bold" if per_head and is_missing(row["head"]) else "",
        # The summary below shows the name of the stack, too.
        expendable=["frobenius_norm", "z", "stack"] if rows["section"].nunique() == 1 else ["frobenius_norm", "z"],
        last_resort=[spec.label for spec in reversed(optional)],
    )
    print_stacks(frame)
    sys.stdout.write("\n")
    if verbosity.quiet:
        return
    for line in _list_footnotes(frame):
        sys.stderr.write(f"{shorten(printable(line))}\n")


def _show_score(row: dict[Any, Any], spec: ScoreSpec, *, bars: bool) -> str:
    """A score, and a bar if there is room for it and it is one that is always shown, and has a sign."""
    score = row[spec.name]
    text = format_number(score, score_format(spec.name))
    if bars and spec.low == -spec.high and not spec.is_optional:
        text += f" {_draw_bar(score / spec.high)}"
    return text


def _draw_bar(share: float) -> str:
    """A share in [−1, 1] as a bar to the left or right of a middle line."""
    if is_missing(share):
        return ""
    block, middle = ("#", "|") if Terminal().options.ascii_only else ("█", "│")
    filled = block * round(abs(share) * HALF_BAR)
    return f"{filled if share < 0 else '':>{HALF_BAR}}{middle}{filled if share >= 0 else '':<{HALF_BAR}}"


def print_stacks(frame: pd.DataFrame) -> None:
    """Median and quartiles over layers and over heads: two lines for each stack of a model.

    Below, a table of the optional scores that the frame has: a line for each, a column over layers and over heads.
    """
    lines = []
    for stack, members in frame.groupby("stack", sort=False):
        is_layer = members["head"].isna()
        for what, rows in (("layer", members[is_layer]), ("head", members[~is_layer])):
            total = len(rows)
            scored = int(rows[score_names()[0]].notna().sum())
            count = f"{scored} of {total}" if scored < total else f"{total}"
            over = f"{stack}, {count} {what}" if total == 1 else f"{stack}, {count} {what}s"
            lines.append({"over": over, **_summarize_scores(members, heads=what == "head")})
    columns = {"median [quartiles] over": "over", **_score_columns()}
    print_table(lines, columns, texts=columns, rule="none")
    optional = [SCORES[name] for name in scores_in(frame.columns) if SCORES[name].is_optional]
    for over_layers, over_heads in zip(lines[::2], lines[1::2], strict=True):
        of_scores = [
            {"score": spec.label, "layers": over_layers[spec.name], "heads": over_heads.get(spec.name, MISSING)}
            for spec in optional
        ]
        columns = {"": "score", over_layers["over"]: "layers", over_heads["over"]: "heads"}
        if of_scores:
            print_table(of_scores, columns, texts=columns, rule="none")


def _print_models(frames: Iterable[pd.DataFrame]) -> None:
    """Median and quartiles over layers: one line for each stack of each model."""
    lines = []
    for frame in frames:
        model = frame.attrs["model"]
        for stack, members in name_circuits(frame).groupby("stack", sort=False):
            layers = int(members["head"].isna().sum())
            lines.append({"model": model, "stack": stack, "layers": layers, **_summarize_scores(members, digits=2)})
            model = ""
    columns = {"model": "model", "stack": "stack", "layers": "layers", **_score_columns()}
    texts = columns.keys() - {"layers"}
    print_table(lines, columns, texts=texts, expendable=["layers"], names="model", rule="none")


def _print_departures(rows: pd.DataFrame, verbosity: Verbosity) -> None:
    """Print the step from which on each score is outside of chance, for trainings of which enough steps are scored."""
    steps = [step for step in map(step_of, rows["model"].unique()) if step is not None]
    if len(steps) < FEWEST_STEPS:
        return
    try:
        departures = find_departures(rows)
    except DataError as error:  # two revisions state one step
        verbosity.note(f"no table of steps: {error}")
        return
    lines = []
    for (model, stack), members in departures[departures["steps"] >= FEWEST_STEPS].groupby(
        ["model", "stack"], sort=False
    ):
        cells = {departure["score"]: _describe_departure(departure) for departure in members.to_dict("records")}
        lines.append({"model": model, "stack": stack, **cells})
    scores = {SCORES[name].label: name for name in departures["score"].unique()}
    columns = {"differs from chance from step": "model", "stack": "stack", **scores}
    if lines:
        sys.stdout.write("\n")
        print_table(lines, columns, texts=columns, rule="none")


def _describe_departure(departure: dict[Any, Any]) -> str:
    """A step, and the scored step before it, at which the score was inside of chance, or on its other side."""
    if is_missing(departure["step"]):
        return "none"
    before = "the first" if is_missing(departure["after"]) else f"after {departure['after']:,}"
    return f"{departure['step']:,} ({before})"


def _score_columns() -> dict[str, str]:
    """Title → field of the columns of the scores that are always computed."""
    return {spec.label: name for name, spec in default_scores().items()}


def _summarize_scores(rows: pd.DataFrame, digits: int = 3, *, heads: bool = False) -> dict[str, str]:
    """The median and the quartiles of each score over the layers or heads of a stack, as text."""
    spread = spread_of(rows)
    names = scores_in(rows.columns)
    shown = head_scores(names) if heads else names
    return {name: " ".join(format_quartiles(spread, name, digits=digits, heads=heads)) for name in shown}


def _list_footnotes(frame: pd.DataFrame) -> list[str]:
    """Each note once, with the first layers (and heads) that it is about, unless these are all."""
    notes_by_text = frame.attrs.get(NOTES, {})
    places: dict[str, list[str]] = {}
    for row in frame.to_dict("records"):
        head = "" if is_missing(row["head"]) else f".{row['head']}"
        for text in notes_by_text.get(row["note"], []):
            places.setdefault(text, []).append(f"{row['stack']} {row['layer']}{head}")
    lines = []
    for text, where in places.items():
        line = f"note: {text}"
        if len(where) < len(frame):
            more = f" and {len(where) - MOST_PLACES_NAMED} more" if len(where) > MOST_PLACES_NAMED else ""
            line += f" ({', '.join(where[:MOST_PLACES_NAMED])}{more})"
        lines.append(line)
    return lines
