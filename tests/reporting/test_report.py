"""Recipes, the folder of a report, and what becomes of bad ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import attngeo
from attngeo import tables
from attngeo.errors import AttnGeoError, DataError, DataUnavailableError, ModelNotFoundError, OutputError
from attngeo.reporting import read_recipe, report
from attngeo.reporting.blocks import beside_published

RECIPE = """\
title = "Demo"
text = "A *report*."

[[results]]
name = "scores"
command = "score"
models = ["demo:encoder", "demo:decoder"]

[[section]]
title = "Layers"
figures = [{ kind = "layers", of = "scores" }]
tables = [{ of = "scores", show = "summary" }]

[[check]]
of = "scores"
models = ["demo:encoder"]
fail_if = "symmetry.median < 0.2"
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "demo.toml"
    path.write_text(RECIPE)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_report_holds_its_page_tables_and_provenance(recipe: Path, tmp_path: Path) -> None:
    made = report(recipe, tmp_path / "out")
    assert set(contents(tmp_path / "out")) == {
        "index.html", "report.md", "provenance.json", "tables/scores.csv", "tables/scores.parquet",
        "tables/scores-summary.csv", "tables/scores-summary.parquet",
    }  # fmt: skip
    rows = pd.read_parquet(tmp_path / "out/tables/scores.parquet")
    expected = [attngeo.score(f"demo:{name}", per_head=True) for name in ("encoder", "decoder")]
    assert rows["symmetry"].tolist() == pd.concat(expected)["symmetry"].tolist()
    provenance = json.loads((tmp_path / "out/provenance.json").read_text())
    assert provenance["command"] == "attngeo report demo.toml"
    assert provenance["software"]["attngeo"] == attngeo.__version__
    assert [each["model"] for each in provenance["results"]] == ["demo:encoder", "demo:decoder"]
    assert str(tmp_path) not in "".join(map(repr, contents(tmp_path / "out").values()))
    text = (tmp_path / "out/report.md").read_text()
    assert "**1 of 1 checks passed.**" in text
    assert "A *report*." in text
    assert [(check.model, check.failed) for check in made.checks] == [("demo:encoder", False)]


