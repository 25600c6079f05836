"""Which classes of transformers can build a model of a type, best first."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import transformers
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES, model_type_to_module_name


def config_class_of(model_type: str) -> type[PretrainedConfig]:
    """Return the configuration class of a model type."""
    name = CONFIG_MAPPING_NAMES[model_type]
    module = importlib.import_module(f"transformers.models.{model_type_to_module_name(model_type)}")
    found = getattr(module, name, None) or getattr(transformers, name)
    assert issubclass(found, PretrainedConfig)
    return found


def model_classes(model_type: str) -> list[type[PreTrainedModel]]:
    """Return the classes to try: of AutoModel and the other auto mappings, else of the modeling modules.

    Raises ImportError if a class is only a placeholder because a package is not installed.
    """
    auto = list(dict.fromkeys(_auto_classes(model_type)))
    return auto[:2] or list(dict.fromkeys(_module_classes(config_class_of(model_type))))[:3]


def _auto_classes(model_type: str) -> list[type[PreTrainedModel]]:
    """Return the classes of the auto mappings that take the type's own configuration, or else all of them."""
    mappings = [m for n, m in vars(modeling_auto).items() if n.startswith("MODEL_") and n.endswith("MAPPING_NAMES")]
    found = []
    for mapping in mappings:
        names = mapping.get(model_type, ())
        found += [getattr(transformers, name, None) for name in ([names] if isinstance(names, str) else names)]
    for cls in found:
        _require_packages(cls)
    models = [cls for cls in found if inspect.isclass(cls) and issubclass(cls, PreTrainedModel)]
    config = config_class_of(model_type)
    return [cls for cls in models if getattr(cls, "config_class", None) is config] or models


def _require_packages(cls: Any) -> None:
    """Raise ImportError if a class is only a placeholder, because a package is not installed."""
    if inspect.isclass(cls) and "_backends" in vars(cls):
        raise ImportError(f"{cls.__name__} needs packages that are not all installed: {', '.join(cls._backends)}")


def _module_classes(config_class: type[PretrainedConfig]) -> Iterator[type[PreTrainedModel]]:
    package = importlib.import_module(config_class.__module__.rpartition(".")[0])
    for info in pkgutil.iter_modules(package.__path__):
        if info.name.startswith("modeling_"):
            try:
                module = importlib.import_module(f"{package.__name__}.{info.name}")
            except ImportError:
                continue
            yield from _models_in(module, config_class)


def _models_in(module: ModuleType, config_class: type[PretrainedConfig]) -> Iterator[type[PreTrainedModel]]:
    for cls in vars(module).values():
        if not inspect.isclass(cls) or not issubclass(cls, PreTrainedModel) or cls.__module__ != module.__name__:
            continue
        if getattr(cls, "config_class", None) is config_class and not cls.__name__.endswith("PreTrainedModel"):
            yield cls
