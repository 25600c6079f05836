"""The `attngeo` command: its sub-commands, and the exit codes of its errors."""

from __future__ import annotations

import codecs
import io
import logging
import os
import re
import sys
import threading
from contextlib import suppress
from errno import ENAMETOOLONG
from functools import cache
from importlib import import_module
from typing import Annotated, Any, NamedTuple, NoReturn

import typer

from attngeo.bounds.machine import THREADS
from attngeo.errors import (
    AttnGeoError,
    CheckpointError,
    InterruptedTrainingError,
    ModelUnavailableError,
    OutputError,
    UsageError,
    explain_exhaustion,
    is_panic,
)

from .help import Command, Group
from .messages import (
    INTERRUPTED,
    TRACEBACK,
    describe_error,
    describe_interrupt,
    remember_interrupts,
    say,
    was_interrupted,
)

# How pydantic's names of errors about a type begin, and what was expected.
TYPES = {"int": "a whole number", "float": "a number", "bool": "yes or no"}
# The variable that a shell sets to ask for completions.
COMPLETION = "_ATTNGEO_COMPLETE"
# A width in columns that a terminal can have.
WIDTH = re.compile("0*[1-9][0-9]{0,5}")
# How characters that a terminal lacks are printed: the name of the treatment, and plain marks for some of them.
PLAIN = "attngeo.plain"
PLAIN_MARKS = {"—": "-", "−": "-", "·": "-", "…": ".", "×": "x"}

READ, TRAIN, SHOW, ESTIMATE, PAPERS = (
    "Pretrained models", "Training", "Pictures and pages", "Your own tables and sequences", "Papers",
)  # fmt: skip


class SubCommand(NamedTuple):
    """The group and the description of a command in the list of commands. Its module defines it by the same name."""

    rich_help_panel: str
    help: str


CHANGES = "to see what changed, type: attngeo compare BASE MODEL..."
# A command and an option that it lacks → the command that is meant.
MEANT = {
    ("attngeo score", "--base"): CHANGES,
    ("attngeo score", "--against"): CHANGES,
    ("attngeo compare", "--base"): "the base is the first model; type: attngeo compare BASE MODEL...",
    ("attngeo nearest", "--questions"): "to ask questions, type: attngeo analogy MODEL --questions FILE",
}
# A test compares the texts with those of the commands, whose modules are imported when they are called.
COMMANDS = {
    "score": SubCommand(READ, "Score the symmetry and directionality of the query-key matrix of every layer."),
    "inspect": SubCommand(
        READ, "Show what score would read from a model, what it leaves out, and why. Reads no weights."
    ),
    "analogy": SubCommand(READ, "Test embeddings on word analogies: a is to b as c is to which word?"),
    "nearest": SubCommand(READ, "Show the words nearest to a sum of words."),
    "words": SubCommand(READ, "Show which tokens a head connects, from its weights and the token embeddings alone."),
    "compose": SubCommand(READ, "Measure how much of each head's output later heads read, from the weights alone."),
    "mirrors": SubCommand(
        READ, "Show which heads of a layer are transposes of each other (mirrors), and which are alike (twins)."
    ),
    "compare": SubCommand(READ, "Show which layers and heads changed from one model to others."),
    "lineage": SubCommand(
        READ, "Test whether models share an origin, or whether their initial weights were drawn independently."
    ),
    "gradients": SubCommand(
        READ, "Score the gradient of every query-key matrix on a text, to see where its structure comes from."
    ),
    "positions": SubCommand(
        READ, "Show where each head looks by position alone: one token back, at itself, or far away."
    ),
    "pretrain": SubCommand(TRAIN, "Train a small transformer from scratch and score its attention as it learns."),
    "cbow": SubCommand(
        TRAIN, "Train CBOW with negative sampling (word2vec) on a text with one sentence per line, using gensim."
    ),
    "plot": SubCommand(
        SHOW, "Draw a figure of scores, a matrix, training, analogies, methods on tables or attention over items."
    ),
    "report": SubCommand(SHOW, "Make a report: one page with figures, tables and checks, which opens offline."),
    "cache": SubCommand(SHOW, "List the results kept on this machine, with their sizes, or remove them."),
    "efa": SubCommand(ESTIMATE, "Model sequences, baskets, ratings and places with exponential family attention."),
    "tabular": SubCommand(ESTIMATE, "Classify the rows of a table with attention, and compare it with other methods."),
    "theory": SubCommand(PAPERS, "Check each statement of the papers by computing both of its sides."),
}


@cache
def load_command(name: str) -> Any:
    """A sub-command, or a group of them, as the parser needs it."""
    command = getattr(import_module(f".{name}", __package__), name)
    if isinstance(command, typer.Typer):
        return typer.main.get_group(command)
    alone = typer.Typer(add_completion=False)
    alone.command(name, cls=Command)(command)
    return typer.main.get_command(alone)


