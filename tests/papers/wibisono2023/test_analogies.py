"""Error terms of analogies on small corpora, against counting in loops and vectors with known answers."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.messages import refuses

from attngeo.errors import DataError, DataUnavailableError, QuestionError, UsageError
from attngeo.papers.wibisono2023 import analogies, corpus as small_corpora
from attngeo.papers.wibisono2023.analogies import (
    EXPLANATION_COLUMNS,
    TERMS,
    TOY_QUESTIONS,
    TrainedModel,
    explain,
    read_corpus,
)
from attngeo.papers.wibisono2023.corpus import build_corpus, examples_of, toy_corpus
from attngeo.papers.wibisono2023.factorisation import shifted_log_ratios, sum_attention
from attngeo.papers.wibisono2023.paraphrases import combine, count_sets, paraphrase_errors

SENTENCES = st.lists(st.lists(st.sampled_from("abcd"), min_size=2, max_size=5), min_size=1, max_size=6)
QUESTION = ("a", "b", "c", "d")


def plain(size: int) -> np.ndarray:
    return np.append(np.ones(size), 0)


@given(SENTENCES, st.integers(0, 99))
def test_sets_are_counted_as_in_a_loop_over_places(sentences: list[list[str]], seed: int) -> None:
    corpus = build_corpus([["a", "b", "c", "d"], *sentences])
    tau = np.exp(np.random.default_rng(seed).normal(size=5))
    first, second, every = np.zeros(4), np.zeros(4), np.zeros(4)
    for sentence in corpus.sentences:
        for i, j, k in permutations(range(len(sentence)), 3):
            totals = [np.delete(tau[sentence], masked).sum() + tau[-1] for masked in (i, j)]
            weight = sum(tau[sentence[k]] / total for total in totals) / 2
            every[sentence[k]] += weight
            first[sentence[k]] += weight * ((sentence[i], sentence[j]) == (1, 2))
            second[sentence[k]] += weight * ((sentence[i], sentence[j]) == (3, 0))
    found = count_sets(corpus, (1, 2), (3, 0), tau)
    assert np.allclose(found, [first, second, every])


@pytest.mark.parametrize("attention", [False, True])
def test_the_terms_of_the_toy_corpus_obey_the_lemma_where_they_are_defined(attention: bool) -> None:
    corpus = toy_corpus(2000)
    tau = np.exp(np.random.default_rng(0).normal(size=13)) if attention else plain(12)
    sums = sum_attention(examples_of(corpus), tau)
    for words in TOY_QUESTIONS:
        a, b, c, d = map(corpus.find, words)
        joint, joint_star, every = count_sets(corpus, (b, c), (d, a), tau)
        terms = paraphrase_errors(sums.gamma, joint, joint_star, (b, c), (d, a), every)
        with np.errstate(invalid="ignore"):
            expected = shifted_log_ratios(sums.gamma)[[d, a]].sum(0) - shifted_log_ratios(sums.gamma)[[b, c]].sum(0)
        defined = ~np.isnan(np.array(terms)).any(0)
        assert defined.sum() >= 3, words
        for side in combine(terms):
            assert np.allclose(side[defined], expected[defined])


def test_words_that_are_independent_have_no_error_terms() -> None:
    """All sentences of three of four words in all orders: every context is as likely with any pair of the others."""
    corpus = build_corpus([list(words) for words in permutations("abcdefgh", 3)])
    words = tuple(map(corpus.find, QUESTION))
    joint, joint_star, every = count_sets(corpus, (words[1], words[2]), (words[3], words[0]), plain(8))
    sums = sum_attention(examples_of(corpus), plain(8))
    terms = paraphrase_errors(sums.gamma, joint, joint_star, words[1:3], (words[3], words[0]), every)
    others = [corpus.find(word) for word in "efgh"]
    assert np.allclose(terms.rho[others], 0)
    assert np.allclose(terms.xi[others], 0)
    assert np.allclose(terms.sigma[others], terms.sigma_star[others])
    assert np.allclose(terms.sigma[others], np.log(7 / 6))  # pairs of different words only
    assert np.isnan(terms.rho[words[0]])


def fake_vectors(monkeypatch: pytest.MonkeyPatch, vectors: dict[str, tuple[float, ...]]) -> None:
    def train(name: str, corpus: Any, *_: Any) -> TrainedModel:
        tau = plain(corpus.size) if name == "cbow" else np.arange(1.0, corpus.size + 2)
        rows = np.array([vectors[word] for word in corpus.words])
        return TrainedModel(name, rows, rows, tau)

    monkeypatch.setattr(analogies, "train_model", train)


def test_cosine_and_rank_of_known_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = {"a": (1, 0, 0), "b": (1, 1, 0), "c": (0, 0, 1), "d": (0, 1, 1), "e": (0, 1, 1.1), "f": (-1, 0, 0)}
    fake_vectors(monkeypatch, vectors)
    corpus = build_corpus([list(words) for words in permutations("abcdef", 4)])
    frame = explain(corpus, questions=[QUESTION, ("a", "b", "c", "f"), ("a", "b", "c", "unknown")])
    assert tuple(frame.columns) == EXPLANATION_COLUMNS
    assert frame["model"].tolist() == ["cbow", "cbow", "attention", "attention"]
    right, wrong = frame.iloc[0], frame.iloc[1]
    assert (right["rank"], right["cosine"], right["cosine_error"]) == pytest.approx((1, 1, 0))
    assert (wrong["rank"], wrong["cosine"], wrong["cosine_error"]) == pytest.approx((3, 0, 1))
    assert frame["contexts"].tolist() == [2] * 4  # every word but the question's own
    assert frame.loc[frame["model"] == "cbow", "zeta_spread"].tolist() == pytest.approx([0, 0])
    assert (frame.loc[frame["model"] == "attention", "zeta_spread"] > 0.1).all()
    assert frame.attrs["notes"] == ["1 of 3 questions have words that are not in the corpus"]
    assert np.allclose(frame["context_error"], frame["cosine_error"])  # both embeddings are the same here
    plain_rows = frame[frame["model"] == "cbow"]
    assert np.allclose(plain_rows["scaled_error"], plain_rows["context_error"])
    assert np.allclose(plain_rows["asymmetry"], 0)
    assert (frame.loc[frame["model"] == "attention", "asymmetry"] > 0.05).all()


@pytest.mark.parametrize("seed", range(3))
def test_the_remainder_is_what_is_missing_if_embeddings_factorise_the_matrix(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every two words occur with every context, so no term is missing: w_d − (w_b − w_a + w_c) = C†(ξ + σ − σ*)."""
    random = np.random.default_rng(seed)
    corpus = build_corpus([random.choice(list("abcde"), 5).tolist() for _ in range(400)])
    ratios = shifted_log_ratios(sum_attention(examples_of(corpus), plain(5)).gamma)
    contexts = random.normal(size=(5, 5)) + 3 * np.eye(5)
    words = np.linalg.solve(contexts, ratios.T).T
    monkeypatch.setattr(analogies, "train_model", lambda name, *_: TrainedModel(name, words, contexts, plain(5)))
    a, b, c, d = map(corpus.find, QUESTION)
    row = explain(corpus, questions=[QUESTION]).iloc[0]
    assert row["contexts"] == 5
    assert row["remainder"] == pytest.approx(np.linalg.norm(words[d] - words[b] + words[a] - words[c]))


