"""The Trainer of transformers, extended for the runs of attngeo by its public names only."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from attngeo.errors import OutputError, TrainingError, first_line
from attngeo.pretrain.checkpoints import CheckpointMark, is_checkpoint, read_mark, write_mark
from attngeo.tables.files import remove_unfinished


class RunTrainer(Trainer):
    """A Trainer whose checkpoints are whole or not used, and which stops if the loss is not a number.

    The loss of a log is the mean over the steps since the log before, also if the run was interrupted between them: the
    sum so far is part of the checkpoint. A checkpoint that cannot be written is removed.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        exact = torch.float32 if self.args.device.type == "mps" else torch.float64
        self._loss_sum = torch.zeros((), dtype=exact, device=self.args.device)
        self._logged_at = 0
        self._seconds_before, self._started = 0.0, time.perf_counter()
        # The checkpoint that is being written.
        self._unfinished: Path | None = None
        self.add_callback(_LogLastStep())
        self.add_callback(_FinishCheckpoint(self))

    @property
    def seconds(self) -> float:
        """Time of training so far; of earlier sessions, up to their last checkpoints."""
        return self._seconds_before + time.perf_counter() - self._started

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """One batch forward and backward."""
        loss: Tensor = super().training_step(*args, **kwargs)
        self._loss_sum += loss.detach()
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, with the mean loss since the last log. Raises TrainingError if it is not a number."""
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
                f"--lr (now {self.args.learning_rate:g}), raise --warmup, or train with --precision fp32"
            )
        return total

    def save_model(self, output_dir: str | None = None, *args: Any, **kwargs: Any) -> None:
        """Save the model; the Trainer begins each checkpoint with it. Raises TrainingError if the loss is no number."""
        folder = Path(output_dir or self.args.output_dir or ".")
        if is_checkpoint(folder):
            self._sum_losses()
            self._unfinished = folder
        super().save_model(output_dir, *args, **kwargs)

    def finish_checkpoint(self) -> None:
        """Add to a new checkpoint what the Trainer leaves out, then the mark that it is whole."""
        folder = self._unfinished
        total = self._sum_losses()
        self.accelerator.wait_for_everyone()  # each process writes the state of its random numbers
        if folder is not None and self.is_world_process_zero():
            self.save_state_of_run(folder)
            write_mark(folder, CheckpointMark(total, self._logged_at, self.seconds))
        self._unfinished = None

    def save_state_of_run(self, checkpoint: Path) -> None:
        """Save what a kind of run adds to checkpoints: here nothing."""

    def load_state_of_run(self, checkpoint: Path) -> None:
        """Load what `save_state_of_run` saved."""

    def resume(self, checkpoint: Path | None) -> None:
        """Train from a whole checkpoint, or from the start if it is None. Raises TrainingError and OutputError."""
        if checkpoint is not None and (mark := read_mark(checkpoint)) is not None:
            self._loss_sum.fill_(mark.loss_sum)
            self._logged_at, self._seconds_before = mark.logged_at, mark.seconds
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
                "checkpoint with --resume"
            ) from error

    def _load_weights(self, checkpoint: Path) -> None:
        """Load a checkpoint's weights as `from_pretrained` does, unless they are in shards.

        The Trainer loads them as well, but leaves those unchanged whose names in the file differ from those in memory,
        as ViT's and Mixtral's (github.com/huggingface/transformers/issues/43701).
        """
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            return
        own: Any = self.model
        try:
            saved = type(own).from_pretrained(checkpoint, dtype=own.dtype)
            own.load_state_dict(saved.state_dict())
        except Exception as error:
            raise TrainingError(
                f"{checkpoint} cannot be read ({first_line(error)}); remove it to resume from the one before"
            ) from error


class _LogLastStep(TrainerCallback):
    """Logs at the last step, so that the end of a run is in its curves with any interval."""

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        del args
        if state.global_step >= state.max_steps:
            control.should_log = True
        return control


class _FinishCheckpoint(TrainerCallback):
    """Calls the Trainer back when it has written a checkpoint."""

    def __init__(self, trainer: RunTrainer) -> None:
        self._trainer = trainer

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:  # noqa: ARG002
        self._trainer.finish_checkpoint()
