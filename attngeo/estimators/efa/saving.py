"""A fitted model on disk: a folder with `config.json` and `model.safetensors`; nothing in it can run code.

The tensors of attention are named and laid out as those of a transformer's layers, so that `attngeo score` reads them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import model_validator
from torch import Tensor

from attngeo.errors import CorruptCheckpointError, OutputError, UnsupportedModelError
from attngeo.estimators.efa.families import FAMILIES, ExponentialFamily
from attngeo.estimators.efa.making import make_families, make_model
from attngeo.estimators.efa.model import PartModel
from attngeo.estimators.efa.options import MADE_BY, PARTS, Architecture, EfaOptions
from attngeo.estimators.efa.sequences import DataShape
from attngeo.estimators.shared.paths import CONFIG
from attngeo.estimators.shared.saving import (
    ADVICE,
    WEIGHTS,
    Count,
    Plain,
    SavedModel,
    check_layers,
    check_tensors,
    list_plain,
    read_config,
    read_tensors,
    write_model,
)

# The names of layers begin in the file as those of a bare encoder; the other tensors of a model are beside them.
LAYERS = "network.attention.layers."
LAYERS_IN_FILE = "encoder.layer."


class SavedEfa(SavedModel):
    """The configuration of a model. The last five keys are those of a transformer's layers; a factor model has none."""

    TYPE = "attngeo_efa"
    FORMAT = 4
    MADE_BY = MADE_BY
    options: EfaOptions
    architecture: Architecture
    shape: DataShape
    items: tuple[Plain, ...]
    num_hidden_layers: Count | None = None
    num_attention_heads: Count | None = None
    hidden_size: Count | None = None
    head_dim: Count | None = None
    is_decoder: bool | None = None

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> SavedEfa:
        for problem in (*self._check_items(), *self._check_sizes()):
            raise ValueError(problem)
        return self

    def _check_items(self) -> Iterator[str]:
        """The contradictions of the items."""
        if len(self.items) != self.shape.items:
            yield f"{len(self.items):,} items, expected {self.shape.items:,} as in shape"
        if len(set(self.items)) < len(self.items):
            yield "items has an item twice, expected each once"
        if any(isinstance(item, float) and math.isnan(item) for item in self.items):
            yield "items has NaN, expected texts or numbers"
        if not self.items and (self.shape.part == "items" or not self.shape.coordinates):
            yield "neither items nor coordinates, expected items for a model of items, or one of both for values"

    def _check_sizes(self) -> Iterator[str]:
        """The contradictions of the shape of the data and the options, or in itself."""
        options = self.options
        shape = self.shape
        stated = {
            "part": shape.part,
            "number of values": len(shape.values),
            "number of covariates": len(shape.covariates),
            "coordinates": shape.coordinates,
            "lags": shape.lags,
            "longest": shape.longest,
            "levels": shape.levels,
            "number of place_scale": len(shape.place_scale),
            "number of places": len(shape.places),
        }
        expected = self._expect_sizes()
        for name, value in stated.items():
            if value != expected[name]:
                yield f"shape: {name} is {value}, expected {expected[name]} as the rest of the file says"
        for (column, kind), covariate in zip(options.kinds.items(), shape.covariates, strict=False):
            if kind not in (None, covariate.kind):
                yield f"shape: the covariate {column!r} is a {covariate.kind}, expected a {kind} as in options"
            if len(set(covariate.categories)) < max(len(covariate.categories), covariate.kind == "category"):
                yield f"shape: the covariate {column!r} has a category twice or none, expected each once"
        if any(len(place) != shape.coordinates for place in shape.places):
            yield f"shape: a place has not {shape.coordinates} coordinates"
        if shape.trained > shape.longest:
            yield f"shape: trained is {shape.trained:,}, expected at most longest, {shape.longest:,}"

    def _expect_sizes(self) -> dict[str, Any]:
        """The sizes that the shape of the data has by the other keys."""
        options = self.options
        shape = self.shape
        expected: dict[str, Any] = {
            "part": shape.part if options.part in ("auto", "both") else options.part,
            "number of values": 0,
            "number of covariates": len(options.kinds),
            "coordinates": 0,
            "lags": 0,
            "longest": self.architecture.longest or max(shape.longest, shape.trained, 1),
            "levels": 0,
            "number of place_scale": shape.coordinates,
            "number of places": 0,
        }
        if shape.part == "values":
            expected["number of values"] = len(options.families)
            expected["coordinates"] = len(options.coordinates)
            expected["lags"] = len(options.lags)
            if self.architecture.embedding == "truncated":
                expected["levels"] = max(shape.levels, 1)
            if options.model == "fm" and not shape.items:
                expected["number of places"] = shape.trained
        return expected


