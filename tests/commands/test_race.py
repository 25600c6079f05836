"""Two processes on one output: it is that of one of them, whole, or one of them is refused."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from support.forks import Forks
from support.messages import assert_states
from support.reports import read_files
from support.runs import write_config, write_text
from support.vectors import random_vectors, words, write_questions, write_text as write_vectors

from attngeo.errors import FolderInUseError

pytestmark = pytest.mark.slow  # each test starts two processes
RUN = ["--steps", 4, "--batch-size", 4, "--grad-accum", 1, "--seq-len", 16, "--warmup", 1, "--vocab-size", 120,
       "--log-every", 2, "--save-every", 4]  # fmt: skip
RECIPE = (
    'title = "{model}"\n[[results]]\nname = "a"\ncommand = "score"\nmodels = ["demo:{model}"]\n'
    '[[section]]\ntitle = "s"\ntables = [{{ of = "a" }}]\n'
)
MODELS = ("encoder", "decoder")


Racers = Callable[..., list[tuple[int, str]]]


@pytest.fixture(scope="module")
def racers(forks: Forks) -> Racers:
    """Run commands at the same time, in a folder: the exit code and the messages of each."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "SOURCE_DATE_EPOCH": "1700000000"}

    def run(folder: Path, *commands: list[object]) -> list[tuple[int, str]]:
        return [(done.returncode, done.stderr) for done in forks.run(*commands, cwd=folder, environment=environment)]

    return run


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands read, two of each."""
    folder = tmp_path_factory.mktemp("given")
    labels, choose = words(60), random.Random(0)
    for number, model in enumerate(MODELS):
        (folder / f"{model}.toml").write_text(RECIPE.format(model=model))
        write_vectors(folder / f"{model}.vec", labels, random_vectors(60, 8, seed=number))
        lines = [" ".join(choose.choices(labels, k=8)) for _ in range(300)]
        (folder / f"{model}.txt").write_text("\n".join(lines))
    write_questions(folder / "questions.txt", {"own": [" ".join(labels[i : i + 4]) for i in range(40)]})
    write_config(folder)
    write_text(folder)
    rows = ["sequence,item,colour,y", *(f"{at // 4},{'abcd'[at % 4]},{'rgb'[at % 3]},{at % 2}" for at in range(80))]
    (folder / "rows.csv").write_text("\n".join(rows))
    return folder


FILES = {
    "score csv": (["score", "demo:{model}", "-q"], "out.csv"),
    "score parquet": (["score", "demo:{model}", "-q"], "out.parquet"),
    "analogy": (["analogy", "{given}/{model}.vec", "--questions", "{given}/questions.txt", "-q"], "out.csv"),
    "plot html": (["plot", "heatmap", "demo:{model}"], "out.html"),
    "plot json": (["plot", "layers", "demo:{model}"], "out.json"),
    "cbow": (["cbow", "{given}/{model}.txt", "--dimensions", "8", "--epochs", "1", "-q"], "out.vec"),
    "report --init": (["report", "--init"], "out.toml"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_that_of_one_process(name: str, racers: Racers, given: Path, tmp_path: Path) -> None:
    if name == "cbow":
        pytest.importorskip("gensim")
    arguments, output = FILES[name]
    commands = [[part.format(model=model, given=given) for part in arguments] for model in MODELS]
    whole = []
    for number, command in enumerate(commands):
        alone = f"{number}-{output}"
        assert racers(tmp_path, [*command, "-o", alone]) == [(0, "")]
        whole.append((tmp_path / alone).read_bytes())
    found = racers(tmp_path, *([*command, "-o", output] for command in commands))
    assert found == [(0, ""), (0, "")]
    assert (tmp_path / output).read_bytes() in whole
    assert {path.name for path in tmp_path.iterdir()} == {output, f"0-{output}", f"1-{output}"}


def refused(found: list[tuple[int, str]]) -> int:
    """The number of the process that was refused; the other one has done its work."""
    codes = [code for code, _ in found]
    assert sorted(codes) == [0, FolderInUseError.exit_code], found
    loser = codes.index(FolderInUseError.exit_code)
    assert_states(found[loser][1], "in use")
    return loser


def test_a_run_is_that_of_one_process(racers: Racers, given: Path, tmp_path: Path) -> None:
    run = [
        "pretrain",
        "--model",
        given / "config.json",
        "--data",
        given / "text.txt",
        *RUN,
        "-o",
        "out",
        "-q",
        "--seed",
    ]
    seed = 1 - refused(racers(tmp_path, [*run, 0], [*run, 1]))
    for name in ("settings.json", "summary.json"):
        stored = json.loads((tmp_path / "out" / name).read_text())
        assert stored.get("settings", stored)["seed"] == seed
    assert pd.read_parquet(tmp_path / "out/geometry.parquet")["step"].unique().tolist() == [0, 2, 4]
    assert not [path for path in (tmp_path / "out").rglob("*") if "lock" in path.name or "partial" in path.name]


def test_a_comparison_is_that_of_one_process_also_beside_one_of_its_runs(
    racers: Racers, given: Path, tmp_path: Path
) -> None:
    run = ["pretrain", "--model", given / "config.json", "--data", given / "text.txt", *RUN, "-q", "-o"]
    comparison = [*run, "out", "--compare", "default,symmetric"]
    found = racers(tmp_path, comparison, [*run, "out/mlm-symmetric-seed0", "--init", "symmetric"])
    refused(found)
    again = racers(
        tmp_path, [*run, "out2", "--compare", "default,symmetric"], [*run, "out2", "--compare", "default,identity"]
    )
    winner = 1 - refused(again)
    compared = pd.read_csv(tmp_path / "out2/comparison.csv")["init"].tolist()
    assert compared == ["default", ["symmetric", "identity"][winner]]


def test_a_report_is_that_of_one_process(racers: Racers, given: Path, tmp_path: Path) -> None:
    commands = [["report", given / f"{model}.toml", "-q", "-o"] for model in MODELS]
    whole = []
    for model, command in zip(MODELS, commands, strict=True):
        assert racers(tmp_path, [*command, model])[0][0] == 0
        whole.append(read_files(tmp_path / model))
    loser = refused(racers(tmp_path, *([*command, "out"] for command in commands)))
    assert read_files(tmp_path / "out") == whole[1 - loser]


FITS: dict[str, list[object]] = {
    "efa": ["efa", "fit", "rows.csv", "--width", 4, "--epochs", 1, "--seed"],
    "tabular": ["tabular", "fit", "rows.csv", "--target", "y", "--methods", "atn", "--epochs", 1, "--seed"],
}


@pytest.mark.parametrize(("kind", "option"), [("efa", "--save"), ("efa", "--resume"), ("tabular", "--save")])
def test_a_saved_model_is_that_of_one_process(
    kind: str, option: str, racers: Racers, given: Path, tmp_path: Path
) -> None:
    """The other one is refused before it trains."""
    (tmp_path / "rows.csv").write_bytes((given / "rows.csv").read_bytes())
    whole = []
    for seed in (0, 1):
        assert racers(tmp_path, [*FITS[kind], seed, "--save", f"alone-{seed}"])[0][0] == 0
        whole.append(read_files(tmp_path / f"alone-{seed}"))
    assert whole[0] != whole[1]
    folders = ["out", "out"] if option == "--save" else ["out-0", "out-1"]
    resume = [] if option == "--save" else ["--resume", "state"]
    fits = [[*FITS[kind], seed, "--save", folders[seed], *resume] for seed in (0, 1)]
    loser = refused(racers(tmp_path, *fits))
    assert read_files(tmp_path / folders[1 - loser]) == whole[1 - loser]
    left = {path.name for path in tmp_path.iterdir()} - {"rows.csv", "alone-0", "alone-1"}
    assert left == {folders[1 - loser]}
