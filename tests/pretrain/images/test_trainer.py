"""The learning rate and the loss of a classifier."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR

from attngeo.pretrain.images.trainer import make_schedule, soft_cross_entropy


@pytest.mark.parametrize(("warmup", "steps"), [(0, 20), (7, 30), (10, 11), (5, 5)])
def test_the_schedule_is_that_of_pytorch(warmup: int, steps: int) -> None:
    ours, theirs = (torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=3e-3) for _ in range(2))
    schedule_of_ours = make_schedule(ours, warmup, steps)

    def reference() -> Iterator[float]:
        if warmup:
            linear = LinearLR(theirs, start_factor=0.033, total_iters=warmup)
            for _ in range(warmup):
                yield theirs.param_groups[0]["lr"]
                theirs.step()
                linear.step()
        cosine = CosineAnnealingLR(theirs, T_max=max(steps - warmup, 1))
        while True:
            yield theirs.param_groups[0]["lr"]
            theirs.step()
            cosine.step()

    for expected in islice(reference(), steps + 1 if steps > warmup else steps):
        assert ours.param_groups[0]["lr"] == pytest.approx(expected, rel=1e-9, abs=1e-12)
        ours.step()
        schedule_of_ours.step()
    if steps > warmup:
        assert expected == pytest.approx(0, abs=1e-12)


@given(st.integers(2, 6), st.floats(0, 0.9), st.integers(0, 10**6))
def test_labels_and_whole_shares_have_the_same_loss(labels: int, smoothing: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits, numbers = torch.randn(5, labels, generator=generator), torch.randint(labels, (5,), generator=generator)
    whole = torch.nn.functional.one_hot(numbers, labels).float()
    smoothed = (1 - smoothing) * whole + smoothing / labels
    by_hand = -(smoothed * logits.log_softmax(-1)).sum(-1).mean()
    for targets in (numbers, whole):
        assert soft_cross_entropy(logits, targets, smoothing).item() == pytest.approx(by_hand.item(), abs=1e-5)
