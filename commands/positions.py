"""`attngeo positions`: where each head looks by position alone, as tables for people and files for programs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from attngeo.bounds.names import printable
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.reference import split_adapter_weight
from attngeo.layouts.names import name_layers
from attngeo.offsets.options import (
    CHECKS,
    SUMMARIZED,
    PositionOptions,
    position_columns,
    summarize_positions,
    summary_columns,
)
from attngeo.questions.frames import join_frames
from attngeo.questions.table import QUESTIONS
from attngeo.session import ResultOptions, Session, StudyOptions

from .asking import ask_models
from .checks import Checks, conclude, condition_option, parse_conditions, require_conditions
from .declare import with_options
from .models import ModelOutputs, Models, ModelsFile, list_all
from .outputs import Summary, Verbosity, plot_option
from .selection import Selection, deliver_summary
from .tables import Cell, Terminal, format_number, is_missing, print_frame, print_table

if TYPE_CHECKING:
    import pandas as pd

Plots = Annotated[list[Path] | None, plot_option("the map of fast rotary pairs")]
Conditions = Annotated[list[str] | None, condition_option("fast_share.max < 0.3", CHECKS)]
# Heads that are listed one by one: those that prefer the previous token most.
MOST_HEADS_LISTED = 10
# The kernel of these heads, as a terminal has room for it.
SHOWN = (0, 1, 2, 3)
# Below the heads: what random heads have.
LEGEND = "random heads: fast share about 0.25, previous token 0 on average; peak is the Δ of the largest κ"
# The columns of a table of selected rows, and of one in LaTeX.
BRIEF = ("stack", "layer", "head", "fast_share", "previous_token", "peak")


@with_options
def positions(
    *,
    options: PositionOptions,
    models: Models = None,
    models_file: ModelsFile = None,
    outputs: ModelOutputs,
    selection: Selection,
    summary: Summary = False,
    plot: Plots = None,
    fail_if: Conditions = None,
    checks: Checks = None,
    hub: HubAccess,
    results: ResultOptions,
    study: StudyOptions,
    verbosity: Verbosity,
) -> None:
    """Show where each head looks by position alone: one token back, at itself, or far away.

    Fast share: how much of the norm the fastest quarter of the rotary pairs holds; often large in heads that look at
    the previous token. Kernel κ(Δ): logit of a token with itself Δ positions earlier, summed over directions; with a
    table of positions, the mean over tokens. Previous token: κ(1) minus the mean of κ(0), κ(2) and κ(3), over the norm
    of all pairs; κ(1) need not be the largest. Peak: Δ of the largest κ; peak 1 counts heads. Random heads have a fast
    share of about 0.25, and a previous token of 0 on average. No value is decisive: compare the heads of one model.
    Reads only queries, keys and the table of positions. Files, csv and json have κ(0) to κ(8).

    Examples:
        attngeo positions demo:decoder
        attngeo positions HuggingFaceTB/SmolLM2-135M --sort fast_share --top 10
        attngeo positions ./checkpoint -o positions.csv
        attngeo positions ./checkpoint --plot map.html --fail-if 'peak.min > 8'
    """
    figures = plot or []
    read = [models_file, options.config, *(split_adapter_weight(text)[0] for text in options.adapter)]
    outputs.check(*read, more=[checks], figures=figures)
    conditions = parse_conditions(fail_if, CHECKS)
    require_conditions(checks, conditions)
    if summary:
        selection = selection.of_summary(summary_columns())
    selection.check(summary_columns() if summary else position_columns())
    listed = list_all(models, models_file, hub, command="positions", verbosity=verbosity)
    outputs.check(*listed, more=[checks], figures=figures)
    outputs.check_labels(listed)
    outcomes = ask_models(
        QUESTIONS["positions"],
        listed,
        Session(hub=hub, study=study, results=results),
        verbosity,
        options=options,
    )
    frames = [outcome.result for outcome in outcomes if outcome.result is not None]
    rows = join_frames(frames)
    if summary and frames:
        deliver_summary(summarize_positions(rows), [*SUMMARIZED], ("model", "stack"), outputs, selection)
        for frame in frames:  # a summary has no column note
            _print_notes(frame, verbosity)
    elif frames:
        several = ["model"] if len(frames) > 1 else []
        print_rows = partial(_print, selection=selection, verbosity=verbosity)
        outputs.deliver(selection.select(rows), print_rows, selection.choose([*several, *BRIEF]))
    if frames:
        outputs.draw("position-map", frames, figures)
    conclude(rows, outcomes, conditions, verbosity, checks)


def _print(rows: pd.DataFrame, selection: Selection, verbosity: Verbosity) -> None:
    """Print the selected rows; or of each model a line for each layer, and heads one by one. Notes are on stderr."""
    if selection.is_given:
        several = ["model"] if "model" in rows and rows["model"].nunique() > 1 else []
        print_frame(rows[selection.choose([*several, *BRIEF])])
        return
    for model, frame in rows.groupby("model", sort=False):
        title = " · ".join(filter(None, [str(model), _show_type(frame)]))
        _print_layers(frame, printable(title))
        _print_heads(frame)
        _print_notes(frame, verbosity)


def _print_notes(frame: pd.DataFrame, verbosity: Verbosity) -> None:
    """Print on stderr what heads of a model have notes about."""
    for (stack, note), heads in frame.groupby(["stack", "note"], sort=False):
        verbosity.note(f"note: {stack}, {name_layers(heads['layer'])}: {note}")


def _show_type(frame: pd.DataFrame) -> str:
    model_type = frame["model_type"].iloc[0]
    return "" if is_missing(model_type) else str(model_type)


def _print_layers(frame: pd.DataFrame, title: str) -> None:
    """Print a line for each layer: the median and the largest fast share, and the largest previous token."""
    lines = []
    for (stack, layer), heads in frame.groupby(["stack", "layer"], sort=False):
        lines.append(
            {
                "stack": stack,
                "layer": layer,
                "heads": len(heads),
                "median": heads["fast_share"].median(),
                "largest": _find_largest(heads, "fast_share", ".3f"),
                "previous": _find_largest(heads, "previous_token", "+.4f"),
                "back": int((heads["peak"] == 1).sum()),
            }
        )
    columns: dict[str, Cell] = {
        "stack": "stack",
        "layer": "layer",
        "heads": "heads",
        "fast share": "median:.3f",
        "largest (head)": "largest",
        "previous token (head)": "previous",
        "peak 1": "back",
    }
    print_table(lines, columns, title=title, section=["stack"], expendable=["stack", "heads"])


def _find_largest(heads: pd.DataFrame, column: str, form: str) -> str:
    """The largest value of a column, and its head."""
    known = heads.dropna(subset=column)
    if known.empty:
        return format_number(None)
    first = known.sort_values(column, ascending=False, kind="stable").iloc[0]
    return f"{format_number(first[column], form)} ({first['head']})"


def _print_heads(frame: pd.DataFrame) -> None:
    """Print the heads that may look one token back: by their fast share, without it by the kernel."""
    by = "previous_token" if frame["fast_share"].isna().all() else "fast_share"
    heads = frame.dropna(subset=by).sort_values(by, ascending=False, kind="stable").head(MOST_HEADS_LISTED)
    if heads.empty:
        return
    columns: list[tuple[str, Cell]] = [
        ("stack", "stack"),
        ("layer", "layer"),
        ("head", "head"),
        ("fast share", "fast_share:.3f"),
        ("previous token", "previous_token:+.4f"),
        ("peak", "peak"),
    ]
    columns += [(f"κ({offset})", f"kernel_{offset}:.4g") for offset in SHOWN]
    expendable = ["κ(3)", "κ(2)", "stack"] if frame["stack"].nunique() == 1 else ["κ(3)", "κ(2)"]
    print_table(heads, columns, title=f"\nheads with the largest {by.replace('_', ' ')}", expendable=expendable)
    Terminal().print(LEGEND, style="dim")
