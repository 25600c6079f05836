"""The Trainer of transformers, extended for the runs of attngeo by its public names only, and its checkpoints."""

from __future__ import annotations

import json
import math
import re
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from attngeo.bounds.small_files import read_small_text
from attngeo.errors import OutputError, TrainingError, first_line
from attngeo.pretrain.constraints import SymmetryPenalty, TiedKeys
from attngeo.tables.files import atomic_write, remove_unfinished

# Written into a checkpoint's folder last: a checkpoint without it is broken.
MARK = "attngeo.json"
NAME = re.compile(r"checkpoint-(\d+)")
# The labels in all accumulated batches, if the Trainer has counted them.
LabelCount = Tensor | int | None


@dataclass(frozen=True, kw_only=True)
class TrainingTask:
    """A model to train, and its data.

    Attributes:
        model: the model.
        data: training data.
        collator: function that makes a batch.
        processor: tokeniser or image processor, which is saved with the model.
        make_trainer: class of the Trainer, or a function that makes one.
        steps: number of updates.
        warmup: number of updates of the warm-up.
        changed: names of the parameters set by the initialisation.
        about: description of the data, for the summary.
        unit: unit of the training speed, such as tokens.
        count_units: number of sequences → number of these units.
        others: folder name → another model to save.
        evaluate: function that measures the model at the end.
    """

    model: PreTrainedModel
    data: Any
    collator: Any
    processor: Any
    make_trainer: Callable[..., RunTrainer]
    steps: int
    warmup: int
    changed: list[str]
    about: Mapping[str, Any]
    unit: str
    count_units: Callable[[int], int]
    others: Mapping[str, Any] = field(default_factory=dict)
    evaluate: Callable[[RunTrainer], Mapping[str, Any]] = lambda _: {}


@lru_cache(maxsize=2)  # a batch may begin in one epoch and end in the next
def draw_order(count: int, length: int, *seeds: int) -> tuple[np.ndarray, int]:
    """The order of `count` examples in one epoch, and a shift in tokens, below `length` (0 if `length` is 0).

    Both depend only on the seeds, not on the processes, the batches or the initialisation.
    """
    random = np.random.default_rng(seeds)
    order = random.permutation(count)
    return order, int(random.integers(length)) if length else 0


