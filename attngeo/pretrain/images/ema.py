"""The moving average of a model's weights during training.

Source: references/classification/train.py of github.com/pytorch/vision, which took it from pycls.
"""

from __future__ import annotations

from typing import Any, cast

from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

# Updates of the model between two of the average (Saponati et al. 2025, S3).
EMA_EVERY = 32


class ModelEMA(AveragedModel):
    """The exponential moving average of a model's weights: decay · average + (1 − decay) · weights."""

    def __init__(self, model: PreTrainedModel, decay: float) -> None:
        super().__init__(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)  # type: ignore[no-untyped-call]
        self.decay = decay

    @property
    def model(self) -> PreTrainedModel:
        """A model with the averaged weights."""
        return cast("PreTrainedModel", self.module)


def adapt_decay(decay: float, images: int, epochs: float) -> float:
    """The decay of one update of the average, which happens every 32 updates of `images` images each.

    1 − min(1, (1 − decay) · images · 32 / epochs); decay is 0.99998 in S3. In this way a run forgets as much for any
    batch size and number of epochs, but less, the smaller the data set: with ImageNet the average spans a 25th of the
    run, with CIFAR-10 all of it, and with fewer images it stays near the weights at the end of the warm-up.
    """
    return 1 - min(1.0, (1 - decay) * images * EMA_EVERY / epochs)


class UpdateEMA(TrainerCallback):
    """Updates the average at steps 1, 33, 65 …; until the warm-up ends, it becomes a copy of the model."""

    def __init__(self, average: ModelEMA, warmup: float) -> None:
        self._average, self._warmup = average, warmup

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:  # noqa: ARG002
        """Update the average if it is the step to do so."""
        if state.global_step % EMA_EVERY == 1:
            self._average.update_parameters(given["model"])
            if state.global_step <= self._warmup:
                self._average.n_averaged.zero_()
