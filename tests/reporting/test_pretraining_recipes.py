"""The recipes of the paper's trainings, run as they are: two steps of narrow models on stand-in data."""

from __future__ import annotations

import dataclasses
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.runs import write_text

from attngeo.papers.saponati2025.published import published_training
from attngeo.pretrain import image_training, text
from attngeo.pretrain.presets import PRESETS
from attngeo.pretrain.text_source import TextSource
from attngeo.reporting.recipe import read_recipe
from attngeo.reporting.report import build_report

FOLDER = Path(__file__).parents[2] / "reports/pretraining"
RECIPES = sorted(FOLDER.glob("*.toml"))
# What makes the models and their trainings small; layers, objectives, data and initialisations are the recipe's.
NARROW = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
SHORT: dict[str, dict[str, Any]] = {
    "text": {"steps": 2, "warmup": 1, "batch_size": 2, "grad_accum": 1, "seq_len": 16, "vocab_size": 120},
    "image": {"steps": 2, "warmup": 1, "batch_size": 2, "grad_accum": 1},
}
UNUSED = ("epochs", "warmup_epochs")


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the paper's data, and the widths of its models; the data that were opened, as recipes name them."""
    lines, opened, open_text = write_text(tmp_path).read_text().splitlines(), list[str](), text.open_text
    pd.DataFrame({"id": range(len(lines)), "comment_text": lines}).to_csv(tmp_path / "train.csv", index=False)
    digits = image_training.open_images("digits")

    def open_stand_in(reference: str, *, space_characters: bool, **more: Any) -> TextSource:
        opened.append(reference)
        if reference.startswith("jigsaw:"):
            source = open_text(reference, space_characters=space_characters, **more)
            return dataclasses.replace(source, tokenizer="train")
        return TextSource(reference, partial(iter, lines), streaming=True, space_characters=space_characters)

    def open_images(reference: str, **_: Any) -> Any:
        opened.append(reference)
        train, test = digits.train.select(range(64)), digits.test.select(range(4))
        return dataclasses.replace(digits, name=reference, train=train, test=test)

    monkeypatch.setattr(text, "open_text", open_stand_in)
    monkeypatch.setattr(image_training, "open_images", open_images)
    for name, preset in PRESETS.items():
        options = {key: value for key, value in preset.options.items() if key not in UNUSED}
        small = {**options, **SHORT[preset.task], "log_every": 1}
        monkeypatch.setitem(
            PRESETS, name, dataclasses.replace(preset, config={**preset.config, **NARROW}, options=small)
        )  # type: ignore[arg-type]
    return opened


def test_there_is_a_recipe_for_every_published_training() -> None:
    planned = {
        (str(options["model"]), str(options["data"]).partition(":")[0])
        for path in RECIPES
        for options in [read_recipe(path).recipe.results[0].options.given]
    }
    published = published_training()
    assert planned == set(zip(published["model"], published["data"], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_trains_and_shows_the_published_numbers(path: Path, stand_ins: list[str], tmp_path: Path) -> None:
    shutil.copy(path, tmp_path)
    report = build_report(tmp_path / path.name, tmp_path / "out")
    assert report.failures == []
    given = read_recipe(path).recipe.results[0].options.given
    assert len(stand_ins) == 2 * len(given.get("objectives", ["image"]))
    runs = pd.read_csv(tmp_path / "out/tables/curves-runs.csv")
    curves = pd.read_parquet(tmp_path / "out/tables/curves.parquet")
    assert curves["layer"].nunique() == PRESETS[given["model"]].config["num_hidden_layers"]
    assert (runs["steps"] == 2).all()
    published = published_training().query("model == @given['model']").set_index(["data", "objective", "init"])
    for _, row in runs.iterrows():
        place = (given["data"].partition(":")[0], row["objective"], row["init"])
        if place not in published.index:  # the decoder of 24 layers
            assert row["objective"] == "clm"
            assert pd.isna(row["final_loss_published"])
            continue
        assert row["final_loss_published"] == published.loc[place, "final_loss"]
        if row["objective"] == "image":
            assert row["eval_accuracy_published"] == published.loc[place, "eval_accuracy"]
            assert 0 <= row["eval_accuracy"] <= 1
        elif row["init"] == "symmetric":
            assert row["speed_up_published"] == published.loc[place, "speed_up"]
