"""Tables of vectors in memory: the matrix, the label of each row, and which rows are words.

A vocabulary marks the tokens that start a word (`Ġ` in byte-level BPE, `▁` in SentencePiece), those that end one
(`</w>`), or those that continue one (`##` in WordPiece). The mark of a vocabulary is the one on most of its tokens.

A token is a word if it is not special, is whole by that mark, and consists of letters (of any script, with their
combining marks), single hyphens, apostrophes and full stops between letters, and at most one full stop at the end.
Not words are: `[unused9]`, `##ing`, `<s>`, control and byte tokens, numbers, punctuation, and phrases such as
`New_York`. Rare words and single letters are words.
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
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.pre_tokenizers import ByteLevel as ByteLevelEncoder
from torch import Tensor

from attngeo.choices import Answers
from attngeo.embeddings.isolated import Frame
from attngeo.errors import CorruptCheckpointError

# A vocabulary is cased if more than this share of its words has a capital.
LEAST_CASED_SHARE = 0.001
# Rows of a table that are examined at once.
BLOCK_ROWS = 4096
# Characters between the letters of one word.
JOINERS = frozenset("-'’.")
# The mark in labels, for every vocabulary, of a token that is only a part of a word: `##ing`, or `runn##` in a
# vocabulary that marks the ends of words.
INSIDE_MARK = "##"
# A vocabulary has a mark if at least this share of its tokens has it. On fewer it is a letter, such as Ġ in Maltese.
LEAST_MARKED_SHARE = 0.01


@dataclass(frozen=True, repr=False)
class Embedding:
    """A table of vectors.

    Attributes:
        ref: the name of the table, as you gave it.
        matrix: the vectors, [rows, width], floating point, on the CPU, in the stored dtype.
        labels: the text of each row: a word as in running text, a token (`##ing`: a piece inside a word), or "".
        is_word: [rows], bool, whether a row is a word and has finite values.
        is_entry: [rows], bool, whether a row has a label and finite values.
        revision: the Hub's commit of a checkpoint, else None.
        pieces: a function from a word to the rows of its tokens, or to None if a part of the word has no token. The
            attribute is None if the table has no tokeniser.
        notes: messages for the user about how the table was read.
        find_frame: a function that gives the special tokens that its tokeniser puts around texts; None as for `pieces`.
    """

    ref: str
    matrix: Tensor
    labels: Sequence[str]
    is_word: Tensor
    is_entry: Tensor
    revision: str | None = None
    pieces: Callable[[str], list[int] | None] | None = None
    notes: tuple[str, ...] = ()
    find_frame: Callable[[], Frame] | None = None

    @classmethod
    def from_words(
        cls, ref: str, matrix: np.ndarray[Any, Any], labels: Sequence[str], notes: tuple[str, ...] = ()
    ) -> Embedding:
        """A table of word vectors; the labels alone decide which rows are words.

        Args:
            ref: the name of the table.
            matrix: the vectors, [rows, width], floating point.
            labels: one label per row.
            notes: messages for the user; this method adds one if rows are not finite.

        Raises:
            CorruptCheckpointError: No row is finite.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of read-only memory, which nothing here writes to
            tensor = torch.from_numpy(matrix)
        is_finite = flag_finite_rows(tensor)
        if not is_finite.any():
            raise CorruptCheckpointError("no vector is finite; save the file again")
        left_out = int((~is_finite).sum())
        if left_out:
            notes = (*notes, f"vectors with NaN or Inf, left out: {left_out:,}")
        has_word_label = torch.tensor([is_single_word(label) for label in labels])
        return cls(ref, tensor, labels, is_word=has_word_label & is_finite, is_entry=is_finite, notes=notes)

    def __repr__(self) -> str:
        rows, width = self.matrix.shape
        return f"Embedding({self.ref!r}: {rows:,} vectors of {width} dimensions, {int(self.is_word.sum()):,} words)"

    def answer_rows(self, answers: Answers) -> Tensor:
        """The numbers of the rows that may be answers, [n], int64, in ascending order: words, or all entries."""
        is_answer = self.is_word if answers == "words" else self.is_entry
        return is_answer.nonzero()[:, 0]

    @property
    def is_cased(self) -> bool:
        """Whether more than LEAST_CASED_SHARE of the words have a capital."""
        words = [self.labels[row] for row in self.answer_rows("words").tolist()]
        cased_count: int = sum(word != word.lower() for word in words)
        return bool(cased_count > LEAST_CASED_SHARE * len(words))


