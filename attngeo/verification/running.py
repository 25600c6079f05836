"""A model that runs: from an open checkpoint to transformers, without code of the Hub, and inputs for all that attends.

It runs as a whole, then its submodels, then single modules, until every module that attends has run.
"""

from __future__ import annotations

import copy
import io
import math
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from huggingface_hub import constants
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from attngeo.bounds.machine import available_memory
from attngeo.checkpoints.adapters import AdapterStore
from attngeo.checkpoints.demos import require_demo
from attngeo.checkpoints.files import ADAPTER, GGUF, stated_weights, usual_names
from attngeo.checkpoints.patience import require_answers
from attngeo.checkpoints.reference import ModelRef
from attngeo.checkpoints.store import TensorStore, stated_quantisation
from attngeo.embeddings.tokeniser import silence_transformers
from attngeo.errors import (
    AttnGeoError,
    CorruptCheckpointError,
    NotEnoughMemoryError,
    UnsupportedModelError,
    first_line,
    require_extra,
)
from attngeo.progress import Progress, ProgressCallback
from attngeo.verification.inputs import combine_inputs
from attngeo.verification.recording import without_fast_path

FLOAT32 = 4  # bytes
ROOM = 2**30  # bytes, for what the model computes while it runs


# Combinations of inputs to try on one module.
MOST_TRIES = 32
ATTENDS = re.compile(r"Attention|Attn")
DOES_NOT_ATTEND = re.compile(r"Mask|Pool(ing)?$|Output|Bias")


class LoadArguments(NamedTuple):
    """What transformers is told about a model: as much as the reference says, and nothing that attngeo has found.

    place: a folder, or the name of a repository on the Hub. options: further arguments of `from_pretrained`. weights:
    the file of weights that the reference itself names, for `transformers_weights`.
    """

    place: str | Path
    options: Mapping[str, Any]
    weights: str | None = None

    @property
    def is_gguf(self) -> bool:
        """Whether the reference names a GGUF file."""
        return "gguf_file" in self.options


def load_model(
    model: str | Path | ModelRef, store: TensorStore, report: ProgressCallback
) -> tuple[nn.Module, frozenset[str]]:
    """The model of a reference as transformers loads it, of the class that its config.json names.

    store: the same model, opened. Also returns the names of the tensors that the files lack: they have random values.

    Everything that can be refused is refused before a file of weights is downloaded. Raises UnsupportedModelError if
    transformers has no class for the model, does not load the file or its weights are quantised; NotEnoughMemoryError;
    CorruptCheckpointError if the weights do not fit the class; MissingPackageError for a GGUF file without the package.
    """
    ref = model if isinstance(model, ModelRef) else ModelRef.parse(model)
    source = _find_source(ref, store)
    _refuse_foreign(store, source)
    with _reach_hub(store):
        config = _read_config(source, store.ref)
        model_class = _choose_class(config, store.ref)
        _require_room(_float32_nbytes(model_class, config, store), store.ref)
        store.download(lambda file: report(Progress("download", file)))
        store.open(store.names)  # raises for a broken file, with its name
        report(Progress("load", f"{model_class.__name__} in float32"))
        return _load(model_class, config, source, store)


