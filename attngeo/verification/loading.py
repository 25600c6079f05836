"""From an open checkpoint to a transformers model in memory: in float32, ready to run, and without code of the Hub."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import nn

from attngeo.bounds import available_memory
from attngeo.checkpoints.files import INDEX_SUFFIX, SAFETENSORS, FileStore, require_format, usual_names
from attngeo.embeddings.tokeniser import silence_transformers
from attngeo.errors import CorruptCheckpointError, NotEnoughMemoryError, UnsupportedModelError, first_line
from attngeo.progress import Progress, ProgressCallback
from attngeo.verification.runs import MOST_HELD

FLOAT32 = 4  # bytes


class LoadedModel(NamedTuple):
    """A model, and the names of its tensors that the file lacks: they have random values."""

    model: nn.Module
    missing: frozenset[str]


def load_model(store: FileStore, report: ProgressCallback) -> LoadedModel:
    """Load the model of a checkpoint with the class of transformers that its config.json names.

    Everything that can be refused is refused before a file of weights is downloaded. Raises UnsupportedModelError if
    transformers has no class for the model or its weights are quantised; NotEnoughMemoryError; CorruptCheckpointError
    if the weights do not fit the class.
    """
    ref = store.ref
    folder = _folder_of(store)
    _refuse_foreign(store)
    config = _read_config(folder, ref)
    model_class = _choose_class(config, ref)
    _require_room(_float32_nbytes(model_class, config, store), ref)
    store.download(lambda file: report(Progress("download", file)))
    store.fetch(store.names)  # raises for a broken file, with its name
    report(Progress("load", f"{model_class.__name__} in float32"))
    return _load(model_class, config, folder, store)


@contextmanager
def borrow_model(model: nn.Module, ref: str) -> Iterator[nn.Module]:
    """Inside, a model in memory in evaluation mode, float32 and on the CPU: itself, or else a copy of it.

    Raises NotEnoughMemoryError if there is no room for the copy, CorruptCheckpointError for a model without values.
    """
    tensors = [*model.parameters(), *model.buffers()]
    if any(t.is_meta for t in tensors):
        raise CorruptCheckpointError(f"{ref}: the model is on the meta device and has no values; load the weights")
    if any(t.device.type != "cpu" or (t.is_floating_point() and t.dtype != torch.float32) for t in tensors):
        _require_room(FLOAT32 * sum(t.numel() for t in tensors), ref)
        yield copy.deepcopy(model).to("cpu", torch.float32).eval()
        return
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield model
    finally:
        for module in training:
            module.training = True


@contextmanager
def silence_libraries() -> Iterator[None]:
    """Inside, transformers and torch print no warnings and no progress bars."""
    with silence_transformers(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _require_room(nbytes: int, ref: str) -> None:
    """Raise NotEnoughMemoryError if so many bytes of a model, and MOST_HELD of its products, do not fit in memory."""
    need, have = nbytes + MOST_HELD, available_memory()
    if need > have:
        raise NotEnoughMemoryError(
            f"{ref}: to verify it, the whole model is loaded in float32, which needs {need / 1e9:.1f} GB of memory; "
            f"{max(have, 0) / 1e9:.1f} GB are available; use a machine with more memory, or score it without "
            "verification, which reads one layer at a time"
        )


def _folder_of(store: FileStore) -> Path:
    """The folder that has config.json, and the weights once they are fetched."""
    path = store.file("config.json")
    if path is None:
        raise UnsupportedModelError(
            f"{store.ref}: transformers loads a folder with config.json, which is missing here; give such a folder"
        )
    return path.parent


def _refuse_foreign(store: FileStore) -> None:
    """Raise UnsupportedModelError for what transformers does not load without code of the Hub or quantised kernels."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    ref, model_type = store.ref, str(store.config.get("model_type"))
    if model_type not in CONFIG_MAPPING:
        if store.config.get("auto_map"):
            raise UnsupportedModelError(
                f"{ref}: model type {model_type!r} needs code from the Hub, which is not run; score it without "
                "verification"
            )
        raise UnsupportedModelError(
            f"{ref}: transformers {transformers.__version__} has no model type {model_type!r}; score it without "
            "verification, or install a version of transformers that has it"
        )
    if stated := store.config.get("quantization_config"):
        method = stated.get("quant_method") if isinstance(stated, dict) else None
        raise UnsupportedModelError(
            f"{ref}: its weights are quantised ({method or 'unknown method'}), so the running model does not multiply "
            "what the file holds; give the model without quantisation, or score it without verification"
        )
    if not _is_safetensors(store) and store.main_file not in usual_names():
        raise UnsupportedModelError(
            f"{ref}: transformers does not load {store.main_file} under this name, expected one of: "
            f"{', '.join(usual_names())}; rename it, or score it without verification"
        )


