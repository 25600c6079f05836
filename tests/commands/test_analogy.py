"""`attngeo analogy`, `nearest` and `cbow` as a user runs them."""

from __future__ import annotations

import errno
import json
import os
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import Command
from support.messages import assert_fails, assert_states
from support.vectors import (
    checkpoint,
    keyed,
    planted,
    sample_google,
    word_piece,
    words,
    write_questions,
    write_text,
)

import attngeo as library
from attngeo.analogies.questions import google_text, load_questions
from attngeo.embeddings.embedding import Embedding
from attngeo.embeddings.opening import open_embedding
from attngeo.errors import (
    AttnGeoError,
    CorruptCheckpointError,
    DataUnavailableError,
    ModelNotFoundError,
    NetworkError,
    OutputError,
    QuestionError,
    ShapeError,
    UsageError,
)

COLUMNS = [
    "model", "revision", "level", "name", "asked", "known", "accuracy", "accuracy_low", "accuracy_high", "top5",
    "mean_rank", "mrr", "mean_cosine", "questions", "note",
]  # fmt: skip


Section = list[tuple[str, str, str, str]]


@cache
def minilm() -> Embedding:
    """The embeddings of MiniLM, which are read in half a second."""
    return open_embedding("demo:minilm")


def gensims(path: Path) -> dict[str, tuple[Section, Section]]:
    """Category → the questions that are right and wrong, by gensim's own evaluation of MiniLM's embeddings."""
    embedding = minilm()
    _, sections = keyed(embedding.labels, embedding.matrix).evaluate_word_analogies(str(path))
    return {section["section"]: (section["correct"], section["incorrect"]) for section in sections}


def margins(questions: Section) -> dict[tuple[str, ...], float]:
    """Question → the cosine of the best other word less that of the answer, in float64."""
    embedding = minilm()
    units = torch.nn.functional.normalize(embedding.matrix.double())
    rows = {label.upper(): row for row, label in reversed(list(enumerate(embedding.labels)))}
    questions = [question for question in questions if rows.keys() >= set(question)]
    terms = torch.tensor([[rows[word] for word in question] for question in questions])
    a, b, c = units[terms[:, :3]].unbind(1)
    found: list[float] = []
    for target, row in zip((b + c - a).split(500), terms.split(500), strict=True):
        scores = torch.nn.functional.normalize(target) @ units.T
        answers = scores.gather(1, row[:, 3:])
        found += (scores.scatter_(1, row, -2).amax(1) - answers[:, 0]).tolist()
    return dict(zip(questions, found, strict=True))


def without_gensim(path: Path) -> dict[str, tuple[Section, Section]]:
    """The same as `gensims` by the margins, which takes seconds for all questions."""
    sections: dict[str, tuple[Section, Section]] = {"Total accuracy": ([], [])}
    for part in path.read_text("utf-8").split(": ")[1:]:
        name, *lines = part.splitlines()
        known = margins([tuple(line.upper().split()) for line in lines])
        sections[name] = [q for q, margin in known.items() if margin < 0], [q for q in known if known[q] >= 0]
        for every, these in zip(sections["Total accuracy"], sections[name], strict=True):
            every.extend(these)
    return sections


@pytest.mark.parametrize("sample", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["sample", "all"])
def test_minilm_is_right_where_gensim_says_so(sample: bool, inside: Command, tmp_path: Path) -> None:
    """In every category, with gensim's choices: by gensim on a sample, in float64 on all 12,154 questions it knows."""
    path = tmp_path / "questions.txt"
    path.write_text(sample_google() if sample else google_text(), "utf-8")
    choices = ("--normalize", "--answers", "all", "--keep-duplicates", "--questions", path)
    run = inside("analogy", "demo:minilm", *choices, "--format", "json", "--n-draws", 0)
    assert (run.returncode, run.stderr) == (0, "")
    rows = pd.DataFrame(json.loads(run.stdout)).set_index("name")
    expected = gensims(path) if sample else without_gensim(path)
    expected["overall"] = expected.pop("Total accuracy")
    questions = [question for answers in expected["overall"] for question in answers]
    close = {question for question, margin in margins(questions).items() if abs(margin) < 2e-6}
    assert len(close) < 20  # of thousands
    for name, (right, wrong) in expected.items():
        assert rows.known[name] == len(right) + len(wrong)
        doubts = len(close.intersection([*right, *wrong]))
        assert abs(round(rows.accuracy[name] * rows.known[name]) - len(right)) <= doubts, name
    if sample:
        assert rows.known["overall"] > 500
    else:
        assert rows.known["overall"] == 12154
        assert rows.accuracy["overall"] == pytest.approx(0.75457, abs=5e-6 + len(close) / 12154)


