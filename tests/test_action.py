"""The action of GitHub in action.yml: the script of its last step, run as a runner does."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from support.messages import assert_states

import attngeo

ROOT = Path(__file__).parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
# The largest comment of GitHub has 65,536 characters.
MOST_BYTES = 60_100


class Step(NamedTuple):
    """A finished step: its exit code, what it printed, and its outputs."""

    code: int
    log: str
    outputs: dict[str, str]
    summary: str


@pytest.fixture
def run_action(tmp_path: Path) -> Callable[..., Step]:
    """Runs the action with some inputs in tmp_path."""
    if shutil.which("bash") is None:
        pytest.skip("bash is missing (apt install bash)")
    python = tmp_path / "runner/attngeo/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    step = ACTION["runs"]["steps"][-1]

    def run(**inputs: str) -> Step:
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
        command = ["bash", "-e", "-o", "pipefail", "-c", step["run"]]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        written = files["GITHUB_OUTPUT"].read_text("utf-8") if files["GITHUB_OUTPUT"].is_file() else ""
        summary = files["GITHUB_STEP_SUMMARY"].read_text("utf-8") if written else ""
        return Step(done.returncode, done.stdout + done.stderr, read_outputs(written), summary)

    return run


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


def test_models_are_checked(run_action: Callable[..., Step], tmp_path: Path) -> None:
    inputs = {"models": "demo:encoder\n\ndemo:decoder\n", "fail_if": "symmetry.median < -1\nlayers < 1"}
    passed = run_action(**inputs)
    assert (passed.code, passed.outputs["passed"]) == (0, "true"), passed.log
    assert passed.outputs["summary"].count("- check passed: demo:") == 4
    assert re.search(r"^\| demo:decoder +\|", passed.outputs["summary"], re.MULTILINE)
    assert passed.summary.strip() == passed.outputs["summary"].strip()
    assert (tmp_path / "attngeo-results/scores.csv").is_file()


def test_a_failed_check_fails_the_step_and_has_outputs(run_action: Callable[..., Step], tmp_path: Path) -> None:
    attngeo.score("demo:encoder").to_csv(tmp_path / "before.csv", index=False)
    conditions = "symmetry.median > -1\nsymmetry.median != baseline.symmetry.median"
    failed = run_action(models="demo:encoder", fail_if=conditions, baseline="before.csv", output="a folder")
    assert (failed.code, failed.outputs["passed"]) == (1, "false")
    checks = [line for line in failed.outputs["summary"].splitlines() if line.startswith("- check")]
    assert [line.partition(":")[0] for line in checks] == ["- check passed", "- check failed"]
    assert "baseline" in checks[0]
    assert "demo:encoder (encoder)" in checks[1]


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


def test_long_summaries_are_cut_between_rows(run_action: Callable[..., Step]) -> None:
    # Conditions of 400 characters: few of them make a long summary.
    checks = "\n".join(" and ".join([f"symmetry.median < -{number}"] * 16) for number in range(10, 99))
    whole = run_action(models="demo:encoder\ndemo:decoder", fail_if=checks)
    assert whole.code == 0, whole.log
    summary = whole.outputs["summary"]
    assert len(summary.encode()) < MOST_BYTES
    *kept, last = summary.strip().splitlines()
    assert re.fullmatch(r"… and \d+ more lines", last)
    assert all(line.startswith("- check passed") for line in kept if line)
    assert len([line for line in kept if line]) + int(re.findall(r"\d+", last)[0]) > 2 * 89


@pytest.mark.parametrize(
    ("inputs", "code", "fact"),
    [
        ({}, 1, "recipe"),
        ({"models": "demo:encoder", "recipe": "recipe.toml"}, 1, "recipe"),
        ({"recipe": "recipe.toml", "fail_if": "layers < 1"}, 1, "recipe"),
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
    assert done.outputs.get("passed", "false") == "false"
    assert not (tmp_path / "made").exists()


def test_the_token_is_in_no_step_but_the_last() -> None:
    *others, last = ACTION["runs"]["steps"]
    assert "HF_TOKEN" in last["env"]
    assert "hf-token" not in str(others)
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", step["uses"]) for step in others if "uses" in step)
