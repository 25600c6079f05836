"""Tables on a terminal, in the one style of all commands."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from attngeo.bounds import printable
from attngeo.scores.spec import SCORES
from attngeo.scores.summary import QUARTILES, statistic

if TYPE_CHECKING:
    import pandas as pd

MISSING = "—"
# Numbers of rows that are the answer.
ANSWERS = ("log_prob", "predicted_mean", "probability", "score")
# Larger numbers have so many digits that tables cut them.
LARGE = 1e12


def start_table(first: str, *numbers: str) -> Table:
    """A table without rows: a column of names, then columns of numbers, which are aligned to the right."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column(first)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def print_table(
    rows: pd.DataFrame,
    columns: Mapping[str, Callable[[Any], str]],
    *,
    title: str = "",
    texts: int = 1,
    section: str | None = None,
    is_bold: Callable[[Any], bool] | None = None,
    expendable: Sequence[str] = (),
) -> None:
    """Print rows as a table, on a narrow terminal without the expendable columns, the first ones first.

    columns: title → the cell of a row. texts: the number of columns, from the first, that are texts; the others are
    aligned to the right. section: the column of the rows at whose changes a line is drawn.
    """
    console = Terminal()
    for line in title.splitlines():
        console.print(printable(line), style="bold", highlight=False)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for place, name in enumerate(columns):
        is_text = place < texts
        table.add_column(name, justify="left" if is_text else "right", overflow="fold", no_wrap=not is_text)
    previous: Any = None
    for row in rows.to_dict("records"):
        if section is not None and previous not in (None, row[section]):
            table.add_section()
        previous = row[section] if section is not None else None
        cells = [Text(printable(cell(row))) for cell in columns.values()]
        table.add_row(*cells, style="bold" if is_bold is not None and is_bold(row) else "")
    console.print(drop_columns(table, console, expendable))


def show_number(column: str, form: str = ".3f") -> Callable[[Any], str]:
    """The cell of a row that shows one of its numbers, for `print_table`."""
    return lambda row: format_number(row[column], form)


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN or pandas' NA."""
    import pandas as pd

    return bool(pd.isna(value))


def format_number(value: Any, form: str = ".3f") -> str:
    """A number by a format; a dash for a missing one, and no minus in front of a zero."""
    if is_missing(value):
        return MISSING
    text = f"{value:{form}}" if not abs(value) > LARGE else f"{value:.3g}"
    if math.isinf(value):
        return text
    if any(digit in text for digit in "123456789"):
        return text
    return text.replace("-", "+" if "+" in form else "")


def format_mean(mean: Any, deviation: Any) -> str:
    """A mean, and the deviation of several values."""
    return format_number(mean) + ("" if is_missing(deviation) else f" ± {format_number(deviation)}")


def format_score(value: Any, score: str, digits: int = 3) -> str:
    """A score; with its sign if the score can be negative."""
    sign = "+" if SCORES[score].low < 0 else ""
    return format_number(value, f"{sign}.{digits}f")


def format_quartiles(
    spread: Mapping[Any, float], score: str, *, digits: int = 3, heads: bool = False
) -> tuple[str, str]:
    """The median of a score over layers or heads, and its quartiles in brackets."""
    lower, median, upper = (
        format_score(spread[statistic(score, place, heads=heads)], score, digits) for place in QUARTILES
    )
    return median, f"[{lower}, {upper}]"


class Terminal(Console):
    """stdout, or the program that it is piped to. What looks like markup or an emoji is text: it may be a name."""

    def __init__(self) -> None:
        super().__init__(markup=False, emoji=False)

    def on_broken_pipe(self) -> None:
        """Let the command end with the code of a closed pipe; rich would exit with 1, which means a failed check."""
        raise BrokenPipeError


def fits(table: Table, console: Console) -> bool:
    """Whether a table has room for all of its cells on the terminal."""
    return Measurement.get(console, console.options.update(width=10_000), table).maximum <= console.width


def drop_columns(table: Table, console: Console, expendable: Sequence[str]) -> Table:
    """Drop expendable columns, in their order, until the table fits the terminal."""
    for name in expendable:
        if fits(table, console):
            break
        table = _without(table, name)
    return table


def print_frame(rows: pd.DataFrame) -> None:
    """Print the columns of a table; a narrow terminal lacks some numbers of the table itself, the last ones first."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    numeric = [name for name in rows.columns if rows[name].dtype.kind == "f"]
    shown = {name: printable(str(name)).replace("_", " ") for name in rows.columns}
    for name in rows.columns:
        table.add_column(shown[name], justify="right" if name in numeric else "left")
    for row in rows.to_dict("records"):
        cells = (
            format_number(value) if name in numeric or is_missing(value) else printable(str(value))
            for name, value in row.items()
        )
        table.add_row(*cells)
    console = Terminal()
    console.print(drop_columns(table, console, [shown[name] for name in reversed(numeric) if name not in ANSWERS]))


def _without(table: Table, name: str) -> Table:
    """The table without the column of this name. The constructor of a table numbers its columns, cells included."""
    kept = [column for column in table.columns if str(column.header) != name]
    narrow = Table(
        *kept, box=table.box, show_edge=table.show_edge, pad_edge=table.pad_edge,
        collapse_padding=table.collapse_padding,
    )  # fmt: skip
    narrow.rows = table.rows
    return narrow
