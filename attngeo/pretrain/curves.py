"""Summaries of the curves of training runs: losses, speed-up, evaluation, and the scores of each layer at the end.

Curves are rows of `curves.parquet`: objective, init, seed, step, stack, layer, head (missing for a whole layer), a
column for each score, and loss; those of images have the columns `EVALUATION`, too, with values at the last step.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from attngeo.questions.conditions import Checkable
from attngeo.questions.spread import HEADS, QUARTILES, statistic
from attngeo.scores.spec import SCORES, head_scores, layer_scores, score_names, scores_in
from attngeo.scores.summary import find_settled, spread_of, statistics

if TYPE_CHECKING:
    import pandas as pd

RUN_COLUMNS = ("objective", "init", "seed")
# Digits of statistics.
DIGITS = 6
# Columns of a classifier of images at the end of its training: loss and accuracy on the test images, of the model and
# of the average of its weights.
EVALUATION = ("eval_loss", "eval_accuracy", "ema_loss", "ema_accuracy")


def geometry_columns(scores: Collection[str] = ()) -> tuple[str, ...]:
    """The columns of the scores of one run, in order. scores: names of the optional ones."""
    return ("step", "stack", "layer", "head", *score_names(scores), "loss")


def list_curve_columns(scores: Collection[str] | None = None) -> tuple[str, ...]:
    """The columns of the curves of runs, with these optional scores."""
    return (*RUN_COLUMNS, *geometry_columns(scores or ()))


def list_curve_numbers() -> tuple[str, ...]:
    """The numeric columns of the curves, which conditions can name."""
    return (*SCORES, "loss")


# What conditions may say of the table.
CHECKS = Checkable(
    list_curve_numbers,
    about=("init", "objective", "seed", "stack"),
    last="step",
    of_layers=layer_scores,
    counted=score_names()[0],
)


def find_speed_up(losses: Sequence[float], baseline: Sequence[float]) -> tuple[int | None, float]:
    """The first log, counted from 1, with a loss below the last loss of `baseline`, and the share of logs this saves.

    The share is (T − t)/T for log t of T. None and 0.0 if no loss is below.
    Source: Saponati et al. 2025 (arXiv 2502.10927), Table 1.

    >>> find_speed_up([5.0, 3.0, 1.0, 0.5], [5.0, 4.0, 3.0, 2.0])
    (3, 0.25)
    """
    for number, loss in enumerate(losses, 1):
        if loss < baseline[-1]:
            return number, (len(losses) - number) / len(losses)
    return None, 0.0


def summarize_runs(curves: pd.DataFrame) -> pd.DataFrame:
    """One row per run: its loss, its speed-up, `EVALUATION` for images, and quartiles of the scores at its end.

    Columns: `RUN_COLUMNS`, steps, final_loss, steps_to_baseline, speed_up, the columns of `EVALUATION` in `curves`, and
    `statistics(QUARTILES)` over layers and over heads, of the scores in `curves`. The first initialisation in `curves`
    is the baseline of each objective and seed. `steps_to_baseline` is missing for a run whose loss never gets below the
    baseline's last loss.
    """
    import pandas as pd

    baseline_init = curves["init"].iloc[0]
    baselines: dict[Any, list[float]] = {}
    evaluated = [name for name in EVALUATION if name in curves]
    rows = []
    for (objective, init, seed), run in curves.groupby(list(RUN_COLUMNS), sort=False):
        losses = _read_losses(run)
        speed_up = 0.0
        number: int | None = len(losses)
        if init == baseline_init:
            baselines[objective, seed] = list(losses)
        else:
            baseline = baselines.get((objective, seed), [float("nan")])
            number, speed_up = find_speed_up(list(losses), baseline)
        last_step = int(run["step"].max())
        row = {
            "objective": objective,
            "init": init,
            "seed": seed,
            "steps": last_step,
            "final_loss": float(losses.iloc[-1]),
            "steps_to_baseline": int(losses.index[number - 1]) if number else None,
            "speed_up": speed_up,
        }
        for name in evaluated:
            row[name] = run[name].max()
        spread = spread_of(run[run["step"] == last_step])
        for name in statistics(QUARTILES, scores_in(curves.columns)):
            row[name] = round(spread[name], DIGITS)
        rows.append(row)
    frame = pd.DataFrame(rows).astype({"steps_to_baseline": "Int64"})
    frame.attrs = {"title": "Training runs"}
    return frame


def _read_losses(curves: pd.DataFrame) -> pd.Series[float]:
    """The logged losses of a run, by step: each a mean of as many steps as the others.

    The number of steps of a run by epochs follows from the images. If its last log is a mean of fewer, it is left out,
    unless it is the only one.
    """
    losses = curves[["step", "loss"]].dropna().drop_duplicates().set_index("step")["loss"]
    interval = int(losses.index[0])
    return losses[losses.index % interval == 0]


def layer_columns(scores: Collection[str] = ()) -> tuple[str, ...]:
    """The columns of `summarize_layers`, in order. scores: names of the optional ones."""
    columns = [*RUN_COLUMNS, "stack", "layer"]
    for score in score_names(scores):
        columns += [score, f"{score}_settled"]
        if head_scores([score]):
            columns += [statistic(score, quartile, heads=True) for quartile in QUARTILES]
            columns.append(f"{HEADS}{score}_settled")
    return tuple(columns)


def summarize_layers(curves: pd.DataFrame) -> pd.DataFrame:
    """One row per layer of each run: its scores at the last step, and the steps at which they settled.

    `symmetry` is the score of the whole layer; `heads_symmetry_median` and the quartiles are over its heads. From step
    `symmetry_settled` (or `heads_symmetry_settled`) on, the score (or its median over heads) stays within 10% of its
    last value. Source: Saponati et al. 2025 (arXiv 2502.10927), section 4.1.
    """
    import pandas as pd

    keys = [*RUN_COLUMNS, "stack", "layer"]
    rows = []
    for values, layer in curves.groupby(keys, sort=False):
        at_last_step = layer[layer["step"] == layer["step"].max()]
        row = dict(zip(keys, values, strict=True)) | spread_of(at_last_step)
        is_head = layer["head"].notna()
        for score in scores_in(layer.columns):
            if score not in layer:
                continue
            row[score] = row[statistic(score, "median")]
            row[f"{score}_settled"] = find_settled(layer[~is_head].groupby("step")[score].median())
            row[f"{HEADS}{score}_settled"] = find_settled(layer[is_head].groupby("step")[score].median())
        rows.append(row)
    columns = layer_columns(scores_in(curves.columns))
    frame = pd.DataFrame(rows, columns=list(columns))
    frame = frame.astype({name: "Int64" for name in columns if name.endswith("_settled")})
    frame.attrs = {"title": "Layers at the end of training"}
    return frame
