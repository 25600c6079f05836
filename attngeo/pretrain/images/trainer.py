"""The Trainer of a classifier: soft labels, a cosine schedule, and the average of the weights in its checkpoints."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, cast

from safetensors.torch import load_model, save_model
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainingArguments

from attngeo.pretrain.images.ema import ModelEMA, UpdateEMA
from attngeo.pretrain.images.splits import unwrap_worker_errors
from attngeo.pretrain.trainer import RunTrainer

EMA_FILE = "average.safetensors"
# S3: the learning rate at step 0, as a share of the peak.
FIRST_RATE = 0.033
# Processes that decode images for each GPU.
MOST_WORKERS = 8


def make_schedule(optimizer: Optimizer, warmup: int, steps: int) -> LambdaLR:
    """The learning rate: linear from 0.033 of its peak during warm-up, then a cosine down to 0."""

    def share(step: int) -> float:
        if step < warmup:
            return FIRST_RATE + (1 - FIRST_RATE) * step / warmup
        return (1 + math.cos(math.pi * min((step - warmup) / max(steps - warmup, 1), 1))) / 2

    return LambdaLR(optimizer, share)


def soft_cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Mean cross-entropy of a batch; targets are labels [batch], or shares of the labels [batch, labels]."""
    return F.cross_entropy(logits.float(), targets, label_smoothing=smoothing)


def image_workers(args: TrainingArguments) -> int:
    """The number of processes that decode images for this one; 0 if it decodes them itself, as without a GPU."""
    return min(MOST_WORKERS, (os.cpu_count() or 1) // args.world_size) if args.device.type == "cuda" else 0


class ImageTrainer(RunTrainer):
    """Trains a classifier on shares of labels, with a cosine schedule, and averages its weights.

    average: of the model's weights; it is saved in checkpoints and restored from them. smoothing: of labels.
    """

    def __init__(self, *args: Any, average: ModelEMA, smoothing: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # All batches have one size, so the mean over accumulated batches is the mean of their means.
        self.loss_is_scaled_for_ga = self.model_accepts_loss_kwargs = False
        self._average, self._smoothing = average.to(self.args.device), smoothing
        self.args.dataloader_num_workers = image_workers(self.args)
        self.add_callback(UpdateEMA(average, self.args.warmup_steps))

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,  # noqa: ARG002 - the Trainer's signature
    ) -> Any:
        """Cross-entropy with the shares of a batch's labels."""
        outputs = model(pixel_values=inputs["pixel_values"])
        loss = soft_cross_entropy(outputs["logits"], inputs["targets"], self._smoothing)
        return (loss, outputs) if return_outputs else loss

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LambdaLR:
        """See `make_schedule`."""
        if self.lr_scheduler is None:
            warmup = self.args.get_warmup_steps(num_training_steps)
            self.lr_scheduler = make_schedule(
                optimizer or cast("Optimizer", self.optimizer), warmup, num_training_steps
            )
        return self.lr_scheduler

    def save_state_of_run(self, checkpoint: Path) -> None:
        """Save the average."""
        save_model(self._average, str(checkpoint / EMA_FILE))

    def load_state_of_run(self, checkpoint: Path) -> None:
        """Load the average."""
        load_model(self._average, checkpoint / EMA_FILE)

    def resume(self, checkpoint: Path | None) -> None:
        """Train from a checkpoint, or from the start if it is None."""
        with unwrap_worker_errors():
            super().resume(checkpoint)