class Root(Group):
    """`attngeo` itself. The module of a sub-command is imported when it is called."""

    def __init__(self, **about: Any) -> None:
        super().__init__(**about)
        self.commands: dict[str, Any] = dict(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """The sub-command of this name, as the parser needs it; None if there is none."""
        return load_command(cmd_name) if cmd_name in COMMANDS else None


app = typer.Typer(
    name="attngeo",
    help="Read the weights of pretrained transformers and report what their attention has learned.",
    epilog="Exit codes: 0 done, 1 a check failed, 2 wrong usage, 3 not found or not reachable, 4 found but "
    "unusable, or one of several failed, 130 interrupted.",
    cls=Root,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print versions and exit")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="With --version, also print the device")] = False,
) -> None:
    """Read the weights of pretrained transformers and report what their attention has learned."""
    if version:
        from attngeo.provenance import machine, software

        lines = software()
        if verbose:  # only the device requires torch
            from attngeo.devices import pick_device

            lines["device"] = str(pick_device("auto"))
        for name, value in {**lines, **machine()}.items():
            typer.echo(f"{name} {value}")
        raise typer.Exit
    if verbose:
        raise UsageError("-v before a command belongs to --version; write it after the command")
    try:
        os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        # Relative paths mean nothing there, and the libraries of torch's wheels end the process without an error.
        raise UsageError("the working folder was deleted; change to another one (cd)") from None


def main() -> None:
    """The console script: run the app, print an error as one line, exit with its code."""
    _prepare_streams()
    # A child looks for no modules in the working folder, whoever starts it: see `attngeo.bounds.children`.
    os.environ["PYTHONSAFEPATH"] = "1"
    if COMPLETION in os.environ:
        os.environ["COLUMNS"] = "1000"  # a candidate and its help are one line, however wide the terminal is
    elif not WIDTH.fullmatch(os.environ.get("COLUMNS", "")):
        # As if it were unset, which shutil.get_terminal_size does. In a width of 0, rich prints nothing.
        os.environ.pop("COLUMNS", None)
    if not sys.stderr.isatty():
        # huggingface_hub logs each retry, for people who wait. A log file needs only the result, which is our one line.
        os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    # Where it is installed, transformers imports it, and it advises to install a package that attngeo has no use for.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    try:
        with remember_interrupts():
            code = app(sys.argv[1:] or ["--help"], prog_name="attngeo", standalone_mode=False)
    except KeyboardInterrupt:
        _leave_interrupted()
    except BaseException as error:
        if os.environ.get(TRACEBACK) or not (isinstance(error, Exception) or is_panic(error)):
            raise
        # An interrupt may turn into another error, for example in an import.
        if was_interrupted() and not isinstance(error, InterruptedTrainingError):
            _leave_interrupted()
        text, code = _explain(error)
        say(text)
        _leave(code)
    if code == INTERRUPTED:
        _leave_interrupted()
    _leave(code or 0)


def _leave_interrupted() -> NoReturn:
    """Exit after a signal."""
    text, code = describe_interrupt()
    with suppress(OSError):  # of a terminal that was closed
        say(text)
    _leave(code)


def _leave(code: int) -> NoReturn:
    """Exit. After a failure, do not wait for threads that wait for a server, as Python would."""
    if code and any(thread.name.startswith(THREADS) for thread in threading.enumerate()):
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


def _explain(error: BaseException) -> tuple[str, int]:
    """The line that describes an error, and its exit code."""
    if isinstance(error, AttnGeoError):
        return describe_error(error), error.exit_code
    if isinstance(error, typer.TyperException):
        message = " ".join(error.format_message().split()) if hasattr(error, "format_message") else str(error)
        message = message.replace(": Value error, ", ": ", 1)  # Pydantic's words for what Typer says
        message = _describe_type(error) or message
        command = getattr(getattr(error, "ctx", None), "command_path", "attngeo")
        meant = MEANT.get((command, str(getattr(error, "option_name", ""))))
        if meant is not None:
            message = f"{message.partition(' (Possible')[0]}; {meant}"
        return f"{message} (see {command} --help)", getattr(error, "exit_code", 2)
    if isinstance(error, OSError) and error.errno == ENAMETOOLONG:  # outputs are checked before
        return f"{error.filename}: no such file or folder ({error.strerror})", ModelUnavailableError.exit_code
    if isinstance(error, OSError):
        return f"output failed: {error.strerror or error}", OutputError.exit_code
    return describe_error(explain_exhaustion(error) or error), CheckpointError.exit_code


def _describe_type(error: Any) -> str:
    """The option, its value, and what was expected of it; "" for an error that is about no type.

    Typer has pydantic read the values of options; its error is the cause of Typer's.
    """
    for problem in getattr(error.__cause__, "errors", list)():
        expected = TYPES.get(problem["type"].partition("_")[0])
        if expected is not None and getattr(error, "param", None) is not None:
            flag = max(error.param.opts, key=len)
            return f"{flag} is {problem['input']!r:.60}, expected {expected}"
    return ""


def _prepare_streams() -> None:
    """Replace closed streams, and print plain marks for characters that the terminal lacks, instead of a traceback."""
    codecs.register_error(PLAIN, _replace_by_plain)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=PLAIN)


def _replace_by_plain(error: UnicodeError) -> tuple[str, int]:
    """What is printed for the characters of a text that an encoding lacks, and where the text goes on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(PLAIN_MARKS.get(character, "?") for character in lacking), error.end
