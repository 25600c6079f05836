"""A fitted classifier on disk: a folder with `config.json` and `model.safetensors`; nothing in it can run code.

The tensors are named and laid out as those of a transformer's layer, so that `attngeo score` reads them, too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from attngeo import __version__
from attngeo.devices import usable_device
from attngeo.errors import CorruptCheckpointError, TableError, UsageError, first_line
from attngeo.tables.atomic import atomic_write
from attngeo.tables.saved import CONFIG, PLAIN, read_config
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
    """Write a fitted classifier to a folder, which is created. Raises OutputError; TableError for values JSON lacks."""
    folder = Path(folder)
    coding, network = model.coding_, model.network_
    parameters = model.get_params()
    if not isinstance(parameters["random_state"], int | None):
        parameters["random_state"] = None
    about = {
        "model_type": MODEL_TYPE, "format": FORMAT, "attngeo_version": __version__,
        "num_hidden_layers": 1, "num_attention_heads": network.heads, "hidden_size": network.width,
        "intermediate_size": network.shape["feed_forward"],
        "parameters": parameters, "named": coding.named,
        "seed": model._seed, "data_sets": model._data_sets, "epochs": model.n_iter_,
        "columns": [_describe_column(column) for column in coding.columns],
    }  # fmt: skip
    tensors = {}
    for name, own in NAMES.items():
        weight = network.weights[own].detach()[0].cpu()
        weight = weight.T if own in TRANSPOSED else weight[0] if weight.shape[0] == 1 and "bias" in name else weight
        tensors[name] = (weight[0] if own.startswith("gain") else weight).contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / WEIGHTS) as path:
        save_file(tensors, path, metadata={"format": "pt"})
    with atomic_write(folder / CONFIG) as path:
        path.write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _describe_column(column: ColumnCoding) -> dict[str, Any]:
    values = [value.item() if isinstance(value, np.generic) else value for value in column.values]
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
        columns = tuple(
            ColumnCoding(each["name"], tuple(each["values"]), None if each["edges"] is None else tuple(each["edges"]))
            for each in about["columns"]
        )
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
    except (LookupError, TypeError, ValueError, OverflowError, UsageError) as error:
        raise CorruptCheckpointError(f"{folder / CONFIG}: is no saved classifier ({first_line(error)})") from None
    _load_weights(network, folder / WEIGHTS)
    model.network_ = network
    model.train_loss_ = model.validation_loss_ = np.empty(0)
    model.n_features_in_ = len(names)
    if model.coding_.named:
        model.feature_names_in_ = np.array(names, dtype=object)
    return model


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