def _is_safetensors(store: FileStore) -> bool:
    return require_format(store.main_file.removesuffix(INDEX_SUFFIX), store.ref) is SAFETENSORS


def _read_config(folder: Path, ref: str) -> Any:
    try:
        return transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # a configuration class checks its fields as it likes
        raise CorruptCheckpointError(
            f"{ref}: transformers cannot read config.json ({type(error).__name__}: {first_line(error)}); "
            "correct it, or download it again"
        ) from None


def _choose_class(config: Any, ref: str) -> Any:
    """The class that config.json names, if transformers has it for this configuration; else that of AutoModel."""
    names = getattr(config, "architectures", None)
    named = getattr(transformers, str(names[0]), None) if isinstance(names, list) and names else None
    if isinstance(named, type) and getattr(named, "config_class", None) is type(config):
        return named
    try:
        return transformers.MODEL_MAPPING[type(config)]
    except KeyError:
        raise UnsupportedModelError(
            f"{ref}: transformers {transformers.__version__} has no model class for {type(config).__name__}; "
            "score it without verification"
        ) from None


def _float32_nbytes(model_class: Any, config: Any, store: FileStore) -> int:
    """Bytes of the model in float32, from a model without memory; or those of the tensors in the file."""
    try:
        with torch.device("meta"):
            model = model_class(copy.deepcopy(config))
    except Exception:  # some classes compute with the values of tensors as they are made
        counts = [math.prod(store.info(name).shape) for name in store.names]
    else:
        counts = [tensor.numel() for tensor in (*model.parameters(), *model.buffers())]
    return FLOAT32 * sum(counts)


def _load(model_class: Any, config: Any, folder: Path, store: FileStore) -> LoadedModel:
    is_safetensors = _is_safetensors(store)
    if is_safetensors:
        config.transformers_weights = store.main_file  # otherwise, transformers may choose another file of the folder
    try:
        model, info = model_class.from_pretrained(
            folder, config=config, dtype=torch.float32, attn_implementation="eager", use_safetensors=is_safetensors,
            local_files_only=True, trust_remote_code=False, ignore_mismatched_sizes=True, output_loading_info=True,
        )  # fmt: skip
    except ImportError as error:
        raise UnsupportedModelError(
            f"{store.ref}: {model_class.__name__} needs packages that are not installed ({first_line(error)})"
        ) from None
    except Exception as error:  # a model class and its loader raise anything
        raise CorruptCheckpointError(
            f"{store.ref}: transformers cannot load it as {model_class.__name__} ({type(error).__name__}: "
            f"{first_line(error)})"
        ) from None
    for name, stored, wanted in sorted(info["mismatched_keys"]):
        raise CorruptCheckpointError(
            f"{store.ref}: {name} is {list(stored)}, expected {list(wanted)} by {model_class.__name__}; config.json "
            "and weights do not belong together"
        )
    return LoadedModel(model.float().eval(), frozenset(info["missing_keys"]))
