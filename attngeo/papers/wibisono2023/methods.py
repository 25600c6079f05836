"""The methods of Tables 1 and 2, their runs on data sets, and the scores that are kept of these."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np

from attngeo.papers.wibisono2023.data import Rows, ShiftedTable
from attngeo.papers.wibisono2023.options import Shift, ShiftSetting
from attngeo.progress import Progress, ProgressCallback
from attngeo.provenance import digest_statements, machine, software
from attngeo.studies.results import KeptResult, find_record

log = logging.getLogger(__name__)

# The folder of the result store.
KIND = "tabular"


class Problem(NamedTuple):
    """A data set, and the seed of everything that is random in the answer."""

    table: ShiftedTable
    seed: int


@dataclass(frozen=True)
class Answer:
    """The classes that a method predicts for training rows and for test rows, and how it did that."""

    train: np.ndarray
    test: np.ndarray
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """A method. answer: problems of one shape → an answer for each.

    module, package: the answers depend on the statements of the module and of those that it imports, and on the version
    of the package. together: whether problems are answered faster at once than one after the other.
    """

    answer: Callable[[Sequence[Problem], ProgressCallback], list[Answer]]
    module: str
    package: str
    together: bool = False

    @property
    def version(self) -> dict[str, str]:
        """What the answers depend on besides the data set and the seed."""
        return {"code": digest_statements(self.module), self.package: version(self.package)}


def answer_by_baseline(name: str, problems: Sequence[Problem], progress: ProgressCallback) -> list[Answer]:
    """The answers of one of the baselines of appendix E."""
    from attngeo.estimators.tabular.baselines import fit_baseline

    answers = []
    for (train, test), seed in problems:
        model = fit_baseline(
            name, train.x, train.y, seed=seed,
            report=lambda done, total: progress(Progress("fit", f"{name}, cross-validation", done, total, "steps")),
        )  # fmt: skip
        answers.append(Answer(model.predict(train.x), model.predict(test.x), {"parameters": model.parameters}))
    return answers


def answer_by_attention(problems: Sequence[Problem], progress: ProgressCallback) -> list[Answer]:
    """The answers of attention. Columns share the vectors of categories; problems of one shape train together."""
    from attngeo.estimators.tabular.classifier import AttentionClassifier, fit_together

    models = [
        AttentionClassifier(
            vocabulary="shared", unseen="mask", random_state=seed,
            n_bins=max(2, *(len(np.unique(column)) for column in table.train.x.T)),
        )
        for table, seed in problems
    ]  # fmt: skip
    fit_together(models, [problem.table.train for problem in problems], progress)
    return [
        Answer(model.predict(train.x), model.predict(test.x), {"epochs": model.n_iter_})
        for model, ((train, test), _) in zip(models, problems, strict=True)
    ]


METHODS: dict[str, Method] = {
    **{
        name: Method(partial(answer_by_baseline, name), "attngeo.estimators.tabular.baselines", "scikit-learn")
        for name in ("lr", "rf", "gb", "mlp")
    },
    "atn": Method(answer_by_attention, __name__, "torch", together=True),
}


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
    rows: list[dict[str, float] | None] = [None if result is None else result.rows[0] for result in kept]
    left = [at for at, row in enumerate(rows) if row is None]
    if len(left) < len(rows):
        progress(Progress("kept", f"{len(rows) - len(left)} of {len(rows)} data sets from the result store"))
    started = time.perf_counter()
    asked = [problems[at] for at in left]
    for at, answer in zip(left, METHODS[run.method].answer(asked, progress) if left else (), strict=True):
        table = problems[at].table
        rows[at] = scores = _measure(table.test, answer.test) | _measure(table.train, answer.train, "train_")
        record = records[at]
        if record is not None:
            seconds = (time.perf_counter() - started) / len(left)
            made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
            about = {
                **software(), **machine(), **run.about, **answer.about, "model": run.name, "seed": problems[at].seed,
                "seconds": round(seconds, 3), "made": made,
            }  # fmt: skip
            record.keep([scores], about)
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
    return method is None or about.get("version") != method.version


def list_usual_options(_about: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of simulated tables, without the setting, which is part of a run's name."""
    return {option.name: option.default for option in fields(Shift) if option.name not in ShiftSetting._fields}


def _find_record(run: MethodRun, problem: Problem) -> KeptResult | None:
    """What is kept of a data set, under its cells and all else that the scores depend on."""
    digest = hashlib.sha256()
    for values in (*problem.table.train, *problem.table.test):
        digest.update(f"{values.shape}".encode() + np.ascontiguousarray(values, dtype="<i8").tobytes())
    version = METHODS[run.method].version
    depends_on = {"rows": digest.hexdigest(), "seed": problem.seed, "method": run.method, "version": version}
    return find_record(KIND, depends_on, about={"version": version, "method": run.method})


def _measure(rows: Rows, predicted: np.ndarray, prefix: str = "") -> dict[str, float]:
    """The share of rows whose class is predicted, and the mean squared error of class numbers."""
    errors = predicted - rows.y
    return {f"{prefix}accuracy": float((errors == 0).mean()), f"{prefix}mse": float((errors**2).mean())}
