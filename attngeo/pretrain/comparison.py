"""Runs that differ in their initialisation, and how their results differ."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, cast

import pandas as pd

from attngeo.choices import Objective
from attngeo.errors import UsageError
from attngeo.options import takes_after_two
from attngeo.pretrain.initialisation import check_init
from attngeo.pretrain.options import ComparisonOptions, ImagePretrainOptions, TextPretrainOptions, make_absolute
from attngeo.pretrain.runs import Run, refuse_other_runs
from attngeo.pretrain.study import train_all
from attngeo.pretrain.summary import spread_at
from attngeo.progress import ProgressCallback, ignore_progress
from attngeo.scores.spec import score_names
from attngeo.scores.summary import QUARTILES, statistics
from attngeo.studies.options import StudyOptions
from attngeo.tables import write as tables
from attngeo.tables.atomic import atomic_write
from attngeo.tables.lock import lock_folder

RUN_COLUMNS = ("objective", "init", "seed")
RESULTS = ("final_loss", "steps_to_baseline", "speed_up")


def comparison_columns() -> tuple[str, ...]:
    """The columns of a comparison's rows, in their order; there is one row for each run."""
    return ("model", *RUN_COLUMNS, "steps", *RESULTS, *statistics(QUARTILES))


@dataclass(frozen=True)
class Comparison:
    """Finished runs. rows: one for each run. curves: their geometry and loss at every log."""

    folder: Path
    rows: pd.DataFrame
    curves: pd.DataFrame

    @property
    def spread(self) -> pd.DataFrame:
        """One row for each objective and initialisation: mean, min and max over seeds of each result.

        Those of `steps_to_baseline` are over the runs that reached the baseline's loss, `reached` of them.
        """
        grouped = self.rows.groupby(["model", "objective", "init"], sort=False)
        frame = grouped[[*RESULTS, *statistics(["median"])]].agg(["mean", "min", "max"])
        frame.columns = pd.Index(["_".join(pair) for pair in frame.columns])
        frame.insert(0, "seeds", grouped.size())
        frame.insert(1, "reached", grouped["steps_to_baseline"].count())
        frame = frame.reset_index()
        frame.attrs = {"title": "Initialisations compared"}
        return frame


class CompareKeywords(ComparisonOptions, StudyOptions):
    """The keywords of `compare`."""

    comparison: ComparisonOptions | None = None
    study: StudyOptions | None = None
    resume: bool = False
    progress: ProgressCallback | None = None


@takes_after_two(CompareKeywords)
def compare(
    options: TextPretrainOptions | ImagePretrainOptions,
    folder: str | Path,
    comparison: ComparisonOptions,
    *,
    study: StudyOptions,
    resume: bool = False,
    progress: ProgressCallback | None = None,
) -> Comparison:
    """Train once for each objective, initialisation and seed, with the same data in the same order.

    options: of every run; see `attngeo.pretrain.make_options`. The seeds are counted from `options.seed` on.
    {comparison}
    {study}
    resume: keep the finished runs in `folder`, and resume those that are not. progress: called as by `run`; for runs in
    other processes, when one ends.

    Writes to `folder` a folder for each run, `comparison.csv` and `.parquet` (a row for each run), `spread.csv` (over
    seeds), `curves.parquet` and `curves.html`. A run that fails does not stop the others, unless `fail_fast`: its error
    is raised at the end. Raises as `run` does. All these folders are locked from the start.
    """
    folder, report = Path(folder), progress or ignore_progress
    inits = [make_absolute("init", init) for init in comparison.compare or ()]
    plan = {_folder_name(each): each for each in _plan(options, inits, comparison)}
    with ExitStack() as locks:
        locks.enter_context(lock_folder(folder))
        for name in plan:
            if not study.elsewhere:
                locks.enter_context(lock_folder(folder / name))
            else:
                with lock_folder(folder / name):
                    pass  # it is free; the process of the run locks it
        for name, each in plan.items():  # what would fail later, after hours
            if not resume:
                refuse_other_runs(folder / name, resume=False)
            check_init(each.init)
        runs = train_all(plan, folder, study, resume=resume, report=report)
        if not all(each.summary for each in runs):  # not the first process, which has the scores
            return Comparison(folder, pd.DataFrame(columns=list(comparison_columns())), pd.DataFrame())
        compared = Comparison(folder, _build_rows(runs, inits[0]), build_curves(runs))
        _write(compared)
    return compared


def _plan(
    options: TextPretrainOptions | ImagePretrainOptions, inits: Sequence[str], comparison: ComparisonOptions
) -> list[TextPretrainOptions | ImagePretrainOptions]:
    """The options of every run. Raises UsageError."""
    if len(inits) < 2 or len(set(inits)) < len(inits):
        raise UsageError(f"compare is {','.join(inits)!r}, expected two or more different initialisations")
    by_objective = [options]
    if comparison.objectives:
        if not isinstance(options, TextPretrainOptions):
            raise UsageError("objectives is for texts, but these runs are on images; leave it out")
        known = cast(Sequence[Objective], comparison.objectives)  # ComparisonOptions has checked them
        by_objective = [options.replace(objective=objective) for objective in known]
    plan = [
        each.replace(init=init, seed=options.seed + number)
        for each, number, init in product(by_objective, range(comparison.seeds), inits)
    ]
    if len({_folder_name(each) for each in plan}) < len(plan):
        raise UsageError(f"compare is {','.join(inits)!r}: two of them would have folders of the same name")
    if options.steps % options.log_every:
        raise UsageError(
            f"steps is {options.steps}, expected a multiple of log_every {options.log_every}: otherwise the last loss "
            "is a mean of fewer steps than the others; change one of them"
        )
    return plan


