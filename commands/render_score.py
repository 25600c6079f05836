"""Tables of scores for people: the scores on stdout, notes about them on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from attngeo.bounds import printable
from attngeo.options import default_of
from attngeo.scores.options import ScoreOptions
from attngeo.scores.spec import SCORES
from attngeo.scores.summary import spread_of

from .tables import Terminal, drop_columns, format_number, format_quartiles, format_score, is_missing

if TYPE_CHECKING:
    import pandas as pd

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


def print_scores(frame: pd.DataFrame, *, per_head: bool, quiet: bool) -> None:
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
    console.print(tabulate_summary([frame]))
    console.print()
    if not quiet:
        for line in list_footnotes(frame):
            sys.stderr.write(f"{printable(line)}\n")


def _describe_frame(frame: pd.DataFrame) -> str:
    own = frame.attrs
    changed = [
        text.format(own[name])
        for name, text in DESCRIPTIONS.items()
        if own[name] != default_of(ScoreOptions, name) and name not in own["unused"]
    ]
    return printable(
        " · ".join(map(str, filter(None, [own["model"], frame["model_type"].iloc[0], own["convention"], *changed])))
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


def tabulate_summary(frames: Iterable[pd.DataFrame], *, name_models: bool = False) -> Table:
    """Median and quartiles over layers and over heads: two lines for each stack of each model."""
    labels = [spec.label for spec in SCORES.values()]
    table = Table("median [quartiles] over", *labels[:-1], box=None, pad_edge=False, header_style="")
    table.add_column(labels[-1], overflow="fold")
    table.columns[0].overflow = "fold"  # paths differ at their ends
    for frame in frames:
        if name_models:
            table.add_row(Text(printable(frame.attrs["model"]), style="bold"))
        for stack, own in frame.groupby("stack", sort=False):
            spread = spread_of(own)
            for what, rows in (("layer", own[own["head"].isna()]), ("head", own[own["head"].notna()])):
                cells = [" ".join(format_quartiles(spread, name, heads=what == "head")) for name in SCORES]
                table.add_row(*map(Text, (f"{printable(stack)}, {_count_scored(rows, what)}", *cells)))
    return table


def tabulate_study(frames: Iterable[pd.DataFrame]) -> Table:
    """Median and quartiles over layers: one line for each stack of each model."""
    table = Table("model", box=None, pad_edge=False, header_style="")
    table.columns[0].overflow = "fold"
    stacks = [
        (frame.attrs["model"], stack, own) for frame in frames for stack, own in frame.groupby("stack", sort=False)
    ]
    several = len({stack for _, stack, _ in stacks}) > 1
    for name in (*(["stack"] if several else []), "layers", *(spec.label for spec in SCORES.values())):
        table.add_column(name, justify="right" if name == "layers" else "left", no_wrap=name == "layers")
    previous = None
    for model, stack, own in stacks:
        layers = own[own["head"].isna()]
        cells = [" ".join(format_quartiles(spread_of(own), name, digits=2)) for name in SCORES]
        shown = [printable(stack)] if several else []
        table.add_row(*map(Text, (printable(model) if model != previous else "", *shown, str(len(layers)), *cells)))
        previous = model
    return table


def _count_scored(rows: pd.DataFrame, what: str) -> str:
    """How many have a score: "6 layers", "1 layer", "5 of 6 layers"."""
    total, scored = len(rows), int(rows[next(iter(SCORES))].notna().sum())
    share = f"{scored} of {total}" if scored < total else f"{total}"
    return f"{share} {what}" if total == 1 else f"{share} {what}s"


def list_footnotes(frame: pd.DataFrame) -> list[str]:
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
