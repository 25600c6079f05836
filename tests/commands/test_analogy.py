"""`attngeo analogy`, `nearest` and `cbow` as a user runs them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import Command
from support.vectors import checkpoint, keyed, planted, word_piece, words, write_questions, write_text

import attngeo as library
from attngeo.analogies.questions import google_path
from attngeo.analogies.statistics import Bootstrap
from attngeo.embeddings.opening import open_embedding

COLUMNS = [
    "model", "level", "name", "asked", "known", "accuracy", "accuracy_low", "accuracy_high", "top5", "mean_rank", "mrr",
    "mean_cosine", "questions", "note",
]  # fmt: skip


def gensims(path: Path) -> dict[str, tuple[int, int]]:
    """Category → right and known, by gensim's own evaluation of MiniLM's embeddings."""
    embedding = open_embedding("demo:minilm")
    _, sections = keyed(embedding.labels, embedding.matrix).evaluate_word_analogies(str(path))
    return {s["section"]: (len(s["correct"]), len(s["correct"]) + len(s["incorrect"])) for s in sections}


def test_minilm_is_right_where_gensim_says_so(attngeo: Command) -> None:
    """In every category, on all 12,154 questions that MiniLM knows, with gensim's choices."""
    choices = ("--normalise", "--candidates", "all", "--keep-duplicates")
    run = attngeo("analogy", "demo:minilm", *choices, "--format", "json", "--draws", 0)
    assert (run.returncode, run.stderr) == (0, "")
    rows = pd.DataFrame(json.loads(run.stdout)).set_index("name")
    expected = gensims(google_path())
    expected["overall"] = expected.pop("Total accuracy")
    assert {name: (round(rows.accuracy[name] * rows.known[name]), rows.known[name]) for name in expected} == expected
    assert rows.known["overall"] == 12154
    assert rows.accuracy["overall"] == pytest.approx(0.75457, abs=5e-6)


def test_the_table_fits_80_columns(attngeo: Command) -> None:
    run = attngeo("analogy", "demo:minilm", "--published")
    assert run.returncode == 0
    assert run.stderr == "attngeo: note: google: 171 questions that were asked before are dropped\n"
    lines = run.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "demo:minilm · google: 11,983 of 19,373 questions · raw vectors"
    assert "gram6-nationality-adjective" in run.stdout
    assert "GloVe (paper, Table 3)" in run.stdout
    assert "0.708" in run.stdout


