"""The probe against its definition, by properties, and against gensim on single questions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings as hypothesis_settings, strategies as st
from hypothesis.extra.numpy import arrays
from support.messages import refuses
from support.vectors import keyed, planted, table, words, write_questions

import attngeo
from attngeo.analogies.analogy import AnalogyResult
from attngeo.analogies.lexicon import Space, build_lexicon
from attngeo.analogies.options import ProbeSettings
from attngeo.analogies.questions import Question, QuestionSet
from attngeo.embeddings.embedding import Embedding
from attngeo.errors import UsageError
from attngeo.reporting.page import name_commits

METHODS = ("3cosadd", "3cosmul")


def questions(rows: Any, labels: list[str], answers: int = 1) -> QuestionSet:
    """Questions about rows of a table, [n, 3 + answers]."""
    made = []
    for number, (a, b, c, *d) in enumerate(rows, 1):
        pairs = (f"{a} {b}", f"{c} {d[0]}")
        made.append(
            Question("all", "", labels[a], labels[b], labels[c], tuple(labels[i] for i in d[:answers]), number, *pairs)
        )
    return QuestionSet("made", made)


def ask(embedding: Embedding, asked: QuestionSet, **options: Any) -> AnalogyResult:
    """Answers whose scores, which these tests do not read, have no interval."""
    return attngeo.analogy(
        embedding, questions=asked, keep_duplicates=True, **({"n_answers": 1, "n_draws": 0} | options)
    )


def test_results_of_several_models_state_the_revision_of_each(tmp_path: Path) -> None:
    embedding, lines = planted()
    path = write_questions(tmp_path / "q.txt", {"all": lines})
    others = [replace(embedding, ref=name, revision=revision) for name, revision in (("a", "1" * 40), ("b", None))]
    about = attngeo.analogy(others, questions=path).rows.attrs
    assert (about["model"], about["revision"]) == ("a, b", {"a": "1" * 40, "b": None})
    assert name_commits(about) == f"a@{'1' * 40}, b"
    about = attngeo.analogy(others[0], questions=path).rows.attrs
    assert (about["model"], about["revision"], name_commits(about)) == ("a", "1" * 40, f"a@{'1' * 40}")


def cosine(x: Any, y: Any) -> float:
    lengths = np.linalg.norm(x) * np.linalg.norm(y)
    return float(x @ y / lengths) if lengths > 0 else 0.0


def definition(x: Any, a: int, b: int, c: int, d: int, method: str) -> float:
    """The score of one candidate, as Levy and Goldberg write it."""
    if method == "3cosadd":
        return cosine(x[d], x[b] + x[c] - x[a])
    moved = [(1 + cosine(x[d], x[i])) / 2 for i in (a, b, c)]
    return moved[1] * moved[2] / (moved[0] + 0.001)


def rank(x: Any, a: int, b: int, c: int, answers: list[int], method: str) -> int:
    """The rank of the best answer, each tie with what is no answer counted against it."""
    scores = {d: definition(x, a, b, c, d, method) for d in range(len(x)) if d not in (a, b, c)}
    possible = [scores[d] for d in answers if d in scores]
    if not possible:
        return len(x) + 1
    return 1 + sum(score >= max(possible) - 1e-9 for d, score in scores.items() if d not in answers)


# Whole numbers: many candidates are then tied, some are equal, some are zero.
@hypothesis_settings(max_examples=40)
@given(st.data(), st.sampled_from(METHODS), st.booleans())
def test_ranks_are_those_of_the_definition(data: st.DataObject, method: str, several: bool) -> None:
    count = data.draw(st.integers(6, 12))
    x = data.draw(arrays(np.float64, (count, 3), elements=st.integers(-2, 2)))
    row = st.lists(st.integers(0, count - 1), min_size=5, max_size=5)
    rows = data.draw(st.lists(row, min_size=1, max_size=5))
    labels = words(count)
    asked = questions(rows, labels, answers=2 if several else 1)
    got = ask(table(x, labels), asked, method=method).questions
    answers = [r[3:5] if several else r[3:4] for r in rows]
    expected = [rank(x, *r[:3], own, method) for r, own in zip(rows, answers, strict=True)]
    assert got["rank"].tolist() == expected


@pytest.mark.parametrize("case", ["keep", "ignore"])
def test_an_answer_that_is_named_twice_counts_once(case: str) -> None:
    """Ignoring case, two spellings of an answer are one candidate; here one other word is better than it."""
    labels = ["the", "of", "and", "Germany", "germany", "in"]
    x = np.array([[0, 1], [0, 1], [1, 0], [3, 1], [3, 1], [1, 0]])
    for answers in (("Germany",), ("Germany", "Germany"), ("Germany", "GERMANY", "germany")):
        asked = QuestionSet("made", [Question("all", "", "the", "of", "and", answers, 1, "p", "q")])
        expected = 3 if case == "keep" and "germany" not in answers else 2
        assert ask(table(x, labels), asked, case=case).questions["rank"].tolist() == [expected]


@pytest.mark.parametrize("options", [{}, {"center": True}, {"remove_top": 2}])
def test_a_planted_structure_is_solved(options: dict[str, Any], tmp_path: Path) -> None:
    embedding, lines = planted()
    path = write_questions(tmp_path / "q.txt", {"planted": lines})
    overall = attngeo.analogy(embedding, questions=path, **options).rows.iloc[-1]
    assert (overall["known"], overall["accuracy"], overall["mean_rank"], overall["mrr"]) == (len(lines), 1, 1, 1)
    assert overall["top5"] == 1
    assert overall[["accuracy_low", "accuracy_high"]].isna().all()  # a bootstrap of nothing but right answers
    assert overall["mean_cosine"] == pytest.approx(1)


@pytest.mark.parametrize("method", METHODS)
def test_a_planted_structure_is_found_by_angles_too(method: str, tmp_path: Path) -> None:
    embedding, lines = planted(width=60)
    path = write_questions(tmp_path / "q.txt", {"planted": lines})
    overall = attngeo.analogy(embedding, questions=path, method=method, normalize=True).rows.iloc[-1]
    assert overall["accuracy"] > 0.9


def test_vectors_in_memory_of_the_same_name_are_told_apart() -> None:
    labels, generator = words(30), np.random.default_rng(0)
    first, second = (keyed(labels, generator.standard_normal((30, 4))) for _ in range(2))
    lines = [" ".join(labels[i : i + 4]).split() for i in range(20)]
    result = attngeo.analogy([first, table(generator.standard_normal((30, 4)), labels), second], questions=lines)
    names = result.rows["model"].drop_duplicates().tolist()
    assert names == ["KeyedVectors", "table", "KeyedVectors (2)"]
    alone = attngeo.analogy(second, questions=lines).questions
    own = result.questions[result.questions["model"] == names[2]]
    assert own["cosine"].tolist() == alone["cosine"].tolist()
    with refuses(UsageError, "KeyedVectors", "twice"):
        attngeo.analogy([first, first], questions=lines)


def test_random_vectors_are_at_chance() -> None:
    """Ranks of questions about random vectors are uniform: 300 questions of words of their own."""
    count = 1200
    generator = np.random.default_rng(0)
    for method in METHODS:
        embedding = table(generator.standard_normal((count, 30)))
        asked = questions(np.arange(count).reshape(300, 4), list(embedding.labels))
        ranks = ask(embedding, asked, method=method).questions["rank"].astype(float)
        spread = count / np.sqrt(12 * 300)
        assert abs(ranks.mean() - (count - 2) / 2) < 4 * spread
        assert (ranks == 1).mean() < 0.02


def all_scores(x: np.ndarray, rows: np.ndarray, method: str) -> np.ndarray:
    """The score of each candidate for questions about rows [n, 4], by the definition; NaN for its own words."""
    units, (a, b, c) = x / np.linalg.norm(x, axis=1, keepdims=True), rows.T[:3]
    if method == "3cosmul":
        first, second, third = ((1 + units[part] @ units.T) / 2 for part in (a, b, c))
        scores = second * third / (first + 0.001)
    else:
        targets = x[b] - x[a] + x[c]
        scores = targets @ units.T / np.linalg.norm(targets, axis=1, keepdims=True)
    scores[np.arange(len(rows))[:, None], rows[:, :3]] = np.nan
    return scores


def assert_no_rounding_decides(scores: np.ndarray, rows: np.ndarray, best: int = 1) -> None:
    """Scores that decide the rank of an answer, or which are best, are equal or farther apart than the probe's ties."""
    answers = scores[np.arange(len(rows)), rows[:, 3]][:, None]
    gaps = np.abs(np.concatenate([scores - answers, np.diff(-np.sort(-scores))[:, :best]], 1))
    assert not ((gaps > 1e-13) & (gaps < 1e-9)).any()


