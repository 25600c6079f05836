"""The training of the parts of a model, each by itself, and the folders of their unfinished states."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from attngeo.estimators.efa.batches import SequenceBatches
from attngeo.estimators.efa.model import PartModel
from attngeo.estimators.efa.options import Architecture, EfaOptions
from attngeo.estimators.efa.sequences import Sequences
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.training.loop import History, limited_threads, remove_state, train

# Numbers in the tokens of a batch below which one thread is about as fast as two (`tests/benchmarks/test_busy.py`).
UNDIVIDED = 2**13


def train_parts(
    parts: Sequence[PartModel],
    tables: Sequence[Sequence[Sequences]],
    options: EfaOptions,
    architecture: Architecture,
    *,
    folder: str | Path | None = None,
    progress: ProgressCallback = ignore_progress,
) -> History:
    """Train each part, and join their histories. Raises as `training.loop.train`.

    Args:
        parts: the models.
        tables: training rows, then held-out rows if there are any; each as every part reads it.
        options: options of the estimator.
        architecture: architecture of the networks.
        folder: folder of the states, which `remove_states` removes; None saves none.
        progress: called after each epoch.
    """
    histories = []
    for part, state, *part_tables in zip(parts, _list_states(folder, parts), *tables, strict=True):
        report = progress if len(parts) == 1 else _name_part(part, progress)
        history = _train_part(part, part_tables, options, architecture, folder=state, progress=report)
        histories.append(history)
    return _join_histories(histories)


def remove_states(folder: str | Path | None, parts: Sequence[PartModel]) -> None:
    """Remove the states of the trainings of all parts, which have ended, and the folders made for them."""
    for state in _list_states(folder, parts):
        if state is not None:
            remove_state(state)
            if len(parts) > 1 and state.exists():
                state.rmdir()


def _list_states(folder: str | Path | None, parts: Sequence[PartModel]) -> list[Path | None]:
    """The folder of the state of each part's training: `folder`, or a folder in it for each of both parts."""
    if folder is None:
        return [None] * len(parts)
    if len(parts) == 1:
        return [Path(folder)]
    return [Path(folder) / part.shape.part for part in parts]


def _name_part(part: PartModel, progress: ProgressCallback) -> ProgressCallback:
    """A callback whose steps name the part that is trained."""

    def report(step: Progress) -> None:
        progress(replace(step, what=f"{part.shape.part}  {step.what}"))

    return report


def _train_part(
    model: PartModel,
    tables: Sequence[Sequences],
    options: EfaOptions,
    architecture: Architecture,
    *,
    folder: str | Path | None = None,
    progress: ProgressCallback = ignore_progress,
) -> History:
    """Train a part on the first table, and end with the weights of the lowest loss on the second one, if there is one.

    folder, progress: of `training.loop.train`, which raises as there.
    """
    train_batches, *others = (
        SequenceBatches(model, sequences, options, are_held_out=number > 0) for number, sequences in enumerate(tables)
    )
    training = options.training(
        weight_decay=options.weight_decay,
        averaging=options.averaging,
        patience=options.patience or None,
        seed=options.random_state,
        precision=options.precision,
    )
    numbers = options.batch_size * options.width * tables[0].lengths.mean()
    with limited_threads(is_small=numbers < UNDIVIDED):
        return train(
            model,
            train_batches,
            options=training,
            validation=others[0] if others else None,
            folder=folder,
            identity=_identify(tables, options, architecture),
            progress=progress,
        )


def _join_histories(histories: Sequence[History]) -> History:
    """The losses of several parts as the columns of one history; NaN after a part has stopped. One part stays as it is.

    best_epoch: [parts].
    """
    if len(histories) == 1:
        return histories[0]
    losses = {}
    for name in ("train", "validation"):
        columns = [pd.Series(getattr(history, name), dtype=float) for history in histories]
        losses[name] = pd.concat(columns, axis=1).to_numpy()
    return History(**losses, best_epoch=np.concatenate([history.best_epoch for history in histories]))


def _identify(tables: Sequence[Sequences], options: EfaOptions, architecture: Architecture) -> str:
    """A digest of the model and its data, by which an unfinished training is recognised."""
    digest = hashlib.sha256(f"{options.replace(device='cpu')!r} {architecture!r}".encode())
    for sequences in tables:
        digest.update(sequences.starts.tobytes())
        for name, tensor in sequences.tensors():
            digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()
