"""The options of a run, and the file that keeps them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.runs import small_options

from attngeo.errors import DataUnavailableError, TrainingError, UsageError
from attngeo.options import options_of
from attngeo.pretrain import ComparisonOptions, ImagePretrainOptions, TextPretrainOptions, make_options
from attngeo.pretrain.options import separate_comparison
from attngeo.pretrain.presets import PRESETS
from attngeo.pretrain.settings import SETTINGS, read_settings, resume_options, write_settings


def test_the_module_imports_nothing_heavy() -> None:
    code = (
        "import sys, attngeo.pretrain.options; print({'torch', 'pandas', 'transformers', 'numpy'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


@pytest.mark.parametrize("model", PRESETS)
def test_a_preset_gives_all_options(model: str) -> None:
    options = make_options(model)
    assert options.task == PRESETS[model].task
    assert isinstance(options, ImagePretrainOptions if model.startswith("vit") else TextPretrainOptions)
    assert {name: getattr(options, name) for name in PRESETS[model].options} == dict(PRESETS[model].options)


def test_options_are_those_of_the_paper() -> None:
    """Saponati et al. 2025, S2.3."""
    options = TextPretrainOptions.of("bert-mini")
    assert (options.steps, options.batch_size, options.grad_accum) == (200_000, 32, 8)
    assert (options.lr, options.warmup, options.weight_decay, options.mlm_probability) == (5e-5, 200, 0.01, 0.15)


def test_the_task_is_that_of_the_model_or_of_the_data() -> None:
    assert make_options().model == "tiny"
    assert make_options(data="digits").model == "vit-tiny"
    assert make_options(task="image").model == "vit-tiny"
    assert make_options("config.json", data="cifar10").task == "image"
    assert make_options("config.json").task == "text"


@pytest.mark.parametrize(
    ("model", "steps", "every"),
    [("tiny", 1000, 50), ("tiny", 100, 10), ("bert-mini", 60, 6), ("tiny", 7, 1), ("tiny", 97, 9)],
)
def test_short_runs_have_about_ten_logs(model: str, steps: int, every: int) -> None:
    assert make_options(model, steps=steps).log_every == every
    assert make_options(model, steps=steps, log_every=4).log_every == 4


def test_the_warm_up_fits_the_steps() -> None:
    assert make_options("tiny", steps=100).warmup == 10
    assert make_options("tiny", steps=100, warmup=50).warmup == 50
    assert make_options("tiny", steps=10_000).warmup == 60
    images = make_options("vit-tiny", steps=100)
    assert (images.warmup, images.warmup_epochs, images.epochs) == (10, 0, 0)
    images = make_options("vit-tiny", steps=100, warmup_epochs=1)
    assert (images.warmup, images.warmup_epochs) == (0, 1)
    assert make_options("vit-tiny", warmup=5).warmup_epochs == 0


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"steps": "ten"}, "steps is 'ten'"),
        ({"lr": 0.0}, "lr is 0"),
        ({"lr": math.nan}, "lr is nan"),
        ({"mlm_probability": 1.0}, "mlm_probability is 1"),
        ({"mlm_probability": 0.0}, "mlm_probability is 0"),
        ({"objective": "clm", "mlm_probability": 0.3}, "mlm_probability.*clm"),
        ({"objective": "nsp"}, "'nsp'.*mlm, clm"),
        ({"steps": 5, "warmup": 6}, "warmup is 6.* 5 "),
        ({"seq_len": 1}, "seq_len is 1.* 2"),
        ({"batch_size": 0}, "batch_size is 0.* 1"),
        ({"epochs": 2}, "epochs.*image"),
        ({"mixup": 0.2}, "mixup.*image"),
        ({"seed": 2**32}, "seed is 4,294,967,296"),
        ({"dropout": 1}, "dropout is unknown"),
        ({"task": "image"}, "bert-mini.* vit-tiny"),
        ({"task": "sound"}, "'sound'.*text, image"),
    ],
)
def test_text_options_without_a_meaning(given: dict[str, Any], facts: str) -> None:
    with pytest.raises(UsageError, match=facts):
        make_options("bert-mini", **given)


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        ({"steps": 5, "epochs": 2}, "steps and epochs"),
        ({"warmup": 5, "warmup_epochs": 2}, "warmup and warmup_epochs"),
        ({"epochs": 0}, "steps and epochs"),
        ({"seq_len": 16}, "seq_len.*text"),
        ({"objective": "clm"}, "objective.*text"),
        ({"ema_decay": 1.0}, "ema_decay is 1"),
        ({"label_smoothing": -0.1}, "label_smoothing is -0.1"),
    ],
)
def test_image_options_without_a_meaning(given: dict[str, Any], facts: str) -> None:
    with pytest.raises(UsageError, match=facts):
        make_options("vit-tiny", **given)


def test_existing_paths_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.csv").write_text("comment_text\na\n")
    monkeypatch.chdir(tmp_path)
    assert TextPretrainOptions.of(data="train.csv").data == str(tmp_path / "train.csv")
    assert TextPretrainOptions.of(data="jigsaw:train.csv").data == f"jigsaw:{tmp_path / 'train.csv'}"
    assert TextPretrainOptions.of(data="org/name").data == "org/name"


@pytest.mark.parametrize(
    ("option", "name"),
    [("model", "tiny"), ("data", "austen"), ("data", "digits"), ("tokenizer", "train"), ("init", "symmetric")],
)
def test_a_name_wins_over_a_path(option: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    assert getattr(make_options(**{option: name}), option) == name
    assert getattr(make_options(**{option: f"./{name}"}), option) == str(tmp_path / name)


def test_the_name_of_a_run_says_what_differs() -> None:
    assert make_options("tiny", objective="clm", seed=3).run_name == "tiny-clm-default-seed3"
    assert make_options("vit-tiny", init="symmetric").run_name == "vit-tiny-image-symmetric-seed0"
    assert make_options("folder/config.json", init="org/name").run_name == "folder-mlm-from-checkpoint-seed0"


def test_a_comparison_is_separated_from_its_runs() -> None:
    given = {"compare": ["default", "symmetric"], "objectives": None, "seeds": 2, "lr": 0.1, "model": "tiny"}
    comparison, rest = separate_comparison(given)
    assert comparison == ComparisonOptions(compare=["default", "symmetric"], seeds=2)
    assert rest == {"lr": 0.1, "model": "tiny"}
    assert not options_of(ComparisonOptions).keys() & options_of(TextPretrainOptions).keys()


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        ({"seeds": 3}, "seeds.*compare"),
        ({"objectives": ["mlm"]}, "objectives.*compare"),
        ({"compare": ["default", "symmetric"], "seeds": 0}, "seeds is 0"),
        ({"compare": ["default", "symmetric"], "objectives": ["nsp"]}, "'nsp'.*mlm, clm"),
        ({"compare": ["default", "symmetric"], "init": "identity"}, "init and compare"),
        ({"compare": ["default"], "objectives": ["clm"], "mlm_probability": 0.3}, "mlm_probability.*clm"),
    ],
)
def test_comparisons_without_a_meaning(given: dict[str, Any], facts: str) -> None:
    with pytest.raises(UsageError, match=facts):
        separate_comparison(given)


def test_the_help_shows_the_default_of_every_preset() -> None:
    declared = options_of(TextPretrainOptions) | options_of(ImagePretrainOptions)
    for name, preset in PRESETS.items():
        for option, value in preset.options.items():
            shown = str(declared[option].shown_default)
            assert f"{value} for" in shown, (name, option)
            assert name in shown or {"text": "for text", "image": "for images"}[preset.task] in shown, (name, option)


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


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(DataUnavailableError, match=str(tmp_path / "nowhere")):
        read_settings(tmp_path / "nowhere")
    with pytest.raises(DataUnavailableError, match=SETTINGS):
        read_settings(tmp_path)
    (tmp_path / "all/mlm-default-seed0").mkdir(parents=True)
    write_settings(small_options(tmp_path), tmp_path / "all/mlm-default-seed0")
    with pytest.raises(DataUnavailableError, match="several runs"):
        read_settings(tmp_path / "all")


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"task": "text"}', '{"task": "text", "colour": "red"}'])
def test_a_broken_file_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / SETTINGS).write_text(content)
    with pytest.raises(TrainingError, match=SETTINGS):
        read_settings(tmp_path)


@pytest.mark.parametrize(("name", "value"), [("pack", "false"), ("space_characters", 1), ("data", 5), ("init", None)])
def test_a_value_of_another_type_is_refused(name: str, value: object, tmp_path: Path) -> None:
    write_settings(make_options("bert-mini"), tmp_path)
    stored = json.loads((tmp_path / SETTINGS).read_text())
    (tmp_path / SETTINGS).write_text(json.dumps(stored | {name: value}))
    with pytest.raises(TrainingError, match=f"{name} is {value!r}"):
        read_settings(tmp_path)


def test_a_masked_decoder_has_a_share_of_masked_tokens() -> None:
    options = make_options(objective="clm", masked_decoder=True, mlm_probability=0.3)
    assert (options.masks_inputs, options.mlm_probability) == (True, 0.3)  # type: ignore[attr-defined]
    assert not make_options(objective="clm").masks_inputs  # type: ignore[attr-defined]


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match=r"stepz is unknown; did you mean steps"):
        make_options(stepz=3)
