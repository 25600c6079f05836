"""`attngeo pretrain`: train encoders and decoders, and score their attention as it learns."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attngeo.bounds.names import printable
from attngeo.errors import UsageError
from attngeo.options import RUNNING
from attngeo.pretrain.options import (
    ComparisonOptions,
    ImagePretrainOptions,
    TextPretrainOptions,
    make_options,
    separate_comparison,
)
from attngeo.pretrain.presets import PATHS
from attngeo.pretrain.references import require_sources
from attngeo.pretrain.settings import read_settings, resume_options
from attngeo.progress import is_first_process
from attngeo.questions.spread import statistic
from attngeo.scores.spec import Chance, ScoreSpec, default_scores
from attngeo.scores.summary import spread_of
from attngeo.session import StudyOptions
from attngeo.tables.write import to_json

from .cells import format_quartiles
from .declare import with_options
from .outputs import FindingsFormat, Verbosity, folder_option, refuse_folder
from .progress import Bar
from .tables import Cell, Terminal, format_number, is_missing, print_table

MOST_LAYER_ROWS = 10
LONGEST_NAME = 14
# Digits of scores.
DIGITS = 2
QUARTILES_TITLE = "[quartiles]"
# Two standard errors of a median of n numbers are 2·√(π/2)/√n standard deviations.
MEDIAN = 2 * math.sqrt(math.pi / 2)
PREDICTED = {"mlm": "predicting masked tokens", "clm": "predicting the next token", "image": "classifying images"}

if TYPE_CHECKING:
    from attngeo.pretrain.comparison import Comparison
    from attngeo.pretrain.runs import Run


@with_options
def pretrain(
    *,
    given: Annotated[dict[str, Any], TextPretrainOptions, ImagePretrainOptions, ComparisonOptions],
    study: StudyOptions,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Resume the run in -o from its last checkpoint", rich_help_panel=RUNNING),
    ] = False,
    output: Annotated[Path | None, folder_option("Folder of the run", "pretrain-…, named after its options")] = None,
    format: FindingsFormat = "table",
    verbosity: Verbosity,
) -> None:
    """Train a small transformer from scratch and score its attention as it learns.

    Options you omit take the model's defaults; bert-mini, bert and bert-large have those of section S2 of Saponati et
    al. 2025 (arXiv 2502.10927). The first example takes two minutes on two cores and downloads nothing.

    Examples:
        attngeo pretrain --init symmetric
        attngeo pretrain --compare default,symmetric --objectives mlm,clm --jobs 4
        attngeo pretrain --model bert-mini --data wikipedia -o run
        attngeo pretrain --model vit-tiny --mixup 0 --cutmix 0
        attngeo pretrain --resume -o run
    """
    comparison, rest = separate_comparison(given)
    is_single = comparison.compare is None
    if is_single and study != StudyOptions():
        raise UsageError("$jobs, $cluster and $fail_fast require $compare", "jobs", "cluster", "fail_fast", "compare")
    if is_single and resume and output is not None:
        options = resume_options(read_settings(output), rest, output)
    else:
        options = make_options(**rest)
    folder = output or Path(f"pretrain-{options.run_name}" if is_single else f"compare-{options.model_name}")
    if not resume:
        refuse_folder(folder, [*(getattr(options, name, None) for name in PATHS), *(comparison.compare or ())])
    if is_single and resume:
        read_settings(folder)
    else:
        require_sources(options, comparison.compare or ())

    from attngeo.pretrain.comparison import Comparison, compare_runs
    from attngeo.pretrain.runs import leave_process_group, run

    if not is_first_process():
        verbosity = Verbosity(quiet=True)
    with Bar(str(folder), verbosity) as progress, leave_process_group():
        trained = (
            run(options, folder, resume=resume, progress=progress)
            if is_single
            else compare_runs(options, folder, comparison=comparison, study=study, resume=resume, progress=progress)
        )
    if not is_first_process():
        return
    if isinstance(trained, Comparison):
        if format == "json":
            sys.stdout.write(to_json(trained.rows))
        else:
            _print_comparison(trained)
    elif format == "json":
        sys.stdout.write(json.dumps(trained.summary, indent=2) + "\n")
    else:
        _print_run(trained)


def _print_run(run: Run) -> None:
    """Loss and scores at about ten steps, with the first and the last among them, and the run's folder."""
    by_step = run.rows.groupby("step")
    steps: list[int] = sorted(run.rows["step"].unique())
    stride = -(-(len(steps) - 1) // (MOST_LAYER_ROWS - 1)) or 1
    rows = []
    for step in sorted({*steps[::stride], steps[-1]}):
        scored = by_step.get_group(step)
        spread = spread_of(scored)
        row = {"step": f"{step:,}", "loss": scored["loss"].iloc[0]}
        for score in default_scores():
            row[score], row[f"{score}_quartiles"] = format_quartiles(spread, score, digits=DIGITS)
        rows.append(row)
    columns: list[tuple[str, Cell]] = [
        ("step", "step"),
        ("loss", lambda row: "" if is_missing(row["loss"]) else f"{row['loss']:.3f}"),
    ]
    for score, spec in default_scores().items():
        columns += [(spec.label, score), (QUARTILES_TITLE, f"{score}_quartiles")]
    summary = run.summary
    options = run.options
    title = [
        options.model_name,
        options.objective_name,
        f"{options.init} init",
        Path(summary["data"]["name"]).name,
        f"{summary['parameters']:,} parameters",
    ]
    if "tokens_per_second" in summary:
        title.append(f"{summary['tokens_per_second']:,.0f} tokens/s")
    print_table(rows, columns, title=" · ".join(title), expendable=[QUARTILES_TITLE])
    count = run.rows["layer"].nunique()
    Terminal().print(printable(f"medians over {count} layers · {run.folder}"), style="dim")
    sys.stdout.write(printable(describe_run(run)) + "\n")


def _print_comparison(comparison: Comparison) -> None:
    """The gain of each objective and initialisation, and the scores at the end, over the seeds."""
    rows = comparison.rows
    spread = comparison.spread
    seeds = int(spread["seeds"].iloc[0])
    title = f"{rows['model'].iloc[0]} · {seeds} {'seed' if seeds == 1 else 'seeds'} · {comparison.folder}"
    gains: dict[str, Cell] = {
        "objective": "objective",
        "init": _show_init,
        "final loss": lambda row: _format_range(row, "final_loss", "{:.3f}"),
        "steps to baseline": _format_steps,
        "speed-up": lambda row: _format_range(row, "speed_up", "{:.0%}"),
    }
    if "eval_loss_mean" in spread:  # of images
        gains["eval loss"] = lambda row: _format_range(row, "eval_loss", "{:.3f}")
        gains["accuracy"] = lambda row: _format_range(row, "eval_accuracy", "{:.1%}")
    print_table(spread, gains, title=title, expendable=["steps to baseline", "final loss"])
    baseline = _show_init({"init": rows["init"].iloc[0]})
    legend = (
        f"baseline: init {baseline} with the same objective and seed; steps to baseline: first logged step with a "
        "loss below the baseline's final loss; speed-up: share of the steps saved"
    )
    Terminal().print(legend, style="dim")
    means = rows.groupby(["objective", "init"], sort=False).mean(numeric_only=True).reset_index()
    for score, spec in default_scores().items():
        scores: dict[str, Cell] = {
            spec.label: "objective",
            "init": _show_init,
            "layers": partial(_join_quartiles, score=score, heads=False),
            "heads": partial(_join_quartiles, score=score, heads=True),
        }
        print_table(means, scores, expendable=["heads"])
    legend = "means over seeds (lowest–highest); medians [quartiles] over layers and heads at the end of training"
    Terminal().print(legend, style="dim")


def _join_quartiles(row: Mapping[Any, Any], score: str, *, heads: bool) -> str:
    return " ".join(format_quartiles(row, score, digits=DIGITS, heads=heads))


def _show_init(row: Mapping[Any, Any]) -> str:
    """The end of a long reference, which differs most from that of others."""
    init = row["init"]
    return init if len(init) <= LONGEST_NAME else f"…{init[1 - LONGEST_NAME :]}"


def _format_range(row: Mapping[Any, Any], name: str, form: str) -> str:
    """The mean over seeds, and the lowest and highest if they differ."""
    mean, low, high = (form.format(row[f"{name}_{kind}"]) for kind in ("mean", "min", "max"))
    return mean if low == high else f"{mean} ({low.rstrip('%')}–{high})"


def _format_steps(row: Mapping[Any, Any]) -> str:
    """The mean number of steps to the baseline's final loss, and how many runs reached it."""
    mean = row["steps_to_baseline_mean"]
    reached = row["reached"]
    seeds = row["seeds"]
    if not reached:
        return "never"
    return f"{mean:,.0f}" if reached == seeds else f"{mean:,.0f} ({reached} of {seeds})"


def describe_run(run: Run) -> str:
    """How the loss went, and the median of each score over layers, compared with chance."""
    start = run.summary["start"]
    end = run.summary["end"]
    layers = run.rows["layer"].nunique()
    moves = []
    for name, spec in default_scores().items():
        if spec.chance is None:
            continue
        mean, deviation = spec.chance(run.summary["d_model"])
        chance = Chance(mean, MEDIAN * deviation / math.sqrt(layers))
        median = statistic(name, "median")
        moves.append(f"The median {describe_move(spec, start[median], end[median], chance)}.")
    what = PREDICTED[run.options.objective_name]
    first, last = (run.summary[name] for name in ("first_loss", "final_loss"))
    logs = run.rows.loc[run.rows["step"] > 0, "step"].drop_duplicates()
    loss = f"the loss was {last:.2f} on average"
    if len(logs) > 1:
        loss = f"the loss went from {first:.2f} in the first {logs.iloc[0]:,} to {last:.2f} in the last"
    steps = f"In {run.summary['settings']['steps']:,} steps of {what}"
    return " ".join([f"{steps}, {loss}.", *moves])


def describe_move(spec: ScoreSpec, start: float, end: float, chance: Chance) -> str:
    """How a median over layers went, and whether chance explains it.

    chance: the median of random forms, and the largest difference from it that chance explains.
    """
    first, last, mean = (format_number(score, "+.2f" if spec.low < 0 else ".2f") for score in (start, end, chance.mean))
    moved = f"{spec.label} of layers went from {first} to {last}"
    expected = f"{mean} ± {chance.deviation:.2f}"
    if chance.deviation >= max(abs(spec.low), abs(spec.high)):
        return f"{moved}, but at this width any value may be due to chance"
    if abs(start - chance.mean) > chance.deviation:
        return f"{moved} (chance: {expected})"
    if abs(end - chance.mean) <= chance.deviation:
        return f"{moved}, which may be due to chance ({expected})"
    meaning = spec.positive if end > chance.mean else spec.negative
    return f"{moved}: more {meaning} than expected by chance ({expected})"
