"""Options that several sub-commands share, and what their text means."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from attngeo.errors import UsageError

MODEL_HELP = "org/name[@revision] on the Hub, a folder, a weights file, or demo:encoder, demo:decoder, demo:minilm."


def model_names(incomplete: str) -> list[str]:
    """What a shell may complete a model's name to; nothing, for it to complete files, where nothing is typed yet."""
    from attngeo.checkpoints.suggest import local_names

    return [name for name in local_names() if incomplete and name.startswith(incomplete)]


Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False, autocompletion=model_names)]
Offline = Annotated[bool, typer.Option("--offline", help="Use what is in the Hub's cache; connect to nothing.")]
Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda[:n]|mps", help="Where to compute.")]
Output = Annotated[
    list[Path] | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Write the rows to a .csv .json .jsonl .parquet .md .tex or .html file; may be repeated.",
    ),
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="No progress and no notes on stderr.")]
Verbose = Annotated[
    bool, typer.Option("-v", "--verbose", help="Say on stderr what is read, from where, and how long it took.")
]


class Format(StrEnum):
    """How results are printed."""

    table = "table"
    csv = "csv"
    json = "json"
    markdown = "markdown"


RowsFormat = Annotated[Format, typer.Option("--format", help="What to print.")]
FindingsFormat = Annotated[Literal["table", "json"], typer.Option("--format", help="What to print.")]


def parse_layers(text: str | None) -> list[int] | None:
    """The layers of "0-3,7": [0, 1, 2, 3, 7]. None for None. Raises UsageError."""
    if text is None:
        return None
    layers: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise UsageError(f"--layers {text!r} is not a list of layers, expected something like 0-3,7")
        layers.update(range(int(first), int(last or first) + 1))
    return sorted(layers)
