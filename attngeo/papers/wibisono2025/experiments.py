"""The paper's experiments: which models are fitted, one run of them, and their table beside the paper's numbers.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), tables 1 and 2, sections 6.3 and 6.4; the outputs that the authors
stored have more digits, and the temperatures' numbers that the paper shows in figure 6 only.
"""

from __future__ import annotations

import csv
import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, lru_cache, partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from attngeo.choices import one_of, whole
from attngeo.errors import AttnGeoError, UsageError
from attngeo.estimators.efa.options import Architecture, EfaOptions
from attngeo.options import COMPARISON, COMPUTATION, INPUT, MODEL, OPTIMISATION, RESULTS, Options, device_option, option
from attngeo.papers.wibisono2025.datasets import EXPERIMENTS, load_dataset, load_item_names
from attngeo.papers.wibisono2025.files import Split
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.provenance import digest_statements, machine, software
from attngeo.scores.options import ResultOptions
from attngeo.studies.engine import RunOutcome, StudyOptions, require_all, run_study
from attngeo.studies.results import KeptResult, find_record

if TYPE_CHECKING:
    import pandas as pd

    from attngeo.estimators import ExponentialFamilyAttention

log = logging.getLogger(__name__)

Models = Literal["efa", "fm", "both"]
Directions = Literal["bi", "uni", "both"]
Outcome = RunOutcome[list[dict[str, Any]]]
SOURCE = "Wibisono and Wang 2025 (arXiv 2501.16790), section 6"
MOST_SEEDS = 1000
# Cities of the temperatures, whose experiment has earlier days, and neighbours.
CITIES, TEMPERATURE = 44, "temperature"
# Masked copies in a batch of the published runs; a batch here has as many sequences as have that many positions.
COPIES = 256
NEIGHBOURS = (1, 2, 3, 4, 5, 10, 15, 20, 25, 30, 35, 40)
LAYERS = (1, 2, 4)
# The folder of the result store.
KIND = "efa"
# What names of folders are not made of.
UNSAFE = re.compile(r"[^A-Za-z0-9=-]+")
LABELS = ("experiment", "model", "direction", "setting", "seed")
COLUMNS = (*LABELS, "metric", "value", "published")


def _parse_numbers(numbers: Any) -> tuple[int, ...]:
    """Whole numbers, or texts of them. Raises UsageError."""
    listed = numbers if isinstance(numbers, list | tuple) else (numbers,)
    try:
        counts = [int(number) if isinstance(number, str) else number for number in listed]
    except ValueError:
        raise UsageError(
            f"$neighbours is {' '.join(map(str, listed))!r:.60}, expected whole numbers", "neighbours"
        ) from None
    return tuple(whole("neighbours", count, 1, CITIES - 1) for count in counts)


class RunOptions(Options):
    """What of an experiment is run. Raises UsageError."""

    data: str | None = option(
        None, "File or folder of the data", panel=INPUT, metavar="PATH", shown_default="a download, once"
    )
    model: Models = option("both", "Exponential family attention, the factor model, or both", panel=COMPARISON)
    direction: Directions = option(
        "both", "What a position sees: all others, those before it, or both", panel=COMPARISON
    )
    baselines: bool = option(True, "Compute the baselines that need no training", panel=COMPARISON)
    published: bool = option(False, "As the paper's numbers were made, not as its text says", panel=COMPUTATION)
    layers: int | None = option(
        None, "Layers of attention", panel=MODEL, least=1, shown_default="2; for temperature 1, 2 and 4; for recovery 1"
    )
    lags: int | None = option(
        None, "Earlier days of temperatures in the context", panel=MODEL, least=0, most=2,
        shown_default="0; then 1 and 2 with the most layers",
    )  # fmt: skip
    neighbours: Sequence[int] | None = option(
        None, "Nearest cities that the factor model adds up; may be repeated", panel=MODEL, metavar="K",
        parse=_parse_numbers, repeated=True, shown_default="1 to 5, and 10 to 40 by fives",
    )  # fmt: skip
    epochs: int | None = option(
        None, "Passes over the training data", panel=OPTIMISATION, least=1, shown_default="as in the paper"
    )
    save: str | None = option(
        None, "Save each fitted model to a folder of this folder, for attngeo score and plot", panel=RESULTS,
        metavar="FOLDER",
    )  # fmt: skip
    seeds: int = option(1, "Number of seeds", panel=OPTIMISATION, metavar="N", least=1, most=MOST_SEEDS)
    device: str = device_option()

    @property
    def models(self) -> tuple[str, ...]:
        """The models that are run."""
        return ("efa", "fm") if self.model == "both" else (self.model,)

    @property
    def directions(self) -> tuple[str, ...]:
        """The directions that are run."""
        return ("bi", "uni") if self.direction == "both" else (self.direction,)


