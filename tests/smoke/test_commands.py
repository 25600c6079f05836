"""Each command once, with few asserts: `make lowest` runs this with the lowest versions of the libraries and the wheel.

Together the tests use each library of pyproject.toml and the data files of the package. The other tests say whether
results are right in detail.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from conftest import Command
from support.browser import needs_browser
from support.runs import write_config, write_text as write_training_text
from support.vectors import checkpoint, planted, sentence_piece, write_questions, write_text

import attngeo

RECIPE = """
title = "Smoke"

[[results]]
name = "scores"
command = "score"
models = ["demo:encoder"]

[[section]]
title = "Scores"
text = "Of *one* model."
figures = [{ kind = "layers", of = "scores", score = "symmetry" }]
tables = [{ of = "scores", show = "summary" }]

[[check]]
of = "scores"
fail_if = "symmetry.median < 0.1"
"""


def run_json(attngeo: Command, *arguments: object) -> object:
    done = attngeo(*arguments, "--format", "json", "-q")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_the_installed_package_has_every_file() -> None:
    source, installed = Path(__file__).parents[2] / "attngeo", Path(attngeo.__file__).parent
    files = {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
    missing = {path for path in files if not (installed / path).is_file() and path.suffix not in (".md", ".pyc")}
    assert missing == set()


def test_score_and_every_file_format(attngeo: Command, tmp_path: Path) -> None:
    names = ["t.csv", "t.json", "t.jsonl", "t.parquet", "t.md", "t.tex", "t.html"]
    outputs = [part for name in names for part in ("-o", tmp_path / name)]
    rows = pd.DataFrame(run_json(attngeo, "score", "demo:minilm", *outputs))
    golden = pd.read_csv(Path(__file__).parents[1] / "golden" / "minilm.csv", comment="#")
    for score in ("symmetry", "directionality"):
        assert rows[score].tolist() == pytest.approx(golden[score].tolist(), abs=2e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    table = attngeo("score", "demo:minilm", "--per-head")
    assert (table.returncode, table.stderr) == (0, "")


def test_analogies_of_a_checkpoint_of_vectors_and_of_cbow(attngeo: Command, tmp_path: Path) -> None:
    embedding, lines = planted()
    vectors = write_text(tmp_path / "vectors.txt", embedding.labels, embedding.matrix)
    questions = write_questions(tmp_path / "questions.txt", {"planted": lines})
    rows = pd.DataFrame(run_json(attngeo, "analogy", vectors, "--questions", questions))
    assert rows["accuracy"].iloc[-1] == 1
    rows = pd.DataFrame(run_json(attngeo, "analogy", "demo:minilm", "--n-draws", 200, "--n-answers", 1))
    assert rows["known"].iloc[-1] == 11983
    (word,) = run_json(attngeo, "nearest", "demo:minilm", "king - man + woman", "--top", 1)
    assert word["word"] == "queen"
    text = tmp_path / "text.txt"
    text.write_text("the king and the queen saw a man and a woman\n" * 200)
    assert attngeo("cbow", text, "-o", tmp_path / "v.vec", "--dimensions", 10).returncode == 0
    assert len(run_json(attngeo, "nearest", tmp_path / "v.vec", "king", "--top", 3)) == 3


@pytest.mark.parametrize("file", ["tokenizer.model", "spiece.model"])
def test_analogies_of_a_sentencepiece_checkpoint(attngeo: Command, tmp_path: Path, file: str) -> None:
    folder = checkpoint(tmp_path / "model", 60, model_type="llama" if file == "tokenizer.model" else "t5")
    shutil.copy(sentence_piece(tmp_path), folder / file)
    assert len(run_json(attngeo, "nearest", folder, "king", "--top", 2, "--subwords", "mean", "--answers", "all")) == 2


def test_training_on_text_and_on_images(attngeo: Command, tmp_path: Path) -> None:
    config, text = write_config(tmp_path), write_training_text(tmp_path)
    small = ["--steps", 2, "--batch-size", 8, "--warmup", 1, "--log-every", 1, "-q"]
    done = attngeo(
        "pretrain", "--model", config, "--data", text, "--seq-len", 16, "--vocab-size", 120, *small,
        "-o", tmp_path / "run",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert pd.read_parquet(tmp_path / "run" / "geometry.parquet")["step"].max() == 2
    done = attngeo("pretrain", "--model", "vit-tiny", *small, "-o", tmp_path / "images")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(run_json(attngeo, "score", tmp_path / "images" / "model")) > 0


def test_a_table_of_ones_own(attngeo: Command, tmp_path: Path) -> None:
    rows = pd.DataFrame({"size": ["s", "m", "l", None] * 10, "mass": [0.5, 1.5, 2.5, 3.5] * 10, "y": [1, 1, 2, 2] * 10})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    model = tmp_path / "model"
    fit = ["tabular", "fit", tmp_path / "rows.csv", "--target", "y", "--epochs", "20", "--lr", "0.02", "--save", model]
    done = attngeo(*fit, "--methods", "atn,lr", "-q")
    assert (done.returncode, done.stderr) == (0, "")
    predicted = attngeo("tabular", "predict", model, tmp_path / "rows.csv", "--format", "csv")
    assert [line.split(",")[1] for line in predicted.stdout.splitlines()[1:5]] == ["1", "1", "2", "2"]


def test_an_experiment_on_sequences(attngeo: Command) -> None:
    rows = pd.DataFrame(run_json(attngeo, "efa", "run", "synthetic", "--epochs", 1, "--direction", "bi"))
    assert {"bayes", "efa", "fm"} <= set(rows["model"])
    assert rows["value"].notna().all()


def test_the_statements_of_a_theory(attngeo: Command) -> None:
    rows = run_json(attngeo, "theory", "lemma-1", "theorem-2")
    assert len(rows) == 4
    assert all(row["holds"] for row in rows)


def test_figures_and_a_report(attngeo: Command, tmp_path: Path) -> None:
    page = tmp_path / "figure.html"
    assert attngeo("plot", "heatmap", "demo:encoder", "-o", page, "-q").returncode == 0
    assert "plotly" in page.read_text("utf-8")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    done = attngeo("report", recipe, "-o", tmp_path / "report", "-q")
    assert (done.returncode, done.stderr) == (0, "")
    assert "<em>one</em>" in (tmp_path / "report" / "index.html").read_text("utf-8")


@needs_browser
def test_an_image(attngeo: Command, tmp_path: Path) -> None:
    picture = tmp_path / "figure.png"
    done = attngeo("plot", "layers", "demo:encoder", "-o", picture, "-q")
    assert (done.returncode, done.stderr) == (0, "")
    assert picture.read_bytes().startswith(b"\x89PNG")
