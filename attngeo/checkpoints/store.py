"""TensorStore: the names, shapes and dtypes of a model's tensors, and reads of one at a time.

Nothing is read before it is asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import torch

from attngeo.checkpoints.safetensors import SafetensorsFile
from attngeo.checkpoints.tensor import TensorInfo, info_of
from attngeo.checkpoints.torch_bin import TorchFile
from attngeo.errors import CorruptCheckpointError, UnsupportedModelError

LONGEST_NAME = 200
SHARD = re.compile(r"-\d{5}-of-(\d{5})\.")


class TensorStore(Protocol):
    """A model's tensors. `ref` is how the user named it, `revision` the Hub's commit, `config` its config.json.

    `offline`: whether files that are not here yet may not be downloaded.
    """

    ref: str
    revision: str | None
    config: Mapping[str, Any]
    offline: bool

    @property
    def names(self) -> Collection[str]:
        """The names of all tensors."""
        ...

    @property
    def total_nbytes(self) -> int | None:
        """Bytes of all tensors together; None where only reading every file would tell."""
        ...

    def info(self, name: str) -> TensorInfo:
        """Shape and dtype of one tensor; reads at most a file's header."""
        ...

    def fetch(self, names: Iterable[str], progress: Callable[[str], None] | None = None) -> None:
        """Make sure that these tensors can be read here, downloading the files that hold them; name each file first."""
        ...

    def read(self, name: str, rows: slice = slice(None)) -> torch.Tensor:
        """One tensor, or rows of its first dimension, on the CPU in the checkpoint's dtype."""
        ...

    def file(self, name: str) -> Path | None:
        """The path of another file, such as the tokeniser's, downloaded if need be; None where the model has none."""
        ...

    def close(self) -> None:
        """Close what was opened."""
        ...


Header = Mapping[str, TensorInfo]


class FileStore:
    """A TensorStore over one or more weight files.

    `weight_map` gives each tensor's file, None where there is one file only and its header tells. `locate` returns a
    file's path, downloading it where it has to; `remote_header` a file's table of contents without downloading it,
    or None where that cannot be had; `other` the path of any other file of the model, None where there is none.
    """

    def __init__(
        self,
        ref: str,
        config: Mapping[str, Any],
        files: Collection[str],
        locate: Callable[[str], Path],
        *,
        weight_map: Mapping[str, str] | None = None,
        total_nbytes: int | None = None,
        revision: str | None = None,
        remote_header: Callable[[str], Header | None] = lambda _: None,
        other: Callable[[str], Path | None] = lambda _: None,
        offline: bool = False,
    ) -> None:
        self.ref, self.config, self.revision, self.offline = ref, config, revision, offline
        self._files, self._locate, self._remote_header, self._other = tuple(files), locate, remote_header, other
        self._weight_map, self._total_nbytes, self._indexed = weight_map, total_nbytes, weight_map is not None
        self._open: dict[str, SafetensorsFile | TorchFile] = {}
        self._headers: dict[str, Header] = {}

    @property
    def names(self) -> Collection[str]:
        """The names of all tensors."""
        return self._file_of.keys()

    @property
    def total_nbytes(self) -> int | None:
        """Bytes of all tensors, from the index where it says so, else from the headers."""
        if self._total_nbytes is None and not self._indexed:
            self._total_nbytes = sum(info.nbytes for file in self._files for info in self._header(file).values())
        return self._total_nbytes

    @property
    def _file_of(self) -> Mapping[str, str]:
        if self._weight_map is None:
            self._weight_map = {name: file for file in self._files for name in self._header(file)}
        return self._weight_map

    def info(self, name: str) -> TensorInfo:
        """Shape and dtype of one tensor. Raises CorruptCheckpointError where only the index knows it."""
        file = self._file_of[name]
        try:
            return self._header(file)[name]
        except KeyError:
            raise CorruptCheckpointError(
                f"{self.ref}: the index places tensor {name!r} in {file}, which does not hold it; download it again"
            ) from None

    def _header(self, file: str) -> Header:
        if file not in self._headers:
            header = None if file in self._open else self._remote_header(file)
            self._headers[file] = self._file(file).tensors if header is None else header
        return self._headers[file]

    def _file(self, file: str) -> SafetensorsFile | TorchFile:
        if file not in self._open:
            path = self._locate(file)
            self._open[file] = SafetensorsFile(path) if file.endswith(".safetensors") else TorchFile(path)
            self._headers[file] = self._open[file].tensors
        return self._open[file]

    def fetch(self, names: Iterable[str], progress: Callable[[str], None] | None = None) -> None:
        """Open every file that holds one of `names`, downloading those that are not here yet."""
        for file in sorted({self._file_of[name] for name in names}):
            if progress is not None:
                progress(file)
            self._file(file)

    def read(self, name: str, rows: slice = slice(None)) -> torch.Tensor:
        """One tensor, or rows of its first dimension, in the checkpoint's dtype."""
        self.info(name)
        return self._file(self._file_of[name]).read(name, rows)

    def file(self, name: str) -> Path | None:
        """The path of another file of the model, downloaded if need be; None if it has none of that name."""
        return self._other(name)

    def close(self) -> None:
        """Close every file."""
        for file in self._open.values():
            file.close()
        self._open.clear()


