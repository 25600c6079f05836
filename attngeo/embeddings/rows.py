"""A matrix that grows as rows come in, and an account of the rows that were left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attngeo.embeddings.embedding import Embedding
from attngeo.errors import CorruptCheckpointError

Values = np.ndarray[Any, np.dtype[np.float32]]
# Rows are added in steps of this share of what is there, so that at the end little more is held than is kept.
STEP = 1 / 32
LEAST_STEP_BYTES = 1 << 22
SHOWN = 20


class Rows:
    """Words with a float32 vector of one width each. The first of several rows of a word is kept, as word2vec does."""

    def __init__(self, ref: str, width: int) -> None:
        self.ref, self.width = ref, width
        self.row_of: dict[str, int] = {}
        self._matrix = np.empty((0, width), np.float32)
        self._left_out: dict[str, list[int]] = {}

    def add(self, words: Sequence[bytes], values: Values, numbers: Sequence[int]) -> None:
        """More rows: `values` [len(words), width], and the number of the line or record that each came from."""
        finite: Any = np.isfinite(values).all(1).tolist()
        kept = []
        for i, written in enumerate(words):
            try:
                word = written.decode("utf-8")
            except UnicodeDecodeError:
                self.leave_out("not in UTF-8", numbers[i])
                continue
            if not finite[i]:
                self.leave_out("not finite", numbers[i])
            elif word in self.row_of:
                self.leave_out("a word again", numbers[i])
            else:
                self.row_of[word] = len(self.row_of)
                kept.append(i)
        end = len(self.row_of)
        if end > len(self._matrix):
            least = LEAST_STEP_BYTES // (4 * self.width)
            longer = max(end, len(self._matrix) + max(least, int(len(self._matrix) * STEP)))
            # In place: for a matrix of gigabytes the system moves pages instead of copying them.
            self._matrix.resize((longer, self.width), refcheck=False)
        self._matrix[end - len(kept) : end] = values if len(kept) == len(words) else values[kept]

    def leave_out(self, why: str, number: int) -> None:
        """Note that a line or record is left out."""
        self._left_out.setdefault(why, []).append(number)

    def embedding(self, unit: str = "line", *more_notes: str) -> Embedding:
        """What was gathered, and a note of what was left out. Raises CorruptCheckpointError unless most was kept."""
        count = len(self.row_of)
        note = self._account(unit)
        if count <= sum(map(len, self._left_out.values())):
            raise CorruptCheckpointError(
                f"{self.ref}: {note or 'holds no vectors'}, {count:,} kept; "
                f"expected a word and {self.width} numbers each"
            )
        self._matrix.resize((count, self.width), refcheck=False)
        notes = (*((note,) if note else ()), *more_notes)
        return Embedding.of_words(self.ref, self._matrix, list(self.row_of), notes)

    def _account(self, unit: str) -> str:
        total = sum(map(len, self._left_out.values()))
        parts = []
        for why, numbers in self._left_out.items():
            first = ", ".join(map(str, numbers[:SHOWN])) + (", …" if len(numbers) > SHOWN else "")
            parts.append(f"{len(numbers):,} {why} ({unit} {first})")
        return f"{total:,} {unit}{'s' * (total != 1)} left out: {', '.join(parts)}" if total else ""
