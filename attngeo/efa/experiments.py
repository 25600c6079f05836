"""The paper's experiments as studies, and their table: each model beside the paper's number and trivial baselines."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngeo.efa.datasets import EXPERIMENTS, Split, load_dataset
from attngeo.efa.experiment_options import RunOptions
from attngeo.efa.options import EfaOptions
from attngeo.efa.published import SOURCE, ResultName, published_results
from attngeo.efa.settings import SETTINGS, ModelSetting, list_settings
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.provenance import digest_statements, machine, software
from attngeo.scores.options import ResultOptions
from attngeo.studies.engine import run_study
from attngeo.studies.options import StudyOptions
from attngeo.studies.results import KeptResult, ResultStore, cache_folder
from attngeo.studies.tasks import RunOutcome

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

Outcome = RunOutcome[list[dict[str, Any]]]
COLUMNS = ("experiment", "model", "direction", "setting", "seed", "metric", "value", "published")
# The folder of the result store, and the columns of what is kept.
KIND = "efa"
TYPES: dict[str, type] = {"metric": str, "value": float}
# What the numbers of a fitted model depend on, and those of the baselines.
MODEL_CODE = (
    *(f"efa/{name}.py" for name in (
        "attention", "copies", "estimator", "factors", "families", "family_names", "modelling", "network", "sequences",
        "starts", "trivial",
    )),
    "training/batches.py", "training/best.py", "training/loop.py",
)  # fmt: skip
TRIVIAL_CODE = ("efa/trivial.py",)


@dataclass(frozen=True)
class EfaRun:
    """One model of an experiment with a seed, or a trivial baseline, whose options are None."""

    experiment: str
    model: str
    direction: str
    setting: str
    seed: int
    options: EfaOptions | None
    data: str | None
    published: bool

    @property
    def name(self) -> str:
        """The run, for people."""
        parts = (self.experiment, self.model, self.direction, self.setting, f"seed {self.seed}")
        return " ".join(part for part in parts if part)


def plan_runs(experiment: str, options: RunOptions) -> list[EfaRun]:
    """The runs of an experiment: baselines, then all models with the first seed, with the second, and so on.

    Raises UsageError for an unknown experiment, or if nothing is left to run.
    """
    found = list_settings(experiment, options)
    runs = [
        EfaRun(experiment, each.model, each.direction, each.setting, seed, EfaOptions(**each.options, seed=seed),
               options.data, options.published)
        for seed in range(options.seeds)
        for each in found
    ]  # fmt: skip
    return [*_plan_baselines(experiment, options, found), *runs]


def _plan_baselines(experiment: str, options: RunOptions, models: Sequence[ModelSetting]) -> list[EfaRun]:
    """Each baseline once for each direction, and for each setting whose numbers are other ones."""
    if not options.baselines:
        return []
    about = SETTINGS[experiment]
    settings = list(about.families)
    if experiment == "temperature":
        days = {each.setting.partition(", ")[2] for each in models if each.model == "efa"}
        settings = sorted(days | {""})
    return [
        EfaRun(experiment, name, direction, setting, 0, None, options.data, options.published)
        for name in about.trivial
        for direction in options.directions
        if direction in about.directions
        for setting in (settings if name != "day-before" else [""])
    ]


@lru_cache(maxsize=2)
def load_split(experiment: str, data: str | None, published: bool) -> Split:
    """The rows of an experiment; a process that makes several runs reads them once."""
    about = EXPERIMENTS[experiment]
    return about.split(load_dataset(about.dataset, data), published=published)


def perform(run: EfaRun, progress: ProgressCallback, *, fresh: bool = False) -> list[dict[str, Any]]:
    """A row for each metric of a run, kept from before or else computed; columns: `COLUMNS` without the last.

    They are kept under the rows of the data, the options, the code of the models and the version of torch. A training
    that is interrupted resumes. fresh: compute them again.
    """
    split = load_split(run.experiment, run.data, run.published)
    key = _describe(run, split)
    record = _find_record(key)
    kept = None if record is None or fresh else record.load()
    if kept is not None:
        progress(Progress("kept", f"{run.name}: from the result store"))
        rows = kept.rows
    else:
        started = time.perf_counter()
        rows = [{"metric": name, "value": value} for name, value in _compute(run, split, key, progress).items()]
        seconds = time.perf_counter() - started
        log.info("%s: %.1f s", run.name, seconds)
        if record is not None:
            made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
            record.keep(
                rows, {**software(), **machine(), "model": run.name, "seconds": round(seconds, 3), "made": made}
            )
    labels = {name: getattr(run, name) for name in COLUMNS[:5]}
    return [{**labels, **row} for row in rows]


def _compute(run: EfaRun, split: Split, key: dict[str, Any], progress: ProgressCallback) -> dict[str, float]:
    """The metrics of test rows."""
    from attngeo.efa.estimator import ExponentialFamilyAttention
    from attngeo.efa.trivial import TRIVIAL, measure_ratings

    if run.options is None:
        return TRIVIAL[run.model].measure(split, run.direction, run.setting)
    model = ExponentialFamilyAttention(options=run.options)
    model.fit(split.train, split.validation, folder=_find_folder(key), progress=progress)
    if model.part_ == "items":
        return {"cross_entropy": -model.score(split.test)} | _count_epochs(model)
    value, mean = split.test["value"], model.predict(split.test)["mean"]
    poisson = run.setting if run.setting in ("v1", "v2") else ""
    return measure_ratings(value, mean, poisson) | _count_epochs(model)


def _count_epochs(model: Any) -> dict[str, float]:
    return {"epochs": float(len(model.history_.train))}


def _describe(run: EfaRun, split: Split) -> dict[str, Any]:
    """What the numbers of a run depend on."""
    from importlib.metadata import version

    digest = hashlib.sha256()
    for frame in split:
        digest.update(frame.to_csv(index=False).encode())
    about: dict[str, Any] = {
        "rows": digest.hexdigest(), "model": run.model, "direction": run.direction, "setting": run.setting,
    }  # fmt: skip
    if run.options is None:
        return about | {"code": digest_statements(*TRIVIAL_CODE)}
    options = {name: repr(value) for name, value in vars(run.options).items() if name != "device"}
    return about | {"options": options, "code": digest_statements(*MODEL_CODE), "torch": version("torch")}


def _find_record(key: dict[str, Any]) -> KeptResult | None:
    store = ResultStore.open(KIND, TYPES)
    return None if store is None else store.record(key)


def _find_folder(key: dict[str, Any]) -> Path | None:
    """Where the state of an unfinished training is."""
    cache = cache_folder()
    name = hashlib.sha256(repr(sorted(key.items())).encode()).hexdigest()[:32]
    return None if cache is None else cache / KIND / "unfinished" / name


def run_planned(
    runs: Sequence[EfaRun],
    *,
    results: ResultOptions = ResultOptions(),
    study: StudyOptions = StudyOptions(),
    progress: ProgressCallback = ignore_progress,
    on_outcome: Callable[[Outcome], None] = lambda _: None,
) -> list[Outcome]:
    """The rows of each run, as `perform` returns them, or its error. Parameters and errors are those of `run_study`."""
    function = partial(perform, fresh=results.fresh)
    names = [run.name for run in runs]
    return run_study(function, runs, names=names, options=study, progress=progress, on_outcome=on_outcome)


def build_frame(outcomes: Sequence[Outcome], *, published: bool = False) -> pd.DataFrame:
    """The rows of all runs, in the order of their plan; columns: `COLUMNS`, the last one is the paper's number."""
    import pandas as pd

    known = published_results()
    rows = [row for each in sorted(outcomes, key=lambda outcome: outcome.number) for row in each.result or ()]
    for row in rows:
        row["published"] = known.get(ResultName(*(row[name] for name in (*COLUMNS[:4], "metric"))))
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).astype({"value": "float64", "published": "float64"})
    frame.attrs = {"title": "Exponential family attention", "published": SOURCE, "as_published": published}
    return frame
