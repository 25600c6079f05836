"""What single model types need beyond the rules: fields, inputs, classes. Data only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import transformers


@dataclass(frozen=True)
class Exceptional:
    """What is special about one model type.

    cannot: why it cannot be built. fields: "sub_config.field" → value. given: path → inputs. paths: submodules to run
    besides the whole model. class_names: classes to build, instead of those of the rules.
    """

    cannot: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    paths: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    default: Callable[[], Any] | None = None
    plans: tuple[Any, ...] = ()

    def classes(self) -> list[Any]:
        """Return the named classes."""
        return [getattr(transformers, name) for name in self.class_names]

    def inputs(self, model: Any) -> dict[str, dict[str, Any]]:
        """Return the special inputs by path. A value that is a function is called with the model's configuration."""
        return {
            path: {name: value(model.config) if callable(value) else value for name, value in values.items()}
            for path, values in self.given.items()
        }


# Left out of a configuration by its class, though the model reads it.
COMPASS_ROPE = {"full_attention": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 4, 4]}}

EXCEPTIONS: dict[str, Exceptional] = {
    "cohere_compass": Exceptional(fields={"text_config.rope_parameters": COMPASS_ROPE}),
    "cohere_compass_text": Exceptional(fields={"rope_parameters": COMPASS_ROPE}),
    "dbrx": Exceptional(fields={"attn_config.rope_theta": 10000.0}),
    "cvt": Exceptional(fields={"depth": [1, 2, 3]}),
    "chameleon": Exceptional(fields={"vocabulary_map": {"<image>": 120}}),
    "deepseek_ocr2_text": Exceptional(fields={"mlp_layer_types": ["dense", "sparse"]}),
    "deepseek_ocr2": Exceptional(fields={"text_config.mlp_layer_types": ["dense", "sparse"]}),
    "big_bird": Exceptional(fields={"attention_type": "original_full"}),
    "bigbird_pegasus": Exceptional(fields={"attention_type": "original_full"}),
}