OF_ITEMS = Architecture(init="keras", head_size=16)


@dataclass(frozen=True, kw_only=True)
class ExperimentSettings:
    """One experiment. options: of both models. attention: further ones of attention.

    architecture: of both models, as the text says; published: what the code has in its place. families: setting →
    family, where there are several. directions: those that it has. trivial: names of `baselines.TRIVIAL`. copies:
    positions of a sequence, for the size of batches; 0 for all sequences in one. sizes: numbers of sequences that
    train, each of which is a setting.
    """

    options: Mapping[str, Any]
    attention: Mapping[str, Any]
    architecture: Architecture = OF_ITEMS
    published: Mapping[str, Any] = field(default_factory=dict)
    families: Mapping[str, str] = field(default_factory=lambda: {"": "gaussian:1"})
    directions: tuple[str, ...] = ("bi", "uni")
    trivial: tuple[str, ...] = ()
    copies: int = 0
    sizes: tuple[int, ...] = ()


SMALL = {"width": 32, "standardise": False, "learning_rate": 1e-4, "short": "keep", "order": True}
ITEMS = SMALL | {"part": "items"}
TWO_LAYERS = {"n_layers": 2, "n_heads": 2}
OF_RATINGS = OF_ITEMS.replace(both=False, embedding="truncated")
# The code divides products of queries and keys by √(head size); the sums of factor models of items by 1, and those of
# values by the number of positions that are seen.
CODE_OF_ITEMS, CODE_OF_VALUES = {"scale": "head", "pooling": "sum"}, {"scale": "head", "pooling": "seen"}
SETTINGS: Mapping[str, ExperimentSettings] = {
    "synthetic": ExperimentSettings(
        options=SMALL | {"max_epochs": 1000}, attention=TWO_LAYERS, architecture=OF_RATINGS, published=CODE_OF_VALUES,
        trivial=("mean-per-item", "bayes"), copies=5,
    ),
    "movielens-sequence": ExperimentSettings(
        options=ITEMS | {"max_epochs": 2000}, attention=TWO_LAYERS, published=CODE_OF_ITEMS,
        trivial=("unigram", "unigram-of-the-rest"), copies=15,
    ),
    "movielens-ratings": ExperimentSettings(
        options=SMALL | {"max_epochs": 1000}, attention=TWO_LAYERS, architecture=OF_RATINGS, published=CODE_OF_VALUES,
        families={"v1": "poisson-from-1", "v2": "poisson:1"}, trivial=("mean-per-item",), copies=14,
    ),
    "instacart": ExperimentSettings(
        options=ITEMS | {"max_epochs": 1000, "patience": 0}, attention=TWO_LAYERS, published=CODE_OF_ITEMS,
        trivial=("unigram", "unigram-of-the-rest"), copies=11,
    ),
    "temperature": ExperimentSettings(
        options=SMALL | {
            "coordinates": ("latitude", "longitude"), "item_vectors": False, "order": False, "max_epochs": 2000,
            "learning_rate": 1e-3, "patience": 200, "standardise": True,
        },
        attention={"n_heads": 2},
        architecture=OF_ITEMS.replace(norm=True, feed_forward=64, join=64, head=(128, 16)),
        published={"scale": "head"}, directions=("bi",), trivial=("ridge-per-city", "day-before"),
    ),
    # Not of the paper: is a known model found again?
    "recovery": ExperimentSettings(
        options={"part": "items", "width": 8, "learning_rate": 0.01, "max_epochs": 300, "patience": 15, "order": True},
        attention={"n_layers": 1, "n_heads": 2}, architecture=Architecture(scale="head"), directions=("uni",),
        trivial=("unigram", "bayes"), copies=8, sizes=(100, 400, 1600, 6400),
    ),
}  # fmt: skip


