"""The result of a run or a comparison in a sentence or two."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attngeo.geometry.chance import Chance
from attngeo.pretrain.comparison import Comparison
from attngeo.pretrain.options import TextPretrainOptions
from attngeo.pretrain.runs import Run
from attngeo.scores.spec import SCORES, ScoreSpec
from attngeo.scores.summary import statistic

if TYPE_CHECKING:
    import pandas as pd

# Two standard errors of a median of n numbers are 2·√(π/2)/√n standard deviations.
MEDIAN = 2 * math.sqrt(math.pi / 2)
PREDICTED = {"mlm": "predicting masked tokens", "clm": "predicting the next token"}


def describe_run(run: Run) -> str:
    """How the loss went, and the median of each score over layers, compared with chance."""
    start, end, layers = run.summary["start"], run.summary["end"], run.geometry["layer"].nunique()
    moves = []
    for name, spec in SCORES.items():
        mean, deviation = spec.chance(run.summary["d_model"])
        chance = Chance(mean, MEDIAN * deviation / math.sqrt(layers))
        median = statistic(name, "median")
        moves.append(f"The median {describe_move(spec, start[median], end[median], chance)}.")
    what = PREDICTED[run.options.objective] if isinstance(run.options, TextPretrainOptions) else "classifying images"
    first, last = (run.summary[name] for name in ("first_loss", "final_loss"))
    logs = run.geometry.loc[run.geometry["step"] > 0, "step"].drop_duplicates()
    loss = f"the loss was {last:.2f} on average"
    if len(logs) > 1:
        loss = f"the loss went from {first:.2f} in the first {logs.iloc[0]:,} to {last:.2f} in the last"
    steps = f"In {run.summary['settings']['steps']:,} steps of {what}"
    return " ".join([f"{steps}, {loss}.", *moves])


def describe_move(spec: ScoreSpec, start: float, end: float, chance: Chance) -> str:
    """How a median over layers went, and whether chance explains it.

    chance: the median of random forms, and the largest difference from it that chance explains.
    """
    moved = f"{spec.label} of layers went from {_format_score(start, spec)} to {_format_score(end, spec)}"
    expected = f"{_format_score(chance.mean, spec)} ± {chance.deviation:.2f}"
    if chance.deviation >= max(abs(spec.low), abs(spec.high)):
        return f"{moved}, but at this width any value may be chance"
    if abs(start - chance.mean) > chance.deviation:
        return f"{moved} (chance: {expected})"
    if abs(end - chance.mean) <= chance.deviation:
        return f"{moved}, which may be chance ({expected})"
    meaning = spec.positive if end > chance.mean else spec.negative
    return f"{moved}: more {meaning} than by chance ({expected})"


def _format_score(score: float, spec: ScoreSpec) -> str:
    """Two digits, with a sign if the score can be negative; 0 without a minus."""
    sign = "+" if spec.low < 0 else ""
    return f"{round(score, 2) + 0.0:{sign}.2f}"


def describe_comparison(comparison: Comparison) -> list[str]:
    """For each objective and initialisation but the baseline: its final loss, and how much sooner it got there."""
    lines = []
    for objective, runs in comparison.rows.groupby("objective", sort=False):
        baseline, *others = runs["init"].unique()
        for init in others:
            tried, reference = runs[runs["init"] == init], runs[runs["init"] == baseline]
            medians = []
            for name, spec in SCORES.items():
                column = statistic(name, "median")
                median, other = (_format_score(float(frame[column].mean()), spec) for frame in (tried, reference))
                medians.append(f"{spec.label} {median} against {other}")
            lines.append(
                f"{objective}: {init} against {baseline} initialisation: final loss {tried['final_loss'].mean():.3f} "
                f"against {reference['final_loss'].mean():.3f}; {_describe_speed_up(tried)}; medians over layers at "
                f"the end: {', '.join(medians)}."
            )
    return lines


def _describe_speed_up(runs: pd.DataFrame) -> str:
    """How many of these runs were below the baseline's final loss before its end, and how much sooner.

    A loss that was below it once may be above it at the end.
    """
    gains = runs.loc[runs["steps_to_baseline"].notna(), "speed_up"]
    below = "below the baseline's final loss"
    if gains.empty:
        return f"no run was {below}" if len(runs) > 1 else f"the run was never {below}"
    if len(runs) == 1:
        return f"the run was first {below} {gains.iloc[0]:.0%} sooner"
    spread = f" ({gains.min():.0%} to {gains.max():.0%})" if len(gains) > 1 else ""
    return f"{len(gains)} of {len(runs)} runs were first {below} {gains.mean():.0%} sooner{spread}"
