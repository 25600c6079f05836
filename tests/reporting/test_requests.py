"""Every kind of results that a recipe may request: columns checked before the work, and how many processes work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.runs import write_config, write_text
from support.vectors import table, words, write_questions
from support.vectors import write_text as write_vectors

from attngeo.errors import StudyError, UsageError
from attngeo.figures.kinds import FIGURES
from attngeo.papers.wibisono2023.tables import (
    AUTO_MPG_COLUMNS,
    SIMULATION_COLUMNS,
    measure_advantage,
    summarise_methods,
)
from attngeo.progress import ignore_progress
from attngeo.reporting import build_report, read_recipe
from attngeo.reporting.results import STUDIES, make_part
from attngeo.reporting.schema import COMMANDS, REQUESTS
from attngeo.studies.engine import RunOutcome, StudyTask, run_task

# What a request of each command says beside its name, about files that the fixture `folder` writes.
REQUESTED = {
    "score": 'models = ["demo:encoder"]\noptions = { layers = [0], per_head = false }',
    "analogy": 'models = ["vectors.txt"]\noptions = { questions = "questions.txt", draws = 10 }',
    "pretrain": 'options = { model = "config.json", data = "text.txt", compare = ["default", "symmetric"], seeds = 2, '
    "steps = 2, batch_size = 8, seq_len = 16, vocab_size = 120 }",
    "theory": 'statements = ["lemma-1"]',
    "simulate": 'options = { methods = "lr", datasets = 4, settings = ["1,0,0.9"] }',
    "auto-mpg": 'options = { methods = "lr", seeds = 4, data = "cars.csv" }',
    "efa": 'experiment = "synthetic"\noptions = { model = "fm", seeds = 2 }',
    "file": 'path = "rows.csv"',
}
JOBS = 4


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
    assert set(REQUESTED) == set(COMMANDS)


class Pools:
    """In the place of processes and of a cluster. most: how many were in work at once. runs: how many runs they got."""

    def __init__(self) -> None:
        self.most, self.runs, self._waiting = 0, 0, 0

    def run(self, function: Any, tasks: Sequence[StudyTask[Any]], where: Any, *_: Any) -> Iterator[RunOutcome[Any]]:
        """Make the parts of a report, all of which would be in work now; fail the runs of a part without work."""
        jobs = where if isinstance(where, int) else JOBS
        self.most = max(self.most, self._waiting + jobs)
        if getattr(function, "func", None) is make_part:
            self._waiting = jobs
            yield from [run_task(function, task, ignore_progress) for task in tasks]
            self._waiting = 0
        else:
            self.runs += len(tasks)
            self._waiting += jobs if self._waiting else 0
            yield from [RunOutcome(task.number, task.name, failure=StudyError("left out")) for task in tasks]


@pytest.mark.parametrize("where", [{"jobs": JOBS}, {"cluster": "tcp://host:1"}], ids=["jobs", "cluster"])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_more_processes_work_than_are_asked_for(
    command: str, where: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the results have runs of their own. On a cluster, a run that waits for others could wait for ever."""
    monkeypatch.setattr("attngeo.studies.engine.run_in_processes", (pools := Pools()).run)
    monkeypatch.setattr("attngeo.studies.cluster.run_on_cluster", pools.run)
    recipe = write_recipe(folder, command, "", names=("one", "two"))
    if has_runs := REQUESTS[COMMANDS.index(command)] in STUDIES:
        with pytest.raises(StudyError, match="left out"):
            build_report(recipe, folder / "out", **where)
    else:
        assert build_report(recipe, folder / "out", **where).failures == []
    assert 0 < pools.most <= JOBS
    assert (pools.runs >= 2 * JOBS) == has_runs


@pytest.mark.parametrize("shown", ['columns = ["acuracy"]', "where = { acuracy = 1 }"])
@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "file"])
def test_an_unknown_column_is_found_before_the_work(command: str, shown: str, folder: Path) -> None:
    """Those of a file are known only when it is read."""
    recipe = write_recipe(folder, command, f'tables = [{{ of = "rows", {shown} }}]')
    with pytest.raises(UsageError, match=r"r\.toml:\d+: section\[1\]\.tables\[1\]\..*'acuracy'"):
        build_report(recipe, folder / "out")
    assert not (folder / "out").exists()


def is_accepted(recipe: Path) -> bool:
    """Whether a recipe can be used. If not, the message has one line, with the place in the recipe."""
    message = ""
    try:
        read_recipe(recipe)
    except UsageError as error:
        message = str(error)
    assert message == "" or (message.startswith(f"{recipe}:") and "\n" not in message)
    return not message


@pytest.mark.parametrize("command", COMMANDS)
def test_every_kind_of_figure_is_accepted_or_refused_in_one_line(command: str, folder: Path) -> None:
    def accepts(kind: str, more: str = "") -> bool:
        return is_accepted(write_recipe(folder, command, f'figures = [{{ kind = "{kind}", of = "rows"{more} }}]'))

    accepted = {kind for kind in FIGURES if accepts(kind)}
    if command == "file":
        assert accepted == FIGURES.keys() - {"matrix"}
    else:
        assert "paraphrases" not in accepted  # of explained analogies, which no command of a recipe makes
        assert not any(accepts(kind, ", where = { acuracy = 1 }") for kind in accepted)


@pytest.mark.parametrize("show", ["methods", "advantage"])
@pytest.mark.parametrize(("command", "columns"), [("simulate", SIMULATION_COLUMNS), ("auto-mpg", AUTO_MPG_COLUMNS)])
def test_a_table_of_methods_may_choose_any_of_its_columns(
    command: str, columns: Sequence[str], show: str, folder: Path
) -> None:
    rows = pd.DataFrame([dict.fromkeys(columns, 1.0) | {"method": method} for method in ("lr", "atn")])
    expected = list((summarise_methods if show == "methods" else measure_advantage)(rows).columns)
    for name in (command, "file"):
        choose = f'tables = [{{ of = "rows", show = "{show}", columns = COLUMNS }}]'
        assert is_accepted(write_recipe(folder, name, choose.replace("COLUMNS", str(expected))))
        for column in ("acuracy_mean", "model"):
            assert not is_accepted(write_recipe(folder, name, choose.replace("COLUMNS", str([*expected, column]))))
