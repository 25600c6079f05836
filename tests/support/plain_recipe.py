"""The published recipe of attention for tables, written plainly with torch's own modules.

Every row is copied once for each cell, with that cell masked. A batch is of 128 copies, and the whole sentence goes
through the block. This is what the fast form is measured against, and compared with in distribution.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

HEADS, WIDTH, HIDDEN, BATCH, DROPOUT, RATE = 5, 20, 5, 128, 0.1, 1e-3


class PlainAttention(nn.Module):
    """One block, post-norm, with dropout twice. Word 0 is [MASK]; columns share words."""

    def __init__(self, columns: int, words: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(words + 1, WIDTH), nn.Embedding(columns, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, eps=1e-6), nn.LayerNorm(WIDTH, eps=1e-6)
        self.drop1, self.drop2 = nn.Dropout(DROPOUT), nn.Dropout(DROPOUT)
        self.head = nn.Linear(WIDTH, words)
        self._start()

    def _start(self) -> None:
        """As Keras does, whose kernels are [width, heads, size], and [heads, size, width] for `out`."""
        size = WIDTH // HEADS
        nn.init.uniform_(self.words.weight, -0.05, 0.05)
        nn.init.xavier_uniform_(self.positions.weight)
        limit = (6 / (WIDTH * HEADS + WIDTH * size)) ** 0.5
        nn.init.uniform_(self.attention.in_proj_weight, -limit, limit)
        for linear in (self.attention.out_proj, self.up, self.down, self.head):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)
        limit = (6 / (HEADS * size + HEADS * WIDTH)) ** 0.5
        nn.init.uniform_(self.attention.out_proj.weight, -limit, limit)

    def forward(self, rows: Tensor, column: Tensor) -> Tensor:
        x = self.words(rows) + self.positions.weight
        x = self.norm1(x + self.drop1(self.attention(x, x, x, need_weights=False)[0]))
        x = self.norm2(x + self.drop2(self.down(torch.relu(self.up(x)))))
        logits: Tensor = self.head(x[torch.arange(len(column)), column])
        return logits


def fit_plain(codes: np.ndarray, words: int, *, epochs: int, seed: int) -> PlainAttention:
    """Train on rows of categories, [rows, K], the response last: one step of Adam for each batch of masked copies."""
    torch.manual_seed(seed)
    rows = torch.as_tensor(codes) + 1
    columns = rows.shape[1]
    copies, column = rows.repeat_interleave(columns, 0), torch.arange(columns).repeat(len(rows))
    target = copies.gather(1, column[:, None])[:, 0] - 1
    copies.scatter_(1, column[:, None], 0)
    model = PlainAttention(columns, words)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    for _ in range(epochs):
        order = torch.randperm(len(copies))
        for batch in order.split(BATCH):
            loss = functional.cross_entropy(model(copies[batch], column[batch]), target[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()
