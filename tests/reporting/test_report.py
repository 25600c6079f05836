"""Recipes, the folder of a report, and what becomes of bad ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import attngeo
from attngeo.errors import AttnGeoError, DataUnavailableError, ModelNotFoundError, OutputError, UsageError
from attngeo.reporting import read_recipe, report
from attngeo.reporting.blocks import beside_published
from attngeo.reporting.toml_lines import line_of
from attngeo.scores.published import published_of
from attngeo.tables import write as tables

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
    (failure,) = made.failures
    assert (failure.where, failure.what, type(failure.error)) == ("scores", "demo:none", ModelNotFoundError)
    assert str(failure) == "scores: demo:none: no such demo model, expected one of: encoder, decoder, minilm"
    assert "missing: scores: demo:none: no such" in (tmp_path / "out/report.md").read_text()
    assert "What is missing" in made.page.read_text()
    assert pd.read_csv(tmp_path / "out/tables/scores.csv")["model"].unique().tolist() == ["demo:encoder"]
    recipe.write_text(
        RECIPE.replace('"demo:encoder", "demo:decoder"', '"demo:none"').replace("demo:encoder", "demo:none")
    )
    with pytest.raises(ModelNotFoundError):
        report(recipe, tmp_path / "none")
    assert not (tmp_path / "none").exists()


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
    tables.write_table(attngeo.score("demo:encoder", per_head=True).assign(model=nasty), folder / "rows.csv")
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
        (failure,) = report(recipe, tmp_path / "out").failures
        assert (failure.where, failure.what) == ("demo.toml:11", "section[1].figures[1]")
        assert message in str(failure)


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
    ("title = ", 'titel = "Demo"\ntitle = ', 1, r"titel: there is no such key here; did you mean title\?"),
    ("title = ", "titel = ", 1, r"titel: there is no such key here; did you mean title\?"),
    ("[[section]]", "[[sections]]", 9, r"sections: there is no such key here; did you mean section\?"),
    ("title = ", "strange = 1\ntitle = ", 1, "there is no such key here; expected some of: title, text, results"),
    ('title = "Demo"', "", 1, "title: is missing"),
    ('kind = "layers"', 'kind = "lines"', 11, r"section\[1\].figures\[1\].kind: should be 'heatmap', 'layers'"),
    ('kind = "layers"', 'kind = "layers", score = "beauty"', 11, r"figures\[1\].score: should be 'symmetry'"),
    ('kind = "layers"', 'kind = "layers", file = 1', 11, r"figures\[1\].file: there is no such key here"),
    ('kind = "layers"', 'kind = "layers", layer = 2', 11, r"figures\[1\].layer: layers has no layer, expected some of"),
    (
        'kind = "layers"',
        'kind = "layers", where = { layer = true }',
        11,
        r"figures\[1\].where.layer: expected a text or a number",
    ),
    (
        'figures = [{ kind = "layers", of = "scores" }]',
        'figures = [\n  { kind = "layers", of = "scores" },\n  { kind = "heads", of = "x" },\n]',
        13,
        r"section\[1\].figures\[2\].of: there are no results 'x'",
    ),
    (
        'text = "A *report*."\n\n[[results]]\nname = "scores"\ncommand = "score"',
        "text = '''\n[[results]]\nname = 3\n'''\n[[results]]\nname = 'scores'\ncommand = 'scores'",
        8,
        r"results\[1\].command: expected one of: score, analogy, file, got 'scores'",
    ),
    (
        'command = "score"\n',
        'command = "score"\nmodels = ["demo:encoder"]\n[[results]]\nname = "scores"\ncommand = "score"\n',
        9,
        r"results\[2\].name: 'scores' is there twice, expected different names",
    ),
    ('"demo:encoder", "demo:decoder"', '"demo:encoder", "demo:encoder"', 7, "'demo:encoder' is there twice"),
    ('command = "score"', 'command = "analogy"', 11, "'scores' is made by analogy, expected score"),
    ('name = "scores"', f'name = "{"s" * 42}"', 5, r"results\[1\].name: expected letters, digits"),
    ('command = "score"', 'command = "score"\noptions = { gamma = inf }', 7, "should be a finite number"),
    (
        'of = "scores" }]',
        'of = "sores" }]',
        11,
        r"figures\[1\].of: there are no results 'sores', expected one of: scores",
    ),
    ("symmetry.median < 0.2", "symmetry < 0.2", 17, r"check\[1\].fail_if: the condition 'symmetry < 0.2' asks about"),
    ('models = ["demo:encoder"]', 'models = ["demo:x"]', 16, r"check\[1\].models: 'scores' has no model 'demo:x'"),
    ('command = "score"', 'command = "scores"', 6, r"results\[1\].command: expected one of: score, analogy, file, got"),
    (
        'models = ["demo:encoder", "demo:decoder"]',
        "models = []",
        7,
        r"results\[1\].models: expected at least 1",
    ),
    (
        'name = "scores"',
        'name = "../up"',
        5,
        r"results\[1\].name: expected letters, digits, - and _, beginning with a letter, got '../up'",
    ),
    (
        'title = "Layers"',
        'title = "Layers"\n[[section]]\ntitle = 3',
        12,
        r"section\[2\].title: should be a valid string",
    ),
    ("[[check]]", "[[check]\n", 14, "not TOML"),
    (
        'kind = "layers", of = "scores"',
        'kind = "matrix"',
        11,
        'a matrix is drawn from one model, expected model = "org/name"',
    ),
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
        r"results\[1\].options.gamma: should be",
    ),
]


@pytest.mark.parametrize(("old", "new", "line", "message"), BAD, ids=range(len(BAD)))
def test_a_bad_recipe_is_refused_with_its_line_and_key(
    old: str, new: str, line: int, message: str, recipe: Path, tmp_path: Path
) -> None:
    assert old in RECIPE
    recipe.write_text(RECIPE.replace(old, new, 1))
    with pytest.raises(UsageError, match=message) as error:
        report(recipe, tmp_path / "out")
    if "not TOML" not in message:
        assert str(error.value).startswith(f"{recipe}:{line}: ")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (None, DataUnavailableError, "no such file; attngeo report --init"),
        (b"\xff\xfe", UsageError, "cannot be read"),
        (b"a = " + b"[" * 3000, UsageError, "not TOML"),
        (b"a = " + b"9" * 5000, UsageError, "not TOML"),
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


# What becomes of parts that cannot be had, or that are there already.


def changed(recipe: Path, old: str, new: str) -> None:
    text = recipe.read_text()
    assert old in text
    recipe.write_text(text.replace(old, new))


def test_figures_and_checks_of_what_is_missing_are_listed(recipe: Path, tmp_path: Path) -> None:
    """A matrix, a choice of rows and a check of a model that cannot be had cost neither the page nor one another."""
    changed(recipe, '"demo:decoder"', '"demo:none"')
    changed(recipe, 'models = ["demo:encoder"]', 'models = ["demo:encoder", "demo:none"]')
    figures = ['kind = "layers", of = "scores"', 'kind = "matrix", model = "demo:none"',
               'kind = "matrix", model = "demo:encoder", layer = 99',
               'kind = "heads", of = "scores", models = ["demo:none"]',
               'kind = "heads", of = "scores", where = { model = "demo:none" }']  # fmt: skip
    changed(recipe, '[{ kind = "layers", of = "scores" }]', f"[{', '.join(f'{{ {each} }}' for each in figures)}]")
    made = report(recipe, tmp_path / "out")
    assert [(each.where, each.what) for each in made.failures] == [
        ("scores", "demo:none"), *(("demo.toml:11", f"section[1].figures[{i}]") for i in (2, 3, 4, 5)),
    ]  # fmt: skip
    assert [(check.model, check.failed) for check in made.checks] == [("demo:none", True), ("demo:encoder", False)]
    assert made.checks[0].reason == "there are no scores of it"
    text = made.page.read_text()
    assert text.count('class="chart"') == 1
    assert "demo:encoder has no layer 99" in text


def test_an_unforeseen_error_costs_one_model(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from attngeo import scoring

    real = scoring.score

    def broken(model: Any, **options: Any) -> pd.DataFrame:
        if model == "demo:decoder":
            raise IndexError("list index out of range")
        return real(model, **options)

    monkeypatch.setattr(scoring, "score", broken)
    made = report(recipe, tmp_path / "out")
    assert list(map(str, made.failures)) == ["scores: demo:decoder: unexpected IndexError: list index out of range"]
    assert pd.read_csv(tmp_path / "out/tables/scores.csv")["model"].unique().tolist() == ["demo:encoder"]


def test_what_an_incomplete_report_has_is_not_asked_again(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts stay until the report is whole, but not where a file, the version or the part itself has changed."""
    import os
    import shutil

    from attngeo import scoring
    from attngeo.reporting import gathering

    source = Path(attngeo.__file__).parent / "demos/encoder"
    shutil.copytree(source, tmp_path / "model")
    changed(recipe, '"demo:encoder", "demo:decoder"', '"./model", "demo:none"')
    changed(recipe, 'models = ["demo:encoder"]\n', "")
    asked: list[str] = []
    real = scoring.score

    def counted(model: Any, **options: Any) -> pd.DataFrame:
        asked.append(Path(model).name)
        return real(model, **options)

    def again() -> list[str]:
        asked.clear()
        report(recipe, tmp_path / "out")
        return list(asked)

    monkeypatch.setattr(scoring, "score", counted)
    assert again() == ["model", "demo:none"]
    assert again() == ["demo:none"]
    weights = tmp_path / "model/model.safetensors"
    os.utime(weights, ns=(1, weights.stat().st_mtime_ns + 1))
    assert again() == ["model", "demo:none"]
    for part in (tmp_path / "out/.parts").glob("*.parquet"):
        part.write_bytes(part.read_bytes()[:100])
    assert again() == ["model", "demo:none"]
    monkeypatch.setattr(gathering, "software", lambda: {"attngeo": "99"})
    assert again() == ["model", "demo:none"]


