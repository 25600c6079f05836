"""`attngeo efa`: exponential family attention on a user's own data, and the experiments of its paper."""

from __future__ import annotations

from collections.abc import Callable

import typer

from ..help import Command, Group
from .attention import attention
from .fit import fit
from .predict import predict
from .run import run
from .sample import sample
from .similar import similar

HELP = """Model sequences, baskets, ratings and places with exponential family attention.

The paper is Wibisono and Wang 2025 (arXiv 2501.16790).
"""
COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Your own data": (fit, predict, sample, similar, attention),
    "Experiments": (run,),
}

efa = typer.Typer(name="efa", help=HELP, cls=Group)
for group, functions in COMMANDS.items():
    for function in functions:
        efa.command(cls=Command, rich_help_panel=group)(function)
