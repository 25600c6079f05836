"""Every kind of results that a recipe may request: columns are checked before the work, processes are counted in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.runs import write_config, write_text
from support.vectors import table, words, write_questions, write_text as write_vectors

from attngeo.errors import UsageError
from attngeo.figures.kinds import FIGURES
from attngeo.papers.wibisono2023.summaries import (
    AUTO_MPG_COLUMNS,
    SIMULATION_COLUMNS,
    measure_advantage,
    summarize_methods,
)
from attngeo.questions.table import QUESTIONS
from attngeo.reporting.recipe import read_recipe
from attngeo.reporting.report import build_report
from attngeo.session import Session
from attngeo.studies.run import run_task

# What a request of each command says beside its name, about files that the fixture `folder` writes.
REQUESTED = {
    "score": 'models = ["demo:encoder", "demo:decoder"]\noptions = { layers = [0], per_head = false }',
    "analogy": 'models = ["vectors.txt"]\noptions = { questions = "questions.txt", n_draws = 10 }',
    "pretrain": 'options = { model = "config.json", data = "text.txt", compare = ["default", "symmetric"], seeds = 2, '
    "steps = 2, batch_size = 8, seq_len = 16, vocab_size = 120 }",
    "compare": 'models = ["demo:encoder", "demo:decoder", "demo:minilm"]\noptions = { layers = [0], circuit = "ov" }',
    "compose": 'models = ["demo:encoder"]\noptions = { kind = "k", from_layers = "0" }',
    "lineage": 'models = ["demo:encoder", "demo:decoder", "demo:minilm"]\noptions = { n_permutations = 19 }',
    "gradients": 'models = ["demo:encoder"]\noptions = { sequences = 2, seq_len = 16 }',
    "mirrors": 'models = ["demo:encoder", "demo:decoder"]\noptions = { layers = [0], form = "plain" }',
    "positions": 'models = ["demo:encoder", "demo:decoder"]\noptions = { layers = [0] }',
    "theory": 'statements = ["lemma-1"]',
    "simulate": 'options = { methods = "lr", datasets = 4, shifts = ["1,0,0.9"] }',
    "auto-mpg": 'options = { methods = "lr", seeds = 4, data = "cars.csv" }',
    "efa": 'experiment = "synthetic"\noptions = { model = "fm", direction = "bi", epochs = 1, baselines = false, '
    "seeds = 2 }",
    "file": 'path = "rows.csv"',
}

# Those that consist of runs, which several processes can share.
STUDIES, JOBS = {"score", "compare", "positions", "mirrors", "lineage", "pretrain", "simulate", "auto-mpg", "efa"}, 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for a recipe, with the files that the requests name."""
    labels = words(12)
    write_vectors(tmp_path / "vectors.txt", labels, table([[row % 5, row % 3, 1] for row in range(12)]).matrix.tolist())
    write_questions(tmp_path / "questions.txt", {"all": [" ".join(labels[:4]), " ".join(labels[4:8])]})
    write_config(tmp_path)
    write_text(tmp_path)
    (tmp_path / "rows.csv").write_text("model,value\na,1\n")
    numbers = ["mpg", "displacement", "horsepower", "weight", "acceleration", "model year"]
    cars = [dict.fromkeys(numbers, at) | {"cylinders": 4, "origin": at % 2 + 1} for at in range(20)]
    pd.DataFrame(cars).to_csv(tmp_path / "cars.csv", index=False)
    return tmp_path


def write_recipe(folder: Path, command: str, shown: str, names: Sequence[str] = ("rows",)) -> Path:
    """A recipe with requests of one command, and a section."""
    requests = [f'[[results]]\nname = "{name}"\ncommand = "{command}"\n{REQUESTED[command]}\n' for name in names]
    path = folder / "r.toml"
    path.write_text(f'title = "Results"\n{"".join(requests)}[[section]]\ntitle = "Shown"\n{shown}\n')
    return path


def test_every_command_is_here() -> None:
    assert set(REQUESTED) == set(QUESTIONS)


@pytest.mark.parametrize("shown", ['columns = ["acuracy"]', "where = { acuracy = 1 }"])
@pytest.mark.parametrize("command", [command for command in QUESTIONS if command != "file"])
def test_an_unknown_column_is_found_before_the_work(command: str, shown: str, folder: Path) -> None:
    """Those of a file are known only when it is read."""
    recipe = write_recipe(folder, command, f'tables = [{{ of = "rows", {shown} }}]')
    with pytest.raises(UsageError, match=r"r\.toml: section \"Shown\"\.tables\[1\]\..*'acuracy'"):
        build_report(recipe, folder / "out")
    assert not (folder / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("command", QUESTIONS)
def test_no_more_processes_work_than_are_asked_for(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a report with two results of each kind. A process that waits for others is counted, too."""
    pools: list[int] = []
    counts: list[int] = []

    def run_here(function: Any, tasks: Sequence[Any], session: Session, jobs: int, **_: Any) -> Iterator[Any]:
        """In the place of processes: what a run starts is seen."""
        pools.append(jobs)
        counts.append(sum(pools))
        yield from [run_task(function, task, session) for task in tasks]
        pools.pop()

    monkeypatch.setattr("attngeo.studies.engine.run_in_processes", run_here)
    made = build_report(write_recipe(folder, command, "", names=("one", "two")), folder / "out", jobs=JOBS)
    assert made.failures == []
    assert len(counts) == (2 if command in STUDIES else 0)
    assert all(1 < count <= JOBS for count in counts)


def is_accepted(recipe: Path) -> bool:
    """Whether a recipe can be used. If not, the message has one line, with the place in the recipe."""
    message = ""
    try:
        read_recipe(recipe)
    except UsageError as error:
        message = str(error)
    assert message == "" or (message.startswith(f"{recipe}: ") and "\n" not in message)
    return not message


@pytest.mark.parametrize("command", QUESTIONS)
def test_every_kind_of_figure_is_accepted_or_refused_in_one_line(command: str, folder: Path) -> None:
    def accepts(kind: str, more: str = "") -> bool:
        return is_accepted(write_recipe(folder, command, f'figures = [{{ kind = "{kind}", of = "rows"{more} }}]'))

    accepted = {kind for kind in FIGURES if accepts(kind)}
    if command == "file":
        assert accepted == FIGURES.keys() - {"matrix", "outliers", "spectrum"}
    else:
        assert "paraphrases" not in accepted  # of explained analogies, which no command of a recipe makes
        assert not any(accepts(kind, ", where = { acuracy = 1 }") for kind in accepted)


@pytest.mark.parametrize("show", ["methods", "advantage"])
@pytest.mark.parametrize(("command", "columns"), [("simulate", SIMULATION_COLUMNS), ("auto-mpg", AUTO_MPG_COLUMNS)])
def test_a_table_of_methods_may_choose_any_of_its_columns(
    command: str, columns: Sequence[str], show: str, folder: Path
) -> None:
    rows = pd.DataFrame([dict.fromkeys(columns, 1.0) | {"method": method} for method in ("lr", "atn")])
    expected = list((summarize_methods if show == "methods" else measure_advantage)(rows).columns)
    for name in (command, "file"):
        choose = f'tables = [{{ of = "rows", show = "{show}", columns = COLUMNS }}]'
        assert is_accepted(write_recipe(folder, name, choose.replace("COLUMNS", str(expected))))
        for column in ("acuracy_mean", "model"):
            assert not is_accepted(write_recipe(folder, name, choose.replace("COLUMNS", str([*expected, column]))))
