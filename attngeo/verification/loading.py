"""Models that run: loaded by transformers from an open checkpoint, without code of the Hub, or borrowed from memory."""

from __future__ import annotations

import copy
import io
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from huggingface_hub import constants
from torch import nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from attngeo.bounds.machine import available_memory
from attngeo.checkpoints.adapters import AdapterStore
from attngeo.checkpoints.demos import require_demo
from attngeo.checkpoints.files import ADAPTER, GGUF, stated_weights, usual_names
from attngeo.checkpoints.patience import require_answers
from attngeo.checkpoints.reference import ModelRef
from attngeo.checkpoints.store import TensorStore, stated_quantization
from attngeo.embeddings.tokenizer import silence_transformers
from attngeo.errors import (
    AttnGeoError,
    CorruptCheckpointError,
    NotEnoughMemoryError,
    UnsupportedModelError,
    about,
    first_line,
    require_extra,
)
from attngeo.progress import Progress, ProgressCallback

FLOAT32 = 4  # bytes
ROOM = 2**30  # bytes, for what the model computes while it runs
# What to do with a model that cannot be run, whichever question needs it.
INSTEAD = "ask a question that runs no model, such as score"


class LoadArguments(NamedTuple):
    """Arguments for transformers to load a model: they come only from the reference, not from what attngeo finds.

    Attributes:
        source: a folder, or the name of a repository on the Hub.
        options: further arguments of `from_pretrained`.
        weights: weight file named by the reference itself, for `transformers_weights`.
    """

    source: str | Path
    options: Mapping[str, Any]
    weights: str | None = None


@contextmanager
def open_running(
    model: Any, store: TensorStore, progress: ProgressCallback
) -> Iterator[tuple[nn.Module, frozenset[str]]]:
    """Inside the block, a running model in evaluation mode, in float32 and on the CPU.

    A model in memory is used directly, or copied if its device or number type differs. Other models are loaded by
    transformers, with the class named in config.json. Also yields the names of the tensors missing from the files,
    which have random values.

    Args:
        model: a reference, or a model in memory.
        store: the same model, opened.
        progress: called before each file.

    Raises:
        UnsupportedModelError: transformers has no class for the model or does not load the file, or its weights are
            quantised.
        NotEnoughMemoryError: the model does not fit in memory.
        CorruptCheckpointError: the weights do not fit the class, or a model in memory has no values.
        MissingPackageError: the model is a GGUF file, and the package for it is missing.
    """
    with about(store.ref):
        if store.folder is not None:
            # What can be refused is refused before a weight file is downloaded.
            arguments = _find_arguments(ModelRef.parse(model), store)
            _refuse_foreign(store, arguments)
            with _reach_hub(store):
                config = _read_config(arguments)
                model_class = _choose_class(config)
                _require_room(_float32_nbytes(model_class, config, store))
                store.download(lambda file: progress(Progress("download", file)))
                store.open(store.names)  # raises for a broken file, with its name
                progress(Progress("load", f"{model_class.__name__} in float32"))
                loaded = _load(model_class, config, arguments)
            yield loaded
            return
        tensors = [*model.parameters(), *model.buffers()]
        if any(t.is_meta for t in tensors):
            raise CorruptCheckpointError("the model is on the meta device and has no values; load the weights")
        if any(t.device.type != "cpu" or (t.is_floating_point() and t.dtype != torch.float32) for t in tensors):
            _require_room(FLOAT32 * sum(t.numel() for t in tensors))
            model = copy.deepcopy(model).to("cpu", torch.float32)
        with evaluate(model):
            yield model, frozenset()


def _find_arguments(ref: ModelRef, store: TensorStore) -> LoadArguments:
    """The arguments for a reference. Raises UnsupportedModelError for a file that transformers does not load."""
    options: dict[str, Any] = {"local_files_only": store.offline or ref.kind != "hub", "trust_remote_code": False}
    if ref.kind == "hub":
        source: str | Path = ref.name
        options |= {"revision": store.revision, "cache_dir": constants.HF_HUB_CACHE}
        named = ref.file
    else:
        path = require_demo(ref.name) if ref.kind == "demo" else Path(ref.name)
        source = path if path.is_dir() else path.parent
        named = None if source == path or path.name == "config.json" else path.name
    file = store.main_file if named is None else named
    if file.endswith(GGUF) and named is not None:
        return LoadArguments(source, options | {"gguf_file": named})
    if store.file("config.json") is None:
        raise UnsupportedModelError("config.json is missing, which transformers needs; give a folder that has it")
    if named is None and file in (*usual_names(), stated_weights(store.config)):
        return LoadArguments(source, options)
    if named is not None and "/" not in named and store.format == "safetensors":
        return LoadArguments(source, options, named)
    if named == "pytorch_model.bin":  # perhaps beside another format, which would come first
        return LoadArguments(source, options | {"use_safetensors": False})
    raise UnsupportedModelError(
        f"transformers cannot load {file}, expected one of: {', '.join(usual_names())}; rename it, or {INSTEAD}"
    )


