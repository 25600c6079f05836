"""The network of attention for tables: bidirectional attention over the cells of a row, for a batch of models.

Several tables of one shape are trained as a batch of models, on masked copies of rows; they end as each alone.

A row is a sentence: its words are the categories of the cells, its positions are the columns, and the last column is
the response. One cell is masked, and its category is predicted from the others.

Shapes: M models, B masked rows, K columns with the response, H heads of size c, d = H·c, S slots.
A slot is a category of a column, or the [MASK] of a column. Only slots enter the network, and only the masked cell is
read. So queries are computed once for each column, keys and values once for each slot, whatever the number of rows, and
the logit of a masked cell and another cell is read from a table of K × S numbers.

Source: Wibisono & Wang 2023 (arXiv 2307.04057), section 3 and appendix E; the block is that of the published run.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from attngeo.bounds.machine import require_memory
from attngeo.devices import pick_device
from attngeo.estimators.tabular.options import ClassifierOptions
from attngeo.progress import ProgressCallback, ignore_progress
from attngeo.training import TrainingOptions
from attngeo.training.loop import Batch, draw_generator, limited_threads, train

EPS = 1e-6
# The code of a cell that is missing.
MISSING = -1
# The code of a cell whose value has no category: no training row has it, or too few.
UNSEEN = -2
# The probability that a cell of a masked copy is taken for one of these, so that their vectors are learned.
UNSEEN_RATE = 0.01
# Half the width of the uniform distribution that categories start from.
EMBEDDING_RANGE = 0.05
# Models that are trained at once: more do not make one faster, and need more memory.
MOST_MODELS = 32
# Numbers in the largest tensor of a step below which torch does not divide them between threads.
UNDIVIDED = 2**15
# Batches that are prepared at once.
CHUNK = 32
# The batches of an epoch, and the least and the most masked copies in one, if no size is given.
BATCHES = 100
SMALLEST_BATCH = 128
LARGEST_BATCH = 1024
# Random numbers of 16 bits decide what dropout drops: its probability is rounded to a multiple of 1/LEVELS.
LEVELS = 2**16


@dataclass(frozen=True)
class CellLayout:
    """How categories are numbered.

    sizes: the number of categories of each column; the response is the last one. shared: whether columns share the
    vectors of their categories, by number, as in the paper; otherwise each category has its own. has_unseen: whether
    each column has a slot for values without a category, with a vector of its own.
    """

    sizes: tuple[int, ...]
    shared: bool = False
    has_unseen: bool = False

    @property
    def more(self) -> int:
        """The slots of a column beside those of its categories: of [MASK], then of unseen values."""
        return 1 + self.has_unseen

    @property
    def starts(self) -> list[int]:
        """The first slot of each column."""
        return list(itertools.accumulate((size + self.more for size in self.sizes[:-1]), initial=0))

    @property
    def columns(self) -> int:
        """K."""
        return len(self.sizes)

    @property
    def words(self) -> int:
        """The number of vectors of categories; that of [MASK] follows, then those of unseen values by column."""
        return max(self.sizes) if self.shared else sum(self.sizes)

    def word_of_slot(self) -> Tensor:
        """The vector of each slot, [S]."""
        firsts = [0] * self.columns if self.shared else itertools.accumulate(self.sizes[:-1], initial=0)
        words: list[int] = []
        for column, (first, size) in enumerate(zip(firsts, self.sizes, strict=True)):
            words += [*range(first, first + size), self.words]
            if self.has_unseen:
                words.append(self.words + 1 + column)
        return torch.tensor(words)

    def column_of_slot(self) -> Tensor:
        """The column of each slot, [S]."""
        return torch.repeat_interleave(torch.arange(self.columns), torch.tensor(self.sizes) + self.more)

    def mask_slots(self) -> Tensor:
        """The slot of [MASK] in each column, [K]."""
        return torch.tensor([start + size for start, size in zip(self.starts, self.sizes, strict=True)])

    def to_slots(self, codes: Tensor) -> Tensor:
        """Slots of the categories ([rows, K], from 0 in each column): [MASK] for MISSING, or without one for UNSEEN."""
        slots = torch.where(codes < 0, self.mask_slots(), codes + torch.tensor(self.starts))
        return slots + (codes == UNSEEN) if self.has_unseen else slots

    def to_words(self, codes: Tensor, column: Tensor) -> Tensor:
        """The vectors of categories of these columns; both of any one shape."""
        first = self.word_of_slot()[torch.tensor(self.starts)]
        return first[column] + codes

    def allowed_words(self) -> Tensor:
        """0 for the words of each column, −∞ for the others: [K, words]. Raises NotEnoughMemoryError."""
        require_memory(8 * self.columns * (self.words + 1), f"{self.columns:,} columns of {self.words:,} categories")
        allowed = torch.full((self.columns, self.words + 1), -math.inf)
        allowed[self.column_of_slot(), self.word_of_slot().clamp(max=self.words)] = 0
        return allowed[:, :-1]


class TableAttention(nn.Module):
    """M models of one shape. Each parameter has M as its first dimension, and each model is independent of the others.

    generators: of the start, one for each model.
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

        rows: slots with [MASK] at `column`, [M, B, K]. column: [M, B]. target: the word of the masked cell. noise: 0 or
        1/(1−p) for each number that dropout may drop, [M, B, 2d]; the last dimension is 0 without dropout.
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

    The matrices of attention are kernels of three dimensions there, whose ends count the heads, or the width, for each
    number; so they start smaller than a matrix of their size.
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


