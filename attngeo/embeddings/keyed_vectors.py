"""gensim's saved KeyedVectors, also those inside a saved Word2Vec, read without running code of the file.

gensim saves a pickle, and large arrays beside it as .npy files. gensim's own `load` calls whatever function a pickle
names. This reader calls none: stand-ins record the description of an array, which is checked before numpy sees it;
objects of gensim become records without behaviour; a file that names anything else is refused.
"""

from __future__ import annotations

import math
import re
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np

from attngeo.bounds.memory import require_memory
from attngeo.checkpoints.pickles import ALL, PlainUnpickler, Record, choose_opcodes
from attngeo.embeddings.embedding import Embedding
from attngeo.errors import CorruptCheckpointError, UnsafeCheckpointError, UnsupportedModelError, first_line

FLOATS = ("f2", "f4", "f8")
# Classes whose objects are kept as records. They hold what gensim saves beside the vectors, which is not read.
INERT = re.compile(
    r"(gensim\.|numpy\.random\.|collections\.).*|(builtins|__builtin__)\.(int|long|hash|object|set)"
    r"|numpy\.ndarray|numpy(\._core|\.core)\.multiarray\.scalar"
)


class SavedType(Record):
    """A stand-in for numpy.dtype: its name, such as f4, and its byte order."""

    order = "<"

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">"):
            self.order = state[1]

    @property
    def name(self) -> str | None:
        """The type as numpy writes it, such as `<f4`; None for a type that vectors do not have."""
        code = self.arguments[0] if self.arguments else None
        return f"{self.order}{code}" if code in FLOATS else None


class SavedArray(Record):
    """A stand-in for numpy.ndarray: keeps the saved state, of which `array` makes an array."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def array(self) -> np.ndarray[Any, Any]:
        """The array. Raises ValueError unless the saved state is an array of floating-point numbers."""
        match self.state:
            case (_, tuple(shape), SavedType(name=str(name)), fortran, bytes() | str() as raw):
                data = raw.encode("latin1") if isinstance(raw, str) else raw  # Python 2 saved bytes as text
                return np.frombuffer(data, name).reshape(shape, order="F" if fortran else "C")
        raise ValueError("its array is not one of floating-point numbers")


STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): SavedArray,
    ("numpy._core.multiarray", "_reconstruct"): SavedArray,
    ("numpy", "dtype"): SavedType,
    ("_codecs", "encode"): lambda text, *_: str(text).encode("latin1"),
}


class _Unpickler(PlainUnpickler):
    dispatch = choose_opcodes(ALL)

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in STAND_INS:
            return STAND_INS[module, name]
        if INERT.fullmatch(f"{module}.{name}"):
            return Record
        raise UnsafeCheckpointError(f"{module}.{name}")


def read_keyed_vectors(path: Path, ref: str) -> Embedding:
    """The vectors of a file that gensim's KeyedVectors.save or Word2Vec.save wrote.

    Raises UnsafeCheckpointError for a pickle that names other code, CorruptCheckpointError, UnsupportedModelError.
    """
    try:
        # A map of the file never reserves what a forged length states.
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            saved = _Unpickler(data, encoding="latin1").load()
    except UnsafeCheckpointError as error:
        raise UnsafeCheckpointError(
            f"{ref}: refused: it names {str(error)[:80]!r}, which is not part of saved word vectors and could run "
            "code; use a file in word2vec's text format"
        ) from None
    except Exception as error:  # a forged pickle can raise anything
        raise CorruptCheckpointError(
            f"{ref}: not a readable gensim file ({type(error).__name__}: {first_line(error)}); save it again"
        ) from None
    fields, prefix = getattr(saved, "__dict__", {}), ""
    if isinstance(fields.get("wv"), Record):
        fields, prefix = fields["wv"].__dict__, "wv."
    labels = _find_field(fields, "index_to_key", "index2word", "index2entity")
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise UnsupportedModelError(f"{ref}: it has no KeyedVectors; save them with gensim's KeyedVectors.save")
    if "vectors_ngrams" in fields:
        raise UnsupportedModelError(f"{ref}: a FastText model of gensim; save its vectors with save_word2vec_format")
    try:
        matrix = _read_array(path, prefix, fields, ref)
    except (ValueError, TypeError, EOFError, OSError, MemoryError) as error:
        raise CorruptCheckpointError(f"{ref}: its vectors cannot be read ({error}); save it again") from None
    return build_embedding(matrix, labels, ref)


def build_embedding(matrix: np.ndarray[Any, Any], labels: list[str], ref: str) -> Embedding:
    """The table of the vectors of gensim, [rows, width], and the words of its first rows.

    Raises CorruptCheckpointError unless `matrix` has a floating-point row for each word.
    """
    if matrix.ndim != 2 or len(matrix) < len(labels) or matrix.dtype.str[1:] not in FLOATS:
        raise CorruptCheckpointError(
            f"{ref}: {len(labels):,} words and an array {matrix.dtype} {matrix.shape}, expected one floating-point row "
            "for each word; save it again"
        )
    return Embedding.from_words(
        ref, np.ascontiguousarray(matrix[: len(labels)], matrix.dtype.newbyteorder("=")), labels
    )


def _read_array(path: Path, prefix: str, fields: dict[str, Any], ref: str) -> np.ndarray[Any, Any]:
    """The vectors: in the pickle, or in the .npy file that gensim saves beside it."""
    inside = _find_field(fields, "vectors", "syn0")
    if isinstance(inside, SavedArray):
        return inside.array()
    for name in ("vectors", "syn0"):
        beside = path.with_name(f"{path.name}.{prefix}{name}.npy")
        if beside.is_file():
            return _read_npy(beside, ref)
    raise CorruptCheckpointError(
        f"{ref}: its vectors are missing, expected {path.name}.{prefix}vectors.npy beside it; copy that file too"
    )


def _read_npy(path: Path, ref: str) -> np.ndarray[Any, Any]:
    """The array of a .npy file. Not by np.load, which takes zip files and pickles too, and reserves any size.

    Raises ValueError if the file is not as long as its header says.
    """
    with path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read_header(file)
        needed, size = math.prod(shape) * dtype.itemsize, path.stat().st_size - file.tell()
        if dtype.hasobject or needed != size:
            raise ValueError(f"{path.name} has {size:,} bytes, and its header states {dtype} {shape}")
        require_memory(needed, f"{ref}: {path.name}")
        return np.fromfile(file, dtype).reshape(shape, order="F" if fortran else "C")


def _find_field(fields: dict[str, Any], *names: str) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)
