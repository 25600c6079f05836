"""Small corpora as bags of words, and the toy corpus of Wibisono and Wang 2023 (arXiv 2307.04057), appendix I."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from attngeo.errors import DataError, UsageError

Array = np.ndarray[Any, np.dtype[Any]]

SUBJECTS = ("mathematics", "statistics", "sociology", "history")
ADJECTIVES = ("fun", "boring", "easy", "difficult")
WORDS = ("I", "like", "and", "is", *SUBJECTS, *ADJECTIVES)
# Appendix I: the level of each adjective of each subject, and how often each subject is liked.
LEVELS = np.array([[4, 2, 4, 2], [6, 0, 5, 1], [1, 5, 2, 4], [0, 6, 0, 6]], dtype=float)
LIKED = np.array([4, 5, 1, 1]) / 11
# Numbers of words; those of SUBJECTS and of ADJECTIVES follow each other.
I_, LIKE, AND, IS, SUBJECT, ADJECTIVE = 0, 1, 2, 3, 4, 8


@dataclass(frozen=True)
class Corpus:
    """Sentences of words. words: the vocabulary. sentences: the numbers of the words of each sentence."""

    words: tuple[str, ...]
    sentences: tuple[Array, ...]

    @property
    def size(self) -> int:
        """The number of words in the vocabulary, |V|."""
        return len(self.words)

    @cached_property
    def distinct(self) -> list[tuple[Array, int]]:
        """The different sentences, and how often each occurs."""
        counts = Counter(tuple(sentence.tolist()) for sentence in self.sentences)
        return [(np.array(sentence), count) for sentence, count in counts.items()]

    def find(self, word: str) -> int:
        """The number of a word. Raises UsageError for an unknown one."""
        if word not in self.words:
            raise UsageError(f"{word!r} is not a word of the corpus, expected one of its {self.size:,} words")
        return self.words.index(word)


def toy_corpus(sentences: int = 10_000, seed: int = 0) -> Corpus:
    """The corpus of appendix I: sentences of 5 words from 12, such as "I like history and statistics".

    sentences: how many, at least 1. A sentence has one of three forms with equal probability: two liked subjects; two
    subjects and an adjective; a subject and two adjectives. Raises UsageError.

    >>> corpus = toy_corpus(3)
    >>> corpus.size, [len(sentence) for sentence in corpus.sentences]
    (12, [5, 5, 5])
    """
    if sentences < 1:
        raise UsageError(f"sentences is {sentences:,}, expected at least 1")
    random = np.random.default_rng(seed)
    forms = (_like_two, _call_two, _call_one)
    kinds = random.integers(len(forms), size=sentences)
    return Corpus(WORDS, tuple(np.array(forms[kind](random)) for kind in kinds))


def _like_two(random: np.random.Generator) -> list[int]:
    first, second = random.choice(len(SUBJECTS), size=2, p=LIKED).tolist()
    return [I_, LIKE, SUBJECT + first, AND, SUBJECT + second]


def _call_two(random: np.random.Generator) -> list[int]:
    first, second = random.integers(len(SUBJECTS), size=2).tolist()
    return [SUBJECT + first, AND, SUBJECT + second, IS, _draw_adjectives(random, LEVELS[first] + LEVELS[second], 1)[0]]


def _call_one(random: np.random.Generator) -> list[int]:
    subject = int(random.integers(len(SUBJECTS)))
    first, second = _draw_adjectives(random, LEVELS[subject], 2)
    return [SUBJECT + subject, IS, first, AND, second]


def _draw_adjectives(random: np.random.Generator, levels: Array, count: int) -> list[int]:
    return [ADJECTIVE + int(each) for each in random.choice(len(ADJECTIVES), size=count, p=levels / levels.sum())]


def build_corpus(sentences: Iterable[Sequence[str]]) -> Corpus:
    """The corpus of sentences as lists of words; the vocabulary is sorted.

    Sentences of fewer than 2 words are left out: they have no context. Raises DataError if none remains.
    """
    kept = [list(sentence) for sentence in sentences if len(sentence) >= 2]
    if not kept:
        raise DataError("the corpus has no sentence of at least 2 words; write one sentence a line")
    words = tuple(sorted({word for sentence in kept for word in sentence}))
    number = {word: place for place, word in enumerate(words)}
    return Corpus(words, tuple(np.array([number[word] for word in sentence]) for sentence in kept))


@dataclass(frozen=True)
class Examples:
    """The distinct prediction tasks of a corpus: the words around a centre word, and which words the centre is.

    contexts: how often each word is in each context, [n, |V|]; a context is the whole sentence without the centre.
    centres: how often each word is the centre of each context, [n, |V|].
    """

    contexts: Array
    centres: Array

    @property
    def count(self) -> int:
        """The number of tasks, repeated ones included."""
        return int(self.centres.sum())


def examples_of(corpus: Corpus) -> Examples:
    """The prediction tasks of a corpus: each word of each sentence from the others."""
    centres: dict[bytes, Array] = {}
    for sentence, repeats in corpus.distinct:
        counts = np.bincount(sentence, minlength=corpus.size).astype(np.uint16)
        for word in sentence:
            counts[word] -= 1
            centres.setdefault(counts.tobytes(), np.zeros(corpus.size))[word] += repeats
            counts[word] += 1
    contexts = np.stack([np.frombuffer(key, np.uint16) for key in centres]).astype(float)
    return Examples(contexts, np.stack(list(centres.values())))


def count_pairs(examples: Examples) -> Array:
    """#(w_i, c_j): how often word i is a centre with word j in its context, [|V|, |V|]. Symmetric."""
    counts: Array = examples.centres.T @ examples.contexts
    return counts
