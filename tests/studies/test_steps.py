"""Steps of a training in names of revisions, folders and models."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

import attngeo
from attngeo.studies.models import list_models, natural_order
from attngeo.studies.steps import split_step, step_of

# Names as they are on the Hub and on disks → the step.
NAMES = {
    "step1000": 1000, "step-1000": 1000, "step_1000": 1000, "checkpoint-500": 500, "iter_0001000": 1000, "step0": 0,
    "step1000-tokens4B": 1000, "stage1-step1000-tokens4B": 1000, "stage2-ingredient3-step1000-tokens4B": 1000,
    "global_step1000": 1000, "ckpt_100": 100, "Step-20K": 20_000, "epoch=3-step=1200": 1200, "iteration-7": 7,
    "iter_0001000_hf": 1000, "main": None, "v1.0": None, "step": None, "step3.5": None, "step2b": None,
    "instep5": None, "misstep-5": None, "epoch3": None, "stage1": None, "7b-chat": None,
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_name_states_its_step(name: str) -> None:
    assert step_of(name) == NAMES[name]
    assert split_step(f"org/name-70m@{name}") == ("org/name-70m", NAMES[name])


@pytest.mark.parametrize(
    ("name", "model", "step"),
    [
        ("org/step3", "org", 3),
        ("org/step3@main", "org/step3", None),
        ("org/step3@step7", "org/step3", 7),
        ("google/multiberts-seed_0-step_20k", "google/multiberts-seed_0", 20_000),
        ("org/model-1.1B-step-50K-105b", "org/model-1.1B", 50_000),
        ("./runs/a/checkpoint-500/", "./runs/a", 500),
        ("runs/step1000-tokens4B", "runs", 1000),
        ("runs/step10/checkpoint-20", "runs/step10", 20),
        ("runs/checkpoint-20/model.safetensors", "runs/model.safetensors", 20),
        ("checkpoint-500", ".", 500),
        ("demo:encoder", "demo:encoder", None),
        ("/mnt/me@host/a/checkpoint-10", "/mnt/me@host/a", 10),
        ("/mnt/me@host/step5/final", "/mnt/me@host/final", 5),
        ("/mnt/me@host/final", "/mnt/me@host/final", None),
        ("org/name/model.gguf@step7", "org/name/model.gguf", 7),
        ("a label@step7", "a label", 7),
    ],
)
def test_models_are_what_their_checkpoints_have_in_common(name: str, model: str, step: int | None) -> None:
    assert split_step(name) == (model, step)


@pytest.mark.parametrize("pattern", ["step{}", "step-{}", "iter_{:07}", "checkpoint-{}", "stage1-step{}-tokens4B"])
def test_the_natural_order_of_names_is_that_of_their_steps(pattern: str) -> None:
    steps = [0, 1, 2, 8, 64, 512, 1000, 10_000, 143_000]
    names = [pattern.format(step) for step in steps]
    shuffled = random.Random(0).sample(names, len(names))
    assert [step_of(name) for name in sorted(shuffled, key=natural_order)] == steps


def test_tables_of_checkpoints_are_in_the_order_of_their_steps(tmp_path: Path) -> None:
    """A shell gives checkpoint-1000 before checkpoint-20. Other models, and the first of `compare`, stay in place."""
    encoder = Path(attngeo.__file__).parent / "demos/encoder"
    run = [str(tmp_path / f"run/checkpoint-{step}") for step in (0, 20, 1000)]
    for folder in run:
        shutil.copytree(encoder, folder)
    listed = [run[0], "demo:encoder", run[2], run[1]]
    rows = attngeo.score(listed, layers=[0])
    assert rows["model"].tolist() == [run[0], "demo:encoder", run[1], run[2]]
    assert list_models(listed) == listed
    changes = attngeo.compare([run[2], run[1], run[0]], layers=[0])
    assert changes["model"].unique().tolist() == [run[2]]
    assert changes["other"].tolist() == [run[0], run[1]]
    figure = attngeo.plot("layers", listed)
    names = [trace.name for trace in figure.data if trace.showlegend]
    assert [name.rpartition("-")[2] for name in names] == ["0", "demo:encoder", "20", "1000"], names
