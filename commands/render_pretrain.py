"""Tables of training runs, for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .messages import printable

if TYPE_CHECKING:
    from attngeo.pretrain.comparison import Comparison
    from attngeo.pretrain.runs import Run

MOST_ROWS = 10


def print_run(run: Run) -> None:
    """Loss and scores at about ten steps, the first and the last among them, and where everything lies."""
    by_step = run.geometry.groupby("step")
    steps: list[int] = sorted(run.geometry["step"].unique())
    stride = -(-(len(steps) - 1) // (MOST_ROWS - 1)) or 1
    grid = _grid(["step", "loss", "symmetry", "[quartiles]", "directionality", "[quartiles]"])
    for step in sorted({*steps[::stride], steps[-1]}):
        rows = by_step.get_group(step)
        layers, loss = rows[rows["head"].isna()], rows["loss"].iloc[0]
        scores = *_scores(layers, "symmetry"), *_scores(layers, "directionality")
        grid.add_row(f"{step:,}", "" if loss != loss else f"{loss:.3f}", *scores)
    console = Console()
    console.print(Text(printable(_title(run))), style="bold")
    console.print(grid)
    count = run.geometry["layer"].nunique()
    console.print(Text(printable(f"medians over {count} layers · {run.folder}")), style="dim")


def _title(run: Run) -> str:
    about, settings = run.summary["data"], run.settings
    objective = settings.objective if settings.task == "text" else "image"
    parts = [Path(settings.model).stem, objective, f"{settings.init} init", Path(about["name"]).name,
             f"{run.summary['parameters']:,} parameters"]  # fmt: skip
    if "tokens_per_second" in run.summary:
        parts.append(f"{run.summary['tokens_per_second']:,.0f} tokens/s")
    return " · ".join(parts)


def _scores(rows: Any, score: str) -> tuple[str, str]:
    lower, median, upper = rows[score].quantile([0.25, 0.5, 0.75])
    return f"{median:+.2f}", f"[{lower:+.2f}, {upper:+.2f}]"


def _grid(columns: list[str]) -> Table:
    grid = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        grid.add_column(Text(column), justify="right", no_wrap=True)
    return grid


def print_comparison(comparison: Comparison) -> None:
    """One row for each objective and initialisation, over its seeds."""
    grid = _grid(["objective", "init", "final loss", "speed-up", "symmetry", "directionality"])
    for row in comparison.spread.to_dict("records"):
        grid.add_row(
            row["objective"], printable(row["init"])[:12], _spread(row, "final_loss", "{:.3f}"),
            _spread(row, "speed_up", "{:.0%}"),
            _spread(row, "symmetry_layers_median", "{:+.2f}"), _spread(row, "directionality_layers_median", "{:+.2f}"),
        )  # fmt: skip
    console = Console()
    seeds = int(comparison.spread["seeds"].iloc[0])
    of = f"{seeds} seed{'s' * (seeds > 1)}"
    console.print(Text(printable(f"{comparison.rows['model'].iloc[0]} · {of} · {comparison.folder}")), style="bold")
    console.print(grid)
    console.print("mean over seeds (lowest to highest); scores are medians over layers", style="dim")


def _spread(row: dict[Any, Any], name: str, form: str) -> str:
    mean, low, high = (form.format(row[f"{name}_{kind}"]) for kind in ("mean", "min", "max"))
    return mean if low == high else f"{mean} ({low} to {high})"
