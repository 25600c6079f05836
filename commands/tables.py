"""Tables on a terminal, in the one style of all commands."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attngeo.bounds.names import printable

if TYPE_CHECKING:
    import pandas as pd

MISSING = "—"
# What a column shows of a row: a field by its name, a number by its name and format, as in "rank:.1f", or any text.
Cell = str | Callable[[Any], Any]
# The lines of a table.
Rule = Literal["spaced", "tight", "none"]
# Columns of the terminal between two columns of a table, and at the edges of a spaced one.
GAP, EDGES = 2, 2
# A table that is narrower would have no room for its numbers: the terminal wraps it.
NARROWEST = 30
# What a narrow table keeps together: a word, or an interval in brackets.
UNBROKEN = re.compile(r"\[[^][]*\]\S*|\S+")
# Numbers of rows that are the answer.
ANSWERS = ("log_prob", "predicted_mean", "probability", "score")
# Labels of a summary of predictions.
MOST_LABELS = 10
# Larger numbers have so many digits that tables cut them.
LARGE = 1e12


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        title: title of the column.
        cells: text of each row.
        is_text: whether the cells are texts; otherwise they are numbers.
    """

    title: str
    cells: list[str]
    is_text: bool

    @property
    def whole_width(self) -> int:
        """The width at which nothing is wrapped."""
        return max(map(cell_len, (self.title, *self.cells)))

    @property
    def cell_width(self) -> int:
        """The width at which only the title is wrapped."""
        return max(map(cell_len, (*UNBROKEN.findall(self.title), *self.cells)), default=0)

    @property
    def least_width(self) -> int:
        """The width at which no word and no number is broken."""
        words = UNBROKEN.findall(self.title)
        for cell in self.cells:
            words += UNBROKEN.findall(cell) if self.is_text else [cell]
        return max(map(cell_len, words), default=0)


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
    last_resort: Sequence[str] = (),
    names: str = "",
    rule: Rule = "spaced",
) -> None:
    """Print rows as a table. On a narrow terminal it has fewer columns, or lines that are wrapped between words.

    Titles are wrapped first. A line below the table names the columns that are left out.

    Args:
        rows: the rows.
        columns: title → the cell of a row, or pairs of them if a title occurs twice.
        title: title of the table; "" for none.
        texts: titles of text columns, by default the first column; the others are aligned to the right.
        section: columns of the rows; if their values change, a line is drawn.
        is_headed: whether each section begins with its name.
        style: row → style of its line.
        expendable: titles of columns that a narrow terminal drops, in the order of dropping.
        last_resort: titles of columns that it drops only to avoid breaking words.
        names: title of a column of long names, which become lines of their own above the rows if the table does not fit
            without its expendable columns.
        rule: "spaced" for a line below the titles and empty lines around the table, "tight" without empty lines, "none"
            without a line.
    """
    console = Terminal()
    for line in title.splitlines():
        console.print(printable(line), style="bold")
    records = rows if isinstance(rows, list) else rows.to_dict("records")
    pairs = list(columns.items() if isinstance(columns, Mapping) else columns)
    texts = [pairs[0][0]] if texts is None else texts
    every = []
    for name, cell in pairs:
        cells = [printable(_show(row, cell)) for row in records]
        every.append(Column(printable(name), cells, name in texts))
    styles = [style(row) for row in records]
    sections = [[row[name] for name in section] for row in records]
    headings = [printable(" ".join(values)) if is_headed else "" for values in sections]

    room = console.width - (EDGES if rule == "spaced" else 0)
    shown = _leave_out(every, expendable, _width_of_cells, room)
    if names and _width_of_cells(shown) > room:
        named = next(column for column in every if column.title == names)
        others = [column for column in every if column is not named]
        shown = _leave_out(others, expendable, _width_of_cells, console.width)
        shown = _leave_out(shown, last_resort, _width_of_words, console.width)
        _print_below_names(console, named.cells, shown, styles)
        _print_left_out(console, every, [named, *shown], rule)
        return
    shown = _leave_out(shown, last_resort, _width_of_words, room)
    widths = _choose_widths(shown, room)
    table = _start_table(shown, widths, rule)
    for number, values in enumerate(sections):
        if number and values != sections[number - 1]:
            table.add_section()
        if headings[number] and headings[number] not in headings[:number]:
            table.add_row(Text(_wrap(headings[number], widths[0])), style="bold")
        table.add_row(*_show_row(shown, widths, number), style=styles[number])
    console.print(table)
    _print_left_out(console, every, shown, rule)


def _leave_out(
    columns: list[Column], titles: Sequence[str], width: Callable[[list[Column]], int], room: int
) -> list[Column]:
    """The columns without as many of these titles as needed. width: of columns, which is to be at most `room`."""
    shown = columns
    for title in titles:
        if width(shown) <= room:
            break
        shown = [column for column in shown if column.title != title]
    return shown


def _print_left_out(console: Console, every: list[Column], shown: list[Column], rule: Rule) -> None:
    """Name the columns without room, and the width at which the table has them."""
    missing = dict.fromkeys(column.title for column in every if column not in shown)
    if not missing:
        return
    needed = _width_of_cells(every) + (EDGES if rule == "spaced" else 0)
    text = f"no room for: {', '.join(missing)} (COLUMNS={needed} shows all)"
    console.print(text + ("\n" if rule == "spaced" else ""), style="dim")


def _width_of_cells(columns: list[Column]) -> int:
    return sum(column.cell_width for column in columns) + GAP * (len(columns) - 1)


def _width_of_words(columns: list[Column]) -> int:
    return sum(column.least_width for column in columns) + GAP * (len(columns) - 1)