def test_paths_are_relative_to_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it is run, with the same bytes; names are the recipe's, and no path of this machine is in them."""
    import shutil

    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    text = RECIPE.replace('"demo:encoder", "demo:decoder"', '"./model"').replace("demo:encoder", "./model")
    text = text.replace('of = "scores" }]', 'of = "scores" }, { kind = "matrix", model = "./model" }]')
    made = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        shutil.copytree(Path(attngeo.__file__).parent / "demos/encoder", folder / "model")
        (folder / "demo.toml").write_text(text)
        monkeypatch.chdir(tmp_path)
        made.append(contents(report(f"{name}/demo.toml", folder / "out").folder))
    assert made[0] == made[1]
    assert pd.read_csv(tmp_path / "a/out/tables/scores.csv")["model"].unique().tolist() == ["./model"]
    assert json.loads(made[0]["provenance.json"])["results"][0]["model"] == "./model"
    assert not any(str(tmp_path).encode() in content for content in made[0].values())
    shutil.move(tmp_path / "a/model", tmp_path / "model")
    with pytest.raises(ModelNotFoundError, match="no such file or folder"):
        report("a/demo.toml", tmp_path / "again")


def test_questions_are_found_beside_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text(": family\nman woman king queen\nking queen man woman\n")
    (tmp_path / "r.toml").write_text(
        'title = "x"\n[[results]]\nname = "a"\ncommand = "analogy"\nmodels = ["demo:minilm"]\n'
        'options = { questions = "own.txt" }\n[[section]]\ntitle = "y"\ntables = [{ of = "a" }]\n'
    )
    report(tmp_path / "r.toml", tmp_path / "out")
    rows = pd.read_csv(tmp_path / "out/tables/a.csv")
    assert rows["asked"].max() == 2