@pytest.mark.slow
def test_the_table_fits_80_columns(attngeo: Command) -> None:
    run = attngeo("analogy", "demo:minilm", "--published")
    assert run.returncode == 0
    assert_states(run.stderr, "google", 171)
    lines = run.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert_states(lines[0], "demo:minilm", "google", "11,983", "19,373", "raw vectors")
    cells = [line.split() for line in lines[1:] if line.strip()]
    categories = {question.category for question in load_questions("google").questions}
    assert categories | {"semantic", "syntactic", "overall"} <= {row[0] for row in cells}
    assert ["overall", "11,983", "0.741"] in [row[:3] for row in cells]
    assert any("GloVe" in line and "Table 3" in line for line in lines)
    assert "0.708" in run.stdout


@pytest.mark.slow
def test_files_and_frames_say_the_same(attngeo: Command, tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("s.csv", "s.parquet", "s.html", "s.md", "q.parquet", "c.json")}
    vectors = write_text(tmp_path / "own.txt", *_like_minilm())
    run = attngeo(
        "analogy", "demo:minilm", vectors, "--own", "--published", "--n-draws", 100, "--format", "csv", "--quiet",
        *(part for name in ("s.csv", "s.parquet", "s.html", "s.md") for part in ("-o", files[name])),
        "--questions-output", files["q.parquet"], "--comparisons-output", files["c.json"], "--n-answers", 2,
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == files["s.csv"].read_text()
    result = library.analogy(["demo:minilm", str(vectors)], own=True, published=True, n_answers=2, n_draws=100)
    for expected, got in ((result.rows, "s.parquet"), (result.questions, "q.parquet")):
        pd.testing.assert_frame_equal(pd.read_parquet(files[got]), expected, check_dtype=False)
    scores = pd.read_parquet(files["s.parquet"])
    assert list(scores.columns) == COLUMNS
    assert list(scores["questions"].unique()) == ["common", "own", "published"]
    asked = pd.read_parquet(files["q.parquet"])
    assert len(asked) == 2 * 19373
    assert asked.groupby("model")["common"].sum().nunique() == 1
    known = asked[asked["known"]]
    assert (known["top"].str.split().str.len() == 2).all()
    answered = known["top"].str.split().str[0] == known["answer"].str.lower()
    assert answered[known["rank"] == 1].all()
    assert set(known["rank"][answered]) <= {1, 2}  # 2 where another word has the very same cosine
    assert asked[~asked["known"]]["rank"].isna().all()
    comparisons = pd.DataFrame(json.loads(files["c.json"].read_text()))
    assert comparisons["name"].tolist() == ["semantic", "syntactic", "overall"]
    assert "<h1>Word analogies</h1>" in files["s.html"].read_text()
    sides = files["s.md"].read_text().splitlines()[1].split("|")[1:-1]
    shown = [name for name in COLUMNS if name != "revision"]  # which these models lack
    assert [side.endswith(":") for side in sides] == [
        name not in ("model", "level", "name", "questions", "note") for name in shown
    ]


def _like_minilm() -> tuple[list[str], np.ndarray]:
    """Some of MiniLM's words, with less exact vectors."""
    embedding = minilm()
    rows = embedding.answer_rows("words")[:6000]
    return [embedding.labels[row] for row in rows.tolist()], embedding.matrix[rows].numpy().round(1)


def test_several_models_side_by_side(inside: Command, tmp_path: Path) -> None:
    paths = []
    for seed, noise in ((0, 0.0), (0, 1.0), (0, 3.0)):
        embedding, lines = planted(noise=noise, seed=seed)
        paths.append(write_text(tmp_path / f"noise{noise:.0f}.txt", embedding.labels, embedding.matrix))
    questions = write_questions(tmp_path / "q.txt", {"one": lines[::2], "two": lines[1::2]})
    run = inside("analogy", *paths, "--questions", questions, "--n-draws", 200)
    assert (run.returncode, run.stderr) == (0, "")
    assert max(map(len, run.stdout.splitlines())) <= 80
    assert_states(" ".join(run.stdout.splitlines()[:3]), "3 models", questions, "56 of 56")
    assert "Holm" in run.stdout
    pairs = [line.split()[:2] for line in run.stdout.splitlines() if " : " in line]
    assert pairs == [["noise0.txt", "noise1.txt"], ["noise0.txt", "noise3.txt"], ["noise1.txt", "noise3.txt"]]


@pytest.mark.slow
def test_one_analogy_by_hand(attngeo: Command) -> None:
    for arguments in (["king", "-", "man", "+", "woman"], ["king - man + woman"]):
        run = attngeo("nearest", "demo:minilm", *arguments, "--top", 3)
        assert (run.returncode, run.stderr) == (0, "")
        assert run.stdout.splitlines()[3].split() == ["queen", "+0.511"]
    run = attngeo("nearest", "demo:minilm", "Paris", "--top", 2, "--format", "json")
    assert [row["word"] for row in json.loads(run.stdout)] == ["parisian", "france"]


@pytest.mark.slow
def test_cbow_is_trained_saved_and_asked(attngeo: Command, tmp_path: Path) -> None:
    pytest.importorskip("gensim")
    text = tmp_path / "text.txt"
    text.write_text("the king and the queen saw a man and a woman\n" * 200)
    run = attngeo("cbow", text, "-o", tmp_path / "v.vec", "--dimensions", 10)
    assert (run.returncode, run.stdout) == (0, "")
    assert_states(run.stderr, tmp_path / "v.vec", 8, 10)
    questions = write_questions(tmp_path / "q.txt", {"royal": ["man king woman queen"]})
    for reference in (tmp_path / "v.vec", f"cbow:{text}"):
        run = attngeo("analogy", reference, "--questions", questions, "--n-answers", 1, "--format", "json")
        assert (run.returncode, run.stderr) == (0, "")
        assert json.loads(run.stdout)[-1]["known"] == 1


def test_a_text_is_not_overwritten_by_its_vectors(inside: Command, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a b c\n" * 9)
    run = inside("cbow", text, "-o", tmp_path / "." / "text.txt")
    assert_fails(run, UsageError.exit_code, "text.txt")
    assert text.read_text() == "a b c\n" * 9


def test_narrow_terminals_lose_columns_and_not_names(inside: Command, tmp_path: Path) -> None:
    paths = [write_text(tmp_path / f"model{i}.txt", *_some_words(i)) for i in range(7)]
    lines = ["aaa aab aac aad", "aad aae aaf aag"]
    questions = write_questions(tmp_path / "q.txt", {"a rather long name of a category": lines})
    for width in ("50", "60", "80", "120"):
        run = inside("analogy", *paths, "--questions", questions, "--n-answers", 1, "--n-draws", 9, COLUMNS=width)
        assert run.returncode == 0, run.stderr
        assert max(map(len, run.stdout.splitlines())) <= int(width)
        for path in paths:
            assert run.stdout.count(path.name) >= 3, (width, path.name)


def _some_words(seed: int) -> tuple[list[str], np.ndarray]:
    return words(9), np.random.default_rng(seed).standard_normal((9, 3))


def test_a_terminal_is_sent_no_escapes(inside: Command, tmp_path: Path) -> None:
    labels = ["one", "two", "three", "\x1b]0;evil\x07"]
    path = write_text(tmp_path / "v.txt", labels, np.eye(4))
    run = inside("nearest", path, "one", "--answers", "all", "--top", 3)
    assert run.returncode == 0
    assert "evil" in run.stdout
    assert "\x1b" not in run.stdout


@pytest.mark.slow
def test_a_lower_case_question_to_a_cased_vocabulary_is_noted(attngeo: Command, tmp_path: Path) -> None:
    labels = ["Athens", "Greece", "Oslo", "Norway", "the", "of", "and", "in"]
    path = write_text(tmp_path / "cased.txt", labels, np.eye(8))
    questions = write_questions(tmp_path / "q.txt", {"a": ["Athens Greece Oslo Norway", "the of and in"]})
    run = attngeo("analogy", path, "--questions", questions, "--case", "lower", "--n-answers", 1, "--format", "csv")
    assert_states(run.stderr, path, 1, "--case keep", 2)
    run = attngeo("analogy", path, "--questions", questions, "--n-answers", 1, "--format", "csv")
    assert (run.returncode, run.stderr) == (0, "")


def test_few_known_questions_are_noted(inside: Command, tmp_path: Path) -> None:
    good = write_text(tmp_path / "good.txt", *_some_words(0))
    other = write_text(tmp_path / "other.txt", *_some_words(1))
    known, unknown = "aaa aab aac aad", [f"aaa aab aac x{letter}" for letter in "abcdefghijk"]
    for extra, lines in ((unknown, 1), (unknown[:5], 0)):
        questions = write_questions(tmp_path / "q.txt", {"a": [known, *extra]})
        run = inside("analogy", good, other, "--questions", questions, "--n-answers", 1, "--n-draws", 0)
        assert (run.returncode, len(run.stderr.splitlines())) == (0, lines)
        if lines:
            assert_states(run.stderr, "only 1 of 12", f"{good} knows 1", f"{other} knows 1")


def test_nearest_shows_all_words_of_a_small_table(inside: Command, tmp_path: Path) -> None:
    path = write_text(tmp_path / "small.txt", *_some_words(0))
    run = inside("nearest", path, "aaa - aab + aac", "--format", "csv")
    assert (run.returncode, len(run.stdout.splitlines())) == (0, 1 + 9 - 3)
    run = inside("nearest", path, "aaa", "--top", 10)
    assert_fails(run, UsageError.exit_code, "--top", 10, "1 to 8")


def test_nearest_writes_files(inside: Command, tmp_path: Path) -> None:
    path = write_text(tmp_path / "small.csv", *_some_words(0))
    run = inside("nearest", path, "aaa", "--format", "csv", "-o", tmp_path / "near.csv", "-q")
    assert (run.returncode, run.stderr) == (0, "")
    assert (tmp_path / "near.csv").read_text("utf-8") == run.stdout
    assert_fails(inside("nearest", path, "aaa", "-o", path), UsageError.exit_code, "small.csv is an input")


def test_options_that_make_more_questions_known_are_named(inside: Command, tmp_path: Path) -> None:
    """Those alone: the decoder has no token of these words, in any case, and tokens of their parts."""
    asked = ["demo:decoder", "--questions", write_questions(tmp_path / "q.txt", {"a": ["Italy Rome Spain Madrid"]})]
    assert_fails(inside("analogy", *asked), QuestionError.exit_code, "0 of 1", "set --subwords mean")
    with_mean = inside("analogy", *asked, "--subwords", "mean", "--n-draws", 0)
    assert with_mean.returncode == 0, with_mean.stderr
    in_vain = write_questions(tmp_path / "q.txt", {"a": ["\u4e2d \u6587 \u65e5 \u672c"]})
    done = inside("analogy", "demo:minilm", "--questions", in_vain, "--answers", "all", "--case", "ignore")
    assert "--case" not in done.stderr


def bad_inputs(folder: Path) -> dict[str, tuple[list[object], type[AttnGeoError], list[object]]]:
    """Arguments, the error, and the facts that its line states."""
    good = write_text(folder / "good.txt", words(9), np.random.default_rng(0).standard_normal((9, 3)))
    other = write_text(folder / "other.txt", ["one", "two", "three", "four"], np.eye(4))
    questions = write_questions(folder / "q.txt", {"a": ["aaa aab aac aad"]})
    empty = folder / "empty.txt"
    empty.write_text(": nothing\n")
    ragged = folder / "ragged.txt"
    ragged.write_text("aaa 1 2\naab 1\naac x 2\n")
    mismatched = checkpoint(folder / "model", 3)
    word_piece(mismatched / "tokenizer.json")
    asked = ["--questions", questions, "--n-answers", 1]
    missing, home = ModelNotFoundError, "~nosuchuser/vectors.txt"
    no_questions = DataUnavailableError
    return {
        "unknown model": (["./none", *asked], missing, ["./none"]),
        "unknown vectors": (["none.vec", *asked], missing, ["none.vec"]),
        "unknown hub model": (["org/none", *asked], NetworkError, ["org/none", "offline"]),
        "unknown demo": (["demo:none", *asked], missing, ["none", "encoder", "decoder", "minilm"]),
        "unknown questions": ([good, "--questions", "none"], no_questions, ["none", "google"]),
        "no question": ([good, "--questions", empty], QuestionError, [empty]),
        "another's tokeniser": ([mismatched, *asked], ShapeError, [mismatched, "'queen'", "3 rows"]),
        "bad vectors": ([ragged, *asked], CorruptCheckpointError, [ragged, 2, "line 2", "line 3"]),
        "no question known": ([other, *asked], QuestionError, [other, 0, "of 1"]),
        "empty intersection": ([good, other, *asked], QuestionError, [f"{good} knows 1", f"{other} knows 0", "of 1"]),
        "no home": ([home, *asked], missing, [home]),
        "questions of no home": ([good, "--questions", "~nosuchuser/q"], no_questions, ["~nosuchuser/q"]),
        "questions too long": ([good, "--questions", "q" * 300], no_questions, [os.strerror(errno.ENAMETOOLONG)]),
        "n_draws": ([good, *asked, "--n-draws", 10**12], UsageError, ["--n-draws", f"{10**12:,}", 0, "100,000"]),
        "limit": ([good, *asked, "--limit", 0], UsageError, ["--limit", 0]),
        "k too large": (
            [good, "--questions", questions, "--n-answers", 7], UsageError, ["--n-answers", 7, "1 to 6"]
        ),
        "k too small": ([good, "--questions", questions, "--n-answers", 0], UsageError, ["--n-answers", 0, 1]),
        "memory": ([good, *asked, "--memory", "lots"], UsageError, ["--memory", "'lots'"]),
        "too little memory": ([good, *asked, "--memory", "1kB"], UsageError, ["--memory", "1,000 bytes"]),
        "method": ([good, *asked, "--method", "4cosadd"], UsageError, ["--method", "'4cosadd'", "3cosadd"]),
        "device": ([good, *asked, "--device", "tpu"], UsageError, ["'tpu'", "cpu"]),
        "output format": ([good, *asked, "-o", folder / "out.docx"], OutputError, ["out.docx", ".csv"]),
        "output twice": ([good, *asked, *("-o", folder / "o.csv") * 2], UsageError, ["twice"]),
        "published": ([good, *asked, "--published"], UsageError, ["--published", "google"]),
        "composing vectors": ([good, *asked, "--subwords", "mean"], UsageError, [good, "--subwords"]),
        "output of vectors": ([good, *asked, "--table", "output"], UsageError, [good, "--table"]),
    }  # fmt: skip


def test_bad_input_ends_in_one_line(inside: Command, tmp_path: Path) -> None:
    for name, (arguments, error, facts) in bad_inputs(tmp_path).items():
        results = [] if any(argument == "-o" for argument in arguments) else ["-o", tmp_path / "result.csv"]
        run = inside("analogy", *arguments, *results)
        print(f"{name}: {run.stderr}")
        assert_fails(run, error, *facts)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith((".", "result", "o."))]


@pytest.mark.parametrize(
    ("arguments", "error", "facts"),
    [
        (["nearest", "words.txt", "king", "man"], UsageError, ["'king man'"]),
        (["nearest", "words.txt", "king", "-"], UsageError, ["'king -'"]),
        (
            ["nearest", "demo:minilm", "kingq"],
            UsageError,
            ["demo:minilm", "'kingq'", "'king'", "--subwords mean", "2 tokens"],
        ),
        (["nearest", "words.txt", "king-man+woman"], UsageError, ["'king-man+woman'", "king - man + woman"]),
        (["nearest", "words.txt", "king-man"], UsageError, ["'king-man'", "king - man"]),
        (["nearest", "words.txt", "king", "-", "king"], UsageError, ["'king - king'"]),
        (["nearest", "demo:minilm", "1990"], UsageError, ["demo:minilm", "'1990'", "--answers all"]),
        (
            ["nearest", "demo:minilm", "king", "--top", "99999"],
            UsageError,
            ["--top", "99999", "1 to 22,500", "22,501"],
        ),
        (["cbow", "none.txt", "-o", "v.vec"], ModelNotFoundError, ["none.txt"]),
        (["cbow", os.devnull, "-o", "v.docx"], OutputError, ["v.docx", ".vec"]),
        (["cbow", "none.txt", "-o", "v.vec", "--epochs", "0"], UsageError, ["--epochs", 0, 1]),
    ],
)
def test_bad_sums_and_texts(
    inside: Command, tmp_path: Path, arguments: list[str], error: type[AttnGeoError], facts: list[object]
) -> None:
    write_text(tmp_path / "words.txt", ["king", "man", "woman", "queen"], np.eye(4))
    assert_fails(inside(*arguments, cwd=tmp_path), error, *facts)
    assert [path.name for path in tmp_path.iterdir()] == ["words.txt"]
