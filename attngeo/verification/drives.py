"""How to run a model so that every module that attends runs: as a whole, then its submodels, then single modules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from attngeo.verification.inputs import combine_inputs
from attngeo.verification.recording import without_fast_path

# Combinations of inputs to try on one module.
MOST_TRIES = 32
ATTENDS = re.compile(r"Attention|Attn")
DOES_NOT_ATTEND = re.compile(r"Mask|Pool(ing)?$|Output|Bias")


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
