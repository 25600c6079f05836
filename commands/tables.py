"""Tables on a terminal, in the one style of all commands."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from attngeo.bounds.names import printable
from attngeo.scores.spec import SCORES
from attngeo.scores.summary import QUARTILES, statistic

if TYPE_CHECKING:
    import pandas as pd

MISSING = "—"
# What a column shows of a row: a field by its name, a number by its name and format, as in "rank:.1f", or any text.
Cell = str | Callable[[Any], Any]
# The lines of a table.
Rule = Literal["spaced", "tight", "none"]
# Numbers of rows that are the answer.
ANSWERS = ("log_prob", "predicted_mean", "probability", "score")
# Larger numbers have so many digits that tables cut them.
LARGE = 1e12


def print_table(
    rows: pd.DataFrame | list[Any],
    columns: Mapping[str, Cell] | Sequence[tuple[str, Cell]],
    *,
    title: str = "",
    texts: Collection[str] | None = None,
    section: Sequence[str] = (),
    is_headed: bool = False,
    style: Callable[[Any], str] = lambda _: "",
    expendable: Sequence[str] = (),
    rule: Rule = "spaced",
) -> None:
    """Print rows as a table, on a narrow terminal without the expendable columns, the first ones first.

    columns: title → the cell of a row, or pairs of them if a title occurs twice. texts: the titles of columns that are
    texts, by default the first one; the others are aligned to the right. section: the columns of the rows at whose
    changes a line is drawn. is_headed: whether each section begins with its name. rule: spaced for a line below the
    titles and empty lines around the table, tight without empty lines, none without a line.
    """
    console = Terminal()
    for line in title.splitlines():
        console.print(printable(line), style="bold")
    records = rows if isinstance(rows, list) else rows.to_dict("records")
    pairs = list(columns.items() if isinstance(columns, Mapping) else columns)
    texts = [pairs[0][0]] if texts is None else texts
    for count in range(len(expendable) + 1):
        shown = [(name, cell) for name, cell in pairs if name not in expendable[:count]]
        table = _build_table(records, shown, texts, section, is_headed, style, rule)
        needed = Measurement.get(console, console.options.update(width=10_000), table)
        if needed.maximum <= console.width:
            break
    if needed.minimum <= console.width < needed.maximum:
        _keep_longest_title(table, console)
    console.print(table)


def _build_table(
    records: list[Any],
    columns: list[tuple[str, Cell]],
    texts: Collection[str],
    section: Sequence[str],
    is_headed: bool,
    style: Callable[[Any], str],
    rule: Rule,
) -> Table:
    has_rule = rule != "none"
    table = Table(
        box=SIMPLE_HEAD if has_rule else None,
        show_edge=rule == "spaced",
        pad_edge=False,
        collapse_padding=has_rule,
        header_style="table.header" if has_rule else "",
    )
    for name, _ in columns:
        is_text = name in texts
        table.add_column(
            printable(name),
            justify="left" if is_text else "right",
            no_wrap=not is_text,
            overflow="fold" if is_text else "ellipsis",
        )
    previous: Any = None
    for row in records:
        values = [row[name] for name in section]
        if previous not in (None, values):
            table.add_section()
        if is_headed and previous != values:
            table.add_row(Text(printable(" ".join(values))), style="bold")
        previous = values
        table.add_row(*(Text(printable(_show(row, cell))) for _, cell in columns), style=style(row))
    return table


def _keep_longest_title(table: Table, console: Console) -> None:
    """If rich would break the longest word of all titles, give its column the width of this word."""
    column = max(table.columns, key=lambda column: len(_longest_word(column.header)))
    word = _longest_word(column.header)
    with console.capture() as printed:
        console.print(table)
    if word not in printed.get() and len(word) >= max(len(_longest_word(cell)) for cell in column.cells):
        column.width = len(word)


def _longest_word(text: object) -> str:
    return max(str(text).split(), key=len, default="")


def _show(row: Any, cell: Cell) -> str:
    if not isinstance(cell, str):
        return str(cell(row))
    name, _, form = cell.partition(":")
    return format_number(row[name], form) if form else show_text(row[name])


def show_text(value: Any) -> str:
    """A value as a table shows it; a dash for a missing one."""
    return MISSING if is_missing(value) else str(value)


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


def score_format(score: str, digits: int = 3) -> str:
    """The format of the numbers of a score, with a sign if they can be negative. digits: at most so many."""
    spec = SCORES[score]
    sign = "+" if spec.low < 0 else ""
    return f"{sign}.{min(digits, spec.digits)}f" if not spec.is_size else f".{spec.digits}g"


def format_quartiles(
    spread: Mapping[Any, float], score: str, *, digits: int = 3, heads: bool = False
) -> tuple[str, str]:
    """The median of a score over layers or heads, and its quartiles in brackets."""
    form = score_format(score, digits)
    lower, median, upper = (format_number(spread[statistic(score, place, heads=heads)], form) for place in QUARTILES)
    return median, f"[{lower}, {upper}]"


class Terminal(Console):
    """stdout, or the program that it is piped to. What looks like markup or an emoji is text: it may be a name."""

    def __init__(self) -> None:
        super().__init__(markup=False, emoji=False, highlight=False)

    @property
    def encoding(self) -> str:
        """The encoding of stdout; in the C locale that of ASCII, which rich then draws lines in."""
        return "ascii" if os.environ.get("LC_ALL") in ("C", "POSIX") else super().encoding

    def on_broken_pipe(self) -> None:
        """Let the command end with the code of a closed pipe; rich would exit with 1, which means a failed check."""
        raise BrokenPipeError


def print_frame(rows: pd.DataFrame) -> None:
    """Print the columns of a table; a narrow terminal lacks some numbers of the table itself, the last ones first."""
    numbers = [name for name in rows.columns if rows[name].dtype.kind == "f"]
    titles = {name: str(name).replace("_", " ") for name in rows.columns}
    columns: dict[str, Cell] = {}
    for name, title in titles.items():  # a name may have a colon
        show = format_number if name in numbers else show_text
        columns[title] = partial(_show_field, name, show)
    texts = [title for name, title in titles.items() if name not in numbers]
    expendable = [titles[name] for name in reversed(numbers) if name not in ANSWERS]
    print_table(rows, columns, texts=texts, expendable=expendable)


def _show_field(name: str, show: Callable[[Any], str], row: Any) -> str:
    return show(row[name])
