"""`settings.json`: what a run is resumed with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.runs import small_options

from attngeo.errors import DataUnavailableError, TrainingError, UsageError
from attngeo.pretrain import ImagePretrainOptions, TextPretrainOptions, make_options
from attngeo.pretrain.settings_file import FILE, read_settings, resume_options, write_settings


@pytest.mark.parametrize("model", ["bert-mini", "vit-6"])
def test_options_are_read_as_they_were_written(model: str, tmp_path: Path) -> None:
    options = make_options(model, steps=10)
    write_settings(options, tmp_path)
    assert read_settings(tmp_path) == options


def test_a_resumed_run_keeps_its_options(tmp_path: Path) -> None:
    options = small_options(tmp_path)
    assert resume_options(options, {"save_every": 3, "lr": None}, tmp_path).save_every == 3
    with pytest.raises(UsageError, match=r"lr is 0\.5.* 0\.001"):
        resume_options(options, {"lr": 0.5}, tmp_path)
    with pytest.raises(UsageError, match="epochs"):
        resume_options(options, {"epochs": 5}, tmp_path)


def test_paths_are_compared_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = small_options(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert resume_options(options, {"data": "text.txt"}, tmp_path) == options
    (tmp_path / "default").mkdir()
    assert resume_options(options, {"init": "default"}, tmp_path) == options
    with pytest.raises(UsageError, match=r"init is \./default"):
        resume_options(options, {"init": "./default"}, tmp_path)


@pytest.mark.parametrize(
    ("stored", "kind"), [({"task": "text"}, TextPretrainOptions), ({"task": "image"}, ImagePretrainOptions)]
)
def test_files_of_version_0_1_are_read(stored: dict[str, str], kind: type, tmp_path: Path) -> None:
    """They have the options of both tasks."""
    both = {
        "model": "tiny", "objective": "clm", "init": "default", "data": "austen", "text_column": "", "tokenizer": "",
        "vocab_size": 1024, "steps": 40, "epochs": 0, "batch_size": 128, "grad_accum": 1, "lr": 0.002, "warmup": 4,
        "warmup_epochs": 0, "weight_decay": 0.01, "seq_len": 16, "mlm_probability": 0.15, "pack": True,
        "published_text": True, "mixup": 0.0, "cutmix": 0.0, "label_smoothing": 0.0, "ema_decay": 0.0,
        "precision": "auto", "seed": 0, "log_every": 4, "save_every": 200, "report_to": "none",
    }  # fmt: skip
    (tmp_path / FILE).write_text(json.dumps(both | stored))
    options = read_settings(tmp_path)
    assert type(options) is kind
    assert options.steps == 40
    assert isinstance(options, ImagePretrainOptions) or options.space_characters


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(DataUnavailableError, match=str(tmp_path / "nowhere")):
        read_settings(tmp_path / "nowhere")
    with pytest.raises(DataUnavailableError, match=FILE):
        read_settings(tmp_path)
    (tmp_path / "all/mlm-default-seed0").mkdir(parents=True)
    write_settings(small_options(tmp_path), tmp_path / "all/mlm-default-seed0")
    with pytest.raises(DataUnavailableError, match="several runs"):
        read_settings(tmp_path / "all")


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"task": "text"}', '{"task": "text", "colour": "red"}'])
def test_a_broken_file_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(TrainingError, match=FILE):
        read_settings(tmp_path)


@pytest.mark.parametrize(("name", "value"), [("pack", "false"), ("space_characters", 1), ("data", 5), ("init", None)])
def test_a_value_of_another_type_is_refused(name: str, value: object, tmp_path: Path) -> None:
    write_settings(make_options("bert-mini"), tmp_path)
    stored = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps(stored | {name: value}))
    with pytest.raises(TrainingError, match=f"{name} is {value!r}"):
        read_settings(tmp_path)
