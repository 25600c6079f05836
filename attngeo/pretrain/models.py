"""The new model of a run: from a preset, or from a config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from attngeo.bounds.names import name_type
from attngeo.bounds.small_files import read_small_text
from attngeo.checkpoints.store import TEXT_SECTIONS
from attngeo.choices import advise
from attngeo.errors import UsageError, first_line
from attngeo.pretrain.options import ImagePretrainOptions, TextPretrainOptions
from attngeo.pretrain.presets import PRESETS
from attngeo.pretrain.references import find_config

# Of each objective: the class that makes its models, and the configurations that this takes.
HEADS: Mapping[str, tuple[Any, Any]] = {
    "mlm": (AutoModelForMaskedLM, MODEL_FOR_MASKED_LM_MAPPING),
    "clm": (AutoModelForCausalLM, MODEL_FOR_CAUSAL_LM_MAPPING),
    "image": (AutoModelForImageClassification, MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING),
}
# Of an error of another library.
MOST_ERROR_CHARACTERS = 200
# What transformers and its libraries raise for fields that are impossible.
IMPOSSIBLE = (ArithmeticError, AttributeError, LookupError, RuntimeError, StrictDataclassError, TypeError, ValueError)
# Of each objective: a type that has a head for it.
USUAL_TYPES = {"mlm": "bert", "clm": "llama", "image": "vit"}


def explain(error: BaseException) -> str:
    """An error of transformers in one line: its first line, or a longer part if the first line says too little."""
    if isinstance(error, StrictDataclassError):
        return " ".join(str(error).split())[:MOST_ERROR_CHARACTERS]
    reason = first_line(error)
    return f"{type(error).__name__}: {reason}" if isinstance(error, LookupError | ArithmeticError) else reason


def read_config(model: str, objective: str) -> PreTrainedConfig:
    """The configuration of a preset or a config.json. objective: mlm, clm or image.

    Raises UsageError if it cannot be read, or if transformers has no head of its type for the objective.
    """
    config = _load_config(model)
    if type(config) in HEADS[objective][1]:
        return config
    raise UsageError(
        f"transformers has no {objective} head for the model type {config.model_type!r}; "
        f"{_advise_other(config, objective)}",
        "objective",
        "task",
    )


def _advise_other(config: PreTrainedConfig, objective: str) -> str:
    """What to train instead of a configuration whose type has no head for the objective."""
    other = {"mlm": "clm", "clm": "mlm"}.get(objective)
    if other and type(config) in HEADS[other][1]:
        return f"train it with $objective {other}"
    if objective != "image" and type(config) in HEADS["image"][1]:
        return "train it on images, with $task image"
    for section in TEXT_SECTIONS:
        if section in config.sub_configs or hasattr(config, section):
            return f"save the fields of its {section} as a separate config.json, and give that"
    return f"choose another type, such as {USUAL_TYPES[objective]}"


def configure_text(options: TextPretrainOptions, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
    """The configuration of a text model, with the tokeniser's vocabulary. Raises UsageError."""
    config = read_config(options.model, options.objective)
    config.vocab_size = max(tokenizer.get_vocab().values()) + 1  # ids may have gaps
    for name in ("pad", "bos", "eos", "cls", "sep", "mask"):
        if hasattr(config, f"{name}_token_id"):
            setattr(config, f"{name}_token_id", getattr(tokenizer, f"{name}_token_id"))
    if options.objective == "clm" and hasattr(config, "is_decoder"):
        config.is_decoder = True  # a BERT becomes a decoder by its causal mask alone
    longest = getattr(config, "max_position_embeddings", None) or 0
    if 0 < longest < options.seq_len:
        raise UsageError(
            f"$seq_len is {options.seq_len}, expected at most the {longest} positions of {options.model}", "seq_len"
        )
    return config


def configure_images(options: ImagePretrainOptions, labels: list[str], channels: int) -> PreTrainedConfig:
    """The configuration of an image classifier with these labels. Raises UsageError."""
    config = read_config(options.model, options.objective_name)
    config.num_channels = channels
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: number for number, label in enumerate(labels)}
    return config


def build_model(config: PreTrainedConfig, objective: str) -> PreTrainedModel:
    """A new model with random weights. Raises UsageError for a configuration with impossible values."""
    config.architectures = config.architectures or []  # transformers iterates over it if a type has several heads
    try:
        model: PreTrainedModel = HEADS[objective][0].from_config(config)
    except IMPOSSIBLE as error:
        raise UsageError(
            f"transformers cannot build a model from the configuration ({explain(error)}); correct it"
        ) from error
    return model


def check_length(model: PreTrainedModel, length: int) -> None:
    """Run the model on a sequence of `length` tokens, and raise UsageError if that fails.

    Some families need more positions than tokens, or lengths that are multiples of a block size.
    """
    tokens = torch.zeros(1, length, dtype=torch.long) + (model.config.vocab_size - 1)
    training = model.training
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            model.train(mode=False)
            model(input_ids=tokens, attention_mask=torch.ones_like(tokens))
    except IMPOSSIBLE as error:
        most = getattr(model.config, "max_position_embeddings", None)
        if isinstance(most, int) and most < length:
            reason = f"its weights have {most} positions"
            advice = f"lower it to {most} or less"
        else:
            reason = explain(error)
            advice = "correct the configuration, lower $seq_len, or train with a larger max_position_embeddings"
        raise UsageError(
            f"this {model.config.model_type} model does not run with $seq_len {length} ({reason}); {advice}",
            "seq_len",
        ) from error
    finally:
        model.train(training)


def _load_config(model: str) -> PreTrainedConfig:
    path = find_config(model)
    if path is None:
        preset = PRESETS[model]
        return AutoConfig.for_model(preset.model_type, **preset.config)
    try:
        fields = json.loads(read_small_text(path), object_hook=_leave_kernels)
        if not isinstance(fields, dict):
            raise UsageError(f"{path} holds {name_type(fields)}, expected an object with the fields of a configuration")
        model_type = str(fields.pop("model_type", ""))
        if model_type not in CONFIG_MAPPING:
            hint = advise(model_type, CONFIG_MAPPING, "expected a transformers model type, such as bert")
            raise UsageError(f"transformers has no model_type {model_type!r}; {hint}", subject=path)
        return AutoConfig.for_model(model_type, **fields)
    except (OSError, *IMPOSSIBLE) as error:
        raise UsageError(f"{path} is not a transformers configuration ({explain(error)}); correct it") from error


def _leave_kernels(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a configuration, or of a part of it, without those that may name code of the Hub."""
    kernels = ("attn_implementation", "experts_implementation")
    return {name: value for name, value in fields.items() if not name.lstrip("_").startswith(kernels)}
