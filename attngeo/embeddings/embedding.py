"""Embedding: vectors with a label each, and which of them stand for words."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attngeo.choices import Candidates
from attngeo.embeddings.words import is_word
from attngeo.errors import CorruptCheckpointError

# A vocabulary counts as cased where at least this share of its words has a capital.
CASED = 0.001


@dataclass(frozen=True, repr=False)
class Embedding:
    """A table of vectors.

    matrix: [rows, width], floating point, on the CPU, as it was stored. labels: what each row stands for, a word as
    in running text, or a token (`##ing`: a piece inside a word); "" for none. is_word, is_entry: [rows], whether a row
    is a word, and whether it can be used at all (it has a label and finite values). pieces: the rows of a word's
    tokens, None where the word cannot be written with them; None for a table without a tokeniser.
    notes: what a user should know about how it was read.
    """

    ref: str
    matrix: Tensor
    labels: Sequence[str]
    is_word: Tensor
    is_entry: Tensor
    revision: str | None = None
    pieces: Callable[[str], list[int] | None] | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of_words(
        cls, ref: str, matrix: np.ndarray[Any, Any], labels: Sequence[str], notes: tuple[str, ...] = ()
    ) -> Embedding:
        """The table of word vectors, one label a row. Raises CorruptCheckpointError where no row is finite."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of memory that may not be written to: nobody writes to it
            tensor = torch.from_numpy(matrix)
        usable = finite_rows(tensor)
        if not usable.any():
            raise CorruptCheckpointError(f"{ref}: holds no finite vector; save it again")
        bad = int((~usable).sum())
        notes += (f"{bad:,} vectors left out: NaN or Inf in them",) if bad else ()
        return cls(
            ref, tensor, labels, torch.tensor([is_word(label) for label in labels]) & usable, usable, notes=notes
        )

    def __repr__(self) -> str:
        rows, width = self.matrix.shape
        return f"Embedding({self.ref!r}: {rows:,} vectors of {width} dimensions, {int(self.is_word.sum()):,} words)"

    def rows(self, candidates: Candidates) -> Tensor:
        """The rows that may be answers, ascending: the words, or every entry."""
        return (self.is_word if candidates == "words" else self.is_entry).nonzero()[:, 0]

    @property
    def is_cased(self) -> bool:
        """Whether words are told apart by their capitals."""
        words = [self.labels[row] for row in self.rows("words").tolist()]
        return bool(sum(word != word.lower() for word in words) > CASED * len(words))


def finite_rows(matrix: Tensor, block: int = 4096) -> Tensor:
    """Whether each row [rows] holds nothing but finite numbers; works in blocks, so that nothing is copied whole."""
    finite = torch.empty(len(matrix), dtype=torch.bool)
    for start in range(0, len(matrix), block):
        finite[start : start + block] = matrix[start : start + block].isfinite().all(1)
    return finite
