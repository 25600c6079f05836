"""RowCollector: word vectors that are read one part of a file after the other, and a count of those left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attngeo.bounds.memory import require_memory
from attngeo.embeddings.embedding import Embedding
from attngeo.errors import CorruptCheckpointError

Values = np.ndarray[Any, np.dtype[np.float32]]
# The matrix grows by this share of its size, so that little of its memory is unused at the end.
STEP = 1 / 32
LEAST_STEP_BYTES = 1 << 22
SHOWN = 20
# A file is refused once it has as many lines or vectors that are left out, and more of them than are kept: the rest of
# it would take long.
MOST_LEFT_OUT = 100_000


class LeftOut:
    """How many lines or vectors are left out for one reason, and the first numbers of them."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[int] = []

    def add(self, number: int) -> None:
        """Count one."""
        self.count += 1
        if len(self.first) < SHOWN:
            self.first.append(number)

    def list_first(self) -> str:
        """The first numbers, and a mark if there are more."""
        return ", ".join(map(str, self.first)) + (", …" if self.count > SHOWN else "")


class RowCollector:
    """Words with a float32 vector of one width each. Keeps the first vector of a repeated word, as word2vec does.

    ref: the name of the file in messages. width: the numbers in a vector. unit: what a message counts, such as "line".
    """

    def __init__(self, ref: str, width: int, unit: str) -> None:
        self.ref, self.width, self.unit = ref, width, unit
        self._row_of: dict[str, int] = {}
        self._matrix = np.empty((0, width), np.float32)
        self._left_out: dict[str, LeftOut] = {}

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
            require_memory(4 * longer * self.width, f"{self.ref}: the table of vectors")
            # In place: the system moves the pages of a large matrix instead of copying them.
            self._matrix.resize((longer, self.width), refcheck=False)
        self._matrix[end - len(kept) : end] = values if len(kept) == len(words) else values[kept]

    def leave_out(self, why: str, number: int) -> None:
        """Count a line or vector that is left out. Raises CorruptCheckpointError if there are too many."""
        reason = self._left_out.setdefault(why, LeftOut())
        reason.add(number)
        if reason.count > MOST_LEFT_OUT and reason.count > len(self._row_of):
            raise self._refuse()

    def _refuse(self) -> CorruptCheckpointError:
        return CorruptCheckpointError(
            f"{self.ref}: {self._describe_left_out() or 'it has no vectors'}, {len(self._row_of):,} kept; "
            f"expected a word and {self.width} numbers each"
        )

    def finish(self, *more_notes: str) -> Embedding:
        """The table of all rows, with a note of what was left out.

        Raises CorruptCheckpointError unless more rows were kept than left out.
        """
        count, note = len(self._row_of), self._describe_left_out()
        if count <= self._count_left_out():
            raise self._refuse()
        self._matrix.resize((count, self.width), refcheck=False)
        notes = (note, *more_notes) if note else more_notes
        return Embedding.from_words(self.ref, self._matrix, list(self._row_of), notes)

    def _count_left_out(self) -> int:
        return sum(reason.count for reason in self._left_out.values())

    def _describe_left_out(self) -> str:
        """How many lines or vectors were left out, why, and the first numbers; "" if there are none."""
        total = self._count_left_out()
        if not total:
            return ""
        parts = []
        for why, reason in self._left_out.items():
            parts.append(f"{reason.count:,} {why} ({self.unit} {reason.list_first()})")
        units = self.unit if total == 1 else f"{self.unit}s"
        return f"{total:,} {units} left out: {', '.join(parts)}"