class RunTrainer(Trainer):
    """A Trainer that uses only complete checkpoints, and stops if the loss is not a finite number.

    The logged loss is the mean over the steps since the last log, even if the run was interrupted in between: the sum
    so far is part of the checkpoint, and a penalty is not part of the loss. A checkpoint that cannot be written is
    removed.

    Args:
        *args: the arguments of a Trainer.
        tied: the keys of the model that are its queries, which files store as well.
        penalty: function that gives what training adds to the loss; None for nothing.
        **kwargs: the arguments of a Trainer.
    """

    def __init__(
        self, *args: Any, tied: TiedKeys | None = None, penalty: SymmetryPenalty | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._tied = tied
        self._penalty = penalty
        exact = torch.float32 if self.args.device.type == "mps" else torch.float64
        self._loss_sum = torch.zeros((), dtype=exact, device=self.args.device)
        self._logged_at = 0
        self._seconds_before = 0.0
        self._started = time.perf_counter()
        # The checkpoint that is being written.
        self._unfinished: Path | None = None
        self.add_callback(_CompleteRun(self))

    @property
    def seconds(self) -> float:
        """Seconds of training so far; earlier sessions count up to their last checkpoints."""
        return self._seconds_before + time.perf_counter() - self._started

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Run one batch forward and backward."""
        loss: Tensor = super().training_step(*args, **kwargs)
        self._loss_sum += loss.detach()
        return loss

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        """The Trainer's loss; its gradient has that of the penalty, its value has not."""
        loss = super().compute_loss(*args, **kwargs)
        if self._penalty is None or not isinstance(loss, Tensor):
            return loss
        penalty = self._penalty() / self.args.gradient_accumulation_steps
        return loss + (penalty - penalty.detach())

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the mean loss since the last log. Raises TrainingError if it is not a finite number."""
        if "loss" in logs:
            logs["loss"] = self._sum_losses() / max(self.state.global_step - self._logged_at, 1)
            self._loss_sum.zero_()
            self._logged_at = self.state.global_step
        super().log(logs, start_time)

    def _sum_losses(self) -> float:
        """The sum since the last log, as a mean over processes."""
        total = float(self.accelerator.gather(self._loss_sum).mean())
        if not math.isfinite(total):
            raise TrainingError(
                f"the loss became {'NaN' if math.isnan(total) else 'infinite'} by step {self.state.global_step}; lower "
                f"$lr (now {self.args.learning_rate:g}), raise $warmup, or train with $precision fp32",
                "lr",
                "warmup",
                "precision",
            )
        return total

    def save_model(self, output_dir: str | None = None, *args: Any, **kwargs: Any) -> None:
        """Save the model, which begins each checkpoint. Raises TrainingError if the loss is not a finite number."""
        folder = Path(output_dir or self.args.output_dir or ".")
        if is_checkpoint(folder):
            self._sum_losses()
            self._unfinished = folder
        with self._tied.apart() if self._tied else nullcontext():
            super().save_model(output_dir, *args, **kwargs)

    def finish_checkpoint(self) -> None:
        """Add everything the Trainer leaves out to a new checkpoint, then mark it as complete."""
        folder = self._unfinished
        total = self._sum_losses()
        self.accelerator.wait_for_everyone()  # each process writes the state of its random numbers
        if folder is not None and self.is_world_process_zero():
            self.save_state_of_run(folder)
            write_mark(folder, CheckpointMark(total, self._logged_at, self.seconds))
        self._unfinished = None

    def save_state_of_run(self, checkpoint: Path) -> None:
        """Save the additional state of this kind of run: here, nothing."""

    def load_state_of_run(self, checkpoint: Path) -> None:
        """Load the state saved by `save_state_of_run`."""

    def resume(self, checkpoint: Path | None) -> None:
        """Train from a complete checkpoint, or from the start if it is None. Raises TrainingError and OutputError."""
        if checkpoint is not None and (mark := read_mark(checkpoint)) is not None:
            self._loss_sum.fill_(mark.loss_sum)
            self._logged_at = mark.logged_at
            self._seconds_before = mark.seconds
            self._load_weights(checkpoint)
            self.load_state_of_run(checkpoint)
        self._started = time.perf_counter()
        try:
            self.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        except BaseException as error:
            if self._unfinished is None or read_mark(self._unfinished) is not None:
                raise
            remove_unfinished(self._unfinished)
            if not isinstance(error, Exception):
                raise
            raise OutputError(
                f"{self._unfinished} cannot be written ({first_line(error)}); make room, then resume from the last "
                "checkpoint with $resume",
                "resume",
            ) from error

    def _load_weights(self, checkpoint: Path) -> None:
        """Load a checkpoint's weights as `from_pretrained` does, unless they are in shards.

        The Trainer loads them as well, but leaves those unchanged whose names in the file differ from those in memory,
        as ViT's and Mixtral's (github.com/huggingface/transformers/issues/43701).
        """
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            return
        model: Any = self.model
        try:
            saved = type(model).from_pretrained(checkpoint, dtype=model.dtype)
            model.load_state_dict(saved.state_dict())
        except Exception as error:
            raise TrainingError(
                f"{checkpoint} cannot be read ({first_line(error)}); remove it to resume from the previous checkpoint"
            ) from error


@dataclass(eq=False)
class _CompleteRun(TrainerCallback):
    """Logs at the last step, so that it is in the curves with any interval, and completes checkpoints."""

    trainer: RunTrainer

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:  # noqa: ARG002
        if state.global_step >= state.max_steps:
            control.should_log = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:  # noqa: ARG002
        self.trainer.finish_checkpoint()


@dataclass(eq=False)
class StopOnSignal(TrainerCallback):
    """Saves a checkpoint and stops at the end of the step in which a signal calls `request`.

    Attributes:
        tell: called when a signal arrives during training.
        requested: whether a signal has arrived.
        can_save: whether training is running, so that there is something to save.
    """

    tell: Callable[[], None]
    requested: bool = False
    can_save: bool = False

    def request(self) -> bool:
        """Save and stop after this step. Returns False if there is nothing to save."""
        self.requested = True
        if self.can_save:
            self.tell()
        return self.can_save

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """From now on, there is something to save."""
        self.can_save = True

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """From now on, a signal stops the process at once."""
        self.can_save = False

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """Ask the Trainer to save and stop. All processes stop at the same step, or some would wait forever."""
        if args.world_size > 1:
            flag = torch.tensor(int(self.requested), device=args.device)
            torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX)
            self.requested = bool(flag)
        if self.requested and state.global_step < state.max_steps:
            control.should_save = control.should_training_stop = True
        return control


@dataclass(frozen=True)
class CheckpointMark:
    """The state in a complete checkpoint that transformers' Trainer does not save.

    Attributes:
        loss_sum: sum of the losses of the steps since the last log.
        logged_at: step of the last log.
        seconds: seconds of training so far.
    """

    loss_sum: float
    logged_at: int
    seconds: float


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder is named like a checkpoint."""
    return NAME.fullmatch(folder.name) is not None


def step_of(checkpoint: Path) -> int:
    """The number of updates before a checkpoint."""
    return int(checkpoint.name.rpartition("-")[2])


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, complete or not, the oldest first."""
    return sorted(filter(is_checkpoint, folder.glob("checkpoint-*")), key=step_of)


def find_last_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint of a run, or None."""
    return next((path for path in reversed(list_checkpoints(folder)) if read_mark(path) is not None), None)


def remove_broken(folder: Path) -> None:
    """Remove incomplete checkpoints, left by a killed process."""
    for path in list_checkpoints(folder):
        if read_mark(path) is None:
            shutil.rmtree(path, ignore_errors=True)


def write_mark(checkpoint: Path, mark: CheckpointMark) -> None:
    """Mark a checkpoint as complete."""
    with atomic_write(checkpoint / MARK) as path:
        path.write_text(json.dumps(asdict(mark)), "utf-8", newline="\n")


def read_mark(checkpoint: Path) -> CheckpointMark | None:
    """The mark of a checkpoint; None if it is missing or broken."""
    try:
        return CheckpointMark(**json.loads(read_small_text(checkpoint / MARK)))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
