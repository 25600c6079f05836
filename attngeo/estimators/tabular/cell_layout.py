"""How the categories of a table are numbered: codes of the cells in a column, slots of all columns, and vectors."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attngeo.bounds.machine import require_memory

# The code of a cell that is missing.
MISSING = -1
# The code of a cell whose value has no category: no training row has it, or too few.
UNSEEN = -2


@dataclass(frozen=True)
class CellLayout:
    """How categories are numbered.

    Attributes:
        sizes: number of categories of each column; the response is the last one.
        shared: whether columns share the vectors of their categories, by number, as in the paper; otherwise each
            category has its own.
        has_unseen: whether each column has a slot with its own vector for values without a category.
    """

    sizes: tuple[int, ...]
    shared: bool = False
    has_unseen: bool = False

    @property
    def more(self) -> int:
        """The number of slots of a column beyond its categories: [MASK], then unseen values."""
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
        """The number of category vectors; the vector of [MASK] follows, then one per column for unseen values."""
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
