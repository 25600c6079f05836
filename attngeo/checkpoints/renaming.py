"""How transformers renames the tensors of a checkpoint when it loads them into its classes of today.

Only needed for adapters: they are named after the modules of the running model, and their base after those of the model
that wrote it. Imports transformers, which reading a checkpoint does not: import it where it is needed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
import transformers
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming, rename_source_key

# The most modules of a kind in a model that is made without memory. A model has as many tensors, at least.
MOST_MODULES = 1000
# Fields that state how many modules of a kind there are.
COUNT = re.compile(r"layer|depth|block|expert|(^|_)num_|^n_")
log = logging.getLogger(__name__)


def find_renaming(config: Mapping[str, Any], names: Collection[str]) -> Callable[[str], str] | None:
    """A function from a tensor's name in a checkpoint to its name in the model that transformers builds from it.

    config: config.json. names: names of all tensors. None if transformers cannot build a model from this configuration,
    or if it states too many layers or experts. The function returns other names unchanged.
    """
    if any(count > max(len(names), MOST_MODULES) for count in _list_counts(config)):
        return None
    try:
        parsed = transformers.CONFIG_MAPPING[str(config.get("model_type"))].from_dict(dict(config))
        architecture = str((parsed.architectures or [""])[0])
        model_class: Any = getattr(transformers, architecture, None)
        if getattr(model_class, "config_class", None) is not type(parsed):
            model_class = transformers.MODEL_MAPPING[type(parsed)]
        with torch.device("meta"):
            model = model_class(parsed)
        conversions = get_model_conversion_mapping(model)
        renamings = [conversion for conversion in conversions if isinstance(conversion, WeightRenaming)]
    except Exception as error:  # configurations and classes of models raise anything
        log.info("%r keeps the tensor names of its checkpoint: %s", config.get("model_type"), error)
        return None
    return lambda name: str(rename_source_key(name, renamings, [])[0])


def _list_counts(config: Mapping[str, Any]) -> Iterator[int]:
    """The numbers of modules that a configuration and its sections state."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _list_counts(value)
        elif type(value) is int and COUNT.search(name):
            yield value
