"""The network of attention for tables: bidirectional attention over the cells of a row, for a batch of models.

A row is a sentence: its words are the categories of the cells, its positions are the columns, and the last column is
the response. One cell is masked, and its category is predicted from the others.

Shapes: M models, B masked rows, K columns with the response, H heads of size c, d = H·c, S slots.
A slot is a category of a column, or the [MASK] of a column. Only slots enter the network, and only the masked cell is
read. So queries are computed once for each column, keys and values once for each slot, whatever the number of rows, and
the logit of a masked cell and another cell is read from a table of K × S numbers.

Source: Wibisono & Wang 2023 (arXiv 2307.04057), section 3 and appendix E; the block is that of the published run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

from attngeo.estimators.tabular.cell_layout import CellLayout

EPS = 1e-6
# Half the width of the uniform distribution that categories start from.
EMBEDDING_RANGE = 0.05


class TableAttention(nn.Module):
    """M independent models of the same shape. The first dimension of each parameter is M.

    Args:
        layout: how categories are numbered: K columns, S slots.
        heads: number of heads.
        head_size: width of a head.
        feed_forward: hidden units of the feed-forward layer.
        generators: random numbers for the initial weights, one generator per model.

    Attributes:
        shape: the three sizes by name.
        width: heads · head_size.
        weights: parameters by name.
        slots: number of the vector of each slot, [S].
        columns: number of the column of each slot, [S].
        masks: slot of [MASK] in each column, [K].
        allowed: 0 for the words of each column, −∞ for the others, [K, words].
        spread: 1 where a number belongs to a head, [heads, width].
        all_allowed: whether each column has all words.
    """

    slots: Tensor
    columns: Tensor
    masks: Tensor
    allowed: Tensor
    spread: Tensor

    def __init__(
        self,
        layout: CellLayout,
        *,
        heads: int,
        head_size: int,
        feed_forward: int,
        generators: Iterable[torch.Generator],
    ) -> None:
        super().__init__()
        self.layout = layout
        self.heads = heads
        self.head_size = head_size
        self.shape = {"heads": heads, "head_size": head_size, "feed_forward": feed_forward}
        self.width = heads * head_size
        starts = [draw_start(layout, heads, head_size, feed_forward, generator) for generator in generators]
        weights = {name: nn.Parameter(torch.stack([start[name] for start in starts])) for name in starts[0]}
        self.weights = nn.ParameterDict(weights)
        self.register_buffer("slots", layout.word_of_slot(), persistent=False)
        self.register_buffer("columns", layout.column_of_slot(), persistent=False)
        self.register_buffer("masks", layout.mask_slots(), persistent=False)
        self.register_buffer("allowed", layout.allowed_words(), persistent=False)
        self.register_buffer("spread", torch.eye(heads).repeat_interleave(head_size, 1), persistent=False)
        self.all_allowed = bool((self.allowed == 0).all())

    def forward(
        self, rows: Tensor, column: Tensor, target: Tensor, weight: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The sum of weight × cross-entropy of each model, and the sum of its weights: [M] each.

        Args:
            rows: slots with [MASK] at `column`, [M, B, K].
            column: column of the masked cell, [M, B].
            target: word of the masked cell, [M, B].
            weight: weight of the row, [M, B].
            noise: 0 or 1/(1−p) for each number that dropout may drop, [M, B, 2d]; the last dimension is 0 without
                dropout.
        """
        logits = self._read_words(self._read_cell(rows, column, noise), column)
        loss = functional.cross_entropy(logits, target, reduction="none")
        return (loss * weight).sum(1), weight.sum(1)

    def read(self, rows: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
        """The vector of the masked cell, [M, B, d], and the logits of all words, [M, B, words]."""
        x = self._read_cell(rows, column, torch.empty(0))
        return x, self._read_words(x, column).transpose(1, 2)

    def attend(self, rows: Tensor, column: Tensor) -> Tensor:
        """The weights of the cells of a row for its masked cell, [M, B, K, H]: positive, with sum 1 over K."""
        return self._attend(rows, column)[0].transpose(1, 2)

    def _read_cell(self, rows: Tensor, column: Tensor, noise: Tensor) -> Tensor:
        """The vector of the masked cell, [M, B, d]."""
        w = self.weights
        first, second = noise.chunk(2, -1)
        attention, values, masked = self._attend(rows, column)
        # A product spreads the weight of a head over its numbers: faster than broadcasting over so few.
        spread = (attention.flatten(0, -2) @ self.spread).view_as(values)
        mixed = torch.baddbmm(w["out_bias"], (spread * values).sum(1), w["out"])
        x = self._norm(_pick(masked, column), mixed, first, w["gain1"], w["bias1"])
        hidden = torch.relu(torch.baddbmm(w["up_bias"], x, w["up"]))
        return self._norm(x, torch.baddbmm(w["down_bias"], hidden, w["down"]), second, w["gain2"], w["bias2"])

    def _read_words(self, x: Tensor, column: Tensor) -> Tensor:
        """The logits of all words for masked cells, [M, words, B]: a softmax over few words is faster so."""
        weight = self.weights["word"].transpose(1, 2)
        bias = self.weights["word_bias"].transpose(1, 2)
        logits = torch.baddbmm(bias, weight, x.transpose(1, 2))
        return logits if self.all_allowed else logits + self.allowed[column].transpose(1, 2)

    def _attend(self, rows: Tensor, column: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights [M, K, B, H], values of the cells [M, K, B, d], and the input of [MASK] in each column [M, K, d].

        Cells come before rows: a softmax over the last dimensions, with so few numbers, is five times slower.
        """
        w = self.weights
        rows = rows.transpose(1, 2)
        words = torch.cat([w["words"], w["unseen"]], 1) if self.layout.has_unseen else w["words"]
        inputs = words.index_select(1, self.slots) + w["positions"].index_select(1, self.columns)  # [M, S, d]
        masked = inputs.index_select(1, self.masks)
        query = self._split(torch.baddbmm(w["query_bias"], masked, w["query"]))  # [M, H, K, c]
        key = self._split(torch.baddbmm(w["key_bias"], inputs, w["key"]))  # [M, H, S, c]
        value = torch.baddbmm(w["value_bias"], inputs, w["value"])
        scores = query @ key.transpose(-1, -2) * self.head_size**-0.5  # [M, H, K, S]
        pairs = column[:, None] * len(self.slots) + rows
        logits = _pick(scores.permute(0, 2, 3, 1).flatten(1, 2), pairs)  # [M, K, B, H]
        return logits.softmax(1), _pick(value, rows), masked

    def _split(self, x: Tensor) -> Tensor:
        """The heads of [M, N, d]: [M, H, N, c]."""
        return x.view(*x.shape[:2], self.heads, self.head_size).transpose(1, 2)

    def _norm(self, x: Tensor, added: Tensor, noise: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        """Residual connection with dropout, then layer normalisation."""
        if noise.shape[-1]:
            added = added * noise
        x = x + added
        return torch.addcmul(bias, functional.layer_norm(x, x.shape[-1:], eps=EPS), gain)

    def select(self, model: int) -> TableAttention:
        """One model of the batch, as a batch of one."""
        weights = {name: weight[model : model + 1].clone() for name, weight in self.state_dict().items()}
        selected = TableAttention(self.layout, **self.shape, generators=[torch.Generator()])
        selected.load_state_dict(weights)
        return selected


def _pick(tables: Tensor, index: Tensor) -> Tensor:
    """Rows of the table of each model ([M, N, n]), for an index of shape [M, ...]: [M, ..., n].

    By `index_select`: `embedding` needs five times as long for the gradient on a CPU.
    """
    first = torch.arange(len(tables), device=index.device) * tables.shape[1]
    numbers = index + first.view(-1, *[1] * (index.ndim - 1))
    return tables.flatten(0, 1).index_select(0, numbers.flatten()).view(*index.shape, tables.shape[-1])


def draw_start(
    layout: CellLayout, heads: int, head_size: int, feed_forward: int, generator: torch.Generator | None = None
) -> dict[str, Tensor]:
    """The parameters of one model as Keras starts them: Glorot-uniform weights, zero biases, gains of 1.

    In Keras, attention matrices are three-dimensional kernels, whose fan-in and fan-out count the heads, or the width,
    for each number. So they start smaller than a matrix of their size.
    """
    d = heads * head_size

    def uniform(rows: int, columns: int, limit: float) -> Tensor:
        return torch.empty(rows, columns).uniform_(-limit, limit, generator=generator)

    def glorot(rows: int, columns: int, fan_in: int | None = None, fan_out: int | None = None) -> Tensor:
        return uniform(rows, columns, math.sqrt(6 / ((fan_in or rows) + (fan_out or columns))))

    def project() -> Tensor:
        return glorot(d, d, d * heads, d * head_size)

    start = {
        "words": uniform(layout.words + 1, d, EMBEDDING_RANGE),
        "positions": glorot(layout.columns, d),
        "query": project(),
        "query_bias": torch.zeros(1, d),
        "key": project(),
        "key_bias": torch.zeros(1, d),
        "value": project(),
        "value_bias": torch.zeros(1, d),
        "out": glorot(d, d, d, heads * d),
        "out_bias": torch.zeros(1, d),
        "gain1": torch.ones(1, d),
        "bias1": torch.zeros(1, d),
        "up": glorot(d, feed_forward),
        "up_bias": torch.zeros(1, feed_forward),
        "down": glorot(feed_forward, d),
        "down_bias": torch.zeros(1, d),
        "gain2": torch.ones(1, d),
        "bias2": torch.zeros(1, d),
        "word": glorot(d, layout.words),
        "word_bias": torch.zeros(1, layout.words),
    }
    if layout.has_unseen:
        start["unseen"] = uniform(layout.columns, d, EMBEDDING_RANGE)
    return start
