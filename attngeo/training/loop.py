"""The training loop: epochs of seeded batches, Adam, early stopping, and a state from which a training resumes."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from attngeo.devices import explain_memory, pick_device
from attngeo.errors import InterruptedTrainingError, OutputError, TrainingError, first_line
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.tables.files import atomic_write
from attngeo.training import TrainingOptions

log = logging.getLogger(__name__)

# The state of an unfinished training, in its folder.
FILE = "training.pt"

# The state is saved after an epoch if 50 times the seconds of the last saving have passed: it takes 2% of the time.
PAUSE_RATIO = 50
# The advice if a batch needs too much memory.
MEMORY_ADVICE = "lower the batch size or the number of layers, or shorten the longest sequence"
# Options that do not change the numbers.
WITHOUT_EFFECT = ("device",)
# The keys by which a state is recognised, as messages name them.
STATE_WORDS = {
    "identity": "a different model or different data",
    "options": "different options",
    "shapes": "different shapes",
}

Batch = tuple[Tensor, ...]


def draw_generator(*seeds: int) -> torch.Generator:
    """A generator on the CPU whose numbers depend only on the seeds; different seeds give independent numbers."""
    state = int(np.random.SeedSequence(seeds).generate_state(1, np.uint64)[0])
    return torch.Generator().manual_seed(state & (2**63 - 1))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers from a seed inside the block; the caller's generator is not affected."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@contextmanager
def limited_threads(*, is_small: bool) -> Iterator[None]:
    """Compute on one thread if the tensors of a step are small, because more threads would mostly wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if is_small else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Batches(Protocol):
    """Training data in batches, which stay the same if an epoch is started again."""

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of an epoch, counted from 0."""


class BestWeights:
    """The best weights so far, of one model or of a batch of models.

    A batch of models has one loss per model, and parameters with the models as first dimension. Updates of a model that
    has stopped are not kept, so each model of a batch ends as if trained alone.

    Args:
        model: the model, or a batch of models.
        losses: losses of an epoch, [] or [models]; only their shape is read.
        patience: number of epochs without a lower loss after which a model stops; None for never.

    Attributes:
        lowest: lowest loss, [] or [models].
        epochs: epoch of the lowest loss, counted from 0; −1 before the first epoch.
        stopped: whether a model has stopped.
        weights: name → weight after the epoch of the lowest loss.
    """

    def __init__(self, model: nn.Module, losses: Tensor, patience: int | None) -> None:
        self._model = model
        self._patience = math.inf if patience is None else patience
        self.lowest = torch.full(losses.shape, math.inf, dtype=torch.float64)
        self.epochs = torch.full(losses.shape, -1)
        self.stopped = torch.zeros(losses.shape, dtype=torch.bool)
        self.weights: dict[str, Tensor] = {}

    def update(self, epoch: int, losses: Tensor) -> None:
        """Keep the weights of each model whose validation loss after this epoch is its lowest."""
        is_better = losses.isfinite() & (losses < self.lowest) & ~self.stopped
        self.lowest = torch.where(is_better, losses, self.lowest)
        self.epochs = torch.where(is_better, epoch, self.epochs)
        self.stopped |= epoch - self.epochs >= self._patience
        for name, weight in self._model.state_dict().items():
            best = self.weights.setdefault(name, weight.clone())
            chosen = is_better.to(weight.device)
            best[chosen] = weight[chosen]

    def state(self) -> dict[str, Any]:
        """The tensors for a saved state."""
        return {name: getattr(self, name) for name in ("lowest", "epochs", "stopped", "weights")}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from the result of `state`."""
        for name in ("lowest", "epochs", "stopped"):
            setattr(self, name, state[name].view_as(self.lowest))
        for name, weight in self._model.state_dict().items():
            self.weights[name] = state["weights"][name].to(weight.device)


@dataclass(frozen=True)
class History:
    """The losses of a training.

    Attributes:
        train: mean training loss of each epoch, [epochs] or [epochs, models].
        validation: mean validation loss after each epoch, with the same shape; empty without validation data.
        best_epoch: epoch of each model's lowest validation loss, counted from 0; without validation data, the last one.
    """

    train: np.ndarray
    validation: np.ndarray
    best_epoch: np.ndarray


