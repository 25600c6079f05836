"""The authors' stored scores of each checkpoint of a training: a pickle, read without calling what it names."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attngeo.errors import DataError, DataUnavailableError, first_line

CHECKPOINT = re.compile(r"checkpoint-(\d+)")


class Checkpoint(NamedTuple):
    """The scores of the layers of one checkpoint, by the published convention.

    Attributes:
        step: the number of updates.
        symmetry: [layers].
        directionality: [layers].
    """

    step: int
    symmetry: np.ndarray
    directionality: np.ndarray


class _StandIn:
    """What stands for every class and function that a pickle names: it keeps what it is called with, and its state."""

    state: Any = None

    def __new__(cls, *_: Any) -> _StandIn:
        return super().__new__(cls)

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    def find_class(self, _module: str, _name: str) -> Any:
        return _StandIn


def load_checkpoints(path: str | Path) -> Iterator[Checkpoint]:
    """The checkpoints of a file of `_results/custom-models`, in the order of their steps.

    The file maps "checkpoint-1000" … to configuration, ‖M_s‖²/‖M‖², negative directionality, and numbers of parameters,
    both scores of each whole layer.

    Raises:
        DataUnavailableError: if there is no such file.
        DataError: if it is no file of that kind.

    Source: https://github.com/matteosaponati/attention-geometry, `get_scores` in utils/scores.py.
    """
    try:
        with Path(path).open("rb") as file:
            stored = _Unpickler(file).load()
        checkpoints = [_read_checkpoint(name, values) for name, values in stored.items()]
    except OSError as error:
        raise DataUnavailableError(
            f"{path} cannot be read ({first_line(error)}); give the .pkl file of scores"
        ) from None
    except Exception as error:  # a damaged pickle may raise anything
        raise DataError(
            f"{path}: expected a pickle of checkpoints with both scores of each layer ({first_line(error)})"
        ) from None
    if not checkpoints:
        raise DataError(f"{path}: no checkpoints, expected at least one")
    return iter(sorted(checkpoints, key=lambda checkpoint: checkpoint.step))


def _read_checkpoint(name: str, values: list[Any]) -> Checkpoint:
    match = CHECKPOINT.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r:.60} is no checkpoint")
    _, symmetry, directionality, _ = values
    return Checkpoint(int(match[1]), 2 * _read_array(symmetry) - 1, -_read_array(directionality))


def _read_array(stored: _StandIn) -> np.ndarray:
    """A vector of float64, from its state in a pickle of NumPy: version, shape, dtype, order, bytes."""
    _, shape, dtype, _, content = stored.state
    if dtype.arguments[0] != "f8" or dtype.state[1] != "<" or len(shape) != 1:
        raise ValueError("an array is no vector of float64")
    return np.frombuffer(content, dtype="<f8").reshape(shape)
