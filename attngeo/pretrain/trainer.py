"""transformers' Trainer, with what a run here needs besides: see `RunTrainer`."""

from __future__ import annotations

import json
import math
import re
import shutil
import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from attngeo.errors import OutputError, TrainingError, first_line
from attngeo.tables.atomic import atomic_write

# Written into a checkpoint's folder last: one without it is broken.
MARK = "attngeo.json"
CHECKPOINT = re.compile(r"checkpoint-(\d+)")


class RunTrainer(Trainer):
    """A Trainer whose logged loss survives a restart, and that stops at once where the loss is not a number.

    The loss of a log is the mean over the steps since the log before, also where the run was interrupted between them:
    the sum so far goes into the checkpoint. A checkpoint that cannot be written whole is removed.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        exact = torch.float32 if self.args.device.type == "mps" else torch.float64
        self._loss_sum = torch.zeros((), dtype=exact, device=self.args.device)
        self._logged_at = 0
        self._seconds_before, self._started = 0.0, time.perf_counter()
        self.add_callback(_LastStep())

    @property
    def seconds(self) -> float:
        """Time spent on the steps so far, in earlier sessions up to their last checkpoints."""
        return self._seconds_before + time.perf_counter() - self._started

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """One batch forward and backward."""
        loss: Tensor = super().training_step(*args, **kwargs)
        self._loss_sum += loss.detach()
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, with the mean loss since the last log. Raises TrainingError where it is not a number."""
        if "loss" in logs:
            logs["loss"] = self._finite_sum() / max(self.state.global_step - self._logged_at, 1)
            self._loss_sum.zero_()
            self._logged_at = self.state.global_step
        super().log(logs, start_time)

    def _finite_sum(self) -> float:
        total = float(self.accelerator.gather(self._loss_sum).mean())
        if not math.isfinite(total):
            raise TrainingError(
                f"the loss is {'NaN' if math.isnan(total) else 'infinite'} by step {self.state.global_step}; lower "
                f"--lr (now {self.args.learning_rate:g}), raise --warmup, or train with --precision fp32"
            )
        return total

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """A checkpoint with the loss since the last log, and a mark that it is whole. Raises OutputError."""
        total = self._finite_sum()
        folder = Path(self.args.output_dir or ".") / f"checkpoint-{self.state.global_step}"
        try:
            super()._save_checkpoint(model, trial)
            if self.is_world_process_zero():
                mark = {"loss_sum": total, "logged_at": self._logged_at, "seconds": self.seconds}
                with atomic_write(folder / MARK) as path:
                    path.write_text(json.dumps(mark), "utf-8")
        except Exception as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise OutputError(
                f"{folder} cannot be written ({first_line(error)}); make room, then go on from the last checkpoint "
                "with --resume"
            ) from error

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """As `from_pretrained` does it, unless weights are in shards.

        The Trainer's own leaves weights as they are, without a word, that are saved under other names than they have in
        memory, as ViT's and Mixtral's (github.com/huggingface/transformers/issues/43701).
        """
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        own: Any = model or self.model
        try:
            saved = type(own).from_pretrained(resume_from_checkpoint, dtype=own.dtype)
            own.load_state_dict(saved.state_dict())
        except Exception as error:
            raise TrainingError(
                f"{resume_from_checkpoint} cannot be read ({first_line(error)}); remove it to go on from the one before"
            ) from error

    def resume(self, checkpoint: Path | None) -> None:
        """Train from a checkpoint of `last_checkpoint`, or from the start."""
        if checkpoint is not None:
            mark = _mark_of(checkpoint) or {}
            self._loss_sum.fill_(mark["loss_sum"])
            self._logged_at, self._seconds_before = int(mark["logged_at"]), mark["seconds"]
        self._started = time.perf_counter()
        self.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))


class MaskedTrainer(RunTrainer):
    """Computes the output layer of a masked language model for the masked tokens only: the same loss, for less.

    Of every other token nothing is predicted, but with BERT's vocabulary its output layer costs more than the rest of
    a small model. The hidden states are cut between the model's body and its head, whatever the family.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, compute_loss_func=_mean_over_masked, **kwargs)
        self._masked: Tensor | None = None
        body: Any = getattr(self.model, "base_model", self.model)
        if body is not self.model:
            body.register_forward_hook(self._keep_masked)

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The Trainer's, with the hook told where labels are."""
        self._masked = inputs["labels"] != -100
        try:
            return super().compute_loss(model, inputs, *args, **kwargs)
        finally:
            self._masked = None

    def _keep_masked(self, body: Any, inputs: Any, output: Any) -> Any:  # noqa: ARG002 - a hook's signature
        if self._masked is None:
            return output
        hidden = output[0][self._masked][None]
        if isinstance(output, MutableMapping):
            output[next(iter(output))] = hidden
            return output
        return (hidden, *output[1:])


class CausalTrainer(RunTrainer):
    """Computes the loss of next tokens itself, for all families alike.

    What models compute is a mean over as many tokens as the Trainer takes them to predict, which for a BERT as decoder
    counts the first of every sequence, and which some families leave to the Trainer altogether.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, compute_loss_func=_mean_over_next, **kwargs)


def _mean_over_next(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """Cross-entropy of each label from the tokens in front of it; the first label of a sequence has to be -100."""
    logits, following = outputs["logits"][:, :-1], labels[:, 1:]
    return _mean_loss(logits, following, num_items_in_batch)


def _mean_over_masked(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """Cross-entropy over the tokens that have a label, whether or not the logits hold the others too."""
    logits, chosen = outputs["logits"], labels != -100
    if logits.shape[:-1] == labels.shape:
        logits = logits[chosen]
    return _mean_loss(logits, labels[chosen], num_items_in_batch)


def _mean_loss(logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor:
    """Cross-entropy over the labels that are not -100, as a share of all that the accumulated batches have."""
    count = (labels != -100).sum() if num_items_in_batch is None else torch.as_tensor(num_items_in_batch)
    total = F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten(), reduction="sum")
    return total / count.clamp(min=1).to(total.device)


class _LastStep(TrainerCallback):
    """Logs at the last step, so that the end of a run is in its curves whatever the interval."""

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        del args
        if state.global_step >= state.max_steps:
            control.should_log = True
        return control


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, whole or not, the oldest first."""
    found = {int(match[1]): path for path in folder.glob("checkpoint-*") if (match := CHECKPOINT.fullmatch(path.name))}
    return [found[step] for step in sorted(found)]


def last_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint of a run, or None."""
    return next((path for path in reversed(checkpoints(folder)) if _mark_of(path) is not None), None)


def remove_broken(folder: Path) -> None:
    """Remove the checkpoints that a killed process left half-written."""
    for path in checkpoints(folder):
        if _mark_of(path) is None:
            shutil.rmtree(path, ignore_errors=True)


def _mark_of(checkpoint: Path) -> dict[str, float] | None:
    try:
        mark: dict[str, float] = json.loads((checkpoint / MARK).read_text("utf-8"))
        return mark
    except (OSError, ValueError):
        return None
