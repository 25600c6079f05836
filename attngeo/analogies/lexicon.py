"""Which row of a table stands for a word of a question: candidates, case, and words of several tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from attngeo.analogies.questions import Question
from attngeo.choices import Candidates, Case, Compose
from attngeo.embeddings.embedding import Embedding
from attngeo.errors import UsageError

Tokens = tuple[int, ...]
FOLDS: dict[str, Callable[[str], str]] = {"keep": str, "lower": str.lower, "ignore": str.casefold}


@dataclass(frozen=True)
class Lexicon:
    """The vectors that may be answers, and how words find theirs.

    embedding: the table; composed: [m, width] vectors of words of several tokens, which follow its rows.
    candidates: ascending rows of both. row_of: by the word as `fold` writes it. case: the rule, never "auto".
    """

    embedding: Embedding
    composed: Tensor
    composed_words: tuple[str, ...]
    candidates: Tensor
    row_of: dict[str, int]
    case: str

    def row(self, word: str) -> int | None:
        """The row of a word, None where the table does not know it."""
        return self.row_of.get(FOLDS[self.case](word))

    def label(self, row: int) -> str:
        """What a row stands for."""
        rows = len(self.embedding.labels)
        return self.embedding.labels[row] if row < rows else self.composed_words[row - rows]

    def rows_of(self, question: Question) -> tuple[int, int, int, list[int]] | None:
        """The rows of a, b, c and the answers that are known; None unless all of a, b, c and one answer are."""
        a, b, c = (self.row(word) for word in (question.a, question.b, question.c))
        answers = [row for row in map(self.row, question.answers) if row is not None]
        if a is None or b is None or c is None or not answers:
            return None
        return a, b, c, answers


def build_lexicon(
    embedding: Embedding,
    words: Iterable[str] = (),
    *,
    candidates: Candidates = "words",
    case: Case = "auto",
    compose: Compose = "none",
    limit: int | None = None,
) -> Lexicon:
    """The lexicon of a table. `words` are those that are asked about: with `compose` they become candidates too.

    candidates: "words" by the rules of `embeddings.words`, or "all" entries. case: "keep" asks for words as they are
    written, "lower" in lower case, "ignore" takes the first word (in most tables the most frequent) that differs in
    case only, and leaves the others out; "auto" is "lower" for an uncased vocabulary, else "keep". compose: "mean"
    gives a word of several tokens the mean of their vectors. limit: only the first so many candidates, which in most
    tables are the most frequent. Raises UsageError.
    """
    rule = ("keep" if embedding.is_cased else "lower") if case == "auto" else case
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
    # Words that are written with the same tokens are one candidate, under the name of the first.
    names = {tokens: word for word, tokens in reversed(composed.items())}
    places = {tokens: first + place for place, tokens in enumerate(names)}
    index |= {word: places[tokens] for word, tokens in composed.items()}
    means = [embedding.matrix[list(tokens)].float().mean(0) for tokens in names]
    vectors = torch.stack(means) if means else torch.zeros(0, embedding.matrix.shape[1])
    every = torch.cat([rows, torch.arange(first, first + len(names))])
    return Lexicon(embedding, vectors, tuple(names.values()), every, index, rule)


def _compose(embedding: Embedding, words: Iterable[str], index: dict[str, int], case: str) -> dict[str, Tokens]:
    """The tokens of each word that is no candidate by itself but can be written with several of them.

    A word that the tokeniser turns into a candidate, by folding case or accents, is added to `index` as that.
    """
    if embedding.pieces is None:
        raise UsageError(f"{embedding.ref}: has no tokeniser to cut words into tokens; leave out --compose")
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
