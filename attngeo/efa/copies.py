"""The tokens of all masked copies of a sequence: in copy i, position i is masked.

After a layer without a norm, each token is a fixed vector plus a matrix times the weighted sum of its values. The last
layer is read from these sums; the tokens, which are larger, are not computed.

Shapes: as in `attngeo.efa.attention`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Copies(Protocol):
    """What the last layer reads of the copies."""

    @property
    def own(self) -> Tensor:
        """The masked token of each copy, [B, I, d]."""

    def dot(self, asked: Tensor) -> Tensor:
        """Products of vectors of each copy, [B, I, H, d], with its tokens: [B, I, H, J]."""

    def mix(self, weights: Tensor) -> Tensor:
        """Sums of the tokens of each copy with weights [B, I, H, J]: [B, I, H, d]."""


@dataclass(frozen=True)
class WholeCopies:
    """All tokens of all copies, [B, I, J, d]."""

    tokens: Tensor

    @property
    def own(self) -> Tensor:
        """The masked token of each copy, [B, I, d]."""
        return self.tokens.diagonal(dim1=1, dim2=2).transpose(-1, -2)

    def dot(self, asked: Tensor) -> Tensor:
        """Products of vectors of each copy with its tokens."""
        return asked @ self.tokens.transpose(-1, -2)

    def mix(self, weights: Tensor) -> Tensor:
        """Sums of the tokens of each copy."""
        return weights @ self.tokens


@dataclass(frozen=True)
class MixedCopies:
    """Token j of copy i is once[j] + output·mixed[i, j], and own[i] for j = i.

    once: [B, J, d]. mixed: what the heads' values give together, [B, I, J, n]. output: [d, n]. own: [B, I, d].
    """

    once: Tensor
    mixed: Tensor
    output: Tensor
    own: Tensor

    def dot(self, asked: Tensor) -> Tensor:
        """Products of vectors of each copy with its tokens."""
        with_once = asked.flatten(1, 2) @ self.once.transpose(-1, -2)
        found = with_once.view(*asked.shape[:3], -1) + (asked @ self.output) @ self.mixed.transpose(-1, -2)
        return torch.where(self._is_own, (asked * self.own.unsqueeze(2)).sum(-1, keepdim=True), found)

    def mix(self, weights: Tensor) -> Tensor:
        """Sums of the tokens of each copy."""
        others = weights.masked_fill(self._is_own, 0)
        of_once = (others.flatten(1, 2) @ self.once).view(*weights.shape[:3], -1)
        of_own = (weights - others).sum(-1, keepdim=True) * self.own.unsqueeze(2)
        return of_once + (others @ self.mixed) @ self.output.T + of_own

    def expand(self) -> Tensor:
        """All tokens but the masked ones, [B, I, J, d]."""
        return self.once.unsqueeze(1) + self.mixed @ self.output.T

    @property
    def _is_own(self) -> Tensor:
        return mark_own(self.own, self.mixed.shape[2]).unsqueeze(1)


def mark_own(masked: Tensor, total: int) -> Tensor:
    """Which of all tokens is the masked one of each copy, [I, total]. masked: [B, I, d]."""
    return torch.eye(masked.shape[1], total, dtype=torch.bool, device=masked.device)
