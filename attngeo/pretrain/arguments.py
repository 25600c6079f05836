"""What transformers' Trainer is told of a run: its TrainingArguments."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import TrainingArguments

from attngeo.choices import TrainingPrecision
from attngeo.errors import UsageError
from attngeo.pretrain.options import PretrainOptions

# Checkpoints that are kept; one more exists while it is written.
CHECKPOINTS_KEPT = 2


def build_arguments(options: PretrainOptions, folder: Path) -> TrainingArguments:
    """The arguments of a run in `folder`. Raises UsageError for what this machine cannot do."""
    precision = choose_precision(options.precision)
    if options.report_to != "none" and find_spec(options.report_to) is None:
        raise UsageError(f"report_to {options.report_to} requires a package: pip install {options.report_to}")
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=1, per_device_train_batch_size=options.batch_size,
        gradient_accumulation_steps=options.grad_accum, learning_rate=options.lr, weight_decay=options.weight_decay,
        lr_scheduler_type="linear", optim="adamw_torch", seed=options.seed, bf16=precision == "bf16",
        fp16=precision == "fp16", logging_steps=options.log_every, logging_nan_inf_filter=False,
        save_steps=options.save_every, save_total_limit=CHECKPOINTS_KEPT, report_to=options.report_to,
        disable_tqdm=True, remove_unused_columns=False, train_sampling_strategy="sequential", log_level="error",
        dataloader_pin_memory=torch.cuda.is_available(), use_cpu=not _has_accelerator(),
    )  # fmt: skip
    if arguments.n_gpu > 1:
        raise UsageError(
            f"there are {arguments.n_gpu} GPUs but one process; start with accelerate launch -m attngeo pretrain, or "
            "set CUDA_VISIBLE_DEVICES to one of them"
        )
    if options.precision == "fp32":
        arguments.mixed_precision = "no"  # overrides accelerate's own configuration
    return arguments


def choose_precision(asked: TrainingPrecision) -> TrainingPrecision:
    """fp32, bf16 or fp16. "auto" is mixed precision on a CUDA device: bf16 if it has that, otherwise fp16."""
    if asked == "fp16" and not torch.cuda.is_available():
        raise UsageError("precision fp16 requires a CUDA device, expected fp32 or bf16 here")
    if asked != "auto":
        return asked
    if not torch.cuda.is_available():
        return "fp32"
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"


def _has_accelerator() -> bool:
    return torch.cuda.is_available() or torch.backends.mps.is_available()
