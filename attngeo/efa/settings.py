"""The experiments as data: which models are fitted, with which options, and what they are measured by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from attngeo.choices import one_of
from attngeo.efa.experiment_options import RunOptions
from attngeo.errors import UsageError

# Masked copies in a batch of the published runs; a batch here has as many sequences as have that many positions.
COPIES = 256
NEIGHBOURS = (1, 2, 3, 4, 5, 10, 15, 20, 25, 30, 35, 40)
LAYERS = (1, 2, 4)
# The experiment that has earlier days, and neighbours.
TEMPERATURE = "temperature"


class ModelSetting(NamedTuple):
    """A model of an experiment. setting: what tells it from others of its direction. options: of EfaOptions."""

    model: str
    direction: str
    setting: str
    options: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ExperimentSettings:
    """One experiment. common: options of both models. efa: of attention; efa_published: as it was run; fm_published,
    fm_uni_published: of the factor model as it was run. families: setting → family, where there are several.

    directions: those that it has. trivial: names of `TRIVIAL`. copies: positions of a sequence, for the size of
    batches; 0 for all sequences in one. sizes: numbers of sequences that train, each of which is a setting.
    """

    common: Mapping[str, Any]
    efa: Mapping[str, Any] = field(default_factory=dict)
    efa_published: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({"scale": "head"}))
    fm_published: Mapping[str, Any] = field(default_factory=dict)
    fm_uni_published: Mapping[str, Any] = field(default_factory=dict)
    families: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({"": "gaussian:1"}))
    directions: tuple[str, ...] = ("bi", "uni")
    trivial: tuple[str, ...] = ()
    copies: int = 0
    sizes: tuple[int, ...] = ()


SMALL = {
    "width": 32, "init": "keras", "standardise": False, "learning_rate": 1e-4, "short": "keep", "order": True,
}  # fmt: skip
TWO_LAYERS = {"layers": 2, "heads": 2, "head_size": 16}
RATINGS = TWO_LAYERS | {"both": False, "embedding": "truncated", "head": (32,)}
ITEMS = SMALL | {"part": "items"}
SETTINGS: Mapping[str, ExperimentSettings] = MappingProxyType(
    {
        "synthetic": ExperimentSettings(
            common=SMALL | {"epochs": 1000}, efa=RATINGS, fm_published={"pooling": "seen"},
            trivial=("mean-per-item", "bayes"), copies=5,
        ),
        "movielens-sequence": ExperimentSettings(
            common=ITEMS | {"epochs": 2000}, efa=TWO_LAYERS, fm_published={"pooling": "sum"},
            fm_uni_published={"start": True}, trivial=("unigram", "unigram-of-the-rest"), copies=15,
        ),
        "movielens-ratings": ExperimentSettings(
            common=SMALL | {"epochs": 1000}, efa=RATINGS, fm_published={"pooling": "seen"},
            families=MappingProxyType({"v1": "poisson-from-1", "v2": "poisson:1"}), trivial=("mean-per-item",),
            copies=14,
        ),
        "instacart": ExperimentSettings(
            common=ITEMS | {"epochs": 1000, "patience": 0}, efa=TWO_LAYERS, fm_published={"pooling": "sum"},
            fm_uni_published={"start": True}, trivial=("unigram", "unigram-of-the-rest"), copies=11,
        ),
        "temperature": ExperimentSettings(
            common=SMALL | {
                "coordinates": ("latitude", "longitude"), "item_vectors": False, "order": False, "epochs": 2000,
                "learning_rate": 1e-3, "patience": 200, "standardise": True,
            },
            # It stopped early in no run.
            efa_published={"scale": "head", "standardise": False, "patience": 0},
            efa={
                "heads": 2, "head_size": 16, "norm": True, "feed_forward": 64, "join": 64, "head": (128, 16),
            },
            directions=("bi",), trivial=("ridge-per-city", "day-before"),
        ),
        # Not of the paper: is a known model found again?
        "recovery": ExperimentSettings(
            common={
                "part": "items", "width": 8, "learning_rate": 0.01, "epochs": 300, "patience": 15, "order": True,
            },
            efa={"layers": 1, "heads": 2, "scale": "head"}, directions=("uni",), trivial=("unigram", "bayes"), copies=8,
            sizes=(100, 400, 1600, 6400),
        ),
    }
)  # fmt: skip


def list_settings(name: str, options: RunOptions) -> list[ModelSetting]:
    """The models of an experiment that are asked for. Raises UsageError for an unknown experiment."""
    experiment = SETTINGS[one_of("experiment", name, SETTINGS)]
    for each, model in {"lags": "efa", "neighbours": "fm", "layers": "efa"}.items():
        if getattr(options, each) is None:
            continue
        if name != TEMPERATURE and each != "layers":
            raise UsageError(f"{each} has no effect on {name}, expected {TEMPERATURE}; leave it out")
        if model not in options.models:
            raise UsageError(
                f"{each} has no effect on the model {options.model}, expected {model} or both; leave it out"
            )
    return [
        found
        for model in options.models
        for direction in options.directions
        if direction in experiment.directions
        for found in _list_models(name, experiment, model, direction, options)
    ]


def _list_models(
    name: str, experiment: ExperimentSettings, model: str, direction: str, options: RunOptions
) -> Iterator[ModelSetting]:
    about = dict(experiment.common) | {"model": model, "direction": direction, "device": options.device}
    about["batch_size"] = round(COPIES / experiment.copies) if experiment.copies else 1_000_000
    if model == "efa":
        about |= experiment.efa
        about |= experiment.efa_published if options.published else {}
    elif options.published:
        about |= experiment.fm_published
        about |= experiment.fm_uni_published if direction == "uni" else {}
    if options.epochs is not None:
        about["epochs"] = options.epochs
    if name == TEMPERATURE:
        list_kind = _list_layers if model == "efa" else _list_neighbours
        for setting, own in list_kind(options):
            yield ModelSetting(model, direction, setting, about | own | {"family": experiment.families[""]})
        return
    if options.layers is not None and model == "efa":
        about["layers"] = options.layers
    for size in experiment.sizes:
        yield ModelSetting(model, direction, f"N={size}", about)
    for setting, family in experiment.families.items() if not experiment.sizes else ():
        of_values = {} if about.get("part") == "items" else {"family": family}
        yield ModelSetting(model, direction, setting, about | of_values)


def _list_layers(options: RunOptions) -> Iterator[tuple[str, dict[str, Any]]]:
    """Layers without earlier days, then the largest number of layers with one and with two."""
    layers = LAYERS if options.layers is None else (options.layers,)
    pairs = [(each, 0) for each in layers] + [(layers[-1], 1), (layers[-1], 2)]
    if options.lags is not None:
        pairs = [(each, options.lags) for each in layers]
    for count, days in pairs:
        setting = _count(count, "layer") + (f", {_count(days, 'day')}" if days else "")
        yield setting, {"layers": count} | _days_before(days, options.epochs)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number > 1 else ''}"


def _days_before(days: int, epochs: int | None) -> dict[str, Any]:
    """Runs with earlier days had 200 epochs of batches of 128 masked copies: those of three days."""
    return {"lags": ("lag_1", "lag_2")[:days], "epochs": epochs or 200, "batch_size": 3} if days else {}


def _list_neighbours(options: RunOptions) -> Iterator[tuple[str, dict[str, Any]]]:
    for count in options.neighbours or NEIGHBOURS:
        yield f"k={count}", {"neighbours": count}
