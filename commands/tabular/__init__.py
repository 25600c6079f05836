"""`attngeo tabular`: attention for categorical tables, and the experiments that compare it with other methods."""

from __future__ import annotations

from collections.abc import Callable

import typer

from ..help import Command, Group
from .auto_mpg import auto_mpg
from .fit import fit
from .predict import predict
from .simulate import simulate

HELP = """Classify tables of categories with attention, and compare it with other methods.

The paper is Wibisono and Wang 2023 (arXiv 2307.04057), section 3.
"""
COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Your own tables": (fit, predict),
    "Experiments": (simulate, auto_mpg),
}

tabular = typer.Typer(name="tabular", help=HELP, cls=Group)
for group, functions in COMMANDS.items():
    for function in functions:
        tabular.command(cls=Command, rich_help_panel=group)(function)
