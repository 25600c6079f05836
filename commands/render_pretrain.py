"""Tables of training runs, for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from attngeo.bounds import printable
from attngeo.scores.spec import SCORES
from attngeo.scores.summary import spread_of

from .tables import Terminal, drop_columns, format_quartiles

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attngeo.pretrain.comparison import Comparison
    from attngeo.pretrain.runs import Run

MOST_ROWS = 10
LONGEST_NAME = 14
# Digits of scores.
DIGITS = 2
QUARTILES_TITLE = "[quartiles]"


def print_run(run: Run) -> None:
    """Loss and scores at about ten steps, with the first and the last among them, and the run's folder."""
    by_step = run.geometry.groupby("step")
    steps: list[int] = sorted(run.geometry["step"].unique())
    stride = -(-(len(steps) - 1) // (MOST_ROWS - 1)) or 1
    titles = [title for spec in SCORES.values() for title in (spec.label, QUARTILES_TITLE)]
    grid = _make_grid(["step", "loss", *titles])
    for step in sorted({*steps[::stride], steps[-1]}):
        rows = by_step.get_group(step)
        spread, loss = spread_of(rows), rows["loss"].iloc[0]
        scores = [cell for score in SCORES for cell in format_quartiles(spread, score, digits=DIGITS)]
        grid.add_row(f"{step:,}", "" if loss != loss else f"{loss:.3f}", *scores)
    console = Terminal()
    console.print(Text(printable(_describe_run(run))), style="bold")
    console.print(drop_columns(grid, console, [QUARTILES_TITLE]))
    count = run.geometry["layer"].nunique()
    console.print(Text(printable(f"medians over {count} layers · {run.folder}")), style="dim")


def _describe_run(run: Run) -> str:
    about, options = run.summary["data"], run.options
    parts = [options.model_name, options.objective_name, f"{options.init} init", Path(about["name"]).name,
             f"{run.summary['parameters']:,} parameters"]  # fmt: skip
    if "tokens_per_second" in run.summary:
        parts.append(f"{run.summary['tokens_per_second']:,.0f} tokens/s")
    return " · ".join(parts)


def _make_grid(columns: list[str]) -> Table:
    grid = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        grid.add_column(Text(column), justify="right", no_wrap=True)
    return grid


def print_comparison(comparison: Comparison) -> None:
    """The gain of each objective and initialisation, and the scores at the end, over the seeds."""
    rows, spread = comparison.rows, comparison.spread
    console = Terminal()
    seeds = int(spread["seeds"].iloc[0])
    title = f"{rows['model'].iloc[0]} · {seeds} {'seed' if seeds == 1 else 'seeds'} · {comparison.folder}"
    console.print(Text(printable(title)), style="bold")
    gains = _make_grid(["objective", "init", "final loss", "to baseline", "speed-up"])
    for row in spread.to_dict("records"):
        gains.add_row(
            row["objective"], _shorten(row["init"]), _format_range(row, "final_loss", "{:.3f}"),
            _format_steps(row), _format_range(row, "speed_up", "{:.0%}"),
        )  # fmt: skip
    console.print(drop_columns(gains, console, ["to baseline", "final loss"]))
    for score, spec in SCORES.items():
        grid = _make_grid([spec.label, "init", "layers", "heads"])
        for (objective, init), runs in rows.groupby(["objective", "init"], sort=False):
            means = runs.mean(numeric_only=True).to_dict()
            cells = [" ".join(format_quartiles(means, score, digits=DIGITS, heads=heads)) for heads in (False, True)]
            grid.add_row(str(objective), _shorten(str(init)), *cells)
        console.print(drop_columns(grid, console, ["heads"]))
    legend = "means over seeds (lowest–highest); medians [quartiles] at the end of training"
    console.print(Text(legend), style="dim")


def _shorten(init: str) -> str:
    """The end of a long reference, which differs most from that of others."""
    init = printable(init)
    return init if len(init) <= LONGEST_NAME else f"…{init[1 - LONGEST_NAME :]}"


def _format_range(row: Mapping[Any, Any], name: str, form: str) -> str:
    """The mean over seeds, and the lowest and highest if they differ."""
    mean, low, high = (form.format(row[f"{name}_{kind}"]) for kind in ("mean", "min", "max"))
    return mean if low == high else f"{mean} ({low.rstrip('%')}–{high})"


def _format_steps(row: Mapping[Any, Any]) -> str:
    """The mean number of steps to the baseline's final loss, and how many runs reached it."""
    mean, reached, seeds = row["steps_to_baseline_mean"], row["reached"], row["seeds"]
    if not reached:
        return "never"
    return f"{mean:,.0f}" if reached == seeds else f"{mean:,.0f} ({reached} of {seeds})"