def _choose_widths(columns: list[Column], room: int) -> list[int]:
    """The width of each column: words are whole if there is room for them, and the first columns are wrapped last.

    Titles are wrapped before cells.
    """
    left = room - GAP * (len(columns) - 1)
    least = [column.least_width for column in columns]
    if sum(least) > left:
        return _share(least, max(left, len(columns)))
    spare = left - sum(least)
    widths = least
    for wanted in ([column.cell_width for column in columns], [column.whole_width for column in columns]):
        for number, width in enumerate(wanted):
            added = min(width - widths[number], spare)
            widths[number] += added
            spare -= added
    return widths


def _share(demands: list[int], total: int) -> list[int]:
    """What each gets of a total: its demand, or if that is too much, as much as the others with large demands.

    >>> _share([4, 30, 20], 34), _share([4, 30], 40)
    ([4, 15, 15], [4, 30])
    """
    shares = [0] * len(demands)
    left = total
    smallest_first = sorted(range(len(demands)), key=lambda number: demands[number])
    for done, number in enumerate(smallest_first):
        shares[number] = min(demands[number], left // (len(demands) - done))
        left -= shares[number]
    return shares


def _start_table(columns: list[Column], widths: list[int], rule: Rule) -> Table:
    """A table without rows."""
    has_rule = rule != "none"
    table = Table(
        box=SIMPLE_HEAD if has_rule else None,
        show_edge=rule == "spaced",
        pad_edge=False,
        collapse_padding=has_rule,
        header_style="table.header" if has_rule else "",
    )
    for column, width in zip(columns, widths, strict=True):
        justify: Literal["left", "right"] = "left" if column.is_text else "right"
        table.add_column(Text(_wrap(column.title, width)), justify=justify, width=width, overflow="fold")
    return table


def _show_row(columns: list[Column], widths: list[int], number: int) -> list[Text]:
    """The cells of a row. A text is wrapped, a number that is too long is cut."""
    row = []
    for column, width in zip(columns, widths, strict=True):
        cell = column.cells[number]
        row.append(Text(_wrap(cell, width)) if column.is_text else Text(cell, no_wrap=True, overflow="ellipsis"))
    return row


def _print_below_names(console: Console, names: list[str], columns: list[Column], styles: list[str]) -> None:
    """Print the titles, then each name and its rows; a row without one belongs to the name above it."""
    widths = _choose_widths(columns, console.width)
    console.print(_start_table(columns, widths, "none"))
    shown = ""
    for number, name in enumerate(names):
        if name not in ("", shown):
            console.print(Text(name), soft_wrap=True)
            shown = name
        table = _start_table(columns, widths, "none")
        table.show_header = False
        table.add_row(*_show_row(columns, widths, number), style=styles[number])
        console.print(table)


def _wrap(text: str, width: int) -> str:
    r"""A text in lines that fit a width, between words; intervals in brackets are one word.

    >>> _wrap("+0.49 [+0.41, +0.58]", 14)
    '+0.49\n[+0.41, +0.58]'
    """
    if cell_len(text) <= width:
        return text
    lines = [""]
    for word in UNBROKEN.findall(text):
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and cell_len(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return "\n".join(lines)


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


class Terminal(Console):
    """stdout, or the program that it is piped to. What looks like markup or an emoji is text: it may be a name."""

    def __init__(self) -> None:
        super().__init__(markup=False, emoji=False, highlight=False)
        if self.width < NARROWEST:
            self.width = NARROWEST

    @property
    def encoding(self) -> str:
        """The encoding of stdout; ASCII in the C locale, so that rich draws lines in ASCII."""
        return "ascii" if os.environ.get("LC_ALL") in ("C", "POSIX") else super().encoding

    def on_broken_pipe(self) -> None:
        """Let the command end with the code of a closed pipe; rich would exit with 1, which means a failed check."""
        raise BrokenPipeError


def print_frame(rows: pd.DataFrame, places: Sequence[str] = ()) -> None:
    """Print the columns of a table; a narrow terminal drops columns of numbers, the last ones first.

    places: columns to drop before any of these numbers.
    """
    numbers = [name for name in rows.columns if rows[name].dtype.kind == "f"]
    titles = {name: str(name).replace("_", " ") for name in rows.columns}
    columns: dict[str, Cell] = {}
    for name, title in titles.items():  # a name may have a colon
        show = format_number if name in numbers else show_text
        columns[title] = partial(_show_field, name, show)
    texts = [title for name, title in titles.items() if name not in numbers]
    expendable = [titles[name] for name in reversed(numbers) if name not in ANSWERS]
    last_resort: list[str] = []
    if places:
        last_resort = expendable
        expendable = [titles[name] for name in places]
    names = next((name for name in ("model", "other") if name in columns and name not in expendable), "")
    print_table(rows, columns, texts=texts, expendable=expendable, last_resort=last_resort, names=names)


def _show_field(name: str, show: Callable[[Any], str], row: Any) -> str:
    return show(row[name])


def print_labels(predicted: pd.DataFrame, label: str, probability: str) -> None:
    """Print how often each label is predicted, the most frequent labels first. The rows themselves are in a file.

    Args:
        predicted: the rows.
        label: column of the labels.
        probability: column of their probabilities.
    """
    labels = predicted.groupby(label, sort=False)[probability].agg(["size", "mean"])
    labels = labels.sort_values("size", ascending=False, kind="stable").rename_axis("prediction").reset_index()
    columns = {"prediction": "prediction", "rows": "size:,d", "mean probability": "mean:.3f"}
    print_table(labels.head(MOST_LABELS), columns, texts=["prediction"], rule="tight")
    said = f"{len(predicted):,} rows."
    if (left := len(labels) - MOST_LABELS) > 0:
        said = f"And {left:,} more label{'s' if left > 1 else ''}; {said}"
    Terminal().print(said)
