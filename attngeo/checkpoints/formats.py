"""The file formats of checkpoints, in one table: which files are tried, in which order, and how each one is opened.

A new format is a module with a class that fits `TensorFile`, and an entry in `FORMATS`. A module of a format, and torch
with it, is imported when the first file of that format is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from attngeo.errors import UnsupportedModelError

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from attngeo.checkpoints.source import ByteSource, Extent
    from attngeo.checkpoints.tensor import TensorInfo

# The end of the name of an index: the JSON file that tells which file of a sharded checkpoint holds which tensor.
INDEX_SUFFIX = ".index.json"


class TensorFile(Protocol):
    """One open file of weights."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """The table of contents: tensor name → shape, dtype and place."""
        ...

    def read(self, name: str, rows: slice = slice(None)) -> torch.Tensor:
        """One tensor, or rows of its first dimension, on the CPU in the file's dtype."""
        ...

    def extents(self, reads: Mapping[str, slice]) -> Iterable[Extent]:
        """The bytes of the file that `read` needs for these rows of these tensors."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


@dataclass(frozen=True, kw_only=True)
class Format:
    """One file format.

    name: what users call it. suffixes: how its file names end; the first one is the usual one. usual_stem: what
    transformers calls the file of a checkpoint, before the suffix; "" if transformers does not write this format.
    open: opens one file, and raises CheckpointError if it is broken; None for a format that is not supported, with
    `advice` on what to use instead. read_config: reads the configuration from the file itself, given its path and the
    user's reference; None if the configuration is the config.json beside the file (a folder always needs one).
    not_weights: files with the usual suffix that hold something else.
    """

    name: str
    suffixes: tuple[str, ...]
    usual_stem: str = ""
    open: Callable[[ByteSource], TensorFile] | None = None
    read_config: Callable[[Path, str], dict[str, Any]] | None = None
    not_weights: tuple[str, ...] = ()
    advice: str = ""


def _open_safetensors(source: ByteSource) -> TensorFile:
    from attngeo.checkpoints.safetensors import SafetensorsFile

    return SafetensorsFile(source)


def _open_torch(source: ByteSource) -> TensorFile:
    from attngeo.checkpoints.torch_bin import TorchFile

    return TorchFile(source)


SAFETENSORS = Format(name="safetensors", suffixes=(".safetensors",), usual_stem="model", open=_open_safetensors)

# In the order in which they are tried.
FORMATS: tuple[Format, ...] = (
    SAFETENSORS,
    Format(
        name="PyTorch",
        suffixes=(".bin", ".pt", ".pth"),
        usual_stem="pytorch_model",
        open=_open_torch,
        not_weights=("training_args.bin",),
    ),
    Format(name="GGUF", suffixes=(".gguf",), advice="give the safetensors checkpoint that the GGUF file was made from"),
)


def usual_names() -> tuple[str, ...]:
    """The files to try in a folder or repository, in this order. The index of a format comes before its one file."""
    names = [f"{each.usual_stem}{each.suffixes[0]}" for each in FORMATS if each.usual_stem and each.open]
    return tuple(name for file in names for name in (f"{file}{INDEX_SUFFIX}", file))


def is_index(file: str) -> bool:
    """Whether a file is named as the index of a sharded checkpoint."""
    return file.endswith(INDEX_SUFFIX)


def is_weights(file: str) -> bool:
    """Whether a file is named as weights of a known format, supported or not, or as an index of weights."""
    return is_index(file) or _find(file) is not None


def require_format(file: str, ref: str) -> Format:
    """The format of a file, by its suffix. Raises UnsupportedModelError if it is unknown or not supported."""
    found = _find(file)
    # A reference to the file itself names it already.
    named = ref if ref.endswith(file) else f"{ref}: {file}"
    if found is None:
        suffixes = ", ".join((*supported_suffixes(), INDEX_SUFFIX))
        raise UnsupportedModelError(
            f"{named}: unknown format, expected a folder or a file that ends in one of: {suffixes}"
        )
    if found.open is None:
        raise UnsupportedModelError(f"{named}: {found.name} files are not supported; {found.advice}")
    return found


def open_weights(file: str, source: ByteSource, ref: str) -> TensorFile:
    """Open a file of weights, in the format that its name `file` tells. Raises CheckpointError."""
    opener = require_format(file, ref).open
    assert opener is not None  # require_format has refused the others
    return opener(source)


def supported_suffixes() -> tuple[str, ...]:
    """How the names of readable files of weights end."""
    return tuple(suffix for each in FORMATS if each.open for suffix in each.suffixes)


def _find(file: str) -> Format | None:
    return next((each for each in FORMATS if file.endswith(each.suffixes)), None)
