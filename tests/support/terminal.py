"""The installed command on a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

# Variables that decide about colours in place of the terminal.
ABOUT_COLOURS = ("NO_COLOR", "FORCE_COLOR", "CI")


def on_terminal(*arguments: str, cwd: Path | None = None, **environment: str) -> str:
    """What the command writes to a terminal of 80 columns."""
    return _run(arguments, cwd, environment)


def with_progress(*arguments: str, cwd: Path | None = None, **environment: str) -> tuple[str, str]:
    """What the command writes to a terminal, and its results, which go to a file."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as results:
        shown = _run(arguments, cwd, environment, results.fileno())
        results.seek(0)
        return shown, results.read()


def _run(arguments: tuple[str, ...], cwd: Path | None, environment: dict[str, str], results: int | None = None) -> str:
    pty = pytest.importorskip("pty")
    leader, follower = pty.openpty()
    command = [str(Path(sys.executable).with_name("attngeo")), *arguments]
    clean = {name: value for name, value in os.environ.items() if name not in ABOUT_COLOURS}
    with subprocess.Popen(
        command, stdin=follower, stdout=follower if results is None else results, stderr=follower, cwd=cwd,
        env={**clean, "TERM": "xterm-256color", "COLUMNS": "80", **environment},
    ) as process:  # fmt: skip
        os.close(follower)
        written = b""
        while True:  # while the command runs: it would wait for one that reads what it draws
            try:
                some = os.read(leader, 65536)
            except OSError:  # how Linux says that the other end is closed
                break
            if not some:
                break
            written += some
    os.close(leader)
    assert process.returncode == 0
    return written.decode(errors="replace")
