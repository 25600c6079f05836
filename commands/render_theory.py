"""The table of statements for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from attngeo.theory.table import ROUNDING

from .tables import Terminal, drop_columns, format_number

if TYPE_CHECKING:
    import pandas as pd


def print_statements(frame: pd.DataFrame) -> None:
    """Print a line for each statement, then what was measured for those that are no identities or fail as printed."""
    console = Terminal()
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("statement", no_wrap=True)
    table.add_column("in the paper", overflow="fold")
    for name in ("residual", "tolerance", "holds", "as printed"):
        table.add_column(name, justify="right", no_wrap=True)
    papers = frame["paper"].str.partition(", ")
    for paper, rows in frame.assign(paper=papers[0], place=papers[2]).groupby("paper", sort=False):
        table.add_row(Text(str(paper), style="bold"))
        for row in rows.to_dict("records"):
            limits = (format_number(row[name], ".2g") for name in ("residual", "tolerance"))
            answers = ("yes" if row[name] else "no" for name in ("holds", "as_printed"))
            table.add_row(*map(Text, (row["statement"], row["place"], *limits, *answers)), style=_style(row["holds"]))
        table.add_section()
    console.print(drop_columns(table, console, ["in the paper"]))
    for row in frame.to_dict("records"):
        if not row["holds"] or not row["as_printed"] or row["tolerance"] != ROUNDING:
            console.print(Text(row["statement"], style="bold"))
            console.print(Padding(Text(row["computed"]), (0, 0, 0, 2)))
    count = f"{int(frame['holds'].sum())} of {len(frame)} hold, {int(frame['as_printed'].sum())} of them as printed"
    console.print(f"\n{count}", highlight=False)


def _style(holds: bool) -> str:
    return "" if holds else "bold red"