@contextmanager
def _reach_hub(store: TensorStore) -> Iterator[None]:
    """Inside, transformers may ask the Hub for files, and does not ask it to convert a pickle, as it would."""
    if store.revision is None or store.offline:
        yield
        return
    name = "DISABLE_SAFETENSORS_CONVERSION"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        with require_answers(store.ref):
            yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def evaluate(model: nn.Module) -> Iterator[None]:
    """Inside the block, the model is in evaluation mode; after it, each module has its former mode."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def silence_libraries() -> Iterator[None]:
    """Inside the block, transformers and torch print no warnings and no progress bars."""
    with silence_transformers(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _require_room(nbytes: int) -> None:
    """Raise NotEnoughMemoryError if a model of this size, and ROOM beside it, do not fit in memory."""
    need = nbytes + ROOM
    have = available_memory()
    if need > have:
        raise NotEnoughMemoryError(
            f"running the whole model in float32 needs {need / 1e9:.1f} GB of memory, but {max(have, 0) / 1e9:.1f} GB "
            f"are available; use a machine with more memory, or {INSTEAD}, which reads one layer at a time"
        )


def _refuse_foreign(store: TensorStore, arguments: LoadArguments) -> None:
    """Raise UnsupportedModelError for a model that transformers does not load without code of the Hub or other kernels.

    Raises MissingPackageError for a GGUF file, which it loads by another package, if that is missing.
    """
    model_type = str(store.config.get("model_type"))
    if isinstance(store, AdapterStore):
        raise UnsupportedModelError(f"a model with an adapter cannot be run; give its base, or {INSTEAD}")
    if isinstance(arguments.source, Path) and (arguments.source / ADAPTER).is_file():
        raise UnsupportedModelError(
            f"transformers would also load the adapter from the same folder; give the model in a folder without "
            f"{ADAPTER}, or {INSTEAD}"
        )
    if "gguf_file" in arguments.options:
        with require_extra():
            import_module("gguf")
        return
    if model_type not in CONFIG_MAPPING:
        raise UnsupportedModelError(
            f"transformers {transformers.__version__} has no model type {model_type!r}, and code from the Hub is not "
            f"run; install a version of transformers that has it, or {INSTEAD}"
        )
    if stated_quantization(store.config):
        raise UnsupportedModelError(
            f"its weights are quantised ({stated_quantization(store.config)}), so the running model does not use the "
            f"numbers in the file; give the model without quantisation, or {INSTEAD}"
        )


def _read_config(arguments: LoadArguments) -> Any:
    file = arguments.options.get("gguf_file", "config.json")
    options = {name: value for name, value in arguments.options.items() if name != "use_safetensors"}
    try:
        config = transformers.AutoConfig.from_pretrained(arguments.source, **options)
    except AttnGeoError:  # of the connection to the Hub
        raise
    except Exception as error:  # a configuration class checks its fields as it likes
        raise CorruptCheckpointError(
            f"transformers cannot read {file} ({type(error).__name__}: {first_line(error)}); "
            "correct it, or copy or download it again"
        ) from None
    # The file may name code of the Hub. The parts of a configuration get the same value.
    config._attn_implementation, config._experts_implementation = "eager", None
    if arguments.weights is not None or "use_safetensors" in arguments.options:  # the reference names a file
        config.transformers_weights = arguments.weights
    return config


def _choose_class(config: Any) -> Any:
    """The class that config.json names, if transformers has it for this configuration; else that of AutoModel."""
    names = getattr(config, "architectures", None)
    named = getattr(transformers, str(names[0]), None) if isinstance(names, list) and names else None
    if isinstance(named, type) and getattr(named, "config_class", None) is type(config):
        return named
    try:
        return transformers.MODEL_MAPPING[type(config)]
    except KeyError:
        raise UnsupportedModelError(
            f"transformers {transformers.__version__} has no model class for {type(config).__name__}; {INSTEAD}"
        ) from None


def _float32_nbytes(model_class: Any, config: Any, store: TensorStore) -> int:
    """Bytes of the model in float32, from a model without memory; or those of the tensors in the file."""
    try:
        with torch.device("meta"):
            model = model_class(copy.deepcopy(config))
    except Exception:  # some classes compute with the values of tensors as they are made
        counts = [math.prod(store.info(name).shape) for name in store.names]
    else:
        counts = [tensor.numel() for tensor in (*model.parameters(), *model.buffers())]
    return FLOAT32 * sum(counts)


def _load(model_class: Any, config: Any, arguments: LoadArguments) -> tuple[nn.Module, frozenset[str]]:
    try:
        # It shows a bar for GGUF files, whatever it is told.
        with redirect_stderr(io.StringIO()) if "gguf_file" in arguments.options else nullcontext():
            model, info = model_class.from_pretrained(
                arguments.source,
                config=config,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **arguments.options,
            )
    except AttnGeoError:  # of the connection to the Hub
        raise
    except ImportError as error:
        raise UnsupportedModelError(
            f"{model_class.__name__} needs packages that are not installed ({first_line(error)}); install them"
        ) from None
    except Exception as error:  # a model class and its loader raise anything
        raise CorruptCheckpointError(
            f"transformers cannot load it as {model_class.__name__} ({type(error).__name__}: {first_line(error)}); "
            "correct config.json, or copy or download the model again"
        ) from None
    for name, stored, wanted in sorted(info["mismatched_keys"]):
        raise CorruptCheckpointError(
            f"{name} has shape {list(stored)}, expected {list(wanted)} for {model_class.__name__}; config.json and the "
            "weights do not match"
        )
    # Not model.float(), which transformers refuses for a model that was quantised in its GGUF file.
    return nn.Module.float(model).eval(), frozenset(info["missing_keys"])
