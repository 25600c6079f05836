"""A fitted model on disk: a folder with `config.json` and `model.safetensors`; nothing in it can run code.

The tensors of attention are named and laid out as those of a transformer's layers, so that `attngeo score` reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, model_validator
from torch import Tensor

from attngeo.errors import CorruptCheckpointError, OutputError, UnsupportedModelError
from attngeo.estimators.efa.counts import ItemCounts
from attngeo.estimators.efa.families import FAMILIES, ExponentialFamily
from attngeo.estimators.efa.making import make_families, make_model
from attngeo.estimators.efa.model import PartModel
from attngeo.estimators.efa.networks import AttentionNetwork
from attngeo.estimators.efa.options import MADE_BY, MODEL_PARTS, Architecture, EfaOptions
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
from attngeo.schemas import Table

# The names of layers begin in the file as those of a bare encoder; the other tensors of a model are beside them.
LAYERS = "network.attention.layers."
LAYERS_IN_FILE = "encoder.layer."
# The names of the tensors of counts.
ITEM_COUNTS = "counts.items"
PAIR_COUNTS = "counts.pairs"


class SavedCounts(Table):
    """The sizes of `ItemCounts`, whose numbers are tensors.

    Attributes:
        sequences: number of sequences.
        pairs: number of kept pairs.
        least: pairs in fewer sequences are not kept.
    """

    sequences: Count
    pairs: Count
    least: Annotated[Count, Field(ge=1)]


class SavedEfa(SavedModel):
    """The configuration of a model.

    Attributes:
        options: options of the estimator.
        architecture: architecture of the networks.
        shape: shape of the data.
        items: items in the order of their numbers.
        counts: None for a model of values, or of format 4.
        missing: texts that are missing cells, the empty one among them; None for those of `read_own_table`, and in a
            model of an older version.
        num_hidden_layers: layers of a transformer; None for a factor model, like the four keys below.
        num_attention_heads: heads of a layer.
        hidden_size: width of the layers.
        head_dim: width of a head.
        is_decoder: whether a position sees only those before it.
    """

    TYPE = "attngeo_efa"
    FORMAT = 5
    OLDER = (4,)
    MADE_BY = MADE_BY
    options: EfaOptions
    architecture: Architecture
    shape: DataShape
    items: tuple[Plain, ...]
    counts: SavedCounts | None = None
    missing: tuple[str, ...] | None = None
    num_hidden_layers: Count | None = None
    num_attention_heads: Count | None = None
    hidden_size: Count | None = None
    head_dim: Count | None = None
    is_decoder: bool | None = None

    @model_validator(mode="after")
    def _check_sizes(self) -> SavedEfa:
        """Refuse a shape of the data that contradicts the options or itself."""
        options = self.options
        shape = self.shape
        expected: dict[str, Any] = {
            "part": shape.part if options.part in ("auto", "both") else options.part,
            "items": len(self.items),
            "values": 0,
            "covariates": len(options.kinds),
            "coordinates": 0,
            "lags": 0,
            "longest": max(self.architecture.longest or shape.longest, shape.trained, 1),
            "levels": 0,
            "place_scale": shape.coordinates,
            "places": 0,
        }
        if shape.part == "values":
            expected["values"] = len(options.families)
            expected["coordinates"] = len(options.coordinates)
            expected["lags"] = len(options.lags)
            if self.architecture.value_embedding == "lookup":
                expected["levels"] = max(shape.levels, 1)
            if options.model == "fm" and not shape.items:
                expected["places"] = shape.trained
        for name, size in expected.items():
            stated = getattr(shape, name)
            if isinstance(stated, tuple):
                stated = len(stated)
            if stated != size:
                raise ValueError(f"shape: {name} is {stated}, expected {size} as the rest of the file says")
        return self

    @model_validator(mode="after")
    def _check_values(self) -> SavedEfa:
        """Refuse items, categories and places that no training rows have."""
        if len(set(self.items)) < len(self.items) or any(item != item for item in self.items):
            raise ValueError("items has NaN or a repeated item, expected strings or numbers, each once")
        shape = self.shape
        if not self.items and (shape.part == "items" or not shape.coordinates):
            raise ValueError("expected items or coordinates")
        if self.options.repeats not in (None, shape.repeats) and shape.part == "items":
            raise ValueError(f"shape: repeats is {shape.repeats}, expected {self.options.repeats} as the options say")
        for (column, kind), covariate in zip(self.options.kinds.items(), shape.covariates, strict=True):
            if kind not in (None, covariate.kind):
                raise ValueError(f"shape: the covariate {column!r} is a {covariate.kind}, expected a {kind}")
            has_categories = covariate.kind in ("category", "categories")
            if len(set(covariate.categories)) < max(len(covariate.categories), has_categories):
                raise ValueError(
                    f"shape: the covariate {column!r} has no categories or a repeated one, expected each once"
                )
        if any(len(place) != shape.coordinates for place in shape.places):
            raise ValueError(f"shape: a place does not have {shape.coordinates} coordinates")
        return self


def write_efa(
    folder: Path,
    options: EfaOptions,
    architecture: Architecture,
    parts: Sequence[PartModel],
    items: Sequence[Any],
    counts: ItemCounts | None,
    *,
    epochs: int,
    missing: Sequence[str] | None = None,
) -> None:
    """Write a fitted model to a folder, which is created.

    Args:
        folder: folder of the model.
        options: options of the estimator.
        architecture: architecture of the networks.
        parts: the trained models.
        items: items in the order of their numbers.
        counts: counts of the items of training sequences, which are saved with the part of items.
        epochs: number of epochs of the training.
        missing: see `SavedEfa`.

    Raises:
        OutputError: the folder cannot be written.
        TableError: JSON cannot store an item.
    """
    if len(parts) > 1 and (folder / CONFIG).exists():
        raise OutputError(f"{folder} holds a model of one part, which would be read instead; choose another folder")
    for model in parts:
        config = {
            "options": dict(options),
            "architecture": dict(architecture),
            "epochs": epochs,
            "shape": model.shape.model_dump(),
            "items": list_plain(items, "an item is a") if model.shape.items else [],
            **_describe_layers(model, options),
        }
        if missing is not None:  # older versions do not know the key
            config["missing"] = list(missing)
        tensors = {_name_in_file(name): tensor for name, tensor in model.state_dict().items()}
        if counts is not None and model.is_of_items:
            sizes = SavedCounts(sequences=counts.sequences, pairs=len(counts.pairs), least=counts.least)
            config["counts"] = sizes.model_dump()
            tensors[ITEM_COUNTS] = torch.as_tensor(counts.items)
            tensors[PAIR_COUNTS] = torch.as_tensor(counts.pairs)
        part_folder = folder / model.shape.part if len(parts) > 1 else folder
        write_model(part_folder, SavedEfa, config, tensors)


def _describe_layers(model: PartModel, options: EfaOptions) -> dict[str, Any]:
    """The keys of a transformer's configuration, which `attngeo score` reads; none for a factor model."""
    if not isinstance(model.network, AttentionNetwork):
        return {}
    shape = model.attention.shape
    return {
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "hidden_size": shape.width,
        "head_dim": shape.size,
        "is_decoder": options.causal,
    }


