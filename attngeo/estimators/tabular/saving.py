"""The files of a fitted classifier: a folder with `config.json` and `model.safetensors`; nothing in it can run code.

The tensors are named and laid out as those of a transformer's layer, so that `attngeo score` reads them, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from attngeo.estimators.shared.dates import DateColumn, find_zone
from attngeo.estimators.shared.saving import (
    Count,
    Finite,
    Plain,
    SavedModel,
    check_layers,
    check_tensors,
    list_plain,
    read_config,
    read_tensors,
    write_model,
)
from attngeo.estimators.tabular.cell_layout import CellLayout
from attngeo.estimators.tabular.coding import ColumnCoding, TableCoding
from attngeo.estimators.tabular.network import TableAttention, draw_start
from attngeo.estimators.tabular.options import MADE_BY, ClassifierOptions
from attngeo.schemas import Table

LAYER = "encoder.layer.0"
# Tensor in the file → weight of the network. A matrix is saved as that of a Linear: [out, in].
NAMES = {
    "embeddings.word_embeddings.weight": "words",
    "embeddings.position_embeddings.weight": "positions",
    f"{LAYER}.attention.self.query.weight": "query",
    f"{LAYER}.attention.self.query.bias": "query_bias",
    f"{LAYER}.attention.self.key.weight": "key",
    f"{LAYER}.attention.self.key.bias": "key_bias",
    f"{LAYER}.attention.self.value.weight": "value",
    f"{LAYER}.attention.self.value.bias": "value_bias",
    f"{LAYER}.attention.output.dense.weight": "out",
    f"{LAYER}.attention.output.dense.bias": "out_bias",
    f"{LAYER}.intermediate.dense.weight": "up",
    f"{LAYER}.intermediate.dense.bias": "up_bias",
    f"{LAYER}.output.dense.weight": "down",
    f"{LAYER}.output.dense.bias": "down_bias",
    f"{LAYER}.attention.output.LayerNorm.weight": "gain1",
    f"{LAYER}.attention.output.LayerNorm.bias": "bias1",
    f"{LAYER}.output.LayerNorm.weight": "gain2",
    f"{LAYER}.output.LayerNorm.bias": "bias2",
    "classifier.weight": "word",
    "classifier.bias": "word_bias",
}
# Those of a model with vectors of unseen values.
UNSEEN_NAMES = {"embeddings.unseen_embeddings.weight": "unseen"}
TRANSPOSED = {"query", "key", "value", "out", "up", "down", "word"}


class SavedColumn(Table):
    """A `ColumnCoding` in the configuration.

    Attributes:
        name: name of the column.
        values: its categories.
        edges: upper ends of the bins but the last one; None if the column has no numbers.
    """

    name: Plain
    values: tuple[Plain, ...]
    edges: tuple[Finite, ...] | None = None

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> SavedColumn:
        problem = ""
        if any(isinstance(value, float) and math.isnan(value) for value in (self.name, *self.values)):
            problem = "has NaN, expected strings or numbers"
        elif self.edges is None:
            if len(set(self.values)) < len(self.values):
                problem = "has a repeated value, expected each once"
        elif len(self.edges) != len(self.values) - 1 or not all(low < high for low, high in pairwise(self.edges)):
            problem = f"has {len(self.values)} bins, and edges that do not separate them"
        elif not all(not isinstance(value, bool | str) and math.isfinite(value) for value in self.values):
            problem = "has bins whose values are not numbers"
        if problem:
            raise ValueError(f"column {self.name!r:.40} {problem}")
        return self


class SavedClassifier(SavedModel):
    """The configuration of a classifier, or of a model without a target.

    Attributes:
        parameters: parameters of the estimator.
        seed: seed of the model.
        data_sets: number of data sets in its training.
        columns: codings of the columns, the response last.
        missing: texts that mark missing cells; None for the defaults of `read_own_table`.
        missing_in: number or date column → texts that mark missing cells only there; empty in older versions.
        partial_columns: columns that some training files lacked; empty in older versions.
        dates: date column → format of its cells.
        zones: date column → its zone, "" for none; None in older versions.
        date_examples: date column → a cell of it.
        has_unseen: whether unseen values have vectors.
        target: whether it has a response.
        num_hidden_layers: always 1.
        num_attention_heads: number of heads.
        hidden_size: width of the layer.
        intermediate_size: hidden units of the feed-forward layer.
    """

    TYPE = "attngeo_tabular"
    FORMAT = 2
    OLDER = (1,)
    MADE_BY = MADE_BY
    parameters: ClassifierOptions
    seed: Count
    data_sets: Annotated[Count, Field(ge=1)]
    columns: Annotated[tuple[SavedColumn, ...], Field(min_length=2)]
    missing: tuple[str, ...] | None
    # Texts that are missing cells in one column of numbers or dates; older versions know none.
    missing_in: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    # Columns that rows to predict may lack, because some training files lacked them; older versions know none.
    partial_columns: tuple[str, ...] = ()
    # How the columns of dates are written, their zones ("" for none; older versions know none) and a cell of each.
    dates: dict[str, str] = Field(default_factory=dict)
    zones: dict[str, str] | None = None
    date_examples: dict[str, str] = Field(default_factory=dict)
    has_unseen: bool = False
    target: bool = True
    num_hidden_layers: Literal[1]
    num_attention_heads: Count
    hidden_size: Count
    intermediate_size: Count

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> SavedClassifier:
        features = self.columns[:-1] if self.target else self.columns
        response = self.columns[-1]
        if len({column.name for column in features}) < len(features):
            raise ValueError("columns has a repeated name, expected each once")
        for zone in filter(None, (self.zones or {}).values()):
            find_zone(zone)
        if not self.target:
            return self
        if response.edges is not None or len(response.values) < 2:
            raise ValueError(
                "columns: the last one, the response, has bins or fewer than 2 values, expected at least 2 values and "
                "no bins"
            )
        return self

    def list_dates(self) -> dict[str, DateColumn]:
        """The columns of dates; without zones in a model of an older version."""
        dates = {}
        for name, written in self.dates.items():
            zone = None if self.zones is None else self.zones.get(name, "")
            dates[name] = DateColumn(written, zone, self.date_examples.get(name, ""))
        return dates


def describe_dates(dates: Mapping[str, DateColumn]) -> dict[str, Any]:
    """The keys of the configuration for columns of dates."""
    described: dict[str, Any] = {"dates": {name: date.written for name, date in dates.items()}}
    zones = {name: date.zone for name, date in dates.items() if date.zone is not None}
    if zones:  # older versions read a model without these keys
        described["zones"] = zones
        described["date_examples"] = {name: date.example for name, date in dates.items()}
    return described


def write_classifier(
    folder: Path, options: ClassifierOptions, coding: TableCoding, network: TableAttention, **state: Any
) -> None:
    """Write the files of a fitted classifier.

    state: seed, data_sets, epochs, missing, missing_in, partial_columns, and the keys of `describe_dates`. Raises
    OutputError, and TableError for values that JSON cannot store.
    """
    config: dict[str, Any] = {
        **_describe_layers(options),
        "parameters": dict(options),
        **state,
        "has_unseen": network.layout.has_unseen,
        "columns": describe_columns(coding),
    }
    if not coding.has_response:
        config["target"] = False
    names = _name_weights(network.layout)
    tensors = {name: _to_file(weight, network.weights[weight][0]) for name, weight in names.items()}
    write_model(folder, SavedClassifier, config, tensors)


def _name_weights(layout: CellLayout) -> dict[str, str]:
    """Tensor in the file → weight of the network, of a model with this layout."""
    return NAMES | UNSEEN_NAMES if layout.has_unseen else NAMES


def _describe_layers(options: ClassifierOptions) -> dict[str, int]:
    """The keys of a transformer's configuration, which `attngeo score` reads."""
    return {
        "num_hidden_layers": 1,
        "num_attention_heads": options.n_heads,
        "hidden_size": options.n_heads * options.head_size,
        "intermediate_size": options.feed_forward,
    }


