"""Vectors as the probe uses them: raw, centred, without their main directions, or scaled to unit length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attngeo.analogies.lexicon import Lexicon
from attngeo.analogies.options import ProbeSettings
from attngeo.devices import pick_device
from attngeo.errors import UsageError
from attngeo.options import default_of, options_of

BLOCK = 4096
# How a setting that is not at its default is described.
DESCRIPTIONS = {
    "method": "{}",
    "table": "{} table",
    "candidates": "candidates: {}",
    "case": "case: {}",
    "compose": "compose: {}",
    "limit": "first {:,}",
    "centre": "centred",
    "remove_top": "top {} removed",
}


@dataclass(frozen=True)
class Preprocessing:
    """What is done to the vectors first, in this order.

    remove_top: subtract the mean and the N directions of largest variance (all-but-the-top, Mu and Viswanath 2018,
    arXiv 1702.01417). centre: subtract the mean. normalise: scale to unit length. Mean and directions are those of the
    candidates.
    """

    centre: bool = False
    remove_top: int = 0
    normalise: bool = False


class Space:
    """The vectors of a lexicon, preprocessed, in `dtype` on `device`; made in blocks, never held as a whole."""

    def __init__(
        self, lexicon: Lexicon, preprocessing: Preprocessing, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.lexicon, self._preprocessing, self._device, self._dtype = lexicon, preprocessing, device, dtype
        self.candidates = lexicon.candidates
        self.width = lexicon.embedding.matrix.shape[1]
        if preprocessing.remove_top >= self.width:
            raise UsageError(
                f"remove_top is {preprocessing.remove_top}, expected less than the {self.width} dimensions of "
                f"{lexicon.embedding.ref}"
            )
        self._mean, self._top = self._fit()

    def vectors(self, rows: Tensor) -> Tensor:
        """The preprocessed vectors of some rows, [len(rows), width]."""
        x = self._raw(rows)
        if self._mean is not None:
            x -= self._mean
        if self._top is not None:
            x -= (x @ self._top) @ self._top.mT
        return unit(x) if self._preprocessing.normalise else x

    def blocks(self, size: int) -> Iterator[tuple[int, Tensor]]:
        """The candidates block by block: the place of the first one, and up to `size` vectors."""
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
        if not (self._preprocessing.centre or self._preprocessing.remove_top):
            return None, None
        count = len(self.candidates)
        parts = [self.candidates[start : start + BLOCK] for start in range(0, count, BLOCK)]
        mean = torch.stack([self._raw(rows).sum(0) for rows in parts]).sum(0) / count
        if not self._preprocessing.remove_top:
            return mean, None
        spread = torch.zeros(self.width, self.width, dtype=self._dtype, device=self._device)
        for rows in parts:
            x = self._raw(rows) - mean
            spread += x.mT @ x
        # On the CPU, because some devices have no decomposition of symmetric matrices.
        directions = torch.linalg.eigh(spread.cpu()).eigenvectors[:, -self._preprocessing.remove_top :]
        return mean, directions.to(self._device)


def open_space(lexicon: Lexicon, settings: ProbeSettings) -> Space:
    """The vectors of a lexicon, preprocessed as the settings say. Raises UsageError."""
    device = pick_device(settings.device)
    dtype = torch.float32 if device.type == "mps" else torch.float64  # Apple's GPUs have no float64
    return Space(lexicon, Preprocessing(settings.centre, settings.remove_top, settings.normalise), device, dtype)


def describe_settings(settings: ProbeSettings) -> list[str]:
    """The settings that are not at their defaults, and whether vectors have unit length, in words."""
    kind = type(settings)
    changed = [
        text.format(getattr(settings, name))
        for name, text in DESCRIPTIONS.items()
        if name in options_of(kind) and getattr(settings, name) != default_of(kind, name)
    ]
    return [*changed, "unit vectors" if settings.normalise else "raw vectors"]


def unit(x: Tensor) -> Tensor:
    """Rows scaled to length 1; zero rows stay zero."""
    lengths = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / torch.where(lengths > 0, lengths, 1)
