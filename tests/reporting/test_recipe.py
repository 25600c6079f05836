"""Recipes: what is accepted, and how bad ones are refused."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.limits import at_most
from support.messages import refuses

from attngeo.errors import AttnGeoError, DataError, DataUnavailableError, UsageError
from attngeo.figures.kinds import PlotOptions
from attngeo.figures.sizes import draw_sizes
from attngeo.questions.table import QUESTIONS
from attngeo.reporting.recipe import read_recipe
from attngeo.reporting.report import build_report

# What is replaced in the recipe of conftest.py and by what, the key of the error, and facts that it names.
BAD = [
    ("title = ", 'titel = "Demo"\ntitle = ', "titel", "title"),
    ("title = ", "titel = ", "titel", "title"),
    ("[[section]]", "[[sections]]", "sections", "section"),
    ("title = ", "strange = 1\ntitle = ", "strange", "title, text, label"),
    ('title = "Demo"', "", "title", ""),
    ('kind = "layers"', 'kind = "beauty"', 'section "Layers".figures[1].kind', "heatmap, layers"),
    ('kind = "layers"', 'kind = "layers", score = "beauty"', 'section "Layers".figures[1].score', "symmetry"),
    ('kind = "layers"', 'kind = "layers", score = "loss"', 'section "Layers".figures[1].score', "directionality"),
    ('kind = "layers"', 'kind = "layers", colour = 1', 'section "Layers".figures[1].colour', "of, model"),
    ('kind = "layers"', 'kind = "layers", layer = 2', 'section "Layers".figures[1].layer', "layers has no layer"),
    ('kind = "layers"', 'kind = "matrix", model = "a", layer = -1', 'section "Layers".figures[1].layer', "at least 0"),
    ('kind = "layers"', 'kind = "layers", where = { layer = true }', 'section "Layers".figures[1].where.layer', "True"),
    ('kind = "layers"', 'kind = "layers", where = { layer = [] }', 'section "Layers".figures[1].where.layer', "a list"),
    ('kind = "layers"', 'kind = "layers", where = { layr = 1 }', 'section "Layers".figures[1].where.layr', "layer"),
    ('kind = "layers"', 'kind = "size", published = false, where = { role = "encoder" }',
     'section "Layers".figures[1].where', "role"),
    ('kind = "layers"', 'kind = "layers", over = "heads"', 'section "Layers".figures[1].over', "score, stack"),
    ('kind = "layers"', 'kind = "training-layers", over = "tails"', 'section "Layers".figures[1].over', "heads"),
    ('show = "summary"', 'show = "layers"', 'section "Layers".tables[1].of', "pretrain"),
    ('show = "summary"', 'show = "methods"', 'section "Layers".tables[1].of', "show = rows or summary or published"),
    ('show = "summary"', "where = { colour = 1 }", 'section "Layers".tables[1].where.colour', "model, revision"),
    ('show = "summary"', 'columns = ["model", "layr"]', 'section "Layers".tables[1].columns', "layer"),
    ('show = "summary"', 'show = "summary", columns = ["layer"]', 'section "Layers".tables[1].columns', "layers"),
    ('"summary"', '"published", columns = ["colour"]', 'section "Layers".tables[1].columns', "symmetry_published"),
    ('kind = "layers", of = "scores"', 'kind = "matrix"', 'section "Layers".figures[1].model', "org/name"),
    ('kind = "layers"', 'kind = "analogies"', 'section "Layers".figures[1].of', "analogy"),
    ('of = "scores" }]', 'of = "sores" }]', 'section "Layers".figures[1].of', "scores"),
    ('kind = "layers", of = "scores"', 'kind = "layers"', 'section "Layers".figures[1].of', "results"),
    (
        'figures = [{ kind = "layers", of = "scores" }]',
        'figures = [\n  { kind = "layers", of = "scores" },\n  { kind = "heads", of = "x" },\n]',
        'section "Layers".figures[2].of', "'x'",
    ),
    (
        'text = "A *report*."\n\n[[results]]\nname = "scores"\ncommand = "score"',
        "text = '''\n[[results]]\nname = 3\n'''\n[[results]]\nname = 'scores'\ncommand = 'scores'",
        'results "scores".command', "'scores'",
    ),
    (
        'command = "score"\n',
        'command = "score"\nmodels = ["demo:encoder"]\n[[results]]\nname = "scores"\ncommand = "score"\n',
        'results "scores".name', "'scores'",
    ),
    ('"demo:encoder", "demo:decoder"', '"demo:encoder", "demo:encoder"', 'results "scores".models', "'demo:encoder'"),
    ('"demo:encoder", "demo:decoder"', "", 'results "scores".models', "1"),
    ('command = "score"', 'command = "analogy"', 'section "Layers".figures[1].of', "score"),
    ('command = "score"', 'command = "scores"', 'results "scores".command', "did you mean score"),
    ('command = "score"', 'command = "zzz"', 'results "scores".command', "score, analogy"),
    ('name = "scores"', f'name = "{"s" * 42}"', f'results "{"s" * 42}".name', "sss"),
    ('name = "scores"', 'name = "../up"', 'results "../up".name', "../up"),
    ('command = "score"', 'command = "score"\noptions = { gamma = inf }', 'results "scores".options.gamma', "inf"),
    ('command = "score"', 'command = "score"\noptions = { gama = 3 }', 'results "scores".options.gama', "gamma"),
    ('command = "score"', 'command = "score"\noptions = { gamma = "x" }', 'results "scores".options.gamma', "'x'"),
    ('command = "score"', 'command = "score"\noptions = { gamma = true }', 'results "scores".options.gamma', "True"),
    ('command = "score"', 'command = "score"\noptions = { with_bias = "no" }', 'results "scores".options.with_bias',
     "no"),
    ('command = "score"', 'command = "score"\noptions = { layers = "a" }', 'results "scores".options.layers', "0-3,7"),
    ('command = "score"', 'command = "score"\noptions = { convention = 1 }', 'results "scores".options.convention',
     "1"),
    ('command = "score"', 'command = "score"\noptions = { rope_offset = "x" }', 'results "scores".options.rope_offset',
     "rope_offset is 'x'"),
    ('command = "score"', 'command = "score"\noptions = { rope_offset = 1.5 }', 'results "scores".options.rope_offset',
     "1.5, expected a whole number"),
    ('show = "summary"', 'show = "all"', 'section "Layers".tables[1].show', "rows, summary"),
    ('command = "score"', 'command = "score"\noptions = 3', 'results "scores".options', "3"),
    ("symmetry.median < 0.2", "symmetry < 0.2", "check[1].fail_if", "'symmetry'"),
    ("symmetry.median < 0.2", "change.max > 5", "check[1].fail_if", "'scores' are results of score"),
    ("symmetry.median < 0.2", "change.max > 5", "check[1].fail_if", "this condition applies to results of compare;"),
    ("symmetry.median < 0.2", "p_value.max > 5", "check[1].fail_if", "columns: symmetry, directionality"),
    ("symmetry.median < 0.2", "trace_z.max > 5", "check[1].of", "optional score"),
    ("symmetry.median < 0.2", "layers > baseline.layers", "check[1].fail_if", "--baseline"),
    ('[[check]]\nof = "scores"', '[[check]]\nof = "sores"', "check[1].of", "did you mean scores"),
    ('models = ["demo:encoder"]', 'models = ["demo:x"]', "check[1].models", "'demo:x'"),
    ('title = "Layers"', 'title = "Layers"\n[[section]]\ntitle = 3', "section[2].title", "3"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "key", "fact"), BAD, ids=range(len(BAD)))
def test_a_bad_recipe_is_refused_with_its_key(old: str, new: str, key: str, fact: str, recipe: Path) -> None:
    text = recipe.read_text()
    assert old in text
    recipe.write_text(text.replace(old, new, 1))
    with pytest.raises(UsageError) as error:
        read_recipe(recipe)
    place, _, message = str(error.value).removeprefix(f"{recipe}: ").partition(": ")
    assert place == key
    assert fact in message
    assert "\n" not in message


def test_a_training_has_the_optional_scores_that_its_options_name(recipe: Path) -> None:
    plain = recipe.read_text()

    def write(options: str, condition: str) -> None:
        results = f'[[results]]\nname = "runs"\ncommand = "pretrain"\noptions = {{ {options} }}\n'
        figure = '[[section]]\ntitle = "Runs"\nfigures = [{ kind = "training", of = "runs", score = "agreement" }]\n'
        recipe.write_text(f'{plain}{results}[[check]]\nof = "runs"\nfail_if = "{condition}"\n{figure}')

    write('scores = ["agreement", "own_symmetry"]', "own_symmetry.median < 0")
    read_recipe(recipe)
    write('scores = ["agreement"]', "own_symmetry.median < 0")
    with refuses(UsageError, "own_symmetry", "optional score"):
        read_recipe(recipe)
    write("steps = 3", "symmetry.median < 0")
    with refuses(UsageError, "agreement", "optional score"):
        read_recipe(recipe)
    write('scores = ["agreement"]', "heads.agreement.median < 0")
    with refuses(UsageError, "only whole layers have it", "agreement.median"):
        read_recipe(recipe)


def test_an_unknown_option_is_answered_with_the_options_of_its_command(recipe: Path) -> None:
    recipe.write_text(recipe.read_text().replace('command = "score"', 'command = "score"\noptions = { xyz = 3 }'))
    with pytest.raises(UsageError, match=r"results \"scores\"\.options\.xyz") as error:
        read_recipe(recipe)
    assert "rope_offset" in str(error.value)
    assert "n_draws" not in str(error.value)  # an option of analogy


def test_a_former_option_is_answered_with_the_new_one(recipe: Path) -> None:
    analogy = '[[results]]\nname = "words"\ncommand = "analogy"\nmodels = ["demo:minilm"]\noptions = { top_k = 3 }\n'
    recipe.write_text(recipe.read_text() + analogy)
    with pytest.raises(UsageError, match=r"results \"words\"\.options\.top_k: .*; it is now called n_answers$"):
        read_recipe(recipe)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (None, DataUnavailableError),
        (b"\xff\xfe", DataError),
        (b"a = " + b"[" * 3000, UsageError),
        (b"a = " + b"9" * 5000, UsageError),
        (b"[[check]\n", UsageError),
    ],
)
def test_files_that_are_no_recipes(content: bytes | None, kind: type[AttnGeoError], tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "r.toml").write_bytes(content)
    with pytest.raises(kind, match=r"r\.toml"):
        read_recipe(tmp_path / "r.toml")


def test_the_starter_is_a_recipe(tmp_path: Path) -> None:
    path = tmp_path / "starter.toml"
    path.write_text((files("attngeo.reporting") / "starter.toml").read_text())
    assert len(read_recipe(path).recipe.section) == 2
    comments = " ".join(line for line in path.read_text().splitlines() if line.startswith("#"))
    assert [name for name in QUESTIONS if not re.search(rf"[ ,]{name}[ ,]", comments)] == []


PARTS = "a." * 4000 + "a"
PLAIN = 'title = "t"\n[[results]]\nname = "a"\ncommand = "score"\nmodels = ["demo:encoder"]\n'
# Each would take seconds or gigabytes, or end in an error of Python's.
HOSTILE = {
    "a long name": (f"{PARTS} = 1", "32 parts"),
    "a long name of a table": (f"[{PARTS}]\n" + "".join(f"k{number} = 1\n" for number in range(4000)), "32 parts"),
    "a long name in a table": (f"x = {{ {PARTS} = 1 }}", "32 parts"),
    "a long name in quotes": (r'"\"a\"" . ' * 4000 + "'a' = 1", "32 parts"),
    "names in names": ("x = " + f"{{ {PARTS[:59]} = " * 150 + "1" + " }" * 150, "a value"),
    "too many keys": ("".join(f"k{number} = 1\n" for number in range(100_000)), "1,048,576"),
    "a number of many digits": (f"title = 0x{'f' * 5000}", "a value"),
    "nested lists": (f"title = {'[' * 100_000}", "recursion"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_recipe_is_refused_before_it_takes_time_or_memory(name: str, tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    text, fact = HOSTILE[name]
    path.write_text(text)
    with at_most(100), refuses(UsageError, path, fact):
        read_recipe(path)


def test_a_recipe_may_have_names_of_some_parts_and_texts_with_many_dots(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text(PLAIN.replace("[[res", f'text = """\n1.2. {"One word. " * 99} {"." * 100}"""\n[[res'))
    assert "1.2. One word." in read_recipe(path).recipe.text
    path.write_text(f"{PLAIN}options.scores = ['stable_rank']\noptions.layers = '0'\n")
    assert "layers" in read_recipe(path).recipe.results[0].options.given


def test_control_characters_of_names_are_escapes_in_errors(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text(f'{PLAIN}[[section]]\ntitle = "\\u001b[2J"\n"\\u0007" = 1\n')
    with refuses(UsageError, r'section "\x1b[2J".\x07'):
        read_recipe(path)


def test_names_of_results_differ(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text(PLAIN + PLAIN.partition("\n")[2])
    with refuses(UsageError, "'a'"):
        read_recipe(path)
    path.write_text(PLAIN + PLAIN.partition("\n")[2].replace('"a"', '"A"'))
    assert [request.name for request in read_recipe(path).recipe.results] == ["a", "A"]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('layers = "0-2,5"', {"layers": (0, 1, 2, 5)}),
        ("layers = [1]", {"layers": (1,)}),
        ("gamma = 3", {"gamma": 3.0}),
        ('per_head = false, device = "cpu"', {"per_head": False, "device": "cpu"}),
    ],
)
def test_options_are_those_of_the_command_and_may_be_texts(written: str, read: dict[str, Any], recipe: Path) -> None:
    recipe.write_text(recipe.read_text().replace('command = "score"', f'command = "score"\noptions = {{ {written} }}'))
    assert read_recipe(recipe).recipe.results[0].options.given == read


def test_options_of_a_figure_are_those_of_plot(recipe: Path) -> None:
    recipe.write_text(recipe.read_text().replace('of = "scores" }]', 'of = "scores", where = { layer = 1 } }]'))
    (figure,) = read_recipe(recipe).recipe.section[0].figures
    assert figure.shown.given == {"where": {"layer": 1}}
    recipe.write_text(recipe.read_text().replace("layer = 1 }", "layer = [1, 2] }"))
    (figure,) = read_recipe(recipe).recipe.section[0].figures
    assert figure.shown.where == {"layer": [1, 2]}


def test_columns_of_the_published_models_select_them_in_one_kind_only(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = []

    def note(rows: pd.DataFrame, published: pd.DataFrame, *, options: PlotOptions) -> Any:
        shown.append((rows["model"].unique().tolist(), published))
        return draw_sizes(rows, published, options)

    monkeypatch.setattr("attngeo.figures.sizes.draw_sizes", note)
    text, where = recipe.read_text(), 'where = { modality = "vision" }'
    recipe.write_text(text.replace('kind = "layers"', f'kind = "size", {where}'))
    report = build_report(recipe, recipe.parent / "out")
    assert report.failures == []
    ((models, published),) = shown
    assert (models, set(published["modality"])) == (["demo:encoder", "demo:decoder"], {"vision"})
    recipe.write_text(text.replace('kind = "layers"', f'kind = "layers", {where}'))
    with pytest.raises(UsageError, match=r"where\.modality"):
        read_recipe(recipe)


@pytest.mark.slow
def test_a_recipe_of_scores_loads_no_papers(tmp_path: Path) -> None:
    path = tmp_path / "scores.toml"
    path.write_text(
        'title = "Scores"\n[[results]]\nname = "scores"\ncommand = "score"\nmodels = ["demo:minilm"]\n'
        '[[section]]\ntitle = "All"\ntables = [{ of = "scores", show = "summary" }]\n'
    )
    code = (
        "import sys\nfrom attngeo.reporting.report import build_report\n"
        f"build_report({str(path)!r}, {str(tmp_path / 'report')!r})\n"
        "print(sorted(name for name in sys.modules if name.startswith('attngeo.papers')))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
