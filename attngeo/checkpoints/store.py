"""TensorStore: the names, shapes and dtypes of a model's tensors, and reads of single tensors.

Opening a store reads no tensor. The stores are `FileStore` (files of weights) and `ModuleStore` (a model in memory).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from attngeo.checkpoints.tensor import FLOATS, TensorInfo
from attngeo.errors import UnsupportedModelError


class TensorStore(Protocol):
    """A model's tensors.

    ref: the model's name, as the user gave it. revision: the Hub's commit, None for other models. config: the parsed
    config.json. offline: whether downloads are forbidden. lanes: how many reads at once make it faster.
    """

    ref: str
    revision: str | None
    config: Mapping[str, Any]
    offline: bool
    lanes: int

    @property
    def names(self) -> Collection[str]:
        """The names of all tensors."""
        ...

    @property
    def total_nbytes(self) -> int | None:
        """Bytes of all tensors together; None if every file would have to be read to know."""
        ...

    def info(self, name: str) -> TensorInfo:
        """Shape and dtype of one tensor. Reads at most the header of a file."""
        ...

    def fetch(self, names: Iterable[str], progress: Callable[[str], None] | None = None) -> None:
        """Open the files that hold these tensors. Calls `progress` with each file's name."""
        ...

    def read(self, name: str, rows: slice = slice(None)) -> torch.Tensor:
        """One tensor, or rows of its first dimension, on the CPU in the checkpoint's dtype."""
        ...

    def read_all(self, reads: Mapping[str, slice]) -> dict[str, torch.Tensor]:
        """Rows of each of these tensors, in this order. Takes less time than one by one if they are far away."""
        ...

    def count_requests(self, reads: Iterable[Mapping[str, slice]]) -> dict[str, int]:
        """Remote file → the requests for its header, and those that `read_all` sends for each of these reads.

        Reads no tensor. Files on this machine are left out. Right if nothing but headers has been read before.
        """
        ...

    def file(self, name: str) -> Path | None:
        """The path of another file of the model, such as its tokeniser, downloaded if needed; None if it is missing."""
        ...

    def close(self) -> None:
        """Close all open files."""
        ...


def float_shape(store: TensorStore, name: str) -> tuple[int, ...]:
    """The shape of a tensor of floating-point numbers. Reads at most the header of a file.

    Raises UnsupportedModelError for a tensor of other numbers, such as a quantised one.
    """
    info = store.info(name)
    if info.dtype not in FLOATS:
        raise UnsupportedModelError(
            f"{store.ref}: {name} is stored as {info.dtype} ({stated_quantisation(store.config)}), expected one of "
            f"{', '.join(FLOATS)}; quantised weights are not supported yet, give the model without quantisation"
        )
    return info.shape


def stated_quantisation(config: Mapping[str, Any]) -> str:
    """The name of the quantisation that config.json states, such as "awq"; "quantised" if it states none."""
    stated = config.get("quantization_config")
    return str(stated.get("quant_method") or "quantised") if isinstance(stated, Mapping) else "quantised"