def test_every_table_has_a_file_of_its_own(recipe: Path, tmp_path: Path) -> None:
    tables_ = ['of = "scores", columns = ["model", "layer"]', 'of = "scores", where = { layer = 1 }',
               'of = "scores", where = { head = 1 }', 'of = "scores"',
               'of = "scores", where = { head = 1 }']  # fmt: skip
    changed(recipe, '[{ of = "scores", show = "summary" }]', f"[{', '.join(f'{{ {each} }}' for each in tables_)}]")
    made = report(recipe, tmp_path / "out")
    read = {path.stem: pd.read_csv(path).shape for path in (tmp_path / "out/tables").glob("*.csv")}
    assert read == {"scores": (30, 15), "scores-2": (30, 2), "scores-1": (10, 15), "scores-1-2": (6, 15)}
    page = made.page.read_text()
    assert page.count('href="tables/scores-1-2.csv"') == 2
    assert page.count('href="tables/scores.csv"') == 2  # of the table, and of the figure's numbers


def test_a_report_made_again_leaves_nothing_of_the_former(recipe: Path, tmp_path: Path) -> None:
    report(recipe, tmp_path / "out")
    (tmp_path / "out/tables/mine.csv").write_text("a\n")
    changed(recipe, 'tables = [{ of = "scores", show = "summary" }]', "")
    report(recipe, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out/tables").iterdir()} == {"scores.csv", "scores.parquet", "mine.csv"}


@pytest.mark.parametrize("epoch", ["abc", "1e9", "99999999999999999"])
def test_a_date_that_is_none_is_refused_before_any_work(
    epoch: str, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
    with pytest.raises(UsageError, match=r"SOURCE_DATE_EPOCH is .*, expected seconds since 1970"):
        report(recipe, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_published_rows_are_the_models_own() -> None:
    """The full name before the bare one, what is right before what is known to be wrong, and nobody else's model."""
    own = published_of("EleutherAI/gpt-neo-2.7B@main", "decoder")
    assert own is not None
    assert (own["model"], round(own["symmetry"], 4), own["erratum"]) == ("EleutherAI/gpt-neo-2.7B", 0.1387, "")
    bare = published_of("gpt-neo-2.7b", "decoder")
    assert bare is not None
    assert (round(bare["directionality"], 4), bare["erratum"]) == (-0.5664, "")
    assert published_of("google-bert/bert-base-uncased", "encoder") is not None
    assert published_of("someone/bert-base-uncased", "encoder") is None
    assert published_of("google-bert/bert-base-uncased", "decoder") is None


def test_markdown_shows_names_letter_for_letter(tmp_path: Path) -> None:
    nasty = "@team ~~x~~ `a`\n<img src=x onerror=alert(1)>"
    frame = attngeo.score("demo:encoder", per_head=True)
    tables.write_table(frame.assign(model=nasty, **{"<img src=x>|`": 1.5}), tmp_path / "rows.parquet")
    (tmp_path / "r.toml").write_text(
        'title = "# @x"\n[[results]]\nname = "a"\ncommand = "file"\npath = "rows.parquet"\n'
        '[[section]]\ntitle = "y"\nfigures = [{ kind = "layers", of = "a" }]\ntables = [{ of = "a" }]\n'
        '[[check]]\nof = "a"\nfail_if = "symmetry.median > 0"\n'
    )
    report(tmp_path / "r.toml", tmp_path / "out")
    text = (tmp_path / "out/report.md").read_text()
    assert "@" not in text
    assert "<img" not in text
    assert text.startswith(r"# \# &#64;x" + "\n\n**0 of 1 checks passed.**\n\n- ✗ &#64;team ")
    assert r"\~\~x\~\~" in text
    assert "figure of index.html" in text


def test_how_it_was_made_has_every_option(recipe: Path, tmp_path: Path) -> None:
    changed(recipe, 'command = "score"', 'command = "score"\noptions = { gamma = 0.0 }')
    page = report(recipe, tmp_path / "out").page.read_text()
    assert "gamma 0.0" in page
    assert "convention corrected" in page


@pytest.mark.parametrize(
    ("text", "place", "line"),
    [
        ('# write """ here\na = 1\n[[check]]\nof = 1\n', ("check", 0, "of"), 4),
        ('a = """abc""" # """ x\nb = 1\n', ("b",), 2),
        ("a = \"x ''' y\"\nb = 1\n", ("b",), 2),
        ('a = """\n[[check]]\nof = 1\n"""\n[[check]]\nof = 2\n', ("check", 0, "of"), 6),
        ('f = [{ k = 1, w = { m = "x" } },\n { k = 2 }]\n', ("f", 1, "k"), 2),
        ('f = [{ k = "{a}" },\n { k = 2 },\n { k = 3 }]\n', ("f", 2), 3),
        ("f = [ # {old}\n { k = 1 },\n { k = 2 },\n]\n", ("f", 1), 3),
        ("f = [\n { k = 1 }, { k = 2 },\n { k = 3 },\n]\ng = 1\n", ("f", 2), 3),
        ("f = [\n { k = [1, 2] }, { k = 2 },\n]\ng = 1\n", ("g",), 4),
        ('a = "x\u2028y"\nb = 1\n', ("b",), 2),
    ],
)
def test_the_line_of_a_key(text: str, place: tuple[str | int, ...], line: int) -> None:
    """Whatever stands in strings and comments, and however tables are laid out."""
    assert line_of(text, place) == line


def test_models_that_cannot_be_named_are_listed_like_others(recipe: Path, tmp_path: Path) -> None:
    changed(recipe, '"demo:encoder", "demo:decoder"', f'"demo:encoder", "~nosuchuser/m", "{"a" * 300}", "a\\u0000b"')
    made = report(recipe, tmp_path / "out")
    assert [failure.where for failure in made.failures] == ["scores"] * 3
    assert all(isinstance(failure.error, AttnGeoError) for failure in made.failures)
    assert pd.read_csv(tmp_path / "out/tables/scores.csv")["model"].unique().tolist() == ["demo:encoder"]


def test_a_folder_of_another_place_is_not_taken_for_the_hubs(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    (tmp_path / "elsewhere").mkdir()
    shutil.copytree(Path(attngeo.__file__).parent / "demos/encoder", tmp_path / "elsewhere/bert-base-uncased")
    monkeypatch.chdir(tmp_path / "elsewhere")
    changed(recipe, '"demo:decoder"', '"bert-base-uncased"')
    (failure,) = report(recipe, tmp_path / "out").failures
    assert "lies in the working directory and not beside the recipe" in str(failure)


def test_what_a_part_depends_on(tmp_path: Path) -> None:
    """The text of cbow:TEXT, an archive's member, what lies beside a checkpoint's file, folders behind links."""
    from attngeo.reporting.gathering import _state

    (tmp_path / "sub").mkdir()
    for name in ("t.txt", "v.zip", "model.safetensors", "config.json", "sub/q.txt"):
        (tmp_path / name).write_text("a")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/inside").symlink_to(tmp_path / "sub")
    for place, file in (
        (f"cbow:{tmp_path}/t.txt", "t.txt"), (tmp_path / "v.zip/m.txt", "v.zip"),
        (tmp_path / "model.safetensors", "config.json"), (tmp_path / "linked", "sub/q.txt"),
    ):  # fmt: skip
        before = _state(place)
        (tmp_path / file).write_text("longer")
        assert before != _state(place) != "", place
    assert _state("org/name") == _state("demo:minilm") == _state(tmp_path / "none/x") == ""


def test_parts_that_cannot_be_kept_are_no_failures_of_models(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/.parts").write_text("")
    with pytest.raises(OutputError, match=r"\.parts cannot be written"):
        report(recipe, tmp_path / "out")


def test_a_report_removes_nothing_outside_its_tables(recipe: Path, tmp_path: Path) -> None:
    """Whatever the provenance beside it says."""
    report(recipe, tmp_path / "out")
    (tmp_path / "out/victim.csv").write_text("")
    provenance = json.loads((tmp_path / "out/provenance.json").read_text())
    provenance["tables"] += ["../victim", "..", 3, None]
    (tmp_path / "out/provenance.json").write_text(json.dumps(provenance))
    report(recipe, tmp_path / "out")
    assert (tmp_path / "out/victim.csv").is_file()
