"""The terminal that results are printed to. On a narrow terminal tables drop columns, so that numbers stay whole."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table


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


def _without(table: Table, name: str) -> Table:
    """The table without the column of this name. The constructor of a table numbers its columns, cells included."""
    kept = [column for column in table.columns if str(column.header) != name]
    narrow = Table(
        *kept, box=table.box, show_edge=table.show_edge, pad_edge=table.pad_edge,
        collapse_padding=table.collapse_padding,
    )  # fmt: skip
    narrow.rows = table.rows
    return narrow
