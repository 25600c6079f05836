"""Embedding: a table of vectors, the label of each row, and which rows are words."""

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

# A vocabulary is cased if at least this share of its words has a capital.
LEAST_CASED_SHARE = 0.001


@dataclass(frozen=True, repr=False)
class Embedding:
    """A table of vectors.

    ref: its name, as the user gave it. matrix: [rows, width], floating point, on the CPU, as it was stored.
    labels: what each row is: a word as in running text, a token (`##ing`: a piece inside a word), or "".
    is_word: [rows], whether a row is a word. is_entry: [rows], whether a row has a label and finite values.
    revision: the Hub's commit of a checkpoint. pieces: the rows of a word's tokens, or None if a part of the word has
    no token; itself None for a table without a tokeniser. notes: what a user should know about how it was read.
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
    def from_words(
        cls, ref: str, matrix: np.ndarray[Any, Any], labels: Sequence[str], notes: tuple[str, ...] = ()
    ) -> Embedding:
        """The table of word vectors [rows, width], one label for each row.

        Raises CorruptCheckpointError if no row is finite.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of read-only memory, which nothing here writes to
            tensor = torch.from_numpy(matrix)
        usable = find_finite_rows(tensor)
        if not usable.any():
            raise CorruptCheckpointError(f"{ref}: no vector is finite; save it again")
        bad = int((~usable).sum())
        notes += (f"vectors with NaN or Inf, left out: {bad:,}",) if bad else ()
        words = torch.tensor([is_word(label) for label in labels])
        return cls(ref, tensor, labels, words & usable, usable, notes=notes)

    def __repr__(self) -> str:
        rows, width = self.matrix.shape
        return f"Embedding({self.ref!r}: {rows:,} vectors of {width} dimensions, {int(self.is_word.sum()):,} words)"

    def rows(self, candidates: Candidates) -> Tensor:
        """The rows that may be answers, in ascending order: the words, or all entries."""
        return (self.is_word if candidates == "words" else self.is_entry).nonzero()[:, 0]

    @property
    def is_cased(self) -> bool:
        """Whether the vocabulary has words with capitals."""
        words = [self.labels[row] for row in self.rows("words").tolist()]
        return bool(sum(word != word.lower() for word in words) > LEAST_CASED_SHARE * len(words))


def find_finite_rows(matrix: Tensor, block: int = 4096) -> Tensor:
    """Whether each row [rows] of `matrix` [rows, width] is finite. Works in blocks, to need little memory."""
    finite = torch.empty(len(matrix), dtype=torch.bool)
    for start in range(0, len(matrix), block):
        finite[start : start + block] = matrix[start : start + block].isfinite().all(1)
    return finite
