"""Tiny adapters as PEFT writes them, and the weights of queries and keys after PEFT has loaded them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import attngeo

# As many key heads as query heads: a square weight hides its layout from every check of shapes.
CONFIG = {
    "vocab_size": 20, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "attention_bias": True, "tie_word_embeddings": False,
}  # fmt: skip
TARGETS = ["q_proj", "k_proj"]


def spread(model: Any, seed: int = 0) -> Any:
    """The model with weights and biases that are far from zero."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    return model


def draw_updates(model: nn.Module, seed: int = 1) -> None:
    """Give the parameters of adapters the values that a training might."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "magnitude" in name:
                parameter.mul_(torch.rand(parameter.shape, generator=generator) + 0.5)
            elif "lora_" in name or "modules_to_save" in name or (name.endswith("bias") and parameter.requires_grad):
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))


def make_llama(**changes: Any) -> Any:
    """A tiny LLaMA with a head of a language model."""
    return spread(transformers.LlamaForCausalLM(transformers.LlamaConfig(**(CONFIG | changes))))


def write_base(folder: Path, make: Callable[[], Any] = make_llama) -> Path:
    """A base model in a folder."""
    make().save_pretrained(folder)
    return folder


def train(model: Any, **options: Any) -> Any:
    """The model with an adapter of LoRA whose values are drawn."""
    import peft  # here, as it takes two seconds

    adapted = peft.get_peft_model(
        model, peft.LoraConfig(**{"r": 3, "lora_alpha": 5, "target_modules": TARGETS} | options)
    )
    draw_updates(adapted)
    return adapted


def write_adapter(folder: Path, base: Path, model_class: Any = transformers.LlamaForCausalLM, **options: Any) -> Path:
    """An adapter of the base in another folder, as PEFT saves it."""
    with warnings.catch_warnings():  # about embeddings that are saved, and heads that are new
        warnings.simplefilter("ignore")
        train(model_class.from_pretrained(base), **options).save_pretrained(folder)
    edit_settings(folder, base_model_name_or_path=str(base))
    return folder


def edit_settings(folder: Path, **changes: Any) -> None:
    """Change fields of adapter_config.json."""
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def load_by_peft(base: Path, adapter: Path, model_class: Any = transformers.LlamaForCausalLM) -> Any:
    """The model into which PEFT merges the adapter."""
    import peft

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return peft.PeftModel.from_pretrained(model_class.from_pretrained(base), adapter).merge_and_unload()


def read_weights(model: Any, **options: Any) -> list[Tensor]:
    """The weights of queries and keys of each layer."""
    return [weight for _, *both in attngeo.attention_sites(model, **options) for weight in both]


def are_equal(found: list[Tensor], expected: list[Tensor]) -> bool:
    """Whether two models have the same weights of queries and keys; NaN and infinity are one: neither is scored."""
    pairs = [
        [torch.where(weights.isfinite(), weights, torch.nan) for weights in pair]
        for pair in zip(found, expected, strict=True)
    ]
    return len(found) > 1 and all(
        torch.allclose(own, other, rtol=1e-4, atol=1e-5, equal_nan=True) for own, other in pairs
    )
