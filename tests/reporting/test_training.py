"""Results of `command = "pretrain"`: trained in the report's folder, kept there, resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.reports import change, read_files
from support.runs import small_options, write_config, write_text

from attngeo.errors import InterruptedTrainingError, OutputError, UsageError
from attngeo.pretrain import compare_runs, runs
from attngeo.pretrain.comparison import build_curves
from attngeo.reporting.answers import Workplace
from attngeo.reporting.paths import RecipePaths
from attngeo.reporting.recipe import read_recipe
from attngeo.reporting.report import build_report
from attngeo.reporting.results import collect_results

OPTIONS = (
    'model = "config.json", data = "text.txt", steps = 4, batch_size = 8, grad_accum = 1, seq_len = 16, lr = 0.001, '
    "warmup = 2, vocab_size = 120, log_every = 2, save_every = 2"
)
RECIPE = """
title = "Training"
[[results]]
name = "curves"
command = "pretrain"
options = {{ {options} }}
[[section]]
title = "Curves"
figures = [
    {{ kind = "training", of = "curves", score = "loss", where = {{ objective = "mlm" }} }},
    {{ kind = "training-layers", of = "curves" }},
]
tables = [{{ of = "curves" }}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A text and a configuration beside a recipe of one run."""
    write_config(tmp_path)
    write_text(tmp_path)
    (tmp_path / "r.toml").write_text(RECIPE.format(options=OPTIONS))
    return tmp_path


def read_curves(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(folder / "tables/curves.parquet")


def small(folder: Path) -> Any:
    """The options of the recipe, for the library."""
    return small_options(folder, steps=4, log_every=2, save_every=2)


@pytest.mark.slow
def test_a_comparison_gives_the_curves_of_compare(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(folder / "r.toml", OPTIONS, OPTIONS + ', compare = "default,symmetric", objectives = ["mlm", "clm"]')
    expected = compare_runs(
        small(folder), folder / "own", compare=["default", "symmetric"], objectives=["mlm", "clm"]
    ).curves
    made = build_report(folder / "r.toml", folder / "out")
    assert made.failures == []
    pd.testing.assert_frame_equal(read_curves(folder / "out"), expected, check_dtype=False)
    page = made.page.read_text()
    assert page.count('class="chart"') == 2
    assert (folder / "out/runs/curves/clm-symmetric-seed0/model/model.safetensors").is_file()
    monkeypatch.setattr(runs, "run", None)  # what is finished is not trained again
    assert build_report(folder / "r.toml", folder / "out").failures == []


def test_a_run_is_kept_resumed_and_named_as_in_the_recipe(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = runs.run

    def interrupt(options: Any, place: Path, **more: Any) -> Any:
        real(options, place, **more)
        (place / "summary.json").unlink()  # as if it had been stopped after its last checkpoint
        raise InterruptedTrainingError("stopped at step 2 of 4", f"resume with: attngeo pretrain --resume -o {place}")

    monkeypatch.setattr(runs, "run", interrupt)
    with pytest.raises(InterruptedTrainingError) as error:
        build_report(folder / "r.toml", folder / "out")
    assert "curves: stopped at step 2 of 4" in str(error.value)
    assert "--resume" not in str(error.value)
    monkeypatch.setattr(runs, "run", real)
    build_report(folder / "r.toml", folder / "out")
    whole = runs.run(small(folder), folder / "own")
    pd.testing.assert_frame_equal(read_curves(folder / "out"), build_curves([whole]), check_dtype=False)
    (made,) = json.loads((folder / "out/provenance.json").read_text())["results"]
    assert (made["model"], made["data"], made["steps"], made["objective"]) == ("config.json", "text.txt", 4, "mlm")
    report = {name: content for name, content in read_files(folder / "out").items() if not name.startswith("runs/")}
    assert not any(str(folder).encode() in content for content in report.values())


def test_answers_that_were_kept_know_what_was_trained(folder: Path) -> None:
    """By its model and data, runs are put beside published ones."""
    place = Workplace(paths=RecipePaths(folder), folder=folder / "out")
    first, kept = (collect_results(read_recipe(folder / "r.toml"), place) for _ in range(2))
    assert kept.find("curves").attrs["model"] == "config.json"
    assert kept.origins == first.origins


@pytest.mark.parametrize("place", ["", "elsewhere"])
def test_names_win_over_paths(place: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"init": "symmetric", "tokenizer": "train", "data": "austen"}
    for name in names.values():
        (folder / place / name).mkdir(parents=True)
    monkeypatch.chdir(folder / place)
    change(folder / "r.toml", 'data = "text.txt"', ", ".join(f'{key} = "{name}"' for key, name in names.items()))
    asked = []

    def note(options: Any, *_: Any, **__: Any) -> Any:
        asked.append(options)
        raise InterruptedTrainingError("stopped", "resume")

    monkeypatch.setattr(runs, "run", note)
    with pytest.raises(InterruptedTrainingError):
        build_report(folder / "r.toml", folder / "out")
    assert [{key: getattr(options, key) for key in names} for options in asked] == [names]


def test_runs_of_other_options_or_data_are_not_mistaken_for_these(folder: Path) -> None:
    build_report(folder / "r.toml", folder / "out")
    change(folder / "r.toml", "lr = 0.001", "lr = 0.002")
    with pytest.raises(UsageError, match=r"lr is 0\.002.* 0\.001"):
        build_report(folder / "r.toml", folder / "out")
    change(folder / "r.toml", "lr = 0.002", "lr = 0.001")
    write_text(folder, lines=301)
    with pytest.raises(OutputError, match="runs/curves"):
        build_report(folder / "r.toml", folder / "out")
    (folder / "out/runs/curves/inputs.json").unlink()
    assert build_report(folder / "r.toml", folder / "out").failures == []


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("steps = 0", "steps"), ('steps = "ten"', "steps"), ("epochs = 1", "epochs"), ("seeds = 2", "seeds"),
        ("stepps = 3", "stepps"), ('model = "vit-tiny", objective = "clm"', "objective"),
        ('compare = "default,symmetric", init = "identity"', "init"),
    ],
)  # fmt: skip
def test_bad_options_are_refused_with_their_key(written: str, key: str, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(RECIPE.format(options=written))
    with pytest.raises(UsageError, match=rf"r\.toml: results \"curves\"\.options(\.{key}: |: .*{key})"):
        build_report(tmp_path / "r.toml", tmp_path / "out")


def test_figures_of_training_select_no_models(folder: Path) -> None:
    change(folder / "r.toml", 'kind = "training-layers"', 'models = ["a"], kind = "training-layers"')
    with pytest.raises(UsageError, match=r"figures\[2\]\.models"):
        build_report(folder / "r.toml", folder / "out")