def _folder_name(options: TextPretrainOptions | ImagePretrainOptions) -> str:
    init = re.sub(r"[^\w.-]+", "-", options.init).strip("-.")
    return f"{options.objective_name}-{init}-seed{options.seed}"


def find_speed_up(losses: Sequence[float], baseline: Sequence[float]) -> tuple[int | None, float]:
    """The first log at which `losses` is below the last of `baseline`, counted from 1, and the share of logs it saves.

    The share is (T − t)/T, where T is the number of logs; None and 0.0 if no log is below.
    Source: Saponati et al. 2025 (arXiv 2502.10927), Table 1.

    >>> find_speed_up([5.0, 3.0, 1.0, 0.5], [5.0, 4.0, 3.0, 2.0])
    (3, 0.25)
    """
    for number, loss in enumerate(losses, 1):
        if loss < baseline[-1]:
            return number, (len(losses) - number) / len(losses)
    return None, 0.0


def _build_rows(runs: Sequence[Run], baseline: str) -> pd.DataFrame:
    losses = {_pair(each): _losses(each) for each in runs if each.options.init == baseline}
    rows: list[dict[str, Any]] = []
    for each in runs:
        options, own = each.options, _losses(each)
        number, gained = find_speed_up(list(own), list(losses[_pair(each)]))
        steps = each.summary["settings"]["steps"]
        reached_at = None if number is None else int(own.index[number - 1])
        if options.init == baseline:
            reached_at, gained = int(own.index[-1]), 0.0
        spread = spread_at(each.geometry, int(each.geometry["step"].max()))
        rows.append({
            "model": options.model_name, "objective": options.objective_name, "init": options.init,
            "seed": options.seed, "steps": steps, "final_loss": float(own.iloc[-1]),
            "steps_to_baseline": reached_at, "speed_up": gained,
            **{name: spread[name] for name in statistics(QUARTILES)},
        })  # fmt: skip
    frame = pd.DataFrame(rows, columns=list(comparison_columns())).astype({"steps_to_baseline": "Int64"})
    frame.attrs = {"title": "Initialisations compared, run by run"}
    return frame


def _pair(run: Run) -> tuple[str, int]:
    """What a run has in common with its baseline: objective and seed."""
    return run.options.objective_name, run.options.seed


def _losses(run: Run) -> pd.Series[float]:
    """The logged losses, by step: each a mean of as many steps as the others.

    The number of steps of a run by epochs follows from the images. If its last log is a mean of fewer, it is left out,
    unless it is the only one.
    """
    losses = run.geometry[["step", "loss"]].dropna().drop_duplicates().set_index("step")["loss"]
    even = losses[losses.index % run.options.log_every == 0]
    return even if len(even) else losses


def build_curves(runs: Iterable[Run]) -> pd.DataFrame:
    """The geometry of all runs, with the columns `RUN_COLUMNS` in front."""
    parts = []
    for each in runs:
        part = each.geometry.copy()
        values: list[Any] = [each.options.objective_name, each.options.init, each.options.seed]
        for place, (name, value) in enumerate(zip(RUN_COLUMNS, values, strict=True)):
            part.insert(place, name, value)
        parts.append(part)
    curves = pd.concat(parts, ignore_index=True)
    curves.attrs = {"title": "Training curves"}
    return curves


def build_figures(curves: pd.DataFrame) -> dict[str, Any]:
    """The paper's figures of training, by title: Fig. 3 if there are two objectives, Fig. S5 for each of them."""
    from attngeo.figures.options import LOSS, PlotOptions
    from attngeo.figures.training import draw_training, draw_training_layers

    # Runs that are older than a score have no column of it.
    by_score = {name: PlotOptions(score=name) for name in score_names() if name in curves}
    found: dict[str, Any] = {}
    baseline = curves[curves["init"] == curves["init"].iloc[0]]
    if baseline["objective"].nunique() > 1:
        for score, options in by_score.items():
            found[f"{score} during training, by objective"] = draw_training(baseline, options)
            found[f"{score} of each layer, by objective"] = draw_training_layers(baseline, options)
    for objective, rows in curves.groupby("objective", sort=False):
        found[f"{objective}: loss, by initialisation"] = draw_training(rows, PlotOptions(score=LOSS))
        for score, options in by_score.items():
            found[f"{objective}: {score}, by initialisation"] = draw_training(rows, options)
            found[f"{objective}: {score} of each layer, by initialisation"] = draw_training_layers(rows, options)
    return found


def _write(comparison: Comparison) -> None:
    folder = comparison.folder
    for name in ("comparison.csv", "comparison.parquet"):
        tables.write_table(comparison.rows, folder / name)
    tables.write_table(comparison.spread, folder / "spread.csv")
    tables.write_table(comparison.curves, folder / "curves.parquet")
    page = "\n".join(
        figure.to_html(full_html=False, include_plotlyjs=not number)
        for number, figure in enumerate(build_figures(comparison.curves).values())
    )
    with atomic_write(folder / "curves.html") as path:
        path.write_text(
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Training curves</title></head><body>\n'
            f"{page}\n</body></html>\n", "utf-8",
        )  # fmt: skip
