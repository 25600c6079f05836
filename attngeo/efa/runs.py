"""One run of an experiment: a model is fitted and measured, and its numbers are kept so that none is computed twice."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngeo.efa.datasets import EXPERIMENTS, Split, load_dataset, load_item_names
from attngeo.efa.experiment_options import RunOptions
from attngeo.efa.options import EfaOptions
from attngeo.efa.settings import SETTINGS, ModelSetting, list_settings
from attngeo.errors import AttnGeoError
from attngeo.progress import Progress, ProgressCallback
from attngeo.provenance import digest_statements, machine, software
from attngeo.studies.results import KeptResult, ResultStore

if TYPE_CHECKING:
    from attngeo.efa.estimator import ExponentialFamilyAttention

log = logging.getLogger(__name__)

# The folder of the result store, and the columns of what is kept.
KIND = "efa"
TYPES: dict[str, type] = {"metric": str, "value": float}
# What names of folders are not made of.
UNSAFE = re.compile(r"[^A-Za-z0-9=-]+")
LABELS = ("experiment", "model", "direction", "setting", "seed")


@dataclass(frozen=True)
class EfaRun:
    """One model of an experiment with a seed, or a trivial baseline, whose options are None.

    data: path of the data, or None for a download. published: as the paper's numbers were made. models: the folder
    that fitted models are saved to.
    """

    experiment: str
    model: str
    direction: str
    setting: str
    seed: int
    options: EfaOptions | None
    data: str | None
    published: bool
    models: str | None = None

    @property
    def name(self) -> str:
        """The run, for people."""
        parts = (self.experiment, self.model, self.direction, self.setting, f"seed {self.seed}")
        return " ".join(part for part in parts if part)

    @property
    def folder(self) -> Path | None:
        """Where the fitted model is to be saved, if anywhere."""
        if self.models is None or self.options is None:
            return None
        return Path(self.models).expanduser() / UNSAFE.sub("-", self.name)


@lru_cache(maxsize=2)
def load_split(experiment: str, data: str | None, published: bool) -> Split:
    """The rows of an experiment; a process that makes several runs reads them once."""
    about = EXPERIMENTS[experiment]
    return about.split(load_dataset(about.dataset, data), published=published)


def perform(run: EfaRun, progress: ProgressCallback, *, fresh: bool = False) -> list[dict[str, Any]]:
    """A row for each metric of a run, kept from before or else computed; columns: `COLUMNS` without the last.

    They are kept under the rows of the data, the options, the code of the models and the version of torch. A training
    that is interrupted resumes. fresh: compute them again; so is a run whose model is to be saved and is missing.
    """
    split = load_split(run.experiment, run.data, run.published)
    record = _find_record(run, split)
    is_saved = run.folder is None or _has_model(run.folder, run)
    kept = None if record is None or fresh or not is_saved else record.load()
    if kept is not None:
        progress(Progress("kept", f"{run.name}: from the result store"))
        rows = kept.rows
    else:
        started = time.perf_counter()
        rows = [{"metric": name, "value": value} for name, value in _compute(run, split, record, progress).items()]
        seconds = time.perf_counter() - started
        log.info("%s: %.1f s", run.name, seconds)
        if record is not None:
            made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
            about = {
                "model": run.name, "run": {name: getattr(run, name) for name in LABELS},
                "options": _list_options(run.options), "seconds": round(seconds, 3), "made": made,
            }  # fmt: skip
            record.keep(rows, {**software(), **machine(), **about})
    labels = {name: getattr(run, name) for name in LABELS}
    return [{**labels, **row} for row in rows]


def _has_model(folder: Path, run: EfaRun) -> bool:
    """Whether a folder has a whole model with the options of a run."""
    from attngeo.efa.saving import load_model

    if not folder.exists():
        return False
    try:
        found, wanted = load_model(folder).options, run.options
    except AttnGeoError:
        return False
    return wanted is not None and found.replace(device="cpu", longest=None) == wanted.replace(
        device="cpu", longest=None
    )


def is_outdated(about: Mapping[str, Any]) -> bool:
    """Whether numbers that are kept are no answer any more: they are of other code, or of another version of torch."""
    return about.get("version") not in (_version_of(trivial=True), _version_of(trivial=False))


def list_usual_options(about: Mapping[str, Any]) -> dict[str, Any]:
    """The options with which `attngeo efa run` fits this model of the experiment; empty for one that it leaves out."""
    run = about.get("run")
    if not isinstance(run, dict) or run.get("experiment") not in SETTINGS:
        return {}
    for each in list_settings(run["experiment"], RunOptions()):
        if [each.model, each.direction, each.setting] == [run.get(name) for name in ModelSetting._fields[:3]]:
            usual = _list_options(EfaOptions(**each.options))
            return {name: value for name, value in usual.items() if name != "seed"}
    return {}


def _list_options(options: EfaOptions | None) -> dict[str, Any]:
    """Options as JSON has them, without the device, on which no number depends; a baseline has none."""
    found = {} if options is None else json.loads(json.dumps(dict(options)))
    return {name: value for name, value in found.items() if name != "device"}


def _compute(run: EfaRun, split: Split, record: KeptResult | None, progress: ProgressCallback) -> dict[str, float]:
    """The metrics of test rows."""
    from attngeo.efa.estimator import ExponentialFamilyAttention
    from attngeo.efa.trivial import TRIVIAL, measure_ratings

    if run.options is None:
        return TRIVIAL[run.model](split, run.direction, run.setting)
    if SETTINGS[run.experiment].sizes:
        count = int(run.setting.removeprefix("N="))
        kept = split.train["sequence"].isin(split.train["sequence"].unique()[:count])
        split = split._replace(train=split.train[kept])
    # Before the training, which a broken file of names would lose.
    names = {} if run.folder is None else load_item_names(EXPERIMENTS[run.experiment].dataset, run.data)
    longest = max(int(part.groupby("sequence").size().max()) for part in split)
    model = ExponentialFamilyAttention(options=run.options.replace(longest=longest))
    model.fit(split.train, split.validation, folder=None if record is None else record.folder, progress=progress)
    if run.folder is not None:
        model.with_item_names(names).save(run.folder)
    if model.part_ == "items":
        return {"cross_entropy": -model.score(split.test)} | _count_epochs(model)
    value, mean = split.test["value"], model.predict(split.test)["mean"]
    poisson = run.setting if run.setting in ("v1", "v2") else ""
    return measure_ratings(value, mean, poisson) | _count_epochs(model)


def _count_epochs(model: ExponentialFamilyAttention) -> dict[str, float]:
    return {"epochs": float(len(model.history_.train))}


def _find_record(run: EfaRun, split: Split) -> KeptResult | None:
    """What is kept of a run, under all that its numbers depend on."""
    store = ResultStore.open(KIND, TYPES)
    if store is None:
        return None
    digest = hashlib.sha256()
    for frame in split:
        digest.update(frame.to_csv(index=False).encode())
    of_code = _version_of(trivial=run.options is None)
    depends_on = {
        "rows": digest.hexdigest(), "model": run.model, "direction": run.direction, "setting": run.setting,
        "options": _list_options(run.options), "version": of_code,
    }  # fmt: skip
    return store.record(depends_on, about={"version": of_code})


def _version_of(*, trivial: bool) -> dict[str, str]:
    """The code of the models or of the baselines, and the version of the package that computes."""
    module, package = ("attngeo.efa.trivial", "scikit-learn") if trivial else (__name__, "torch")
    return {"code": digest_statements(module), package: version(package)}
