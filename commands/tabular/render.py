"""Tables of experiments for people: mean and deviation of each method, beside the paper's numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from attngeo.bounds import printable
from attngeo.tabular.methods import METHODS
from attngeo.tabular.summary import OURS, describe_advantage, labels_of, measure_advantage, summarise_methods

from ..cells import format_number, is_missing
from ..console import Terminal

if TYPE_CHECKING:
    import pandas as pd


def print_experiment(frame: pd.DataFrame) -> None:
    """Print a line for each setting and method, and a sentence about the advantage of attention."""
    summary, labels = summarise_methods(frame), labels_of(frame)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in labels:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("method", no_wrap=True)
    table.add_column("runs", justify="right", no_wrap=True)
    for name in ("accuracy", "paper", "mse", "paper"):
        table.add_column(name, justify="right", no_wrap=True)
    previous: list[Any] | None = None
    for row in summary.to_dict("records"):
        setting = [row[name] for name in labels]
        if previous not in (None, setting):
            table.add_section()
        shown = ["" if setting == previous else _format_label(value) for value in setting]
        style = "bold" if row["method"] == OURS else ""
        table.add_row(*map(Text, [*shown, METHODS[row["method"]].label, str(row["runs"]), *_cells(row)]), style=style)
        previous = setting
    console = Terminal()
    console.print(table)
    if frame.attrs.get("convention") == "text" and frame["published_accuracy"].notna().any():
        console.print("The paper's numbers are of other tables, which --convention published makes.")
    advantages = measure_advantage(frame)
    if len(advantages):
        console.print(describe_advantage(advantages), highlight=False)


def _cells(row: dict[Any, Any]) -> list[str]:
    return [
        _format_mean(row["accuracy_mean"], row["accuracy_sd"]), format_number(row["published_accuracy"]),
        _format_mean(row["mse_mean"], row["mse_sd"]), format_number(row["published_mse"]),
    ]  # fmt: skip


def _format_mean(mean: float, deviation: float) -> str:
    return format_number(mean) + ("" if is_missing(deviation) else f" ± {format_number(deviation)}")


def _format_label(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else printable(str(value))
