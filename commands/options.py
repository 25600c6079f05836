"""Options that several sub-commands share, and what their text means."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from attngeo.options import RESULTS, RUNNING

MODEL_HELP = "org/name[@revision] on the Hub, a folder, a weights file, or demo:encoder, demo:decoder, demo:minilm"
EMBEDDING_HELP = (
    "A checkpoint as for score; a file of word vectors (GloVe, fastText .vec, word2vec; also .gz and .zip); or "
    "cbow:TEXT, which trains CBOW on a text first"
)


def complete_models(incomplete: str) -> list[str]:
    """The names of models that start with `incomplete`; none for an empty text, so that the shell completes files."""
    from attngeo.checkpoints.reference import local_names

    return [name for name in local_names() if incomplete and name.startswith(incomplete)]


Model = Annotated[
    str, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False, autocompletion=complete_models)
]
Output = Annotated[
    list[Path] | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Write the rows to a .csv .json .jsonl .parquet .md .tex or .html file; may be repeated",
        rich_help_panel=RESULTS,
    ),
]
Quiet = Annotated[
    bool, typer.Option("-q", "--quiet", help="Print no progress and no notes on stderr", rich_help_panel=RUNNING)
]
Verbose = Annotated[
    bool,
    typer.Option(
        "-v",
        "--verbose",
        help="Print on stderr what is read, from where, and how long it took",
        rich_help_panel=RUNNING,
    ),
]


class OutputFormat(StrEnum):
    """How results are printed."""

    table = "table"
    csv = "csv"
    json = "json"
    markdown = "markdown"


RowsFormat = Annotated[OutputFormat, typer.Option("--format", help="Format on stdout", rich_help_panel=RESULTS)]
FindingsFormat = Annotated[
    Literal["table", "json"], typer.Option("--format", help="Format on stdout", rich_help_panel=RESULTS)
]
