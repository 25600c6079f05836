"""Training of the small models on the prediction tasks of a corpus.

The paper does not say how it trained its toy models. For its other model it names Adam with its default parameters and
batches of 128 (appendix E), which is used here. Training stops once the loss no longer falls, which is as far as
convergence goes: on the toy corpus the loss has no minimum, because some words never occur together, and their logits
fall without end.

The loop is not `attngeo.training.train`: a step takes 0.2 ms here, and three times that with processes, checkpoints
and signals, which a training of seconds does not need.
"""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from attngeo.errors import TrainingError
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.theory.corpus import Examples
from attngeo.theory.models import seeded

BATCH, RATE = 128, 1e-3
# Training stops after this number of epochs in a row that did not lower the loss below its best.
PATIENCE = 3
MOST_EPOCHS = 1000

Model = TypeVar("Model", bound=nn.Module)


def fit(
    model: Model,
    examples: Examples,
    seed: int = 0,
    *,
    epochs: int | None = None,
    progress: ProgressCallback = ignore_progress,
) -> Model:
    """Train a model of contexts, in place, by Adam on shuffled batches of all tasks, until the loss stops improving.

    model: called as model(contexts [n, |V|]) → logits [n, |V|]. epochs: the most, by default MOST_EPOCHS.
    progress: called after each epoch.
    Returns the model. Raises TrainingError if the loss is not a number.
    """
    contexts, centres = (torch.from_numpy(part) for part in (examples.contexts, examples.centres))
    tasks = torch.repeat_interleave(torch.arange(centres.numel()), centres.flatten().long())
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)
    best, waited = math.inf, 0
    with seeded(seed):
        for epoch in range(1, (epochs or MOST_EPOCHS) + 1):
            for batch in torch.split(tasks[torch.randperm(len(tasks))], BATCH):
                optimiser.zero_grad()
                logits = model(contexts[batch // centres.shape[1]])
                F.cross_entropy(logits, batch % centres.shape[1]).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            loss = float(corpus_loss(model, contexts, centres))
            if not math.isfinite(loss):
                raise TrainingError(f"the loss is {loss} after {epoch} epochs, expected a finite number")
            progress(Progress("prepare", f"epoch {epoch:,}: loss {loss:.4f}"))
            waited = 0 if loss < best else waited + 1
            best = min(best, loss)
            if waited == PATIENCE:
                break
    return model


@torch.no_grad()
def corpus_loss(model: nn.Module, contexts: Tensor, centres: Tensor) -> Tensor:
    """The mean cross-entropy over all tasks, in nats."""
    return -(centres * torch.log_softmax(model(contexts), 1)).sum() / centres.sum()
