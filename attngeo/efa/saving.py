"""A fitted model on disk: a folder with `config.json` and `model.safetensors`; nothing in it can run code.

The tensors of attention are named and laid out as those of a transformer's layers, so that `attngeo score` reads them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from attngeo import __version__
from attngeo.devices import usable_device
from attngeo.efa.description import DataShape
from attngeo.efa.family_names import FAMILY_NAMES
from attngeo.efa.modelling import make_model
from attngeo.efa.options import EfaOptions
from attngeo.errors import CorruptCheckpointError, TableError, UnsupportedModelError, UsageError, first_line
from attngeo.tables.saved import CONFIG, PLAIN, read_config, write_model

if TYPE_CHECKING:
    from attngeo.efa.estimator import ExponentialFamilyAttention

WEIGHTS = "model.safetensors"
MODEL_TYPE, FORMAT = "attngeo_efa", 1
MADE_BY = "attngeo efa fit --save"
# Names in the file begin as those of a bare encoder; the rest of a model is beside its layers.
LAYERS, IN_FILE = "network.attention.layers.", "encoder.layer."


def save_model(model: ExponentialFamilyAttention, folder: str | Path) -> None:
    """Write a fitted model to a folder, which is created. Raises OutputError; TableError for items JSON lacks."""
    folder = Path(folder)
    items = check_items(model.items_)
    part = model.model_
    attention = getattr(part.network, "attention", None)
    about = {
        "model_type": MODEL_TYPE, "format": FORMAT, "attngeo_version": __version__,
        "options": dataclasses.asdict(model.options), "shape": dataclasses.asdict(part.shape), "items": items,
        "epochs": len(model.history_.train),
    }  # fmt: skip
    if attention is not None:
        shape = attention.shape
        about |= {
            "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "hidden_size": shape.width,
            "head_dim": shape.size, "is_decoder": model.options.direction == "uni",
        }  # fmt: skip
    tensors = {_to_file(name): each.detach().cpu().contiguous() for name, each in part.state_dict().items()}
    write_model(folder, about, tensors, WEIGHTS)


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
    has no name here, and CorruptCheckpointError if its files are broken or contradict each other.
    """
    from attngeo.efa.estimator import ExponentialFamilyAttention
    from attngeo.training import History

    folder = Path(folder)
    about = read_config(folder, MODEL_TYPE, FORMAT, MADE_BY)
    try:
        family = str(dict(about["options"]).get("family", EfaOptions.family)).partition(":")[0]
        if family not in FAMILY_NAMES:
            raise UnsupportedModelError(
                f"{folder / CONFIG}: the family {family!r:.60} is not known; call attngeo.efa.register_family with "
                "that name, and load the model in Python"
            )
        options = EfaOptions(**about["options"])
        found = ExponentialFamilyAttention(options=dataclasses.replace(options, device=usable_device(options.device)))
        shape = DataShape(**{name: _freeze(value) for name, value in about["shape"].items()})
        found.items_, found._shape = list(about["items"]), shape
        if len(found.items_) != shape.items:
            raise ValueError(f"{len(found.items_)} items, expected {shape.items}")
        found.history_ = History(np.full(int(about["epochs"]), np.nan), *(np.empty(0) for _ in range(2)))
        path = folder / WEIGHTS
        tensors = load_file(path)
        _check_sizes(found.options, shape, tensors, path)
        model = make_model(found.options, shape)
    except (LookupError, TypeError, ValueError, UsageError, TableError) as error:
        raise CorruptCheckpointError(f"{folder / CONFIG}: is no saved model ({first_line(error)})") from None
    except (OSError, SafetensorError) as error:
        raise CorruptCheckpointError(f"{folder / WEIGHTS} cannot be read ({first_line(error)})") from None
    for name, wanted in model.state_dict().items():
        each = tensors.get(_to_file(name))
        if each is None or each.shape != wanted.shape or not each.isfinite().all():
            have = "none" if each is None else list(each.shape)
            raise CorruptCheckpointError(
                f"{path}: {_to_file(name)} is {have}, expected finite numbers of shape {list(wanted.shape)}"
            )
    model.load_state_dict({name: tensors[_to_file(name)] for name in model.state_dict()})
    found.model_ = model.eval()
    return found


def _check_sizes(options: EfaOptions, shape: DataShape, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raise CorruptCheckpointError if a model of these options has other tensors, before its memory is taken."""
    layers = {name.removeprefix(IN_FILE).partition(".")[0] for name in tensors if name.startswith(IN_FILE)}
    if options.model == "efa" and len(layers) != options.layers:
        raise CorruptCheckpointError(f"{path} has {len(layers)} layers, expected {options.layers}")
    with torch.device("meta"):
        empty = make_model(options, shape)
    for name, wanted in empty.state_dict().items():
        each = tensors.get(_to_file(name))
        if each is None or each.shape != wanted.shape:
            have = "none" if each is None else list(each.shape)
            raise CorruptCheckpointError(f"{path}: {_to_file(name)} is {have}, expected {list(wanted.shape)}")


def _to_file(name: str) -> str:
    """The name of a tensor in the file."""
    if not name.startswith(LAYERS):
        return name
    number, _, rest = name.removeprefix(LAYERS).partition(".")
    module, _, kind = rest.rpartition(".")
    place = f"attention.self.{module}" if module in ("query", "key", "value") else module
    return f"{IN_FILE}{number}.{place}.{kind}"


def _freeze(value: Any) -> Any:
    """Lists of JSON as tuples."""
    return tuple(_freeze(each) for each in value) if isinstance(value, list) else value
