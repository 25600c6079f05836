"""One run of an experiment: a method answers data sets, and its scores are kept so that no answer is computed twice."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from attngeo.progress import Progress, ProgressCallback
from attngeo.provenance import machine, software
from attngeo.studies.results import KeptResult, ResultStore
from attngeo.tabular.methods import METHODS
from attngeo.tabular.problems import Answer, Problem
from attngeo.tabular.published import ShiftSetting
from attngeo.tabular.simulation import Shift

if TYPE_CHECKING:
    import numpy as np

    from attngeo.tabular.simulation import Rows, ShiftedTable

log = logging.getLogger(__name__)

# The folder of the result store, and the columns of what is kept.
KIND = "tabular"
TYPES: dict[str, type] = {"accuracy": float, "mse": float, "train_accuracy": float, "train_mse": float}


@dataclass(frozen=True)
class MethodRun:
    """A method on data sets of one shape. make_table: seed → data set. labels: columns that name the data sets.

    name: of the run, for people. about: the experiment, and how data sets are made; kept beside the scores.
    """

    name: str
    method: str
    seeds: tuple[int, ...]
    make_table: Callable[[int], ShiftedTable]
    labels: Mapping[str, Any]
    about: Mapping[str, Any]


def perform(run: MethodRun, progress: ProgressCallback, *, fresh: bool = False) -> list[dict[str, Any]]:
    """A row for each seed, in their order, with scores that are kept, or else computed.

    Its columns are the run's labels, method, seed, accuracy and mse, the mean squared error of class numbers, both of
    test rows, and train_accuracy and train_mse.

    Scores are kept under the content of the data set, the seed, the method, the code of the method and the versions of
    its packages. fresh: compute them again.
    """
    problems = [Problem(run.make_table(seed), seed) for seed in run.seeds]
    records = [_find_record(run, problem) for problem in problems]
    kept = [None if record is None or fresh else record.load() for record in records]
    rows: list[dict[str, float] | None] = [None if found is None else found.rows[0] for found in kept]
    left = [at for at, row in enumerate(rows) if row is None]
    if len(left) < len(rows):
        progress(Progress("kept", f"{len(rows) - len(left)} of {len(rows)} data sets from the result store"))
    started = time.perf_counter()
    for at, answer in zip(left, _answer(run, [problems[at] for at in left], progress), strict=True):
        rows[at] = scores = _score(problems[at], answer)
        record = records[at]
        if record is not None:
            seconds = (time.perf_counter() - started) / len(left)
            record.keep([scores], _describe_making(run, problems[at], answer, seconds))
    if left:
        log.info("%s: %d data sets in %.1f s", run.name, len(left), time.perf_counter() - started)
    return [
        {**run.labels, "method": run.method, "seed": seed, **row}
        for seed, row in zip(run.seeds, rows, strict=True)
        if row is not None
    ]


def is_outdated(about: Mapping[str, Any]) -> bool:
    """Whether scores that are kept are no answer any more: they are of other code, or of other versions."""
    method = METHODS.get(str(about.get("method")))
    return method is None or bool(method.missing) or about.get("version") != method.version


def list_usual_options(_about: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of simulated tables, without the setting, which is part of a run's name."""
    return {each.name: each.default for each in fields(Shift) if each.name not in ShiftSetting._fields}


def _answer(run: MethodRun, problems: Sequence[Problem], progress: ProgressCallback) -> list[Answer]:
    return METHODS[run.method].answer(problems, progress) if problems else []


def _find_record(run: MethodRun, problem: Problem) -> KeptResult | None:
    store = ResultStore.open(KIND, TYPES)
    if store is None:
        return None
    version = METHODS[run.method].version
    depends_on = {"rows": _digest(problem.table), "seed": problem.seed, "method": run.method, "version": version}
    return store.record(depends_on, about={"version": version, "method": run.method})


def _digest(table: ShiftedTable) -> str:
    """The SHA-256 of the cells of a data set."""
    import numpy as np

    digest = hashlib.sha256()
    for values in (*table.train, *table.test):
        digest.update(f"{values.shape}".encode() + np.ascontiguousarray(values, dtype="<i8").tobytes())
    return digest.hexdigest()


def _score(problem: Problem, answer: Answer) -> dict[str, float]:
    (accuracy, mse), (train_accuracy, train_mse) = (
        _measure(rows, predicted)
        for rows, predicted in ((problem.table.test, answer.test), (problem.table.train, answer.train))
    )
    return {"accuracy": accuracy, "mse": mse, "train_accuracy": train_accuracy, "train_mse": train_mse}


def _measure(rows: Rows, predicted: np.ndarray) -> tuple[float, float]:
    """The share of rows whose class is predicted, and the mean squared error of class numbers."""
    return float((predicted == rows.y).mean()), float(((predicted - rows.y) ** 2).mean())


def _describe_making(run: MethodRun, problem: Problem, answer: Answer, seconds: float) -> dict[str, Any]:
    return {
        **software(), **machine(), **run.about, **answer.about, "model": run.name, "seed": problem.seed,
        "seconds": round(seconds, 3), "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }  # fmt: skip
