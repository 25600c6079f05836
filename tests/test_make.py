"""What `make demo` says while it works, with programs that stand for Python, pip and attngeo."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from support.children import list_children

MAKEFILE = Path(__file__).parents[1] / "Makefile"
# As python, it makes an environment whose programs are this one. As pip, it waits until two lines say that it takes
# long, or for a minute; if there is a file `quick`, it does not wait.
PROGRAM = """#!/bin/sh
case "$*" in
    *venv*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp "$0" "$3/bin/attngeo" ;;
    *torch*) n=0
        while [ $n -lt 300 ] && ! [ -e quick ] && ! grep -q "torch.*(2 s)" told; do sleep 0.2; n=$((n + 1)); done ;;
    *editable*) [ ! -e broken ] || exit 3 ;;
    analogy*) echo "the results" ;;
esac
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the Makefile and a program in place of Python."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    shutil.copy(MAKEFILE, tmp_path)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    program = tmp_path / "program"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    return tmp_path


def start(folder: Path, target: str = "demo") -> subprocess.Popen[str]:
    """`make demo` without a terminal, in a process group of its own; what it says is in the file `told`."""
    # A `make` that runs the tests hands on what it was given, such as VENV.
    given = re.findall(r"^([A-Z_]+) [?:]?=", MAKEFILE.read_text(), re.MULTILINE)
    variables = {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name not in given}
    with (folder / "told").open("w") as told:
        return subprocess.Popen(
            ["make", target, "EVERY=1", "PYTHON=./program"],
            cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=told, text=True,
            start_new_session=True,
        )  # fmt: skip


def test_each_step_is_told_when_it_begins_and_while_it_takes_long(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As where `make test-pythons` runs the tests.
    monkeypatch.setenv("VENV", ".venv-3.12")
    made = start(folder)
    stdout, _ = made.communicate(timeout=300)
    assert made.returncode == 0
    assert stdout == "touch .venv/.installed\nthe results\n"
    told = (folder / "told").read_text()
    # A slow machine may tell more of the steps.
    steps = list(dict.fromkeys(line.partition(" (")[0] for line in told.splitlines()))
    assert [re.sub(r"\W.*", "", step) for step in steps] == ["making", "installing", "installing", *["attngeo"] * 3]
    assert [step.partition(" ")[2] for step in steps[3:]] == [
        "inspect demo:minilm", "score demo:encoder demo:decoder demo:minilm", "analogy demo:minilm",
    ]  # fmt: skip
    assert all(".venv" in step for step in steps[:3])
    assert [line for line in told.splitlines() if "torch" in line][1:3] == [f"{steps[1]} (1 s)", f"{steps[1]} (2 s)"]


def test_a_step_is_told_every_ten_seconds() -> None:
    assert re.search(r"^EVERY \?= (\d+)$", MAKEFILE.read_text(), re.MULTILINE)[1] == "10"  # type: ignore[index]


def test_a_step_that_fails_ends_all(folder: Path) -> None:
    (folder / "quick").touch()
    (folder / "broken").touch()
    made = start(folder)
    made.communicate(timeout=300)
    assert made.returncode == 2
    assert "Error 3" in (folder / "told").read_text()
    assert not (folder / ".venv/.installed").exists()


@pytest.mark.parametrize("stop", ["ctrl-c", "kill"])
def test_nothing_is_told_after_the_end_of_a_step(folder: Path, stop: str) -> None:
    made = start(folder)
    while "(1 s)" not in (folder / "told").read_text():
        assert made.poll() is None
        time.sleep(0.05)
    shells = list_children(made.pid, lambda process: process.name() != "sleep")
    assert len(shells) >= 3  # the shell of the step, the one that tells, and the program
    if stop == "ctrl-c":
        os.killpg(made.pid, signal.SIGINT)
    else:
        psutil.Process(made.pid).children()[0].kill()
        (folder / "quick").touch()
    made.communicate(timeout=60)
    assert made.returncode != 0
    assert psutil.wait_procs(shells, timeout=60)[1] == []
