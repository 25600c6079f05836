"""Tables for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    import pandas as pd

HALF_BAR = 5


def print_scores(frame: pd.DataFrame, *, per_head: bool) -> None:
    """One table of a model's layers (and heads), then what is typical of each stack, then its notes."""
    console = Console()
    own = frame.attrs
    title = " · ".join(str(part) for part in (own["model"], frame["model_type"].iloc[0], own["convention"]) if part)
    console.print(title, style="bold", highlight=False)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("stack", overflow="fold", min_width=7)
    table.add_column("layer", justify="right", no_wrap=True)
    if per_head:
        table.add_column("head", justify="right", no_wrap=True)
    for name in ("symmetry", "directionality"):
        table.add_column(name, no_wrap=True)
    for name in ("norm", "z"):
        table.add_column(name, justify="right", no_wrap=True)
    rows = frame if per_head else frame[frame["head"].isna()]
    previous = None
    for row in rows.to_dict("records"):
        if previous not in (None, row["stack"]):
            table.add_section()
        table.add_row(*_cells(row, per_head, first=row["stack"] != previous))
        previous = row["stack"]
    console.print(table)
    console.print(summary(frame))
    for line in footnotes(rows):
        console.print(line, highlight=False, style="dim")
    console.print()


def _cells(row: dict[Any, Any], per_head: bool, *, first: bool) -> list[Text]:
    head = row["head"]
    whole = _missing(head)
    cells = [row["stack"] if first else "", str(row["layer"])]
    if per_head:
        cells.append("all" if whole else str(head))
    cells += [
        *(f"{_number(row[name], '+.3f')} {_bar(row[name])}" for name in ("symmetry", "directionality")),
        _number(row["frobenius_norm"], ".4g"), _number(row["symmetry_z"], "+.4g"),
    ]  # fmt: skip
    return [Text(cell, style="bold" if per_head and whole else "") for cell in cells]


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
    return text.replace("-", "+" if float(text) == 0 else "−")


def _missing(value: Any) -> bool:
    import pandas as pd

    return bool(pd.isna(value))


def summary(frame: pd.DataFrame) -> Table:
    """Median and quartiles over layers and over heads: two lines for each stack."""
    table = Table("median \\[quartiles] over", "symmetry", "directionality", box=None, pad_edge=False, header_style="")
    for stack, own in frame.groupby("stack", sort=False):
        for what, some in (("layers", own[own["head"].isna()]), ("heads", own[own["head"].notna()])):
            table.add_row(
                f"{stack}, {len(some)} {what}", *(_spread(some[name]) for name in ("symmetry", "directionality"))
            )
    return table


def _spread(values: pd.Series) -> str:
    low, middle, high = (values.quantile(q) for q in (0.25, 0.5, 0.75))
    return f"{_number(middle, '+.3f')} [{_number(low, '+.3f')}, {_number(high, '+.3f')}]"


def footnotes(rows: pd.DataFrame) -> list[str]:
    """Each note once, with the layers it is about unless that is all of them."""
    places: dict[str, list[str]] = {}
    for row in rows.to_dict("records"):
        head = "" if _missing(row["head"]) else f".{row['head']}"
        for text in filter(None, str(row["note"]).split("; ")):
            places.setdefault(text, []).append(f"{row['stack']} {row['layer']}{head}")
    lines = []
    for text, where in places.items():
        some = ", ".join(where[:6]) + (f" and {len(where) - 6} more" if len(where) > 6 else "")
        lines.append(f"note: {text}" + ("" if len(where) == len(rows) else f" ({some})"))
    return lines
