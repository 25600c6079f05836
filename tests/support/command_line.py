"""A command line that is parsed as the installed command parses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer
from attngeo.commands.app import app


def parse_command(words: Sequence[str]) -> None:
    """Parse the words after `attngeo` and run nothing.

    Raises an error of click for an unknown command or option, or for a value that an option does not have.
    """
    command: Any = typer.main.get_command(app)
    context = command.make_context("attngeo", list(words), resilient_parsing=True)  # which installs no completion
    while hasattr(command, "list_commands"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)
