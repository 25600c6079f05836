"""The `attngeo` command: its sub-commands, and how its errors end."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from attngeo import __version__
from attngeo.errors import AttnGeoError

from .families import families
from .inspect import inspect
from .score import score

app = typer.Typer(
    name="attngeo",
    help="Read the weights of pretrained transformers and say what their attention has learned.",
    epilog="Exit codes: 0 done, 1 a check did not hold, 2 wrong usage, 3 model not found or not reachable, "
    "4 found but cannot be scored, 130 interrupted.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(score)
app.command()(inspect)
app.command()(families)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"attngeo {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Read the weights of pretrained transformers and say what their attention has learned."""


def main() -> None:
    """The console script: run the app, print an error as one line, exit with its code."""
    if not sys.stderr.isatty():
        # huggingface_hub logs each retry, for people who wait; a log wants only what came of them, one line of ours.
        os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without these characters gets "?" instead of a traceback
    try:
        code = app(sys.argv[1:] or ["--help"], prog_name="attngeo", standalone_mode=False)
    except AttnGeoError as error:
        fail(str(error), error.exit_code)
    except typer.TyperException as error:
        message = " ".join(error.format_message().split()) if hasattr(error, "format_message") else str(error)
        command = getattr(getattr(error, "ctx", None), "command_path", "attngeo")
        fail(f"{message.replace('Value error, ', '')} (see {command} --help)", getattr(error, "exit_code", 2))
    except KeyboardInterrupt:
        code = 130
    if code == 130:
        fail("interrupted; nothing was written", 130)
    sys.exit(code or 0)


def fail(message: str, code: int) -> None:
    """Print one line on stderr and exit with `code`."""
    sys.stderr.write(f"attngeo: {message}\n")
    sys.exit(code)