class ModelSetting(NamedTuple):
    """A model of an experiment. setting: what tells it from others of its direction. options: of EfaOptions."""

    model: str
    direction: str
    setting: str
    options: dict[str, Any]
    architecture: Architecture


def list_settings(name: str, options: RunOptions) -> list[ModelSetting]:
    """The models of an experiment that are asked for. Raises UsageError for an unknown experiment."""
    experiment = SETTINGS[one_of("experiment", name, SETTINGS)]
    for choice, model in {"lags": "efa", "neighbours": "fm", "layers": "efa"}.items():
        if getattr(options, choice) is None:
            continue
        if name != TEMPERATURE and choice != "layers":
            raise UsageError(f"${choice} has no effect on {name}, expected {TEMPERATURE}; leave it out", choice)
        if model not in options.models:
            raise UsageError(
                f"${choice} has no effect on {options.model}, expected {model} or both; leave it out", choice
            )
    return [
        setting
        for model in options.models
        for direction in options.directions
        if direction in experiment.directions
        for setting in _list_models(name, experiment, model, direction, options)
    ]


def _list_models(
    name: str, experiment: ExperimentSettings, model: str, direction: str, options: RunOptions
) -> Iterator[ModelSetting]:
    about: dict[str, Any] = dict(experiment.options)
    about |= {"model": model, "direction": direction, "device": options.device}
    about["batch_size"] = round(COPIES / experiment.copies) if experiment.copies else 1_000_000
    about |= experiment.attention if model == "efa" else {}
    architecture = experiment.architecture
    if options.published:
        # Items have a vector for the start, in one direction.
        start = about.get("part") == "items" and direction == "uni" and bool(experiment.published)
        architecture = architecture.replace(**experiment.published, start=start)
        if name == TEMPERATURE and model == "efa":  # it stopped early in no run
            about |= {"standardise": False, "patience": 0}
    if options.epochs is not None:
        about["max_epochs"] = options.epochs
    if name == TEMPERATURE:
        list_kind = _list_layers if model == "efa" else _list_neighbours
        for setting, own in list_kind(options):
            chosen = about | own | {"family": experiment.families[""]}
            yield ModelSetting(model, direction, setting, chosen, architecture)
        return
    if options.layers is not None and model == "efa":
        about["n_layers"] = options.layers
    for size in experiment.sizes:
        yield ModelSetting(model, direction, f"N={size}", about, architecture)
    for setting, family in experiment.families.items() if not experiment.sizes else ():
        of_values = {} if about.get("part") == "items" else {"family": family}
        yield ModelSetting(model, direction, setting, about | of_values, architecture)


def _list_layers(options: RunOptions) -> Iterator[tuple[str, dict[str, Any]]]:
    """Layers without earlier days, then the largest number of layers with one and with two.

    Runs with earlier days had 200 epochs of batches of 128 masked copies: those of three days.
    """
    layers = LAYERS if options.layers is None else (options.layers,)
    pairs = [(count, 0) for count in layers] + [(layers[-1], 1), (layers[-1], 2)]
    if options.lags is not None:
        pairs = [(count, options.lags) for count in layers]
    for count, days in pairs:
        setting = _count(count, "layer") + (f", {_count(days, 'day')}" if days else "")
        about: dict[str, Any] = {"n_layers": count}
        if days:
            about |= {"lags": ("lag_1", "lag_2")[:days], "max_epochs": options.epochs or 200, "batch_size": 3}
        yield setting, about


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number > 1 else ''}"


