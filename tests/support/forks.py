"""The command as a process of its own, without the seconds that each process needs to load the libraries.

As a script, this module loads the libraries once and then waits for requests on two sockets. For each command of a
request it forks a process that has the pipes, the folder and the environment of that command, and that ends as Python
ends: the command's exit code is the process's. Tests of the start itself, of signals and of terminals start the
installed script.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

# Modules that are loaded before the first fork, and before the first fork for a command. Only the latter may import
# huggingface_hub, which reads its environment when it is imported.
LIBRARIES = (
    "attngeo.commands.app",
    "attngeo.scores.computing",
    "attngeo.scores.matrices",
    "pandas",
    "scipy.sparse",
    "torch",
    "psutil",
    "filelock",
)
LIBRARIES_OF = {
    "analogy": ("attngeo.analogies.analogy",),
    "cbow": ("attngeo.embeddings.cbow", "gensim.models"),
    "efa": ("attngeo.estimators.efa.estimator", "attngeo.estimators.efa.files", "pyarrow.parquet"),
    "plot": ("attngeo.reporting.plots", "attngeo.figures.save"),
    "pretrain": ("attngeo.pretrain.comparison", "transformers.trainer", "transformers.models.bert.modeling_bert"),
    "report": ("attngeo.reporting.report", "attngeo.figures.save"),
    "tabular": ("attngeo.estimators.tabular.files", "pyarrow.parquet"),
}
BYTES = 1 << 20  # of a request


class Forks:
    """The processes that run commands: one without the libraries that are particular to a command, one with them."""

    def __init__(self, *asked: socket.socket) -> None:
        self._sockets = asked
        self._numbers = itertools.count()

    def run(
        self,
        *commands: Sequence[object],
        cwd: Path | None = None,
        timeout: float = 600,
        environment: Mapping[str, str] | None = None,
        libraries: bool = True,
    ) -> list[subprocess.CompletedProcess[str]]:
        """Run commands at the same time; two begin to write their files at the same moment.

        timeout: seconds after which the commands are killed, and TimeoutExpired is raised. environment: all variables.
        libraries: whether the libraries that are particular to a command are loaded before the fork; not for a command
        with other variables HF_… than this process.
        """
        asked = self._sockets[libraries]
        arguments = [[str(part) for part in command] for command in commands]
        pipes = [os.pipe() for _ in range(2 * len(commands))]
        request = {
            "number": next(self._numbers), "commands": arguments, "cwd": str(cwd or Path.cwd()),
            "environment": dict(environment or os.environ),
        }  # fmt: skip
        socket.send_fds(asked, [json.dumps(request).encode()], [write for _, write in pipes])
        for _, write in pipes:
            os.close(write)
        texts = [""] * len(pipes)
        threads = [threading.Thread(target=_read, args=(texts, number, read)) for number, (read, _) in enumerate(pipes)]
        for thread in threads:
            thread.start()
        # After the libraries are loaded, which may take minutes on a busy machine.
        processes = _answer(asked, request["number"], timeout=600)
        try:
            codes = _answer(asked, request["number"], timeout)
        except TimeoutError:
            for process in processes:
                os.kill(process, 9)
            raise subprocess.TimeoutExpired(arguments[0], timeout) from None
        finally:
            for thread in threads:
                thread.join()
        streams = zip(texts[::2], texts[1::2], strict=True)
        return [
            subprocess.CompletedProcess(command, code, *both)
            for command, code, both in zip(arguments, codes, streams, strict=True)
        ]


def _answer(asked: socket.socket, number: int, timeout: float) -> list[int]:
    """The next answer to the request of this number; those to earlier ones, which took too long, are dropped."""
    asked.settimeout(timeout)
    while True:
        answered, answer = json.loads(asked.recv(BYTES))
        if answered == number:
            return list(answer)


def _read(texts: list[str], number: int, pipe: int) -> None:
    with open(pipe, encoding="utf-8") as stream:
        texts[number] = stream.read()


@contextlib.contextmanager
def start_forks(environment: Mapping[str, str] | None = None) -> Iterator[Forks]:
    """Processes that run commands; they end with the block.

    environment: all their variables, which libraries read when they are loaded; by default those of this process.
    """
    (plain, answers), (loaded, others) = (socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2))
    ends = answers.fileno(), others.fileno()
    variables = {"OMP_NUM_THREADS": "1", **(os.environ if environment is None else environment), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, __file__, *map(str, ends)]
    # The sockets are shut down first, also after an exception: then the processes end, and are waited for. Closing is
    # not enough, as a child of this process that is left over, such as one of a DataLoader, has copies.
    with subprocess.Popen(command, pass_fds=ends, stdin=subprocess.DEVNULL, env=variables), plain, loaded:
        answers.close()
        others.close()
        try:
            yield Forks(plain, loaded)
        finally:
            for end in (plain, loaded):
                end.shutdown(socket.SHUT_RDWR)


def serve_both(plain: socket.socket, loaded: socket.socket) -> None:
    """Load the libraries, and fork: one process serves a socket with no others, one those of commands, too."""
    load(LIBRARIES)
    if other := os.fork():
        loaded.close()
        serve(plain, {})
        os.waitpid(other, 0)
    else:
        plain.close()
        serve(loaded, LIBRARIES_OF)


def serve(answers: socket.socket, libraries: Mapping[str, Sequence[str]]) -> None:
    """Fork a process for each command that is asked for, until the socket is closed. libraries: of each command."""
    while True:
        text, pipes, *_ = socket.recv_fds(answers, BYTES, 8)
        if not text:
            return
        request = json.loads(text)
        for command in request["commands"]:
            load(libraries.get(command[0] if command else "", ()))
        gc.freeze()  # a collection in a fork would copy what is loaded
        turns = [os.pipe() for _ in request["commands"]]
        processes = []
        for number, arguments in enumerate(request["commands"]):
            if not (process := os.fork()):
                answers.close()
                # This process reads its own pipe and writes to the other's, which ends when the other process ends.
                for other, (reads, writes) in enumerate(turns):
                    os.close(writes if other == number else reads)
                other = len(turns) - 1 - number
                meeting = (turns[number][0], turns[other][1]) if other != number else None
                end_with(run_command, arguments, request, pipes[2 * number : 2 * number + 2], meeting)
            processes.append(process)
        for end in (*pipes, *(end for turn in turns for end in turn)):
            os.close(end)
        answers.send(json.dumps([request["number"], processes]).encode())
        codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
        answers.send(json.dumps([request["number"], codes]).encode())


def load(names: Iterable[str]) -> None:
    for name in names:
        import_module(name)


def end_with(function: Callable[..., None], *arguments: object) -> NoReturn:
    """End this process with a function, as Python ends, except that no memory is freed: that takes 0.3 s."""
    code: Any = 0
    try:
        function(*arguments)
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def run_command(
    arguments: list[str], request: dict[str, Any], pipes: list[int], meeting: tuple[int, int] | None
) -> None:
    """Be the process of a command."""
    from attngeo.commands.app import main

    for number, name, pipe in zip((1, 2), ("stdout", "stderr"), pipes, strict=True):
        os.dup2(pipe, number)
        os.close(pipe)
        # The streams of the process that was forked know whether its files can be rewound; these are pipes.
        stream = os.fdopen(number, "w", 1 if number == 2 else -1, encoding="utf-8", closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if meeting:
        wait_before_files(*meeting)
    sys.argv = [str(Path(sys.executable).with_name("attngeo")), *arguments]
    main()


def wait_before_files(reads: int, writes: int) -> None:
    """Make this process wait before its first file, until the other one is about to write, too, or has ended."""
    import secrets

    make_token, met = secrets.token_hex, False

    def meet(*sizes: int) -> str:
        """The name of a temporary file."""
        nonlocal met
        if not met:
            met = True
            with contextlib.suppress(BrokenPipeError):
                os.write(writes, b"x")
            os.read(reads, 1)
        return make_token(*sizes)

    secrets.token_hex = meet


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this script, whose modules have the names of others
    serve_both(*(socket.socket(fileno=int(number)) for number in sys.argv[1:]))
