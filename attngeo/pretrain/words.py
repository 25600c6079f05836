"""What a run or a comparison showed, in a sentence or two, as measured."""

from __future__ import annotations

import math

from attngeo.pretrain.comparison import Comparison
from attngeo.pretrain.runs import Run

# Standard deviation of directionality over independent Gaussian Wq, Wk of width d is about 3.4/√d, found by simulation.
CHANCE_DIRECTIONALITY = 3.4
# Standard error of a median of n, over that of one: √(π/2)/√n; two of them are what chance may do.
MEDIAN = 2 * math.sqrt(math.pi / 2)


def describe(run: Run) -> str:
    """What the geometry of attention did during a run: the scores of whole layers, as in the paper, against chance."""
    start, end = (run.summary[when] for when in ("start", "end"))
    width, layers = run.summary["d_model"], run.geometry["layer"].nunique()
    symmetry, directionality = (
        sentence(name, start["layers"][name][1], end["layers"][name][1], MEDIAN * chance / math.sqrt(layers), words)
        for name, chance, words in (
            ("symmetry", math.sqrt(2) / width, ("more symmetric", "more skew-symmetric")),
            (
                "directionality",
                CHANCE_DIRECTIONALITY / math.sqrt(width),
                ("rows dominate more", "columns dominate more"),
            ),
        )
    )
    predicted = {"mlm": "predicting masked tokens", "clm": "predicting the next token"}
    what = "classifying images" if run.settings.task == "image" else predicted[run.settings.objective]
    first, last = (run.summary[name] for name in ("first_loss", "final_loss"))
    logs = run.geometry.loc[run.geometry["step"] > 0, "step"].drop_duplicates()
    loss = f"the loss was {last:.2f} on average"
    if len(logs) > 1:
        loss = f"the loss went from {first:.2f} in the first {logs.iloc[0]:,} to {last:.2f} in the last"
    steps = f"In {run.summary['settings']['steps']:,} steps of {what}"
    return f"{steps}, {loss}. The median {symmetry}. The median {directionality}."


def sentence(name: str, start: float, end: float, chance: float, words: tuple[str, str]) -> str:
    """How a median over layers went, and whether chance alone would do."""
    moved = f"{name} of layers went from {_signed(start)} to {_signed(end)}"
    if chance >= 1:
        return f"{moved}, which says nothing at this width"
    if abs(start) > chance:
        return f"{moved}, where chance gives ±{chance:.2f}"
    if abs(end) <= chance:
        return f"{moved}, which chance would do (±{chance:.2f})"
    return f"{moved}: {words[end < 0]} than by chance (±{chance:.2f})"


def _signed(score: float) -> str:
    """Two digits with a sign, 0 without a minus."""
    return f"{round(score, 2) + 0.0:+.2f}"


def describe_comparison(comparison: Comparison) -> list[str]:
    """For each objective and initialisation but the first: how much sooner the baseline's final loss was reached."""
    lines = []
    for objective, runs in comparison.rows.groupby("objective", sort=False):
        baseline, *others = runs["init"].unique()
        for init in others:
            own, reference = runs[runs["init"] == init], runs[runs["init"] == baseline]
            gains, reached = own["speed_up"], int(own["steps_to_baseline"].notna().sum())
            loss, symmetry = (
                f"{own[name].mean():{form}} against {reference[name].mean():{form}}"
                for name, form in (("final_loss", ".3f"), ("symmetry_layers_median", "+.2f"))
            )
            sooner = (
                f"which {reached} of {len(own)} runs reached, {gains.mean():.0%} sooner "
                f"({gains.min():.0%} to {gains.max():.0%})" if reached else "which no run reached"
            )  # fmt: skip
            lines.append(
                f"{objective}: {init} against {baseline} initialisation: final loss {loss}, {sooner}; "
                f"median symmetry of layers at the end {symmetry}."
            )
    return lines
