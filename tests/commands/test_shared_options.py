"""Options that mean the same in every command about models: which command has which, and what they do."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from subprocess import CompletedProcess

import pandas as pd
import pytest
from attngeo.commands.app import load_command

import attngeo
from attngeo.errors import ModelNotFoundError, UsageError
from attngeo.reporting.report import build_report

PAGE = Path(__file__).parents[2] / "commands/SHARED_OPTIONS.md"
# Of each column of the table, an option that belongs to it.
GROUPS = ("--config", "--stack", "--models", "--jobs", "--fail-if", "--sort", "--plot", "--fresh")
ENCODER, DECODER, MISSING = "demo:encoder", "demo:decoder", "./missing"
# Command → its arguments before the models, a column of numbers that a condition may name, and the models of the rows.
ASKED: dict[str, tuple[list[str], str, list[str]]] = {
    "score": ([], "symmetry.max", [ENCODER, DECODER]),
    "positions": ([], "kernel_1.max", [ENCODER, DECODER]),
    "compose": ([], "composition.max", [ENCODER, DECODER]),
    "mirrors": ([], "mirror.max", [ENCODER, DECODER]),
    "compare": ([ENCODER], "change.max", [DECODER]),
    "lineage": ([ENCODER], "similarity_z.max", [DECODER]),
    "analogy": (["--n-draws", "0"], "accuracy.max", [ENCODER, DECODER]),
    "gradients": (["--sequences", "2", "--seq-len", "16"], "symmetry.max", [ENCODER, DECODER]),
}


def list_options(command: str) -> set[str]:
    return {name for parameter in load_command(command).params for name in parameter.opts}


def test_the_table_says_which_command_has_which_options() -> None:
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if re.match(r"\| `\w+` \| (✓|–)", line)]
    assert len(lines) == 9
    for line in lines:
        name, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        command = name.strip("`")
        for flag, cell in zip(GROUPS, cells, strict=True):
            said = cell.startswith("✓")
            listed = flag in list_options(command)
            assert listed == said or (flag == "--stack" and f"`{flag}`" in cell and listed), (command, flag)


@pytest.mark.parametrize("command", ASKED)
def test_one_model_that_fails_costs_its_rows_and_exit_code_4(
    command: str, inside: Callable[..., CompletedProcess[str]], tmp_path: Path, cache: Path
) -> None:
    """In a command with a file of models, conditions and a selection; also where the others come from the store."""
    before, quantity, models = ASKED[command]
    column = quantity.partition(".")[0]
    (tmp_path / "models.txt").write_text(f"{MISSING}\n{models[-1]}\n")
    arguments = [command, *before, *models[:-1], "--models", tmp_path / "models.txt", "--format", "csv"]
    for attempt in range(2):
        checks = tmp_path / f"checks{attempt}.json"
        chosen = ["--sort", column, "--fail-if", f"{quantity} > 1e9", "--checks", checks]
        done = inside(*arguments, *chosen, cwd=tmp_path)
        assert done.returncode == 4, done.stderr
        rows = pd.read_csv(StringIO(done.stdout))
        other = next(name for name in ("other", "model") if name in rows)
        assert sorted(rows[other].unique()) == sorted(models)
        values = rows[column].dropna()
        assert values.is_monotonic_decreasing
        assert len(values)
        assert done.stderr.count(f"{MISSING}: no such file or folder") == 1
        verdicts = {check["model"]: check["check"] for check in json.loads(checks.read_text())}
        assert {verdicts[model] for model in models} == {"passed"}
    kept = command not in ("analogy", "gradients")
    assert ("kept results" in done.stderr) == kept
    assert any(cache.rglob("*.parquet")) == kept


@pytest.mark.parametrize("command", ASKED)
def test_a_recipe_asks_for_the_same_rows(command: str, tmp_path: Path) -> None:
    before, quantity, models = ASKED[command]
    listed = [*(before if before[:1] == [ENCODER] else []), *models, MISSING]
    options = "{ sequences = 2, seq_len = 16 }" if command == "gradients" else "{}"
    (tmp_path / "r.toml").write_text(
        f'title = "x"\n[[results]]\nname = "rows"\ncommand = "{command}"\nmodels = {listed}\noptions = {options}\n'
        f'[[check]]\nof = "rows"\nfail_if = "{quantity} > 1e9"\n'
    )
    made = build_report(tmp_path / "r.toml", tmp_path / "out")
    assert [failure.what for failure in made.failures] == [MISSING]
    rows = pd.read_csv(tmp_path / "out/tables/rows.csv")
    other = next(name for name in ("other", "model") if name in rows)
    assert list(rows[other].unique()) == models
    assert {check.model: check.failed for check in made.checks} == {MISSING: True} | dict.fromkeys(models, False)


def test_python_takes_several_models_too() -> None:
    for ask in (attngeo.positions, attngeo.compose, attngeo.mirrors, attngeo.score):
        rows = ask([ENCODER, DECODER])
        assert rows["model"].drop_duplicates().tolist() == [ENCODER, DECODER]
        alone = ask(DECODER)
        pd.testing.assert_frame_equal(rows[rows["model"] == DECODER].reset_index(drop=True), alone, check_names=False)
        with pytest.raises(ModelNotFoundError):
            ask([ENCODER, MISSING])
        with pytest.raises(UsageError, match="no models"):
            ask([])


def test_what_is_about_one_model_refuses_several(inside: Callable[..., CompletedProcess[str]], tmp_path: Path) -> None:
    done = inside("gradients", ENCODER, DECODER, "--pairs-output", tmp_path / "pairs.csv")
    assert (done.returncode, done.stdout) == (2, "")
    assert "exactly one model, got 2" in done.stderr


def test_a_pattern_alone_is_several_models_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for step in (2, 10):
        shutil.copytree(Path(attngeo.__file__).parent / "demos/encoder", tmp_path / f"run/checkpoint-{step}")
    for ask in (attngeo.positions, attngeo.compose, attngeo.score):
        assert ask("run/checkpoint-*")["model"].unique().tolist() == ["run/checkpoint-2", "run/checkpoint-10"]
    assert attngeo.compare("run/checkpoint-*")["other"].unique().tolist() == ["run/checkpoint-10"]
    with pytest.raises(UsageError, match="one list"):
        attngeo.compare("run/checkpoint-2", "run/checkpoint-10")  # type: ignore[arg-type,call-arg]
