"""How to run a model so that every module that attends runs: as a whole, then its submodels, then single modules."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from census.inputs import variants


class Drive(NamedTuple):
    """One run. `path`: the submodule that runs ("" for the whole model); `inputs`: keyword arguments of its forward."""

    path: str
    inputs: dict[str, Any]


class Drives(NamedTuple):
    """The runs of one model, the attention modules that none of them runs, and the error of the whole model's run."""

    drives: list[Drive]
    missing: list[str]
    error: str


def attention_modules(model: nn.Module) -> set[str]:
    """Return the names of the modules that attend, as their class names say."""
    found = {
        name for name, module in model.named_modules()
        if re.search(r"Attention|Attn", type(module).__name__)
        and not re.search(r"Mask|Pool(ing)?$|Output|Bias", type(module).__name__)
        and any(True for _ in module.parameters())
        and not isinstance(module, nn.ModuleList | PreTrainedModel)
    }  # fmt: skip
    around = {ancestor for name in found for ancestor in _ancestors(name)}
    return found - around


def run(module: nn.Module, inputs: dict[str, Any]) -> None:
    """Run `module` without gradients."""
    with torch.no_grad():
        module(**{name: _copied(value) for name, value in inputs.items()})


def _copied(value: Any) -> Any:
    """Return the value with tensors copied: some models write into their inputs."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, list | tuple):
        return type(value)(_copied(v) for v in value)
    return value


@contextmanager
def _watched(model: nn.Module) -> Iterator[set[str]]:
    """Inside, collect the names of the modules whose forward is called."""
    ran: set[str] = set()
    with ExitStack() as hooks:
        for name, module in model.named_modules(remove_duplicate=False):
            handle = module.register_forward_pre_hook(lambda *_, name=name: ran.add(name))
            hooks.callback(handle.remove)
        yield ran


def find_drives(
    model: nn.Module, seed: int, extra: dict[str, dict[str, Any]] | None = None, paths: tuple[str, ...] = ()
) -> Drives:
    """Find the runs of `model`. `extra`: inputs for a path; `paths`: submodules to run besides the whole model."""
    torch.backends.mha.set_fastpath_enabled(False)
    with _watched(model) as ran:
        search = _Search(model, seed, extra or {}, ran, attention_modules(model))
        for path in ("", *paths):
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


class _Search:
    """Collects the runs that work and the attention modules that are still to run."""

    def __init__(
        self, model: nn.Module, seed: int, extra: dict[str, dict[str, Any]], ran: set[str], missing: set[str]
    ) -> None:
        self.model, self.seed, self.extra, self.ran, self.missing = model, seed, extra, ran, missing
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
        found = self._best(path)
        if found is None:
            if once:
                self._hopeless.add(kind)
            return
        drive, ran = found
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
        for inputs in itertools.islice(
            variants(module, _configs(self.model, path), self.seed, self.extra.get(path)), 32
        ):
            self.ran.clear()
            torch.manual_seed(self.seed)
            try:
                run(module, inputs)
            except Exception as problem:
                self.first_error = self.first_error or f"{type(problem).__name__}: {problem}".split("\n")[0][:300]
                continue
            if best is None or len(want & self.ran) > len(want & best[1]):
                best = Drive(path, inputs), set(self.ran)
            if want <= self.ran:
                break
        return best


def _ancestors(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1)]


def _configs(model: nn.Module, path: str) -> list[Any]:
    """Return the configurations of a submodule, nearest first, then the sub-configurations of the model."""
    found: list[Any] = []
    for name in (path, *_ancestors(path), ""):
        module = model.get_submodule(name)
        config = getattr(module, "config", None)
        if isinstance(config, PretrainedConfig) and not any(config is known for known in found):
            found.append(config)
    for config in list(found):
        found.extend(c for c in _parts(config) if not any(c is known for known in found))
    return found


def _parts(config: PretrainedConfig) -> Iterator[PretrainedConfig]:
    for value in vars(config).values():
        if isinstance(value, PretrainedConfig):
            yield value
            yield from _parts(value)
