"""The action of GitHub in action.yml: the script of its last step, run as a runner does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from support.command_line import parse_command
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


@pytest.fixture
def run_stand_in(
    run_action: Callable[..., Step], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[list[str], Step]]:
    """Runs the action with a program in place of attngeo; returns the program's arguments, too.

    It prints some lines, ends with some exit code, and writes a report for a recipe.
    """
    package = tmp_path / "stand-in/attngeo"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(package.parent))

    def run(lines: list[str], code: int, report: str = "", **inputs: str) -> tuple[list[str], Step]:
        told = {"lines": lines, "code": code, "report": report}
        (package / "__main__.py").write_text(
            f"import json, pathlib, sys\ntold = json.loads({json.dumps(told)!r})\n"
            "pathlib.Path('arguments.json').write_text(json.dumps(sys.argv[1:]))\n"
            "for line in told['lines']:\n    print(line)\n"
            "if told['report']:\n    pathlib.Path(sys.argv[3], 'report.md').write_text(told['report'])\n"
            "sys.exit(told['code'])\n"
        )
        step = run_action(**inputs)
        return json.loads((tmp_path / "arguments.json").read_text("utf-8")), step

    return run


def test_models_are_checked(run_action: Callable[..., Step], tmp_path: Path) -> None:
    """One check passes and one fails, which fails the step; its outputs are there all the same."""
    models = ["demo:encoder", "demo:decoder"]
    attngeo.score(models).to_csv(tmp_path / "before.csv", index=False)
    failed = run_action(
        models="demo:encoder\n\ndemo:decoder\n",
        fail_if="symmetry.median > -1\nsymmetry.median != baseline.symmetry.median",
        baseline="before.csv",
        output="a folder",
    )
    assert (failed.code, failed.outputs["passed"]) == (1, "false"), failed.log
    checks = [line for line in failed.outputs["summary"].splitlines() if line.startswith("- check")]
    passed_checks = [line for line in checks if line.startswith("- check passed: ")]
    failed_checks = [line for line in checks if line.startswith("- check failed: ")]
    assert len(checks) == 2 * len(models)
    for model, passed_check, failed_check in zip(models, passed_checks, failed_checks, strict=True):
        assert "baseline" in passed_check
        assert f"{model} (" in failed_check
    assert re.search(r"^\| demo:decoder +\|", failed.outputs["summary"], re.MULTILINE)
    assert failed.summary.strip() == failed.outputs["summary"].strip()
    assert (tmp_path / "a folder/scores.csv").is_file()


def test_a_command_that_passes_passes_the_step(run_stand_in: Callable[..., tuple[list[str], Step]]) -> None:
    lines = ["attngeo: check passed: demo:encoder", "another line", "| demo:encoder |"]
    arguments, passed = run_stand_in(lines, 0, models="demo:encoder\ndemo:decoder", fail_if="layers < 1\nheads < 1")
    assert (passed.code, passed.outputs["passed"]) == (0, "true"), passed.log
    assert passed.outputs["summary"].split("\n") == ["- check passed: demo:encoder", "", "| demo:encoder |", ""]
    assert arguments == [
        "score", "-o", "attngeo-results/scores.csv", "--format", "markdown", "--fail-if", "layers < 1",
        "--fail-if", "heads < 1", "--", "demo:encoder", "demo:decoder",
    ]  # fmt: skip
    parse_command(arguments)


def test_the_summary_of_a_recipe_is_its_report_without_pictures(
    run_stand_in: Callable[..., tuple[list[str], Step]],
) -> None:
    report = "# Two models\n\n![Layers](pictures/layers.png)\n\n| model |\n"
    arguments, made = run_stand_in(["page/index.html"], 0, report, recipe="recipe.toml", output="page")
    assert (made.code, made.outputs["passed"]) == (0, "true"), made.log
    assert made.outputs["summary"].split() == ["#", "Two", "models", "|", "model", "|"]
    assert arguments == ["report", "-o", "page", "--", "recipe.toml"]
    parse_command(arguments)
    _, failed = run_stand_in([], 4, recipe="recipe.toml")
    assert (failed.code, failed.outputs["passed"], failed.outputs["summary"]) == (4, "false", "")


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


def test_long_summaries_are_cut_between_rows(run_stand_in: Callable[..., tuple[list[str], Step]]) -> None:
    lines = [f"attngeo: check passed: demo:encoder {number} {'long ' * 80}" for number in range(178)]
    _, whole = run_stand_in(lines, 0, models="demo:encoder")
    assert whole.code == 0, whole.log
    summary = whole.outputs["summary"]
    assert len(summary.encode()) < MOST_BYTES
    *kept, last = summary.strip().splitlines()
    assert re.fullmatch(r"… and \d+ more lines", last)
    assert all(line.startswith("- check passed") for line in kept if line)
    assert len([line for line in kept if line]) + int(re.findall(r"\d+", last)[0]) >= len(lines)


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
