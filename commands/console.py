"""The terminal that results are printed to. On a narrow one tables have fewer columns, rather than cut numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table


class Terminal(Console):
    """stdout, or whatever it is piped to."""

    def on_broken_pipe(self) -> None:
        """Let the command end as one whose pipe was closed; rich would exit with 1, as where a check does not hold."""
        raise BrokenPipeError


def fitted(table: Table, console: Console, expendable: Sequence[str]) -> Table:
    """The table without as many of the expendable columns, the first of them first, as the terminal has no room for."""
    for name in expendable:
        if Measurement.get(console, console.options.update(width=10_000), table).maximum <= console.width:
            break
        kept = [column for column in table.columns if str(column.header) != name]
        # A column's place decides about its padding, and rich keeps that in the column.
        table.columns = [replace(column, _index=i) for i, column in enumerate(kept)]
    return table
