"""Mixup and cutmix: batches in which each image is mixed with another, and so is its label.

Sources: Zhang et al. 2018 (arXiv 1710.09412), Yun et al. 2019 (arXiv 1905.04899). Each batch is mixed in one of the two
ways, each image with the one before it, as in references/classification/transforms.py of github.com/pytorch/vision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

# Makes these draws differ from others of the same seed.
STREAM = 1


class Box(NamedTuple):
    """Part of an image; bottom and right are the first row and column outside it."""

    top: int
    bottom: int
    left: int
    right: int


@dataclass(frozen=True)
class MixupCutmixCollator:
    """A collator: pixel_values [batch, channels, height, width], targets [batch, labels] whose rows sum to 1.

    mixup, cutmix: α of the Beta(α, α) that shares are drawn from; 0 to leave one out. The draws depend only on the seed
    and the number `index` of the batch's first image: they are the same after a run is resumed, and on any number of
    processes.
    """

    labels: int
    mixup: float
    cutmix: float
    seed: int

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Tensor]:
        """The batch of these images."""
        images = torch.stack([example["pixel_values"] for example in examples])
        numbers = torch.tensor([example["label"] for example in examples])
        targets = F.one_hot(numbers, self.labels).to(images.dtype)
        images, targets = self._mix(images, targets, int(examples[0]["index"]))
        return {"pixel_values": images, "targets": targets}

    def _mix(self, images: Tensor, targets: Tensor, first: int) -> tuple[Tensor, Tensor]:
        random = np.random.default_rng((self.seed, first, STREAM))
        alphas = {"mixup": self.mixup, "cutmix": self.cutmix}
        ways = [way for way, alpha in alphas.items() if alpha > 0]
        if not ways:
            return images, targets
        way = ways[random.integers(len(ways))]
        share = float(random.beta(alphas[way], alphas[way]))
        if way == "mixup":
            return mixup(images, targets, share)
        return cutmix(images, targets, draw_box(share, images.shape[-2], images.shape[-1], random))


def mixup(images: Tensor, targets: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """`share` of each image and of its target, plus 1 − share of those before it."""
    return torch.lerp(images.roll(1, 0), images, share), torch.lerp(targets.roll(1, 0), targets, share)


def cutmix(images: Tensor, targets: Tensor, box: Box) -> tuple[Tensor, Tensor]:
    """Each image with a box of the one before it, and the same share of that one's target."""
    top, bottom, left, right = box
    mixed = images.clone()
    mixed[..., top:bottom, left:right] = images.roll(1, 0)[..., top:bottom, left:right]
    share = 1 - (bottom - top) * (right - left) / (images.shape[-2] * images.shape[-1])
    return mixed, torch.lerp(targets.roll(1, 0), targets, share)


def draw_box(share: float, height: int, width: int, random: np.random.Generator) -> Box:
    """A box of about 1 − share of an image, around a random point of it, cut off at the image's edges."""
    half = 0.5 * math.sqrt(1 - share)
    edges = []
    for length in (height, width):
        centre, reach = int(random.integers(length)), int(half * length)
        edges += [max(centre - reach, 0), min(centre + reach, length)]
    return Box(*edges)
