"""Runs of a model on random inputs that reach every module that attends.

The model runs as a whole, then its submodels, then single modules, until every module that attends has run.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from attngeo.layouts.names import is_in
from attngeo.verification.inputs import combine_inputs
from attngeo.verification.recording import without_fast_path

# Combinations of inputs to try on one module.
MOST_INPUTS_TRIED = 32
ATTENDS = re.compile(r"Attention|Attn")
DOES_NOT_ATTEND = re.compile(r"Mask|Pool(ing)?$|Output|Bias")


class Drive(NamedTuple):
    """One run. `path`: the submodule to run ("" for the whole model); `inputs`: keyword arguments of its forward."""

    path: str
    inputs: dict[str, Any]


class Drives(NamedTuple):
    """The runs of one model.

    Attributes:
        drives: the runs.
        missing: attention modules that no run reaches.
        error: error of running the whole model; "" for none.
    """

    drives: list[Drive]
    missing: list[str]
    error: str


def find_drives(
    model: nn.Module, *, arguments: Mapping[str, Mapping[str, Any]] = {}, submodules: Iterable[str] = ()
) -> Drives:
    """Find runs of `model` that reach every attention module.

    Args:
        model: the model in memory.
        arguments: path of a submodule → known arguments of its forward.
        submodules: submodules to run besides the whole model.
    """
    with without_fast_path(), _watch(model) as ran, torch.random.fork_rng(devices=[]):
        search = _Search(model, arguments, ran, attention_modules(model))
        for path in ("", *submodules):
            search.run(path)
        error = "" if search.drives else search.first_error
        for path, module in model.named_modules():
            if path and isinstance(module, PreTrainedModel) and search.missing_under(path):
                search.run(path)
        for name in sorted(search.missing):
            around = _ancestors(name)[:3]
            # A module around it that is called attention, too, has the output projection.
            attending = [path for path in around if _attends(model.get_submodule(path))]
            for path in dict.fromkeys((*attending, name, *around)):
                if name in search.missing:
                    search.run(path, once=True)
    return Drives(search.drives, sorted(search.missing), error)


def run_drives(model: nn.Module, drives: Iterable[Drive]) -> None:
    """Run all drives, in order. A model that draws random numbers draws the same ones each time."""
    with torch.random.fork_rng(devices=[]):
        for drive in drives:
            torch.manual_seed(0)
            _run(model.get_submodule(drive.path), drive.inputs)


def attention_modules(model: nn.Module) -> set[str]:
    """The names of the modules that attend, judging by their class names."""
    attending = {name for name, module in model.named_modules() if _attends(module)}
    around = {ancestor for name in attending for ancestor in _ancestors(name)}
    return attending - around


def _attends(module: nn.Module) -> bool:
    class_name = type(module).__name__
    if not ATTENDS.search(class_name) or DOES_NOT_ATTEND.search(class_name):
        return False
    has_parameters = any(True for _ in module.parameters())
    return has_parameters and not isinstance(module, nn.ModuleList | PreTrainedModel)


@dataclass
class _Search:
    """Runs that work, and the attention modules that are still to run.

    Attributes:
        model: the model.
        arguments: path of a submodule → arguments of its forward that are already known.
        ran: modules that the last run reached, which hooks keep.
        missing: attention modules that no run has reached.
        drives: runs that work.
        first_error: error of the first run that failed; "" if none did.
        hopeless: classes and shapes of modules that no inputs fit.
    """

    model: nn.Module
    arguments: Mapping[str, Mapping[str, Any]]
    ran: set[str]
    missing: set[str]
    drives: list[Drive] = field(default_factory=list)
    first_error: str = ""
    hopeless: set[tuple[Any, ...]] = field(default_factory=set)

    def missing_under(self, path: str) -> set[str]:
        """The attention modules in a submodule that did not run yet."""
        return {name for name in self.missing if is_in(name, path)}

    def run(self, path: str, *, once: bool = False) -> None:
        """Run a submodule, and keep the run if attention modules ran that had not run before, or all of the model did.

        once: if no inputs fit, do not try another module of the same class and shapes.
        """
        module = self.model.get_submodule(path)
        form = (type(module), *(parameter.shape for parameter in module.parameters()))
        if form in self.hopeless:
            return
        best = self._find_best(path)
        if best is None:
            if once:
                self.hopeless.add(form)
            return
        drive, ran = best
        if not path or ran & self.missing:
            self.drives.append(drive)
            self.missing -= ran

    def _find_best(self, path: str) -> tuple[Drive, set[str]] | None:
        """The inputs with which most attention modules run, of those that work, and all modules that ran."""
        module = self.model.get_submodule(path)
        missing = self.missing_under(path)
        best: tuple[Drive, set[str]] | None = None
        tries = combine_inputs(module, _configs_around(self.model, path), self.arguments.get(path, {}))
        for inputs in islice(tries, MOST_INPUTS_TRIED):
            self.ran.clear()
            torch.manual_seed(0)
            try:
                _run(module, inputs)
            except Exception as problem:  # inputs that do not fit raise anything
                self.first_error = self.first_error or f"{type(problem).__name__}: {problem}".splitlines()[0][:300]
                continue
            if best is None or len(missing & self.ran) > len(missing & best[1]):
                best = Drive(path, inputs), set(self.ran)
            if missing <= self.ran:
                break
        return best


def _run(module: nn.Module, inputs: Mapping[str, Any]) -> None:
    with torch.no_grad():
        module(**copy.deepcopy(inputs))  # some models write into their inputs


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
    """The modules around a module, the nearest first, without the model itself."""
    segments = name.split(".")
    return [".".join(segments[:depth]) for depth in range(len(segments) - 1, 0, -1)]


def _configs_around(model: nn.Module, path: str) -> list[Any]:
    """The configurations of a submodule, the nearest first, then the sections of these."""
    configs = []
    for name in (path, *_ancestors(path), ""):
        config = getattr(model.get_submodule(name), "config", None)
        if isinstance(config, PretrainedConfig):
            configs.append(config)
    return [*configs, *chain.from_iterable(map(_list_sections, configs))]


def _list_sections(config: PretrainedConfig) -> Iterator[PretrainedConfig]:
    for value in vars(config).values():
        if isinstance(value, PretrainedConfig):
            yield value
            yield from _list_sections(value)
