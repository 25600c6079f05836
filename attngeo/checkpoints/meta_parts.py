"""A model in several files by Meta, consolidated.NN.pth, each with the weights of one device.

Each file has a part of each matrix. Matrices that were cut by outputs are joined by rows, and matrices that were cut by
inputs are joined by columns; each file has the norms. The table of tokens was cut by columns in LLaMA 1 and 2, and by
rows in LLaMA 3: its shape tells.

Source: https://github.com/meta-llama/llama/blob/main/llama/model.py (`ColumnParallelLinear`, `RowParallelLinear`), and
`ParallelEmbedding` and `VocabParallelEmbedding` of fairscale.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attngeo.checkpoints.store import TensorInfo
from attngeo.checkpoints.tensor_file import ByteSource, RegularFile, TensorFile
from attngeo.checkpoints.torch_file import TorchFile
from attngeo.errors import CorruptCheckpointError, UnsupportedModelError

# The ends of the names of matrices, by the axis along which they are joined.
BY_ROWS = ("wq.weight", "wk.weight", "wv.weight", "w1.weight", "w3.weight", "output.weight")
BY_COLUMNS = ("wo.weight", "w2.weight")
TOKENS = "tok_embeddings.weight"
# What each file has as a whole.
WHOLE = re.compile(r"(?:^|[._])norm\.weight$|(?:^|\.)rope\.freqs$")


@dataclass(frozen=True)
class Widths:
    """Sizes of a whole model; None if not stated.

    Attributes:
        model: width of the residual stream.
        queries: width of all query heads of a layer together.
        keys: width of all key heads of a layer together.
    """

    model: int
    queries: int | None
    keys: int | None

    @classmethod
    def find(cls, stated: Mapping[str, Any]) -> Widths | None:
        """The sizes in params.json or config.json; None if the width of the model is missing."""
        model = _find_size(stated, "dim", "hidden_size")
        if model is None:
            return None
        heads = _find_size(stated, "n_heads", "num_attention_heads")
        if heads is None:
            return cls(model, None, None)
        head_dim = _find_size(stated, "head_dim") or model // heads
        key_heads = _find_size(stated, "n_kv_heads", "num_key_value_heads") or heads
        return cls(model, heads * head_dim, key_heads * head_dim)


def _find_size(stated: Mapping[str, Any], *names: str) -> int | None:
    """The first positive whole number under one of these names."""
    sizes = [stated[name] for name in names if type(stated.get(name)) is int and stated[name] > 0]
    return sizes[0] if sizes else None


class JoinedParts(TensorFile):
    """The parts of a model as a single open file.

    Args:
        source: the first part, open.
        others: the files of the other parts, in order.
        stated: the content of params.json or config.json.

    Raises:
        CorruptCheckpointError: The parts belong to different models, or one is missing.
        UnsupportedModelError: It is unknown how to join a tensor.
    """

    def __init__(self, source: ByteSource, others: Sequence[Path], stated: Mapping[str, Any]) -> None:
        self._others = others
        self._widths = Widths.find(stated)
        self._parts: list[TorchFile] = []
        super().__init__(source)

    def _load(self) -> None:
        first = TorchFile(self.source)
        self._parts = [first]
        for path in self._others:
            self._parts.append(TorchFile(RegularFile(path)))
        self.nested_under = first.nested_under
        for path, part in zip(self._others, self._parts[1:], strict=True):
            if part.tensors.keys() != first.tensors.keys():
                unlike = min(first.tensors.keys() ^ part.tensors.keys())
                raise CorruptCheckpointError(
                    f"{path.name} belongs to a different model from the first part: only one of the two has "
                    f"{unlike!r:.80}"
                )
        # The table of tokens last: a part that is missing is seen more plainly in a matrix of attention.
        names = sorted(first.tensors, key=lambda name: name.endswith(TOKENS))
        self._axes = {name: self._find_axis(name) for name in names}
        self.tensors = {name: self._join_info(name) for name in first.tensors}

    def _find_axis(self, name: str) -> int | None:
        """The axis along which the parts of a tensor are joined; None for one that each part has as a whole."""
        shapes = [part.tensors[name].shape for part in self._parts]
        if len(set(shapes)) > 1:
            raise CorruptCheckpointError(
                f"{name!r:.80} has different shapes in the parts: {shapes[:2]}, expected equal ones"
            )
        (shape, *_) = shapes
        if WHOLE.search(name):
            return None
        if len(shape) == 2 and name.endswith((*BY_ROWS, *BY_COLUMNS)):
            axis = 0 if name.endswith(BY_ROWS) else 1
            self._require_fit(name, self._join_shape(shape, axis))
            return axis
        if len(shape) == 2 and name.endswith(TOKENS):
            width = None if self._widths is None else self._widths.model
            if shape[1] == width:
                return 0
            if shape[1] * len(self._parts) == width:
                return 1
        raise UnsupportedModelError(
            f"attngeo cannot tell how to join the parts of {name!r:.80} ({list(shape)} each); convert them with "
            "convert_llama_weights_to_hf.py from transformers, and give the converted folder"
        )

    def _require_fit(self, name: str, shape: tuple[int, int]) -> None:
        """Raise CorruptCheckpointError for a matrix of attention that is too small or too large when it is joined."""
        if self._widths is None:
            return
        end = name.rpartition(".weight")[0].rpartition(".")[2]
        expected = {
            "wq": (self._widths.queries, self._widths.model),
            "wk": (self._widths.keys, self._widths.model),
            "wv": (self._widths.keys, self._widths.model),
            "wo": (self._widths.model, self._widths.queries),
        }.get(end)
        if expected is None or None in expected or shape == expected:
            return
        raise CorruptCheckpointError(
            f"{name}, joined from {len(self._parts)} parts, is {list(shape)}, expected {list(expected)}: a part may be "
            "missing, or the parts are not split as Meta splits them; download all parts"
        )

    def _join_shape(self, shape: tuple[int, ...], axis: int) -> tuple[int, int]:
        rows, columns = shape
        count = len(self._parts)
        return (count * rows, columns) if axis == 0 else (rows, count * columns)

    def _join_info(self, name: str) -> TensorInfo:
        info = self._parts[0].tensors[name]
        axis = self._axes[name]
        if axis is None:
            return info
        nbytes = sum(part.tensors[name].nbytes for part in self._parts)
        return TensorInfo(name, info.dtype, self._join_shape(info.shape, axis), nbytes)

    def _read(self, name: str, rows: slice) -> Tensor:
        axis = self._axes[name]
        if axis is None:
            return self._parts[0].read(name, rows)
        if axis == 1:
            return torch.cat([part.read(name, rows) for part in self._parts], 1)
        count = self._parts[0].tensors[name].shape[0]
        start, stop, _ = rows.indices(count * len(self._parts))
        pieces = []
        for number, part in enumerate(self._parts):
            first, last = max(start - number * count, 0), min(stop - number * count, count)
            if first < last:
                pieces.append(part.read(name, slice(first, last)))
        return torch.cat(pieces) if pieces else self._parts[0].read(name, slice(0, 0))

    def extents(self, reads: Mapping[str, slice]) -> list[Any]:  # noqa: ARG002 - files on this machine need none
        """No extents: the parts are local files."""
        return []

    def close(self) -> None:
        """Close all parts."""
        for part in self._parts[1:]:
            part.close()
        self.source.close()
