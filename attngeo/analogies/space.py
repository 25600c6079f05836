"""Vectors as the probe sees them: as they are, or centred, without their main directions, or of unit length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attngeo.analogies.lexicon import Lexicon
from attngeo.errors import UsageError

BLOCK = 4096


@dataclass(frozen=True)
class Preprocessing:
    """What is done to the vectors first, in this order.

    whiten: take away the mean and the N directions of largest variance (all-but-the-top, Mu and Viswanath 2018,
    arXiv 1702.01417). centre: take away the mean. normalise: scale to unit length. Mean and directions are those of
    the candidates.
    """

    centre: bool = False
    whiten: int = 0
    normalise: bool = False

    def __post_init__(self) -> None:
        if self.whiten < 0:
            raise UsageError(f"whiten is {self.whiten}, expected 0 or a number of directions")


class Space:
    """The vectors of a lexicon, treated, in `dtype` on `device`; read in blocks, never held as a whole."""

    def __init__(self, lexicon: Lexicon, treatment: Preprocessing, device: torch.device, dtype: torch.dtype) -> None:
        self.lexicon, self._treatment, self._device, self._dtype = lexicon, treatment, device, dtype
        self.candidates = lexicon.candidates
        self.width = lexicon.embedding.matrix.shape[1]
        if treatment.whiten >= self.width:
            raise UsageError(
                f"whiten is {treatment.whiten}, expected less than the {self.width} dimensions of "
                f"{lexicon.embedding.ref}"
            )
        self._mean, self._top = self._fit()

    def vectors(self, rows: Tensor) -> Tensor:
        """The treated vectors of some rows, [len(rows), width]."""
        x = self._raw(rows)
        if self._mean is not None:
            x -= self._mean
        if self._top is not None:
            x -= (x @ self._top) @ self._top.mT
        return unit(x) if self._treatment.normalise else x

    def blocks(self, size: int) -> Iterator[tuple[int, Tensor]]:
        """The candidates in turn: the place of the first among them, and up to `size` vectors."""
        for start in range(0, len(self.candidates), size):
            yield start, self.vectors(self.candidates[start : start + size])

    def _raw(self, rows: Tensor) -> Tensor:
        table, composed = self.lexicon.embedding.matrix, self.lexicon.composed
        inside = rows < len(table)
        if bool(inside.all()):
            return table[rows].to(self._device, self._dtype)
        x = torch.empty(len(rows), self.width, dtype=self._dtype)
        x[inside] = table[rows[inside]].to(self._dtype)
        x[~inside] = composed[rows[~inside] - len(table)].to(self._dtype)
        return x.to(self._device)

    def _fit(self) -> tuple[Tensor | None, Tensor | None]:
        """The mean [width] and the directions of largest variance [width, N]."""
        if not (self._treatment.centre or self._treatment.whiten):
            return None, None
        count = len(self.candidates)
        parts = [self.candidates[start : start + BLOCK] for start in range(0, count, BLOCK)]
        mean = torch.stack([self._raw(rows).sum(0) for rows in parts]).sum(0) / count
        if not self._treatment.whiten:
            return mean, None
        spread = torch.zeros(self.width, self.width, dtype=self._dtype, device=self._device)
        for rows in parts:
            x = self._raw(rows) - mean
            spread += x.mT @ x
        # On the CPU: not every device has a decomposition of symmetric matrices.
        directions = torch.linalg.eigh(spread.cpu()).eigenvectors[:, -self._treatment.whiten :]
        return mean, directions.to(self._device)


def unit(x: Tensor) -> Tensor:
    """Rows scaled to length 1; zero rows stay zero."""
    lengths = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / torch.where(lengths > 0, lengths, 1)
