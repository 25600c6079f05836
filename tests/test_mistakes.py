"""Mistakes on the command line cost no torch: usage, missing files and unknown names are answered at once."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from typing import NamedTuple

import pytest
from attngeo.commands.app import COMMANDS, load_command
from support.messages import assert_states
from support.mistakes import MISTAKES, write_files
from test_packaging import HEAVY

# Besides those that `attngeo --help` does without; typer loads pydantic for the types of options.
TOO_HEAVY = (HEAVY - {"pydantic"}) | {"datasets", "jinja2", "numpy", "pyarrow", "scipy", "sklearn"}
# Makes one mistake after the other, and reports of each its exit code, its message and the modules that are loaded.
RUN = """
import contextlib, io, json, sys
from attngeo.commands.app import main
heavy = set(sys.argv[1].split())
answers = []
for arguments in json.load(sys.stdin):
    sys.argv = ["attngeo", *arguments]
    output, errors, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            main()
        except SystemExit as exit:
            code = exit.code
    loaded = {name.partition(".")[0] for name in sys.modules}
    answers.append([code, output.getvalue(), errors.getvalue(), sorted(heavy & loaded)])
print(json.dumps(answers))
"""


class Answer(NamedTuple):
    """What one mistake is answered. loaded: heavy modules, by it or one before it."""

    code: int
    output: str
    message: str
    loaded: list[str]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    """The answer to each mistake. All are made in one process, because each start takes as long as many mistakes."""
    folder = tmp_path_factory.mktemp("mistakes")
    write_files(folder)
    lines = [line for line, _, _ in MISTAKES]
    environment = {**os.environ, "ATTNGEO_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RUN, " ".join(TOO_HEAVY)], input=json.dumps([shlex.split(line) for line in lines]),
        capture_output=True, text=True, check=True, cwd=folder, env=environment,
    )  # fmt: skip
    assert {path.name for path in folder.iterdir() if path.is_dir()} <= {"cache", "empty"}
    return {line: Answer(*answer) for line, answer in zip(lines, json.loads(done.stdout), strict=True)}


@pytest.mark.parametrize(("line", "code", "facts"), MISTAKES, ids=[line for line, _, _ in MISTAKES])
def test_a_mistake_is_answered_in_one_line_without_heavy_modules(
    answers: dict[str, Answer], line: str, code: int, facts: tuple[str, ...]
) -> None:
    answer = answers[line]
    assert (answer.code, answer.output) == (code, ""), answer.message
    assert_states(answer.message, *(fact.rstrip("?") for fact in facts))
    assert answer.loaded == []


def test_every_command_is_among_the_mistakes() -> None:
    commands = set()
    for name in COMMANDS:
        members = getattr(load_command(name), "commands", None)
        commands |= {name} if members is None else {f"{name} {member}" for member in members}
    made = {" ".join(line.split()[:2]) for line, _, _ in MISTAKES} | {line.split()[0] for line, _, _ in MISTAKES}
    assert commands <= made
