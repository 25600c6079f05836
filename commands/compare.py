"""`attngeo compare`: what changed between models, as tables for people and files for programs."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from attngeo.bounds.names import PATTERN, printable
from attngeo.changes.compare import list_pairs, refuse_repeats
from attngeo.changes.compare_options import (
    CHECKS,
    OVERLAPS,
    STACK,
    SUMMARIZED,
    CompareOptions,
    compare_columns,
    find_circuit,
    summarize_changes,
    summary_columns,
)
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.reference import split_adapter_weight
from attngeo.errors import UsageError
from attngeo.layouts.names import name_layers
from attngeo.questions.checks import parse_condition
from attngeo.questions.conditions import Condition
from attngeo.questions.frames import join_frames
from attngeo.questions.table import QUESTIONS
from attngeo.session import ResultOptions, Session, StudyOptions
from attngeo.studies.revisions import RevisionOptions
from attngeo.studies.steps import order_steps

from .asking import ask_models
from .checks import (
    Checks,
    check_conditions,
    condition_option,
    end_with_failures,
    require_conditions,
)
from .declare import with_options
from .models import MODEL_HELP, ModelOutputs, ModelsFile, list_all, model_argument
from .outputs import Summary, Verbosity, plot_option
from .progress import Bar
from .selection import HeadSelection, Selection, deliver_summary
from .tables import Cell, Terminal, format_number, is_missing, print_frame, print_table

if TYPE_CHECKING:
    import pandas as pd

# Layers, and heads, that are listed because they changed most.
MOST_CHANGES_LISTED = 5
# Notes that are printed; files have all of them.
MOST_NOTES = 6
# Heads that a note names.
MOST_NAMED_HEADS = 8
# A change as tables have it.
FORM = ".3g"
# Circuit → the weights that are compared.
CHANGED = {"qk": "queries and keys", "ov": "values and outputs"}

Models = Annotated[
    list[str] | None,
    model_argument(f"The first model, then models to compare with it: {MODEL_HELP}; or org/name@step*"),
]
Plots = Annotated[list[Path] | None, plot_option("the map of changes")]

Conditions = Annotated[list[str] | None, condition_option("change.max > 0.1", CHECKS, has_per_head=True)]


@with_options
def compare(
    *,
    options: CompareOptions,
    models: Models = None,
    models_file: ModelsFile = None,
    revisions: RevisionOptions,
    outputs: ModelOutputs,
    selection: HeadSelection,
    summary: Summary = False,
    plot: Plots = None,
    fail_if: Conditions = None,
    checks: Checks = None,
    hub: HubAccess,
    results: ResultOptions,
    study: StudyOptions,
    verbosity: Verbosity,
) -> None:
    """Show which layers and heads changed from one model to others.

    Change: norm of the difference of the two query-key matrices, divided by the norm of the first. 0 means that both
    compute the same; about 1.4 with a cosine of 0 means that they have nothing in common. With rotary embeddings, the
    matrix depends on the distance between two tokens, and norms are means over all distances. Overlaps: how much of a
    head's inputs is the same in both; head_dim/d_model by chance. Models of different sizes are paired by relative
    depth, without changes. Biases are not compared; values and outputs are compared only with --circuit ov.

    Examples:
        attngeo compare ./base ./tuned
        attngeo compare ./base ./tuned --per-head -o changes.csv
        attngeo compare ./base --adapter ./lora
        attngeo compare ./model ./model.Q4_K_M.gguf --fail-if 'heads.change.max > 0.1'
        attngeo compare 'EleutherAI/pythia-70m@step*' -o steps.parquet
    """
    read = [models_file, options.config, *(split_adapter_weight(text)[0] for text in options.adapter)]
    figures = plot or []
    outputs.check(*read, more=[checks], figures=figures)
    conditions = _parse_conditions(fail_if or [], options)
    require_conditions(checks, conditions)
    _refuse_other_circuit(options, conditions, selection)
    if summary:
        selection = selection.of_summary(summary_columns())
    selection.check(summary_columns() if summary else compare_columns(options.circuit))
    listed = list_all(models, models_file, hub, command="compare")
    if any(map(PATTERN.search, models or ())):  # the first model may be among those that match
        listed = [*dict.fromkeys(listed)]
    if order_steps(listed)[:1] != [0]:
        verbosity.note(
            f"note: all models are compared with the first, {listed[0]}, although others are earlier steps; to start "
            "with the earliest step, quote the pattern"
        )
    if len(listed) == 1 and not options.adapter:
        raise UsageError(
            f"compare needs at least two models, got {listed[0]}; add others, a pattern such as org/name@step*, or "
            f"--adapter; to score one model, type: attngeo score {shlex.quote(listed[0])}"
        )
    pairs = list_pairs(listed, options)
    outputs.check(*listed, more=[checks], figures=figures)
    outputs.check_labels(listed)
    alone = len(pairs) == 1
    session = Session(hub=hub, study=study, results=results)
    with Bar("compare", verbosity) as bar:
        refuse_repeats(listed, revisions, replace(session, progress=bar))
    outcomes = ask_models(
        QUESTIONS["compare"],
        pairs,
        session,
        verbosity,
        options=options.replace(per_head=True),
    )
    frames = [outcome.result for outcome in outcomes if outcome.result is not None]
    complaints: list[str] = []
    if frames:
        if summary:
            deliver_summary(summarize_changes(join_frames(frames)), [*SUMMARIZED], STACK, outputs, selection)
            for frame in frames:  # a summary has no column note
                _print_notes(outputs.name(frame), verbosity, several=len(frames) > 1)
        else:
            _deliver(frames, outputs, options, selection, verbosity)
        outputs.draw("change-map", [join_frames(frames)], figures)
        complaints = check_conditions(conditions, join_frames(frames), None, verbosity, checks)
    failures = [outcome.failure for outcome in outcomes if outcome.failure is not None]
    end_with_failures(complaints, failures, alone=alone)


def _parse_conditions(texts: list[str], options: CompareOptions) -> list[Condition]:
    """The conditions. Raises UsageError for a name that could mean layers or heads, and for one of a baseline."""
    conditions = [parse_condition(text, CHECKS) for text in texts]
    for condition in conditions:
        if options.per_head:
            condition.require_clear()
        if condition.needs_baseline:
            raise UsageError(
                f"the condition {condition.expression!r} names a baseline; the baseline of compare is its first model: "
                "write symmetry.median for it, and symmetry_other.median for the other model"
            )
    return conditions


def _refuse_other_circuit(options: CompareOptions, conditions: list[Condition], selection: Selection) -> None:
    """Raise UsageError for a column that only tables of the other circuit have."""
    in_conditions = {quantity.column for condition in conditions for quantity in condition.quantities.values()}
    for name in (*selection.named_columns, *in_conditions):
        circuit = find_circuit(name)
        if circuit not in (None, options.circuit):
            raise UsageError(f"{name} is a column of another circuit; add $circuit {circuit}", "circuit")


def _deliver(
    frames: list[pd.DataFrame],
    outputs: ModelOutputs,
    options: CompareOptions,
    selection: Selection,
    verbosity: Verbosity,
) -> None:
    """Write the files, then print, so that a closed pipe loses nothing."""
    rows = join_frames(frames)
    about = rows.attrs
    if not options.per_head:
        rows = rows[rows["head"].isna()].reset_index(drop=True)
    elif selection.top is not None:  # whole layers would take the places of heads
        rows = rows[rows["head"].notna()].reset_index(drop=True)
    rows.attrs = about | {"per_head": options.per_head}
    several = ["other"] if len(frames) > 1 else []
    heads = ["head"] if options.per_head else []
    overlaps = OVERLAPS[options.circuit] if options.per_head else ()
    brief = selection.choose([*several, "stack", "layer", *heads, "change", "cosine", *overlaps])

    named = [outputs.name(frame) for frame in frames]

    def print_tables(selected: pd.DataFrame) -> None:
        if selection.is_given:
            print_frame(selected[brief])
        elif len(frames) == 1:
            _print_pair(named[0], options)
        else:
            _print_models(named, options)
        for frame in named:
            _print_notes(frame, verbosity, several=len(frames) > 1)

    outputs.deliver(selection.select(rows), print_tables, brief)


def _print_pair(frame: pd.DataFrame, options: CompareOptions) -> None:
    """Print a line for each layer, and what changed most."""
    about = frame.attrs
    is_head = frame["head"].notna()
    lines = []
    for _, row in (frame if options.per_head else frame[~is_head]).iterrows():
        line = row.to_dict()
        members = frame[is_head & (frame["stack"] == row["stack"]) & (frame["layer"] == row["layer"])]
        line["heads"] = members["change"].median()
        line["largest"] = _name_place(members, ["head"])
        lines.append(line)
    arrow = "->" if Terminal().options.ascii_only else "→"
    title = f"{about['model']} {arrow} {' + '.join([about['other'], *options.adapter])}"
    if options.circuit != "qk":
        title += f" · {options.circuit}"
    if options.rope_offset is not None:
        title += f" · offset {options.rope_offset}"
    columns: list[tuple[str, Cell]] = [("stack", "stack"), ("layer", "layer")]
    if options.per_head:
        columns.append(("head", lambda line: "all" if is_missing(line["head"]) else line["head"]))
    columns += [
        ("symmetry", "symmetry:+.3f"),
        ("other", "symmetry_other:+.3f"),
        ("change", f"change:{FORM}"),
        ("cosine", "cosine:+.3f"),
    ]
    if options.per_head:
        columns += [(name.replace("_", " "), f"{name}:.3f") for name in OVERLAPS[options.circuit]]
    else:
        columns += [("heads' median", f"heads:{FORM}"), ("largest (head)", "largest")]
    expendable = ["other", "symmetry", "cosine"]
    if frame["stack"].nunique() == 1:
        expendable.insert(0, "stack")
    print_table(lines, columns, title=printable(title), section=["stack"], texts=["stack"], expendable=expendable)
    _print_most_changed(frame, options)


def _print_most_changed(frame: pd.DataFrame, options: CompareOptions) -> None:
    """Print the layers and the heads that changed most."""
    known = frame.dropna(subset="change")
    is_head = known["head"].notna()
    if known.empty:
        sys.stdout.write("no layer or head has a change: see the notes\n")
        return
    if not known["change"].any():
        text = f"nothing changed in {CHANGED[options.circuit]}"
        if len(known) < len(frame):
            text += f", in {(~is_head).sum()} of {frame['head'].isna().sum()} layers"
            text += f" and {is_head.sum()} of {frame['head'].notna().sum()} heads"
            text += "; the others cannot be compared: see the notes"
        sys.stdout.write(f"{text}\n")
        return
    known = known[known["change"] > 0]
    is_head = known["head"].notna()
    stacks = frame["stack"].nunique() > 1
    layers = known[~is_head].nlargest(MOST_CHANGES_LISTED, "change")
    named = [
        f"{row['stack'] + ' ' if stacks else ''}{row['layer']} ({format_number(row['change'], FORM)})"
        for _, row in layers.iterrows()
    ]
    Terminal().print(f"layers that changed most: {', '.join(named)}")
    columns: list[tuple[str, Cell]] = [("stack", "stack")] if stacks else []
    columns += [("layer", "layer"), ("head", "head"), ("change", f"change:{FORM}"), ("cosine", "cosine:+.3f")]
    columns += [(name.replace("_", " "), f"{name}:.3f") for name in OVERLAPS[options.circuit]]
    heads = known[is_head].nlargest(MOST_CHANGES_LISTED, "change")
    print_table(heads, columns, title="\nheads that changed most", texts=["stack"], rule="tight")


def _print_models(frames: list[pd.DataFrame], options: CompareOptions) -> None:
    """Print a line for each other model."""
    lines: list[dict[str, Any]] = []
    for frame in frames:
        is_head = frame["head"].notna()
        layers = frame[~is_head]
        heads = frame[is_head].dropna(subset="change")
        line: dict[str, Any] = {"other": frame.attrs["other"], "layers": layers["change"].median()}
        line |= {"layer": _name_place(layers, ["layer"]), "heads": heads["change"].median()}
        line |= {"head": _name_place(heads, ["layer", "head"]), "cosine": layers["cosine"].median()}
        lines.append(line)
    columns: dict[str, Cell] = {
        "other model": "other",
        "layers' median": f"layers:{FORM}",
        "largest (layer)": "layer",
        "cosine": "cosine:+.3f",
        "heads' median": f"heads:{FORM}",
        "largest (head)": "head",
    }
    added = f" to models with {' + '.join(options.adapter)}" if options.adapter else ""
    title = printable(f"changes from {frames[0].attrs['model']}{added}")
    print_table(lines, columns, title=title, expendable=["heads' median", "cosine", "largest (layer)"])


def _name_place(rows: pd.DataFrame, place: list[str]) -> str:
    """The largest change of some rows, and where it is."""
    largest = rows.dropna(subset="change").nlargest(1, "change").to_dict("records")
    if not largest:
        return format_number(None)
    [row] = largest
    return f"{format_number(row['change'], FORM)} ({'.'.join(str(row[name]) for name in place)})"


def _print_notes(frame: pd.DataFrame, verbosity: Verbosity, *, several: bool) -> None:
    """Print on stderr what layers and heads have notes about."""
    name = f"{frame.attrs['other']}: " if several else ""
    groups = list(frame[frame["note"] != ""].groupby(["stack", "note"], sort=False))
    if len(groups) > MOST_NOTES:
        verbosity.note(f'note: {name}{len(groups)} different notes, all in the column "note"; the first {MOST_NOTES}:')
    for (stack, note), members in groups[:MOST_NOTES]:
        verbosity.note(f"note: {name}{stack}, {_name_places(members)}: {note}")


def _name_places(rows: pd.DataFrame) -> str:
    """The layers of some rows; and the heads, if a few heads of one layer are meant and not the whole layer."""
    layers = name_layers(rows["layer"])
    if rows["head"].isna().any() or rows["layer"].nunique() > 1 or len(rows) > MOST_NAMED_HEADS:
        return layers
    heads = [str(head) for head in rows["head"]]
    return f"{layers}, head{'s' if len(heads) > 1 else ''} {', '.join(heads)}"
