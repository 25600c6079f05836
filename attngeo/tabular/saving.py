"""A fitted classifier on disk: a folder with `config.json` and `model.safetensors`; nothing in it can run code.

The tensors are named and laid out as those of a transformer's layer, so that `attngeo score` reads them, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from attngeo import __version__
from attngeo.devices import usable_device
from attngeo.errors import CorruptCheckpointError, TableError
from attngeo.options import OPTIMISATION, option
from attngeo.schemas import Table
from attngeo.tables.saved import (
    ADVICE,
    CONFIG,
    PLAIN,
    Count,
    Finite,
    Plain,
    SavedModel,
    check_tensors,
    read_config,
    read_tensors,
    write_model,
)
from attngeo.tabular.classifier import AttentionClassifier
from attngeo.tabular.encoding import ColumnCoding, TableCoding
from attngeo.tabular.network import CellLayout, TableAttention, list_weights
from attngeo.tabular.options import ClassifierOptions

MODEL_TYPE = "attngeo_tabular"
MADE_BY = "attngeo tabular fit --save"
FORMAT = 1
LAYER = "encoder.layer.0"
# Tensor in the file → weight of the network. A matrix is saved as that of a Linear: [out, in].
NAMES = {
    "embeddings.word_embeddings.weight": "words",
    "embeddings.position_embeddings.weight": "positions",
    **{
        f"{LAYER}.{module}.{kind}": weight + suffix
        for module, weight in (
            ("attention.self.query", "query"), ("attention.self.key", "key"), ("attention.self.value", "value"),
            ("attention.output.dense", "out"), ("intermediate.dense", "up"), ("output.dense", "down"),
        )
        for kind, suffix in (("weight", ""), ("bias", "_bias"))
    },
    f"{LAYER}.attention.output.LayerNorm.weight": "gain1",
    f"{LAYER}.attention.output.LayerNorm.bias": "bias1",
    f"{LAYER}.output.LayerNorm.weight": "gain2",
    f"{LAYER}.output.LayerNorm.bias": "bias2",
    "classifier.weight": "word",
    "classifier.bias": "word_bias",
}  # fmt: skip
TRANSPOSED = {"query", "key", "value", "out", "up", "down", "word"}


class SavedParameters(ClassifierOptions):
    """The parameters of a classifier: its options and its seed."""

    random_state: int | None = option(None, "Seed", panel=OPTIMISATION, least=0, most=2**32 - 1)


class SavedColumn(Table):
    """A `ColumnCoding`."""

    name: Plain
    values: tuple[Plain, ...]
    edges: tuple[Finite, ...] | None = None

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> SavedColumn:
        for problem in self._list_problems():
            raise ValueError(f"column {self.name!r:.40} {problem}")
        return self

    def _list_problems(self) -> Iterator[str]:
        if any(isinstance(value, float) and math.isnan(value) for value in (self.name, *self.values)):
            yield "has NaN, expected texts or numbers"
        if self.edges is None:
            if len(set(self.values)) < len(self.values):
                yield "has a value twice, expected each once"
        elif len(self.edges) != len(self.values) - 1 or not all(low < high for low, high in pairwise(self.edges)):
            yield f"has {len(self.values)} bins, and edges that do not part them"
        elif not all(not isinstance(value, bool | str) and math.isfinite(value) for value in self.values):
            yield "has bins whose values are no numbers"


class SavedClassifier(SavedModel):
    """The configuration of a classifier. Files of the first versions lack the keys that have a default."""

    parameters: SavedParameters
    named: bool
    seed: Count = 0
    data_sets: Annotated[Count, Field(ge=1)]
    columns: Annotated[tuple[SavedColumn, ...], Field(min_length=2)]
    missing: tuple[str, ...] | None = None
    num_hidden_layers: Literal[1]
    num_attention_heads: Count
    hidden_size: Count
    intermediate_size: Count

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> SavedClassifier:
        names, response = [column.name for column in self.columns[:-1]], self.columns[-1]
        if len(set(names)) < len(names):
            raise ValueError("columns has a name twice, expected each once")
        if self.named != all(isinstance(name, str) for name in names):
            raise ValueError(f"named is {self.named}, which does not fit the names of columns")
        if response.edges is not None or len(response.values) < 2:
            raise ValueError("columns: the last one, the response, has bins or fewer than 2 values, expected 2 or more")
        return self


def save_classifier(model: AttentionClassifier, folder: str | Path) -> None:
    """Write a fitted classifier to a folder, which is created.

    Raises OutputError, TableError for values that JSON lacks, and scikit-learn's NotFittedError.
    """
    folder = Path(folder)
    check_is_fitted(model, "network_")
    coding, network = model.coding_, model.network_
    parameters = {name: _plain(value) for name, value in model.get_params().items()}
    if not isinstance(parameters["random_state"], int | None):
        parameters["random_state"] = None
    about = {
        "model_type": MODEL_TYPE, "format": FORMAT, "attngeo_version": __version__,
        "num_hidden_layers": 1, "num_attention_heads": network.heads, "hidden_size": network.width,
        "intermediate_size": network.shape["feed_forward"],
        "parameters": parameters, "named": coding.named,
        "seed": model._seed, "data_sets": model._data_sets, "epochs": model.n_iter_,
        "columns": describe_columns(coding), "missing": model.missing_texts,
    }  # fmt: skip
    tensors = {}
    for name, own in NAMES.items():
        tensors[name] = _to_file(own, network.weights[own].detach()[0].cpu()).contiguous()
    write_model(folder, about, tensors)


def _to_file(own: str, weight: Tensor) -> Tensor:
    """A weight as it is in the file. own: its name in the network."""
    if own in TRANSPOSED:
        return weight.T
    return weight[0] if "bias" in own or "gain" in own else weight


def describe_columns(coding: TableCoding) -> list[dict[str, Any]]:
    """The columns as a saved model keeps them. Raises TableError for a value that JSON lacks."""
    return [_describe_column(column) for column in coding.columns]


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _describe_column(column: ColumnCoding) -> dict[str, Any]:
    values = [_plain(value) for value in column.values]
    for value in (column.name, *values):
        if not isinstance(value, PLAIN):
            raise TableError(
                f"column {column.name!r} has a {type(value).__name__}, which a saved model cannot keep; use texts or "
                "numbers"
            )
    return {"name": column.name, "values": values, "edges": None if column.edges is None else list(column.edges)}


def load_classifier(folder: str | Path) -> AttentionClassifier:
    """The classifier that `save_classifier` wrote.

    Raises ModelNotFoundError if there is none, UnsupportedModelError if it is of another version,
    CorruptCheckpointError if its files are broken or contradict each other, and NotEnoughMemoryError.
    """
    folder = Path(folder)
    about = read_config(folder, SavedClassifier, MODEL_TYPE, FORMAT, MADE_BY)
    model = AttentionClassifier(**dict(about.parameters))
    model.set_params(device=usable_device(model.device))
    columns = tuple(ColumnCoding(column.name, column.values, column.edges) for column in about.columns)
    model.coding_ = TableCoding(columns, about.named)
    layout = CellLayout(model.coding_.sizes, model.vocabulary == "shared")
    sizes = {"heads": model.n_heads, "head_size": model.head_size, "feed_forward": model.feed_forward}
    stated = (about.num_attention_heads, about.hidden_size, about.intermediate_size)
    wanted = (model.n_heads, model.n_heads * model.head_size, model.feed_forward)
    if stated != wanted:
        raise CorruptCheckpointError(
            f"{folder / CONFIG}: num_attention_heads, hidden_size and intermediate_size are {stated}, expected "
            f"{wanted} as the parameters say; {ADVICE}"
        )
    tensors = read_tensors(folder)

    def plan() -> dict[str, Tensor]:
        weights = list_weights(layout, **sizes)
        return {name: _to_file(own, weights[own]) for name, own in NAMES.items()}

    check_tensors(folder, tensors, plan)
    network = TableAttention(layout, **sizes, generators=[torch.Generator()])
    with torch.no_grad():
        for name, own in NAMES.items():
            weight = network.weights[own]
            weight.copy_((tensors[name].T if own in TRANSPOSED else tensors[name]).reshape(weight.shape))
    names = model.coding_.names
    model.network_, model.n_iter_, model._data_sets = network, about.epochs, about.data_sets
    model._seed, model._optimizer, model.missing_texts = about.seed, None, about.missing
    model.train_loss_ = model.validation_loss_ = np.empty(0)
    model.n_features_in_ = len(names)
    if model.coding_.named:
        model.feature_names_in_ = np.array(names, dtype=object)
    return model
