"""Runs that differ in their initialisation, and what the difference was."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from attngeo.choices import Objective, one_of
from attngeo.errors import InterruptedTrainingError, UsageError
from attngeo.pretrain.initialisation import check_init
from attngeo.pretrain.runs import Run, load, refuse_other_runs, run
from attngeo.pretrain.settings import FILE as SETTINGS
from attngeo.pretrain.settings import Settings, absolute
from attngeo.progress import Progress
from attngeo.tables import write as tables
from attngeo.tables.atomic import atomic_write

# One row a run.
COLUMNS = (
    "model", "objective", "init", "seed", "steps", "final_loss", "steps_to_baseline", "speed_up",
    *(f"{score}_{kind}_{place}" for score in ("symmetry", "directionality") for kind in ("layers", "heads")
      for place in ("lower", "median", "upper")),
)  # fmt: skip
SPREAD = ("final_loss", "steps_to_baseline", "speed_up", "symmetry_layers_median", "symmetry_heads_median",
          "directionality_layers_median", "directionality_heads_median")  # fmt: skip
RUN_COLUMNS = ["objective", "init", "seed"]


@dataclass(frozen=True)
class Comparison:
    """Finished runs. `rows`: one a run. `curves`: their geometry and loss at every log."""

    folder: Path
    rows: pd.DataFrame
    curves: pd.DataFrame

    @property
    def spread(self) -> pd.DataFrame:
        """One row for each objective and initialisation: mean, min and max over seeds of each figure.

        Of `steps_to_baseline`, over the `reached` runs that got there.
        """
        grouped = self.rows.groupby(["model", "objective", "init"], sort=False)
        frame = grouped[list(SPREAD)].agg(["mean", "min", "max"])
        frame.columns = pd.Index(["_".join(pair) for pair in frame.columns])
        frame.insert(0, "seeds", grouped.size())
        frame.insert(1, "reached", grouped["steps_to_baseline"].count())
        frame = frame.reset_index()
        frame.attrs = {"title": "Initialisations compared"}
        return frame


def compare(
    settings: Settings,
    folder: str | Path,
    inits: Sequence[str],
    *,
    objectives: Sequence[Objective] = (),
    seeds: int = 1,
    resume: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Comparison:
    """Train `settings` once for every objective, initialisation and seed, with the same data in the same order.

    The first of `inits` is the baseline. seeds: how many, from `settings.seed` on. resume: keep the runs in `folder`
    that are finished, and go on with one that is not. Leaves in `folder` a run's folder each, `comparison.csv` and
    `.parquet` (a row a run), `spread.csv` (over seeds), `curves.parquet` and `curves.html`. Raises as `run` does.
    """
    folder, inits = Path(folder), [absolute(init) for init in inits]
    plan = _plan(settings, inits, objectives or (settings.objective,), seeds)
    for each in plan:  # what would fail later, after hours
        if not resume:
            refuse_other_runs(folder / _folder_name(each), resume=False)
        check_init(each.init)
    runs: list[Run] = []
    for number, each in enumerate(plan, 1):
        name = _folder_name(each)

        def report(step: Progress, label: str = f"{number}/{len(plan)} {name}") -> None:
            if progress is not None:
                progress(dataclasses.replace(step, what=f"{label}  {step.what}"))

        done = load(folder / name) if resume else None
        if done is not None:
            done.settings.resumed(dataclasses.asdict(each), folder / name)  # raises where they differ
        started = (folder / name / SETTINGS).is_file()
        try:
            runs.append(done or run(each, folder / name, resume=resume and started, progress=report))
            if runs[-1].stopped and number < len(plan):
                raise InterruptedTrainingError("stopped when it was finished")
        except InterruptedTrainingError as error:
            said = str(error).partition("; go on with")[0]
            raise InterruptedTrainingError(f"{name}: {said}; go on with the same command and --resume") from None
    if not all(each.summary for each in runs):  # another process than the first, which keeps the scores
        return Comparison(folder, pd.DataFrame(columns=list(COLUMNS)), pd.DataFrame())
    comparison = Comparison(folder, _rows(runs, inits[0]), _curves(runs))
    _write(comparison)
    return comparison


def _plan(settings: Settings, inits: Sequence[str], objectives: Sequence[Objective], seeds: int) -> list[Settings]:
    if len(inits) < 2 or len(set(inits)) < len(inits):
        raise UsageError(f"compare {','.join(inits)!r}, expected two or more different initialisations")
    if seeds < 1:
        raise UsageError(f"seeds is {seeds}, expected at least 1")
    plan = [
        dataclasses.replace(
            settings, objective=one_of("objective", objective, Objective), init=init, seed=settings.seed + i
        )
        for objective, i, init in product(objectives, range(seeds), inits)
    ]
    for each in plan:
        each.check()
    if len({_folder_name(each) for each in plan}) < len(plan):
        raise UsageError(f"compare {','.join(inits)!r}: two of them would be kept in folders of one name")
    if settings.steps % settings.log_every:
        raise UsageError(
            f"steps is {settings.steps}, which is no multiple of log_every {settings.log_every}: the last loss would "
            "be a mean of fewer steps than the others; change one of them"
        )
    return plan


def _folder_name(settings: Settings) -> str:
    init = re.sub(r"[^\w.-]+", "-", settings.init).strip("-.")
    return f"{settings.objective}-{init}-seed{settings.seed}"


def speed_up(losses: Sequence[float], baseline: Sequence[float]) -> tuple[int | None, float]:
    """The first log at which `losses` is below the end of `baseline`, counted from 1, and the share of logs it saves.

    (T − t)/T, T the number of logs; None and 0.0 where that never happens.
    Source: Saponati et al. 2025 (arXiv 2502.10927), Table 1.

    >>> speed_up([5.0, 3.0, 1.0, 0.5], [5.0, 4.0, 3.0, 2.0])
    (3, 0.25)
    """
    for number, loss in enumerate(losses, 1):
        if loss < baseline[-1]:
            return number, (len(losses) - number) / len(losses)
    return None, 0.0


def _rows(runs: Iterable[Run], baseline: str) -> pd.DataFrame:
    runs = list(runs)
    losses = {(each.settings.objective, each.settings.seed): _losses(each) for each in runs
              if each.settings.init == baseline}  # fmt: skip
    rows: list[dict[str, Any]] = []
    for each in runs:
        settings, own = each.settings, _losses(each)
        reference = losses[settings.objective, settings.seed]
        number, gained = speed_up(list(own), list(reference))
        rows.append({
            "model": settings.model_name, "objective": settings.objective, "init": settings.init, "seed": settings.seed,
            "steps": each.summary["settings"]["steps"], "final_loss": each.summary["final_loss"],
            "steps_to_baseline": None if number is None else int(own.index[number - 1]), "speed_up": gained,
            **{f"{score}_{kind}_{place}": value for kind, scores in each.summary["end"].items()
               for score, spread in scores.items()
               for place, value in zip(("lower", "median", "upper"), spread, strict=True)},
        })  # fmt: skip
        if settings.init == baseline:
            rows[-1] |= {"steps_to_baseline": rows[-1]["steps"], "speed_up": 0.0}
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).astype({"steps_to_baseline": "Int64"})
    frame.attrs = {"title": "Initialisations compared, run by run"}
    return frame


def _losses(run: Run) -> pd.Series[float]:
    """The logged losses, by step."""
    return run.geometry[["step", "loss"]].dropna().drop_duplicates().set_index("step")["loss"]


def _curves(runs: Iterable[Run]) -> pd.DataFrame:
    parts = []
    for each in runs:
        part = each.geometry.copy()
        for place, name in enumerate(RUN_COLUMNS):
            part.insert(place, name, getattr(each.settings, name))
        parts.append(part)
    curves = pd.concat(parts, ignore_index=True)
    curves.attrs = {"title": "Training curves"}
    return curves


def figures(curves: pd.DataFrame) -> dict[str, Any]:
    """The paper's figures of training, by title: Fig. 3 where there are two objectives, Fig. S5 for each of them."""
    from attngeo.figures.common import SCORES
    from attngeo.figures.training import layer_curves, loss_curves, score_curves

    found: dict[str, Any] = {}
    baseline = curves[curves["init"] == curves["init"].iloc[0]]
    if baseline["objective"].nunique() > 1:
        for score in SCORES:
            found[f"{score} during training, by objective"] = score_curves(baseline, score)
            found[f"{score} of each layer, by objective"] = layer_curves(baseline, score)
    for objective, rows in curves.groupby("objective", sort=False):
        found[f"{objective}: loss, by initialisation"] = loss_curves(rows)
        for score in SCORES:
            found[f"{objective}: {score}, by initialisation"] = score_curves(rows, score)
            found[f"{objective}: {score} of each layer, by initialisation"] = layer_curves(rows, score)
    return found


def _write(comparison: Comparison) -> None:
    folder = comparison.folder
    for name in ("comparison.csv", "comparison.parquet"):
        tables.write_table(comparison.rows, folder / name)
    tables.write_table(comparison.spread, folder / "spread.csv")
    tables.write_table(comparison.curves, folder / "curves.parquet")
    page = "\n".join(
        figure.to_html(full_html=False, include_plotlyjs=not number)
        for number, figure in enumerate(figures(comparison.curves).values())
    )
    with atomic_write(folder / "curves.html") as path:
        path.write_text(
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Training curves</title></head><body>\n'
            f"{page}\n</body></html>\n", "utf-8",
        )  # fmt: skip
