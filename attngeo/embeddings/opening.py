"""From a reference, or an object in memory, to its table of vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.formats import is_weights
from attngeo.checkpoints.reference import local_path
from attngeo.choices import Table
from attngeo.embeddings.binary_vectors import read_binary
from attngeo.embeddings.checkpoint import read_checkpoint
from attngeo.embeddings.embedding import Embedding
from attngeo.embeddings.keyed_vectors import build_embedding, read_keyed_vectors
from attngeo.embeddings.streams import ZIP, open_stream
from attngeo.embeddings.text_vectors import is_text, read_text
from attngeo.errors import ModelNotFoundError, UnsupportedModelError, UsageError
from attngeo.options import takes
from attngeo.progress import ProgressCallback, ignore_progress

VECTOR_SUFFIXES = (".txt", ".vec", ".gz", ".zip", ".kv", ".model", ".bin")
CBOW = "cbow:"
PICKLE, FASTTEXT = b"\x80", b"\xba\x16\x4f\x2f"


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
    `FILE.zip/MEMBER` for one file of several), word2vec's text or binary format, gensim's KeyedVectors; `cbow:TEXT`,
    which trains CBOW on a text first; or a transformers model, gensim's KeyedVectors or an Embedding in memory.
    table: the "input" embeddings of a checkpoint, or its unembedding, "output".
    tokeniser: of transformers or tokenizers, required for a model in memory; a checkpoint has its own.
    {hub}

    Raises ModelUnavailableError, CheckpointError, UsageError.
    """
    if isinstance(model, Embedding):
        return model
    if hasattr(model, "index_to_key") and hasattr(model, "vectors"):
        return build_embedding(model.vectors, list(model.index_to_key), type(model).__name__)
    text = str(model) if isinstance(model, str | Path) else ""
    if text.startswith(CBOW):
        from attngeo.embeddings.cbow import train_cbow

        vectors = train_cbow(local_path(text.removeprefix(CBOW)), progress=progress)
        return build_embedding(vectors.vectors, list(vectors.index_to_key), text)
    found = _find_vectors_file(text)
    if found is None:
        return read_checkpoint(model, table, tokeniser=tokeniser, hub=hub, progress=progress)
    if table == "output":
        raise UsageError(f"{text}: a file of word vectors has one table only; leave out --table output")
    return _read_vectors(*found, text, progress)


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
        magic = _read_magic(path, text)
        of_torch = magic.startswith(ZIP) or (magic.startswith(PICKLE) and path.with_name("config.json").is_file())
        return None if of_torch else (path, None)
    return None if path.name == "config.json" or is_weights(name) else (path, None)


def _read_vectors(path: Path, member: str | None, ref: str, progress: ProgressCallback) -> Embedding:
    magic = _read_magic(path, ref)
    if magic.startswith(PICKLE):
        return read_keyed_vectors(path, ref)
    if magic == FASTTEXT:
        raise UnsupportedModelError(f"{ref}: fastText's own binary format is not supported; use its .vec file")
    with open_stream(path, member, ref, progress) as stream:
        return read_text(stream) if is_text(stream.head) else read_binary(stream)


def _read_magic(path: Path, ref: str) -> bytes:
    """The first four bytes, which tell the format. Raises ModelNotFoundError."""
    try:
        with path.open("rb") as file:
            return file.read(4)
    except OSError as error:
        raise ModelNotFoundError(f"{ref}: cannot be read ({error.strerror})") from None
