"""A fitted classifier on disk: a folder with `config.json` and `model.safetensors`; nothing in it can run code.

The tensors are named and laid out as those of a transformer's layer, so that `attngeo score` reads them, too.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from sklearn.utils.validation import check_is_fitted

from attngeo import __version__
from attngeo.devices import usable_device
from attngeo.errors import CorruptCheckpointError, TableError, UsageError, first_line
from attngeo.tables.saved import CONFIG, PLAIN, read_config, write_model
from attngeo.tabular.classifier import AttentionClassifier
from attngeo.tabular.encoding import ColumnCoding, TableCoding
from attngeo.tabular.network import CellLayout, TableAttention

WEIGHTS = "model.safetensors"
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
        weight = network.weights[own].detach()[0].cpu()
        weight = weight.T if own in TRANSPOSED else weight[0] if weight.shape[0] == 1 and "bias" in name else weight
        tensors[name] = (weight[0] if own.startswith("gain") else weight).contiguous()
    write_model(folder, about, tensors, WEIGHTS)


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

    Raises ModelNotFoundError if there is none, UnsupportedModelError if it is of another version, and
    CorruptCheckpointError if its files are broken or contradict each other.
    """
    folder = Path(folder)
    about = read_config(folder, MODEL_TYPE, FORMAT, MADE_BY)
    try:
        columns = tuple(map(_read_column, about["columns"]))
        model = AttentionClassifier(**about["parameters"])
        model.set_params(device=usable_device(model.device))
        model.coding_ = TableCoding(columns, bool(about["named"]))
        layout = CellLayout(model.coding_.sizes, model.vocabulary == "shared")
        network = TableAttention(
            layout, heads=model.n_heads, head_size=model.head_size, feed_forward=model.feed_forward,
            generators=[torch.Generator()],
        )  # fmt: skip
        model.n_iter_, model._data_sets, names = int(about["epochs"]), int(about["data_sets"]), model.coding_.names
        model._seed, model._optimizer = int(about.get("seed", 0)), None
        if model._seed < 0:
            raise ValueError(f"seed is {model._seed}")
        if about.get("missing") is not None:
            model.missing_texts = tuple(map(str, about["missing"]))
    except (LookupError, TypeError, ValueError, OverflowError, UsageError) as error:
        raise CorruptCheckpointError(f"{folder / CONFIG}: is no saved classifier ({first_line(error)})") from None
    _load_weights(network, folder / WEIGHTS)
    model.network_ = network
    model.train_loss_ = model.validation_loss_ = np.empty(0)
    model.n_features_in_ = len(names)
    if model.coding_.named:
        model.feature_names_in_ = np.array(names, dtype=object)
    return model


def _read_column(about: dict[str, Any]) -> ColumnCoding:
    """A column of a configuration. Raises ValueError, LookupError and TypeError for what cannot be one."""
    values, edges = tuple(about["values"]), about["edges"]
    if edges is not None:
        edges = tuple(map(float, edges))
        if len(edges) != len(values) - 1 or not all(low < high for low, high in pairwise(edges)):
            raise ValueError(f"column {about['name']!r:.40} has {len(values)} bins, and edges that do not part them")
    return ColumnCoding(about["name"], values, edges)


def _load_weights(network: TableAttention, path: Path) -> None:
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CorruptCheckpointError(f"{path} cannot be read ({first_line(error)})") from None
    with torch.no_grad():
        for name, own in NAMES.items():
            weight = network.weights[own]
            found = tensors.get(name)
            wanted = list(weight.shape[1:][::-1] if own in TRANSPOSED else weight.shape[1:])
            if found is None or found.numel() != weight.numel() or not found.isfinite().all():
                shape = "none" if found is None else list(found.shape)
                raise CorruptCheckpointError(f"{path}: {name} is {shape}, expected finite numbers of shape {wanted}")
            weight.copy_((found.T if own in TRANSPOSED else found).reshape(weight.shape))
