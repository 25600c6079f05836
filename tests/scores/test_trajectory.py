"""Scores along a training: the step at which each has left its chance level."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import pytest
from conftest import Command
from support.checkpoints import weights, with_outputs, write_single
from support.messages import assert_fails, refuses

import attngeo
from attngeo.errors import DataError
from attngeo.scores.trajectory import DEPARTURE_COLUMNS, find_departures, follow_steps

WIDTH = 64
# Layers around their median, in standard deviations of chance: one far away, which moves a mean.
AROUND = (-0.5, 0.0, 30.0)


def chance_of(name: str, width: int) -> tuple[float, float]:
    """Mean and standard deviation of a score of random forms; `tests/geometry/test_scores.py` simulates them."""
    levels = {
        "symmetry": (1 / width, math.sqrt(2) / width),
        "directionality": (0.0, 3.4 / math.sqrt(width)),
        "trace_z": (0.0, 1.0),
    }
    return levels[name]


def trajectory(
    z: Mapping[str, Sequence[float]], steps: Sequence[int] = (), model: str = "org/a@step{}", width: int = WIDTH
) -> pd.DataFrame:
    """Rows of three layers and of three heads of one layer. z: score → what the median layer has at each step.

    Heads have three standard deviations less.
    """
    count = len(next(iter(z.values())))
    rows = []
    for number, step in enumerate(steps or [10 * place for place in range(count)]):
        for head in (None, *range(3)):
            for layer, offset in enumerate(AROUND):
                row = {"model": model.format(step), "stack": "decoder", "layer": layer, "head": head, "d_model": width}
                for name, values in z.items():
                    mean, deviation = chance_of(name, width)
                    row[name] = mean + deviation * (values[number] + offset - (0 if head is None else 3))
                rows.append(row)
    return pd.DataFrame(rows).astype({"head": "Int64", "layer": "Int64"})


def found(rows: pd.DataFrame, over: str = "layers") -> list[tuple[object, ...]]:
    """Score, step and the step before it, of each departure."""
    frame = find_departures(rows, over)  # type: ignore[arg-type]
    assert tuple(frame.columns) == DEPARTURE_COLUMNS
    return [
        tuple(None if pd.isna(value) else value for value in row)
        for row in frame[["score", "step", "after"]].itertuples(index=False)
    ]


@pytest.mark.parametrize(
    ("z", "step", "after"),
    [
        ([0.0, 1.9, 2.1, 3.0, 9.0], 20, 10),
        ([0.0, -1.9, -2.1, -3.0, -9.0], 20, 10),
        ([0.0, 5.0, 1.0, 3.0, 9.0], 30, 20),  # it comes back once
        ([0.0, 5.0, -5.0, -6.0, -6.0], 20, 10),  # from one side to the other through chance
        ([3.0, 4.0, 5.0, 5.0, 5.0], 0, None),
        ([0.0, 5.0, 5.0, 5.0, 1.9], None, None),
        ([0.0, 1.0, 1.0, 1.0, 2.1], 40, 30),
        ([0.0, math.nan, 5.0, math.nan, 9.0], 20, 0),  # a step without the score says nothing
        ([math.nan] * 5, None, None),
    ],
)
def test_a_departure_is_the_first_step_from_which_on_the_median_layer_is_outside(
    z: list[float], step: int | None, after: int | None
) -> None:
    rows = trajectory({"symmetry": z, "directionality": [0.0] * 5})
    shuffled = rows.sample(frac=1, random_state=0)
    assert found(rows) == [("symmetry", step, after), ("directionality", None, None)]
    assert found(shuffled) == found(rows)


def test_heads_have_departures_of_their_own() -> None:
    rows = trajectory({"symmetry": [0.0, 3.0, 9.0], "directionality": [0.0, -3.0, -9.0]})
    assert found(rows) == [("symmetry", 10, 0), ("directionality", 10, 0)]
    assert found(rows, "heads") == [("symmetry", 20, 10), ("directionality", 0, None)]


def test_only_scores_with_a_chance_level_have_departures() -> None:
    rows = trajectory({"symmetry": [0.0, 0.0, 9.0], "trace_z": [0.0, 9.0, 9.0]}).assign(
        directionality=0.0, stable_rank=5.0, positive_eigenvalues=1.0
    )
    assert found(rows) == [("symmetry", 20, 10), ("directionality", None, None), ("trace_z", 10, 0)]
    assert found(rows.drop(columns="symmetry")) == [("directionality", None, None), ("trace_z", 10, 0)]


def test_trainings_and_stacks_are_apart_and_widths_have_bands_of_their_own() -> None:
    """One score is outside for a wide model and inside for a narrow one."""
    rows = [
        trajectory({"symmetry": [0.0, 4.0, 8.0], "directionality": [0.0] * 3}),
        trajectory({"symmetry": [0.0, 0.0, 8.0], "directionality": [0.0] * 3}, model="runs/b/checkpoint-{}", width=16),
        trajectory({"symmetry": [0.0] * 3, "directionality": [0.0] * 3}).assign(stack="encoder"),
        trajectory({"symmetry": [9.0], "directionality": [9.0]}, model="org/a@main"),
    ]
    frame = find_departures(pd.concat(rows))
    of_symmetry = frame[frame["score"] == "symmetry"].astype(object).where(frame.notna(), None)
    assert of_symmetry[["model", "stack", "step", "after", "steps"]].to_numpy().tolist() == [
        ["org/a", "decoder", 10, 0, 3], ["runs/b", "decoder", 20, 10, 3], ["org/a", "encoder", None, None, 3],
    ]  # fmt: skip
    mean, deviation = chance_of("symmetry", 64)
    value = mean + 3 * deviation
    same = trajectory({"symmetry": [0.0], "directionality": [0.0]}).assign(symmetry=value)
    assert found(same)[0] == ("symmetry", 0, None)
    assert found(same.assign(d_model=16))[0] == ("symmetry", None, None)


def test_steps_that_contradict_each_other_or_are_missing_are_refused() -> None:
    z = {"symmetry": [0.0, 9.0], "directionality": [0.0, 0.0]}
    stages = pd.concat([trajectory(z, model=f"org/a@stage{stage}-step{{}}") for stage in (1, 2)])
    with refuses(DataError, "org/a@stage1-step0", "org/a@stage2-step0", "step 0", "org/a@stage1-*"):
        follow_steps(stages)
    with refuses(DataError, "run/checkpoint-1", "run/ckpt-1", "leave out one of them"):
        follow_steps(pd.concat([trajectory(z, [1, 2], model=f"run/{word}-{{}}") for word in ("checkpoint", "ckpt")]))
    with refuses(DataError, "org/a@main", "org/a@v1", "org/name@step1000", "run/checkpoint-500"):
        find_departures(pd.concat([trajectory(z, [0, 1], model=f"org/a@{name}") for name in ("main", "v1")]))
    with refuses(DataError, "d_model", "attngeo.score"):
        find_departures(trajectory(z).drop(columns="d_model"))
    followed = follow_steps(pd.concat([trajectory(z), trajectory(z, [0, 1], model="org/a@main")]))
    assert (set(followed["model"]), sorted(followed["step"].unique())) == ({"org/a"}, [0, 10])


def write_run(folder: Path, steps: Sequence[int], departure: int) -> list[Path]:
    """Checkpoints of a training whose keys are those of random weights, and from a step on copies of the queries."""
    folders = []
    for step in steps:
        tensors = with_outputs(weights(seed=step))
        if step >= departure:
            for name in [name for name in tensors if "k_proj" in name]:
                tensors[name] = tensors[name.replace("k_proj", "q_proj")].unflatten(0, (2, 2, 6))[:, 0].flatten(0, 1)
        folders.append(write_single(folder / f"checkpoint-{step}", tensors))
    return folders


@pytest.mark.parametrize("circuit", ["qk", "both"])
def test_the_command_says_when_three_steps_are_scored(inside: Command, tmp_path: Path, circuit: str) -> None:
    write_run(tmp_path / "run", (0, 10, 200), 10)
    models = [f"run/checkpoint-{step}" for step in (200, 0, 10)]
    run = inside("score", *models, "demo:encoder", "--circuit", circuit, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    table = run.stdout[run.stdout.index("differs from chance from step") :].splitlines()
    stack = "decoder qk" if circuit == "both" else "decoder"
    assert table[0].split() == ["differs", "from", "chance", "from", "step", "stack", "symmetry", "directionality"]
    assert table[1].split()[:-1] == ["run", *stack.split(), "10", "(after", "0)"]
    assert len(table) == (3 if circuit == "both" else 2)
    few = inside("score", *models[:2], cwd=tmp_path)
    chosen = inside("score", *models, "--columns", "model,symmetry", cwd=tmp_path)
    data = inside("score", *models, "--format", "json", cwd=tmp_path)
    assert "differs from chance from step" not in few.stdout + chosen.stdout
    table = inside("score", *models, cwd=tmp_path).stdout.partition("differs from chance from step")[2]
    assert table
    assert (
        inside("score", *models, "--summary", cwd=tmp_path).stdout.partition("differs from chance from step")[2]
        == table
    )
    assert len(json.loads(data.stdout)) == 6


def test_a_step_of_two_stages_costs_the_command_its_table_alone(inside: Command, tmp_path: Path) -> None:
    write_run(tmp_path / "run", (0, 10, 200), 10)
    (tmp_path / "run" / "checkpoint-10").rename(tmp_path / "run" / "checkpoint-0-again")
    models = [f"run/checkpoint-{step}" for step in ("0", "0-again", "200")]
    run = inside("score", *models, cwd=tmp_path)
    assert run.returncode == 0
    assert "differs from chance from step" not in run.stdout
    assert [line for line in run.stderr.splitlines() if "run/checkpoint-0 and run/checkpoint-0-again" in line]
    quiet = inside("score", *models, "--quiet", cwd=tmp_path)
    assert (quiet.stderr, quiet.returncode) == ("", 0)


@pytest.mark.usefixtures("no_pictures")
def test_folders_of_a_training_are_drawn_by_the_command_and_a_recipe(inside: Command, tmp_path: Path) -> None:
    models = [f"run/{folder.name}" for folder in write_run(tmp_path / "run", (0, 10, 200), 10)]
    drawn = inside("plot", "trajectory", *models, "-o", "t.json", cwd=tmp_path)
    assert drawn.returncode == 0, drawn.stderr
    line = next(trace for trace in json.loads((tmp_path / "t.json").read_text())["data"] if trace.get("name"))
    assert (line["x"][1:], len(line["x"])) == ([10, 200], 3)
    recipe = (
        f'title = "Own"\n[[results]]\ncommand = "score"\nname = "run"\nmodels = {json.dumps(models)}\n'
        '[[section]]\ntitle = "Steps"\nfigures = [{ kind = "trajectory", of = "run", over = "heads" }]\n'
    )
    (tmp_path / "r.toml").write_text(recipe)
    report = inside("report", "r.toml", "-o", "report", cwd=tmp_path)
    assert report.returncode == 0, report.stderr
    page = (tmp_path / "report/report.md").read_text("utf-8")
    assert "the step from which each is outside the range of chance" in page
    one = inside("plot", "trajectory", "demo:encoder", "-o", "no.json", cwd=tmp_path)
    assert_fails(one, DataError, "demo:encoder", "run/checkpoint-500")
    assert not (tmp_path / "no.json").exists()


def test_scores_of_folders_are_a_trajectory(tmp_path: Path) -> None:
    folders = write_run(tmp_path, (0, 10, 200), 10)
    rows = attngeo.score(folders)
    frame = find_departures(rows).set_index("score")
    assert frame.loc["symmetry", "model"] == str(tmp_path)
    assert frame.loc["symmetry", ["step", "after", "steps"]].tolist() == [10, 0, 3]
