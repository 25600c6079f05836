"""Commands that run at the same time, in processes of their own which write to their outputs at the same moment.

As a script, it loads the libraries once, then does what each line of its stdin asks for: a JSON list of the commands to
run at once. It forks a process for each of them, and answers with a line of the pairs (exit code, stderr).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Modules that the commands load when they are needed.
HEAVY = (
    "attngeo.commands.app", "attngeo.scores.computing", "attngeo.analogies.analogy", "attngeo.pretrain.comparison",
    "attngeo.reporting.report", "attngeo.reporting.plots", "attngeo.figures.save", "attngeo.embeddings.cbow",
    "gensim.models", "filelock", "psutil",
)  # fmt: skip


class Racers:
    """The process that runs the commands of a test."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, folder: Path, *commands: list[object]) -> list[tuple[int, str]]:
        """Run commands at the same time, in a folder; with one command, it runs alone."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"folder": str(folder), "commands": [[str(part) for part in each] for each in commands]}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return [(code, text) for code, text in json.loads(self._process.stdout.readline())]


@contextlib.contextmanager
def start_racers() -> Iterator[Racers]:
    """A process that runs commands; it ends with the block."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "SOURCE_DATE_EPOCH": "1700000000"}
    with subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield Racers(process)


def serve() -> None:
    """Do what stdin asks for until it ends."""
    from importlib import import_module

    sys.path.pop(0)  # the folder of this script, whose modules have the names of others
    for name in HEAVY:
        import_module(name)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(race(Path(asked["folder"]), asked["commands"])), flush=True)


def race(folder: Path, commands: list[list[str]]) -> list[tuple[int, str]]:
    """Run one or two commands at the same time. They wait for each other before they begin to write a file."""
    pipes = [os.pipe() for _ in commands]
    processes = []
    for number, arguments in enumerate(commands):
        if not (process := os.fork()):
            # This process reads its own pipe and writes to the other's, which ends when the other process ends.
            for other, (reads, writes) in enumerate(pipes):
                os.close(writes if other == number else reads)
            other = len(commands) - 1 - number
            run_command(folder, number, arguments, pipes[number][0], pipes[other][1] if other != number else None)
        processes.append(process)
    for pipe in pipes:
        for end in pipe:
            os.close(end)
    codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
    return [(code, (folder / f"stderr-{number}").read_text()) for number, code in enumerate(codes)]


def run_command(folder: Path, number: int, arguments: list[str], own: int, other: int | None) -> None:
    """Run a command in this process, and end it."""
    import secrets

    from attngeo.commands.app import main

    make_token, met = secrets.token_hex, False

    def meet(*sizes: int) -> str:
        """Make the name of a temporary file, for the first time when the other process does, too, or has ended."""
        nonlocal met
        if other is not None and not met:
            met = True
            with contextlib.suppress(BrokenPipeError):
                os.write(other, b"x")
            os.read(own, 1)
        return make_token(*sizes)

    code: Any = 1
    try:
        os.chdir(folder)
        for stream, path in ((1, f"stdout-{number}"), (2, f"stderr-{number}")):
            os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), stream)
        secrets.token_hex = meet
        sys.argv = ["attngeo", *arguments]
        main()
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
