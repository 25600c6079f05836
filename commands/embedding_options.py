"""Options of the commands that read tables of vectors, and what their text means."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from attngeo.choices import Candidates, Case, Compose, Table
from attngeo.errors import UsageError

EMBEDDING_HELP = (
    "A checkpoint as for score; a file of word vectors (GloVe, fastText .vec, word2vec, gensim; .gz and .zip too); or "
    "cbow:TEXT to train CBOW on a text first."
)
UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}


TableOption = Annotated[Table, typer.Option("--table", help="A checkpoint's input embeddings, or its unembedding.")]
CandidatesOption = Annotated[
    Candidates, typer.Option("--candidates", help="What may be an answer: whole words, or every entry of the table.")
]
CaseOption = Annotated[
    Case,
    typer.Option(
        "--case",
        help="Look words up as written, in lower case, or ignoring case; auto: lower for uncased vocabularies.",
    ),
]
ComposeOption = Annotated[
    Compose, typer.Option("--compose", help="Words of several tokens: unknown, or the mean of their vectors.")
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", help="Only the first N candidates, in most tables the most frequent."),
]
Normalise = Annotated[bool, typer.Option("--normalise", "--normalize", help="Scale vectors to unit length first.")]
Centre = Annotated[bool, typer.Option("--centre", "--center", help="Take the mean vector away first.")]
Whiten = Annotated[
    int, typer.Option("--whiten", help="Take away the mean and the N main directions (all-but-the-top).")
]


def parse_bytes(text: str) -> int:
    """The bytes of "2GB", "500 MB" or "1000000". Raises UsageError."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if found is None:
        raise UsageError(f"--memory {text!r} is no amount of memory, expected something like 500MB or 2GB")
    return int(float(found[1]) * UNITS[found[2]])
