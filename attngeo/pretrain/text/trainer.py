"""The Trainers of encoders and decoders, which differ in their loss."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

from attngeo.pretrain.trainer import RunTrainer


class MaskedTrainer(RunTrainer):
    """Trains a masked language model; computes its output layer for the masked tokens only.

    The loss is the same, but costs less: with BERT's vocabulary the output layer costs more than the rest of a small
    model. The hidden states are cut between the model's body and its head, in every family.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, compute_loss_func=_mean_over_masked, **kwargs)
        self._masked: Tensor | None = None
        body: Any = getattr(self.model, "base_model", self.model)
        if body is not self.model:
            body.register_forward_hook(self._keep_masked)

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The Trainer's loss; the hook learns which tokens have labels."""
        self._masked = inputs["labels"] != -100
        try:
            return super().compute_loss(model, inputs, *args, **kwargs)
        finally:
            self._masked = None

    def _keep_masked(self, body: Any, inputs: Any, output: Any) -> Any:  # noqa: ARG002 - a hook's signature
        if self._masked is None:
            return output
        hidden = output[0][self._masked][None]
        if isinstance(output, MutableMapping):
            output[next(iter(output))] = hidden
            return output
        return (hidden, *output[1:])


class CausalTrainer(RunTrainer):
    """Trains a model to predict the next token; computes the loss itself, in the same way for all families.

    The models' own losses are means over a number of tokens that differs: for a BERT as decoder it counts the first
    token of each sequence, and some families leave the loss to the Trainer.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, compute_loss_func=_mean_over_next, **kwargs)


def _mean_over_next(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """Cross-entropy of each label given the tokens before it; the first label of a sequence must be -100."""
    logits, following = outputs["logits"][:, :-1], labels[:, 1:]
    return _mean_loss(logits, following, num_items_in_batch)


def _mean_over_masked(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """Cross-entropy over the tokens that have a label; the logits are of these tokens, or of all."""
    logits, chosen = outputs["logits"], labels != -100
    if logits.shape[:-1] == labels.shape:
        logits = logits[chosen]
    return _mean_loss(logits, labels[chosen], num_items_in_batch)


def _mean_loss(logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor:
    """Summed cross-entropy over the labels other than -100, divided by their number in all accumulated batches."""
    count = (labels != -100).sum() if num_items_in_batch is None else torch.as_tensor(num_items_in_batch)
    total = F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten(), reduction="sum")
    return total / count.clamp(min=1).to(total.device)
