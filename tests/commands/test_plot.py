"""`attngeo plot`, `score --plot` and `score --fail-if` as they are used."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pandas as pd
import pytest
from support.messages import assert_fails, assert_states
from support.vectors import sample_google

import attngeo
from attngeo.errors import AttnGeoError, DataError, DataUnavailableError, ModelNotFoundError, UsageError

Run = Callable[..., CompletedProcess[str]]
ENCODER = Path(attngeo.__file__).parent / "demos/encoder"


def test_a_figure_of_a_model_and_of_its_results(inside: Run, tmp_path: Path) -> None:
    done = inside("plot", "heatmap", "demo:encoder", "-o", tmp_path / "a.html", "-o", tmp_path / "a.json")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "Plotly.newPlot" in (tmp_path / "a.html").read_text()
    scored = inside(
        "score", "demo:encoder", "--per-head", "-o", tmp_path / "s.csv", "--plot", tmp_path / "c.json", "-q"
    )
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

    title = draw("matrix", "demo:encoder", "--layer", 1, "--head", 3)["layout"]["title"]["text"]
    assert "head 3 of layer 1" in title
    assert draw("heads", "demo:encoder", "--title", "Mine")["layout"]["title"]["text"] == "Mine"
    figure = draw("size", "demo:encoder", "--score", "directionality", "--no-published")
    assert len(figure["data"]) == 1
    assert "directionality" in figure["layout"]["yaxis"]["title"]["text"]
    stacks = draw("layers", saved("t5"))["data"]
    only = draw("layers", saved("t5"), "--stack", "decoder")["data"]
    assert 0 < len(only) < len(stacks)
    assert "(decoder)" in draw("matrix", saved("t5"), "--stack", "decoder")["layout"]["title"]["text"]
    of_layer = draw("heatmap", "demo:encoder", "--where", "layer=2")["data"]
    assert [len(trace["y"]) for trace in of_layer if trace["xaxis"] == "x2"] == [1]
    assert len(draw("heatmap", "demo:encoder", "--where", "layer=2", "--where", "head=3")["data"]) == 1
    questions = sample_google()
    monkeypatch.setattr("attngeo.analogies.questions.google_text", lambda: questions)
    analogies = draw("analogies", "demo:minilm", "--where", "level=type")
    assert analogies["layout"]["yaxis"]["categoryarray"] == ["semantic", "syntactic"]
    noted = inside("plot", "analogies", "demo:minilm", "demo:encoder", "-o", tmp_path / "both.json")
    assert "2 of 820 questions are known to all models" in noted.stderr


def test_rows_of_heads_that_are_missing_are_advised_in_words_of_the_command_line(inside: Run, tmp_path: Path) -> None:
    rows = pd.DataFrame({"model": ["a@step0", "a@step1"], "stack": "decoder", "layer": 0, "head": None, "d_model": 4})
    rows.assign(symmetry=0.1, directionality=0.1).to_csv(tmp_path / "s.csv", index=False)
    done = inside("plot", "trajectory", tmp_path / "s.csv", "--over", "heads", "-o", tmp_path / "a.json")
    assert_fails(done, DataError, tmp_path / "s.csv", "attngeo score --per-head", "choose another --over")


def test_a_pattern_in_quotes_is_what_matches_it(inside: Run, tmp_path: Path) -> None:
    for step in (0, 20, 100):
        shutil.copytree(ENCODER, tmp_path / f"run/checkpoint-{step}")
    path = tmp_path / "a.json"
    for pattern in ("run/*", "./run/checkpoint-*"):
        done = inside("plot", "layers", pattern, "-o", path, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        names = [trace["name"] for trace in json.loads(path.read_text())["data"] if trace.get("showlegend")]
        assert [name.rpartition("-")[2] for name in names] == ["0", "20", "100"]
    assert_fails(inside("plot", "layers", "other/*", "-o", path, cwd=tmp_path), ModelNotFoundError, "other/*")


def test_a_figure_that_is_higher_than_asked_says_so(inside: Run, tmp_path: Path) -> None:
    models = ["demo:minilm", "demo:encoder", "demo:decoder"]
    asked = ["plot", "heatmap", *models, "--width", 600, "--height", 300, "-o"]
    assert_states(inside(*asked, tmp_path / "a.html").stderr, "300", "357 pixels high")
    assert "357" in (tmp_path / "a.html").read_text()
    assert "pixels" not in inside(*asked, tmp_path / "a.json").stderr  # plotly's own file keeps the height
    assert "pixels" not in inside("plot", "heatmap", "demo:encoder", "--height", 350, "-o", tmp_path / "a.html").stderr


def test_a_size_on_paper_reaches_the_figure(inside: Run, tmp_path: Path) -> None:
    asked = ["--width", "3.4in", "--height", "172.8pt", "--font-size", "8pt", "--title", ""]
    done = inside("plot", "layers", "demo:encoder", *asked, "-o", tmp_path / "a.json")
    assert (done.returncode, done.stderr) == (0, "")
    layout = json.loads((tmp_path / "a.json").read_text())["layout"]
    assert (layout["width"], layout["height"]) == (326.4, 230.4)
    assert layout["font"]["size"] == pytest.approx(32 / 3)
    assert layout["title"]["text"] == ""
    models = ["demo:minilm", "demo:encoder", "demo:decoder"]
    higher = inside("plot", "heatmap", *models, "--width", "3.4in", "--height", "2.4in", "-o", tmp_path / "a.html")
    assert_states(higher.stderr, "2.4in", "3.72in high")
    # The height that a width on paper, or the kind, gives is no less an answer to the question.
    higher = inside("plot", "heatmap", *models, "--width", "86mm", "-o", tmp_path / "a.html")
    assert_states(higher.stderr, "60.2mm", "94.5mm high")


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
    (["plot", "heatmap", "none.csv", "-o", "a.html"], DataUnavailableError, "none.csv"),
    (["plot", "heatmap", "demo:none", "-o", "a.html"], ModelNotFoundError, "demo:none"),
    (["plot", "heatmap", "demo:minilm", "-o", "a.png", "--width", "5"], 2, "--width"),
    (["plot", "heatmap", "demo:minilm", "-o", "a.pdf", "--width", "3.4inch"], 2, "245pt"),
    (["plot", "heatmap", "demo:minilm", "-o", "a.pdf", "--font-size", "8em"], 2, "--font-size"),
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
    arguments: list[str], code: int | type[AttnGeoError], message: str, inside: Run, tmp_path: Path
) -> None:
    done = inside(*arguments, cwd=tmp_path)
    assert_fails(done, code)
    assert message in done.stderr
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
    *passed, first, second = failed.stderr.splitlines()
    assert len(passed) == 2
    assert_states(passed[0], "passed", "demo:minilm", "encoder", "symmetry.median < 0.2")
    assert re.search(r"symmetry.median is 0\.[45]", passed[0])
    assert_states(passed[1], "passed", "demo:decoder", "decoder", "layers is 3")
    assert_states(first, "failed", "demo:decoder", "decoder", "symmetry.median", "symmetry.median < 0.2")
    assert re.search(r"\b0\.0\d+", first)
    assert_states(second, "failed", "demo:minilm", "encoder", "layers", 6)


def test_a_condition_says_with_heads_what_it_is_over(inside: Run) -> None:
    unclear = inside("score", "demo:minilm", "--per-head", "--fail-if", "symmetry.min < -0.2")
    assert unclear.returncode == 2
    assert_states(unclear.stderr, "--per-head", "layers.symmetry.min", "heads.symmetry.min")
    checks = ["--fail-if", "heads.symmetry.min < -0.2", "--fail-if", "layers.symmetry.min < -0.2"]
    clear = inside("score", "demo:minilm", "--per-head", *checks, "--format", "csv")
    assert clear.returncode == 1
    assert [line.split(":")[1].strip() for line in clear.stderr.splitlines()] == ["check passed", "check failed"]


def test_checks_are_a_table(inside: Run, tmp_path: Path) -> None:
    path = tmp_path / "checks.csv"
    conditions = ("--fail-if", "layers < 1", "--fail-if", "layers > 1")
    run = inside("score", "demo:encoder", "demo:decoder", *conditions, "--checks", path, "-q")
    assert run.returncode == 1
    rows = pd.read_csv(path)
    assert rows["check"].tolist() == ["failed", "failed", "passed", "passed"]  # as a summary may be cut
    assert rows["model"].tolist() == ["demo:encoder", "demo:decoder"] * 2
    assert rows["stack"].tolist() == ["encoder", "decoder"] * 2
    assert rows["fails_if"].tolist() == ["layers > 1"] * 2 + ["layers < 1"] * 2
    assert set(rows["values"]) == {"layers is 3"}
    assert_fails(inside("score", "demo:encoder", "--checks", path), 2, "--checks", "--fail-if")


def test_scores_are_compared_with_a_baseline(inside: Run, tmp_path: Path) -> None:
    table = tmp_path / "earlier.json"
    assert inside("score", "demo:encoder", "--per-head", "-o", table, "-q").returncode == 0
    condition = "symmetry.median != baseline.symmetry.median or heads.symmetry.max > baseline.heads.symmetry.max"
    same = inside("score", "demo:encoder", "--baseline", table, "--fail-if", condition)
    assert same.returncode == 0, same.stderr


def test_paths_of_the_only_model_may_differ_from_those_of_the_baseline(inside: Run, tmp_path: Path) -> None:
    table = tmp_path / "earlier.csv"
    for run in ("first", "second"):
        shutil.copytree(ENCODER, tmp_path / run / "model")
    assert inside("score", tmp_path / "first/model", "-o", table, "-q").returncode == 0
    condition = "abs(symmetry.median - baseline.symmetry.median) > 0.05"
    again = inside("score", tmp_path / "second/model", "--baseline", table, "--fail-if", condition)
    assert again.returncode == 0, again.stderr
    assert_states(again.stderr, "check passed", f"baseline model: {tmp_path / 'first/model'}")


def test_a_model_that_the_baseline_lacks_is_no_failed_check(inside: Run, tmp_path: Path) -> None:
    """It is found before the work, and a stack after it."""
    table = tmp_path / "earlier.csv"
    assert inside("score", "demo:encoder", "-o", table, "-q").returncode == 0
    condition = ("--baseline", table, "--fail-if", "symmetry.median < baseline.symmetry.median - 1")
    for models in (("demo:encoder", "demo:decoder"), ("demo:encoder", "demo:none")):
        refused = inside("score", *models, *condition)
        assert_fails(refused, UsageError, table, models[1], "demo:encoder", "-o")
    file = tmp_path / "scores.csv"
    other = inside("score", "demo:decoder", *condition, "-o", file, "-q")
    assert other.returncode == 2
    assert_states(other.stderr, table, "stack", "decoder", "encoder")
    assert "check failed" not in other.stderr
    assert len(pd.read_csv(file)) == 3


@pytest.mark.parametrize(
    ("arguments", "code", "fact"),
    [
        (["--baseline", "none.csv", "--fail-if", "baseline.layers > 1"], DataUnavailableError, "none.csv"),
        (["--baseline", "{table}"], 2, "--baseline"),
        (["--fail-if", "baseline.layers > 1"], 2, "--baseline"),
        (["--baseline", "{table}", "--fail-if", "baseline.layers > 1", "-o", "{table}"], 2, "input"),
        (["--baseline", "model.safetensors", "--fail-if", "baseline.layers > 1"], DataError, "results file"),
    ],
)
def test_a_baseline_that_cannot_be_compared(
    arguments: list[str], code: int | type[AttnGeoError], fact: str, inside: Run, tmp_path: Path
) -> None:
    table = tmp_path / "earlier.csv"
    table.write_text("model,stack,layer,head,symmetry\ndemo:encoder,encoder,0,,0.5\n")
    (tmp_path / "model.safetensors").touch()
    done = inside("score", "demo:encoder", *(argument.format(table=table) for argument in arguments), cwd=tmp_path)
    assert_fails(done, code, fact)
