"""The `attngeo` command: its sub-commands, and the exit codes of its errors."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, NoReturn

import typer

from attngeo.checkpoints.files import THREADS
from attngeo.errors import AttnGeoError, CheckpointError, OutputError

from . import interrupts
from .analogy import analogy
from .cache import cache
from .cbow import cbow
from .efa import efa
from .families import families
from .help import Command, Group
from .inspect import inspect
from .messages import TRACEBACK, describe_error, say
from .nearest import nearest
from .plot import plot
from .pretrain import pretrain
from .report import report
from .score import score
from .tabular import tabular
from .theory import theory

INTERRUPTED = 130
# The variable that a shell sets to ask for completions.
COMPLETION = "_ATTNGEO_COMPLETE"

app = typer.Typer(
    name="attngeo",
    help="Read the weights of pretrained transformers and report what their attention has learned.",
    epilog="Exit codes: 0 done, 1 a check failed, 2 wrong usage, 3 model not found or not reachable, "
    "4 found but cannot be scored, 130 interrupted.",
    cls=Group,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Attention": (score, inspect, families, cache),
    "Embeddings": (analogy, nearest, cbow),
    "Training": (pretrain,),
    "Theory": (theory,),
    "Pictures and pages": (plot, report),
}
for group, functions in COMMANDS.items():
    for function in functions:
        app.command(cls=Command, rich_help_panel=group)(function)
app.add_typer(tabular, rich_help_panel="Tables")
app.add_typer(efa, rich_help_panel="Tables")


def _version(wanted: bool) -> None:
    if not wanted:
        return
    from attngeo.devices import pick_device
    from attngeo.provenance import machine, software

    found = {**software(), "device": str(pick_device("auto")), **machine()}
    first = found.pop("attngeo")
    typer.echo("\n".join([f"attngeo {first}", *(f"{name} {value}" for name, value in found.items())]))
    raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print versions and device, and exit")
    ] = False,
) -> None:
    """Read the weights of pretrained transformers and report what their attention has learned."""


def main() -> None:
    """The console script: run the app, print an error as one line, exit with its code."""
    _prepare_streams()
    if COMPLETION in os.environ:
        os.environ["COLUMNS"] = "1000"  # a candidate and its help are one line, however wide the terminal is
    if not sys.stderr.isatty():
        # huggingface_hub logs each retry, for people who wait. A log file needs only the result, which is our one line.
        os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    try:
        with interrupts.remember():
            code = app(sys.argv[1:] or ["--help"], prog_name="attngeo", standalone_mode=False)
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        text, code = ("interrupted", INTERRUPTED) if interrupts.requested() else _explain(error)
        say(text)
        _leave(code)
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED:
        say("interrupted")
    _leave(code or 0)


def _leave(code: int) -> NoReturn:
    """Exit. After a failure, do not wait for threads that wait for a server, as Python would."""
    if code and any(thread.name.startswith(THREADS) for thread in threading.enumerate()):
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


def _explain(error: Exception) -> tuple[str, int]:
    """The line that describes an error, and its exit code."""
    if isinstance(error, AttnGeoError):
        return describe_error(error), error.exit_code
    if isinstance(error, typer.TyperException):
        message = " ".join(error.format_message().split()) if hasattr(error, "format_message") else str(error)
        command = getattr(getattr(error, "ctx", None), "command_path", "attngeo")
        return f"{message.replace('Value error, ', '')} (see {command} --help)", getattr(error, "exit_code", 2)
    if isinstance(error, OSError):
        return f"output failed: {error.strerror or error}", OutputError.exit_code
    return describe_error(error), CheckpointError.exit_code


def _prepare_streams() -> None:
    """Replace closed streams, and print "?" for characters that the terminal lacks, instead of a traceback."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