class ModuleStore:
    """A TensorStore over a `transformers` model in memory: its module names, its own tensors."""

    def __init__(self, model: Any) -> None:
        self.revision: str | None = None
        self.offline = False
        self.ref = getattr(model, "name_or_path", "") or type(model).__name__
        self.config = model.config.to_dict()
        self._state: dict[str, torch.Tensor] = model.state_dict(keep_vars=True)  # tied ones stay one object

    @property
    def names(self) -> Collection[str]:
        """The names of all tensors."""
        return self._state.keys()

    @property
    def total_nbytes(self) -> int:
        """Bytes of all tensors, tied ones once, as they are saved."""
        return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in self._state.values()}.values())

    def info(self, name: str) -> TensorInfo:
        """Shape and dtype of one tensor."""
        return info_of(name, self._state[name])

    def fetch(self, names: Iterable[str], progress: Callable[[str], None] | None = None) -> None:
        """Nothing to do: the tensors are in memory."""

    def read(self, name: str, rows: slice = slice(None)) -> torch.Tensor:
        """One tensor, or rows of it, detached and on the CPU."""
        tensor = self._state[name]
        if tensor.is_meta:
            raise CorruptCheckpointError(
                f"{self.ref}: {name} is on the meta device and has no values; load the weights"
            )
        return (tensor[rows] if tensor.ndim else tensor).detach().cpu()

    def file(self, name: str) -> Path | None:  # noqa: ARG002 - the protocol's
        """None: a model in memory has no files."""
        return None

    def close(self) -> None:
        """Nothing to do."""


def read_index(path: Path, ref: str) -> tuple[dict[str, str], int | None]:
    """The weight map of a `*.index.json` and the total bytes it states. Raises CorruptCheckpointError.

    A file that the index names must lie beside it: an absolute path or one through `..` is refused.
    """
    try:
        index = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CorruptCheckpointError(f"{ref}: {path.name} is not readable JSON ({error})") from None
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise CorruptCheckpointError(f"{ref}: {path.name} has no weight_map of tensor name → file")
    for file in set(weight_map.values()):
        if PurePosixPath(file).name != file or "\\" in file or file in ("", ".", "..") or len(file) > LONGEST_NAME:
            raise CorruptCheckpointError(
                f"{ref}: {path.name} points to {file!r}, outside its folder; expected plain file names"
            )
        if not file.endswith((".safetensors", ".bin")):
            raise UnsupportedModelError(f"{ref}: {path.name} points to {file!r}, expected .safetensors or .bin files")
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    return weight_map, total if type(total) is int else None


def refuse_incomplete(file: str, ref: str) -> None:
    """A lone `model-00001-of-00003.safetensors` is a part: say so instead of scoring a third of the model."""
    if (shard := SHARD.search(file)) and int(shard[1]) > 1:
        raise CorruptCheckpointError(
            f"{ref}: {file} is one of {int(shard[1])} shards and there is no index of them; name the folder that has "
            "model.safetensors.index.json and every shard"
        )