def test_questions_without_a_common_context_have_no_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_vectors(monkeypatch, {word: (1.0, float(place)) for place, word in enumerate("abcdx")})
    frame = explain(build_corpus([["a", "b", "x"], ["c", "d", "x"]]), questions=[QUESTION])
    assert (frame["contexts"] == 0).all()
    assert frame[list(TERMS)].isna().all().all()
    assert frame["cosine"].notna().all()


def test_models_are_trained_on_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_corpora, "MOST_EPOCHS", 9)
    path = tmp_path / "corpus.txt"
    path.write_text(
        "\ufeff" + "\n".join(" ".join(words) for words in permutations("abcdef", 3)) + "\n\nalone\n", "utf-8"
    )
    assert read_corpus(path).words == tuple("abcdef")
    seen: list[str] = []
    frame = explain(path, questions=[QUESTION], dimensions=3, progress=lambda step: seen.append(step.what))
    again = explain(path, questions=[QUESTION], dimensions=3)
    assert frame.equals(again)
    assert {what.split()[0] for what in seen} == {"cbow", "attention"}
    assert (frame["cosine_error"] >= 0).all()
    assert frame.attrs["words"] == 6


def test_words_at_positions_are_units_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the corpus and the questions had been written with units; the words of a set are in one sentence."""
    sentences = [list(words) for words in permutations("abcdx", 3)] + [["a", "d", "x", "y"]] * 3
    written = [[f"{word}@{at}" for at, word in enumerate(sentence, 1)] for sentence in sentences]
    pairs = [(p, q) for p, q in permutations((1, 2, 3), 2)]
    questions = [(f"a@{p}", f"b@{q}", f"c@{p}", f"d@{q}") for p, q in pairs]
    units = {unit for sentence in written for unit in sentence}
    fake_vectors(monkeypatch, {unit: tuple(np.eye(len(units))[at]) for at, unit in enumerate(sorted(units))})
    frame = explain(build_corpus(sentences), questions=[QUESTION], positions=True)
    asked = frame[frame["model"] == "cbow"][["a", "b", "c", "answer"]]
    assert [tuple(row) for row in asked.to_numpy()] == questions
    assert frame.equals(explain(build_corpus(written), questions=questions))
    assert (frame["contexts"] > 0).all()
    with refuses(QuestionError, "positions"):
        explain(build_corpus(["abx", "cdx", "xad", "xbc"]), questions=[QUESTION], positions=True)


def test_the_toy_corpus_has_questions_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = {word: tuple(np.eye(12)[place]) for place, word in enumerate(toy_corpus(1).words)}
    fake_vectors(monkeypatch, vectors)
    frame = explain("toy")
    assert [tuple(row) for row in frame[["a", "b", "c", "answer"]].to_numpy()] == [*TOY_QUESTIONS] * 2
    assert (frame["contexts"] > 3).all()


def test_bad_corpora_and_questions_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analogies, "toy_corpus", lambda: toy_corpus(50))
    with refuses(DataUnavailableError, "nowhere.txt", "toy"):
        explain("nowhere.txt")
    empty = tmp_path / "empty.txt"
    empty.write_text("one\n\n")
    with refuses(DataError, empty, "sentence", 2):
        explain(empty)
    binary = tmp_path / "binary.txt"
    binary.write_bytes(b"\xff\xfe\x00")
    with refuses(DataError, binary, "UTF-8"):
        explain(binary)
    with refuses(QuestionError, "toy", 1):
        explain("toy", questions=[("king", "man", "queen", "woman")])
    with refuses(QuestionError, "toy", 1):
        explain("toy", questions=[("fun", "fun", "easy", "easy")])
    with refuses(DataUnavailableError, "none.txt"):
        explain("toy", questions="none.txt")
    for name, value in (("dimensions", 0), ("seed", -1)):
        with refuses(UsageError, name, value):
            explain("toy", **{name: value})
    monkeypatch.setattr(analogies, "MOST_WORDS", 11)
    with refuses(DataError, 12, 11):
        explain("toy")
