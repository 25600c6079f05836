"""`attngeo analogy --explain` and its figure, as a user runs them."""

from __future__ import annotations

import csv
import io
import json
from itertools import permutations
from pathlib import Path

import pytest
from conftest import Command
from support.messages import assert_fails, assert_states

from attngeo.errors import AttnGeoError, DataError, DataUnavailableError, QuestionError
from attngeo.papers.wibisono2023 import corpus as small_corpora
from attngeo.papers.wibisono2023.analogies import EXPLANATION_COLUMNS


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(" ".join(words) for words in permutations(("red", "green", "blue", "grey", "x", "y"), 4)))
    (tmp_path / "questions.txt").write_text(
        ": colours\nred green blue grey\nred green grey blue\nred green nothing x\n"
    )
    return path


def test_a_table_rows_and_a_figure(
    inside: Command, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_corpora, "MOST_EPOCHS", 20)
    given = ("analogy", "--explain", corpus, "--questions", tmp_path / "questions.txt", "--dimensions", 4)
    run = inside(*given, "-o", tmp_path / "rows.csv", "-o", tmp_path / "rows.parquet")
    assert run.returncode == 0, run.stderr
    assert_states(run.stderr, "note", 1, 3)
    assert max(map(len, run.stdout.splitlines())) <= 80
    assert "red : green = blue : grey" in " ".join(run.stdout.split())
    assert run.stdout.index("cbow") < run.stdout.index("attention")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "rows.csv").read_text())))
    assert len(rows) == 4
    assert tuple(rows[0]) == EXPLANATION_COLUMNS
    printed = inside(*given, "--format", "json", "-q")
    assert printed.stderr == ""
    assert [row["cosine"] for row in json.loads(printed.stdout)] == [float(row["cosine"]) for row in rows]
    figure = inside("plot", "paraphrases", tmp_path / "rows.parquet", "-o", tmp_path / "figure.json")
    assert figure.returncode == 0, figure.stderr
    drawn = json.loads((tmp_path / "figure.json").read_text())
    assert len(drawn["data"]) == 12  # six terms of two models
    assert {trace["name"] for trace in drawn["data"]} == {"cbow", "attention"}
    assert sum(trace["showlegend"] for trace in drawn["data"]) == 2
    one = inside("plot", "paraphrases", tmp_path / "rows.csv", "--where", "model=cbow", "-o", tmp_path / "figure.json")
    assert one.returncode == 0, one.stderr
    assert len(json.loads((tmp_path / "figure.json").read_text())["data"]) == 6


def test_words_at_positions_are_told_apart(
    inside: Command, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_corpora, "MOST_EPOCHS", 2)
    given = ("--questions", tmp_path / "questions.txt", "--dimensions", 4, "--positions", "--format", "csv", "-q")
    run = inside("analogy", "--explain", corpus, *given)
    assert (run.returncode, run.stderr) == (0, "")
    rows = list(csv.DictReader(io.StringIO(run.stdout)))
    assert len(rows) == 2 * 2 * 12  # models, questions, and pairs of four positions
    assert [rows[0][name] for name in ("a", "b", "c", "answer")] == ["red@1", "green@2", "blue@1", "grey@2"]


def test_terms_without_a_context_have_a_reason(
    inside: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_corpora, "MOST_EPOCHS", 2)
    (tmp_path / "corpus.txt").write_text("red green x\nblue grey y\nred green x\n")
    (tmp_path / "questions.txt").write_text(": colours\nred green blue grey\n")
    run = inside("analogy", "--explain", tmp_path / "corpus.txt", "--questions", tmp_path / "questions.txt")
    assert run.returncode == 0, run.stderr
    assert "larger corpus" in run.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "facts"),
    [
        (["--explain", "corpus.txt", "demo:minilm"], 2, ["--explain", "demo:minilm"]),
        (["--explain", "corpus.txt", "--method", "3cosmul"], 2, ["--method", "--explain"]),
        (["--explain", "corpus.txt", "--questions-output", "q.csv"], 2, ["--questions-output", "--explain"]),
        (["--explain", "corpus.txt", "--dimensions", "0"], 2, ["--dimensions", 0]),
        (["--explain", "corpus.txt", "-o", "corpus.txt"], 2, ["corpus.txt"]),
        (["--explain", "nowhere.txt"], DataUnavailableError, ["nowhere.txt"]),
        (["--explain", "corpus.txt"], QuestionError, ["corpus.txt", "--questions"]),
        (["demo:minilm", "--dimensions", "3"], 2, ["--dimensions", "--explain"]),
        (["demo:minilm", "--positions"], 2, ["--positions", "--explain"]),
        ([], 2, ["MODEL", "--explain"]),
    ],
)
def test_wrong_usage(
    inside: Command, corpus: Path, arguments: list[str], code: int | type[AttnGeoError], facts: list[str]
) -> None:
    before = {path.name: path.read_bytes() for path in corpus.parent.iterdir()}
    assert_fails(inside("analogy", *arguments, cwd=corpus.parent), code, *facts)
    assert {path.name: path.read_bytes() for path in corpus.parent.iterdir()} == before


def test_a_figure_of_something_else_is_refused(inside: Command, corpus: Path, tmp_path: Path) -> None:
    run = inside("plot", "paraphrases", "demo:minilm", "-o", tmp_path / "a.html")
    assert_fails(run, 2, "paraphrases", "demo:minilm", "--explain")
    run = inside("plot", "paraphrases", corpus.name, "-o", tmp_path / "a.html", cwd=corpus.parent)
    assert_fails(run, 2, "paraphrases", corpus.name, "--explain")
    (tmp_path / "scores.csv").write_text("model,layer,symmetry\nm,0,0.5\n")
    run = inside("plot", "paraphrases", tmp_path / "scores.csv", "-o", tmp_path / "a.html")
    assert_fails(run, DataError, tmp_path / "scores.csv", "symmetry", "--explain")
    assert not (tmp_path / "a.html").exists()