def flag_finite_rows(matrix: Tensor) -> Tensor:
    """Whether all values of each row are finite, [rows], bool. matrix: [rows, width]."""
    # In blocks, because `isfinite` needs as much memory as its argument. Small results that are kept between its blocks
    # would lie in the memory that each of them frees, and the next one would not fit there.
    is_finite = torch.empty(len(matrix), dtype=torch.bool)
    for block, flags in zip(torch.split(matrix, BLOCK_ROWS), torch.split(is_finite, BLOCK_ROWS), strict=True):
        torch.all(block.isfinite(), dim=1, out=flags)
    return is_finite


class Mark(NamedTuple):
    """A mark of a vocabulary.

    Attributes:
        text: its characters.
        side: whether it is at the start or at the end of a token.
        marks_words: True if tokens with it are whole words, False if they are pieces inside a word.
    """

    text: str
    side: Literal["start", "end"]
    marks_words: bool


BYTE_LEVEL = Mark("Ġ", "start", marks_words=True)
MARKS = (
    BYTE_LEVEL,
    Mark("▁", "start", marks_words=True),
    Mark("</w>", "end", marks_words=True),
    Mark(INSIDE_MARK, "start", marks_words=False),
)


def is_single_word(text: str) -> bool:
    """Whether `text` is written as a single word: letters and JOINERS, by the rule at the top of this module.

    >>> [is_single_word(text) for text in ("queen", "São", "U.S.", "mother-in-law", "[unused9]", "1990", "New_York")]
    [True, True, True, True, False, False, False]
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
    last = text[-1]
    return last == "." or last not in JOINERS


def label_tokens(tokens: Mapping[int, str], special: Collection[int]) -> tuple[dict[int, str], set[int]]:
    """The label of each token by its id, and the ids of the tokens that are words.

    Args:
        tokens: id → token, as the vocabulary writes it.
        special: the ids of special tokens, which keep their text as the label and are never words.

    >>> label_tokens({0: "<s>", 1: "Ġking", 2: "s", 3: "ĠÃ©t"}, special={0})
    ({0: '<s>', 1: 'king', 2: '##s', 3: 'ét'}, {1, 3})
    """
    ordinary = [token for token_id, token in tokens.items() if token_id not in special]
    # The mark on most tokens, if there are enough of them.
    counts = {mark: sum(_has_mark(token, mark) for token in ordinary) for mark in MARKS}
    commonest = max(MARKS, key=lambda mark: counts[mark])
    least_count = max(1, LEAST_MARKED_SHARE * len(ordinary))
    mark = commonest if counts[commonest] >= least_count else None
    decoder = None
    if mark is not None and _is_byte_level(ordinary, mark):
        decoder = ByteLevelDecoder()
    labels: dict[int, str] = {}
    words: set[int] = set()
    for token_id, token in tokens.items():
        if token_id in special:
            labels[token_id] = token
            continue
        text = token if mark is None else _remove_mark(token, mark)
        if decoder is not None:
            text = decoder.decode([text])
        is_whole = mark is None or _has_mark(token, mark) == mark.marks_words
        if is_whole:
            labels[token_id] = text
            if is_single_word(text):
                words.add(token_id)
        elif mark is not None and mark.side == "end":
            labels[token_id] = f"{text}{INSIDE_MARK}"
        else:
            labels[token_id] = f"{INSIDE_MARK}{text}"
    return labels, words


def _is_byte_level(tokens: Iterable[str], mark: Mark) -> bool:
    """Whether each character of a token stands for one byte, as in the vocabularies of GPT-2 and CLIP.

    GPT-2 has the mark `Ġ`. CLIP has `</w>`, which vocabularies of plain text have as well: `tokens` decide.
    """
    if mark.text != "</w>":
        return mark == BYTE_LEVEL
    byte_letters = set(ByteLevelEncoder.alphabet())
    return all(byte_letters.issuperset(_remove_mark(token, mark)) for token in tokens)


def _has_mark(token: str, mark: Mark) -> bool:
    return token.startswith(mark.text) if mark.side == "start" else token.endswith(mark.text)


def _remove_mark(token: str, mark: Mark) -> str:
    return token.removeprefix(mark.text) if mark.side == "start" else token.removesuffix(mark.text)
