"""Which words a table knows: candidates, case, and words of several tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unicodedata import normalize

import numpy as np
import pytest
import torch
from support.checkpoints import write_single
from support.messages import refuses
from support.vectors import byte_level, checkpoint, table, word_piece, write_questions

import attngeo
from attngeo.analogies.lexicon import build_lexicon
from attngeo.analogies.options import ProbeSettings
from attngeo.embeddings.opening import open_embedding
from attngeo.errors import QuestionError, UsageError

CASED = ["the", "King", "king", "KING", "Paris", "1990", "##s"]
UNCASED = ["the", "king", "paris", "1990", "##s"]


@pytest.mark.parametrize(
    ("labels", "case", "word", "found"),
    [
        (CASED, "keep", "King", 1),
        (CASED, "keep", "paris", None),
        (CASED, "lower", "Paris", None),
        (CASED, "lower", "King", 2),
        (CASED, "ignore", "kING", 1),
        (CASED, "ignore", "paris", 4),
        (CASED, "auto", "King", 1),
        (CASED, "auto", "paris", None),
        (UNCASED, "auto", "Paris", 2),
        (UNCASED, "keep", "Paris", None),
        (UNCASED, "auto", "1990", None),
    ],
)
def test_words_are_looked_up_by_case(labels: list[str], case: str, word: str, found: int | None) -> None:
    assert build_lexicon(table(np.eye(len(labels)), labels), settings=ProbeSettings(case=case)).row(word) == found  # type: ignore[arg-type]


@pytest.mark.parametrize("known", ["NFC", "NFD"])
@pytest.mark.parametrize("written", ["NFC", "NFD"])
def test_a_word_is_known_in_both_forms_of_its_accents(known: str, written: str, tmp_path: Path) -> None:
    """A reader cannot tell them apart: é is one character, or e and an accent."""
    known_words, written_words = (
        [normalize(form, word) for word in ("café", "naïve", "한국", "plain")] for form in (known, written)
    )
    embedding = table(np.eye(4), known_words)
    lexicon = build_lexicon(embedding)
    assert [lexicon.row(word) for word in written_words] == [0, 1, 2, 3]
    assert lexicon.row(written_words[0].upper()) == 0
    assert lexicon.row(normalize(written, "cafe\u0301s")) is None
    assert set(attngeo.nearest(embedding, f"{written_words[0]} - {written_words[1]}").word) == set(known_words[2:])
    questions = write_questions(tmp_path / "q.txt", {"all": [" ".join(written_words)]})
    assert attngeo.analogy(embedding, questions=questions, n_answers=1).questions["known"].tolist() == [True]


def test_the_form_that_is_written_comes_first() -> None:
    both = [normalize(form, "café") for form in ("NFD", "NFC")]
    lexicon = build_lexicon(table(np.eye(2), both))
    assert [lexicon.row(word) for word in both] == [0, 1]


def test_a_known_word_in_another_form_is_not_composed_of_tokens(tmp_path: Path) -> None:
    """GPT-2's tokeniser would make other tokens of it."""
    byte_level(tmp_path / "tokenizer.json")
    embedding = open_embedding(checkpoint(tmp_path, 400))
    word = next(label for label in embedding.labels if label.isalpha() and len(label) > 2)
    accented = replace(embedding, labels=["é" + label if label == word else label for label in embedding.labels])
    lexicon = build_lexicon(accented, [normalize("NFD", "é" + word)], ProbeSettings(subwords="mean"))
    assert len(lexicon.composed) == 0
    assert lexicon.row(normalize("NFD", "é" + word)) == embedding.labels.index(word)


def test_ignoring_case_leaves_one_candidate_of_each_word() -> None:
    lexicon = build_lexicon(table(np.eye(len(CASED)), CASED), settings=ProbeSettings(case="ignore"))
    assert lexicon.candidates.tolist() == [0, 1, 4]


def test_candidates_are_words_or_everything() -> None:
    embedding = table(np.eye(len(CASED)), CASED)
    assert build_lexicon(embedding).candidates.tolist() == [0, 1, 2, 3, 4]
    every = build_lexicon(embedding, settings=ProbeSettings(answers="all"))
    assert every.candidates.tolist() == list(range(7))
    assert (every.row("1990"), every.row("##s")) == (5, 6)


