"""The action of GitHub in action.yml: the script of its last step, run as a runner does."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import yaml
from safetensors.torch import load_file, save_file
from support.checkpoints import write_single
from support.messages import assert_states
from support.planted import plant, read_notes

import attngeo

if TYPE_CHECKING:
    from support.hub_server import Hub

ROOT = Path(__file__).parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
# The largest comment of GitHub has 65,536 characters.
MOST_BYTES = 60_100


class Step(NamedTuple):
    """A finished step: its exit code, what it printed, the lines that a runner does not obey, and its outputs."""

    code: int
    printed: str
    log: str
    outputs: dict[str, str]
    summary: str


# Runners start each step by bash.
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is missing (apt install bash)")


@pytest.fixture
def run_action(tmp_path: Path) -> Callable[..., Step]:
    """Runs the action with some inputs in tmp_path, whose files of Python it does not execute."""
    notes = tmp_path / "notes"
    plant(notes, tmp_path)
    python = tmp_path / "runner/attngeo/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    step = ACTION["runs"]["steps"][-1]

    def run(script: str = step["run"], **inputs: str) -> Step:
        files = {"GITHUB_OUTPUT": tmp_path / "outputs", "GITHUB_STEP_SUMMARY": tmp_path / "summary"}
        for path in files.values():
            path.unlink(missing_ok=True)
        given = {name: about["default"] for name, about in ACTION["inputs"].items()}
        given |= {name.replace("_", "-"): value for name, value in inputs.items()}
        environment = os.environ | {name: str(path) for name, path in files.items()}
        environment["RUNNER_TEMP"] = str(tmp_path / "runner")
        for name, expression in step["env"].items():
            match = re.fullmatch(r"\$\{\{ inputs\.([\w-]+) \}\}", expression)
            assert match is not None, expression
            environment[name] = given[match[1]]
        command = ["bash", "-e", "-o", "pipefail", "-c", script]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert read_notes(notes) == []
        written = files["GITHUB_OUTPUT"].read_text("utf-8") if files["GITHUB_OUTPUT"].is_file() else ""
        summary = files["GITHUB_STEP_SUMMARY"].read_text("utf-8") if written else ""
        return Step(done.returncode, done.stdout, read_log(done.stdout) + done.stderr, read_outputs(written), summary)

    return run


def read_log(text: str) -> str:
    """The lines of a log without commands for the runner, which stop it from obeying others."""
    shown = []
    end = None
    for line in text.splitlines(keepends=True):
        if end is None and line.startswith("::stop-commands::"):
            end = f"::{line.strip().rpartition('::')[2]}::"
        elif line.strip() == end:
            end = None
        else:
            assert end is not None or not line.startswith("::")
            shown.append(line)
    return "".join(shown)


def read_outputs(text: str) -> dict[str, str]:
    """The outputs in a file as runners read it: name=value, or name<<END and lines until END."""
    outputs = {}
    lines = iter(text.splitlines())
    for line in lines:
        name, marker, end = line.partition("<<")
        if marker:
            outputs[name] = "\n".join(iter(lambda: next(lines), end))
        else:
            name, _, outputs[name] = line.partition("=")
    return outputs


def list_checks(summary: str, verdict: str) -> list[str]:
    """The rows of the checks with this verdict."""
    return re.findall(rf"^\| {verdict} +\| .*", summary, re.MULTILINE)


def test_models_are_checked(run_action: Callable[..., Step], tmp_path: Path) -> None:
    """A pattern may have the quotes that it has on a command line."""
    shutil.copytree(Path(attngeo.__file__).parent / "demos/encoder", tmp_path / "run/checkpoint-1")
    conditions = '# of scores\nsymmetry.median < -1\n"layers < 1"'
    inputs = {"models": "'./run/*'\n\ndemo:decoder\n  # demo:minilm\n", "fail_if": conditions}
    passed = run_action(**inputs)
    assert (passed.code, passed.outputs["passed"], passed.outputs["outcome"]) == (0, "true", "passed"), passed.log
    assert len(list_checks(passed.outputs["summary"], "passed")) == 4
    for model in ("demo:decoder", "./run/checkpoint-1"):
        assert re.search(rf"^\| {re.escape(model)} +\|", passed.outputs["summary"], re.MULTILINE)
    assert passed.summary.strip() == passed.outputs["summary"].strip()
    assert (tmp_path / "attngeo-results/scores.csv").is_file()


def test_a_failed_check_fails_the_step_and_has_outputs(run_action: Callable[..., Step], tmp_path: Path) -> None:
    attngeo.score("demo:encoder").to_csv(tmp_path / "before.csv", index=False)
    conditions = "symmetry.median > -1\nsymmetry.median > baseline.symmetry.median + 1"
    failed = run_action(models="demo:encoder", fail_if=conditions, baseline="before.csv", output="a folder")
    assert (failed.code, failed.outputs["passed"], failed.outputs["outcome"]) == (1, "false", "failed")
    (good,) = list_checks(failed.outputs["summary"], "passed")
    assert "baseline" in good
    (bad,) = list_checks(failed.outputs["summary"], "failed")
    assert [cell.strip() for cell in bad.split("|")[2:4]] == ["demo:encoder", "encoder"]


def test_models_are_compared_with_a_base(run_action: Callable[..., Step], tmp_path: Path) -> None:
    """The name of a change is unknown without it, and a change that fails leaves the scores as they are."""
    tuned = tmp_path / "tuned"
    shutil.copytree(ROOT / "attngeo/demos/encoder", tuned)
    state = load_file(tuned / "model.safetensors")
    (name,) = [name for name in state if "layer.2.attention.self.query.weight" in name]
    save_file(state | {name: 3.31 * state[name]}, tuned / "model.safetensors", {"format": "pt"})
    attngeo.score("demo:encoder").to_csv(tmp_path / "before.csv", index=False)
    silent = "abs(symmetry.median - baseline.symmetry.median) > 0.01"
    passed = run_action(models="./tuned", fail_if=silent, baseline="before.csv")
    assert (passed.code, passed.outputs["outcome"]) == (0, "passed"), passed.log
    conditions = "change.max > 0.5\nheads.cosine.min < -1\n"
    failed = run_action(base="demo:encoder", models="./tuned", fail_if=conditions)
    assert (failed.code, failed.outputs["passed"], failed.outputs["outcome"]) == (1, "false", "failed"), failed.log
    (bad,) = list_checks(failed.outputs["summary"], "failed")
    assert [cell.strip() for cell in bad.split("|")[2:4]] == ["./tuned", "encoder"]
    assert "change.max is 2.31" in bad
    assert len(list_checks(failed.outputs["summary"], "passed")) == 1
    # A page cuts wide tables at the right.
    assert re.search(r"^\| stack +\| +layer +\| +change +\|", failed.outputs["summary"], re.MULTILINE)
    assert (tmp_path / "attngeo-results/changes.csv").is_file()
    unknown = run_action(models="./tuned", fail_if=conditions)
    assert (unknown.code, unknown.outputs["passed"], unknown.outputs["outcome"]) == (2, "false", "error")
    assert "results of compare" in unknown.outputs["summary"]


def test_an_error_is_in_the_summary(run_action: Callable[..., Step], tmp_path: Path) -> None:
    """With the tables of the models that did not fail, and as text that GitHub does not read as Markdown."""
    done = run_action(models="demo:encoder\n./gone `<b>` @team", fail_if="layers < 1")
    assert (done.code, done.outputs["passed"], done.outputs["outcome"]) == (4, "false", "error"), done.log
    summary = done.outputs["summary"]
    assert done.summary.strip() == summary.strip()
    title, _, message, passed, *_ = summary.splitlines()
    assert "error" in title
    assert "exit code 4" in title
    assert message.startswith("- `` attngeo: ./gone `<b>` @team: no such file or folder")
    assert message.endswith(" ``")
    assert passed.startswith("- ` attngeo: check passed: demo:encoder")
    assert len(list_checks(summary, "passed")) == 1
    (tmp_path / "file").write_text("")
    done = run_action(models="demo:encoder", output="file")
    assert (done.code, done.outputs["passed"], done.outputs["outcome"]) == (2, "false", "error"), done.log
    assert "attngeo: file: " in done.outputs["summary"]


@pytest.mark.parametrize("code", [1, -9, 3])
def test_a_process_that_dies_is_no_failed_check(code: int, run_action: Callable[..., Step], tmp_path: Path) -> None:
    """Its last words are in the log, and those of attngeo but for its progress in the summary."""
    lines = [
        "attngeo: score: at work, 1,033 s so far",
        "attngeo: step 20/1,000  loss 3.1",
        "attngeo: half",
        "Traceback",
    ]
    dying = f"import sys, os; print(*{lines}, sep='\\n', file=sys.stderr, flush=True); "
    dying += f"os.kill(os.getpid(), {-code})" if code < 0 else f"sys.exit({code})"
    python = tmp_path / "runner/attngeo/bin/python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    script = ACTION["runs"]["steps"][-1]["run"]
    assert script.count('"-m", "attngeo", *list_arguments()') == 1
    changed = script.replace('"-m", "attngeo", *list_arguments()', f'"-c", {dying!r}')
    done = run_action(script=changed, models="demo:encoder", fail_if="layers < 1")
    assert done.code == code % 256
    assert (done.outputs["passed"], done.outputs["outcome"]) == ("false", "error")
    assert done.outputs["summary"].splitlines()[2:] == ["- ` attngeo: half `"]
    assert done.log.splitlines()[: len(lines)] == lines


def test_outputs_of_a_step_that_did_not_start_are_those_of_an_error() -> None:
    """The installation may fail before."""
    outputs = {name: about["value"] for name, about in ACTION["outputs"].items()}
    assert outputs["passed"] == "${{ steps.run.outputs.passed || 'false' }}"
    assert outputs["outcome"] == "${{ steps.run.outputs.outcome || 'error' }}"


@pytest.mark.slow
def test_a_recipe_makes_a_page(run_action: Callable[..., Step], tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(
        'title = "Two models"\n[[results]]\nname = "scores"\ncommand = "score"\nmodels = ["demo:encoder"]\n'
        '[[section]]\ntitle = "Layers"\nfigures = [{ kind = "layers", of = "scores" }]\n'
        '[[check]]\nof = "scores"\nfail_if = "symmetry.median < -1"\n'
    )
    made = run_action(recipe="recipe.toml", output="page")
    assert (made.code, made.outputs["passed"]) == (0, "true"), made.log
    assert "# Two models" in made.outputs["summary"]
    assert "](pictures/" not in made.outputs["summary"]
    assert (tmp_path / "page/index.html").is_file()


def test_no_name_and_no_file_of_the_workspace_passes_a_check(run_action: Callable[..., Step], tmp_path: Path) -> None:
    """A model whose name has lines that the runner would obey, and a page that is there before the run."""
    name = "a\npassed=true\n::set-output name=passed::true"
    shutil.copytree(ROOT / "attngeo/demos/encoder", tmp_path / name)
    recipe = f'title = "One"\n[[results]]\nname = "scores"\ncommand = "score"\nmodels = [{json.dumps(f"./{name}")}]\n'
    check = '[[check]]\nof = "scores"\nfail_if = "layers > 0"\n'
    (tmp_path / "recipe.toml").write_text(recipe + check)
    done = run_action(recipe="recipe.toml", output="page")
    assert (done.code, done.outputs["passed"], done.outputs["outcome"]) == (1, "false", "failed"), done.log
    assert (tmp_path / "outputs").read_text().count("\npassed=") == 0
    assert "set-output" in done.outputs["summary"]
    (tmp_path / "recipe.toml").write_text("title = 1")
    (tmp_path / "page/report.md").write_text("all checks passed")
    done = run_action(recipe="recipe.toml", output="page")
    assert (done.code, done.outputs["passed"], done.outputs["outcome"]) == (2, "false", "error"), done.log
    assert "all checks passed" not in done.outputs["summary"]
    assert "attngeo: recipe.toml: title" in done.outputs["summary"]


def test_the_runner_obeys_no_printed_line(run_action: Callable[..., Step]) -> None:
    """Nor is one a check of the summary."""
    done = run_action(models="./check passed: all", fail_if="layers > 0")
    assert (done.code, done.outputs["passed"], done.outputs["outcome"]) == (3, "false", "error")
    assert list_checks(done.outputs["summary"], "passed") == []
    first, *lines, last = done.printed.splitlines()
    assert first.removeprefix("::stop-commands::") == last.strip(":")
    assert "attngeo: ./check passed: all" in "\n".join(lines)


def test_the_installation_runs_no_file_of_the_workspace(tmp_path: Path) -> None:
    """Its commands print their help instead."""
    notes, runner = tmp_path / "notes", tmp_path / "runner/attngeo/bin"
    plant(notes, tmp_path)
    runner.mkdir(parents=True)
    python = runner / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@" --help\n')
    python.chmod(0o755)
    step = ACTION["runs"]["steps"][-2]
    environment = {"PYTHON": str(python), "RUNNER_TEMP": str(tmp_path / "runner"), "GITHUB_ACTION_PATH": str(ROOT)}
    command = ["bash", "-e", "-o", "pipefail", "-c", step["run"]]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.lower().count("usage:") == 2
    assert read_notes(notes) == []
    assert step["working-directory"] == "${{ runner.temp }}"


@pytest.mark.slow
def test_long_summaries_are_cut_between_rows(run_action: Callable[..., Step]) -> None:
    # Conditions of 400 characters: few of them make a long summary.
    checks = "\n".join(" and ".join([f"symmetry.median < -{number}"] * 16) for number in range(10, 99))
    whole = run_action(models="demo:encoder\ndemo:decoder", fail_if=checks)
    assert whole.code == 0, whole.log
    summary = whole.outputs["summary"]
    assert len(summary.encode()) < MOST_BYTES
    *kept, last = summary.strip().splitlines()
    assert re.fullmatch(r"… and \d+ more lines", last)
    assert len(list_checks(summary, "passed")) == len([line for line in kept if line]) - 3  # without title and head
    assert len(list_checks(summary, "passed")) + int(re.findall(r"\d+", last)[0]) > 2 * 89


@pytest.mark.parametrize(
    ("inputs", "code", "fact"),
    [
        ({}, 2, "recipe"),
        ({"models": "demo:encoder", "recipe": "recipe.toml"}, 2, "recipe"),
        ({"recipe": "recipe.toml", "fail_if": "layers < 1"}, 2, "recipe"),
        ({"recipe": "recipe.toml", "base": "demo:encoder"}, 2, "recipe"),
        ({"base": "demo:encoder"}, 2, "models"),
        ({"models": "demo:decoder", "base": "demo:encoder", "baseline": "before.csv"}, 2, "contradict"),
        ({"models": "demo:decoder", "base": "demo:none"}, 3, "demo:none"),
        ({"models": "demo:decoder", "base": "--help"}, 2, "--help"),
        ({"models": "demo:encoder", "fail_if": "$(touch made)"}, 2, "touch"),
        ({"models": "--help"}, 2, "--help"),
        ({"models": "demo:none"}, 3, "demo:none"),
    ],
)
def test_bad_inputs(
    inputs: dict[str, Any], code: int, fact: str, run_action: Callable[..., Step], tmp_path: Path
) -> None:
    done = run_action(**inputs)
    assert done.code == code, done.log
    assert_states(done.log, fact)
    assert (done.outputs["passed"], done.outputs["outcome"]) == ("false", "error")
    assert done.log.strip() in done.outputs["summary"]
    assert not (tmp_path / "made").exists()


def test_the_token_is_in_no_step_but_the_last() -> None:
    *others, last = ACTION["runs"]["steps"]
    assert "HF_TOKEN" in last["env"]
    assert "hf-token" not in str(others)
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", step["uses"]) for step in others if "uses" in step)


@pytest.mark.slow
def test_attngeo_has_the_token(
    run_action: Callable[..., Step], hub: Hub, online: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories["org/gated"] = write_single(tmp_path / "gated")
    hub.gated["org/gated"] = "hf_secret"
    for name, value in online.items():
        monkeypatch.setenv(name, value)
    done = run_action(models="org/gated", hf_token="hf_secret")
    assert (done.code, done.outputs["passed"]) == (0, "true"), done.log