def train(
    model: nn.Module,
    batches: Batches,
    options: TrainingOptions,
    *,
    validation: Batches | None = None,
    folder: str | Path | None = None,
    identity: str = "",
    progress: ProgressCallback = ignore_progress,
) -> History:
    """Train a model in place. It ends with the weights of the lowest validation loss, or without one with the last.

    With `averaging`, the validated and the final weights are running averages.

    Args:
        model: `model(*batch)` returns (sum of the losses, number of terms): scalars, or [models] for a batch of
            independently trained models, whose parameters and buffers all have this first dimension.
        batches: the training data.
        options: options of the loop.
        validation: data whose mean loss is measured after each epoch.
        folder: folder for the state of an unfinished training. The state is saved after epochs, using at most 2% of the
            time, and a training that finds it resumes and ends with the same numbers as an uninterrupted one. If the
            state cannot be saved, for example on a full disk, a warning is logged and saving stops.
        identity: name of data and model. The state of a different training is refused.
        progress: called after each epoch.

    Returns:
        The losses of each epoch.

    Raises:
        TrainingError: a loss (the error names epoch and batch), a final weight or every validation loss is not finite;
            or the state belongs to a different training.
        InterruptedTrainingError: Ctrl-C was pressed; without `folder`, KeyboardInterrupt is raised instead.
    """
    training = _Training(model, options, None if folder is None else Path(folder), identity)
    devices = [training.device.index or 0] if training.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices):
            training.resume()
            while training.epoch < options.epochs and not training.has_stopped:
                torch.manual_seed(draw_generator(options.seed, training.epoch, 1).initial_seed())
                training.run_epoch(batches, validation)
                training.save_if_due()
                text = f"loss {float(training.train_losses[-1].mean()):.4f}"
                if training.validation_losses:
                    text += f"  validation {float(training.validation_losses[-1].mean()):.4f}"
                progress(Progress("fit", text, training.epoch, options.epochs, "steps"))
        return training.finish()
    except KeyboardInterrupt:
        if training.folder is None:
            raise
        raise InterruptedTrainingError(
            f"interrupted in epoch {min(training.epoch + 1, options.epochs)} of {options.epochs}",
            "run it again to resume",
        ) from None


def make_average(model: nn.Module, averaging: float) -> AveragedModel:
    """A running average of the weights of a model; `update_parameters` adds a step to it.

    averaging: decay, the share of the average that a step keeps. The first steps keep less, n / (n + 9) after n steps,
    so that the start is forgotten.
    """

    def average(averaged: Tensor, weight: Tensor, steps: Tensor | int) -> Tensor:
        count = torch.as_tensor(steps)
        kept = (count / (count + 9)).clamp(max=averaging)
        return averaged + (weight - averaged) * (1 - kept)

    return AveragedModel(model, avg_fn=average)


def remove_state(folder: Path) -> None:
    """Remove the state of a training, which is no longer needed once the trained model is saved."""
    (folder / FILE).unlink(missing_ok=True)


