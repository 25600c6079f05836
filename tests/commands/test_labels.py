"""Labels of models, tables for papers and summaries, as commands write and print them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pandas as pd
import pytest
from support.messages import assert_fails, assert_states

from attngeo.bounds.names import escape_markdown

Run = Callable[..., CompletedProcess[str]]
BOTH = ["demo:encoder", "demo:decoder"]
LABELS = ["--label", "demo:encoder=Enc & co", "--label", "demo:decoder=Dec"]


@pytest.mark.parametrize(
    ("command", "models", "shown"),
    [
        ("score", BOTH, ["Enc & co", "Dec"]),
        ("compare", BOTH, ["Enc & co", "Dec"]),
        ("positions", BOTH, ["Enc & co", "Dec"]),
        ("lineage", BOTH, ["Enc & co", "Dec"]),
        ("compose", BOTH[:1], ["Enc & co"]),
        ("mirrors", BOTH, ["Enc & co", "Dec"]),
    ],
)
def test_labels_name_models_for_people_and_references_for_programs(
    command: str, models: list[str], shown: list[str], inside: Run, tmp_path: Path
) -> None:
    labels = LABELS[: 2 * len(models)]
    files = [tmp_path / f"t.{suffix}" for suffix in ("csv", "md", "html")]
    written = [part for path in files for part in ("-o", path)]
    done = inside(command, *models, *labels, *written, "-q")
    assert done.returncode == 0, done.stderr
    csv, markdown, page = (path.read_text() for path in files)
    page = page.partition("<h2>")[0]
    for name in shown:
        assert name in done.stdout
        assert escape_markdown(name) in markdown
        assert name.replace("&", "&amp;") in page
        assert name not in csv
    for model in models:
        assert model in csv
        assert model not in done.stdout
        assert model not in markdown
        assert model not in page


def test_formats_on_stdout_follow_the_files(inside: Run) -> None:
    asked = ["score", "demo:encoder", "--label", "demo:encoder=Enc", "-q", "--format"]
    assert "demo:encoder" in inside(*asked, "json").stdout
    assert "Enc" not in inside(*asked, "csv").stdout
    assert "| Enc " in inside(*asked, "markdown").stdout


def test_labels_are_in_figures(inside: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    done = inside("plot", "layers", *BOTH, *LABELS, "-o", path)
    assert done.returncode == 0, done.stderr
    names = {trace.get("name") for trace in json.loads(path.read_text())["data"]}
    assert {"Enc &amp; co", "Dec"} <= names
    for arguments in (["plot", "matrix"], ["score"]):
        of = [*arguments, "demo:encoder", "--label", "demo:encoder=Enc"]
        assert inside(*of, "--plot" if arguments == ["score"] else "-o", path, "-q").returncode == 0
        assert json.loads(path.read_text())["layout"]["title"]["text"].startswith("Enc: ")


def test_the_name_of_a_training_labels_its_checkpoints(inside: Run, tmp_path: Path) -> None:
    rows = pd.DataFrame({"model": ["runs/a/checkpoint-0", "runs/a/checkpoint-9", "runs/b-step0", "runs/b-step9"]})
    rows = rows.assign(stack="decoder", layer=0, head=None, d_model=4, symmetry=0.1, directionality=0.1)
    rows.to_csv(tmp_path / "s.csv", index=False)
    path = tmp_path / "a.json"
    labels = ["--label", "runs/a=Our A", "--label", "runs/b=Our B"]
    done = inside("plot", "trajectory", tmp_path / "s.csv", *labels, "-o", path)
    assert (done.returncode, done.stderr) == (0, "")
    names = {trace["name"] for trace in json.loads(path.read_text())["data"] if trace.get("showlegend", True)}
    assert {name for name in names if name} == {"Our A", "Our B"}


@pytest.mark.parametrize(
    "command", [["score"], ["compare", "demo:decoder"], ["compose"], ["positions"], ["plot", "layers"]]
)
def test_a_label_of_no_model_is_refused(command: list[str], inside: Run, tmp_path: Path) -> None:
    done = inside(*command, "demo:encoder", "--label", "demo:encodr=A", "-o", tmp_path / "a.json", cwd=tmp_path)
    assert_fails(done, 2)
    assert_states(done.stderr, "--label", "demo:encodr", "demo:encoder")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", [["--stack", "decoder"], ["--where", "model=demo:decoder"]])
def test_a_label_of_a_model_that_is_not_drawn_is_no_mistake(option: list[str], inside: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    done = inside("plot", "layers", *BOTH, *LABELS, *option, "-o", path, "-q")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(path.read_text())["layout"]["title"]["text"].startswith("Dec: ")
    mistaken = inside("plot", "layers", *BOTH, *option, "--label", "demo:encodr=A", "-o", path)
    assert_fails(mistaken, 2)
    assert_states(mistaken.stderr, "demo:encodr", "demo:encoder")


def test_a_kind_without_models_has_no_labels(inside: Run) -> None:
    done = inside("plot", "training", "run", "--label", "a=A", "-o", "a.json")
    assert done.returncode == 2
    assert_states(done.stderr, "--label", "training")


def test_a_table_for_a_paper_has_few_columns_or_those_that_are_named(inside: Run, tmp_path: Path) -> None:
    path = tmp_path / "t.tex"

    def heads(*arguments: str) -> str:
        assert inside(*arguments, "-o", path, "-q").returncode == 0
        return path.read_text().partition("\\toprule\n")[2].partition(" \\\\")[0]

    assert heads("score", "demo:encoder") == "layer & symmetry & directionality & symmetry z"
    assert heads("score", *BOTH).startswith("model & stack & layer & symmetry")
    assert heads("score", *BOTH, "--columns", "layer,frobenius_norm") == "layer & frobenius norm"
    assert heads("positions", "demo:encoder").startswith("stack & layer & head & ")
    assert heads("lineage", *BOTH) == "other & verdict & similarity & p value & similarity z & layers"
    assert heads("mirrors", "demo:encoder").startswith("layer & head & other layer & other head & mirror")
    assert heads("compose", "demo:encoder").startswith("kind & from layer & from head")


def test_a_summary_is_a_row_for_each_stack(inside: Run, tmp_path: Path) -> None:
    files = {suffix: tmp_path / f"s.{suffix}" for suffix in ("csv", "tex", "md")}
    written = [part for path in files.values() for part in ("-o", path)]
    done = inside("score", *BOTH, "--summary", *LABELS, *written, "-q")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 3
    rows = pd.read_csv(files["csv"])
    assert rows["model"].tolist() == BOTH
    whole = pd.read_csv(io.StringIO(inside("score", "demo:encoder", "--format", "csv", "-q").stdout))
    assert rows["symmetry_median"][0] == pytest.approx(whole["symmetry"].median())
    assert rows["heads"].tolist() == [12, 12]
    text = files["tex"].read_text()
    assert r"model & stack & layers & symmetry & directionality \\" in text
    assert f"Enc \\& co & encoder & 3 & {rows['symmetry_median'][0]:.3f} [" in text
    assert "| Dec " in files["md"].read_text()
    one = inside("score", *BOTH, "--summary", "--columns", "model,symmetry_median", "--format", "csv", "-q").stdout
    assert one.splitlines()[0] == "model,symmetry_median"
    of_score = ["symmetry_lower", "symmetry_median", "symmetry_upper"]
    mistyped = inside("score", *BOTH, "--summary", "--sort", "symetry").stderr
    assert "--sort: unknown column 'symetry'; did you mean symm" in mistyped
    assert_states(inside("score", *BOTH, "--summary", "--columns", "norm").stderr, "--columns", *of_score)
    # A score stands for its statistics, in the order of a table in LaTeX, and is sorted by its median.
    chosen = ["--columns", "model,symmetry", "--sort", "-symmetry", "--format", "csv", "-q"]
    named = pd.read_csv(io.StringIO(inside("score", *BOTH, "--summary", *chosen).stdout))
    assert list(named) == ["model", *of_score]
    assert named["symmetry_median"].is_monotonic_increasing
    assert len({*named["model"]}) == 2


def test_a_summary_of_heads_has_their_statistics(inside: Run, tmp_path: Path) -> None:
    done = inside("score", "demo:encoder", "--per-head", "--summary", "-o", tmp_path / "s.csv", "-q")
    assert done.returncode == 0, done.stderr
    whole = pd.read_csv(io.StringIO(inside("score", "demo:encoder", "--per-head", "--format", "csv", "-q").stdout))
    expected = whole.loc[whole["head"].notna(), "symmetry"].median()
    assert pd.read_csv(tmp_path / "s.csv")["heads_symmetry_median"][0] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("command", "column"), [("compare", "heads_change_median"), ("positions", "heads_previous_token_median")]
)
def test_changes_and_positions_have_summaries_too(command: str, column: str, inside: Run, tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    done = inside(command, *BOTH, "--summary", "-o", path, "-o", tmp_path / "s.tex", "-q")
    assert done.returncode == 0, done.stderr
    rows = pd.read_csv(path)
    per_head = ["--per-head"] if command == "compare" else []
    whole = pd.read_csv(io.StringIO(inside(command, *BOTH, *per_head, "--format", "csv", "-q").stdout))
    heads = whole[whole["head"].notna()]
    first = heads[heads["model"] == rows["model"][0]]
    assert rows[column][0] == pytest.approx(first[column.removeprefix("heads_").removesuffix("_median")].median())
    assert "[" in (tmp_path / "s.tex").read_text()
    assert "demo:encoder" in inside(command, "demo:encoder", *BOTH[1:], "--summary", "-q").stdout
