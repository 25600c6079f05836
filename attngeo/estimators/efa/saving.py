"""A fitted model on disk: a folder with `config.json` and `model.safetensors`; nothing in it can run code.

The tensors of attention are named and laid out as those of a transformer's layers, so that `attngeo score` reads them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, model_validator

from attngeo import __version__
from attngeo.errors import CorruptCheckpointError, UnsupportedModelError
from attngeo.estimators.efa.families import FAMILIES, LARGEST, ExponentialFamily, parse_family
from attngeo.estimators.efa.model import FARTHEST, MOST_LEVELS, DataShape, PartModel, make_model
from attngeo.estimators.efa.options import LEVELS, Architecture, EfaOptions
from attngeo.estimators.shared.saving import (
    ADVICE,
    CONFIG,
    WEIGHTS,
    Count,
    Plain,
    SavedModel,
    check_tensors,
    list_plain,
    read_config,
    read_tensors,
    write_model,
)
from attngeo.schemas import Table

MODEL_TYPE, FORMAT = "attngeo_efa", 2
MADE_BY = "attngeo efa fit --save"
# Names in the file begin as those of a bare encoder; the rest of a model is beside its layers.
LAYERS, IN_FILE = "network.attention.layers.", "encoder.layer."

Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
# A mean and a deviation.
Scale = tuple[Number, Annotated[float, Field(ge=1 / LARGEST, le=LARGEST, allow_inf_nan=False)]]


class SavedShape(Table):
    """A `DataShape`."""

    part: Literal["items", "values"]
    items: Count = 0
    longest: Annotated[Count, Field(ge=1)]
    trained: Count = 0
    coordinates: Count = 0
    lags: Count = 0
    levels: Annotated[Count, Field(le=MOST_LEVELS + 1)] = 0
    value_scale: Scale = (0.0, 1.0)
    variance: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    raw_start: Annotated[float, Field(ge=-FARTHEST, le=FARTHEST)] = 0.0
    place_scale: tuple[Scale, ...] = ()
    places: tuple[tuple[Number, ...], ...] = ()
    position: str | None = None


class SavedEfa(SavedModel):
    """The configuration of a model. The last five keys are those of a transformer's layers; a factor model has none."""

    options: EfaOptions
    architecture: Architecture
    shape: SavedShape
    items: tuple[Plain, ...]
    num_hidden_layers: Count | None = None
    num_attention_heads: Count | None = None
    hidden_size: Count | None = None
    head_dim: Count | None = None
    is_decoder: bool | None = None

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> SavedEfa:
        problems = (*_check_items(self.items, self.shape), *_check_sizes(self.options, self.architecture, self.shape))
        for problem in problems:
            raise ValueError(problem)
        return self


def _check_items(items: tuple[Plain, ...], shape: SavedShape) -> Iterator[str]:
    """What is wrong with the items of a saved model."""
    if len(items) != shape.items:
        yield f"{len(items):,} items, expected {shape.items:,} as in shape"
    if len(set(items)) < len(items):
        yield "items has an item twice, expected each once"
    if any(isinstance(item, float) and math.isnan(item) for item in items):
        yield "items has NaN, expected texts or numbers"
    if not shape.items and shape.part == "items":
        yield "shape.items is 0, expected at least 1 for a model of items"


def _check_sizes(options: EfaOptions, architecture: Architecture, shape: SavedShape) -> Iterator[str]:
    """How the shape of data contradicts the options, or itself."""
    of_values = shape.part == "values"
    columns = (options.coordinate_names, options.lag_names) if of_values else ((), ())
    of_places = of_values and options.model == "fm" and not shape.items
    expected: dict[str, tuple[Any, Any]] = {
        "part": (shape.part, shape.part if options.part == "auto" else options.part),
        "coordinates": (shape.coordinates, len(columns[0])),
        "lags": (shape.lags, len(columns[1])),
        "longest": (shape.longest, architecture.longest or shape.longest),
        "number of place_scale": (len(shape.place_scale), shape.coordinates),
        "number of places": (len(shape.places), shape.trained if of_places else 0),
    }
    for name, (stated, wanted) in expected.items():
        if stated != wanted:
            yield f"shape: {name} is {stated}, expected {wanted} as the rest of the file says"
    if any(len(place) != shape.coordinates for place in shape.places):
        yield f"shape: a place has not {shape.coordinates} coordinates"
    if shape.trained > shape.longest:
        yield f"shape: trained is {shape.trained:,}, expected at most longest, {shape.longest:,}"
    if (shape.levels > 0) != (of_values and architecture.embedding in LEVELS):
        yield f"shape: levels is {shape.levels:,}, which does not fit the embedding {architecture.embedding}"
    if of_values and not shape.items and not shape.coordinates:
        yield "shape: neither items nor coordinates, expected one of them"


