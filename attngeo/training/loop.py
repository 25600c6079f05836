"""The loop: epochs of seeded batches, Adam, early stopping, checkpoints that can be resumed, on one process or more.

By accelerate: processes that `accelerate launch` starts share each batch, and have the same weights after each step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attngeo.devices import explain_memory
from attngeo.errors import InterruptedTrainingError, TrainingError
from attngeo.options import takes_after_two
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.training.batches import Batch, Batches, draw_generator
from attngeo.training.best import BestWeights
from attngeo.training.checkpoints import flatten_optimizer, load_optimizer, load_state, save_state
from attngeo.training.options import TrainingOptions
from attngeo.training.processes import Processes
from attngeo.training.signals import SignalListener

# Seconds between two checkpoints of a training that has a folder.
SAVE_EVERY = 60.0
# What to do if a batch needs too much memory.
SMALLER = "lower the batch size, the number of layers, or the length of the longest sequence"
# Options that do not change the numbers.
FREE = ("device",)
# What a state is of, for messages.
NAMES = {"identity": "model or data", "options": "options", "shapes": "shapes"}


@dataclass(frozen=True)
class History:
    """What a training did.

    train: mean training loss of each epoch, [epochs] or [epochs, models]. validation: the same after each epoch; empty
    without validation data. best_epoch: from 0, of each model; the last one without validation data.
    """

    train: np.ndarray
    validation: np.ndarray
    best_epoch: np.ndarray


def never() -> bool:
    """The answer of a caller who does not ask a training to stop."""
    return False


class TrainingKeywords(TrainingOptions):
    """The keywords of `train`."""

    options: TrainingOptions | None = None
    validation: Batches | None = None
    folder: str | Path | None = None
    identity: str = ""
    optimizer: torch.optim.Optimizer | None = None
    progress: ProgressCallback = ignore_progress
    asked_to_stop: Callable[[], bool] = never


@takes_after_two(TrainingKeywords)
def train(
    model: nn.Module,
    batches: Batches,
    options: TrainingOptions,
    *,
    validation: Batches | None = None,
    folder: str | Path | None = None,
    identity: str = "",
    optimizer: torch.optim.Optimizer | None = None,
    progress: ProgressCallback = ignore_progress,
    asked_to_stop: Callable[[], bool] = never,
) -> History:
    """Train a model in place. It ends with the weights of the lowest validation loss, or the last ones without one.

    model: `model(*batch)` is (sum of the losses, number of terms), each a scalar, or [models] for a batch of models,
        whose parameters and buffers all have that first dimension. They are trained independently.
    batches: the training data.
    {options}
    validation: data whose mean loss is measured after each epoch.
    folder: for the state of an unfinished training. It is saved every minute and at Ctrl-C or SIGTERM, and a training
        that finds it resumes: it ends with the same numbers as one that was not interrupted.
    identity: names data and model. The state of another training is refused.
    optimizer: of the model's parameters, with its moments; a new one by default.
    progress: called after each epoch. asked_to_stop: asked after each step; true does what a signal does.

    Raises TrainingError if a loss is not finite (it names the epoch and the batch), if the weights are not at the end,
    if no validation loss is finite, or if the state is of another training; InterruptedTrainingError if it was asked to
    stop; KeyboardInterrupt if a signal arrived and there is no `folder` for the state.
    """
    optimizer = optimizer or make_optimizer(model, options)
    place = None if folder is None else Path(folder)
    return _Training(model, batches, options, validation, place, identity, optimizer).run(progress, asked_to_stop)


def make_optimizer(model: nn.Module, options: TrainingOptions) -> torch.optim.Optimizer:
    """The optimizer of a training: AdamW, which is Adam without a weight decay."""
    return torch.optim.AdamW(
        model.parameters(), lr=options.learning_rate, weight_decay=options.weight_decay, fused=True
    )


class _Training:
    def __init__(
        self,
        model: nn.Module,
        batches: Batches,
        options: TrainingOptions,
        validation: Batches | None,
        folder: Path | None,
        identity: str,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self._processes = Processes(options.device)
        self._device = self._processes.device
        self._bare = model.to(self._device)
        self._model = self._processes.wrap(model)
        self._batches, self._validation, self._options, self._folder = batches, validation, options, folder
        self._optimizer = optimizer
        shapes = {name: list(each.shape) for name, each in model.named_parameters()}
        kept = {name: value for name, value in options if name not in FREE}
        self._about = {"identity": identity, "options": kept, "shapes": shapes}
        self._epoch, self._step = 0, 0
        self._losses: list[Tensor] = []  # of the epoch so far: [2, models] or [2], sums and numbers of terms
        self._train: list[Tensor] = []
        self._held_out: list[Tensor] = []
        self._best: BestWeights | None = None
        self._saved_at = time.monotonic()

    def run(self, progress: ProgressCallback, asked_to_stop: Callable[[], bool]) -> History:
        """Train, from the saved state if there is one."""

        def announce() -> None:
            progress(Progress("fit", "stopping after this step", self._epoch, self._options.epochs, "steps"))

        signals = SignalListener(announce)
        devices = [self._device.index or 0] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices), signals.listening():
            resumed = self._resume()
            signals.saves = self._folder is not None
            for epoch in range(self._epoch, self._options.epochs):
                if self._best is not None and self._best.all_stopped:
                    break
                self._epoch = epoch
                if not resumed:
                    torch.manual_seed(draw_generator(self._options.seed, epoch, 1).initial_seed())
                resumed = False
                self._run_epoch(signals, asked_to_stop)
                self._epoch, self._step = epoch + 1, 0
                progress(Progress("fit", self._describe(), epoch + 1, self._options.epochs, "steps"))
                self._save_if_due()
            signals.saves = False
        return self._finish()

    def _run_epoch(self, signals: SignalListener, asked_to_stop: Callable[[], bool]) -> None:
        self._model.train()
        for batch in self._batches.epoch(self._epoch, self._step):
            with explain_memory(SMALLER):
                self._losses.append(self._take_step(batch))
            self._step += 1
            if self._processes.agree(signals.requested or asked_to_stop()):
                self._check_losses()
                self._save()
                raise InterruptedTrainingError(
                    f"interrupted in epoch {self._epoch + 1} of {self._options.epochs}",
                    "no folder keeps its state" if self._folder is None else "start it again to resume",
                )
        self._train.append(self._check_losses())
        self._losses = []
        if self._validation is not None:
            with explain_memory(SMALLER):
                self._held_out.append(self._validate(self._validation))
            self._best = self._best or self._start_best(self._held_out[-1])
            self._best.update(self._epoch, self._held_out[-1])

    def _start_best(self, losses: Tensor) -> BestWeights:
        """For one model, or for as many as there are losses."""
        return BestWeights(self._bare, len(losses) if losses.ndim else None, self._options.patience)

    def _take_step(self, batch: Batch) -> Tensor:
        """One update. Returns the sums of losses and the numbers of terms, over all processes."""
        total, count = self._measure(batch, self._batches)
        self._optimizer.zero_grad()
        self._processes.backward(total, count)
        self._optimizer.step()
        return self._add(total, count)

    def _measure(self, batch: Batch, batches: Batches) -> tuple[Tensor, Tensor]:
        share, counts = self._processes.share(batch, batches.example_dim)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._options.precision == "bf16"):
            total, count = self._model(*share)
        return (total, count) if counts else (0 * total, 0 * count)

    def _add(self, total: Tensor, count: Tensor) -> Tensor:
        return self._processes.add(torch.stack([total.detach(), count.detach().to(total.dtype)]))

    @torch.no_grad()
    def _validate(self, batches: Batches) -> Tensor:
        """The mean loss of data that is not trained on."""
        self._model.eval()
        pairs = [self._add(*self._measure(batch, batches)) for batch in batches.epoch(0)]
        sums: Tensor = torch.stack(pairs).cpu().double().sum(0)
        return sums[0] / sums[1]

    def _check_losses(self) -> Tensor:
        """The mean loss of the epoch so far. Raises TrainingError if one of a batch is not finite.

        Only here, because a look at each loss would let a GPU wait for it.
        """
        losses = torch.stack(self._losses).cpu().double()
        finite = losses[:, 0].isfinite()
        if not finite.all():
            at = int((~finite).reshape(len(losses), -1).any(1).nonzero()[0])
            value = losses[at, 0][~finite[at]].reshape(-1)[0]
            raise TrainingError(
                f"the loss became {'NaN' if value.isnan() else 'infinite'} in epoch {self._epoch + 1}, batch {at + 1}; "
                f"lower the learning rate (now {self._options.learning_rate:g})"
            )
        sums: Tensor = losses.sum(0)
        return sums[0] / sums[1]

    def _check_weights(self) -> None:
        """Raise TrainingError if the last step, whose effect no loss shows, made a weight that is not finite."""
        for name, weight in self._bare.named_parameters():
            if not weight.isfinite().all():
                raise TrainingError(
                    f"{name} has weights that are not finite after the last epoch, {len(self._train)}; "
                    f"lower the learning rate (now {self._options.learning_rate:g})"
                )

    def _describe(self) -> str:
        text = f"loss {float(self._train[-1].mean()):.4f}"
        return text + (f"  validation {float(self._held_out[-1].mean()):.4f}" if self._held_out else "")

    def _save_if_due(self) -> None:
        if self._folder is not None and time.monotonic() - self._saved_at > SAVE_EVERY:
            self._save()

    def _save(self) -> None:
        if self._folder is None or not self._processes.is_main:
            return
        lists = {"losses": self._losses, "train": self._train, "validation": self._held_out}
        random = {"cpu": torch.get_rng_state()}
        if self._device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self._device)
        groups = {
            "model": self._bare.state_dict(),
            "optimizer": flatten_optimizer(self._optimizer),
            "best": {} if self._best is None else self._best.state(),
            "lists": {name: torch.stack(values) for name, values in lists.items() if values},
            "random": random,
        }
        save_state(self._folder, groups, self._about | {"epoch": self._epoch, "step": self._step})
        self._saved_at = time.monotonic()

    def _resume(self) -> bool:
        """Load the saved state. Returns whether its random numbers go on in the middle of an epoch."""
        found = None if self._folder is None else load_state(self._folder)
        if found is None:
            return False
        groups, about = found
        for what, wanted in self._about.items():
            if about.get(what) != wanted:
                raise TrainingError(
                    f"{self._folder}: its unfinished training has another {NAMES[what]}; choose another folder, or "
                    "remove it to train from the start"
                )
        self._epoch, self._step = int(about["epoch"]), int(about["step"])
        self._bare.load_state_dict(groups["model"])
        load_optimizer(self._optimizer, groups["optimizer"])
        lists: dict[str, Any] = groups.get("lists", {})
        self._losses = list(lists.get("losses", torch.empty(0)).to(self._device).unbind(0))
        self._train, self._held_out = ([*lists.get(name, torch.empty(0)).unbind(0)] for name in ("train", "validation"))
        if "best" in groups:
            self._best = self._start_best(self._held_out[-1])
            self._best.load(groups["best"])
        torch.set_rng_state(groups["random"]["cpu"])
        if self._device.type == "cuda" and "cuda" in groups["random"]:
            torch.cuda.set_rng_state(groups["random"]["cuda"], self._device)
        return self._step > 0

    def _check_validation(self, best: BestWeights) -> None:
        """Raise TrainingError for a model without a best epoch: after none was its validation loss finite."""
        without = best.epochs < 0
        if without.any():
            last = self._held_out[-1].reshape(-1)[without][0]
            raise TrainingError(
                f"no validation loss of {len(self._held_out)} epochs is finite (the last one is "
                f"{'NaN' if last.isnan() else 'infinite'}); lower the learning rate (now "
                f"{self._options.learning_rate:g}), or leave extreme values out of the validation data"
            )

    def _finish(self) -> History:
        if self._best is not None:
            self._check_validation(self._best)
            self._best.restore()
        self._check_weights()
        self._bare.eval()
        empty = np.empty(0)
        train = torch.stack(self._train).numpy() if self._train else empty
        best = np.full(train.shape[1:] or 1, len(train) - 1) if self._best is None else self._best.epochs.numpy()
        return History(train, torch.stack(self._held_out).numpy() if self._held_out else empty, best)
