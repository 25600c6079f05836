"""Presets: the models that `attngeo pretrain` knows by name, and their options; the names of data and initialisations.

S2, S3 and the tables are those of the supplement of Saponati et al. 2025.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attngeo.choices import Task

# Task → its data, as messages name them.
DATA_OF: Mapping[Task, str] = {"text": "text", "image": "images"}


@dataclass(frozen=True)
class Preset:
    """A model's configuration, and its training options.

    Attributes:
        task: kind of its data, text or images.
        model_type: model type of transformers.
        config: arguments of transformers' configuration class for `model_type`.
        options: default options of the training.
    """

    task: Task
    model_type: str
    config: Mapping[str, Any]
    options: Mapping[str, Any]


# S2.3: 200,000 updates of 32 × 8 sequences. The section gives no sequence length; 512 is the longest that the models
# of Table S1 take.
S2: dict[str, Any] = {
    "data": "austen", "steps": 200_000, "batch_size": 32, "grad_accum": 8, "lr": 5e-5, "warmup": 200,
    "weight_decay": 0.01, "seq_len": 512, "mlm_probability": 0.15, "vocab_size": 30_522, "log_every": 200,
    "save_every": 5_000,
}  # fmt: skip
# Two minutes on a laptop.
SMALL: dict[str, Any] = S2 | {
    "steps": 1_200, "batch_size": 128, "grad_accum": 1, "lr": 2e-3, "warmup": 60, "seq_len": 16, "vocab_size": 1024,
    "log_every": 50, "save_every": 200,
}  # fmt: skip
# S3. It does not give weight decay and gradient clipping. They are those of torchvision's ViT-B/16 recipe
# (references/classification in github.com/pytorch/vision), whose other numbers are those of S3.
S3: dict[str, Any] = {
    "data": "cifar10", "epochs": 500, "batch_size": 128, "grad_accum": 1, "lr": 3e-3, "warmup_epochs": 30,
    "weight_decay": 0.3, "label_smoothing": 0.01, "mixup": 0.2, "cutmix": 1.0, "ema_decay": 0.99998, "log_every": 200,
    "save_every": 5_000,
}  # fmt: skip


def _bert(hidden: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    """Table S1; its other values are the defaults of transformers' BertConfig."""
    return {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "intermediate_size": 4 * hidden, "max_position_embeddings": 512, "layer_norm_eps": 1e-12,
        "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", **more,
    }  # fmt: skip


def _vit(hidden: int, layers: int, heads: int, patch: int, image: int, **more: Any) -> dict[str, Any]:
    """Table S2; no dropout, biases in the projections."""
    return {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "intermediate_size": 4 * hidden, "patch_size": patch, "image_size": image, "layer_norm_eps": 1e-6,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "qkv_bias": True, "encoder_stride": 16, **more,
    }  # fmt: skip


PRESETS: Mapping[str, Preset] = {
    # No dropout, weights of 1/√d_model, and short sequences: with 64 positions or more, a BERT of this width predicts
    # from token frequencies alone for thousands of steps.
    "tiny": Preset(
        "text", "bert", _bert(128, 3, 4, max_position_embeddings=128, initializer_range=0.088, hidden_dropout_prob=0.0,
                              attention_probs_dropout_prob=0.0), SMALL,
    ),
    "bert-mini": Preset("text", "bert", _bert(256, 4, 4), S2),
    "bert": Preset("text", "bert", _bert(768, 12, 12), S2),
    "bert-large": Preset("text", "bert", _bert(1024, 24, 16), S2),
    "vit-tiny": Preset(
        "image", "vit", _vit(64, 3, 4, patch=2, image=8),
        S3 | {"data": "digits", "epochs": 40, "lr": 1e-3, "warmup_epochs": 4, "ema_decay": 0.998, "log_every": 20,
                  "save_every": 200},
    ),
    "vit-6": Preset("image", "vit", _vit(512, 6, 8, patch=4, image=32), S3),
    "vit-12": Preset(
        "image", "vit", _vit(768, 12, 12, patch=16, image=224),
        S3 | {"epochs": 200, "batch_size": 256, "grad_accum": 2, "label_smoothing": 0.11},
    ),
}  # fmt: skip

# The options that a model of the user's own is trained with.
DEFAULTS: Mapping[Task, Mapping[str, Any]] = {"text": S2, "image": S3}
# The model that is trained if none is named.
DEFAULT_MODELS: Mapping[Task, str] = {"text": "tiny", "image": "vit-tiny"}
# The names of data sets of texts and of images.
TEXT_DATA = ("austen", "repeats", "wikipedia", "redpajama")
IMAGE_DATA = ("digits", "cifar10")
# Named initialisations; any other is a reference to a checkpoint.
INITS = ("default", "symmetric", "identity", "published")
# Initialisations that leave the scale of the weights to the model, so that options may set it.
SCALED_INITS = ("default", "symmetric")
# Options that may be paths, and the names that they may be instead. A name wins over a path, which may begin with "./".
PATHS: Mapping[str, tuple[str, ...]] = {
    "model": tuple(PRESETS), "data": (*TEXT_DATA, *IMAGE_DATA), "tokenizer": ("", "train"), "init": INITS,
}  # fmt: skip


def show_presets(name: str) -> str:
    """The default of an option in each preset, as `--help` shows it.

    >>> show_presets("data")
    'austen for text; digits for vit-tiny; cifar10 for vit-6, vit-12'
    """
    defaults = []
    for task in DEFAULTS:
        models_of_value: dict[Any, list[str]] = {}
        for model, preset in PRESETS.items():
            if preset.task == task and name in preset.options:
                models_of_value.setdefault(preset.options[name], []).append(model)
        for value, models in models_of_value.items():
            models_or_task = ", ".join(models) if len(models_of_value) > 1 else DATA_OF[task]
            defaults.append(f"{value} for {models_or_task}")
    return "; ".join(defaults)
