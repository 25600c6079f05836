"""The row of a table that stands for a word of a question: candidates, case, and words of several tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attngeo.analogies.options import ProbeSettings
from attngeo.analogies.questions import Question
from attngeo.bounds.escape import in_utf8
from attngeo.checkpoints.access import HubAccess
from attngeo.choices import Candidates, Case, Compose
from attngeo.embeddings.embedding import Embedding
from attngeo.embeddings.opening import open_embedding
from attngeo.errors import UsageError
from attngeo.progress import ProgressCallback

Tokens = tuple[int, ...]
FOLDS: dict[str, Callable[[str], str]] = {"keep": str, "lower": str.lower, "ignore": str.casefold}


class QuestionRows(NamedTuple):
    """The rows of the words of one question."""

    a: int
    b: int
    c: int
    answers: list[int]


@dataclass(frozen=True)
class Lexicon:
    """The candidates of a table, and the row of each word.

    embedding: the table. composed: the vectors [m, width] of words of several tokens; their rows follow those of the
    table. candidates: rows of both, ascending. row_of: word, folded by `FOLDS[case]`, → row. case: the rule, never
    "auto".
    """

    embedding: Embedding
    composed: Tensor
    composed_words: tuple[str, ...]
    candidates: Tensor
    row_of: dict[str, int]
    case: str

    def row(self, word: str) -> int | None:
        """The row of a word; None if the table does not know it."""
        return self.row_of.get(FOLDS[self.case](word))

    def label(self, row: int) -> str:
        """The word or token that a row stands for."""
        rows = len(self.embedding.labels)
        return in_utf8(self.embedding.labels[row] if row < rows else self.composed_words[row - rows])

    def rows_of(self, question: Question) -> QuestionRows | None:
        """The rows of a, b, c and of the known answers; None unless a, b, c and at least one answer are known."""
        a, b, c = (self.row(word) for word in (question.a, question.b, question.c))
        answers = [row for row in map(self.row, question.answers) if row is not None]
        if a is None or b is None or c is None or not answers:
            return None
        return QuestionRows(a, b, c, answers)


def open_lexicon(
    model: Any, words: Iterable[str], settings: ProbeSettings, *, hub: HubAccess, progress: ProgressCallback
) -> Lexicon:
    """Open the table of a model, and build the lexicon of some words as the settings say."""
    embedding = open_embedding(model, table=settings.table, hub=hub, progress=progress)
    return build_lexicon(
        embedding, words, candidates=settings.candidates, case=settings.case, compose=settings.compose,
        limit=settings.limit,
    )  # fmt: skip


def build_lexicon(
    embedding: Embedding,
    words: Iterable[str] = (),
    *,
    candidates: Candidates = "words",
    case: Case = "auto",
    compose: Compose = "none",
    limit: int | None = None,
) -> Lexicon:
    """The lexicon of a table. words: those of the questions; with `compose` they become candidates, too.

    candidates: "words" by the rules of `embeddings.words`, or "all" entries.
    case: "keep" looks words up as they are written, "lower" in lower case. "ignore" uses the first of the words (in
    most tables the most frequent) that differ only in case, and leaves out the others. "auto" is "lower" for an
    uncased vocabulary, else "keep".
    compose: "mean" gives a word of several tokens the mean of their vectors.
    limit: use only the first candidates, in most tables the most frequent. Raises UsageError.
    """
    rule = _choose_case(embedding) if case == "auto" else case
    if limit is not None and limit < 1:
        raise UsageError(f"limit is {limit}, expected at least 1")
    rows = embedding.rows(candidates)[:limit]
    index: dict[str, int] = {}
    fold = FOLDS["ignore"] if rule == "ignore" else FOLDS["keep"]
    for row in rows.tolist():
        index.setdefault(fold(embedding.labels[row]), row)
    if rule == "ignore":
        rows = torch.tensor(sorted(index.values()), dtype=torch.long)
    composed = _compose(embedding, words, index, rule) if compose == "mean" else {}
    first = len(embedding.labels)
    # Words of the same tokens are one candidate, with the name of the first.
    names = {tokens: word for word, tokens in reversed(composed.items())}
    places = {tokens: first + place for place, tokens in enumerate(names)}
    index |= {word: places[tokens] for word, tokens in composed.items()}
    means = [embedding.matrix[list(tokens)].float().mean(0) for tokens in names]
    vectors = torch.stack(means) if means else torch.zeros(0, embedding.matrix.shape[1])
    every = torch.cat([rows, torch.arange(first, first + len(names))])
    return Lexicon(embedding, vectors, tuple(names.values()), every, index, rule)


def _choose_case(embedding: Embedding) -> str:
    """How words are looked up by default: in lower case if the vocabulary is uncased."""
    return "keep" if embedding.is_cased else "lower"


def _compose(embedding: Embedding, words: Iterable[str], index: dict[str, int], case: str) -> dict[str, Tokens]:
    """The tokens of each word that is not a candidate, but consists of several tokens.

    A word that the tokeniser maps to one candidate, by folding case or accents, is added to `index`.
    """
    if embedding.pieces is None:
        raise UsageError(
            f"{embedding.ref}: --compose needs a tokeniser, and a file of word vectors has none; leave it out"
        )
    candidates = set(index.values())
    found: dict[str, Tokens] = {}
    for word in dict.fromkeys(words):
        key = FOLDS[case](word)
        if key in index or key in found:
            continue
        pieces = embedding.pieces(word if case == "ignore" else key) or []
        if len(pieces) == 1 and pieces[0] in candidates:
            index[key] = pieces[0]
        elif len(pieces) > 1 and bool(embedding.is_entry[pieces].all()):
            found[key] = tuple(pieces)
    return found
