"""How to run a model so that every module that attends runs: as a whole, then its submodels, then single modules."""

from __future__ import annotations

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
    """Find the runs of `model`. `extra`: inputs for a path; `paths`: submodules to run first."""
    torch.backends.mha.set_fastpath_enabled(False)
    extra = extra or {}
    missing = attention_modules(model)
    drives: list[Drive] = []
    error = ""
    with _watched(model) as ran:
        for path in ("", *paths):
            drive, error_here = _try(model, path, seed, extra.get(path), ran, want=missing)
            error = error or error_here
            if drive:
                drives.append(drive)
                missing -= ran
        for path in _submodels(model):
            if any(name.startswith(f"{path}.") for name in missing):
                drive, _ = _try(model, path, seed, extra.get(path), ran, want=missing)
                if drive and missing & ran:
                    drives.append(drive)
                    missing -= ran
        hopeless: set[str] = set()  # classes of modules that take none of the inputs
        for name in sorted(missing):
            for path in (name, *_ancestors(name)[:3]):
                if name not in missing:
                    break
                kind = type(model.get_submodule(path)).__name__
                if kind in hopeless:
                    continue
                drive, _ = _try(model, path, seed, extra.get(path), ran, want={name})
                if drive is None:
                    hopeless.add(kind)
                if drive and name in ran:
                    drives.append(drive)
                    missing -= ran
    return Drives(drives, sorted(missing), error)


def _submodels(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if name and isinstance(module, PreTrainedModel)]


def _ancestors(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1)]


def _try(
    model: nn.Module, path: str, seed: int, extra: dict[str, Any] | None, ran: set[str], want: set[str]
) -> tuple[Drive | None, str]:
    """Return the first run of a submodule that works, or the first error. `ran` is what ran in the run that worked."""
    module = model.get_submodule(path)
    if type(module).forward is nn.Module.forward if hasattr(type(module), "forward") else True:
        return None, "no forward"
    first = ""
    best: tuple[int, Drive, set[str]] | None = None
    tries = 0
    for inputs in variants(module, _configs(model, path), seed, extra):
        ran.clear()
        tries += 1
        torch.manual_seed(seed)
        try:
            run(module, inputs)
        except Exception as problem:
            first = first or f"{type(problem).__name__}: {problem}".split("\n")[0][:300]
            continue
        covered = len(want & ran)
        if best is None or covered > best[0]:
            best = (covered, Drive(path, inputs), set(ran))
        if covered == len({n for n in want if n.startswith(path)}) or tries > 30:
            break
    if best is None:
        ran.clear()
        return None, first or "no inputs to try"
    ran.clear()
    ran |= best[2]
    return best[1], ""


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