def _list_neighbours(options: RunOptions) -> Iterator[tuple[str, dict[str, Any]]]:
    for count in options.neighbours or NEIGHBOURS:
        yield f"k={count}", {"neighbours": count}


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
    architecture: Architecture | None
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
                "options": _list_options(run.options, run.architecture), "seconds": round(seconds, 3), "made": made,
            }  # fmt: skip
            record.keep(rows, {**software(), **machine(), **about})
    labels = {name: getattr(run, name) for name in LABELS}
    return [{**labels, **row} for row in rows]


def _has_model(folder: Path, run: EfaRun) -> bool:
    """Whether a folder has a complete model with the options of a run."""
    from attngeo.estimators import ExponentialFamilyAttention

    if not folder.exists() or run.options is None:
        return False
    try:
        saved = ExponentialFamilyAttention.load(folder)
    except AttnGeoError:
        return False
    is_same = saved.architecture_.replace(longest=None) == run.architecture
    return is_same and saved.options_.replace(device="cpu") == run.options.replace(device="cpu")


def is_outdated(about: Mapping[str, Any]) -> bool:
    """Whether numbers that are kept are no answer any more: they are of other code, or of another version of torch."""
    return about.get("version") not in (_version_of(trivial=True), _version_of(trivial=False))


def list_usual_options(about: Mapping[str, Any]) -> dict[str, Any]:
    """The options with which `attngeo efa run` fits this model of the experiment; empty for one that it leaves out."""
    run = about.get("run")
    if not isinstance(run, dict) or run.get("experiment") not in SETTINGS:
        return {}
    for setting in list_settings(run["experiment"], RunOptions()):
        if [setting.model, setting.direction, setting.setting] == [run.get(name) for name in ModelSetting._fields[:3]]:
            usual = _list_options(EfaOptions(**setting.options), setting.architecture)
            return {name: value for name, value in usual.items() if name != "random_state"}
    return {}


def _list_options(options: EfaOptions | None, architecture: Architecture | None) -> dict[str, Any]:
    """Options as JSON has them, without the device, on which no number depends; a baseline has none."""
    if options is None or architecture is None:
        return {}
    plain = json.loads(json.dumps(dict(options) | dict(architecture)))
    return {name: value for name, value in plain.items() if name != "device"}


def _compute(run: EfaRun, split: Split, record: KeptResult | None, progress: ProgressCallback) -> dict[str, float]:
    """The metrics of test rows."""
    from attngeo.estimators import ExponentialFamilyAttention
    from attngeo.papers.wibisono2025.baselines import TRIVIAL, measure_ratings

    if run.options is None or run.architecture is None:
        return TRIVIAL[run.model](split, run.direction, run.setting)
    if SETTINGS[run.experiment].sizes:
        count = int(run.setting.removeprefix("N="))
        kept = split.train["sequence"].isin(split.train["sequence"].unique()[:count])
        split = split._replace(train=split.train[kept])
    # Before the training, which a broken file of names would lose.
    names = {} if run.folder is None else load_item_names(EXPERIMENTS[run.experiment].dataset, run.data)
    longest = max(int(part.groupby("sequence").size().max()) for part in split)
    model = ExponentialFamilyAttention(
        **dict(run.options) | {"architecture": run.architecture.replace(longest=longest)}
    )
    folder = None if record is None else record.folder
    model.fit(split.train, validation=split.validation, folder=folder, progress=progress)
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
    digest = hashlib.sha256()
    for frame in split:
        digest.update(frame.to_csv(index=False).encode())
    of_code = _version_of(trivial=run.options is None)
    depends_on = {
        "rows": digest.hexdigest(), "model": run.model, "direction": run.direction, "setting": run.setting,
        "options": _list_options(run.options, run.architecture), "version": of_code,
    }  # fmt: skip
    return find_record(KIND, depends_on, about={"version": of_code})