class Saved(NamedTuple):
    """What a file says of a model beside its network."""

    options: EfaOptions
    architecture: Architecture
    items: list[Any]
    epochs: int


def write_efa(
    folder: Path, options: EfaOptions, architecture: Architecture, model: PartModel, items: Sequence[Any], *,
    epochs: int,
) -> None:  # fmt: skip
    """Write a fitted model to a folder, which is created. Raises OutputError; TableError for items JSON lacks."""
    about = {
        "model_type": MODEL_TYPE, "format": FORMAT, "attngeo_version": __version__,
        "options": dict(options), "architecture": dict(architecture),
        "shape": dataclasses.asdict(model.shape), "items": list_plain(items, "an item is a"), "epochs": epochs,
        **_describe_layers(model, options),
    }  # fmt: skip
    tensors = {_to_file(name): tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    write_model(folder, about, tensors)


def _describe_layers(model: PartModel, options: EfaOptions) -> dict[str, Any]:
    """What `attngeo score` reads of a model; nothing of a factor model."""
    attention = getattr(model.network, "attention", None)
    if attention is None:
        return {}
    shape = attention.shape
    return {
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "hidden_size": shape.width,
        "head_dim": shape.size, "is_decoder": options.causal,
    }  # fmt: skip


def read_efa(folder: Path, family: ExponentialFamily | None) -> tuple[Saved, PartModel]:
    """What `write_efa` wrote; parameters and errors are those of `ExponentialFamilyAttention.load`."""
    about = read_config(folder, SavedEfa, MODEL_TYPE, FORMAT, MADE_BY)
    options, architecture = about.options, about.architecture
    shape = DataShape(**dict(about.shape))
    if family is None and options.family.partition(":")[0] not in FAMILIES:
        raise UnsupportedModelError(
            f"{folder / CONFIG}: the family {options.family!r:.60} is not one of attngeo; load the model in Python, "
            "with that family as its argument family"
        )
    tensors = read_tensors(folder)
    parts = options.layers + len(architecture.head_units)
    if options.model == "efa" and parts > len(tensors):  # else it takes long to find out
        raise CorruptCheckpointError(
            f"{folder / WEIGHTS} has {len(tensors)} tensors, expected those of {parts:,} layers; {ADVICE}"
        )

    def make() -> PartModel:
        return make_model(options, architecture, family or parse_family(options.family), shape)

    check_tensors(folder, tensors, lambda: {_to_file(name): weight for name, weight in make().state_dict().items()})
    model = make()
    for name, value in _describe_layers(model, options).items():
        if getattr(about, name) != value:
            raise CorruptCheckpointError(
                f"{folder / CONFIG}: {name} is {getattr(about, name)}, expected {value} as the options say; {ADVICE}"
            )
    model.load_state_dict({name: tensors[_to_file(name)] for name in model.state_dict()})
    return Saved(options, architecture, list(about.items), about.epochs), model


def _to_file(name: str) -> str:
    """The name of a tensor in the file."""
    if not name.startswith(LAYERS):
        return name
    number, _, rest = name.removeprefix(LAYERS).partition(".")
    module, _, kind = rest.rpartition(".")
    place = f"attention.self.{module}" if module in ("query", "key", "value") else module
    return f"{IN_FILE}{number}.{place}.{kind}"
