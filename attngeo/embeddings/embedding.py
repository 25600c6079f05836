"""Tables of vectors in memory: the matrix, the label of each row, and which rows are words.

A vocabulary marks the tokens that start a word (`Ġ` in byte-level BPE, `▁` in SentencePiece), those that end one
(`</w>`), or those that continue one (`##` in WordPiece). The mark of a vocabulary is the one on most of its tokens.

A token is a word if it is not special, is a whole word by that mark, and consists of letters (of any script, with their
combining marks), with single hyphens, apostrophes and full stops between or after them. Examples of tokens that are no
words: `[unused9]`, `##ing`, `<s>`, control and byte tokens, numbers, punctuation, and phrases such as `New_York`. Rare
words and words of one letter are words.
"""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from tokenizers.decoders import ByteLevel
from tokenizers.pre_tokenizers import ByteLevel as ByteLevelBytes
from torch import Tensor

from attngeo.choices import Candidates
from attngeo.errors import CorruptCheckpointError

# A vocabulary is cased if at least this share of its words has a capital.
LEAST_CASED_SHARE = 0.001
JOINERS = frozenset("-'’.")
# The label of a token that is only a part of a word has this mark, in every vocabulary.
INSIDE = "##"
# A mark on a smaller share of the tokens is a letter, such as the Ġ of Maltese.
LEAST_SHARE = 0.01


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
        left_out = int((~usable).sum())
        if left_out:
            notes = (*notes, f"vectors with NaN or Inf, left out: {left_out:,}")
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
        cased: int = sum(word != word.lower() for word in words)
        return bool(cased > LEAST_CASED_SHARE * len(words))


def find_finite_rows(matrix: Tensor) -> Tensor:
    """Whether each row [rows] of `matrix` [rows, width] is finite. Works in blocks, to need little memory."""
    finite = torch.empty(len(matrix), dtype=torch.bool)
    block = 4096
    for start in range(0, len(matrix), block):
        finite[start : start + block] = matrix[start : start + block].isfinite().all(1)
    return finite


class Mark(NamedTuple):
    """A mark, the side of a token that it is on, and whether it marks whole words or pieces inside of words."""

    text: str
    side: Literal["start", "end"]
    marks_words: bool


BYTE_LEVEL = Mark("Ġ", "start", True)
MARKS = (BYTE_LEVEL, Mark("▁", "start", True), Mark("</w>", "end", True), Mark(INSIDE, "start", False))


def is_word(text: str) -> bool:
    """Whether `text` is written as a single word.

    >>> [is_word(text) for text in ("queen", "São", "U.S.", "mother-in-law", "[unused9]", "1990", "New_York", "-")]
    [True, True, True, True, False, False, False, False]
    """
    if text.isalpha():
        return True
    if not text or not text[0].isalpha():
        return False
    for previous, character in pairwise(text):
        is_letter = character.isalpha() or unicodedata.category(character).startswith("M")
        is_single_joiner = character in JOINERS and previous not in JOINERS
        if not is_letter and not is_single_joiner:
            return False
    return text[-1] == "." or text[-1] not in JOINERS


def find_mark(tokens: Collection[str]) -> Mark | None:
    """The mark of a vocabulary; None if its tokens have none."""
    counts = {mark: sum(_has_mark(token, mark) for token in tokens) for mark in MARKS}
    mark = max(counts, key=counts.__getitem__)
    return mark if counts[mark] >= max(1, LEAST_SHARE * len(tokens)) else None


def label_tokens(tokens: Mapping[int, str], special: Collection[int]) -> tuple[dict[int, str], set[int]]:
    """The label of each token by its id, and the ids of the tokens that are words.

    >>> label_tokens({0: "<s>", 1: "Ġking", 2: "s", 3: "ĠÃ©t"}, special={0})
    ({0: '<s>', 1: 'king', 2: '##s', 3: 'ét'}, {1, 3})
    """
    ordinary = [token for number, token in tokens.items() if number not in special]
    mark = find_mark(ordinary)
    decoder = ByteLevel() if mark is not None and _is_byte_level(ordinary, mark) else None
    labels: dict[int, str] = {}
    words: set[int] = set()
    for number, token in tokens.items():
        if number in special:
            labels[number] = token
            continue
        text = token if mark is None else _remove_mark(token, mark)
        if decoder is not None:
            text = decoder.decode([text])
        if mark is None or _has_mark(token, mark) == mark.marks_words:
            labels[number] = text
            if is_word(text):
                words.add(number)
        elif mark.side == "end":
            labels[number] = f"{text}{INSIDE}"
        else:
            labels[number] = f"{INSIDE}{text}"
    return labels, words


def _is_byte_level(tokens: Iterable[str], mark: Mark) -> bool:
    """Whether tokens write bytes as letters, as GPT-2's do, and CLIP's, which have the mark at the ends of words."""
    if mark.text != "</w>":
        return mark == BYTE_LEVEL
    letters = set(ByteLevelBytes.alphabet())
    return all(letters.issuperset(_remove_mark(token, mark)) for token in tokens)


def _has_mark(token: str, mark: Mark) -> bool:
    return token.startswith(mark.text) if mark.side == "start" else token.endswith(mark.text)


def _remove_mark(token: str, mark: Mark) -> str:
    return token.removeprefix(mark.text) if mark.side == "start" else token.removesuffix(mark.text)