@dataclass
class _Training:
    """The training of a model, from `epoch` on.

    Attributes:
        model: the model, which is trained in place.
        options: options of the loop.
        folder: folder of the saved state; None saves nothing.
        identity: name of data and model.
        epoch: number of finished epochs.
        train_losses: mean training losses of each epoch.
        validation_losses: mean validation losses of each epoch.
        best: best weights so far; None without validation data.
        next_save: earliest time of the next saved state, in seconds of the monotonic clock.
    """

    model: nn.Module
    options: TrainingOptions
    folder: Path | None
    identity: str
    epoch: int = 0
    train_losses: list[Tensor] = field(default_factory=list)
    validation_losses: list[Tensor] = field(default_factory=list)
    best: BestWeights | None = None
    next_save: float = 0.0

    def __post_init__(self) -> None:
        self.device = pick_device(self.options.device)
        self.model.to(self.device)
        self.average = make_average(self.model, self.options.averaging) if self.options.averaging else None
        self.optimizer = torch.optim.AdamW(  # which is Adam without a weight decay
            self.model.parameters(), self.options.learning_rate, weight_decay=self.options.weight_decay, fused=True
        )

    @property
    def kept(self) -> nn.Module:
        """The model to validate and keep: the average, or the trained model."""
        return self.model if self.average is None else self.average.module

    @property
    def has_stopped(self) -> bool:
        """Whether all models have stopped early."""
        return self.best is not None and bool(self.best.stopped.all())

    def identify(self) -> dict[str, Any]:
        """The values that identify the state of this training."""
        shapes = {name: list(weight.shape) for name, weight in self.model.named_parameters()}
        options = {name: value for name, value in self.options if name not in WITHOUT_EFFECT}
        return {"identity": self.identity, "options": options, "shapes": shapes}

    def run_epoch(self, batches: Batches, validation: Batches | None) -> None:
        """Train for an epoch, and measure the loss of the validation data. Raises TrainingError."""
        with explain_memory(MEMORY_ADVICE):
            self.model.train()
            steps = []
            for batch in batches.epoch(self.epoch):
                sums = self._measure(self.model, batch)
                self.optimizer.zero_grad()
                (sums[0] / sums[1]).sum().backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()
                if self.average is not None:
                    self.average.update_parameters(self.model)
                steps.append(sums.detach())
            losses = torch.stack(steps).cpu().double()
            # Only now, because a look at each loss would let a GPU wait for it.
            broken = (~losses[:, 0].isfinite()).nonzero()
            if len(broken):
                first = losses[:, 0][tuple(broken[0])]
                self._refuse(f"the loss became {first} in epoch {self.epoch + 1}, batch {int(broken[0, 0]) + 1}")
            self.train_losses.append(_average(losses))
            if validation is not None:
                self.kept.eval()
                with torch.no_grad():
                    batch_sums = [self._measure(self.kept, batch) for batch in validation.epoch(0)]
                measured = torch.stack(batch_sums).cpu().double()
                loss = _average(measured)
                self.validation_losses.append(loss)
                self.best = self.best or BestWeights(self.kept, loss, self.options.patience)
                self.best.update(self.epoch, loss)
        self.epoch += 1

    def _measure(self, model: nn.Module, batch: Batch) -> Tensor:
        """The sums of losses and the numbers of terms of a batch: [2] or [2, models]."""
        moved = [tensor.to(self.device, non_blocking=True) for tensor in batch]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.options.precision == "bf16"):
            total, count = model(*moved)
        return torch.stack([total, count.to(total.dtype)])

    def _refuse(self, problem: str, advice: str = "") -> NoReturn:
        raise TrainingError(f"{problem}; lower the learning rate (now {self.options.learning_rate:g}){advice}")

    def save_if_due(self) -> None:
        """Save the state after the epochs so far if there is a folder for it and the last save is long enough ago."""
        start = time.monotonic()
        if self.folder is None or start < self.next_save:
            return
        state = self.identify() | {
            "epoch": self.epoch,
            "model": self.model.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "best": None if self.best is None else self.best.state(),
            "train": self.train_losses,
            "validation": self.validation_losses,
        }
        try:
            with atomic_write(self.folder / FILE) as path, path.open("wb") as file:
                torch.save(state, file)
        except (OutputError, RuntimeError) as error:  # torch's own, if the disk is full
            log.warning("%s: the state of the training run cannot be saved: %s", self.folder, first_line(error))
            self.folder = None
        end = time.monotonic()
        self.next_save = end + PAUSE_RATIO * (end - start)

    def resume(self) -> None:
        """Load the saved state, if there is one."""
        if self.folder is None:
            return
        path = self.folder / FILE
        if not path.is_file():
            return
        try:
            state = dict(torch.load(path, "cpu", weights_only=True))
        except Exception as error:  # torch raises errors of many kinds for a damaged file
            raise TrainingError(
                f"{path} cannot be read ({first_line(error)}); remove it to train from the start"
            ) from None
        for key, expected in self.identify().items():
            if state.get(key) != expected:
                raise TrainingError(
                    f"the unfinished training run in it has {STATE_WORDS[key]}; choose another folder, or remove "
                    "this one to train from the start",
                    subject=self.folder,
                )
        self.epoch = state["epoch"]
        self.train_losses = state["train"]
        self.validation_losses = state["validation"]
        self.model.load_state_dict(state["model"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.optimizer.load_state_dict(state["optimizer"])
        if state["best"] is not None:
            self.best = BestWeights(self.kept, self.validation_losses[-1], self.options.patience)
            self.best.load(state["best"])

    def finish(self) -> History:
        """Give the model its best weights. Raises TrainingError if they, or all validation losses, are not finite."""
        train = np.array([losses.numpy() for losses in self.train_losses])
        validation = np.array([losses.numpy() for losses in self.validation_losses])
        best_epoch = np.full(train.shape[1:], len(train) - 1)
        if self.best is not None:
            has_none = self.best.epochs < 0
            if has_none.any():
                self._refuse(
                    f"no validation loss in {len(validation)} epochs is finite (the last one is "
                    f"{self.validation_losses[-1][has_none][0]})",
                    ", or remove extreme values from the validation data",
                )
            self.kept.load_state_dict(self.best.weights)
            best_epoch = self.best.epochs.numpy()
        # The last step may break weights, which no loss shows.
        for name, weight in self.kept.named_parameters():
            if not weight.isfinite().all():
                self._refuse(f"weights of {name} are not finite after the last epoch, {len(train)}")
        self.model.load_state_dict(self.kept.state_dict())
        self.model.eval()
        return History(train, validation, np.atleast_1d(best_epoch))


def _average(sums: Tensor) -> Tensor:
    """The mean loss of batches, [] or [models], from their sums and numbers of terms."""
    means: Tensor = torch.div(*sums.sum(0))
    return means