def test_words_of_several_tokens_are_unknown_or_the_mean_of_them(tmp_path: Path) -> None:
    word_piece(tmp_path / "tokenizer.json")
    embedding = open_embedding(checkpoint(tmp_path, 7))
    assert build_lexicon(embedding, ["kings"]).row("kings") is None
    lexicon = build_lexicon(embedding, ["Kings", "kings", "king", "prince"], settings=ProbeSettings(subwords="mean"))
    row = lexicon.row("KINGS")
    assert row == 7
    assert lexicon.label(row) == "kings"
    assert lexicon.row("prince") is None  # no token of it
    assert lexicon.row("king") == 2  # a token of its own stays
    assert torch.allclose(lexicon.composed, embedding.matrix[[2, 5]].mean(0))
    assert 7 in lexicon.candidates.tolist()


def test_words_of_several_tokens_are_asked_like_others(tmp_path: Path) -> None:
    """The same questions, where every word is a token of its own, and where words are made of two equal tokens."""
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    names = ["ab", "cd", "ef", "gh", "ij", "kl"]
    vectors = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    filler = torch.randn(2, 5, generator=torch.Generator().manual_seed(1))
    write_single(whole, {"wte.weight": torch.cat([filler, vectors])}, {"model_type": "own"})
    word_piece(whole / "tokenizer.json", ["[PAD]", "[UNK]", *names])
    parts = [name[0] for name in names], [f"##{name[1]}" for name in names]
    both = torch.cat([filler, vectors - 1, vectors + 1])
    write_single(halves, {"wte.weight": both}, {"model_type": "own"})
    word_piece(halves / "tokenizer.json", ["[PAD]", "[UNK]", *parts[0], *parts[1]])
    path = write_questions(tmp_path / "q.txt", {"all": ["ab cd ef gh", "ij kl gh ab"]})
    one = attngeo.analogy(str(whole), questions=path, n_answers=1).questions
    other = attngeo.analogy(str(halves), questions=path, n_answers=1, subwords="mean").questions
    np.testing.assert_allclose(one["cosine"], other["cosine"], atol=1e-6)
    with refuses(QuestionError, "halves", 0, 2):
        attngeo.analogy(str(halves), questions=path, n_answers=1)


def test_byte_level_words_compose_with_their_space(tmp_path: Path) -> None:
    library = byte_level(tmp_path / "tokenizer.json")
    embedding = open_embedding(checkpoint(tmp_path, library.get_vocab_size()))
    lexicon = build_lexicon(embedding, ["Spartan"], settings=ProbeSettings(subwords="mean"))
    ids = library.encode(" Spartan").ids
    assert len(ids) > 1
    assert torch.allclose(lexicon.composed[0], embedding.matrix[ids].mean(0))


def test_composing_needs_a_tokeniser() -> None:
    with refuses(UsageError, "table", "subwords", "tokeniser"):
        build_lexicon(table(np.eye(3)), ["king"], settings=ProbeSettings(subwords="mean"))


def test_composed_words_of_equal_tokens_are_one_candidate(tmp_path: Path) -> None:
    """And one that the tokeniser folds into a candidate is that candidate: no word may tie with itself."""
    word_piece(tmp_path / "tokenizer.json")
    embedding = open_embedding(checkpoint(tmp_path, 7))
    lexicon = build_lexicon(
        embedding, ["King", "Kings", "kings", "KINGS", "Queen"], settings=ProbeSettings(case="keep", subwords="mean")
    )
    assert lexicon.row("King") == lexicon.row("king") == 2
    assert lexicon.row("Kings") == lexicon.row("KINGS") == 7
    assert lexicon.label(7) == "Kings"
    assert lexicon.candidates.tolist() == [2, 3, 4, 6, 7]


def test_composing_changes_nothing_for_words_that_are_tokens() -> None:
    questions = [("athens", "greece", "baghdad", "iraq"), ("Athens", "Greece", "Oslo", "Norway")]
    frames = [
        attngeo.analogy("demo:minilm", questions=questions, case=case, subwords="mean", n_draws=0).questions
        for case in ("lower", "keep", "ignore")
    ]
    assert [frame["rank"].tolist() for frame in frames] == [[1, 1]] * 3


def test_a_limit_keeps_the_first_candidates() -> None:
    embedding = table(np.eye(7), ["the", "1990", "of", "and", "in", "to", "a"])
    assert build_lexicon(embedding, settings=ProbeSettings(limit=3)).candidates.tolist() == [0, 2, 3]
    assert build_lexicon(embedding, settings=ProbeSettings(limit=99)).candidates.tolist() == [0, 2, 3, 4, 5, 6]
    assert build_lexicon(embedding, settings=ProbeSettings(limit=3)).row("to") is None
    with refuses(UsageError, "limit", 0, 1):
        build_lexicon(embedding, settings=ProbeSettings(limit=0))
