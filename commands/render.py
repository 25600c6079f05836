"""Tables for people: the scores on stdout, notes about them on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from attngeo.scores.projections import Variants
from attngeo.scores.scoring import ScoreOptions

from .console import Terminal, fitted
from .messages import printable

if TYPE_CHECKING:
    import pandas as pd

HALF_BAR = 5
# Narrower than this, numbers would be cut to make room for bars.
WIDTH_OF_BARS = 78
# How the title shows an option that is not at its default: attribute of the table → text.
SHOWN = {
    "with_bias": "with biases",
    "fold_norm": "input gain folded",
    "rope_offset": "rotary offset {}",
    "precision": "{}",
    "gamma": "gamma {}",
}
DEFAULTS = asdict(ScoreOptions()) | asdict(Variants()) | {"precision": "float32"}


def print_scores(frame: pd.DataFrame, *, per_head: bool, quiet: bool) -> None:
    """One table of a model's layers (and heads), then what is typical of each stack, and on stderr the notes."""
    console = Terminal()
    console.print(_title(frame), style="bold", highlight=False, markup=False)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("stack", overflow="fold", min_width=7)
    for name in ("layer", "head") if per_head else ("layer",):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("symmetry", no_wrap=True)
    table.add_column("z", justify="right", no_wrap=True)
    table.add_column("directionality", no_wrap=True)
    table.add_column("norm", justify="right", no_wrap=True)
    rows = frame if per_head else frame[frame["head"].isna()]
    previous = None
    for row in rows.to_dict("records"):
        if previous not in (None, row["stack"]):
            table.add_section()
        table.add_row(
            *map(Text, _cells(row, per_head, first=row["stack"] != previous, bars=console.width >= WIDTH_OF_BARS)),
            style="bold" if per_head and _missing(row["head"]) else "",
        )
        previous = row["stack"]
    # The name of the only stack stands in the summary below, too.
    expendable = ["norm", "z", *(["stack"] if rows["stack"].nunique() == 1 else [])]
    console.print(fitted(table, console, expendable))
    console.print(summary([frame]))
    console.print()
    if not quiet:
        for line in footnotes(frame):
            sys.stderr.write(f"{printable(line)}\n")


def _title(frame: pd.DataFrame) -> str:
    own = frame.attrs
    changed = [text.format(own[name]) for name, text in SHOWN.items() if own[name] != DEFAULTS[name]]
    return printable(
        " · ".join(map(str, filter(None, [own["model"], frame["model_type"].iloc[0], own["convention"], *changed])))
    )


def _cells(row: dict[Any, Any], per_head: bool, *, first: bool, bars: bool) -> list[str]:
    cells = [printable(row["stack"]) if first else "", str(row["layer"])]
    if per_head:
        cells.append("all" if _missing(row["head"]) else str(row["head"]))
    symmetry, directionality = (
        _number(row[name], "+.3f") + (f" {_bar(row[name])}" if bars else "") for name in ("symmetry", "directionality")
    )
    return [*cells, symmetry, _number(row["symmetry_z"], "+.1f"), directionality, _number(row["frobenius_norm"], ".4g")]


def _bar(value: float) -> str:
    """A value in [−1, 1] as a bar to the left or right of a middle line."""
    if _missing(value):
        return ""
    length = round(abs(value) * HALF_BAR)
    filled = "█" * length
    return f"{filled if value < 0 else '':>{HALF_BAR}}│{filled if value >= 0 else '':<{HALF_BAR}}"


def _number(value: Any, form: str) -> str:
    if _missing(value):
        return "—"
    text = f"{value:{form}}"
    return text.replace("-", "+") if float(text) == 0 else text


def _missing(value: Any) -> bool:
    import pandas as pd

    return bool(pd.isna(value))


def summary(frames: Iterable[pd.DataFrame], *, name_models: bool = False) -> Table:
    """Median and quartiles over layers and over heads: two lines for each stack of each model."""
    table = Table("median \\[quartiles] over", "symmetry", box=None, pad_edge=False, header_style="")
    table.add_column("directionality", overflow="fold")
    for frame in frames:
        if name_models:
            table.add_row(Text(frame.attrs["model"], style="bold"))
        for stack, own in frame.groupby("stack", sort=False):
            for what, some in (("layer", own[own["head"].isna()]), ("head", own[own["head"].notna()])):
                spreads = (_spread(some[name]) for name in ("symmetry", "directionality"))
                table.add_row(*map(Text, (f"{stack}, {_count(some['symmetry'], what)}", *spreads)))
    return table


def _count(scores: pd.Series, what: str) -> str:
    """How many have a score: "6 layers", "1 layer", "5 of 6 layers"."""
    scored = int(scores.notna().sum())
    return (f"{scored} of " if scored < len(scores) else "") + f"{len(scores)} {what}{'s' * (len(scores) != 1)}"


def _spread(values: pd.Series) -> str:
    low, middle, high = (values.quantile(q) for q in (0.25, 0.5, 0.75))
    return f"{_number(middle, '+.3f')} [{_number(low, '+.3f')}, {_number(high, '+.3f')}]"


def footnotes(frame: pd.DataFrame) -> list[str]:
    """Each note once, with the layers (and heads) it is about unless that is all of them."""
    places: dict[str, list[str]] = {}
    for row in frame.to_dict("records"):
        head = "" if _missing(row["head"]) else f".{row['head']}"
        for text in filter(None, str(row["note"]).split("; ")):
            places.setdefault(text, []).append(f"{row['stack']} {row['layer']}{head}")
    lines = []
    for text, where in places.items():
        some = ", ".join(where[:6]) + (f" and {len(where) - 6} more" if len(where) > 6 else "")
        lines.append(f"note: {text}" + ("" if len(where) == len(frame) else f" ({some})"))
    return lines
