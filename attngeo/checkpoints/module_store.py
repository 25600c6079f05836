"""A TensorStore over a model in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from attngeo.bounds.escape import in_utf8
from attngeo.checkpoints.tensor import TensorInfo, info_of
from attngeo.errors import CorruptCheckpointError


class ModuleStore:
    """A TensorStore over the parameters and buffers of a `transformers` model, under its own names for them."""

    def __init__(self, model: Any) -> None:
        self.revision: str | None = None
        self.offline, self.lanes = False, 1
        self.ref = in_utf8(getattr(model, "name_or_path", "") or type(model).__name__)
        self.config = model.config.to_dict()
        self._state: dict[str, torch.Tensor] = model.state_dict(keep_vars=True)  # tied ones stay one object

    @property
    def names(self) -> Collection[str]:
        """The names of all tensors."""
        return self._state.keys()

    @property
    def total_nbytes(self) -> int:
        """Bytes of all tensors; tied tensors count once, as in a saved model."""
        return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in self._state.values()}.values())

    def info(self, name: str) -> TensorInfo:
        """Shape and dtype of one tensor."""
        return info_of(name, self._state[name])

    def fetch(self, names: Iterable[str], progress: Callable[[str], None] | None = None) -> None:
        """Do nothing: the tensors are in memory."""

    def read(self, name: str, rows: slice = slice(None)) -> torch.Tensor:
        """One tensor, or rows of it, detached and on the CPU. Raises CorruptCheckpointError for a meta tensor."""
        tensor = self._state[name]
        if tensor.is_meta:
            raise CorruptCheckpointError(
                f"{self.ref}: {name} is on the meta device and has no values; load the weights"
            )
        return (tensor[rows] if tensor.ndim else tensor).detach().cpu()

    def read_all(self, reads: Mapping[str, slice]) -> dict[str, torch.Tensor]:
        """Rows of each of these tensors."""
        return {name: self.read(name, rows) for name, rows in reads.items()}

    def count_requests(self, reads: Iterable[Mapping[str, slice]]) -> dict[str, int]:  # noqa: ARG002 - the protocol's
        """Nothing: a model in memory has no files."""
        return {}

    def file(self, name: str) -> Path | None:  # noqa: ARG002 - the protocol's
        """None: a model in memory has no files."""
        return None

    def close(self) -> None:
        """Do nothing: no file is open."""
