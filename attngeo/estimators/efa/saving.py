"""A fitted model on disk: a folder with `config.json` and `model.safetensors`; nothing in it can run code.

The tensors of attention are named and laid out as those of a transformer's layers, so that `attngeo score` reads them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import model_validator

from attngeo.errors import CorruptCheckpointError, OutputError, UnsupportedModelError
from attngeo.estimators.efa.families import FAMILIES, ExponentialFamily
from attngeo.estimators.efa.model import PartModel, make_families, make_model
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

# Names in the file begin as those of a bare encoder; the rest of a model is beside its layers.
LAYERS, IN_FILE = "network.attention.layers.", "encoder.layer."


class SavedEfa(SavedModel):
    """The configuration of a model. The last five keys are those of a transformer's layers; a factor model has none."""

    TYPE, FORMAT, MADE_BY = "attngeo_efa", 4, MADE_BY
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
        """What is wrong with the items."""
        if len(self.items) != self.shape.items:
            yield f"{len(self.items):,} items, expected {self.shape.items:,} as in shape"
        if len(set(self.items)) < len(self.items):
            yield "items has an item twice, expected each once"
        if any(isinstance(item, float) and math.isnan(item) for item in self.items):
            yield "items has NaN, expected texts or numbers"
        if not self.items and (self.shape.part == "items" or not self.shape.coordinates):
            yield "neither items nor coordinates, expected items for a model of items, or one of both for values"

    def _check_sizes(self) -> Iterator[str]:
        """How the shape of data contradicts the options, or itself."""
        options, architecture, shape = self.options, self.architecture, self.shape
        of_values = shape.part == "values"
        columns = (options.coordinates, options.lags) if of_values else ((), ())
        of_places = of_values and options.model == "fm" and not shape.items
        has_levels = of_values and architecture.embedding == "truncated"
        expected: dict[str, tuple[Any, Any]] = {
            "part": (shape.part, shape.part if options.part in ("auto", "both") else options.part),
            "number of values": (len(shape.values), len(options.families) if of_values else 0),
            "number of covariates": (len(shape.covariates), len(options.kinds)),
            "coordinates": (shape.coordinates, len(columns[0])),
            "lags": (shape.lags, len(columns[1])),
            "longest": (shape.longest, architecture.longest or max(shape.longest, shape.trained, 1)),
            "levels": (shape.levels, max(shape.levels, 1) if has_levels else 0),
            "number of place_scale": (len(shape.place_scale), shape.coordinates),
            "number of places": (len(shape.places), shape.trained if of_places else 0),
        }
        for name, (stated, wanted) in expected.items():
            if stated != wanted:
                yield f"shape: {name} is {stated}, expected {wanted} as the rest of the file says"
        for (column, kind), covariate in zip(options.kinds.items(), shape.covariates, strict=False):
            if kind not in (None, covariate.kind):
                yield f"shape: the covariate {column!r} is a {covariate.kind}, expected a {kind} as in options"
            if len(set(covariate.categories)) < max(len(covariate.categories), covariate.kind == "category"):
                yield f"shape: the covariate {column!r} has a category twice or none, expected each once"
        if any(len(place) != shape.coordinates for place in shape.places):
            yield f"shape: a place has not {shape.coordinates} coordinates"
        if shape.trained > shape.longest:
            yield f"shape: trained is {shape.trained:,}, expected at most longest, {shape.longest:,}"


def write_efa(
    folder: Path, options: EfaOptions, architecture: Architecture, parts: Sequence[PartModel], items: Sequence[Any], *,
    epochs: int,
) -> None:  # fmt: skip
    """Write a fitted model to a folder, which is created. Raises OutputError; TableError for items JSON lacks."""
    about = {"options": dict(options), "architecture": dict(architecture), "epochs": epochs}
    if len(parts) > 1 and (folder / CONFIG).exists():
        raise OutputError(f"{folder} has a model of one part, which would be read instead; choose another folder")
    for model in parts:
        known = list_plain(items, "an item is a") if model.shape.items else []
        described = {"shape": model.shape.model_dump(), "items": known, **_describe_layers(model, options)}
        tensors = {_to_file(name): tensor for name, tensor in model.state_dict().items()}
        write_model(folder / model.shape.part if len(parts) > 1 else folder, SavedEfa, about | described, tensors)


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


def read_efa(folder: Path, family: ExponentialFamily | None) -> tuple[SavedEfa, list[PartModel]]:
    """What `write_efa` wrote; parameters and errors are those of `ExponentialFamilyAttention.load`."""
    if (folder / CONFIG).exists() or not (folder / PARTS[0] / CONFIG).exists():
        about, model = _read_part(folder, family)
        return about, [model]
    (about, first), (other, second) = (_read_part(folder / part, family) for part in PARTS)
    for part, model in zip(PARTS, (first, second), strict=True):
        if model.shape.part != part:
            raise CorruptCheckpointError(f"{folder / part / CONFIG}: a model of {model.shape.part}; {ADVICE}")
    same = [(saved.options, saved.architecture, saved.shape.covariates) for saved in (about, other)]
    if same[0] != same[1] or (other.items and other.items != about.items):
        raise CorruptCheckpointError(
            f"{folder}: items and values are of two models, expected the same options, items and covariates; {ADVICE}"
        )
    return about, [first, second]


def _read_part(folder: Path, family: ExponentialFamily | None) -> tuple[SavedEfa, PartModel]:
    """A model of one part."""
    about = read_config(folder, SavedEfa)
    options, architecture = about.options, about.architecture
    for text in options.families.values():
        if family is None and text.partition(":")[0] not in FAMILIES:
            raise UnsupportedModelError(
                f"{folder / CONFIG}: the family {text!r:.60} is not one of attngeo; load the model in Python, with "
                "that family as its argument family"
            )
    tensors = read_tensors(folder)
    parts = options.n_layers + len(architecture.head)
    if options.model == "efa" and parts > len(tensors):  # else it takes long to find out
        raise CorruptCheckpointError(
            f"{folder / WEIGHTS} has {len(tensors)} tensors, expected those of {parts:,} layers; {ADVICE}"
        )

    def make() -> PartModel:
        return make_model(options, architecture, make_families(options, family), about.shape)

    check_tensors(folder, tensors, lambda: {_to_file(name): weight for name, weight in make().state_dict().items()})
    model = make()
    check_layers(folder, about, _describe_layers(model, options))
    model.load_state_dict({name: tensors[_to_file(name)] for name in model.state_dict()})
    return about, model


def _to_file(name: str) -> str:
    """The name of a tensor in the file."""
    if not name.startswith(LAYERS):
        return name
    number, _, rest = name.removeprefix(LAYERS).partition(".")
    module, _, kind = rest.rpartition(".")
    place = f"attention.self.{module}" if module in ("query", "key", "value") else module
    return f"{IN_FILE}{number}.{place}.{kind}"
