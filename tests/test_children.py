"""Processes that are started look for modules where their caller does, and never beside the inputs of a command."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from datetime import date
from multiprocessing import util
from pathlib import Path
from typing import Any

import pytest
from attngeo.commands import app
from support.dask_cluster import start_cluster
from support.data import make_cars, write_uci
from support.planted import list_modules, plant, read_notes
from support.runs import write_config, write_text

from attngeo.bounds.children import start_safely

ATTNGEO = Path(sys.executable).with_name("attngeo")
DEMOS = Path(__file__).parents[1] / "attngeo/demos"
RECIPE = """
title = "Two"
[[results]]
name = "scores"
command = "score"
models = ["{folder}", "demo:decoder"]
[[section]]
title = "Layers"
figures = [{{ kind = "layers", of = "scores" }}]
"""
PRETRAIN = (
    "--steps", "4", "--batch-size", "8", "--grad-accum", "1", "--seq-len", "16", "--vocab-size", "120",
    "--log-every", "2",
)  # fmt: skip
# What each command reads, from the folders `inputs` and its working folder.
COMMANDS = {
    "score": ("score", ".", "../model", "--jobs", "2"),
    "compose": ("compose", ".", "../model", "--jobs", "2"),
    "mirrors": ("mirrors", ".", "../model", "--jobs", "2"),
    "gradients": ("gradients", "demo:encoder", "demo:decoder", "--sequences", "1", "--seq-len", "8", "--jobs", "2"),
    "analogy": ("analogy", "demo:encoder", "demo:decoder", "--n-draws", "0", "--jobs", "2"),
    "inspect": ("inspect", ".", "../model", "--jobs", "2"),
    "compare": ("compare", ".", "../model", "demo:encoder", "--jobs", "2"),
    "lineage": ("lineage", ".", "../model", "demo:encoder", "--n-permutations", "19", "--jobs", "2"),
    "report": ("report", "../recipe/recipe.toml", "-o", "../page", "--jobs", "2"),
    "pretrain": (
        "pretrain", "--compare", "default,symmetric", "--model", "../recipe", "--data", "../data/text.txt", *PRETRAIN,
        "-o", "../runs", "--jobs", "2",
    ),
    "efa run": (
        "efa", "run", "temperature", "--data", "../data", "--model", "fm", "--n-neighbors", "1", "--epochs", "1",
        "--direction", "bi", "--no-baselines", "--seeds", "2", "--jobs", "2",
    ),
    "tabular simulate": (
        "tabular", "simulate", "--shifts", "5,0,0.9", "--datasets", "2", "--methods", "lr", "--rows", "100",
        "--jobs", "2",
    ),
    "tabular auto-mpg": (
        "tabular", "auto-mpg", "--data", "../data/auto-mpg.data", "--seeds", "2", "--methods", "lr", "--jobs", "2",
    ),
    "positions": ("positions", ".", "../model", "--jobs", "2"),
}  # fmt: skip
# A user's script, with functions in a file beside it. joblib sets a variable of its own when it is imported.
HELPERS = """
import os
import sys

def tell(number, session):
    return number * 10, sys.path, sorted(name.partition(".")[0] for name in sys.modules)
"""
SCRIPT = """
import json
import os
import sys

import joblib
from helpers import tell

from attngeo.session import Session, StudyOptions
from attngeo.studies.engine import run_study

if __name__ == "__main__":
    before = dict(os.environ), list(sys.path)
    outcomes = run_study(tell, [1, 2], Session(study=StudyOptions(jobs=2)))
    assert (dict(os.environ), list(sys.path)) == before
    json.dump([sys.path, *(outcome.result for outcome in outcomes)], sys.stdout)
"""
# A training on images whose pictures other processes decode, as on a machine with a GPU. Some systems start processes
# in this way by default.
TRAINING = """
import multiprocessing
import sys
from pathlib import Path

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[2])
    sys.path.insert(0, sys.argv[1])
    import attngeo.pretrain.image_training as training
    from attngeo.pretrain.runs import run
    from support.images import small_image_options

    training.image_workers = lambda _: 1
    place = Path(sys.argv[3])
    run(small_image_options(place, steps=1, warmup=0, log_every=1), place / "run")
