"""The table of paraphrase errors for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from attngeo.bounds import printable

from .cells import format_number
from .console import Terminal, drop_columns

if TYPE_CHECKING:
    import pandas as pd

# Column of the results → its title.
TITLES = {
    "cosine_error": "1 - cos", "rank": "rank", "rho": "ρ", "sigma": "σ", "sigma_star": "σ*", "delta": "δ", "xi": "ξ",
    "zeta_spread": "ζ range", "contexts": "contexts",
}  # fmt: skip
WHOLE = ("rank", "contexts")
# What a narrow terminal does not show.
EXPENDABLE = ("contexts", "rank")


def print_explanation(frame: pd.DataFrame) -> None:
    """Print a table for each model: the questions with their cosine errors and error terms."""
    console = Terminal()
    counts = (f"{frame.attrs[name]:,} {name}" for name in ("sentences", "words", "dimensions"))
    console.print(", ".join(counts), style="bold", highlight=False)
    for model, rows in frame.groupby("model", sort=False):
        table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        table.add_column(Text(str(model)), overflow="fold")
        for title in TITLES.values():
            table.add_column(title, justify="right", no_wrap=True)
        for row in rows.to_dict("records"):
            question = printable(f"{row['a']} : {row['b']} = {row['c']} : {row['answer']}")
            numbers = [format_number(row[name], "d" if name in WHOLE else ".2f") for name in TITLES]
            table.add_row(Text(question), *map(Text, numbers))
        console.print(drop_columns(table, console, EXPENDABLE))
    console.print(Text("ρ to ξ are norms over the contexts in which all probabilities are positive", style="dim"))
    if (frame["contexts"] == 0).any():
        console.print(Text("—: there is no such context; a larger corpus has more", style="dim"))
