"""Tables of experiments for people: mean and deviation of each model, beside the paper's number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

KEYS = ["direction", "setting", "model", "metric"]
# Not a measure of a model.
EPOCHS = "epochs"


def print_experiment(frame: pd.DataFrame) -> None:
    """Print a line for each direction, setting, model and metric."""
    from ..tables import Terminal, format_number, start_table

    table = start_table("direction")
    has_settings = bool(frame["setting"].ne("").any())
    for name in (*(["setting"] if has_settings else []), "model", "metric"):
        table.add_column(name.replace("_", " "), no_wrap=True)
    for name in ("runs", "value", "paper"):
        table.add_column(name, justify="right", no_wrap=True)
    previous: Any = None
    shown = frame[frame["metric"] != EPOCHS].sort_values("direction", kind="stable")
    for (direction, setting, model, metric), rows in shown.groupby(KEYS, sort=False):
        if previous not in (None, (direction, setting)) and not has_settings:
            table.add_section()
        previous = (direction, setting)
        value = format_number(rows["value"].mean())
        if len(rows) > 1:
            value += f" ± {format_number(rows['value'].std())}"
        cells = [str(direction), *([str(setting)] if has_settings else []), str(model), str(metric).replace("_", " ")]
        published = format_number(rows["published"].iloc[0])
        table.add_row(*cells, str(len(rows)), value, published, style="bold" if model == "efa" else "")
    Terminal().print(table)
