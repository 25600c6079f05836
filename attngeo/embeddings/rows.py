"""RowCollector: word vectors that are read one part of a file after the other, and a count of those left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attngeo.embeddings.embedding import Embedding
from attngeo.errors import CorruptCheckpointError

Values = np.ndarray[Any, np.dtype[np.float32]]
# The matrix grows by this share of its size, so that little of its memory is unused at the end.
STEP = 1 / 32
LEAST_STEP_BYTES = 1 << 22
SHOWN = 20


class RowCollector:
    """Words with a float32 vector of one width each. Keeps the first vector of a repeated word, as word2vec does.

    ref: the name of the file in messages. width: the numbers in a vector. unit: what a message counts, such as "line".
    """

    def __init__(self, ref: str, width: int, unit: str) -> None:
        self.ref, self.width, self.unit = ref, width, unit
        self._row_of: dict[str, int] = {}
        self._matrix = np.empty((0, width), np.float32)
        self._left_out: dict[str, list[int]] = {}

    def add(self, words: Sequence[bytes], values: Values, numbers: Sequence[int]) -> None:
        """Add rows: `values` [len(words), width], and the number of the line or vector that each one comes from.

        Words that are not UTF-8 or came before are left out, and so are vectors that are not finite.
        """
        finite: Any = np.isfinite(values).all(1).tolist()
        kept = []
        for i, written in enumerate(words):
            try:
                word = written.decode("utf-8")
            except UnicodeDecodeError:
                self.leave_out("not in UTF-8", numbers[i])
                continue
            if not finite[i]:
                self.leave_out("with NaN or Inf", numbers[i])
            elif word in self._row_of:
                self.leave_out("with a repeated word", numbers[i])
            else:
                self._row_of[word] = len(self._row_of)
                kept.append(i)
        end = len(self._row_of)
        if end > len(self._matrix):
            least = LEAST_STEP_BYTES // (4 * self.width)
            longer = max(end, len(self._matrix) + max(least, int(len(self._matrix) * STEP)))
            # In place: the system moves the pages of a large matrix instead of copying them.
            self._matrix.resize((longer, self.width), refcheck=False)
        self._matrix[end - len(kept) : end] = values if len(kept) == len(words) else values[kept]

    def leave_out(self, why: str, number: int) -> None:
        """Count a line or vector that is left out."""
        self._left_out.setdefault(why, []).append(number)

    def finish(self, *more_notes: str) -> Embedding:
        """The table of all rows, with a note of what was left out.

        Raises CorruptCheckpointError unless more rows were kept than left out.
        """
        count = len(self._row_of)
        note = self._describe_left_out()
        if count <= sum(map(len, self._left_out.values())):
            raise CorruptCheckpointError(
                f"{self.ref}: {note or 'it has no vectors'}, {count:,} kept; "
                f"expected a word and {self.width} numbers each"
            )
        self._matrix.resize((count, self.width), refcheck=False)
        notes = (note, *more_notes) if note else more_notes
        return Embedding.from_words(self.ref, self._matrix, list(self._row_of), notes)

    def _describe_left_out(self) -> str:
        """How many lines or vectors were left out, why, and the first numbers; "" if there are none."""
        total = sum(map(len, self._left_out.values()))
        if not total:
            return ""
        parts = []
        for why, numbers in self._left_out.items():
            first = ", ".join(map(str, numbers[:SHOWN])) + (", …" if len(numbers) > SHOWN else "")
            parts.append(f"{len(numbers):,} {why} ({self.unit} {first})")
        units = self.unit if total == 1 else f"{self.unit}s"
        return f"{total:,} {units} left out: {', '.join(parts)}"