class MaskedRows:
    """The copies of the tables of M models. Each model has an order and dropout of its own, which follow from its seed.

    codes: [M, rows, K]. A cell that is MISSING is [MASK], and never predicted. weights: of rows, [M, rows]. All models
    have the same number of observed cells, and of observed responses. seeds: one for each model; none for one fixed
    order. noise: how many numbers dropout drops in a row, each with probability `dropout`; 0 without seeds. most: cells
    that are masked in an epoch, which are drawn anew in each; None for all. has_response: whether those of the last
    column are among them first. hidden: the largest share of its other cells that a copy masks, too; it needs seeds.
    """

    def __init__(
        self,
        layout: CellLayout,
        codes: Tensor,
        weights: Tensor,
        size: int,
        *,
        seeds: Sequence[int] = (),
        noise: int = 0,
        dropout: float = 0.0,
        most: int | None = None,
        has_response: bool = False,
        hidden: float = 0.0,
        device: torch.device | str = "cpu",
    ) -> None:
        self._layout = layout
        self._size = size
        self._seeds = seeds
        self._noise = noise
        self._keep = 1 - dropout
        self._hidden = hidden
        self._device = device
        models, rows, columns = codes.shape
        observed = codes >= 0
        # The numbers of the cells, row × K + column, that are masked in turn.
        self._cells = _number_cells(observed)
        self._most = self._cells.shape[1] if most is None else min(most, self._cells.shape[1])
        self._has_response = has_response and self._most < self._cells.shape[1]
        self._columns = columns
        self._slots = layout.to_slots(codes)
        column = torch.arange(columns).expand_as(codes)
        self._targets = layout.to_words(codes.clamp(min=0), column).reshape(models, rows * columns)
        self._weights = weights
        self._masks = layout.mask_slots()

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of an epoch, from 0."""
        order = self._cells
        if self._seeds:
            order = self._shuffle(order, number)
        if self._has_response:  # a stable sort: each half keeps its random order
            is_other = (order % self._columns != self._columns - 1).byte()
            order = order.gather(1, is_other.sort(stable=True).indices)
        if self._most < order.shape[1]:
            order = order[:, : self._most]
            if self._seeds and self._has_response:
                order = self._shuffle(order, number, 2)
        for chunk, first in enumerate(range(0, order.shape[1], CHUNK * self._size)):
            cells = order[:, first : first + CHUNK * self._size]
            tensors = [tensor.to(self._device) for tensor in self._mask(cells, number, chunk)]
            for start in range(0, cells.shape[1], self._size):
                yield tuple(tensor[:, start : start + self._size] for tensor in tensors)

    def _shuffle(self, cells: Tensor, *numbers: int) -> Tensor:
        """Cells ([M, n]) in the random order of each model."""
        orders = [torch.randperm(cells.shape[1], generator=draw_generator(seed, *numbers)) for seed in self._seeds]
        return cells.gather(1, torch.stack(orders))

    def _mask(self, cells: Tensor, epoch: int, chunk: int) -> Batch:
        """The copies of these cells ([M, n]): slots, masked column, its word, weight and noise."""
        columns = self._layout.columns
        row = cells.div(columns, rounding_mode="floor")
        column = cells - row * columns
        rows = self._slots.gather(1, row[..., None].expand(-1, -1, columns))
        if self._seeds and (self._hidden or self._layout.has_unseen):
            rows = self._hide(rows, epoch, chunk)
        rows = rows.scatter(2, column[..., None], self._masks[column][..., None])
        noise = self._draw_noise(len(cells), cells.shape[1], epoch, chunk)
        return rows, column, self._targets.gather(1, cells), self._weights.gather(1, row), noise

    def _hide(self, rows: Tensor, epoch: int, chunk: int) -> Tensor:
        """The slots of copies, [M, n, K], of which some are masked, and some taken for unseen values.

        Each copy masks a share of its own, so that the model learns from rows with few missing cells and with many.
        """
        hidden = rows.clone()
        for model_rows, seed in zip(hidden, self._seeds, strict=True):
            generator = draw_generator(seed, epoch, chunk, 3)
            if self._layout.has_unseen:
                is_unseen = torch.rand(model_rows.shape, generator=generator) < UNSEEN_RATE
                model_rows.copy_(torch.where(is_unseen & (model_rows != self._masks), self._masks + 1, model_rows))
            if self._hidden:
                share = self._hidden * torch.rand(len(model_rows), 1, generator=generator)
                is_hidden = torch.rand(model_rows.shape, generator=generator) < share
                model_rows.copy_(torch.where(is_hidden, self._masks, model_rows))
        return hidden

    def _draw_noise(self, models: int, copies: int, epoch: int, chunk: int) -> Tensor:
        """0 or 1/(1 − dropout) for each number that dropout may drop, [models, copies, numbers]."""
        if not self._noise:
            return torch.empty(models, copies, 0)
        noise = torch.empty(models, copies * self._noise)
        bits = torch.empty(-(-noise.shape[1] // 4), dtype=torch.int64)
        least = round(LEVELS * (1 - self._keep)) - LEVELS // 2
        for model_noise, seed in zip(noise, self._seeds, strict=True):
            bits.random_(-(2**63), None, generator=draw_generator(seed, epoch, chunk, 1))
            model_noise.copy_(bits.view(torch.int16)[: len(model_noise)] >= least)
        return noise.div_(self._keep).view(models, copies, self._noise)


def _choose_batch(cells: int, most: int | None) -> int:
    """Masked copies in a batch: a hundredth of an epoch, from 128 to 1,024."""
    copies = cells if most is None else min(cells, most)
    return max(SMALLEST_BATCH, min(LARGEST_BATCH, copies // BATCHES))


def _number_cells(chosen: Tensor) -> Tensor:
    """The numbers of the chosen cells ([M, rows, K]) of each model, row × K + column: [M, cells]."""
    flat = chosen.flatten(1)
    return flat.nonzero()[:, 1].reshape(len(flat), -1)


@dataclass(frozen=True)
class FittingPlan:
    """The training of one table.

    codes: [rows, K], the response is the last column; MISSING for a missing one. weights: of the rows. held_out_codes,
    held_out_weights: of the rows that early stopping looks at, or of none. has_response: whether it looks at the last
    column only. start: the network that is trained further, in place; a new one if it is None.
    """

    layout: CellLayout
    codes: Tensor
    weights: Tensor
    held_out_codes: Tensor
    held_out_weights: Tensor
    options: ClassifierOptions
    training: TrainingOptions
    seed: int
    has_response: bool = False
    start: TableAttention | None = None

    @property
    def group_key(self) -> tuple[object, ...]:
        """A key: plans with an equal one can be trained together."""
        counts = []
        for codes in (self.codes, self.held_out_codes):
            observed = codes >= 0
            counts.append((codes.shape, int(observed.sum()), int(observed[:, -1].sum())))
        options = self.options.replace(random_state=None)
        return self.layout, tuple(counts), self.has_response, options, self.training, id(self.start)


class FittedTable(NamedTuple):
    """A trained network (a batch of one), and the losses of its training, [epochs]; validation is empty without one."""

    network: TableAttention
    train: np.ndarray
    validation: np.ndarray


def fit_plans(plans: Sequence[FittingPlan], progress: ProgressCallback = ignore_progress) -> list[FittedTable]:
    """Train each plan: those with one key together. Raises TrainingError as `training.loop.train` does."""
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, plan in enumerate(plans):
        groups[plan.group_key].append(number)
    fitted: dict[int, FittedTable] = {}
    for numbers in groups.values():
        for start in range(0, len(numbers), MOST_MODELS):
            batch = numbers[start : start + MOST_MODELS]
            fitted |= zip(batch, _fit_group([plans[number] for number in batch], progress), strict=True)
    return [fitted[number] for number in range(len(plans))]


def _fit_group(plans: Sequence[FittingPlan], progress: ProgressCallback) -> list[FittedTable]:
    """Train plans with one key as a batch of models."""
    first = plans[0]
    options = first.options
    device = pick_device(options.device)
    network = first.start
    if network is None:
        generators = [draw_generator(plan.seed) for plan in plans]
        network = TableAttention(first.layout, **options.sizes, generators=generators)
    codes = torch.stack([plan.codes for plan in plans])
    batch_size = options.batch_size or _choose_batch(int((codes[0] >= 0).sum()), options.epoch_cells)
    batches = MaskedRows(
        first.layout,
        codes,
        torch.stack([plan.weights for plan in plans]),
        batch_size,
        seeds=[plan.seed for plan in plans],
        noise=2 * network.width if options.dropout else 0,
        dropout=options.dropout,
        most=options.epoch_cells,
        has_response=first.has_response,
        hidden=options.hidden_share,
        device=device,
    )
    validation = None
    if len(first.held_out_codes):  # in a fixed order
        held_out_codes = torch.stack([plan.held_out_codes for plan in plans])
        validation = MaskedRows(
            first.layout,
            held_out_codes,
            torch.stack([plan.held_out_weights for plan in plans]),
            max(batch_size, 1024),
            most=int((held_out_codes[0, :, -1] >= 0).sum()) if first.has_response else None,
            has_response=first.has_response,
            device=device,
        )
    numbers = codes.numel() // codes.shape[1] * batch_size * network.width
    with limited_threads(is_small=numbers < UNDIVIDED):
        history = train(network, batches, first.training, validation=validation, progress=progress)
    network.cpu()
    losses = history.validation.reshape(-1, len(plans))
    fitted = []
    for number in range(len(plans)):
        model = network if len(plans) == 1 else network.select(number)
        fitted.append(FittedTable(model, history.train[:, number], losses[:, number]))
    return fitted
