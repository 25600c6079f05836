"""gensim's saved KeyedVectors (and the ones inside a saved Word2Vec), read without running what a pickle could run.

gensim saves a pickle, and large arrays beside it as .npy files. Here the pickle may build numpy arrays; gensim's own
classes become inert records, and a file that names anything else is refused.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from attngeo.embeddings.embedding import Embedding, finite_rows
from attngeo.embeddings.words import is_word
from attngeo.errors import CorruptCheckpointError, UnsafeCheckpointError, UnsupportedModelError

# What builds an array from a pickle, and does nothing else; numpy has moved it twice.
ARRAYS = {
    **{
        (module, name): getattr(np._core.multiarray, name)  # type: ignore[attr-defined]
        for module in ("numpy.core.multiarray", "numpy._core.multiarray")
        for name in ("_reconstruct", "scalar")
    },
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): lambda text, *_: text.encode("latin1"),
}
# Packages whose objects are kept as records only: what gensim saves beside the vectors is not looked at.
INERT = (
    "gensim.",
    "numpy.random.",
    "collections.",
    *(f"{b}.{n}" for b in ("builtins", "__builtin__") for n in ("int", "long", "hash", "object", "set")),
)


class Record(dict[Any, Any]):
    """Stands in for an object of any class: takes its arguments, attributes and items, and does nothing with them."""

    def __new__(cls, *_: Any, **__: Any) -> Record:  # noqa: D102
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


class _Unpickler(pickle.Unpickler):
    allowed: ClassVar = ARRAYS

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self.allowed:
            return self.allowed[module, name]
        if f"{module}.{name}".startswith(INERT):
            return Record
        raise UnsafeCheckpointError(f"names {module}.{name}")


def read_keyed_vectors(path: Path, ref: str) -> Embedding:
    """The vectors of a file that gensim's KeyedVectors.save or Word2Vec.save wrote.

    Raises UnsafeCheckpointError for a pickle that would do more, CorruptCheckpointError, UnsupportedModelError.
    """
    try:
        with path.open("rb") as file:
            saved = _Unpickler(file, encoding="latin1").load()
    except UnsafeCheckpointError as error:
        raise UnsafeCheckpointError(
            f"{ref}: refused: it {error}, which is not part of saved word vectors, and loading it could run code; "
            "ask for the word2vec text format"
        ) from None
    except Exception as error:  # a forged pickle fails in any way it likes
        raise CorruptCheckpointError(f"{ref}: not a readable gensim file ({type(error).__name__}: {error})") from None
    fields, prefix = getattr(saved, "__dict__", {}), ""
    if isinstance(fields.get("wv"), Record):
        fields, prefix = fields["wv"].__dict__, "wv."
    labels = _first(fields, "index_to_key", "index2word", "index2entity")
    matrix = _array(path, prefix, fields, ref)
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise UnsupportedModelError(f"{ref}: holds no KeyedVectors; save them with gensim's KeyedVectors.save")
    if matrix.ndim != 2 or len(matrix) < len(labels) or matrix.dtype.kind != "f":
        raise CorruptCheckpointError(f"{ref}: {len(labels):,} words and an array {matrix.shape}; save it again")
    matrix = np.ascontiguousarray(matrix[: len(labels)], matrix.dtype.newbyteorder("="))
    tensor = torch.from_numpy(matrix)
    usable = finite_rows(tensor)
    if not usable.any():
        raise CorruptCheckpointError(f"{ref}: holds no finite vector; save it again")
    bad = int((~usable).sum())
    notes = (f"{bad:,} vectors left out: NaN or Inf in them",) if bad else ()
    words = torch.tensor([is_word(label) for label in labels])
    return Embedding(ref, tensor, labels, words & usable, usable, notes=notes)


def _array(path: Path, prefix: str, fields: dict[str, Any], ref: str) -> np.ndarray[Any, Any]:
    """The vectors: in the pickle, or in the .npy file that gensim puts beside it."""
    inside = _first(fields, "vectors", "syn0")
    if isinstance(inside, np.ndarray):
        return inside
    for name in ("vectors", "syn0"):
        beside = path.with_name(f"{path.name}.{prefix}{name}.npy")
        if beside.is_file():
            try:
                array: np.ndarray[Any, Any] = np.load(beside, allow_pickle=False)
            except (OSError, ValueError, EOFError) as error:
                raise CorruptCheckpointError(f"{ref}: {beside.name} is not readable ({error})") from None
            return array
    raise CorruptCheckpointError(
        f"{ref}: its vectors are missing, expected {path.name}.{prefix}vectors.npy beside it; copy that file too"
    )


def _first(fields: dict[str, Any], *names: str) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)
