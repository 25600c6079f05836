"""One PyTorch state dict (.bin, .pt, .pth), memory-mapped. A file that would run code is refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

from attngeo.checkpoints.tensor import info_of
from attngeo.errors import CorruptCheckpointError, UnsafeCheckpointError


class TorchFile:
    """An open state dict; `tensors` is its table of contents.

    It is read with `weights_only=True, mmap=True`, always. Raises UnsafeCheckpointError for a pickle that would do more
    than rebuild tensors, CorruptCheckpointError for a file that is broken or holds no tensors.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state = {
            name: value
            for name, value in _load(path).items()
            if isinstance(name, str) and isinstance(value, torch.Tensor) and value.layout is torch.strided
        }
        if not self._state:
            raise CorruptCheckpointError(f"{path}: holds no tensors, expected a state dict of name → tensor")
        self.tensors = {name: info_of(name, tensor) for name, tensor in self._state.items()}

    def read(self, name: str, rows: slice = slice(None)) -> torch.Tensor:
        """The tensor, or the given rows of its first dimension, copied out of the memory map."""
        tensor = self._state[name]
        return (tensor[rows] if tensor.ndim else tensor).clone()

    def close(self) -> None:
        """Release the memory map."""
        self._state = {}


def _load(path: Path) -> dict[Any, Any]:
    if not path.is_file():
        raise CorruptCheckpointError(f"{path}: no such file; download it again")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise UnsafeCheckpointError(
            f"{path}: refused: the file is not a plain state dict, and loading it could run code ({_reason(error)}); "
            "use safetensors weights"
        ) from None
    except RuntimeError as error:
        if "mmap can only be used" in str(error):
            raise CorruptCheckpointError(
                f"{path}: not a PyTorch file in zip format, so it cannot be memory-mapped; it is damaged, or was saved "
                "before PyTorch 1.6; save it again as safetensors"
            ) from None
        raise CorruptCheckpointError(f"{path}: not a readable PyTorch file ({_reason(error)})") from None
    except Exception as error:  # a forged pickle can raise anything
        raise CorruptCheckpointError(f"{path}: not a readable PyTorch file ({_reason(error)})") from None
    if not isinstance(state, dict):
        raise CorruptCheckpointError(f"{path}: holds a {type(state).__name__}, expected a state dict of name → tensor")
    return state


def _reason(error: Exception) -> str:
    """The message of torch, without its advice to load the file unsafely."""
    text = str(error).replace("\n", " ")
    found = text.find("Unsupported ")
    return (text[found:] if found >= 0 else text)[:120].split(". ")[0]
