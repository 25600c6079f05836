"""`attngeo pretrain`: train encoders and decoders, and watch the geometry of their attention emerge."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from attngeo.bounds import printable
from attngeo.errors import UsageError
from attngeo.options import RESULTS, RUNNING
from attngeo.pretrain.options import (
    ComparisonOptions,
    ImagePretrainOptions,
    TextPretrainOptions,
    make_options,
    read_settings,
    resume_options,
    separate_comparison,
)
from attngeo.scores.spec import SCORES
from attngeo.scores.summary import spread_of
from attngeo.studies.engine import StudyOptions
from attngeo.tables.write import to_json

from .declare import with_options
from .outputs import FindingsFormat, Quiet, Verbose
from .progress import Bar
from .tables import Terminal, drop_columns, format_quartiles

MOST_ROWS = 10
LONGEST_NAME = 14
# Digits of scores.
DIGITS = 2
QUARTILES_TITLE = "[quartiles]"

if TYPE_CHECKING:
    from attngeo.pretrain.comparison import Comparison
    from attngeo.pretrain.runs import Run

MakeBar = Callable[[str], "Bar"]


@with_options
def pretrain(
    given: Annotated[dict[str, Any], TextPretrainOptions, ImagePretrainOptions, ComparisonOptions],
    study: StudyOptions,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Resume the run in -o from its last checkpoint", rich_help_panel=RUNNING),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FOLDER",
            help="Folder of the run",
            show_default="pretrain-…, by its options",
            rich_help_panel=RESULTS,
        ),
    ] = None,
    format: FindingsFormat = "table",
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Train a small transformer from scratch and score its attention as it learns.

    Options that are not given are the model's own; bert-mini, bert and bert-large have those of the paper, Saponati et
    al. 2025 (arXiv 2502.10927), section S2. The first example takes two minutes on two cores and downloads nothing.

    Examples:
        attngeo pretrain --init symmetric
        attngeo pretrain --compare default,symmetric --objectives mlm,clm --jobs 4
        attngeo pretrain --model bert-mini --data wikipedia -o run
        attngeo pretrain --model vit-tiny --mixup 0 --cutmix 0
        attngeo pretrain --resume -o run
    """
    first = os.environ.get("RANK", "0") == "0"  # of the processes that accelerate starts
    make_bar = partial(Bar, quiet=quiet or not first, verbose=verbose and first)
    comparison, rest = separate_comparison(given)
    if comparison.compare is None:
        if study != StudyOptions():
            raise UsageError(
                "$jobs, $cluster and $fail_fast require $compare", "jobs", "cluster", "fail_fast", "compare"
            )
        finished = _run(rest, output, make_bar, resume=resume)
        if first and format == "json":
            sys.stdout.write(json.dumps(finished.summary, indent=2) + "\n")
        elif first:
            _print_run(finished)
        return
    compared = _compare(comparison, rest, output, make_bar, study, resume=resume)
    if first and format == "json":
        sys.stdout.write(to_json(compared.rows))
    elif first:
        _print_comparison(compared)


def _run(given: Mapping[str, Any], output: Path | None, make_bar: MakeBar, *, resume: bool) -> Run:
    """One run, new or resumed."""
    from attngeo.pretrain.runs import run

    if resume and output is not None:
        options = resume_options(read_settings(output), given, output)
    else:
        options = make_options(**given)
    folder = output or Path(f"pretrain-{options.run_name}")
    with make_bar(str(folder)) as progress:
        return run(options, folder, resume=resume, progress=progress)


def _compare(
    comparison: ComparisonOptions,
    given: Mapping[str, Any],
    output: Path | None,
    make_bar: MakeBar,
    study: StudyOptions,
    *,
    resume: bool,
) -> Comparison:
    """Several runs, new or resumed."""
    from attngeo.pretrain.comparison import compare

    options = make_options(**given)
    folder = output or Path(f"compare-{options.model_name}")
    with make_bar(str(folder)) as progress:
        return compare(options, folder, comparison=comparison, study=study, resume=resume, progress=progress)


def _print_run(run: Run) -> None:
    """Loss and scores at about ten steps, with the first and the last among them, and the run's folder."""
    from attngeo.pretrain.describe import describe_run

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
    sys.stdout.write(printable(describe_run(run)) + "\n")


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


def _print_comparison(comparison: Comparison) -> None:
    """The gain of each objective and initialisation, and the scores at the end, over the seeds."""
    from attngeo.pretrain.describe import describe_comparison

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
    for line in describe_comparison(comparison):
        sys.stdout.write(printable(line) + "\n")


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
