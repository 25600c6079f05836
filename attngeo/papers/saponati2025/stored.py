"""The curves that the authors stored: losses, and scores of each checkpoint of a training. They are no part of attngeo.

Scores are pickles, which are read without calling what they name.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from attngeo.bounds.small_files import open_regular
from attngeo.choices import one_of
from attngeo.errors import DataError, DataUnavailableError, first_line

CHECKPOINT = re.compile(r"checkpoint-(\d+)")
# How the authors' files of losses call models and data sets, and the updates between two of their logs.
STORED_MODELS = {"bert-mini": "bert_small", "bert": "bert"}
STORED_DATA = {"jigsaw": "jigsaw", "wikipedia": "wikipedia", "redpajama": "red_pajama"}
STACK_BY_OBJECTIVE = {"mlm": "encoder", "clm": "decoder"}
LOSS_SUFFIX = " - train/loss"
UPDATES_PER_LOG = 200


def read_published_losses(path: str | Path, model: str, data: str, objective: str = "mlm") -> pd.DataFrame:
    """The published losses from default and symmetric weights, as rows for `training` figures.

    Args:
        path: a CSV file of the authors' stored losses, which is not part of attngeo: one row per 200 updates, and
            columns such as bert_small--encoder--jigsaw--symmetric-init, with or without " - train/loss" at the end.
        model: a key of STORED_MODELS.
        data: a key of STORED_DATA.
        objective: a key of STACK_BY_OBJECTIVE. Only the larger of the authors' files has losses of decoders.

    Returns:
        The columns objective, init ("default, published" …), seed, step, stack, layer, head and loss.

    Raises:
        UsageError: the model, data set or objective is another one.
        DataUnavailableError: the file does not exist.
        DataError: the file lacks the columns.

    Source: Saponati et al. 2025, Fig. S5a.
    """
    stored_model = STORED_MODELS[one_of("model", model, STORED_MODELS)]
    stored_data = STORED_DATA[one_of("data", data, STORED_DATA)]
    stack = STACK_BY_OBJECTIVE[one_of("objective", objective, STACK_BY_OBJECTIVE)]
    name = f"{stored_model}--{stack}--{stored_data}"
    columns = {name: "default", f"{name}--symmetric-init": "symmetric"}
    try:
        stored = pd.read_csv(path, usecols=lambda column: column.removesuffix(LOSS_SUFFIX) in columns)
        stored = stored.rename(columns=lambda column: column.removesuffix(LOSS_SUFFIX))[list(columns)].astype("float64")
    except OSError as error:
        raise DataUnavailableError(
            f"{path} cannot be read ({first_line(error)}); give the CSV file of losses"
        ) from None
    except (KeyError, ValueError) as error:
        raise DataError(
            f"{first_line(error)}; expected numbers in the columns {' and '.join(columns)}", subject=path
        ) from None
    curves = []
    for column, init in columns.items():
        losses = stored[column].dropna()
        curves.append(
            pd.DataFrame(
                {
                    "objective": objective,
                    "init": f"{init}, published",
                    "seed": 0,
                    "step": (losses.index + 1) * UPDATES_PER_LOG,
                    "stack": stack,
                    "layer": 0,
                    "head": pd.NA,
                    "loss": losses,
                }
            )
        )
    return pd.concat(curves, ignore_index=True)


def read_published_layers(path: str | Path, objective: str) -> pd.DataFrame:
    """The published scores of each whole layer during a training, as rows for `training-layers` figures.

    The file is a pickle, but nothing that it names is imported or called.

    Args:
        path: a file of the authors' `_results/custom-models`, which is not part of attngeo, such as
            bert-encoder-wikipedia.pkl: 200 checkpoints of one run from default weights.
        objective: objective of that run, a key of STACK_BY_OBJECTIVE.

    Returns:
        The columns objective, init ("default, published"), seed, step, stack, layer, head (missing), and both scores
        by the published convention.

    Raises:
        UsageError: the objective is another one.
        DataUnavailableError: the file does not exist.
        DataError: the file is not of that kind.

    Source: Saponati et al. 2025, Fig. 3 and S4.
    """
    stack = STACK_BY_OBJECTIVE[one_of("objective", objective, STACK_BY_OBJECTIVE)]
    checkpoints = [
        pd.DataFrame(
            {
                "objective": objective,
                "init": "default, published",
                "seed": 0,
                "step": checkpoint.step,
                "stack": stack,
                "layer": range(len(checkpoint.symmetry)),
                "head": pd.NA,
                "symmetry": checkpoint.symmetry,
                "directionality": checkpoint.directionality,
            }
        )
        for checkpoint in load_checkpoints(path)
    ]
    return pd.concat(checkpoints, ignore_index=True)


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
        DataUnavailableError: the file does not exist.
        DataError: the file is not of that kind.

    Source: https://github.com/matteosaponati/attention-geometry, `get_scores` in utils/scores.py.
    """
    try:
        with open_regular(Path(path)) as file:
            stored = _Unpickler(file).load()
        checkpoints = [_read_checkpoint(name, values) for name, values in stored.items()]
    except OSError as error:
        raise DataUnavailableError(
            f"{path} cannot be read ({first_line(error)}); give the .pkl file of scores"
        ) from None
    except Exception as error:  # a damaged pickle may raise anything
        raise DataError(
            f"expected a pickle of checkpoints with both scores of each layer ({first_line(error)})", subject=path
        ) from None
    if not checkpoints:
        raise DataError("no checkpoints, expected at least one", subject=path)
    return iter(sorted(checkpoints, key=lambda checkpoint: checkpoint.step))


def _read_checkpoint(name: str, values: list[Any]) -> Checkpoint:
    match = CHECKPOINT.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r:.60} is not a checkpoint")
    _, symmetry, directionality, _ = values
    return Checkpoint(int(match[1]), 2 * _read_array(symmetry) - 1, -_read_array(directionality))


def _read_array(stored: _StandIn) -> np.ndarray:
    """A vector of float64, from its state in a pickle of NumPy: version, shape, dtype, order, bytes."""
    _, shape, dtype, _, content = stored.state
    if dtype.arguments[0] != "f8" or dtype.state[1] != "<" or len(shape) != 1:
        raise ValueError("an array is not a vector of float64")
    return np.frombuffer(content, dtype="<f8").reshape(shape)