def test_files_and_frames_say_the_same(attngeo: Command, tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("s.csv", "s.parquet", "s.html", "s.md", "q.parquet", "c.json")}
    vectors = write_text(tmp_path / "own.txt", *_like_minilm())
    run = attngeo(
        "analogy", "demo:minilm", vectors, "--own", "--published", "--draws", 100, "--format", "csv", "--quiet",
        *(part for name in ("s.csv", "s.parquet", "s.html", "s.md") for part in ("-o", files[name])),
        "--questions-output", files["q.parquet"], "--comparisons-output", files["c.json"], "--top-k", 2,
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == files["s.csv"].read_text()
    result = library.analogy(
        ["demo:minilm", str(vectors)], own=True, published=True, top_k=2, bootstrap=Bootstrap(draws=100)
    )
    for expected, got in ((result.scores, "s.parquet"), (result.questions, "q.parquet")):
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
    assert [side.endswith(":") for side in sides] == [
        name not in ("model", "level", "name", "questions", "note") for name in COLUMNS
    ]


def _like_minilm() -> tuple[list[str], np.ndarray]:
    """Some of MiniLM's words, with less exact vectors."""
    embedding = open_embedding("demo:minilm")
    rows = embedding.rows("words")[:6000]
    return [embedding.labels[row] for row in rows.tolist()], embedding.matrix[rows].numpy().round(1)


def test_several_models_side_by_side(attngeo: Command, tmp_path: Path) -> None:
    paths = []
    for seed, noise in ((0, 0.0), (0, 1.0), (0, 3.0)):
        embedding, lines = planted(noise=noise, seed=seed)
        paths.append(write_text(tmp_path / f"noise{noise:.0f}.txt", embedding.labels, embedding.matrix))
    questions = write_questions(tmp_path / "q.txt", {"one": lines[::2], "two": lines[1::2]})
    run = attngeo("analogy", *paths, "--questions", questions, "--draws", 200)
    assert (run.returncode, run.stderr) == (0, "")
    assert max(map(len, run.stdout.splitlines())) <= 80
    assert "3 models" in run.stdout
    assert "p (Holm)" in run.stdout
    pairs = [line.split()[:2] for line in run.stdout.splitlines() if " : " in line]
    assert pairs == [["noise0.txt", "noise1.txt"], ["noise0.txt", "noise3.txt"], ["noise1.txt", "noise3.txt"]]


def test_one_analogy_by_hand(attngeo: Command) -> None:
    for arguments in (["king", "-", "man", "+", "woman"], ["king - man + woman"]):
        run = attngeo("nearest", "demo:minilm", *arguments, "--top-k", 3)
        assert (run.returncode, run.stderr) == (0, "")
        assert run.stdout.splitlines()[3].split() == ["queen", "+0.511"]
    run = attngeo("nearest", "demo:minilm", "Paris", "--top-k", 2, "--format", "json")
    assert [row["word"] for row in json.loads(run.stdout)] == ["parisian", "france"]


def test_cbow_is_trained_saved_and_asked(attngeo: Command, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the king and the queen saw a man and a woman\n" * 200)
    run = attngeo("cbow", text, "-o", tmp_path / "v.kv", "--dimensions", 10)
    assert (run.returncode, run.stdout) == (0, "")
    assert run.stderr == f"attngeo: {tmp_path / 'v.kv'}: 8 words of 10 dimensions\n"
    questions = write_questions(tmp_path / "q.txt", {"royal": ["man king woman queen"]})
    for reference in (tmp_path / "v.kv", f"cbow:{text}"):
        run = attngeo("analogy", reference, "--questions", questions, "--top-k", 1, "--format", "json")
        assert (run.returncode, run.stderr) == (0, "")
        assert json.loads(run.stdout)[-1]["known"] == 1


def test_a_text_is_not_overwritten_by_its_vectors(attngeo: Command, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a b c\n" * 9)
    run = attngeo("cbow", text, "-o", tmp_path / "." / "text.txt")
    assert (run.returncode, text.read_text()) == (2, "a b c\n" * 9)
    assert "is the text itself" in run.stderr


def test_narrow_terminals_lose_columns_and_not_names(inside: Command, tmp_path: Path) -> None:
    paths = [write_text(tmp_path / f"model{i}.txt", *_some_words(i)) for i in range(7)]
    lines = ["aaa aab aac aad", "aad aae aaf aag"]
    questions = write_questions(tmp_path / "q.txt", {"a rather long name of a category": lines})
    for width in ("50", "60", "80", "120"):
        run = inside("analogy", *paths, "--questions", questions, "--top-k", 1, "--draws", 9, COLUMNS=width)
        assert run.returncode == 0, run.stderr
        assert max(map(len, run.stdout.splitlines())) <= int(width)
        for path in paths:
            assert run.stdout.count(path.name) >= 3, (width, path.name)


def _some_words(seed: int) -> tuple[list[str], np.ndarray]:
    return words(9), np.random.default_rng(seed).standard_normal((9, 3))


def test_a_terminal_is_sent_no_escapes(attngeo: Command, tmp_path: Path) -> None:
    labels = ["one", "two", "three", "\x1b]0;evil\x07"]
    path = write_text(tmp_path / "v.txt", labels, np.eye(4))
    run = attngeo("nearest", path, "one", "--candidates", "all", "--top-k", 3)
    assert run.returncode == 0
    assert "evil" in run.stdout
    assert "\x1b" not in run.stdout


def test_a_lower_case_question_to_a_cased_vocabulary_is_noted(attngeo: Command, tmp_path: Path) -> None:
    labels = ["Athens", "Greece", "Oslo", "Norway", "the", "of", "and", "in"]
    path = write_text(tmp_path / "cased.txt", labels, np.eye(8))
    questions = write_questions(tmp_path / "q.txt", {"a": ["Athens Greece Oslo Norway", "the of and in"]})
    run = attngeo("analogy", path, "--questions", questions, "--case", "lower", "--top-k", 1, "--format", "csv")
    assert run.stderr == f"attngeo: note: {path}: asked in lower case, it knows 1 questions; with --case keep 2\n"
    run = attngeo("analogy", path, "--questions", questions, "--top-k", 1, "--format", "csv")
    assert (run.returncode, run.stderr) == (0, "")


def bad_inputs(folder: Path) -> dict[str, tuple[list[object], int, str]]:
    """Arguments, exit code, and what the line says."""
    good = write_text(folder / "good.txt", words(9), np.random.default_rng(0).standard_normal((9, 3)))
    other = write_text(folder / "other.txt", ["one", "two", "three", "four"], np.eye(4))
    questions = write_questions(folder / "q.txt", {"a": ["aaa aab aac aad"]})
    empty = folder / "empty.txt"
    empty.write_text(": nothing\n")
    ragged = folder / "ragged.txt"
    ragged.write_text("aaa 1 2\naab 1\naac x 2\n")
    mismatched = checkpoint(folder / "model", 3)
    word_piece(mismatched / "tokenizer.json")
    asked = ["--questions", questions, "--top-k", 1]
    return {
        "unknown model": (["./none", *asked], 3, "no such file or folder"),
        "unknown vectors": (["none.vec", *asked], 3, "none.vec: no such file"),
        "unknown hub model": (["org/none", *asked], 3, "offline mode is on"),
        "unknown demo": (["demo:none", *asked], 3, "no such demo model"),
        "unknown questions": ([good, "--questions", "none"], 3, "no such question file"),
        "no question": ([good, "--questions", empty], 4, "no question in it"),
        "another's tokeniser": ([mismatched, *asked], 4, "the tokeniser does not match"),
        "bad vectors": ([ragged, *asked], 4, "2 lines left out: 1 without 2 numbers (line 2), 1 not numbers (line 3)"),
        "no question known": ([other, *asked], 4, "no question that the model knows"),
        "empty intersection": ([good, other, *asked], 4, "no question that all models know"),
        "same model twice": ([good, good, *asked], 2, "good.txt is named twice"),
        "no home": (["~nosuchuser/vectors.txt", *asked], 3, "no such file or folder"),
        "questions of no home": ([good, "--questions", "~nosuchuser/q"], 3, "no such file or folder"),
        "questions too long": ([good, "--questions", "q" * 300], 3, "no such file or folder"),
        "draws": ([good, *asked, "--draws", 10**12], 2, "draws is 1000000000000, expected from 0 to"),
        "limit": ([good, *asked, "--limit", 0], 2, "limit is 0"),
        "k too large": ([good, "--questions", questions, "--top-k", 7], 2, "top-k is 7, expected from 1 to 6"),
        "k too small": ([good, "--questions", questions, "--top-k", 0], 2, "top-k is 0"),
        "memory": ([good, *asked, "--memory", "lots"], 2, "is no amount of memory"),
        "too little memory": ([good, *asked, "--memory", "1kB"], 2, "memory is 1,000 bytes, expected at least"),
        "method": ([good, *asked, "--method", "4cosadd"], 2, "Invalid value for '--method'"),
        "device": ([good, *asked, "--device", "tpu"], 2, "device 'tpu' is not here"),
        "output format": ([good, *asked, "-o", folder / "out.docx"], 2, "no such format"),
        "output twice": ([good, *asked, *("-o", folder / "o.csv") * 2], 2, "given twice"),
        "published": ([good, *asked, "--published"], 2, "leave out --published"),
        "composing vectors": ([good, *asked, "--compose", "mean"], 2, "has no tokeniser"),
        "output of vectors": ([good, *asked, "--table", "output"], 2, "one table only"),
    }  # fmt: skip


def test_bad_input_ends_in_one_line(inside: Command, tmp_path: Path) -> None:
    for name, (arguments, code, message) in bad_inputs(tmp_path).items():
        results = [] if any(argument == "-o" for argument in arguments) else ["-o", tmp_path / "result.csv"]
        run = inside("analogy", *arguments, *results)
        assert run.returncode == code, (name, run.stderr)
        assert message in run.stderr, (name, run.stderr)
        assert len(run.stderr.splitlines()) == 1, name
        assert run.stderr.startswith("attngeo: "), name
        assert run.stdout == "", name
    assert not [path for path in tmp_path.iterdir() if path.name.startswith((".", "result", "o."))]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nearest", "demo:minilm", "king", "man"], 2, "is no sum of words"),
        (["nearest", "demo:minilm", "king", "-"], 2, "ends without a word"),
        (
            ["nearest", "demo:minilm", "kingq"],
            2,
            "does not know 'kingq'; did you mean 'king'?; --compose mean makes it of 2 tokens",
        ),
        (["nearest", "demo:minilm", "king", "-", "king"], 2, "cancel out"),
        (["nearest", "demo:minilm", "1990"], 2, "does not know '1990' as a word"),
        (["nearest", "demo:minilm", "king", "--top-k", "99999"], 2, "top-k is 99999, expected from 1 to"),
        (["cbow", "none.txt", "-o", "v.kv"], 3, "none.txt: no such file"),
        (["cbow", os.devnull, "-o", "v.docx"], 2, "no such format"),
        (["cbow", "none.txt", "-o", "v.kv", "--epochs", "0"], 2, "epochs is 0"),
    ],
)
def test_bad_sums_and_texts(inside: Command, tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    run = inside(*arguments, cwd=tmp_path)
    assert run.returncode == code, run.stderr
    assert message in run.stderr
    assert len(run.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())
