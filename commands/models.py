"""The models that a command is about: arguments, and the lines of a file."""

from __future__ import annotations

from typing import Annotated

import typer

from attngeo.checkpoints.access import HubAccess
from attngeo.errors import UsageError
from attngeo.options import INPUT

from .options import MODEL_HELP, complete_models

# The exit code if some of several models failed.
SEVERAL_FAILED = 4

Models = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODEL",
        help=f"{MODEL_HELP}; or org/name@step* for all revisions of this pattern",
        show_default=False,
        autocompletion=complete_models,
    ),
]
ModelsFile = Annotated[
    str | None,
    typer.Option(
        "--models",
        metavar="FILE",
        help="Take also the models of a file, one on each line; - is stdin. Prints one line for each model",
        rich_help_panel=INPUT,
    ),
]


def list_all(models: list[str] | None, file: str | None, hub: HubAccess, *, command: str) -> list[str]:
    """The models of the command line and of the file. Raises UsageError if there are none."""
    from attngeo.studies.models import list_models

    if not models and file is None:
        raise UsageError(f"Missing argument 'MODEL...', or --models FILE (see attngeo {command} --help)")
    return list_models(models or [], file, hub=hub)
