"""Tables 1 and 2 as studies: their methods, their runs and their rows.

Source: Wibisono and Wang 2023 (arXiv 2307.04057), tables 1 and 2 and appendix E.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.resources import files
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from attngeo.estimators.tabular.options import METHOD_LABELS, OURS
from attngeo.papers.runs import Answer, Outcome, Rows as RunRows, answer_cases, build_frame
from attngeo.papers.wibisono2023.data import AutoMpg, Rows, ShiftedTable, seeds_of_data_sets, simulate
from attngeo.papers.wibisono2023.options import FIRST_SEED, AutoMpgOptions, SimulateOptions
from attngeo.papers.wibisono2023.summaries import (
    AUTO_MPG,
    AUTO_MPG_COLUMNS,
    PUBLISHED,
    SCORES,
    SETTING,
    SIMULATION_COLUMNS,
)
from attngeo.progress import Progress, ProgressCallback
from attngeo.provenance import describe_code
from attngeo.session import Session
from attngeo.studies.results import ResultForm, ResultRecord, locate_record

SOURCE = "Wibisono and Wang 2023 (arXiv 2307.04057), tables 1 and 2"
# The folder of kept results.
KIND = "tabular"
# The form of the rows that are kept.
FORM = ResultForm(columns=["accuracy", "mse", "train_accuracy", "train_mse"])


class Problem(NamedTuple):
    """A data set, and the seed for everything random in its prediction."""

    table: ShiftedTable
    seed: int


@dataclass(frozen=True)
class PredictedClasses:
    """The classes that a method predicts.

    Attributes:
        train: classes of the training rows.
        test: classes of the test rows.
        about: how the method predicted them.
    """

    train: np.ndarray
    test: np.ndarray
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """A method of prediction.

    Attributes:
        predict: problems of the same shape → one prediction per problem.
        package: package that computes predictions, which depend on its version.
        together: whether solving several problems at once is faster.
    """

    predict: Callable[[Sequence[Problem], ProgressCallback], list[PredictedClasses]]
    package: str
    together: bool = False


def predict_by_baseline(name: str, problems: Sequence[Problem], progress: ProgressCallback) -> list[PredictedClasses]:
    """The predictions of a baseline of appendix E."""
    from attngeo.estimators.tabular.baselines import fit_baseline

    def report(done: int, total: int) -> None:
        progress(Progress("fit", f"{name}, cross-validation", done, total, "steps"))

    predictions = []
    for (train, test), seed in problems:
        model = fit_baseline(name, train.x, train.y, seed=seed, report=report)
        parameters = {"parameters": model.parameters}
        predictions.append(PredictedClasses(model.predict(train.x), model.predict(test.x), parameters))
    return predictions


def predict_by_attention(problems: Sequence[Problem], progress: ProgressCallback) -> list[PredictedClasses]:
    """The predictions of attention. Columns share category vectors; problems of the same shape train together.

    Numbers are categories, as in the published run: a number in no training row is masked.
    """
    from attngeo.estimators.tabular.classifier import AttentionClassifier, fit_together

    models = [AttentionClassifier(vocabulary="shared", unseen="mask", random_state=seed) for _, seed in problems]
    training = [(pd.DataFrame(table.train.x).astype("category"), table.train.y) for table, _ in problems]
    fit_together(models, training, progress)
    predictions = []
    for model, ((train, test), _) in zip(models, problems, strict=True):
        epochs = {"epochs": model.n_iter_}
        predictions.append(PredictedClasses(model.predict(train.x), model.predict(test.x), epochs))
    return predictions


METHODS: dict[str, Method] = {
    **{name: Method(partial(predict_by_baseline, name), "scikit-learn") for name in METHOD_LABELS if name != OURS},
    OURS: Method(predict_by_attention, "torch", together=True),
}


@dataclass(frozen=True)
class MethodRun:
    """A method on data sets of one shape.

    Attributes:
        setting: setting of the data sets, for people.
        method: name of the method.
        seeds: seed of each data set.
        make_table: seed → data set.
        labels: columns that name the data sets.
        about: the experiment, and how data sets are made; kept beside the scores.
    """

    setting: str
    method: str
    seeds: tuple[int, ...]
    make_table: Callable[[int], ShiftedTable]
    labels: Mapping[str, Any]
    about: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The run, for people."""
        which = f"seed {self.seeds[0]}" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds"
        return f"{self.setting} {self.method}, {which}"

    def perform(self, session: Session) -> RunRows:
        """One row per seed, in order, with kept or newly computed scores.

        Columns: the run's labels, method, seed; accuracy and mse (mean squared error of class numbers) of test rows;
        train_accuracy and train_mse.

        A kept score is reused only for the same content of the data set, seed, method, code of the method and versions
        of its packages.
        """
        problems = [Problem(self.make_table(seed), seed) for seed in self.seeds]
        records = [self._locate_record(problem) for problem in problems]

        def compute(missing: list[int]) -> list[Answer]:
            return self._measure([problems[number] for number in missing], session)

        answers = answer_cases(self.name, records, compute, session)
        rows = []
        for seed, (scores,) in zip(self.seeds, answers, strict=True):
            rows.append({**self.labels, "method": self.method, "seed": seed, **scores})
        return rows

    def _measure(self, problems: list[Problem], session: Session) -> list[Answer]:
        """The scores of the method on each problem, and what is kept beside them."""
        answers: list[Answer] = []
        predictions = METHODS[self.method].predict(problems, session.progress)
        for (table, seed), predicted in zip(problems, predictions, strict=True):
            scores = _score(table.test, predicted.test) | _score(table.train, predicted.train, "train_")
            answers.append(([scores], {**self.about, **predicted.about, "seed": seed}))
        return answers

    def _locate_record(self, problem: Problem) -> ResultRecord | None:
        """What is kept of a data set, under its cells and all else that the scores depend on."""
        digest = hashlib.sha256()
        for values in (*problem.table.train, *problem.table.test):
            digest.update(f"{values.shape}".encode() + np.ascontiguousarray(values, dtype="<i8").tobytes())
        version = describe_code(METHODS[self.method].package)
        depends_on = {"rows": digest.hexdigest(), "seed": problem.seed, "method": self.method, "version": version}
        return locate_record(KIND, depends_on, about={"version": version, "method": self.method}, form=FORM)


