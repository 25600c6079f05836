"""References to tables of vectors, and their files. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attngeo.bounds.names import explain_pattern
from attngeo.bounds.paths import CBOW, local_path
from attngeo.bounds.small_files import open_regular
from attngeo.checkpoints.files import is_weights
from attngeo.checkpoints.local_files import require_model
from attngeo.checkpoints.reference import ModelRef
from attngeo.errors import ModelNotFoundError, UsageError

VECTOR_SUFFIXES = (".txt", ".vec", ".gz", ".zip", ".kv", ".model", ".bin")
# The first bytes of files, by which they are told apart.
GZIP, ZIP, PICKLE, FASTTEXT = b"\x1f\x8b", b"PK\x03\x04", b"\x80", b"\xba\x16\x4f\x2f"


def require_embedding(model: Any) -> None:
    """Raise what `open_embedding` would raise if the file that a reference names is missing. Loads no torch."""
    text = str(model) if isinstance(model, str | Path) else ""
    if text.startswith(CBOW):
        require_text(local_path(text.removeprefix(CBOW)))
    elif text and find_vectors_file(text) is None:
        require_model(model)


def require_checkpoint(model: Any) -> None:
    """Raise UsageError unless a reference names a checkpoint, whose layers can run."""
    text = str(model) if isinstance(model, str | Path) else ""
    if text and not text.startswith(CBOW) and find_vectors_file(text) is None:
        return
    raise UsageError(
        "a table of vectors has no layers, expected the reference of a checkpoint; leave out $layers",
        "layers",
        subject=text or getattr(model, "ref", type(model).__name__),
    )


def parse_reference(text: str) -> str:
    """The reference to a table of vectors, which need not exist. Raises UsageError for a text that can name none."""
    if text.startswith(CBOW) or find_vectors_file(text) is not None:
        return text
    return ModelRef.parse(text)


def require_text(path: Path) -> None:
    """Raise ModelNotFoundError unless the path is a file to train CBOW on."""
    if not path.is_file():
        problem = "a folder" if path.is_dir() else "no such file"
        raise ModelNotFoundError(f"{problem}, expected a text file to train CBOW on", subject=path)


def find_vectors_file(text: str) -> tuple[Path, str | None] | None:
    """The file of word vectors that `text` names, and the member of a .zip; None if it names a checkpoint."""
    if not text or text.startswith("demo:"):
        return None
    path = local_path(text)
    name = text.lower()
    if not path.exists():
        for parent in path.parents:
            if parent.suffix == ".zip" and parent.is_file():
                return parent, path.relative_to(parent).as_posix()
        if name.endswith(VECTOR_SUFFIXES):
            raise ModelNotFoundError(f"no such file{explain_pattern(text)}", subject=text)
    if not path.is_file():
        return None
    if name.endswith(".bin"):
        magic = read_magic(path)
        is_pickle_of_model = magic.startswith(PICKLE) and path.with_name("config.json").is_file()
        is_checkpoint = magic.startswith(ZIP) or is_pickle_of_model
    else:
        is_checkpoint = path.name == "config.json" or is_weights(name)
    return None if is_checkpoint else (path, None)


def read_magic(path: Path) -> bytes:
    """The first four bytes, which tell the format. Raises ModelNotFoundError."""
    try:
        with open_regular(path) as file:
            return file.read(4)
    except OSError as error:
        raise ModelNotFoundError(f"cannot be read ({error.strerror})", subject=path) from None
