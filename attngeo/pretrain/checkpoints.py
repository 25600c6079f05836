"""The checkpoints in a run's folder: which of them are whole, and which is the last."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from attngeo.bounds import read_small_text
from attngeo.tables.atomic import atomic_write

# Written into a checkpoint's folder last: a checkpoint without it is broken.
MARK = "attngeo.json"
NAME = re.compile(r"checkpoint-(\d+)")


@dataclass(frozen=True)
class CheckpointMark:
    """The state in a whole checkpoint that transformers' Trainer does not save.

    loss_sum: of the steps since the last log, which was at step logged_at. seconds: of training so far.
    """

    loss_sum: float
    logged_at: int
    seconds: float


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder has the name of a checkpoint."""
    return NAME.fullmatch(folder.name) is not None


def step_of(checkpoint: Path) -> int:
    """The number of updates before a checkpoint."""
    return int(checkpoint.name.rpartition("-")[2])


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, whole or not, the oldest first."""
    return sorted(filter(is_checkpoint, folder.glob("checkpoint-*")), key=step_of)


def find_last_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint of a run, or None."""
    return next((path for path in reversed(list_checkpoints(folder)) if read_mark(path) is not None), None)


def remove_broken(folder: Path) -> None:
    """Remove the checkpoints that a killed process left incomplete."""
    for path in list_checkpoints(folder):
        if read_mark(path) is None:
            shutil.rmtree(path, ignore_errors=True)


def write_mark(checkpoint: Path, mark: CheckpointMark) -> None:
    """Mark a checkpoint as whole."""
    with atomic_write(checkpoint / MARK) as path:
        path.write_text(json.dumps(asdict(mark)), "utf-8")


def read_mark(checkpoint: Path) -> CheckpointMark | None:
    """The mark of a checkpoint; None if it has none that is whole."""
    try:
        return CheckpointMark(**json.loads(read_small_text(checkpoint / MARK)))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
