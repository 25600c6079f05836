"""Lists of tokens from users: one token on a line of a file."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from attngeo.bounds.names import list_names, printable
from attngeo.bounds.small_files import read_small_text
from attngeo.choices import advise
from attngeo.embeddings.embedding import Embedding
from attngeo.errors import DataError, DataUnavailableError, UsageError


def read_labels(file: str) -> dict[str, str]:
    """The tokens in a file, one on a line, and where each is. Raises DataUnavailableError, DataError or UsageError."""
    try:
        lines = read_small_text(Path(file), encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise DataUnavailableError(
            f"the list of tokens cannot be read ({error.strerror}); expected a text file with one token per line",
            subject=file,
        ) from None
    except ValueError as error:
        raise DataError(f"{error}; expected one token per line", subject=file) from None
    labels: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        label = line.strip()
        if label:
            labels.setdefault(label, f"{file}:{number}")
    if not labels:
        raise UsageError("no tokens, expected one per line", "tokens", subject=file)
    return labels


def find_rows(labels: dict[str, str], embedding: Embedding) -> Tensor:
    """The rows of tokens in the embeddings, int64. Raises UsageError for one that the model does not have."""
    rows = {printable(embedding.labels[row]): row for row in reversed(embedding.answer_rows("all").tolist())}
    for label, place in labels.items():
        if label not in rows:
            advice = advise(label, rows, 'run without $tokens, and see the column "token" for how tokens are written')
            pieces = embedding.pieces(label) if embedding.pieces is not None else None
            written = [repr(printable(embedding.labels[row])) for row in pieces or []]
            parts = f", which the model writes as {list_names(written)}" if len(written) > 1 else ""
            raise UsageError(f"no token {label!r:.60}{parts}; {advice}", "tokens", subject=place)
    return torch.tensor([rows[label] for label in labels])