def read_efa(folder: Path, family: ExponentialFamily | None) -> tuple[SavedEfa, list[PartModel], ItemCounts | None]:
    """The configuration, the models and the counts of a folder; parameters and errors are as for `load`."""
    if (folder / CONFIG).exists() or not (folder / MODEL_PARTS[0] / CONFIG).exists():
        about, model, counts = _read_part(folder, family)
        return about, [model], counts
    parts = [_read_part(folder / part, family) for part in MODEL_PARTS]
    (of_items, _, counts), (of_values, _, _) = parts
    is_same = (
        (of_items.shape.part, of_values.shape.part) == MODEL_PARTS
        and of_items.options == of_values.options
        and of_items.architecture == of_values.architecture
        and of_items.shape.covariates == of_values.shape.covariates
        and of_values.items in ((), of_items.items)
    )
    if not is_same:
        raise CorruptCheckpointError(
            "items and values are from different models, expected models of items and of values with the same "
            f"options, items and covariates; {ADVICE}",
            subject=folder,
        )
    return of_items, [model for _, model, _ in parts], counts


def _read_part(folder: Path, family: ExponentialFamily | None) -> tuple[SavedEfa, PartModel, ItemCounts | None]:
    """A model of one part."""
    saved = read_config(folder, SavedEfa)
    options = saved.options
    for text in options.families.values():
        if family is None and text.partition(":")[0] not in FAMILIES:
            raise UnsupportedModelError(
                f"attngeo has no family {text!r:.60}; load the model in Python, and pass its family as the argument "
                "family",
                subject=folder / CONFIG,
            )
    tensors = read_tensors(folder)

    def make() -> PartModel:
        return make_model(options, saved.architecture, make_families(options, family), saved.shape)

    def plan() -> dict[str, Tensor]:
        planned = {_name_in_file(name): weight for name, weight in make().state_dict().items()}
        if saved.counts is not None:
            planned[ITEM_COUNTS] = torch.empty(len(saved.items), dtype=torch.int32)
            planned[PAIR_COUNTS] = torch.empty(saved.counts.pairs, 3, dtype=torch.int32)
        return planned

    check_tensors(folder, tensors, plan)
    model = make()
    check_layers(folder, saved, _describe_layers(model, options))
    model.load_state_dict({name: tensors[_name_in_file(name)] for name in model.state_dict()})
    return saved, model, _read_counts(folder, saved, tensors)


def _read_counts(folder: Path, saved: SavedEfa, tensors: dict[str, Tensor]) -> ItemCounts | None:
    """The counts of items, if the model has them. Raises CorruptCheckpointError if sequences have no such counts."""
    sizes = saved.counts
    if sizes is None:
        return None
    counts = ItemCounts(sizes.sequences, tensors[ITEM_COUNTS].numpy(), tensors[PAIR_COUNTS].numpy(), sizes.least)
    first, second, both = counts.pairs.T
    is_pair = (first >= 0) & (first < second) & (second < len(counts.items))
    is_count = (counts.items >= 0) & (counts.items <= counts.sequences)
    if not (is_pair.all() and is_count.all() and ((both >= 1) & (both <= counts.sequences)).all()):
        raise CorruptCheckpointError(
            f"the counts of items do not match the number of sequences, {counts.sequences:,}; {ADVICE}",
            subject=folder / WEIGHTS,
        )
    return counts


def _name_in_file(name: str) -> str:
    """The name of a tensor in the file."""
    if not name.startswith(LAYERS):
        return name
    layer, _, path = name.removeprefix(LAYERS).partition(".")
    module, _, parameter = path.rpartition(".")
    if module in ("query", "key", "value"):
        module = f"attention.self.{module}"
    return f"{LAYERS_IN_FILE}{layer}.{module}.{parameter}"
