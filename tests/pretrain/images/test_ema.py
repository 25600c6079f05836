"""The average of the weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import TrainerControl, TrainerState

from attngeo.pretrain.images.ema import ModelEMA, UpdateEMA, adapt_decay


def test_the_average_is_its_recurrence() -> None:
    """A copy every 32 steps during warm-up and once after it; from then on decay · average + (1 − decay) · weights."""
    model, decay, warmup = torch.nn.Linear(3, 2), 0.9, 40
    average: Any = ModelEMA(model, decay)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    callback, state = UpdateEMA(average, warmup), TrainerState()
    expected = model.weight.detach().clone()
    copied = False
    for step in range(1, 200):
        torch.nn.init.normal_(model.weight, generator=generator)
        state.global_step = step
        callback.on_step_end(None, state, TrainerControl(), model=model)  # type: ignore[arg-type]
        if step % 32 == 1:
            expected = (
                decay * expected + (1 - decay) * model.weight.detach() if copied else model.weight.detach().clone()
            )
            copied = step > warmup
        assert torch.allclose(average.model.weight, expected, atol=1e-6)
    assert average.n_averaged == 5  # at 65, 97, 129, 161 and 193


def test_the_decay_is_adjusted_to_batch_and_epochs() -> None:
    """The numbers of torchvision's own ViT-B/16: 8 GPUs × 64 images, 32 steps, 300 epochs."""
    assert adapt_decay(0.99998, 512, 300) == pytest.approx(1 - (1 - 0.99998) * 512 * 32 / 300)
    assert adapt_decay(0.99998, 128, 500) == pytest.approx(1 - 2e-5 * 8.192)
    assert adapt_decay(0.99998, 10**6, 1) == 0