def test_the_same_inputs_give_the_same_bytes(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    first, second = (contents(report(recipe, tmp_path / name).folder) for name in ("a", "b"))
    assert first == second
    assert b"2023-11-14 22:13 UTC" in first["index.html"]


def test_an_unfinished_report_is_gone_on_with(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from attngeo import scoring

    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    asked: list[str] = []
    real = scoring.score

    def counted(model: Any, **options: Any) -> pd.DataFrame:
        asked.append(model)
        if model == "demo:decoder" and len(asked) == 2:
            raise KeyboardInterrupt
        return real(model, **options)

    monkeypatch.setattr(scoring, "score", counted)
    with pytest.raises(KeyboardInterrupt):
        report(recipe, tmp_path / "out")
    assert not (tmp_path / "out/index.html").exists()
    report(recipe, tmp_path / "out")
    assert asked == ["demo:encoder", "demo:decoder", "demo:decoder"]
    whole = report(recipe, tmp_path / "other")
    assert contents(tmp_path / "out") == contents(whole.folder)
    assert not (tmp_path / "out/.parts").exists()


def test_a_model_that_cannot_be_had_is_listed_and_the_rest_reported(recipe: Path, tmp_path: Path) -> None:
    recipe.write_text(RECIPE.replace('"demo:decoder"', '"demo:none"'))
    made = report(recipe, tmp_path / "out")
    ((what, error),) = made.failures
    assert (what, type(error)) == ("scores: demo:none", ModelNotFoundError)
    assert "missing: scores: demo:none" in (tmp_path / "out/report.md").read_text()
    assert "What is missing" in made.page.read_text()
    assert pd.read_csv(tmp_path / "out/tables/scores.csv")["model"].unique().tolist() == ["demo:encoder"]
    recipe.write_text(
        RECIPE.replace('"demo:encoder", "demo:decoder"', '"demo:none"').replace("demo:encoder", "demo:none")
    )
    with pytest.raises(ModelNotFoundError):
        report(recipe, tmp_path / "none")


def test_checks_fail_and_say_so(recipe: Path, tmp_path: Path) -> None:
    recipe.write_text(RECIPE.replace('models = ["demo:encoder"]\n', ""))
    made = report(recipe, tmp_path / "out")
    assert [(check.model, check.failed) for check in made.checks] == [("demo:encoder", False), ("demo:decoder", True)]
    text = (tmp_path / "out/report.md").read_text()
    assert "**1 of 2 checks passed.**" in text
    assert "- ✗ demo:decoder (decoder): symmetry.median is 0.06" in text


def test_files_are_found_beside_the_recipe_and_names_are_no_paths(tmp_path: Path) -> None:
    folder = tmp_path / "recipes"
    folder.mkdir()
    nasty = "../../up|`<b>"
    tables.write(attngeo.score("demo:encoder", per_head=True).assign(model=nasty), folder / "rows.csv")
    text = RECIPE.replace('command = "score"', 'command = "file"\npath = "rows.csv"')
    text = text.replace('models = ["demo:encoder", "demo:decoder"]\n', "").replace('models = ["demo:encoder"]\n', "")
    (folder / "r.toml").write_text(text)
    report(folder / "r.toml", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "recipes"]
    assert r"../../up\|\`&lt;b&gt;" in (tmp_path / "out/report.md").read_text()
    assert "<b>" not in (tmp_path / "out/index.html").read_text()


def test_rows_are_chosen_by_their_values(recipe: Path, tmp_path: Path) -> None:
    shown = 'tables = [{ of = "scores", where = { model = "demo:decoder", layer = 1 } }]'
    recipe.write_text(RECIPE.replace('tables = [{ of = "scores", show = "summary" }]', shown))
    report(recipe, tmp_path / "out")
    rows = pd.read_csv(tmp_path / "out/tables/scores-demo-decoder-1.csv")
    assert (rows["model"].unique().tolist(), rows["layer"].unique().tolist(), len(rows)) == (["demo:decoder"], [1], 5)
    for where, message in (
        ("{ colour = 1 }", "no column 'colour' to choose by"),
        ("{ layer = 9 }", "no row where layer is 9"),
    ):
        recipe.write_text(RECIPE.replace('kind = "layers",', f'kind = "layers", where = {where},'))
        with pytest.raises(DataError, match=message):
            report(recipe, tmp_path / "out")


def test_measured_beside_published() -> None:
    rows = attngeo.score("demo:encoder", per_head=True)
    table = beside_published(pd.concat([
        rows.assign(model="google-bert/bert-base-uncased@abc"), rows.assign(model="unknown/model"),
        rows.assign(model="EleutherAI/pythia-70m", stack="decoder"),
    ]))  # fmt: skip
    assert table["symmetry_published"].round(2).tolist()[::2] == [0.51, 0.01]
    assert pd.isna(table["symmetry_published"][1])
    assert table["erratum"].fillna("").tolist() == ["", "", "fused projection cut in the wrong places"]
    median = rows[rows["head"].isna()]["symmetry"].median()
    assert table["symmetry_difference"][0] == pytest.approx(median - 0.5101, abs=1e-4)


BAD = [
    ("title = ", 'titel = "Demo"\ntitle = ', 1, "titel: there is no such key here"),
    ('title = "Demo"', "", 1, "title: field required"),
    ('kind = "layers"', 'kind = "lines"', 11, r"section\[1\].figures\[1\].kind: input should be 'heatmap', 'layers'"),
    (
        'of = "scores" }]',
        'of = "sores" }]',
        11,
        r"figures\[1\].of: there are no results 'sores', expected one of: scores",
    ),
    ("symmetry.median < 0.2", "symmetry < 0.2", 17, r"check\[1\].fail_if: the condition 'symmetry < 0.2' asks about"),
    ('models = ["demo:encoder"]', 'models = ["demo:x"]', 16, r"check\[1\].models: 'scores' has no model 'demo:x'"),
    ('command = "score"', 'command = "scores"', 4, r"results\[1\]: input tag 'scores'"),
    (
        'models = ["demo:encoder", "demo:decoder"]',
        "models = []",
        7,
        r"results\[1\].models: list should have at least 1",
    ),
    ('name = "scores"', 'name = "../up"', 5, r"results\[1\].name: string should match pattern"),
    (
        'title = "Layers"',
        'title = "Layers"\n[[section]]\ntitle = 3',
        12,
        r"section\[2\].title: input should be a valid string",
    ),
    ("[[check]]", "[[check]\n", 14, "not TOML"),
    ('kind = "layers"', 'kind = "matrix"', 11, 'a matrix is drawn from one model, expected model = "org/name"'),
    ('kind = "layers"', 'kind = "layers", score = "loss"', 11, "loss is for training"),
    ('kind = "layers"', 'kind = "analogies"', 11, "'scores' is made by score, expected analogy"),
    (
        'command = "score"',
        'command = "score"\noptions = { gama = 3 }',
        7,
        r"results\[1\].options.gama: there is no such key",
    ),
    (
        'command = "score"',
        'command = "score"\noptions = { gamma = "x" }',
        7,
        r"results\[1\].options.gamma: input should be",
    ),
]


@pytest.mark.parametrize(("old", "new", "line", "message"), BAD, ids=range(len(BAD)))
def test_a_bad_recipe_is_refused_with_its_line_and_key(
    old: str, new: str, line: int, message: str, recipe: Path, tmp_path: Path
) -> None:
    assert old in RECIPE
    recipe.write_text(RECIPE.replace(old, new, 1))
    with pytest.raises(DataError, match=message) as error:
        report(recipe, tmp_path / "out")
    if "not TOML" not in message:
        assert str(error.value).startswith(f"{recipe}:{line}: ")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (None, DataUnavailableError, "no such file; attngeo report --init"),
        (b"\xff\xfe", DataError, "cannot be read"),
        (
            RECIPE.replace('of = "scores", show', 'of = "scores", columns = ["x"], show').encode(),
            DataError,
            "has no column 'x'",
        ),
    ],
)
def test_files_that_are_no_recipes(text: bytes | None, kind: type[AttnGeoError], message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "r.toml").write_bytes(text)
    with pytest.raises(kind, match=message):
        report(tmp_path / "r.toml", tmp_path / "out")


def test_a_folder_that_cannot_be_written(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        report(recipe, tmp_path / "file")


def test_the_starter_is_a_recipe(tmp_path: Path) -> None:
    from importlib.resources import files

    path = tmp_path / "starter.toml"
    path.write_text((files("attngeo.reporting") / "starter.toml").read_text())
    assert len(read_recipe(path).recipe.section) == 2
