"""The paper's experiments: their runs, and their tables beside the paper's numbers.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), tables 1 and 2, sections 6.3 and 6.4; the outputs that the authors
stored have more digits, and the temperatures' numbers that the paper shows in figure 6 only.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from attngeo.choices import Settings
from attngeo.errors import AttnGeoError
from attngeo.estimators.efa.options import Architecture, EfaOptions
from attngeo.papers import runs
from attngeo.papers.runs import Outcome, Rows, answer_cases
from attngeo.papers.wibisono2025.baselines import TRIVIAL, measure_ratings
from attngeo.papers.wibisono2025.datasets import EXPERIMENTS, load_dataset, load_item_names
from attngeo.papers.wibisono2025.options import (
    EXPERIMENT_COLUMNS,
    LABELS,
    PAPER_LAYERS,
    SETTINGS,
    TEMPERATURE,
    ModelSetting,
    RunOptions,
    list_settings,
)
from attngeo.papers.wibisono2025.splits import Split
from attngeo.provenance import describe_code
from attngeo.session import Session
from attngeo.studies.results import ResultForm, ResultRecord, locate_record

if TYPE_CHECKING:
    from attngeo.estimators import ExponentialFamilyAttention

SOURCE = "Wibisono and Wang 2025 (arXiv 2501.16790), section 6"
# The folder of kept results.
KIND = "efa"
# The form of the rows that are kept.
FORM = ResultForm(texts=["metric"], columns=["metric", "value"])
# The options of a run that its numbers depend on, and its name does not have.
CHOICES = ("settings", "n_layers", "lags", "n_neighbors", "epochs")
# What names of folders are not made of.
UNSAFE = re.compile(r"[^A-Za-z0-9=-]+")


@dataclass(frozen=True)
class EfaRun:
    """One model of an experiment with a seed, or a trivial baseline.

    Attributes:
        experiment: name of the experiment.
        model: name of the model, or of the baseline.
        direction: "bi" or "uni".
        setting: setting that tells it from other models of its direction.
        seed: seed of the training.
        choices: options of the command.
        options: options of the estimator; None for a baseline.
        architecture: architecture of the networks; None for a baseline.
    """

    experiment: str
    model: str
    direction: str
    setting: str
    seed: int
    choices: RunOptions
    options: EfaOptions | None = None
    architecture: Architecture | None = None

    @property
    def name(self) -> str:
        """The run, for people."""
        words = (self.experiment, self.model, self.direction, self.setting, f"seed {self.seed}")
        return " ".join(word for word in words if word)

    @property
    def folder(self) -> Path | None:
        """Where the fitted model is to be saved, if anywhere."""
        if self.choices.save is None or self.options is None:
            return None
        return Path(self.choices.save).expanduser() / UNSAFE.sub("-", self.name)

    def perform(self, session: Session) -> Rows:
        """One row per metric, kept or newly computed; columns: `EXPERIMENT_COLUMNS` without the last.

        Kept rows are reused only for the same data, options, code and version of torch. An interrupted training
        resumes. If a model to save is missing, its run is computed again.
        """
        split = load_split(self.experiment, self.choices.data, self.choices.settings)
        record = self._locate_record(split)

        def compute(_: list[int]) -> list[runs.Answer]:
            state = None if record is None else record.folder
            metrics = self._compute(split, state, session)
            rows: Rows = [{"metric": name, "value": value} for name, value in metrics.items()]
            choices = {name: value for name, value in self.choices if name in CHOICES}
            return [(rows, {"options": choices})]

        (rows,) = answer_cases(self.name, [record], compute, session, fresh=self._is_unsaved())
        labels = {name: getattr(self, name) for name in LABELS}
        return [labels | row for row in rows]

    def _is_unsaved(self) -> bool:
        """Whether the model is to be saved to a folder that has no complete model with these options."""
        if self.folder is None or self.options is None:
            return False
        from attngeo.estimators import ExponentialFamilyAttention

        try:
            saved = ExponentialFamilyAttention.load(self.folder)
        except AttnGeoError:
            return True
        is_same = saved.architecture_.replace(longest=None) == self.architecture
        return not is_same or saved.options_.replace(device="cpu") != self.options.replace(device="cpu")

    def _compute(self, split: Split, state: Path | None, session: Session) -> dict[str, float]:
        """The metrics of test rows. state: the folder from which an interrupted training resumes."""
        if self.options is None or self.architecture is None:
            return TRIVIAL[self.model](split, self.direction, self.setting)
        from attngeo.estimators import ExponentialFamilyAttention

        # Before the training, which a broken file of names would lose.
        names = load_item_names(EXPERIMENTS[self.experiment].dataset, self.choices.data) if self.folder else {}
        longest = max(int(rows.groupby("sequence").size().max()) for rows in split)
        architecture = self.architecture.replace(longest=longest)
        model = ExponentialFamilyAttention(**{**dict(self.options), "architecture": architecture})
        model.fit(split.train, validation=split.validation, folder=state, progress=session.progress)
        if self.folder is not None:
            named = copy(model)
            named.items_ = rename_items(model.items_, names)
            named.save(self.folder)
        return _measure(model, split.test, self.setting) | {"epochs": float(len(model.history_.train))}

    def _locate_record(self, split: Split) -> ResultRecord | None:
        """What is kept of the run, under all that its numbers depend on."""
        digest = hashlib.sha256()
        for frame in split:
            digest.update(frame.to_csv(index=False).encode())
        options = None
        if self.options is not None and self.architecture is not None:
            options = [self.options.replace(device="cpu").model_dump_json(), self.architecture.model_dump_json()]
        version = describe_code("scikit-learn" if options is None else "torch")
        depends_on = {
            "rows": digest.hexdigest(),
            "model": self.model,
            "direction": self.direction,
            "setting": self.setting,
            "options": options,
            "version": version,
        }
        return locate_record(KIND, depends_on, about={"version": version}, form=FORM)


def rename_items(items: Sequence[Any], names: Mapping[Any, str]) -> list[Any]:
    """Rename items; an item without a name, or whose name another item already has, keeps its own."""
    pairs = [(item, names.get(item, item)) for item in items]
    # Items are also found by their texts, so no name may be the text of another item.
    texts: Counter[str] = Counter()
    for item, name in pairs:
        texts.update({str(item), str(name)})
    return [item if texts[str(name)] > 1 else name for item, name in pairs]


def _measure(model: ExponentialFamilyAttention, test: pd.DataFrame, setting: str) -> dict[str, float]:
    """The metrics of a fitted model on test rows."""
    if model.part_ == "items":
        return {"cross_entropy": -model.score(test)}
    return measure_ratings(
        test["value"], model.predict(test)["predicted_mean"], setting if setting in ("v1", "v2") else ""
    )


@lru_cache(maxsize=2)
def load_split(experiment: str, data: str | None, settings: Settings) -> Split:
    """The rows of an experiment; a process that makes several runs reads them once."""
    division = EXPERIMENTS[experiment]
    return division.split(load_dataset(division.dataset, data), published=settings == "code")


def plan_runs(experiment: str, options: RunOptions) -> list[EfaRun]:
    """The runs of an experiment: baselines, then all models with the first seed, with the second, and so on.

    Raises UsageError for an unknown experiment, or if nothing is left to run.
    """
    models = list_settings(experiment, options)
    planned = list(_plan_baselines(experiment, options, models)) if options.baselines else []
    for seed in range(options.seeds):
        for model, direction, setting, efa_options, architecture in models:
            seeded = efa_options.replace(random_state=seed)
            planned.append(EfaRun(experiment, model, direction, setting, seed, options, seeded, architecture))
    return planned


def _plan_baselines(experiment: str, options: RunOptions, models: Sequence[ModelSetting]) -> Iterator[EfaRun]:
    """Each baseline once for each direction of the models, and for each setting whose numbers are other ones."""
    directions = list(dict.fromkeys(model.direction for model in models))
    settings = list(SETTINGS[experiment].settings)
    if experiment == TEMPERATURE:  # the earlier days of attention's settings, or none
        settings = sorted({model.setting.partition(", ")[2] for model in models if model.model == "efa"} | {""})
    for name in SETTINGS[experiment].trivial:
        for direction in directions:
            for setting in [""] if name == "day-before" else settings:
                yield EfaRun(experiment, name, direction, setting, 0, options)


@cache
def published_results() -> pd.DataFrame:
    """The paper's numbers: experiment, model, direction, setting, metric, published."""
    with files(__package__).joinpath("published_results.csv").open("rb") as file:
        return pd.read_csv(file, keep_default_na=False).rename(columns={"value": "published"})


def build_frame(outcomes: Sequence[Outcome], options: RunOptions) -> pd.DataFrame:
    """The rows of all runs, in the order of their plan; columns: `EXPERIMENT_COLUMNS`.

    The last column is the paper's number, unless the options differ from the paper's.
    """
    frame = runs.build_frame(outcomes, EXPERIMENT_COLUMNS, published_results())
    if options.epochs is not None:
        frame["published"] = np.nan
    if options.n_layers not in (None, PAPER_LAYERS):  # of temperatures, the setting names them
        is_another = (frame["model"] == "efa") & (frame["experiment"] != TEMPERATURE)
        frame["published"] = frame["published"].mask(is_another)
    frame.attrs = {"title": "Exponential family attention", "published": SOURCE, "settings": options.settings}
    return frame
