"""What a network says of masked cells: the vector of each, the probability of its categories, and its attention."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from attngeo.estimators.tabular.network import TableAttention

# Rows that are read at once.
CHUNK = 4096


@torch.no_grad()
def read_cells(network: TableAttention, codes: np.ndarray, column: int) -> tuple[np.ndarray, np.ndarray]:
    """The masked cell of each row: its vector ([rows, d]), and the probability of each category of its column.

    Equal rows are read only once. Kernels round the last rows of a product differently, so equal rows read separately
    would differ in the last digit, and so would ranks such as AUC.

    codes: categories, [rows, K]; the column to predict is ignored. The probabilities are [rows, categories].
    """
    cells = codes.copy()
    cells[:, column] = 0
    different, places = np.unique(cells, axis=0, return_inverse=True)
    places = places.ravel()  # NumPy 2.0 gives [rows, 1]
    words = network.layout.to_words(torch.arange(network.layout.sizes[column]), torch.tensor(column))
    vectors = []
    chances = []
    for rows, masked in _mask(network, different, column):
        vector, logits = network.read(rows, masked)
        vectors.append(vector[0].cpu())
        chances.append(logits[0].cpu()[:, words].softmax(1))
    return torch.cat(vectors).numpy()[places], torch.cat(chances).numpy()[places]


@torch.no_grad()
def read_attention(network: TableAttention, codes: np.ndarray) -> np.ndarray:
    """How much each cell attends to all cells of its row while it is masked: [rows, heads, K, K].

    codes: categories, [rows, K].
    """
    weights = []
    for column in range(codes.shape[1]):
        chunks = [network.attend(rows, masked) for rows, masked in _mask(network, codes, column)]
        weights.append(torch.cat(chunks, 1)[0].cpu())
    return torch.stack(weights, 1).permute(0, 3, 1, 2).contiguous().numpy()


def _mask(network: TableAttention, codes: np.ndarray, column: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Slots ([1, B, K]) with this column masked, and its number ([1, B])."""
    slots = network.layout.to_slots(torch.as_tensor(codes))
    slots[:, column] = network.layout.mask_slots()[column]
    for rows in torch.split(slots, CHUNK):
        yield rows[None].to(network.slots.device), torch.full((1, len(rows)), column, device=network.slots.device)
