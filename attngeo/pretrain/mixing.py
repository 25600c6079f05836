"""Mixup and cutmix: batches of images whose labels are shares of two.

Sources: Zhang et al. 2018 (arXiv 1710.09412), Yun et al. 2019 (arXiv 1905.04899). One of the two for each batch, and
each image with the one before it, as in references/classification/transforms.py of github.com/pytorch/vision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

# Top, bottom, left, right; the second and the fourth are the first row and column outside it.
Box = tuple[int, int, int, int]
# Sets these draws apart from others of the same seed.
STREAM = 1


@dataclass(frozen=True)
class MixupCutmixCollator:
    """A collator: images [batch, channels, height, width], targets [batch, labels] whose rows are shares that sum to 1.

    mixup, cutmix: α of the Beta(α, α) that shares are drawn from; 0 for neither. What is drawn depends on the seed and
    the number `index` of the batch's first image alone: it is the same after a run is resumed, and on any number of
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
        images, targets = self._mixed(images, targets, int(examples[0]["index"]))
        return {"pixel_values": images, "targets": targets}

    def _mixed(self, images: Tensor, targets: Tensor, first: int) -> tuple[Tensor, Tensor]:
        random = np.random.default_rng((self.seed, first, STREAM))
        ways = [way for way in (mixup, cutmix) if getattr(self, way.__name__) > 0]
        if not ways:
            return images, targets
        way = ways[random.integers(len(ways))]
        alpha = getattr(self, way.__name__)
        share = float(random.beta(alpha, alpha))
        if way is mixup:
            return mixup(images, targets, share)
        return cutmix(images, targets, box_of(share, images.shape[-2], images.shape[-1], random))


def mixup(images: Tensor, targets: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """`share` of every image and of its target, and 1 − share of those before it."""
    return torch.lerp(images.roll(1, 0), images, share), torch.lerp(targets.roll(1, 0), targets, share)


def cutmix(images: Tensor, targets: Tensor, box: Box) -> tuple[Tensor, Tensor]:
    """Every image with a box of the one before it, and of that one's target the share that the box is of the image."""
    top, bottom, left, right = box
    mixed = images.clone()
    mixed[..., top:bottom, left:right] = images.roll(1, 0)[..., top:bottom, left:right]
    share = 1 - (bottom - top) * (right - left) / (images.shape[-2] * images.shape[-1])
    return mixed, torch.lerp(targets.roll(1, 0), targets, share)


def box_of(share: float, height: int, width: int, random: np.random.Generator) -> Box:
    """A box of about 1 − share of an image, around a point anywhere in it; what would lie outside is cut off."""
    half = 0.5 * math.sqrt(1 - share)
    edges = []
    for length in (height, width):
        centre, reach = int(random.integers(length)), int(half * length)
        edges += [max(centre - reach, 0), min(centre + reach, length)]
    top, bottom, left, right = edges
    return top, bottom, left, right
