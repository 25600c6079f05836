"""Tables of training runs, for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from .console import Terminal, fitted
from .messages import printable

if TYPE_CHECKING:
    from attngeo.pretrain.comparison import Comparison
    from attngeo.pretrain.runs import Run

MOST_ROWS = 10
QUARTILES = "[quartiles]"


def print_run(run: Run) -> None:
    """Loss and scores at about ten steps, the first and the last among them, and where everything lies."""
    by_step = run.geometry.groupby("step")
    steps: list[int] = sorted(run.geometry["step"].unique())
    stride = -(-(len(steps) - 1) // (MOST_ROWS - 1)) or 1
    grid = _grid(["step", "loss", "symmetry", QUARTILES, "directionality", QUARTILES])
    for step in sorted({*steps[::stride], steps[-1]}):
        rows = by_step.get_group(step)
        layers, loss = rows[rows["head"].isna()], rows["loss"].iloc[0]
        scores = *_scores(layers, "symmetry"), *_scores(layers, "directionality")
        grid.add_row(f"{step:,}", "" if loss != loss else f"{loss:.3f}", *scores)
    console = Terminal()
    console.print(Text(printable(_title(run))), style="bold")
    console.print(fitted(grid, console, [QUARTILES]))
    count = run.geometry["layer"].nunique()
    console.print(Text(printable(f"medians over {count} layers · {run.folder}")), style="dim")


def _title(run: Run) -> str:
    about, settings = run.summary["data"], run.settings
    objective = settings.objective if settings.task == "text" else "image"
    parts = [settings.model_name, objective, f"{settings.init} init", Path(about["name"]).name,
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
    """What each objective and initialisation gained, and where its scores ended, over the seeds."""
    rows, spread = comparison.rows, comparison.spread
    console = Terminal()
    seeds = int(spread["seeds"].iloc[0])
    title = f"{rows['model'].iloc[0]} · {seeds} seed{'s' * (seeds > 1)} · {comparison.folder}"
    console.print(Text(printable(title)), style="bold")
    gains = _grid(["objective", "init", "final loss", "to baseline", "speed-up"])
    for row in spread.to_dict("records"):
        gains.add_row(
            row["objective"], _short(row["init"]), _spread(row, "final_loss", "{:.3f}"),
            _mean(row, "steps_to_baseline"), _spread(row, "speed_up", "{:.0%}"),
        )  # fmt: skip
    console.print(fitted(gains, console, ["to baseline", "final loss"]))
    for score in ("symmetry", "directionality"):
        grid = _grid([score, "init", "layers", "heads"])
        for (objective, init), runs in rows.groupby(["objective", "init"], sort=False):
            grid.add_row(
                str(objective),
                _short(str(init)),
                _quartiles(runs, f"{score}_layers"),
                _quartiles(runs, f"{score}_heads"),
            )
        console.print(fitted(grid, console, ["heads"]))
    legend = "means over seeds (lowest–highest); medians [quartiles] at the end of training"
    console.print(Text(legend), style="dim")


def _short(init: str) -> str:
    """The end of a long reference, which tells it from others."""
    init = printable(init)
    return init if len(init) <= 14 else f"…{init[-13:]}"


def _spread(row: dict[Any, Any], name: str, form: str) -> str:
    mean, low, high = (form.format(row[f"{name}_{kind}"]) for kind in ("mean", "min", "max"))
    return mean if low == high else f"{mean} ({low.rstrip('%')}–{high})"


def _mean(row: dict[Any, Any], name: str) -> str:
    mean, reached, seeds = row[f"{name}_mean"], row["reached"], row["seeds"]
    if not reached:
        return "never"
    return f"{mean:,.0f}" if reached == seeds else f"{mean:,.0f} ({reached} of {seeds})"


def _quartiles(runs: Any, name: str) -> str:
    lower, median, upper = (runs[f"{name}_{place}"].mean() for place in ("lower", "median", "upper"))
    return f"{median:+.2f} [{lower:+.2f}, {upper:+.2f}]"