def _version_of(*, trivial: bool) -> dict[str, str]:
    """The code of the models or of the baselines, and the version of the package that computes."""
    from importlib.metadata import version

    module = f"{__package__}.baselines" if trivial else __name__
    package = "scikit-learn" if trivial else "torch"
    return {"code": digest_statements(module), package: version(package)}


def plan_runs(experiment: str, options: RunOptions) -> list[EfaRun]:
    """The runs of an experiment: baselines, then all models with the first seed, with the second, and so on.

    Raises UsageError for an unknown experiment, or if nothing is left to run.
    """
    settings = list_settings(experiment, options)
    if not settings:
        directions = " and ".join(SETTINGS[experiment].directions)
        raise UsageError(f"$direction is {options.direction!r}, expected {directions} for {experiment}", "direction")
    runs = [
        EfaRun(experiment, setting.model, setting.direction, setting.setting, seed,
               EfaOptions(**setting.options, random_state=seed), setting.architecture, options.data, options.published,
               options.save)
        for seed in range(options.seeds)
        for setting in settings
    ]  # fmt: skip
    return [*_plan_baselines(experiment, options, settings), *runs]


def _plan_baselines(experiment: str, options: RunOptions, models: Sequence[ModelSetting]) -> list[EfaRun]:
    """Each baseline once for each direction, and for each setting whose numbers are other ones."""
    if not options.baselines:
        return []
    about = SETTINGS[experiment]
    settings = list(about.families)
    if experiment == TEMPERATURE:
        days = {setting.setting.partition(", ")[2] for setting in models if setting.model == "efa"}
        settings = sorted(days | {""})
    return [
        EfaRun(experiment, name, direction, setting, 0, None, None, options.data, options.published)
        for name in about.trivial
        for direction in options.directions
        if direction in about.directions
        for setting in (settings if name != "day-before" else [""])
    ]


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


def compare_models(
    experiment: str,
    options: RunOptions = RunOptions(),
    *,
    study: StudyOptions = StudyOptions(),
    progress: ProgressCallback = ignore_progress,
) -> pd.DataFrame:
    """`build_frame` of all runs of an experiment. Raises as `plan_runs` and `load_dataset`, and the error of the first
    run that fails, at the end.
    """
    runs = plan_runs(experiment, options)
    load_dataset(EXPERIMENTS[experiment].dataset, options.data, progress)  # one error, not one of each run
    outcomes = require_all(run_planned(runs, study=study, progress=progress))
    return build_frame(outcomes, options)


class ResultName(NamedTuple):
    """What a number of the paper is of."""

    experiment: str
    model: str
    direction: str
    setting: str
    metric: str


@cache
def published_results() -> Mapping[ResultName, float]:
    """The published numbers."""
    rows = csv.reader((files(__package__) / "published_results.csv").read_text("utf-8").splitlines()[1:])
    return {ResultName(*row[:-1]): float(row[-1]) for row in rows}


def build_frame(outcomes: Sequence[Outcome], options: RunOptions) -> pd.DataFrame:
    """The rows of all runs, in the order of their plan; columns: `COLUMNS`.

    The last one is the paper's number, unless the options are not those of the paper.
    """
    import pandas as pd

    known = published_results()
    ordered = sorted(outcomes, key=lambda outcome: outcome.number)
    rows = [row for outcome in ordered for row in outcome.result or ()]
    for row in rows:
        name = ResultName(*(row[name] for name in (*COLUMNS[:4], "metric")))
        row["published"] = known.get(name) if _is_of_paper(name, options) else None
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).astype({"value": "float64", "published": "float64"})
    frame.attrs = {"title": "Exponential family attention", "published": SOURCE, "as_published": options.published}
    return frame


def _is_of_paper(name: ResultName, options: RunOptions) -> bool:
    """Whether a model is the paper's. The number of layers is part of the setting for temperatures only."""
    layers = SETTINGS[name.experiment].attention.get("n_layers")
    has_layers = options.layers in (None, layers) or name.model != "efa" or name.experiment == TEMPERATURE
    return options.epochs is None and has_layers
