"""Early stopping: the weights with the lowest validation loss, for one model or a batch of models."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class BestWeights:
    """The best weights so far. A batch of models has a loss each, and parameters whose first dimension is the models.

    patience: epochs without a lower loss after which a model stops; None for never. What a model learns after it has
    stopped is not kept, so that each model of a batch ends as it does alone.
    """

    def __init__(self, model: nn.Module, models: int | None, patience: int | None) -> None:
        self._model, self._models = model, models
        self._patience = math.inf if patience is None else patience
        self.lowest = torch.full((models or 1,), math.inf, dtype=torch.float64)
        self.epochs = torch.full((models or 1,), -1)
        self.stopped = torch.zeros(models or 1, dtype=torch.bool)
        self.weights: dict[str, Tensor] = {}

    def update(self, epoch: int, losses: Tensor) -> None:
        """Take the validation losses ([models]) after an epoch."""
        losses = losses.detach().to("cpu", torch.float64).reshape(-1)
        better = losses.isfinite() & (losses < self.lowest) & ~self.stopped
        self.lowest = torch.where(better, losses, self.lowest)
        self.epochs = torch.where(better, epoch, self.epochs)
        self.stopped |= epoch - self.epochs >= self._patience
        for name, now in self._model.state_dict().items():
            old = self.weights.setdefault(name, now.clone())
            chosen = better.to(now.device)
            if self._models is not None:
                old[chosen] = now[chosen]
            elif bool(better):
                old.copy_(now)

    @property
    def all_stopped(self) -> bool:
        """Whether no model is left to train."""
        return bool(self.stopped.all())

    def restore(self) -> None:
        """Give the model its best weights."""
        if self.weights:
            self._model.load_state_dict(self.weights)

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps."""
        own = {"lowest": self.lowest, "epochs": self.epochs, "stopped": self.stopped}
        return own | {f"weights.{name}": tensor for name, tensor in self.weights.items()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Continue from what `state` gave."""
        self.lowest, self.epochs, self.stopped = state["lowest"], state["epochs"], state["stopped"]
        prefix = "weights."
        like = self._model.state_dict()
        self.weights = {
            name.removeprefix(prefix): tensor.to(like[name.removeprefix(prefix)].device)
            for name, tensor in state.items()
            if name.startswith(prefix)
        }
