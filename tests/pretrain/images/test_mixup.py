"""Mixup and cutmix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attngeo.pretrain.images.mixup import MixupCutmixCollator, cutmix, draw_box, mixup


def examples(count: int, labels: int, size: int, first: int = 0) -> list[dict[str, Any]]:
    """Images of one value each, which shows the source of every pixel of a mixed image."""
    return [
        {"pixel_values": torch.full((3, size, size), float(place)), "label": place % labels, "index": first + place}
        for place in range(count)
    ]


batches = st.tuples(st.integers(1, 6), st.integers(2, 5), st.integers(1, 9), st.integers(0, 10**6))


@given(batches, st.sampled_from([(0.2, 1.0), (0.2, 0.0), (0.0, 1.0), (0.0, 0.0), (5.0, 5.0)]), st.integers(0, 99))
def test_targets_are_shares_of_what_is_in_the_image(
    batch: tuple[int, int, int, int], alphas: tuple[float, float], seed: int
) -> None:
    """Mean of each image = Σ target · value, as every image has one value: true of mixup, and of cutmix by area."""
    count, labels, size, first = batch
    collate = MixupCutmixCollator(labels, *alphas, seed)
    mixed = collate(examples(count, labels, size, first))
    targets = mixed["targets"]
    assert targets.shape == (count, labels)
    assert torch.allclose(targets.sum(1), torch.ones(count))
    assert targets.min() >= 0
    before = torch.arange(count).roll(1).float()
    means = mixed["pixel_values"].mean((1, 2, 3))
    own = torch.where(before == torch.arange(count), 1.0, (means - before) / (torch.arange(count) - before))
    expected = torch.zeros(count, labels)
    for place in range(count):
        expected[place, place % labels] += own[place]
        expected[place, (place - 1) % count % labels] += 1 - own[place]
    assert torch.allclose(targets, expected, atol=1e-5)
    again = collate(examples(count, labels, size, first))
    assert all(torch.equal(mixed[name], again[name]) for name in mixed)
    if alphas == (0.0, 0.0):
        assert torch.equal(own, torch.ones(count))


@given(st.floats(0, 1), st.integers(0, 10**6))
def test_mixup_is_convex(share: float, seed: int) -> None:
    images, targets = torch.rand(4, 3, 5, 5, generator=torch.Generator().manual_seed(seed)), torch.eye(4)
    mixed, shares = mixup(images, targets, share)
    before = images.roll(1, 0)
    assert torch.allclose(mixed, share * images + (1 - share) * before, atol=1e-6)
    assert (mixed <= torch.maximum(images, before) + 1e-6).all()
    assert (mixed >= torch.minimum(images, before) - 1e-6).all()
    assert torch.allclose(shares.diagonal(), torch.full((4,), share), atol=1e-6)


@given(st.floats(0, 1), st.integers(1, 12), st.integers(1, 12), st.integers(0, 10**6))
def test_cutmix_pastes_the_area_that_the_label_says(share: float, height: int, width: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    images, targets = torch.arange(3.0)[:, None, None, None].expand(3, 2, height, width), torch.eye(3)
    top, bottom, left, right = box = draw_box(share, height, width, random)
    assert 0 <= top <= bottom <= height
    assert 0 <= left <= right <= width
    assert (bottom - top) * (right - left) <= (1 - share) * height * width + 1e-9
    mixed, shares = cutmix(images, targets, box)
    for place in range(3):
        pasted = (mixed[place] == (place - 1) % 3).float().mean().item()
        assert shares[place, (place - 1) % 3].item() == pytest.approx(pasted, abs=1e-6)
        assert shares[place, place].item() == pytest.approx(1 - pasted, abs=1e-6)
    assert images.unique().tolist() == [0.0, 1.0, 2.0]  # the batch itself is left alone


def test_a_batch_is_mixed_by_its_first_image_and_the_seed_alone() -> None:
    collate, other = MixupCutmixCollator(4, 0.2, 1.0, seed=0), MixupCutmixCollator(4, 0.2, 1.0, seed=1)
    firsts = range(0, 4000, 4)
    torch.manual_seed(0)
    drawn = [collate(examples(4, 4, 8, first))["targets"] for first in firsts]
    torch.manual_seed(1)
    np.random.seed(1)
    assert all(torch.equal(collate(examples(4, 4, 8, 4 * n))["targets"], drawn[n]) for n in (999, 0, 500))
    assert len({tuple(targets.flatten().tolist()) for targets in drawn}) > 500
    assert not torch.equal(
        torch.stack(drawn[:9]), torch.stack([other(examples(4, 4, 8, n))["targets"] for n in firsts[:9]])
    )
    mixed_up = [bool((collate(examples(4, 4, 8, first))["pixel_values"] % 1).any()) for first in firsts]
    assert 0.35 < np.mean(mixed_up) < 0.55  # half of them, but for shares too close to 1 to be seen