def _find_source(ref: ModelRef, store: TensorStore) -> LoadArguments:
    """How transformers is asked for a model. Raises UnsupportedModelError for a file that it does not load."""
    options: dict[str, Any] = {"local_files_only": store.offline or ref.kind != "hub", "trust_remote_code": False}
    if ref.kind == "hub":
        place: str | Path = ref.name
        options |= {"revision": store.revision, "cache_dir": constants.HF_HUB_CACHE}
        named = ref.file
    else:
        path = require_demo(ref.name) if ref.kind == "demo" else Path(ref.name)
        place = path if path.is_dir() else path.parent
        named = None if place == path or path.name == "config.json" else path.name
    file = store.main_file if named is None else named
    if file.endswith(GGUF) and named is not None:
        return LoadArguments(place, options | {"gguf_file": named})
    if store.file("config.json") is None:
        raise UnsupportedModelError(
            f"{store.ref}: transformers loads a folder with config.json, which is missing here; give such a folder"
        )
    if named is None and file in (*usual_names(), stated_weights(store.config)):
        return LoadArguments(place, options)
    if named is not None and "/" not in named and store.format == "safetensors":
        return LoadArguments(place, options, named)
    if named == "pytorch_model.bin":  # perhaps beside another format, which would come first
        return LoadArguments(place, options | {"use_safetensors": False})
    raise UnsupportedModelError(
        f"{store.ref}: transformers does not load {file} by itself, expected one of: {', '.join(usual_names())}; "
        "rename it, or score it without running it"
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
    with evaluate(model):
        yield model


@contextmanager
def evaluate(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in evaluation mode; afterwards each module is in its own one."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
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
    """Raise NotEnoughMemoryError if a model of this size, and ROOM beside it, do not fit in memory."""
    need, have = nbytes + ROOM, available_memory()
    if need > have:
        raise NotEnoughMemoryError(
            f"{ref}: to run it, the whole model is loaded in float32, which needs {need / 1e9:.1f} GB of memory; "
            f"{max(have, 0) / 1e9:.1f} GB are available; use a machine with more memory, or score it without "
            "running it, which reads one layer at a time"
        )


def _refuse_foreign(store: TensorStore, source: LoadArguments) -> None:
    """Raise UnsupportedModelError for what transformers does not load without code of the Hub or quantised kernels.

    Raises MissingPackageError for a GGUF file, which it loads by another package, if that is missing.
    """
    ref, model_type = store.ref, str(store.config.get("model_type"))
    if isinstance(store, AdapterStore):
        raise UnsupportedModelError(f"{ref}: the model runs without adapters; verify its base, or score it only")
    if isinstance(source.place, Path) and (source.place / ADAPTER).is_file():
        raise UnsupportedModelError(
            f"{ref}: transformers adds the adapter beside it to the model; verify it in a folder without {ADAPTER}, or "
            "score it only"
        )
    if source.is_gguf:
        with require_extra():
            import_module("gguf")
        return
    if model_type not in CONFIG_MAPPING:
        raise UnsupportedModelError(
            f"{ref}: transformers {transformers.__version__} has no model type {model_type!r}, and code from the Hub "
            "is not run; score it without running it, or install a version of transformers that has it"
        )
    if stated_quantisation(store.config):
        raise UnsupportedModelError(
            f"{ref}: its weights are quantised ({stated_quantisation(store.config)}), so the running model does not "
            "multiply what the file holds; give the model without quantisation, or score it without running it"
        )


def _read_config(source: LoadArguments, ref: str) -> Any:
    what = source.options.get("gguf_file", "config.json")
    options = {name: value for name, value in source.options.items() if name != "use_safetensors"}
    try:
        config = transformers.AutoConfig.from_pretrained(source.place, **options)
    except AttnGeoError:  # of the connection to the Hub
        raise
    except Exception as error:  # a configuration class checks its fields as it likes
        raise CorruptCheckpointError(
            f"{ref}: transformers cannot read {what} ({type(error).__name__}: {first_line(error)}); "
            "correct it, or download it again"
        ) from None
    if source.weights is not None or "use_safetensors" in source.options:  # the reference names a file, not config.json
        config.transformers_weights = source.weights
    return config


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
            "score it without running it"
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


def _load(model_class: Any, config: Any, source: LoadArguments, store: TensorStore) -> tuple[nn.Module, frozenset[str]]:
    try:
        # It shows a bar for GGUF files, whatever it is told.
        with redirect_stderr(io.StringIO()) if source.is_gguf else nullcontext():
            model, info = model_class.from_pretrained(
                source.place, config=config, dtype=torch.float32, attn_implementation="eager",
                ignore_mismatched_sizes=True, output_loading_info=True, **source.options,
            )  # fmt: skip
    except AttnGeoError:  # of the connection to the Hub
        raise
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
    # Not model.float(), which transformers refuses for a model that was quantised in its GGUF file.
    return nn.Module.float(model).eval(), frozenset(info["missing_keys"])


class Drive(NamedTuple):
    """One run. `path`: the submodule that runs ("" for the whole model); `inputs`: keyword arguments of its forward."""

    path: str
    inputs: dict[str, Any]


class Drives(NamedTuple):
    """The runs of one model, the attention modules that none of them runs, and the error of the whole model's run."""

    drives: list[Drive]
    missing: list[str]
    error: str


def find_drives(
    model: nn.Module,
    seed: int = 0,
    *,
    given: Mapping[str, Mapping[str, Any]] | None = None,
    parts: Iterable[str] = (),
) -> Drives:
    """Find runs of `model` that reach every attention module.

    seed: of the inputs. given: path of a submodule → arguments that are known already. parts: submodules to run besides
    the whole model.
    """
    with without_fast_path(), _watch(model) as ran, torch.random.fork_rng(devices=[]):
        search = _Search(model, seed, given or {}, ran, attention_modules(model))
        for path in ("", *parts):
            search.run(path)
        error = "" if search.drives else search.first_error
        for path, module in model.named_modules():
            if path and isinstance(module, PreTrainedModel) and search.missing_under(path):
                search.run(path)
        for name in sorted(search.missing):
            for path in (name, *_ancestors(name)[:3]):
                if name in search.missing:
                    search.run(path, once=True)
    return Drives(search.drives, sorted(search.missing), error)


def run_drives(model: nn.Module, drives: Iterable[Drive], seed: int = 0) -> None:
    """Run all drives, in their order. A model that draws random numbers draws the same ones each time."""
    with torch.random.fork_rng(devices=[]):
        for drive in drives:
            torch.manual_seed(seed)
            _run(model.get_submodule(drive.path), drive.inputs)


def attention_modules(model: nn.Module) -> set[str]:
    """Return the names of the modules that attend, as their class names say."""
    attending = {
        name for name, module in model.named_modules()
        if ATTENDS.search(type(module).__name__)
        and not DOES_NOT_ATTEND.search(type(module).__name__)
        and any(True for _ in module.parameters())
        and not isinstance(module, nn.ModuleList | PreTrainedModel)
    }  # fmt: skip
    around = {ancestor for name in attending for ancestor in _ancestors(name)}
    return attending - around


class _Search:
    """Collects the runs that work and the attention modules that are still to run."""

    def __init__(
        self, model: nn.Module, seed: int, given: Mapping[str, Mapping[str, Any]], ran: set[str], missing: set[str]
    ) -> None:
        self.model, self.seed, self.given, self.ran, self.missing = model, seed, given, ran, missing
        self.drives: list[Drive] = []
        self.first_error = ""
        self._hopeless: set[tuple[Any, ...]] = set()

    def missing_under(self, path: str) -> set[str]:
        """Return the attention modules in a submodule that did not run yet."""
        return {name for name in self.missing if not path or name == path or name.startswith(f"{path}.")}

    def run(self, path: str, *, once: bool = False) -> None:
        """Run a submodule, and keep the run if attention modules ran that had not run before, or all of the model did.

        once: if no inputs fit, do not try another module of the same class and shapes.
        """
        module = self.model.get_submodule(path)
        kind = (type(module), *(p.shape for p in module.parameters()))
        if kind in self._hopeless:
            return
        best = self._best(path)
        if best is None:
            if once:
                self._hopeless.add(kind)
            return
        drive, ran = best
        if not path or ran & self.missing:
            self.drives.append(drive)
            self.missing -= ran

    def _best(self, path: str) -> tuple[Drive, set[str]] | None:
        """Return the inputs with which most attention modules run, of those that work, and all modules that ran."""
        module = self.model.get_submodule(path)
        if "forward" not in vars(type(module)) and type(module).forward is nn.Module.forward:
            self.first_error = self.first_error or f"{type(module).__name__} has no forward"
            return None
        want = self.missing_under(path)
        best: tuple[Drive, set[str]] | None = None
        tries = combine_inputs(module, _configs_around(self.model, path), self.seed, self.given.get(path))
        for inputs in islice(tries, MOST_TRIES):
            self.ran.clear()
            torch.manual_seed(self.seed)
            try:
                _run(module, inputs)
            except Exception as problem:  # inputs that do not fit raise anything
                self.first_error = self.first_error or f"{type(problem).__name__}: {problem}".splitlines()[0][:300]
                continue
            if best is None or len(want & self.ran) > len(want & best[1]):
                best = Drive(path, inputs), set(self.ran)
            if want <= self.ran:
                break
        return best


def _run(module: nn.Module, inputs: Mapping[str, Any]) -> None:
    with torch.no_grad():
        module(**{name: _copy(value) for name, value in inputs.items()})


def _copy(value: Any) -> Any:
    """Return the value with tensors copied: some models write into their inputs."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, list | tuple):
        return type(value)(_copy(item) for item in value)
    return value


@contextmanager
def _watch(model: nn.Module) -> Iterator[set[str]]:
    """Inside, collect the names of the modules whose forward is called."""
    ran: set[str] = set()
    with ExitStack() as hooks:
        for name, module in model.named_modules(remove_duplicate=False):
            handle = module.register_forward_pre_hook(lambda *_, name=name: ran.add(name))
            hooks.callback(handle.remove)
        yield ran


def _ancestors(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1)]


def _configs_around(model: nn.Module, path: str) -> list[Any]:
    """Return the configurations of a submodule, nearest first, then the sub-configurations of the model."""
    configs: list[Any] = []
    for name in (path, *_ancestors(path), ""):
        config = getattr(model.get_submodule(name), "config", None)
        if isinstance(config, PretrainedConfig) and not any(config is known for known in configs):
            configs.append(config)
    for config in list(configs):
        configs.extend(part for part in _parts(config) if not any(part is known for known in configs))
    return configs


def _parts(config: PretrainedConfig) -> Iterator[PretrainedConfig]:
    for value in vars(config).values():
        if isinstance(value, PretrainedConfig):
            yield value
            yield from _parts(value)