def write_efa(
    folder: Path,
    options: EfaOptions,
    architecture: Architecture,
    parts: Sequence[PartModel],
    items: Sequence[Any],
    *,
    epochs: int,
) -> None:
    """Write a fitted model to a folder, which is created. Raises OutputError; TableError for items JSON lacks."""
    if len(parts) > 1 and (folder / CONFIG).exists():
        raise OutputError(f"{folder} has a model of one part, which would be read instead; choose another folder")
    for model in parts:
        config = {
            "options": dict(options),
            "architecture": dict(architecture),
            "epochs": epochs,
            "shape": model.shape.model_dump(),
            "items": list_plain(items, "an item is a") if model.shape.items else [],
            **_describe_layers(model, options),
        }
        tensors = {_name_in_file(name): tensor for name, tensor in model.state_dict().items()}
        part_folder = folder / model.shape.part if len(parts) > 1 else folder
        write_model(part_folder, SavedEfa, config, tensors)


def _describe_layers(model: PartModel, options: EfaOptions) -> dict[str, Any]:
    """The keys of a transformer's configuration, which `attngeo score` reads; none for a factor model."""
    attention = getattr(model.network, "attention", None)
    if attention is None:
        return {}
    shape = attention.shape
    return {
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "hidden_size": shape.width,
        "head_dim": shape.size,
        "is_decoder": options.causal,
    }


def read_efa(folder: Path, family: ExponentialFamily | None) -> tuple[SavedEfa, list[PartModel]]:
    """The configuration and the models of a folder; parameters and errors are those of `load`."""
    if (folder / CONFIG).exists() or not (folder / PARTS[0] / CONFIG).exists():
        about, model = _read_part(folder, family)
        return about, [model]
    parts = [_read_part(folder / part, family) for part in PARTS]
    for part, (_, model) in zip(PARTS, parts, strict=True):
        if model.shape.part != part:
            raise CorruptCheckpointError(f"{folder / part / CONFIG}: a model of {model.shape.part}; {ADVICE}")
    (of_items, _), (of_values, _) = parts
    is_same = (
        of_items.options == of_values.options
        and of_items.architecture == of_values.architecture
        and of_items.shape.covariates == of_values.shape.covariates
        and of_values.items in ((), of_items.items)
    )
    if not is_same:
        raise CorruptCheckpointError(
            f"{folder}: items and values are of two models, expected the same options, items and covariates; {ADVICE}"
        )
    return of_items, [model for _, model in parts]


def _read_part(folder: Path, family: ExponentialFamily | None) -> tuple[SavedEfa, PartModel]:
    """A model of one part."""
    saved = read_config(folder, SavedEfa)
    options = saved.options
    for text in options.families.values():
        if family is None and text.partition(":")[0] not in FAMILIES:
            raise UnsupportedModelError(
                f"{folder / CONFIG}: the family {text!r:.60} is not one of attngeo; load the model in Python, with "
                "that family as its argument family"
            )
    tensors = read_tensors(folder)
    layers = options.n_layers + len(saved.architecture.head)
    if options.model == "efa" and layers > len(tensors):  # else it takes long to find out
        raise CorruptCheckpointError(
            f"{folder / WEIGHTS} has {len(tensors)} tensors, expected those of {layers:,} layers; {ADVICE}"
        )

    def make() -> PartModel:
        return make_model(options, saved.architecture, make_families(options, family), saved.shape)

    def plan() -> dict[str, Tensor]:
        return {_name_in_file(name): weight for name, weight in make().state_dict().items()}

    check_tensors(folder, tensors, plan)
    model = make()
    check_layers(folder, saved, _describe_layers(model, options))
    model.load_state_dict({name: tensors[_name_in_file(name)] for name in model.state_dict()})
    return saved, model


def _name_in_file(name: str) -> str:
    """The name of a tensor in the file."""
    if not name.startswith(LAYERS):
        return name
    layer, _, path = name.removeprefix(LAYERS).partition(".")
    module, _, parameter = path.rpartition(".")
    if module in ("query", "key", "value"):
        module = f"attention.self.{module}"
    return f"{LAYERS_IN_FILE}{layer}.{module}.{parameter}"
