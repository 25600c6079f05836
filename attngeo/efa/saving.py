"""A fitted model on disk: a folder with `config.json` and `model.safetensors`; nothing in it can run code.

The tensors of attention are named and laid out as those of a transformer's layers, so that `attngeo score` reads them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, model_validator
from torch import Tensor

from attngeo import __version__
from attngeo.devices import usable_device
from attngeo.efa.columns import LARGEST
from attngeo.efa.description import FARTHEST, MOST_LEVELS, DataShape
from attngeo.efa.family_names import FAMILY_NAMES
from attngeo.efa.modelling import PartModel, make_model
from attngeo.efa.network import LEVELS
from attngeo.efa.options import EfaOptions
from attngeo.errors import CorruptCheckpointError, TableError, UnsupportedModelError
from attngeo.estimators.shared.saving import (
    ADVICE,
    CONFIG,
    PLAIN,
    WEIGHTS,
    Count,
    Plain,
    SavedModel,
    check_tensors,
    read_config,
    read_tensors,
    write_model,
)
from attngeo.schemas import Table

if TYPE_CHECKING:
    from attngeo.efa.estimator import ExponentialFamilyAttention

MODEL_TYPE, FORMAT = "attngeo_efa", 1
MADE_BY = "attngeo efa fit --save"
# Names in the file begin as those of a bare encoder; the rest of a model is beside its layers.
LAYERS, IN_FILE = "network.attention.layers.", "encoder.layer."

Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
# A mean and a deviation.
Scale = tuple[Number, Annotated[float, Field(ge=1 / LARGEST, le=LARGEST, allow_inf_nan=False)]]


def _check_family(options: Any) -> Any:
    """The options of a saved model. Raises UnsupportedModelError for a family that has no name here."""
    family = options.get("family") if isinstance(options, dict) else None
    if isinstance(family, str) and family.partition(":")[0] not in FAMILY_NAMES:
        raise UnsupportedModelError(
            f"the family {family.partition(':')[0]!r:.60} is not known; call attngeo.efa.register_family with that "
            "name, and load the model in Python"
        )
    return options


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

    options: Annotated[EfaOptions, BeforeValidator(_check_family)]
    shape: SavedShape
    items: tuple[Plain, ...]
    num_hidden_layers: Count | None = None
    num_attention_heads: Count | None = None
    hidden_size: Count | None = None
    head_dim: Count | None = None
    is_decoder: bool | None = None

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> SavedEfa:
        for problem in (*_check_items(self.items, self.shape), *_check_sizes(self.options, self.shape)):
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


def _check_sizes(options: EfaOptions, shape: SavedShape) -> Iterator[str]:
    """How the shape of data contradicts the options, or itself."""
    of_values = shape.part == "values"
    columns = (options.coordinate_names, options.lag_names) if of_values else ((), ())
    of_places = of_values and options.model == "fm" and not shape.items
    expected: dict[str, tuple[Any, Any]] = {
        "part": (shape.part, shape.part if options.part == "auto" else options.part),
        "coordinates": (shape.coordinates, len(columns[0])),
        "lags": (shape.lags, len(columns[1])),
        "longest": (shape.longest, options.longest or shape.longest),
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
    if (shape.levels > 0) != (of_values and options.embedding in LEVELS):
        yield f"shape: levels is {shape.levels:,}, which does not fit the embedding {options.embedding}"
    if of_values and not shape.items and not shape.coordinates:
        yield "shape: neither items nor coordinates, expected one of them"


def save_model(model: ExponentialFamilyAttention, folder: str | Path) -> None:
    """Write a fitted model to a folder, which is created. Raises OutputError; TableError for items JSON lacks."""
    folder = Path(folder)
    items = check_items(model.items_)
    part = model.model_
    about = {
        "model_type": MODEL_TYPE, "format": FORMAT, "attngeo_version": __version__,
        "options": dict(model.options), "shape": dataclasses.asdict(part.shape), "items": items,
        "epochs": len(model.history_.train), **_describe_layers(part, model.options),
    }  # fmt: skip
    tensors = {_to_file(name): each.detach().cpu().contiguous() for name, each in part.state_dict().items()}
    write_model(folder, about, tensors)


def _describe_layers(model: PartModel, options: EfaOptions) -> dict[str, Any]:
    """What `attngeo score` reads of a model; nothing of a factor model."""
    attention = getattr(model.network, "attention", None)
    if attention is None:
        return {}
    shape = attention.shape
    return {
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "hidden_size": shape.width,
        "head_dim": shape.size, "is_decoder": options.direction == "uni",
    }  # fmt: skip


def check_items(items: Iterable[Any]) -> list[Any]:
    """The items as a saved model keeps them. Raises TableError for one that JSON lacks."""
    plain = [item.item() if isinstance(item, np.generic) else item for item in items]
    for item in plain:
        if not isinstance(item, PLAIN):
            raise TableError(
                f"an item is a {type(item).__name__}, which a saved model cannot keep; use texts or numbers"
            )
    return plain


def load_model(folder: str | Path) -> ExponentialFamilyAttention:
    """The model that `save` wrote.

    Raises ModelNotFoundError if there is none, UnsupportedModelError if it is of another version or of a family that
    has no name here, CorruptCheckpointError if its files are broken or contradict each other, and NotEnoughMemoryError.
    """
    from attngeo.efa.estimator import ExponentialFamilyAttention
    from attngeo.training import History

    folder = Path(folder)
    about = read_config(folder, SavedEfa, MODEL_TYPE, FORMAT, MADE_BY)
    options, shape = about.options, DataShape(**dict(about.shape))
    tensors = read_tensors(folder)
    parts = options.layers + len(options.head_units)
    if options.model == "efa" and parts > len(tensors):  # else it takes long to find out
        raise CorruptCheckpointError(
            f"{folder / WEIGHTS} has {len(tensors)} tensors, expected those of {parts:,} layers; {ADVICE}"
        )

    def plan() -> dict[str, Tensor]:
        return {_to_file(name): weight for name, weight in make_model(options, shape).state_dict().items()}

    check_tensors(folder, tensors, plan)
    model = make_model(options, shape)
    for name, value in _describe_layers(model, options).items():
        if getattr(about, name) != value:
            raise CorruptCheckpointError(
                f"{folder / CONFIG}: {name} is {getattr(about, name)}, expected {value} as the options say; {ADVICE}"
            )
    model.load_state_dict({name: tensors[_to_file(name)] for name in model.state_dict()})
    found = ExponentialFamilyAttention(options=options.replace(device=usable_device(options.device)))
    found.items_, found._shape, found.model_ = list(about.items), shape, model.eval()
    found.history_ = History(np.broadcast_to(np.nan, about.epochs), *(np.empty(0) for _ in range(2)))
    return found


def _to_file(name: str) -> str:
    """The name of a tensor in the file."""
    if not name.startswith(LAYERS):
        return name
    number, _, rest = name.removeprefix(LAYERS).partition(".")
    module, _, kind = rest.rpartition(".")
    place = f"attention.self.{module}" if module in ("query", "key", "value") else module
    return f"{IN_FILE}{number}.{place}.{kind}"
