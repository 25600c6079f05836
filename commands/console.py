"""The terminal that results are printed to. On a narrow terminal tables drop columns, so that numbers stay whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table


class Terminal(Console):
    """stdout, or the program that it is piped to."""

    def on_broken_pipe(self) -> None:
        """Let the command end with the code of a closed pipe; rich would exit with 1, which means a failed check."""
        raise BrokenPipeError


def drop_columns(table: Table, console: Console, expendable: Sequence[str]) -> Table:
    """Drop expendable columns, in their order, until the table fits the terminal."""
    for name in expendable:
        if Measurement.get(console, console.options.update(width=10_000), table).maximum <= console.width:
            break
        kept = [column for column in table.columns if str(column.header) != name]
        # The padding of a column depends on its place, which rich keeps in the column.
        table.columns = [replace(column, _index=i) for i, column in enumerate(kept)]
    return table