def _to_file(name: str, weight: Tensor) -> Tensor:
    """A weight as it is in the file. name: of the weight in the network."""
    if name in TRANSPOSED:
        return weight.T
    return weight[0] if "bias" in name or "gain" in name else weight


def describe_columns(coding: TableCoding) -> list[dict[str, Any]]:
    """The columns in the form for a saved model. Raises TableError for a value that JSON cannot store."""
    described = []
    for column in coding.columns:
        name, *values = list_plain((column.name, *column.values), f"column {column.name!r} has a")
        edges = None if column.edges is None else list(column.edges)
        described.append({"name": name, "values": values, "edges": edges})
    return described


def read_classifier(folder: Path) -> tuple[SavedClassifier, TableCoding, TableAttention]:
    """The configuration, coding and network of a folder from `write_classifier`. Raises what `load` raises."""
    saved = read_config(folder, SavedClassifier)
    options = saved.parameters
    check_layers(folder, saved, _describe_layers(options))
    coding = TableCoding(tuple(ColumnCoding(**dict(column)) for column in saved.columns), saved.target)
    layout = CellLayout(coding.sizes, options.vocabulary == "shared", saved.has_unseen)
    names = _name_weights(layout)
    tensors = read_tensors(folder)

    def plan() -> dict[str, Tensor]:
        weights = draw_start(layout, options.n_heads, options.head_size, options.feed_forward)
        return {name: _to_file(weight, weights[weight]) for name, weight in names.items()}

    check_tensors(folder, tensors, plan)
    network = TableAttention(layout, **options.sizes, generators=[torch.Generator()])
    with torch.no_grad():
        for name, weight in names.items():
            target = network.weights[weight]
            tensor = tensors[name].T if weight in TRANSPOSED else tensors[name]
            target.copy_(tensor.reshape(target.shape))
    return saved, coding, network