@pytest.mark.parametrize("method", METHODS)
def test_the_order_of_the_vocabulary_changes_nothing(method: str) -> None:
    generator = np.random.default_rng(1)
    x, labels = generator.standard_normal((300, 8)), words(300)
    x[7] = x[3]
    rows = generator.integers(0, 300, (400, 4))
    asked, order = questions(rows, labels), generator.permutation(300)
    one = ask(table(x, labels), asked, method=method).questions
    other = ask(table(x[order], [labels[i] for i in order]), asked, method=method).questions
    assert_no_rounding_decides(all_scores(x, rows, method), rows)
    assert one["rank"].tolist() == other["rank"].tolist()
    one, other = (
        ask(table(x[places], [labels[i] for i in places]), asked, method=method, remove_top=1).questions
        for places in (np.arange(300), order)
    )
    np.testing.assert_allclose(one["cosine"], other["cosine"], atol=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_blocks_of_any_size_give_the_same(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from attngeo.analogies import probe

    generator = np.random.default_rng(2)
    x, rows = generator.standard_normal((500, 9)).astype(np.float32), generator.integers(0, 500, (300, 4))
    embedding = table(x)
    asked = questions(rows, list(embedding.labels))
    assert_no_rounding_decides(all_scores(x.astype(float), rows, method), rows, 7)
    whole = ask(embedding, asked, method=method, n_answers=7).questions
    monkeypatch.setattr(probe, "BLOCKS", {"cpu": (11, 64)})
    parts = ask(embedding, asked, method=method, n_answers=7, memory=600_000).questions
    assert whole["rank"].tolist() == parts["rank"].tolist()
    assert whole["top"].tolist() == parts["top"].tolist()


def assert_alike(best: list[str], gensims: list[tuple[str, float]]) -> None:
    """The best candidates are gensim's, in its order; those whose scores float32 cannot tell apart may be exchanged."""
    scores = dict(gensims)
    for word, (_, expected) in zip(best, gensims, strict=False):
        assert scores[word] == pytest.approx(expected, abs=1e-6), (best, gensims)


@pytest.mark.filterwarnings("ignore:Call to deprecated `init_sims`:DeprecationWarning")  # gensim calls its own
def test_the_best_candidates_are_gensims() -> None:
    generator = np.random.default_rng(3)
    x, labels = generator.standard_normal((200, 12)), words(200)
    asked = questions(generator.permutation(200).reshape(50, 4), labels)
    oracle = keyed(labels, x)
    got = ask(table(x, labels), asked, normalize=True, n_answers=4).questions
    cosmul = ask(table(x, labels), asked, method="3cosmul", n_answers=1).questions
    for q, tops, best in zip(asked.questions, got["top"], cosmul["top"], strict=True):
        assert_alike(tops.split(), oracle.most_similar([q.b, q.c], [q.a], topn=6))
        assert_alike([best], oracle.most_similar_cosmul([q.b, q.c], [q.a], topn=3))


def test_nearest_is_gensims_most_similar() -> None:
    x, labels = np.random.default_rng(4).standard_normal((200, 12)), words(200)
    got = attngeo.nearest(table(x, labels), "aaa - aab + aac + aad", normalize=True, top=6)
    expected = keyed(labels, x).most_similar(["aaa", "aac", "aad"], ["aab"], topn=8)
    assert_alike(got["word"].tolist(), expected)
    assert got["cosine"].tolist() == pytest.approx([value for _, value in expected[:6]], abs=1e-5)
    one = attngeo.nearest(table(x, labels), "aaa", top=3)
    assert_alike(one["word"].tolist(), keyed(labels, x).most_similar("aaa", topn=5))


@pytest.mark.parametrize(("count", "normalize"), [(0, False), (1, False), (3, True)])
def test_remove_top_subtracts_the_directions_of_largest_variance(count: int, normalize: bool) -> None:
    """All-but-the-top, by a singular value decomposition of the words that may be answers."""
    x = np.random.default_rng(5).standard_normal((120, 10)) @ np.diag(range(1, 11)) + 3
    labels = [*words(110), *map(str, range(10))]
    lexicon = build_lexicon(table(x, labels))
    settings = ProbeSettings(center=True, remove_top=count, normalize=normalize, device="cpu")
    got = Space(lexicon, settings).vectors(torch.arange(120)).numpy()
    centred = x - x[:110].mean(0)
    directions = np.linalg.svd(centred[:110])[2][:count]
    expected = centred - centred @ directions.T @ directions
    expected = expected / np.linalg.norm(expected, axis=1, keepdims=True) if normalize else expected
    np.testing.assert_allclose(got, expected, atol=1e-9)


def test_half_precision_tables_are_asked_as_float64() -> None:
    x = torch.randn(100, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    labels = words(100)
    asked = questions(np.random.default_rng(0).integers(0, 100, (80, 4)), labels)
    entries = torch.ones(100, dtype=torch.bool)
    half, double = (ask(Embedding("t", m, labels, entries, entries), asked).questions for m in (x, x.double()))
    assert half["rank"].tolist() == double["rank"].tolist()


def test_impossible_questions_are_refused() -> None:
    embedding = table(np.eye(9))
    asked = questions([[0, 1, 2, 3]], list(embedding.labels))
    with refuses(UsageError, "n_answers", 7, "1 to 6", "table", 9):
        ask(embedding, asked, n_answers=7)
    with refuses(UsageError, "memory", 100):
        ask(embedding, asked, memory=100)
    with refuses(UsageError, "remove_top", 9, "table"):
        ask(embedding, asked, remove_top=9)
    with refuses(UsageError, "models"):
        attngeo.analogy([])
    with refuses(UsageError, "table"):
        attngeo.analogy([embedding, embedding], questions=asked, n_answers=1)
    with refuses(UsageError, "table", "'king'"):
        attngeo.nearest(embedding, "king")