def _score(rows: Rows, predicted: np.ndarray, prefix: str = "") -> dict[str, float]:
    """The share of rows whose class is predicted, and the mean squared error of class numbers."""
    errors = predicted - rows.y
    return {f"{prefix}accuracy": float((errors == 0).mean()), f"{prefix}mse": float((errors**2).mean())}


def plan_simulation(options: SimulateOptions) -> list[MethodRun]:
    """The runs of Table 1: the first data set of every setting, then the second of every setting, and so on.

    A method that solves problems together has one run for all of a setting, in the place of its first one.
    """
    seeds = tuple(seeds_of_data_sets(options.datasets or 0))
    about = {"experiment": "simulation", "options": options.shape}
    runs = []
    for seed in seeds:
        for setting in options.shifts or ():
            make_table = partial(simulate, setting, **options.shape)
            for method in options.methods or ():
                if not METHODS[method].together:
                    group: tuple[int, ...] = (seed,)
                elif seed == seeds[0]:
                    group = seeds
                else:
                    continue
                runs.append(MethodRun(str(setting), method, group, make_table, setting._asdict(), about))
    return runs


def plan_auto_mpg(options: AutoMpgOptions, data: AutoMpg) -> list[MethodRun]:
    """The runs of Table 2: each method with each seed, on the same rows."""
    seeds = tuple(range(FIRST_SEED, FIRST_SEED + options.seeds))
    make_table = partial(_ignore_seed, data.table)
    runs = []
    for method in options.methods or ():
        groups = [seeds] if METHODS[method].together else [(seed,) for seed in seeds]
        runs += [
            MethodRun(AUTO_MPG, method, group, make_table, {"data": AUTO_MPG}, {"experiment": AUTO_MPG})
            for group in groups
        ]
    return runs


def _ignore_seed(table: ShiftedTable, _: int) -> ShiftedTable:
    """The same table for any seed."""
    return table


@cache
def published_scores(name: str) -> pd.DataFrame:
    """What the authors stored for each method: in Table 2, auto_mpg; or each setting and method: Table 1, simulation.

    Those of Table 1 are means over 20 data sets.
    """
    with files(__package__).joinpath(f"published_{name}.csv").open("rb") as file:
        scores = pd.read_csv(file).rename(columns=dict(zip(SCORES, PUBLISHED, strict=True)))
    return scores[[column for column in (*SETTING, "method", *PUBLISHED) if column in scores]]


def build_simulation_frame(options: SimulateOptions, outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """A row for each data set and method that has scores, in the order of Table 1; columns: `SIMULATION_COLUMNS`.

    outcomes: of `plan_simulation(options)`. The published scores are means over the paper's data sets of the setting;
    they are missing if the number of features, of classes or of rows is another one.
    """
    published = published_scores("simulation")
    frame = build_frame(outcomes, SIMULATION_COLUMNS, published if options.is_of_paper else published.iloc[:0])
    keys = [*SETTING, "method"]
    order = [(*setting, method) for setting, method in product(options.shifts or (), options.methods or ())]
    frame = pd.DataFrame(order, columns=keys).merge(frame, on=keys)
    frame.attrs = {"title": "Shift simulation", "settings": options.settings, "published": SOURCE}
    return frame


def build_auto_mpg_frame(data: AutoMpg, outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """One row per method and seed with scores; columns: `AUTO_MPG_COLUMNS`.

    outcomes: outcomes of `plan_auto_mpg(options, data)`. Published scores are from a single seed; they are missing if
    the data are not the paper's.
    """
    published = published_scores("auto_mpg")
    frame = build_frame(outcomes, AUTO_MPG_COLUMNS, published if data.is_of_paper else published.iloc[:0])
    frame.attrs = {"title": AUTO_MPG, "published": SOURCE}
    return frame
