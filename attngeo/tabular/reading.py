"""What a trained network says about rows: the probabilities of a masked cell, its vector, and its attention."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from attngeo.devices import pick_device
from attngeo.tabular.network import ABSENT, CellLayout, TableAttention

# Rows that are read at once.
CHUNK = 4096


def _chunks(layout: CellLayout, codes: np.ndarray, column: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Slots ([1, B, K]) with this column masked, and its number ([1, B])."""
    slots = layout.to_slots(torch.as_tensor(codes))
    slots[:, column] = layout.mask_slots()[column]
    for at in range(0, len(slots), CHUNK):
        rows = slots[None, at : at + CHUNK]
        yield rows, torch.full(rows.shape[:2], column)


class TableReader:
    """Reads a network in double precision, so that what it says of a row depends on no other row.

    device: where to compute; one without double precision is replaced by the CPU.
    """

    def __init__(self, network: TableAttention, device: str) -> None:
        self._device = pick_device(device)
        if self._device.type == "mps":
            self._device = torch.device("cpu")
        self._network = copy.deepcopy(network).to(self._device, torch.float64)
        self._layout = network.layout

    @torch.no_grad()
    def read_cells(self, codes: np.ndarray, column: int) -> tuple[np.ndarray, np.ndarray]:
        """The masked cell of each row: its vector ([rows, d]), and the probability of each category of its column.

        codes: categories, [rows, K]; those of `column` are ignored. The probabilities are [rows, categories].
        """
        words = self._layout.to_words(torch.arange(self._layout.sizes[column]), torch.tensor(column))
        self._network.partial = bool((codes == ABSENT).any())
        vectors, probabilities = [], []
        for rows, masked in _chunks(self._layout, codes, column):
            vector, logits = self._network.read(rows.to(self._device), masked.to(self._device))
            vectors.append(vector[0].cpu())
            probabilities.append(logits[0].cpu()[:, words].softmax(1))
        return torch.cat(vectors).numpy(), torch.cat(probabilities).numpy()

    @torch.no_grad()
    def read_attention(self, codes: np.ndarray) -> np.ndarray:
        """The attention of each cell, when it is masked, on all cells: [rows, heads, K masked, K]."""
        self._network.partial = bool((codes == ABSENT).any())
        by_column = []
        for column in range(self._layout.columns):
            pairs = _chunks(self._layout, codes, column)
            parts = [self._network.attend(rows.to(self._device), masked.to(self._device)) for rows, masked in pairs]
            by_column.append(torch.cat(parts, 1)[0].cpu())
        return torch.stack(by_column, 1).permute(0, 3, 1, 2).contiguous().numpy()