"""


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """The file that names the planted files that were executed."""
    return tmp_path / "notes"


@pytest.fixture
def stranger(tmp_path: Path, notes: Path) -> Path:
    """The folder of a stranger: a checkpoint, and a file for each module."""
    folder = tmp_path / "stranger"
    shutil.copytree(DEMOS / "encoder", folder)
    plant(notes, folder)
    return folder


@pytest.fixture
def inputs(tmp_path: Path, notes: Path, stranger: Path) -> Path:
    """The folder of `stranger`, beside others of the same kind: another checkpoint, a recipe and data."""
    model, recipe, data = (tmp_path / name for name in ("model", "recipe", "data"))
    shutil.copytree(DEMOS / "encoder", model)
    plant(notes, model, recipe, data)
    (recipe / "recipe.toml").write_text(RECIPE.format(folder=model))
    write_config(recipe)
    write_text(data)
    (data / "auto-mpg.data").write_text(write_uci(make_cars(60)))
    write_temperatures(data)
    return stranger


def write_temperatures(folder: Path) -> None:
    """Temperatures of three cities, as `efa run temperature` reads them."""
    cities = ("Alabama|Birmingham", "South Carolina|Charleston", "West Virginia|Charleston")
    days = [date(year, 10, day) for year in range(2007, 2020) for day in range(1, 32)]
    days += [date(year, 9, day) for year in range(2007, 2020) for day in (29, 30)]
    for name, month in (("october_2007_2019.csv", 10), ("sep29_30_2007_2019.csv", 9)):
        lines = [f"{day},{day.day},{day.year - 1950},50.5" for day in days if day.month == month]
        (folder / name).write_text("\n".join([f"date,{','.join(cities)}", *lines, ""]))
    places = [f"{city.replace('|', ',')},{30 + at},{-90 - at}" for at, city in enumerate(cities)]
    (folder / "all_cities_lat_lon.csv").write_text("\n".join(["State,City,Latitude,Longitude", *places, ""]))


def start(command: Sequence[object], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **variables}
    return subprocess.run(
        [str(part) for part in command], cwd=folder, env=os.environ | environment, capture_output=True, text=True,
        check=False, timeout=600,
    )  # fmt: skip


def run_script(folder: Path, text: str, *arguments: object, working: Path) -> subprocess.CompletedProcess[str]:
    """Write a script to a folder, and run it with a working folder."""
    folder.mkdir()
    (folder / "script.py").write_text(text)
    (folder / "helpers.py").write_text(HELPERS)
    done = start([sys.executable, folder / "script.py", *arguments], working)
    assert done.returncode == 0, done.stderr
    return done


def test_a_planted_file_is_noticed(stranger: Path, notes: Path) -> None:
    """The other tests can fail: Python itself runs files of the working folder."""
    start([sys.executable, "-c", "import joblib"], stranger)
    assert str(stranger / "joblib.py") in read_notes(notes)


def test_processes_of_a_script_have_its_path_and_no_more(stranger: Path, notes: Path, tmp_path: Path) -> None:
    done = run_script(tmp_path / "mine", SCRIPT, working=stranger)
    assert read_notes(notes) == []
    path, *outcomes = json.loads(done.stdout)
    assert path[0] == str(tmp_path / "mine")
    assert [result for result, _, _ in outcomes] == [10, 20]
    for _, of_process, imported in outcomes:
        assert of_process == path
        # The planted files are named like all modules that such a process imports.
        assert {*imported} - {"__main__", "__mp_main__", "helpers"} <= list_modules()


@pytest.mark.slow
def test_the_working_folder_is_searched_where_the_caller_searches_it(tmp_path: Path) -> None:
    """As in an interactive session."""
    (tmp_path / "helpers.py").write_text(HELPERS)
    done = start([sys.executable, "-c", SCRIPT], tmp_path)
    assert done.returncode == 0, done.stderr
    path, *outcomes = json.loads(done.stdout)
    assert path[0] == ""
    assert [of_process[0] for _, of_process, _ in outcomes] == [str(tmp_path)] * 2


def test_flags_of_python_are_those_of_its_children(tmp_path: Path) -> None:
    """Without the variables of the environment, no child looks where these say."""
    code = "from attngeo.bounds.children import safe_variables as v; print(v())"
    isolated = start([sys.executable, "-I", "-c", code], tmp_path)
    plain = start([sys.executable, "-c", code], tmp_path)
    assert ast.literal_eval(plain.stdout) == {"PYTHONSAFEPATH": "1"}
    assert ast.literal_eval(isolated.stdout) == {
        "PYTHONSAFEPATH": "1", "PYTHONPATH": "", "PYTHONHOME": "", "PYTHONNOUSERSITE": "1",
    }  # fmt: skip


def test_blocks_overlap_in_threads() -> None:
    flags: Any = util
    before = flags._args_from_interpreter_flags
    begun, ended = threading.Event(), threading.Event()

    def other() -> None:
        with start_safely():
            begun.set()
            ended.wait(60)

    thread = threading.Thread(target=other)

    def fail() -> None:
        with start_safely():
            thread.start()
            assert begun.wait(60)
            assert flags._args_from_interpreter_flags() == [*before(), "-P"]
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert flags._args_from_interpreter_flags() == [*before(), "-P"]
    ended.set()
    thread.join()
    assert flags._args_from_interpreter_flags is before


def test_python_m_looks_for_its_further_modules_elsewhere(notes: Path, tmp_path: Path) -> None:
    working = tmp_path / "working"
    plant(notes, working)
    # Python itself takes the first ones from the folder.
    for path in working.iterdir():
        if path.stem not in ("typer", "pydantic", "rich"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    done = start([sys.executable, "-m", "attngeo", "theory", "--help"], working)
    assert (done.returncode, read_notes(notes)) == (0, []), done.stderr


def test_every_command_with_processes_is_tested() -> None:
    found = {name for name, command in list_commands() if any("--jobs" in option.opts for option in command.params)}
    assert found == COMMANDS.keys()


def list_commands() -> Iterator[tuple[str, Any]]:
    """The commands, and those of groups, by their names."""
    for name in app.COMMANDS:
        command = app.load_command(name)
        for part, inner in getattr(command, "commands", {"": command}).items():
            yield f"{name} {part}".strip(), inner


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_runs_a_file_beside_its_inputs(name: str, inputs: Path, notes: Path, tmp_path: Path) -> None:
    browser = tmp_path / "bin/chromium"
    browser.parent.mkdir()
    browser.write_text("#!/bin/sh\n")
    browser.chmod(0o755)
    path = f"{browser.parent}{os.pathsep}{os.environ['PATH']}"
    done = start([ATTNGEO, *COMMANDS[name]], inputs, PATH=path)
    assert (done.returncode, read_notes(notes)) == (0, []), done.stderr


@pytest.mark.slow
def test_python_m_with_p_runs_no_file_beside_its_inputs(inputs: Path, notes: Path) -> None:
    done = start([sys.executable, "-P", "-m", "attngeo", *COMMANDS["score"]], inputs)
    assert (done.returncode, read_notes(notes)) == (0, []), done.stderr


@pytest.mark.slow
def test_a_cluster_runs_no_file_beside_its_inputs(inputs: Path, notes: Path, tmp_path: Path) -> None:
    with start_cluster(tmp_path, 1) as cluster:
        done = start([ATTNGEO, "score", ".", "../model", "--cluster", cluster.address], inputs)
    assert (done.returncode, read_notes(notes)) == (0, []), done.stderr


@pytest.mark.slow
def test_accelerate_runs_no_file_of_the_working_folder(inputs: Path, notes: Path) -> None:
    """As the documentation starts it."""
    options = ("--num_processes", 2, "--num_machines", 1, "--mixed_precision", "no", "--dynamo_backend", "no",
               "--main_process_port", 0, "--multi_gpu", "-m", "attngeo", "pretrain", "--model", "../recipe", "--data",
               "../data/text.txt", *PRETRAIN, "-o", "../run")  # fmt: skip
    accelerate = ATTNGEO.with_name("accelerate")
    done = start([accelerate, "launch", *options], inputs, PYTHONSAFEPATH="1", ACCELERATE_USE_CPU="true")
    assert (done.returncode, read_notes(notes)) == (0, []), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_processes_that_decode_pictures_run_no_file_of_the_working_folder(
    method: str, stranger: Path, notes: Path, tmp_path: Path
) -> None:
    run_script(tmp_path / "mine", TRAINING, Path(__file__).parent, method, tmp_path, working=stranger)
    assert read_notes(notes) == []
