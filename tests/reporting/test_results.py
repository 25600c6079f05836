"""The results of a recipe: how parts are kept and resumed, and what happens if some fail."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.messages import refuses
from support.reports import change, read_files

import attngeo
from attngeo.errors import AttnGeoError, DataUnavailableError, ModelNotFoundError, OutputError, UsageError
from attngeo.questions import asking
from attngeo.reporting import results
from attngeo.reporting.paths import describe_files
from attngeo.reporting.report import build_report

ENCODER = Path(attngeo.__file__).parent / "demos/encoder"


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Record the models that are scored; `before` may raise instead."""

    def start(before: Callable[[list[str]], None] = lambda _: None) -> list[str]:
        asked: list[str] = []
        real = asking.ask

        def ask(question: Any, model: Any, *arguments: Any, **options: Any) -> pd.DataFrame:
            asked.append(Path(model).name)
            before(asked)
            return real(question, model, *arguments, **options)

        monkeypatch.setattr(asking, "ask", ask)
        return asked

    return start


def test_an_unfinished_report_is_resumed(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watch: Callable[..., list[str]]
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")

    def interrupt(asked: list[str]) -> None:
        if asked == ["model", "demo:decoder"]:
            raise KeyboardInterrupt

    monkeypatch.setenv("ATTNGEO_CACHE", str(tmp_path / "kept"))
    shutil.copytree(ENCODER, tmp_path / "model")
    change(recipe, '"demo:encoder", "demo:decoder"', '"./model", "demo:decoder"')
    change(recipe, 'models = ["demo:encoder"]\n', "")
    asked = watch(interrupt)
    with pytest.raises(KeyboardInterrupt):
        build_report(recipe, tmp_path / "out")
    assert not (tmp_path / "out/index.html").exists()
    (kept,) = (tmp_path / "kept/scores").iterdir()
    before = kept.stat().st_mtime_ns
    build_report(recipe, tmp_path / "out")
    assert asked == ["model", "demo:decoder", "model", "demo:decoder"]
    assert kept.stat().st_mtime_ns == before  # its scores were not computed again
    monkeypatch.setenv("ATTNGEO_CACHE", "")
    whole = build_report(recipe, tmp_path / "other")
    assert read_files(tmp_path / "out") == read_files(whole.folder)
    assert not (tmp_path / "out/.parts").exists()


def test_a_missing_model_is_listed_and_the_rest_reported(recipe: Path, tmp_path: Path) -> None:
    change(recipe, '"demo:decoder"', '"demo:none"')
    made = build_report(recipe, tmp_path / "out")
    (failure,) = made.failures
    assert (failure.where, failure.what, type(failure.error)) == (
        'demo.toml: results "scores"',
        "demo:none",
        ModelNotFoundError,
    )
    assert str(failure).count("demo:none") == 1
    assert 'results "scores": demo:none: ' in (tmp_path / "out/report.md").read_text()
    assert 'id="failures"' in made.page.read_text()
    assert pd.read_csv(tmp_path / "out/tables/scores.csv")["model"].unique().tolist() == ["demo:encoder"]


def test_if_everything_is_missing_there_is_no_report(recipe: Path, tmp_path: Path) -> None:
    change(recipe, '"demo:encoder", "demo:decoder"', '"demo:none"')
    change(recipe, 'models = ["demo:encoder"]\n', "")
    with pytest.raises(ModelNotFoundError):
        build_report(recipe, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_figures_and_checks_of_missing_results_are_listed(recipe: Path, tmp_path: Path) -> None:
    """A matrix, a selection and a check of a missing model cost neither the page nor one another."""
    change(recipe, '"demo:decoder"', '"demo:none"')
    change(recipe, 'models = ["demo:encoder"]', 'models = ["demo:encoder", "demo:none"]')
    figures = ['kind = "layers", of = "scores"', 'kind = "matrix", model = "demo:none"',
               'kind = "matrix", model = "demo:encoder", layer = 99',
               'kind = "heads", of = "scores", models = ["demo:none"]',
               'kind = "heads", of = "scores", where = { model = "demo:none" }']  # fmt: skip
    change(recipe, '[{ kind = "layers", of = "scores" }]', f"[{', '.join(f'{{ {each} }}' for each in figures)}]")
    made = build_report(recipe, tmp_path / "out")
    assert [(each.where, each.what) for each in made.failures] == [
        ('demo.toml: results "scores"', "demo:none"),
        *(("demo.toml", f'section "Layers".figures[{i}]') for i in (2, 3, 4, 5)),
    ]  # fmt: skip
    assert [(check.model, check.failed) for check in made.checks] == [("demo:none", True), ("demo:encoder", False)]
    text = made.page.read_text()
    assert text.count('class="chart"') == 1
    assert "layer 99" in text


def test_an_unexpected_error_costs_one_model(recipe: Path, tmp_path: Path, watch: Callable[..., list[str]]) -> None:
    def fail(asked: list[str]) -> None:
        if asked[-1] == "demo:decoder":
            raise IndexError("list index out of range")

    watch(fail)
    (failure,) = build_report(recipe, tmp_path / "out").failures
    assert (failure.where, failure.what) == ('demo.toml: results "scores"', "demo:decoder")
    assert "IndexError: list index out of range" in str(failure)
    assert pd.read_csv(tmp_path / "out/tables/scores.csv")["model"].unique().tolist() == ["demo:encoder"]


def test_answers_are_kept_until_the_report_is_finished_or_something_changes(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watch: Callable[..., list[str]]
) -> None:
    """A file, the request itself or the version of the software. An answer that lacks a model is asked for again."""
    shutil.copytree(ENCODER, tmp_path / "model")
    change(recipe, '"demo:encoder", "demo:decoder"', '"./model"')
    change(recipe, 'models = ["demo:encoder"]\n', "")
    more = '[[results]]\nname = "more"\ncommand = "score"\nmodels = ["demo:none"]\n[[section]]'
    change(recipe, "[[section]]", more)
    asked = watch()

    def again() -> list[str]:
        asked.clear()
        build_report(recipe, tmp_path / "out")
        return list(asked)

    assert again() == ["model", "demo:none"]
    assert again() == ["demo:none"]
    weights = tmp_path / "model/model.safetensors"
    os.utime(weights, ns=(1, weights.stat().st_mtime_ns + 1))
    assert again() == ["model", "demo:none"]
    for part in (tmp_path / "out/.parts").glob("*.parquet"):
        part.write_bytes(part.read_bytes()[:100])
    assert again() == ["model", "demo:none"]
    change(recipe, '"./model"', '"./model"]\noptions = { gamma = 3 }\n#')
    assert again() == ["model", "demo:none"]
    monkeypatch.setattr(results, "software", lambda: {"attngeo": "99"})
    assert again() == ["model", "demo:none"]


def test_paths_are_relative_to_the_recipe(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From any directory, with the same bytes; names are the recipe's, and no path of this machine is in them."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    change(recipe, '"demo:encoder", "demo:decoder"', '"./model"')
    change(recipe, "demo:encoder", "./model")
    change(recipe, 'of = "scores" }]', 'of = "scores" }, { kind = "matrix", model = "./model" }]')
    made = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        shutil.copytree(ENCODER, folder / "model")
        shutil.copy(recipe, folder)
        monkeypatch.chdir(tmp_path)
        made.append(read_files(build_report(f"{name}/demo.toml", folder / "out").folder))
    assert made[0] == made[1]
    assert pd.read_csv(tmp_path / "a/out/tables/scores.csv")["model"].unique().tolist() == ["./model"]
    assert json.loads(made[0]["provenance.json"])["results"][0]["model"] == "./model"
    assert not any(str(tmp_path).encode() in content for content in made[0].values())
    shutil.move(tmp_path / "a/model", tmp_path / "model")
    with pytest.raises(ModelNotFoundError, match=r"demo\.toml: results \"scores\": \./model"):
        build_report("a/demo.toml", tmp_path / "again")


def test_questions_are_found_beside_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text(": family\nman woman king queen\nking queen man woman\n")
    (tmp_path / "r.toml").write_text(
        'title = "x"\n[[results]]\nname = "a"\ncommand = "analogy"\nmodels = ["demo:minilm"]\n'
        'options = { questions = "own.txt", memory = "500MB", remove_top = 1 }\n'
        '[[section]]\ntitle = "y"\ntables = [{ of = "a" }]\nfigures = [{ kind = "analogies", of = "a" }]\n'
    )
    assert build_report(tmp_path / "r.toml", tmp_path / "out").failures == []
    rows = pd.read_csv(tmp_path / "out/tables/a.csv")
    assert rows["asked"].max() == 2
    assert "1" in rows["note"][0]


def test_models_without_a_possible_name_are_listed_like_others(recipe: Path, tmp_path: Path) -> None:
    change(recipe, '"demo:encoder", "demo:decoder"', f'"demo:encoder", "~nosuchuser/m", "{"a" * 300}", "a\\u0000b"')
    made = build_report(recipe, tmp_path / "out")
    assert [failure.where for failure in made.failures] == ['demo.toml: results "scores"'] * 3
    assert all(isinstance(failure.error, AttnGeoError) for failure in made.failures)
    assert pd.read_csv(tmp_path / "out/tables/scores.csv")["model"].unique().tolist() == ["demo:encoder"]


def test_a_folder_in_the_working_directory_is_not_used(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    shutil.copytree(ENCODER, tmp_path / "elsewhere/bert-base-uncased")
    monkeypatch.chdir(tmp_path / "elsewhere")
    change(recipe, '"demo:decoder"', '"bert-base-uncased"')
    (failure,) = build_report(recipe, tmp_path / "out").failures
    assert (failure.what, type(failure.error)) == ("bert-base-uncased", ModelNotFoundError)
    assert "bert-base-uncased" in str(failure)


def test_the_files_that_a_part_depends_on(tmp_path: Path) -> None:
    """The text of cbow:TEXT, the archive of a member, the files beside a checkpoint's, folders behind links."""
    (tmp_path / "sub").mkdir()
    for name in ("t.txt", "v.zip", "model.safetensors", "config.json", "sub/q.txt"):
        (tmp_path / name).write_text("a")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/inside").symlink_to(tmp_path / "sub")
    for place, file in (
        ("cbow:t.txt", "t.txt"), ("v.zip/m.txt", "v.zip"),
        ("model.safetensors", "config.json"), ("linked", "sub/q.txt"),
    ):  # fmt: skip
        before = describe_files(place, tmp_path)
        (tmp_path / file).write_text("longer")
        assert before != describe_files(place, tmp_path) != "", place
    assert (
        describe_files("org/name", tmp_path)
        == describe_files("demo:minilm", tmp_path)
        == describe_files("none/x", tmp_path)
        == ""
    )


def test_links_that_lead_back_are_followed_once(tmp_path: Path) -> None:
    """Two of them would be as many paths as 2 to the power of 40."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("a")
    (tmp_path / "model/loop").symlink_to(tmp_path / "model")
    assert describe_files("model", tmp_path).count("config.json") == 1


def test_a_folder_that_cannot_keep_parts_fails_the_report_and_no_model(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/.parts").write_text("")
    with pytest.raises(OutputError, match=r"\.parts"):
        build_report(recipe, tmp_path / "out")


def test_labels_name_models_in_figures_tables_and_checks_but_not_in_files(recipe: Path, tmp_path: Path) -> None:
    change(recipe, 'text = "A *report*."', '[label]\n"demo:encoder" = "Enc"\n"demo:decoder" = "Dec"')
    heatmap = 'figures = [{ kind = "layers", of = "scores" }, { kind = "heatmap", of = "scores" }, '
    matrix = '{ kind = "matrix", model = "demo:encoder" }, '
    own = '{ kind = "heads", of = "scores", label = { "demo:decoder" = "Own" } }]'
    change(recipe, 'figures = [{ kind = "layers", of = "scores" }]', heatmap + matrix + own)
    report = build_report(recipe, tmp_path / "out")
    assert report.failures == []
    assert [check.model for check in report.checks] == ["Enc"]
    text = (tmp_path / "out/report.md").read_text()
    assert "| Enc " in text
    assert "demo:encoder" not in text
    page = (tmp_path / "out/index.html").read_text()
    for name in ("Enc", "Dec"):
        assert f">{name}</option>" in page
    assert "(Enc)" in page
    files = pd.read_csv(tmp_path / "out/tables/scores.csv")
    assert set(files["model"]) == {"demo:encoder", "demo:decoder"}


@pytest.mark.parametrize(
    ("label", "facts"),
    [
        ('"demo:encodr" = "A"', "label: there is no model demo:encodr; did you mean demo:encoder"),
        ('"demo:encoder" = "A"\n"demo:decoder" = "A"', "would both be 'A'"),
        ('"demo:encoder" = ""', "label"),
    ],
)
def test_labels_are_checked_before_any_work(label: str, facts: str, recipe: Path, tmp_path: Path) -> None:
    change(recipe, 'text = "A *report*."', f"[label]\n{label}")
    with pytest.raises(UsageError, match=facts):
        build_report(recipe, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_label_of_no_model_in_a_file_is_refused_when_it_is_read(recipe: Path, tmp_path: Path) -> None:
    attngeo.score("demo:encoder").to_csv(tmp_path / "kept.csv", index=False)
    change(
        recipe, 'command = "score"\nmodels = ["demo:encoder", "demo:decoder"]', 'command = "file"\npath = "kept.csv"'
    )
    change(recipe, 'text = "A *report*."', '[label]\n"demo:encodr" = "Enc"')
    with refuses(UsageError, f"{recipe}: label: there is no model demo:encodr; did you mean demo:encoder"):
        build_report(recipe, tmp_path / "out")
    change(recipe, "demo:encodr", "demo:encoder")
    assert "| Enc " in (build_report(recipe, tmp_path / "out").folder / "report.md").read_text()


def test_captions_say_of_which_results_and_rows_and_what_is_shown(recipe: Path, tmp_path: Path) -> None:
    """Published models and values only if they are there: the demo models have none."""
    rows = attngeo.score("demo:encoder").assign(model="google-bert/bert-base-uncased")
    rows.to_csv(tmp_path / "bert.csv", index=False)
    change(recipe, "[[section]]", '[[results]]\nname = "bert"\ncommand = "file"\npath = "bert.csv"\n[[section]]')
    figures = ("", ", published = false", ', caption = "Own"')
    tables = (
        '"scores", where = { layer = [0, 1], stack = "encoder" }', '"scores", caption = "Mine"',
        '"scores", show = "published"', '"bert", show = "published"',
    )  # fmt: skip
    change(recipe, '{ kind = "layers", of = "scores" }', ", ".join(
        f'{{ kind = "size", of = "scores"{keys} }}' for keys in figures
    ))  # fmt: skip
    change(recipe, '{ of = "scores", show = "summary" }', ", ".join(f"{{ of = {keys} }}" for keys in tables))
    text = (build_report(recipe, tmp_path / "out").folder / "report.md").read_text()
    size = "Median symmetry against the number of parameters"
    for caption in (f"{size}, with the published models (Fig. 2) (scores)", f"{size} (scores)", "Own"):
        assert f"\n*{caption}*" in text
    for caption in (
        "scores: all rows where layer = 0 or 1 and stack = encoder", "Mine", "scores: medians over layers",
        "bert: medians over layers, measured and published",
    ):  # fmt: skip
        assert f"\n{caption}:\n" in text


def test_a_file_lists_models_and_patterns_relative_to_the_recipe(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    for step in (20, 3):
        shutil.copytree(ENCODER, tmp_path / f"run/checkpoint-{step}")
    (tmp_path / "models.txt").write_text("# checkpoints\n./run/*\n\n./none  # not made yet\ndemo:encoder\n")
    change(recipe, 'models = ["demo:encoder", "demo:decoder"]', 'models = ["demo:encoder"]\nmodels_file = "models.txt"')
    change(recipe, 'of = "scores" }]', 'of = "scores", models = ["./run/checkpoint-3"] }]')
    made = build_report(recipe, tmp_path / "out")
    assert [failure.what for failure in made.failures] == ["./none"]
    scored = ["demo:encoder", "./run/checkpoint-3", "./run/checkpoint-20"]
    assert [*pd.read_csv(tmp_path / "out/tables/scores.csv")["model"].unique()] == scored
    change(recipe, 'models = ["demo:encoder"]\nmodels_file = "models.txt"', 'models_file = "missing.txt"')
    with refuses(DataUnavailableError, "missing.txt", "list of models"):
        build_report(recipe, tmp_path / "out")
    change(recipe, 'models_file = "missing.txt"\n', "")
    with refuses(UsageError, "models", "models_file"):
        build_report(recipe, tmp_path / "out")


def test_patterns_of_models_are_relative_to_the_recipe_and_in_the_order_of_steps(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In results, figures and checks; a new folder that matches is scored, too, and nothing that matches is listed."""
    monkeypatch.chdir("/")
    for step in (0, 20, 100):
        shutil.copytree(ENCODER, tmp_path / f"run/checkpoint-{step}")
    change(recipe, '["demo:encoder", "demo:decoder"]', '["./run/*", "./none/*"]')
    change(recipe, 'of = "scores" }]', 'of = "scores", models = ["./run/*-?0"] }]')
    change(recipe, '["demo:encoder"]', '["./run/*0"]')
    made = build_report(recipe, tmp_path / "out")
    steps = [f"./run/checkpoint-{step}" for step in (0, 20, 100)]
    assert [*pd.read_csv(tmp_path / "out/tables/scores.csv")["model"].unique()] == steps
    assert [check.model for check in made.checks] == steps
    (failure,) = made.failures
    assert failure.what == "./none/*"
    assert f"no folder {tmp_path}/none" in str(failure)
    shutil.copytree(ENCODER, tmp_path / "run/checkpoint-3")
    change(recipe, '["./run/*", "./none/*"]', '["./run/checkpoint-100", "./run/*"]')
    change(recipe, 'command = "score"', 'command = "compare"')
    change(recipe, 'kind = "layers"', 'kind = "change-layers"')
    change(recipe, ', show = "summary"', "")
    change(recipe, "symmetry.median < 0.2", "change.max > 0")
    made = build_report(recipe, tmp_path / "out")
    assert [(check.model, check.failed) for check in made.checks] == [(step, False) for step in steps[:2]]
    others = pd.read_csv(tmp_path / "out/tables/scores.csv")["other"]
    assert [*others.unique()] == [steps[0], "./run/checkpoint-3", steps[1]]
    change(recipe, 'models = ["./run/*0"]', 'models = ["./walk/*"]')
    with refuses(UsageError, "check[1].models", "./walk/*"):
        build_report(recipe, tmp_path / "out")
