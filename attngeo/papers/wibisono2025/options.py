"""The experiments of the paper as data: which models are fitted to which data, and the options of what runs them.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), tables 1 and 2, sections 6.3 and 6.4, and its code. Imports nothing
heavy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from attngeo.choices import Settings, one_of, whole
from attngeo.errors import PROJECT_FILES, DataUnavailableError, UsageError
from attngeo.estimators.efa.options import Architecture, EfaOptions
from attngeo.options import COMPARISON, COMPUTATION, INPUT, MODEL, OPTIMISATION, RESULTS, Options, device_option, option
from attngeo.questions.conditions import Checkable

Models = Literal["efa", "fm", "both"]
Directions = Literal["bi", "uni", "both"]
MOST_SEEDS = 1000
# The experiment that has earlier days, and neighbours: its name, and its cities.
TEMPERATURE = "temperature"
CITIES = 44
# Masked copies in a batch of the published runs; a batch here has as many sequences as have that many positions.
COPIES = 256
NEIGHBORS = (1, 2, 3, 4, 5, 10, 15, 20, 25, 30, 35, 40)
LAYERS = (1, 2, 4)
# The columns of the table of results; the first ones tell runs apart.
LABELS = ("experiment", "model", "direction", "setting", "seed")
# The columns of numbers, which conditions may name.
EXPERIMENT_NUMBERS = ("value", "published")
EXPERIMENT_COLUMNS = (*LABELS, "metric", *EXPERIMENT_NUMBERS)
# What conditions may say of the table.
CHECKS = Checkable(EXPERIMENT_NUMBERS, about=("model", "experiment", "direction", "setting", "metric"), units=("rows",))
README = f"{PROJECT_FILES}/attngeo/papers/wibisono2025/README.md"


def require_data(path: str | Path) -> None:
    """Raise DataUnavailableError if the file or folder of a data set is missing."""
    if not Path(path).expanduser().exists():
        raise DataUnavailableError(f"no such file or folder; {README} describes the files", subject=path)


def _parse_numbers(numbers: Any) -> tuple[int, ...]:
    """Whole numbers, or texts of them. Raises UsageError."""
    counts = []
    for number in numbers if isinstance(numbers, list | tuple) else (numbers,):
        count = int(number) if isinstance(number, str) and number.isdecimal() else number
        counts.append(whole("n_neighbors", count, 1, CITIES - 1))
    return tuple(counts)


class RunOptions(Options):
    """Options of the runs of an experiment. Raises UsageError."""

    data: str | None = option(
        None, "File or folder with the data", panel=INPUT, metavar="PATH", shown_default="downloaded once"
    )
    model: Models = option("both", "Exponential family attention, the factor model, or both", panel=COMPARISON)
    direction: Directions = option(
        "both", "What each position sees: all others, only those before it, or both in turn", panel=COMPARISON
    )
    baselines: bool = option(True, "Compute the baselines, which use no neural network", panel=COMPARISON)
    settings: Settings = option(
        "text",
        "Models and data: text follows the paper's text; code follows the code that produced its numbers",
        panel=COMPUTATION,
    )
    n_layers: int | None = option(
        None,
        "Number of attention layers",
        panel=MODEL,
        flags=("--layers",),
        least=1,
        shown_default="2; for the temperature data, 1, 2 and 4",
    )
    lags: int | None = option(
        None,
        "Number of preceding days whose temperatures are in the context",
        panel=MODEL,
        least=0,
        most=2,
        shown_default="0; also 1 and 2, with the largest number of layers",
    )
    n_neighbors: Sequence[int] | None = option(
        None,
        "Number of nearest cities that the factor model sums over",
        panel=MODEL,
        metavar="K",
        parse=_parse_numbers,
        repeated=True,
        shown_default="1 to 5, and 10 to 40 in steps of 5",
    )
    epochs: int | None = option(
        None, "Passes over the training data", panel=OPTIMISATION, least=1, shown_default="as in the paper"
    )
    save: str | None = option(
        None,
        "Save each fitted model to a subfolder of FOLDER, for attngeo score and plot",
        panel=RESULTS,
        metavar="FOLDER",
    )
    seeds: int = option(1, "Number of seeds", panel=OPTIMISATION, metavar="N", least=1, most=MOST_SEEDS)
    device: str = device_option()

    @property
    def models(self) -> tuple[str, ...]:
        """The models to run."""
        return ("efa", "fm") if self.model == "both" else (self.model,)

    @property
    def directions(self) -> tuple[str, ...]:
        """The directions to run."""
        return ("bi", "uni") if self.direction == "both" else (self.direction,)


@dataclass(frozen=True, kw_only=True)
class ExperimentSettings:
    """One experiment.

    Attributes:
        options: options of `EfaOptions`, for all of its models.
        architecture: architecture of its models, as the text says.
        published: fields of the architecture where the published code differs from the text.
        settings: setting → its further options, if there are several settings.
        directions: its directions.
        trivial: names of `baselines.TRIVIAL`.
    """

    options: Mapping[str, Any]
    architecture: Architecture
    published: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"": {}})
    directions: tuple[str, ...] = ("bi", "uni")
    trivial: tuple[str, ...]


# Layers of attention in all experiments but that of temperatures.
PAPER_LAYERS = 2
SMALL = {
    "width": 32, "standardize": False, "learning_rate": 1e-4, "averaging": 0.0, "short": "keep", "order": True,
}  # fmt: skip
ITEMS = SMALL | {"part": "items", "repeats": True}
OF_ITEMS = Architecture(init="keras", head_size=16)
OF_RATINGS = OF_ITEMS.replace(two_item_vectors=False, value_embedding="lookup")
OF_PLACES = OF_ITEMS.replace(norm=True, feed_forward=64, join=64, output_units=(128, 16))
# The code divides products of queries and keys by √(head size); the sums of factor models of items by 1, and those of
# values by the number of positions that are seen.
CODE_OF_ITEMS = {"scale": "head", "pooling": "sum"}
CODE_OF_VALUES = {"scale": "head", "pooling": "seen"}
SETTINGS: Mapping[str, ExperimentSettings] = {
    "synthetic": ExperimentSettings(
        options=SMALL | {"family": "gaussian:1", "max_epochs": 1000, "batch_size": COPIES // 5},
        architecture=OF_RATINGS, published=CODE_OF_VALUES, trivial=("mean-per-item", "bayes"),
    ),
    "movielens-sequence": ExperimentSettings(
        options=ITEMS | {"max_epochs": 2000, "batch_size": COPIES // 15}, architecture=OF_ITEMS,
        published=CODE_OF_ITEMS, trivial=("unigram", "unigram-without-repeats", "softmax-regression"),
    ),
    "movielens-ratings": ExperimentSettings(
        options=SMALL | {"max_epochs": 1000, "batch_size": COPIES // 14}, architecture=OF_RATINGS,
        published=CODE_OF_VALUES, trivial=("mean-per-item",),
        settings={"v1": {"family": "poisson-from-1"}, "v2": {"family": "poisson:1"}},
    ),
    "instacart": ExperimentSettings(
        options=ITEMS | {"max_epochs": 1000, "patience": 0, "batch_size": COPIES // 11}, architecture=OF_ITEMS,
        published=CODE_OF_ITEMS, trivial=("unigram", "unigram-without-repeats", "softmax-regression"),
    ),
    TEMPERATURE: ExperimentSettings(
        options=SMALL | {
            "family": "gaussian:1", "coordinates": ("latitude", "longitude"), "item_vectors": False, "order": False,
            "max_epochs": 2000, "learning_rate": 1e-3, "patience": 200, "standardize": True, "batch_size": 1_000_000,
        },
        architecture=OF_PLACES, published={"scale": "head"}, directions=("bi",),
        trivial=("ridge-per-city", "day-before"),
    ),
}  # fmt: skip


class ModelSetting(NamedTuple):
    """A model of an experiment.

    Attributes:
        model: name of the model.
        direction: "bi" or "uni".
        setting: setting that tells it from others of its direction.
        options: options of the estimator.
        architecture: architecture of the networks.
    """

    model: str
    direction: str
    setting: str
    options: EfaOptions
    architecture: Architecture


def list_settings(name: str, options: RunOptions) -> list[ModelSetting]:
    """The models of an experiment that the options select.

    Raises UsageError if they select none, or for an option without effect on the experiment or its models.
    """
    experiment = SETTINGS[one_of("experiment", name, SETTINGS)]
    for choice, model in {"lags": "efa", "n_neighbors": "fm", "n_layers": "efa"}.items():
        if getattr(options, choice) is None:
            continue
        if name != TEMPERATURE and choice != "n_layers":
            raise UsageError(f"${choice} has no effect on {name}, expected {TEMPERATURE}; leave it out", choice)
        if model not in options.models:
            raise UsageError(
                f"${choice} has no effect on {options.model}, expected {model} or both; leave it out", choice
            )
    settings: list[ModelSetting] = []
    for model in options.models:
        for direction in options.directions:
            if direction in experiment.directions:
                settings += _list_models(name, experiment, model, direction, options)
    if not settings:
        known = " and ".join(experiment.directions)
        raise UsageError(f"$direction is {options.direction!r}, expected {known} for {name}", "direction")
    return settings


def _list_models(
    name: str, experiment: ExperimentSettings, model: str, direction: str, options: RunOptions
) -> Iterator[ModelSetting]:
    """The settings of one model in one direction."""
    common: dict[str, Any] = {**experiment.options, "model": model, "direction": direction, "device": options.device}
    architecture = experiment.architecture
    if options.settings == "code" and experiment.published:
        # Items have a vector for the start, in one direction.
        start = direction == "uni" and common.get("part") == "items"
        architecture = architecture.replace(**experiment.published, start=start)
        if name == TEMPERATURE and model == "efa":  # it stopped early in no run
            common |= {"standardize": False, "patience": 0}
    if model == "efa":
        common |= {"context_dropout": 0.0, "n_layers": options.n_layers or PAPER_LAYERS}
    if options.epochs is not None:
        common["max_epochs"] = options.epochs
    settings = experiment.settings
    if name == TEMPERATURE and model == "efa":
        settings = _list_layers(options)
    elif name == TEMPERATURE:
        settings = {f"k={count}": {"n_neighbors": count} for count in options.n_neighbors or NEIGHBORS}
    for setting, further in settings.items():
        yield ModelSetting(model, direction, setting, EfaOptions(**{**common, **further}), architecture)


def _list_layers(options: RunOptions) -> dict[str, dict[str, Any]]:
    """Layers without earlier days, then the largest number of layers with one and with two.

    Runs with earlier days had 200 epochs of batches of 128 masked copies: those of three days.
    """
    layers = LAYERS if options.n_layers is None else (options.n_layers,)
    if options.lags is None:
        pairs = [*((count, 0) for count in layers), (layers[-1], 1), (layers[-1], 2)]
    else:
        pairs = [(count, options.lags) for count in layers]
    settings = {}
    for count, days in pairs:
        name = _count(count, "layer")
        further: dict[str, Any] = {"n_layers": count}
        if days:
            name += f", {_count(days, 'day')}"
            further |= {"lags": ("lag_1", "lag_2")[:days], "max_epochs": options.epochs or 200, "batch_size": 3}
        settings[name] = further
    return settings


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number > 1 else ''}"
