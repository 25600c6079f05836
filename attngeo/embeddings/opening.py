"""From a reference, or an object in memory, to its table of vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.files import is_weights
from attngeo.checkpoints.reference import local_path
from attngeo.choices import Table
from attngeo.embeddings.checkpoint import read_checkpoint
from attngeo.embeddings.embedding import Embedding
from attngeo.embeddings.vectors import PICKLE, ZIP, read_magic, read_vectors
from attngeo.errors import CorruptCheckpointError, ModelNotFoundError, UsageError
from attngeo.options import takes
from attngeo.progress import ProgressCallback, ignore_progress

VECTOR_SUFFIXES = (".txt", ".vec", ".gz", ".zip", ".kv", ".model", ".bin")
CBOW = "cbow:"
FLOATS = ("f2", "f4", "f8")


class EmbeddingKeywords(HubAccess):
    """The keywords of `open_embedding`."""

    hub: HubAccess | None = None
    table: Table = "input"
    tokeniser: Any = None
    progress: ProgressCallback = ignore_progress


@takes(EmbeddingKeywords)
def open_embedding(
    model: Any,
    *,
    table: Table = "input",
    tokeniser: Any = None,
    hub: HubAccess,
    progress: ProgressCallback = ignore_progress,
) -> Embedding:
    """Open a table of vectors.

    model: a checkpoint as for `score`; a file of word vectors: the text of GloVe or fastText (plain, .gz, or .zip, with
    `FILE.zip/MEMBER` for one file of several), word2vec's text or binary format; `cbow:TEXT`,
    which trains CBOW on a text first; or a transformers model, gensim's KeyedVectors or an Embedding in memory.
    table: the "input" embeddings of a checkpoint, or its unembedding, "output".
    tokeniser: of transformers or tokenizers, required for a model in memory; a checkpoint has its own.
    {hub}

    Raises ModelUnavailableError, CheckpointError, UsageError.
    """
    if isinstance(model, Embedding):
        return model
    if hasattr(model, "index_to_key") and hasattr(model, "vectors"):
        return _take_vectors(model, type(model).__name__)
    text = str(model) if isinstance(model, str | Path) else ""
    if text.startswith(CBOW):
        from attngeo.embeddings.cbow import train_cbow

        return _take_vectors(train_cbow(local_path(text.removeprefix(CBOW)), progress=progress), text)
    file = _find_vectors_file(text)
    if file is None:
        return read_checkpoint(model, table, tokeniser=tokeniser, hub=hub, progress=progress)
    if table == "output":
        raise UsageError(f"{text}: a file of word vectors has one table only; leave out $table", "table")
    return read_vectors(*file, text, progress)


def _find_vectors_file(text: str) -> tuple[Path, str | None] | None:
    """The file of word vectors that `text` names, and the member of a .zip; None if it names a checkpoint."""
    if not text or text.startswith("demo:"):
        return None
    path, member, name = local_path(text), None, text.lower()
    if not path.exists():
        archive = next((parent for parent in path.parents if parent.suffix == ".zip" and parent.is_file()), None)
        if archive is not None:
            path, member = archive, path.relative_to(archive).as_posix()
        elif name.endswith(VECTOR_SUFFIXES):
            raise ModelNotFoundError(f"{text}: no such file")
    if not path.is_file():
        return None
    if member is not None:
        return path, member
    if name.endswith(".bin"):
        magic = read_magic(path, text)
        of_torch = magic.startswith(ZIP) or (magic.startswith(PICKLE) and path.with_name("config.json").is_file())
        return None if of_torch else (path, None)
    return None if path.name == "config.json" or is_weights(name) else (path, None)


def _take_vectors(vectors: Any, ref: str) -> Embedding:
    """The table of gensim's KeyedVectors. Raises CorruptCheckpointError unless each word has a floating-point row."""
    matrix, labels = np.asarray(vectors.vectors), list(vectors.index_to_key)
    if matrix.ndim != 2 or len(matrix) < len(labels) or matrix.dtype.str[1:] not in FLOATS:
        raise CorruptCheckpointError(
            f"{ref}: {len(labels):,} words and an array {matrix.dtype} {matrix.shape}, expected one floating-point row "
            "for each word; save it again"
        )
    rows = np.ascontiguousarray(matrix[: len(labels)], matrix.dtype.newbyteorder("="))
    return Embedding.from_words(ref, rows, labels)
