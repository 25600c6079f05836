"""The rows of a table that stand for the words of questions, and their vectors as the probe uses them.

Lexicon: candidates, case, and words of several tokens. Space: vectors raw, centred, without their main directions, or
scaled to unit length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal
from unicodedata import normalize

import torch
from torch import Tensor

from attngeo.analogies.options import ProbeSettings
from attngeo.analogies.questions import Question
from attngeo.bounds.names import in_utf8
from attngeo.devices import pick_device
from attngeo.embeddings.embedding import Embedding
from attngeo.errors import UsageError

Tokens = tuple[int, ...]
FOLDS: dict[str, Callable[[str], str]] = {"keep": str, "lower": str.lower, "ignore": str.casefold}
# Forms of Unicode that a reader cannot tell apart. Files of macOS may have the second one.
FORMS: tuple[Literal["NFC", "NFD"], ...] = ("NFC", "NFD")
# Vectors that are summed at a time, for means and directions of variance.
BLOCK = 4096


@dataclass(frozen=True)
class Lexicon:
    """The candidates of a table, and the row of each word.

    Attributes:
        embedding: the table.
        composed: vectors of words of several tokens, [m, width]; their rows follow those of the table.
        composed_words: these words, in the order of their rows.
        composed_tokens: their tokens, in the same order.
        candidates: candidate rows of both, ascending.
        row_of: word, folded by `FOLDS[case]`, → its row.
        case: rule for the case of words, never "auto".
    """

    embedding: Embedding
    composed: Tensor
    composed_words: tuple[str, ...]
    composed_tokens: tuple[Tokens, ...]
    candidates: Tensor
    row_of: dict[str, int]
    case: str
    # The rows of the words that were looked up: questions repeat their words.
    _found: dict[str, int | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def row(self, word: str) -> int | None:
        """The row of a word; None if the table knows it neither with composed nor with separate accents."""
        if word not in self._found:
            self._found[word] = find_row(self.row_of, FOLDS[self.case](word))
        return self._found[word]

    def label(self, row: int) -> str:
        """The word or token that a row stands for."""
        rows = len(self.embedding.labels)
        return in_utf8(self.embedding.labels[row] if row < rows else self.composed_words[row - rows])

    def rows_of(self, question: Question) -> tuple[list[int], list[int]] | None:
        """The rows of a, b, c, and of the known answers; None unless a, b, c and at least one answer are known."""
        terms = self._find_rows((question.a, question.b, question.c))
        answers = self._find_rows(question.answers)
        return (terms, answers) if len(terms) == 3 and answers else None

    def _find_rows(self, words: Iterable[str]) -> list[int]:
        """The rows of the words that the table knows."""
        rows = map(self.row, words)
        return [row for row in rows if row is not None]


def find_row(row_of: Mapping[str, int], word: str) -> int | None:
    """The row of a word as written, or in another form of Unicode, in which é may be e and an accent."""
    if word in row_of:
        return row_of[word]
    for form in FORMS:
        normalised = normalize(form, word)
        if normalised in row_of:
            return row_of[normalised]
    return None


def build_lexicon(
    embedding: Embedding, words: Iterable[str] = (), settings: ProbeSettings = ProbeSettings()
) -> Lexicon:
    """The lexicon of a table. words: the words of the questions; with `subwords`, they become candidates, too.

    If case is "ignore" and words differ only in case, the first is used, and the others are left out.
    Raises UsageError for `subwords` with a table that has no tokeniser.
    """
    rule: str = settings.case
    if rule == "auto":
        rule = "keep" if embedding.is_cased else "lower"
    rows = embedding.answer_rows(settings.answers)[: settings.limit]
    index: dict[str, int] = {}
    for row in rows.tolist():
        label = embedding.labels[row]
        index.setdefault(label.casefold() if rule == "ignore" else label, row)
    if rule == "ignore":
        rows = torch.tensor(sorted(index.values()), dtype=torch.long)
    composed = _compose(embedding, words, index, rule) if settings.subwords == "mean" else {}
    first = len(embedding.labels)
    # Words of the same tokens are one candidate, with the name of the first.
    names = {tokens: word for word, tokens in reversed(composed.items())}
    row_of_tokens = {tokens: row for row, tokens in enumerate(names, first)}
    index |= {word: row_of_tokens[tokens] for word, tokens in composed.items()}
    means = [embedding.matrix[list(tokens)].float().mean(0) for tokens in names]
    vectors = torch.stack(means) if means else torch.zeros(0, embedding.matrix.shape[1])
    candidates = torch.cat([rows, torch.arange(first, first + len(names))])
    return Lexicon(embedding, vectors, tuple(names.values()), tuple(names), candidates, index, rule)


def _compose(embedding: Embedding, words: Iterable[str], index: dict[str, int], case: str) -> dict[str, Tokens]:
    """The tokens of each word that is not a candidate, but consists of several tokens.

    A word that the tokeniser maps to one candidate, by folding case or accents, is added to `index`.
    """
    if embedding.pieces is None:
        raise UsageError(
            "$subwords requires a tokeniser, but word vectors have none; leave it out",
            "subwords",
            subject=embedding.ref,
        )
    candidates = set(index.values())
    composed: dict[str, Tokens] = {}
    for word in dict.fromkeys(words):
        key = FOLDS[case](word)
        row = find_row(index, key)
        if row is not None:
            index[key] = row
        if key in index or key in composed:
            continue
        pieces = embedding.pieces(word if case == "ignore" else key) or []
        if len(pieces) == 1 and pieces[0] in candidates:
            index[key] = pieces[0]
        elif len(pieces) > 1 and embedding.is_entry[pieces].all():
            composed[key] = tuple(pieces)
    return composed


class Space:
    """The prepared vectors of a lexicon on a device, made block by block and never held as a whole.

    In this order: remove_top subtracts the mean and the directions of largest variance (all-but-the-top, Mu and
    Viswanath 2018, arXiv 1702.01417), center subtracts the mean, normalize scales to unit length. Mean and directions
    are computed from the candidates.

    Args:
        lexicon: the vectors and the words.
        settings: the preparation of the vectors, and the device.

    Attributes:
        candidates: rows of the candidates, ascending.
        width: dimensions of a vector.

    Raises:
        UsageError: `remove_top` is not below the number of dimensions.
    """

    def __init__(self, lexicon: Lexicon, settings: ProbeSettings) -> None:
        self.lexicon = lexicon
        self._settings = settings
        self._device = pick_device(settings.device)
        self._dtype = torch.float32 if self._device.type == "mps" else torch.float64  # Apple's GPUs have no float64
        self.candidates = lexicon.candidates
        self.width = lexicon.embedding.matrix.shape[1]
        if settings.remove_top >= self.width:
            raise UsageError(
                f"$remove_top is {settings.remove_top}, expected less than {self.width}, the number of dimensions of "
                f"{lexicon.embedding.ref}",
                "remove_top",
            )
        self._mean, self._top = self._fit()

    def vectors(self, rows: Tensor) -> Tensor:
        """The preprocessed vectors of some rows, [len(rows), width]."""
        x = self._raw(rows)
        if self._mean is not None:
            x -= self._mean
        if self._top is not None:
            x -= (x @ self._top) @ self._top.mT
        return unit(x) if self._settings.normalize else x

    def blocks(self, size: int) -> Iterator[tuple[int, Tensor]]:
        """The candidates block by block: the number of the first one, and up to `size` vectors."""
        for start in range(0, len(self.candidates), size):
            yield start, self.vectors(self.candidates[start : start + size])

    def _raw(self, rows: Tensor) -> Tensor:
        """The vectors of some rows as they are stored, [len(rows), width]."""
        table = self.lexicon.embedding.matrix
        is_token = rows < len(table)
        if is_token.all():
            return table[rows].to(self._device, self._dtype)
        x = torch.empty(len(rows), self.width, dtype=self._dtype)
        x[is_token] = table[rows[is_token]].to(self._dtype)
        x[~is_token] = self.lexicon.composed[rows[~is_token] - len(table)].to(self._dtype)
        return x.to(self._device)

    def _fit(self) -> tuple[Tensor | None, Tensor | None]:
        """The mean [width] and the directions of largest variance [width, N]."""
        if not (self._settings.center or self._settings.remove_top):
            return None, None
        count = len(self.candidates)
        blocks = torch.split(self.candidates, BLOCK)
        mean = torch.stack([self._raw(rows).sum(0) for rows in blocks]).sum(0) / count
        if not self._settings.remove_top:
            return mean, None
        spread = torch.zeros(self.width, self.width, dtype=self._dtype, device=self._device)
        for rows in blocks:
            x = self._raw(rows) - mean
            spread += x.mT @ x
        # On the CPU, because some devices have no decomposition of symmetric matrices.
        directions = torch.linalg.eigh(spread.cpu()).eigenvectors[:, -self._settings.remove_top :]
        return mean, directions.to(self._device)


def unit(x: Tensor) -> Tensor:
    """Rows scaled to length 1; zero rows stay zero."""
    lengths = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / torch.where(lengths > 0, lengths, 1)
