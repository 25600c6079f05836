"""What a run or a comparison showed, in a sentence or two, as measured."""

from __future__ import annotations

import math

from attngeo.pretrain.comparison import Comparison
from attngeo.pretrain.run import Run

# Standard deviation of directionality over independent Gaussian Wq and Wk of width d is about 3.4/√d, found by simulation.
CHANCE_DIRECTIONALITY = 3.4
# Standard error of a median of n, over that of one: √(π/2)/√n; two of them are what chance may do.
MEDIAN = 2 * math.sqrt(math.pi / 2)


def describe(run: Run) -> str:
    """What the geometry of attention did during a run: symmetry and directionality of heads, against chance."""
    start, end = (run.summary[when]["heads"] for when in ("start", "end"))
    steps, kind = run.summary["settings"]["steps"], run.settings
    heads, width = int(run.geometry["head"].max()) + 1, run.summary["d_model"]
    count = heads * run.geometry["layer"].nunique()
    symmetry, directionality = (
        sentence(name, start[name][1], end[name][1], MEDIAN * chance / math.sqrt(count), words)
        for name, chance, words in (
            ("symmetry", math.sqrt(2 / width**2), ("symmetric", "skew-symmetric")),
            ("directionality", CHANCE_DIRECTIONALITY / math.sqrt(width), ("dominated by rows", "dominated by columns")),
        )
    )
    what = "images were classified" if kind.task == "image" else "masked tokens were predicted" if kind.objective == "mlm" \
        else "next tokens were predicted"  # fmt: skip
    loss = f"the loss went from {run.summary['first_loss']:.2f} to {run.summary['final_loss']:.2f}"
    return f"In {steps:,} steps in which {what}, {loss}; {symmetry}, and {directionality}."


def sentence(name: str, start: float, end: float, chance: float, words: tuple[str, str]) -> str:
    """How a median went, and whether chance alone would do."""
    moved = f"the median {name} of heads went from {start:+.2f} to {end:+.2f}"
    if abs(end) <= chance:
        return f"{moved}, which chance would do (±{chance:.2f})"
    return f"{moved}: {words[end < 0]} (chance ±{chance:.2f})"


def describe_comparison(comparison: Comparison) -> list[str]:
    """For each objective and initialisation but the first: how much sooner the baseline's final loss was reached."""
    lines = []
    for objective, runs in comparison.rows.groupby("objective", sort=False):
        baseline, *others = runs["init"].unique()
        for init in others:
            own, gains = runs[runs["init"] == init], runs.loc[runs["init"] == init, "speed_up"]
            reached = int(own["steps_to_baseline"].notna().sum())
            reference = runs.loc[runs["init"] == baseline, "final_loss"].mean()
            lines.append(
                f"{objective}: {init} initialisation ended at a loss of {own['final_loss'].mean():.3f} against {reference:.3f} of "
                f"{baseline}; it reached the latter {gains.mean():.0%} sooner ({gains.min():.0%} to {gains.max():.0%}; "
                f"{reached} of {len(own)} seeds reached it), and ended at a median symmetry of layers of "
                f"{own['symmetry_layers_median'].mean():+.2f} against "
                f"{runs.loc[runs['init'] == baseline, 'symmetry_layers_median'].mean():+.2f}."
            )
    return lines
