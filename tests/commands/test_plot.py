"""`attngeo plot`, `score --plot` and `score --fail-if` as they are used."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from support.messages import assert_states
from support.vectors import sample_google

Run = Callable[..., CompletedProcess[str]]


def test_a_figure_of_a_model_and_of_its_results(inside: Run, tmp_path: Path) -> None:
    done = inside("plot", "heatmap", "demo:minilm", "-o", tmp_path / "a.html", "-o", tmp_path / "a.json")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "Plotly.newPlot" in (tmp_path / "a.html").read_text()
    scored = inside("score", "demo:minilm", "--per-head", "-o", tmp_path / "s.csv", "--plot", tmp_path / "c.json", "-q")
    assert scored.returncode == 0, scored.stderr
    done = inside("plot", "heatmap", tmp_path / "s.csv", "-o", tmp_path / "b.json")
    assert done.returncode == 0, done.stderr
    first, *others = (json.loads((tmp_path / f"{name}.json").read_text()) for name in "abc")
    assert others == [first, first]


def test_options_reach_the_figure(
    inside: Run, tmp_path: Path, saved: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(*arguments: object) -> Any:
        done = inside("plot", *arguments, "-o", tmp_path / "figure.json")
        assert done.returncode == 0, done.stderr
        return json.loads((tmp_path / "figure.json").read_text())

    title = draw("matrix", "demo:minilm", "--layer", 1, "--head", 3)["layout"]["title"]["text"]
    assert "head 3 of layer 1" in title
    figure = draw("size", "demo:minilm", "--score", "directionality", "--no-published")
    assert len(figure["data"]) == 1
    assert "directionality" in figure["layout"]["yaxis"]["title"]["text"]
    stacks = draw("layers", saved("t5"))["data"]
    only = draw("layers", saved("t5"), "--stack", "decoder")["data"]
    assert 0 < len(only) < len(stacks)
    assert "(decoder)" in draw("matrix", saved("t5"), "--stack", "decoder")["layout"]["title"]["text"]
    assert len(draw("heatmap", "demo:minilm", "--where", "layer=2")["data"][1]["y"]) == 1
    assert len(draw("heatmap", "demo:minilm", "--where", "layer=2", "--where", "head=3")["data"]) == 1
    questions = sample_google()
    monkeypatch.setattr("attngeo.analogies.questions.google_text", lambda: questions)
    analogies = draw("analogies", "demo:minilm", "--where", "level=type")
    assert analogies["layout"]["yaxis"]["categoryarray"] == ["semantic", "syntactic"]


@pytest.mark.parametrize(("kind", "option"), [("heatmap", "--layer"), ("matrix", "--score"), ("training", "--stack")])
def test_options_of_other_kinds_are_refused(inside: Run, kind: str, option: str) -> None:
    value = {"--layer": "2", "--score": "directionality", "--stack": "encoder"}[option]
    done = inside("plot", kind, "demo:minilm", option, value, "-o", "a.html")
    assert done.returncode == 2
    assert_states(done.stderr, option, kind)


BAD = [
    (["plot", "maps", "demo:minilm", "-o", "a.html"], 2, "heatmap, layers, heads"),
    (
        ["plot", "heatmap", "demo:minilm", "-o", "a.gif"],
        2,
        "a.gif",
    ),
    (["plot", "heatmap", "none.csv", "-o", "a.html"], 3, "none.csv"),
    (["plot", "heatmap", "demo:none", "-o", "a.html"], 3, "demo:none"),
    (["plot", "heatmap", "demo:minilm", "-o", "a.png", "--width", "5"], 2, "--width"),
    (["plot", "matrix", "demo:minilm", "--head", "99", "-o", "a.html"], 2, "head 99"),
    (["plot", "heatmap", "demo:minilm", "--where", "layer", "-o", "a.html"], 2, "COLUMN=VALUE"),
    (["plot", "matrix", "demo:minilm", "--where", "layer=1", "-o", "a.html"], 2, "matrix"),
    (["plot", "heatmap", "demo:minilm", "--score", "beauty", "-o", "a.html"], 2, "symmetry, directionality"),
    (["plot", "heatmap", "demo:minilm", "--where", "layer=9", "-o", "a.html"], 2, "0, 1, 2"),
    (["plot", "heatmap", "demo:minilm", "--where", "layr=9", "-o", "a.html"], 2, "layer"),
    (["score", "demo:minilm", "--plot", "a.gif"], 2, "a.gif"),
    (["score", "demo:minilm", "--fail-if", "symmetry < 1"], 2, "'symmetry'"),
    (["score", "demo:minilm", "--fail-if", "exit()"], 2, "exit()"),
]


@pytest.mark.parametrize(
    ("arguments", "code", "message"), BAD, ids=[" ".join(bad[0][:2]) + f" {i}" for i, bad in enumerate(BAD)]
)
def test_bad_input_is_one_line_and_leaves_nothing(
    arguments: list[str], code: int, message: str, inside: Run, tmp_path: Path
) -> None:
    done = inside(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_without_an_output_the_page_has_the_name_of_the_kind(inside: Run, tmp_path: Path) -> None:
    done = inside("plot", "heatmap", "demo:encoder", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert_states(done.stderr, "heatmap.html")
    assert [path.name for path in tmp_path.iterdir()] == ["heatmap.html"]


def test_conditions_decide_the_exit_code(inside: Run) -> None:
    held = inside("score", "demo:minilm", "--fail-if", "symmetry.median < 0.2", "-q", "--format", "csv")
    assert (held.returncode, held.stderr) == (0, "")
    options = ["--fail-if", "symmetry.median < 0.2", "--fail-if", "layers != 3", "--format", "csv"]
    failed = inside("score", "demo:minilm", "demo:decoder", *options)
    assert failed.returncode == 1
    assert failed.stdout.count("\n") == 1 + 6 + 3  # the results all the same
    lines = failed.stderr.splitlines()
    assert len(lines) == 2
    assert_states(lines[0], "demo:decoder", "decoder", "symmetry.median", "symmetry.median < 0.2")
    assert re.search(r"\b0\.0\d+", lines[0])
    assert_states(lines[1], "demo:minilm", "encoder", "layers", 6)
