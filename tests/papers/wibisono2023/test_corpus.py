"""The toy corpus of appendix I, and prediction tasks against plain counting."""

from __future__ import annotations

import functools
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.messages import refuses

from attngeo.errors import DataError
from attngeo.papers.wibisono2023.corpus import (
    ADJECTIVES,
    SUBJECTS,
    TOY_WORDS,
    build_corpus,
    count_pairs,
    examples_of,
    toy_corpus,
)

SENTENCES = st.lists(st.lists(st.sampled_from("abcde"), min_size=1, max_size=5), min_size=1, max_size=8).filter(
    lambda sentences: any(len(sentence) > 1 for sentence in sentences)
)


@functools.cache
def texts(sentences: int, seed: int = 0) -> list[str]:
    corpus = toy_corpus(sentences, seed)
    return [" ".join(corpus.words[word] for word in sentence) for sentence in corpus.sentences]


def test_every_sentence_has_one_of_the_three_forms() -> None:
    forms = Counter()
    for text in texts(3000):
        words = text.split()
        kinds = ["S" if word in SUBJECTS else "A" if word in ADJECTIVES else word for word in words]
        forms[" ".join(kinds)] += 1
    assert set(forms) == {"I like S and S", "S and S is A", "S is A and A"}
    assert all(abs(count - 1000) < 150 for count in forms.values())  # deviation 26


def test_the_words_are_as_frequent_as_appendix_i_says() -> None:
    liked, called, seen = Counter(), Counter(), Counter()
    for text in texts(30_000):
        words = text.split()
        if words[0] == "I":
            liked.update([words[2], words[4]])
        elif words[1] == "is":
            called.update([(words[0], words[2]), (words[0], words[4])])
            seen[words[0]] += 2
    shares = [liked[subject] / liked.total() for subject in SUBJECTS]
    assert shares == pytest.approx([4 / 11, 5 / 11, 1 / 11, 1 / 11], abs=0.02)
    levels = {
        "mathematics": (4, 2, 4, 2),
        "statistics": (6, 0, 5, 1),
        "sociology": (1, 5, 2, 4),
        "history": (0, 6, 0, 6),
    }
    for subject, own in levels.items():
        measured = [called[subject, adjective] / seen[subject] for adjective in ADJECTIVES]
        assert measured == pytest.approx([level / 12 for level in own], abs=0.03)


def test_adjectives_of_two_subjects_follow_the_sum_of_their_levels() -> None:
    pairs = [text.split() for text in texts(30_000) if text.split()[3] == "is"]
    own = [words[4] for words in pairs if {words[0], words[2]} == {"statistics", "history"}]
    shares = [own.count(adjective) / len(own) for adjective in ADJECTIVES]
    assert shares == pytest.approx([6 / 24, 6 / 24, 5 / 24, 7 / 24], abs=0.05)


def test_a_seed_repeats_and_another_one_differs() -> None:
    assert texts(50, 3) == texts(50, 3) != texts(50, 4)
    assert toy_corpus().size == len(TOY_WORDS) == 12
    assert len(toy_corpus().sentences) == 10_000


@given(SENTENCES)
def test_tasks_and_pairs_are_those_of_plain_counting(sentences: list[list[str]]) -> None:
    corpus = build_corpus(sentences)
    examples = examples_of(corpus)
    tasks: Counter[tuple[tuple[int, ...], int]] = Counter()
    pairs = np.zeros((corpus.size, corpus.size))
    for sentence in corpus.sentences:
        for i, j in permutations(range(len(sentence)), 2):
            pairs[sentence[i], sentence[j]] += 1
        for i, center in enumerate(sentence):
            rest = np.delete(sentence, i)
            tasks[tuple(np.bincount(rest, minlength=corpus.size).tolist()), int(center)] += 1
    found = {
        (tuple(map(int, context)), int(word)): int(centres[word])
        for context, centres in zip(examples.contexts, examples.centres, strict=True)
        for word in np.flatnonzero(centres)
    }
    assert found == dict(tasks)
    assert examples.count == tasks.total()
    assert np.array_equal(count_pairs(examples), pairs)


def test_bad_corpora_are_refused() -> None:
    with refuses(DataError, "sentence", 2):
        build_corpus([["alone"], []])
