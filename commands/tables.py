"""Tables on a terminal, in the one style of all commands."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table


def start_table(first: str, *numbers: str) -> Table:
    """A table without rows: a column of names, then columns of numbers, which are aligned to the right."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column(first)
    for name in numbers:
        table.add_column(name, justify="right")
    return table
