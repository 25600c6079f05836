"""The tokens of all masked copies of a sequence: in copy i, position i is masked.

After the first layer, token j of copy i differs from that of the sequence in one term of a weighted sum. So the copies
have a form in factors, whose size does not grow with copies × tokens × width, and the last layer can be read from it.

Shapes: as in `attngeo.efa.attention`; S sums and T terms, which are 1 + 2H and 2H.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Copies(Protocol):
    """What the last layer reads of the copies. own: the masked token of each copy, [B, I, d]."""

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
class FactoredCopies:
    """Token j of copy i is Σ_s of_sums[i, j, s]·sums[j, s] + Σ_t of_terms[i, j, t]·terms[i, t], and own[i] for j = i.

    sums: [B, J, S, d]. of_sums: [B, I, J, S]. terms: [B, I, T, d]. of_terms: [B, I, J, T]. own: [B, I, d].
    """

    sums: Tensor
    of_sums: Tensor
    terms: Tensor
    of_terms: Tensor
    own: Tensor

    def dot(self, asked: Tensor) -> Tensor:
        """Products of vectors of each copy with its tokens."""
        batch, positions, heads, _ = asked.shape
        with_sums = asked.flatten(1, 2) @ self.sums.flatten(1, 2).transpose(-1, -2)
        with_sums = with_sums.view(batch, positions, heads, *self.of_sums.shape[2:])
        found = (with_sums * self.of_sums.unsqueeze(2)).sum(-1)
        found = found + (asked @ self.terms.transpose(-1, -2)) @ self.of_terms.transpose(-1, -2)
        return torch.where(self._is_own, (asked * self.own.unsqueeze(2)).sum(-1, keepdim=True), found)

    def mix(self, weights: Tensor) -> Tensor:
        """Sums of the tokens of each copy."""
        others = weights.masked_fill(self._is_own, 0)
        of_sums = (others.unsqueeze(-1) * self.of_sums.unsqueeze(2)).flatten(3).flatten(1, 2)
        mixed = (of_sums @ self.sums.flatten(1, 2)).view(*weights.shape[:3], -1)
        own = (weights - others).sum(-1, keepdim=True) * self.own.unsqueeze(2)
        return mixed + (others @ self.of_terms) @ self.terms + own

    def expand(self) -> Tensor:
        """All tokens but the masked ones, [B, I, J, d]."""
        return self.of_terms @ self.terms + (self.of_sums.transpose(1, 2) @ self.sums).transpose(1, 2)

    @property
    def _is_own(self) -> Tensor:
        positions, total = self.of_sums.shape[1:3]
        return torch.eye(positions, total, dtype=torch.bool, device=self.own.device).unsqueeze(1)
