"""The loop: what it converges to, what it repeats, when it stops, and that it resumes as if nothing had happened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import torch
from support.messages import assert_states, refuses
from torch import Tensor, nn

from attngeo.errors import InterruptedTrainingError, TrainingError, UsageError
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.training import TrainingOptions, loop
from attngeo.training.loop import FILE, BestWeights, History, draw_generator, train

ROWS, COLUMNS = 50, 3


class TensorBatches:
    """Batches of rows; without a seed, in the order of the rows."""

    def __init__(self, tensors: Sequence[Tensor], size: int, seed: int | None = None) -> None:
        self.tensors, self.size, self.seed = tensors, size, seed

    def epoch(self, number: int) -> Iterator[tuple[Tensor, ...]]:
        rows = torch.arange(len(self.tensors[0]))
        if self.seed is not None:
            rows = torch.randperm(len(rows), generator=draw_generator(self.seed, number))
        for some in torch.split(rows, self.size):
            yield tuple(tensor[some] for tensor in self.tensors)


class Regression(nn.Module):
    """Least squares; with dropout, so that its training draws random numbers.

    steps_left: at this step, Ctrl-C arrives.
    """

    def __init__(self, dropout: float = 0.0, seed: int = 0) -> None:
        super().__init__()
        start = torch.randn(COLUMNS, generator=torch.Generator().manual_seed(seed))
        self.weight = nn.Parameter(start)
        self.dropout = nn.Dropout(dropout)
        self.steps_left = -1

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if self.training:
            self.steps_left -= 1
        if self.steps_left == 0:
            raise KeyboardInterrupt
        error = self.dropout(x) @ self.weight - y
        return error.square().sum(), torch.tensor(float(len(y)))


class Regressions(nn.Module):
    """A batch of them: data are [rows, models, ...]."""

    def __init__(self, members: list[Regression]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack([each.weight.detach() for each in members]))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        error = torch.einsum("bmi,mi->bm", x, self.weight) - y
        return error.square().sum(0), torch.full((len(self.weight),), float(len(y)))


def draw_data(rows: int = ROWS, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, COLUMNS, generator=generator)
    return x, x @ torch.tensor([1.0, -2.0, 0.5]) + torch.randn(rows, generator=generator)


def fit(
    model: Regression, folder: Path | None = None, progress: ProgressCallback = ignore_progress, **options: Any
) -> History:
    """Train with dropout, validation and an order of batches that follows from the seed."""
    x, y = draw_data()
    held_out = TensorBatches(draw_data(20, seed=1), 7)
    return train(
        model, TensorBatches((x, y), 8, seed=3), TrainingOptions(**options), validation=held_out, folder=folder,
        progress=progress,
    )  # fmt: skip


def test_a_convex_problem_ends_at_its_solution() -> None:
    x, y = (part.double() for part in draw_data())
    model = Regression().double()
    history = train(model, TensorBatches((x, y), ROWS), TrainingOptions(epochs=350, learning_rate=0.1))
    solution, residual, *_ = np.linalg.lstsq(x.numpy(), y.numpy(), rcond=None)
    np.testing.assert_allclose(model.weight.detach().numpy(), solution, atol=1e-6)
    assert history.train[-1] == pytest.approx(residual[0] / ROWS, rel=1e-9)
    assert history.validation.shape == (0,)
    assert history.best_epoch.tolist() == [349]


def test_the_seed_decides_the_numbers_and_those_of_the_caller_stay() -> None:
    before = torch.get_rng_state()
    models = [Regression(0.5) for _ in range(3)]
    for model, seed in zip(models, (1, 1, 2), strict=True):
        fit(model, seed=seed, epochs=3)
    assert torch.equal(models[0].weight, models[1].weight)
    assert not torch.equal(models[0].weight, models[2].weight)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("averaging", [0.0, 0.6])
@pytest.mark.parametrize("steps", [1, 4, 8, 14, 15, 20])
def test_an_interrupted_training_resumes_after_its_last_whole_epoch(
    steps: int, averaging: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven batches in an epoch: what is lost is computed again, and all numbers are those of no interrupt."""
    monkeypatch.setattr(loop, "PAUSE_RATIO", 0)
    whole, parts = Regression(0.5), Regression(0.5)
    options = {"epochs": 4, "learning_rate": 0.3, "patience": 2, "averaging": averaging}
    expected = fit(whole, **options)
    parts.steps_left = steps
    with refuses(InterruptedTrainingError, f"epoch {(steps - 1) // 7 + 1} of 4", "resume"):
        fit(parts, tmp_path, **options)
    assert (tmp_path / FILE).is_file() == (steps > 7)
    again, epochs = Regression(0.5, seed=0 if steps <= 7 else 9), list[int]()
    history = fit(again, tmp_path, progress=lambda step: epochs.append(step.done), **options)
    assert epochs[0] == (steps - 1) // 7 + 1
    assert torch.equal(again.weight, whole.weight)
    for name in ("train", "validation", "best_epoch"):
        np.testing.assert_array_equal(getattr(history, name), getattr(expected, name))


def test_a_training_that_a_kill_ends_has_saved_the_epochs_before(tmp_path: Path) -> None:
    """At the latest after 50 times the time that the last save took: the first epoch is always saved."""
    model = Regression()

    def fail(_: Progress) -> None:
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        fit(model, tmp_path, epochs=3, progress=fail)
    assert (tmp_path / FILE).is_file()
    epochs: list[int] = []
    fit(Regression(seed=4), tmp_path, epochs=3, progress=lambda step: epochs.append(step.done))
    assert epochs == [2, 3]


def test_training_stops_without_improvement_and_keeps_the_best_weights() -> None:
    model = Regression()
    history = fit(model, epochs=500, learning_rate=0.05, patience=3)
    best = int(history.best_epoch[0])
    assert len(history.validation) == best + 4 < 500
    assert best == history.validation.argmin()
    x, y = draw_data(20, seed=1)
    loss = (x.double() @ model.weight.double() - y.double()).square().mean().item()
    assert loss == pytest.approx(history.validation[best], rel=1e-5)  # which is of products in single precision
    assert np.abs(np.delete(history.validation, best) / loss - 1).min() > 1e-4  # no other epoch has this loss


@pytest.mark.parametrize("averaging", [0.5, 0.9])
@pytest.mark.parametrize("is_validated", [False, True])
def test_an_average_of_the_weights_is_validated_and_kept(averaging: float, is_validated: bool) -> None:
    """One step in an epoch. The first steps keep less of the average: 1/10, 2/11 and so on."""
    data, held_out = ([part.double() for part in draw_data(rows, seed)] for rows, seed in ((ROWS, 0), (20, 1)))
    model = Regression().double()
    weights: list[np.ndarray] = []
    history = train(
        model,
        TensorBatches(data, ROWS),
        TrainingOptions(epochs=40, learning_rate=0.3, averaging=averaging),
        validation=TensorBatches(held_out, 20) if is_validated else None,
        progress=lambda _: weights.append(model.weight.detach().numpy().copy()),
    )
    averages = weights[:1]
    for steps, weight in enumerate(weights[1:], 1):
        kept = min(averaging, steps / (steps + 9))
        averages.append(kept * averages[-1] + (1 - kept) * weight)
    x, y = (part.numpy() for part in held_out)
    losses = [((x @ average - y) ** 2).mean() for average in averages]
    np.testing.assert_allclose(history.validation, losses if is_validated else [], rtol=1e-6)
    best = int(np.argmin(losses)) if is_validated else 39
    assert history.best_epoch.tolist() == [best]
    np.testing.assert_allclose(model.weight.detach().numpy(), averages[best], rtol=1e-6)


def test_a_batch_of_models_ends_as_each_one_alone() -> None:
    """Also if they stop at different epochs. In double precision, no two losses are as near as rounding moves them."""
    data, held_out = (
        [[part.double() for part in draw_data(rows, seed)] for seed in seeds]
        for rows, seeds in ((ROWS, (0, 5)), (20, (1, 6)))
    )
    alone = [Regression(seed=seed).double() for seed in (0, 1)]
    options = TrainingOptions(epochs=200, learning_rate=0.05, patience=2)
    histories = [
        train(model, TensorBatches(own, 8), options=options, validation=TensorBatches(other, 20))
        for model, own, other in zip(alone, data, held_out, strict=True)
    ]
    together = Regressions([Regression(seed=seed) for seed in (0, 1)]).double()
    stacked, stacked_out = ([torch.stack(each, 1) for each in zip(*pairs, strict=True)] for pairs in (data, held_out))
    history = train(together, TensorBatches(stacked, 8), options=options, validation=TensorBatches(stacked_out, 20))
    ends = [len(each.train) for each in histories]
    assert ends[0] != ends[1]
    assert history.best_epoch.tolist() == [int(each.best_epoch[0]) for each in histories]
    for number, model in enumerate(alone):
        torch.testing.assert_close(together.weight[number], model.weight)


def test_what_a_model_learns_after_it_has_stopped_is_not_kept() -> None:
    """Of a batch of two, the first stops after the third epoch; its loss would be lower in the fourth one."""
    models = Regressions([Regression(seed=0), Regression(seed=1)])
    best = BestWeights(models, torch.zeros(2), patience=2)
    for epoch, losses in enumerate([(1.0, 4.0), (2.0, 3.0), (2.0, 2.0), (0.5, 1.0)]):
        models.weight.data.fill_(epoch)
        best.update(epoch, torch.tensor(losses))
        assert best.stopped.tolist() == [epoch >= 2, False]
    assert best.weights["weight"][:, 0].tolist() == [0, 3]
    assert best.epochs.tolist() == [0, 3]


@pytest.mark.parametrize(("value", "name"), [(float("nan"), "nan"), (float("inf"), "inf")])
def test_a_loss_that_is_no_number_is_refused_with_its_batch(value: float, name: str) -> None:
    x, y = draw_data()
    y[20] = value
    with refuses(TrainingError, name, "epoch 1", "batch 3", 0.001):
        train(Regression(), TensorBatches((x, y), 8), TrainingOptions())


@pytest.mark.parametrize(("value", "name"), [(float("nan"), "nan"), (float("inf"), "inf"), (1e200, "inf")])
def test_validation_losses_of_which_none_is_finite_are_refused(value: float, name: str) -> None:
    x, y = draw_data(20, seed=1)
    y = y.double()
    y[3] = value
    with refuses(TrainingError, "validation", f"3 epochs is finite (the last one is {name})", 0.001):
        train(
            Regression(), TensorBatches(draw_data(), 8), TrainingOptions(epochs=3), validation=TensorBatches((x, y), 7)
        )


def test_the_best_epoch_is_one_with_a_finite_validation_loss() -> None:
    model = Regression()
    best = BestWeights(model, torch.tensor(0.0), patience=None)
    for epoch, loss in enumerate([float("nan"), float("-inf"), 2.0, float("inf")]):
        model.weight.data.fill_(epoch)
        best.update(epoch, torch.tensor(loss))
    assert (best.weights["weight"][0].item(), best.epochs.item()) == (2, 2)


def test_a_batch_that_memory_does_not_hold_is_refused() -> None:
    class Large(Regression):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return super().forward(x.expand(2**50, *x.shape).contiguous()[0], y)

    with refuses(TrainingError, "memory", "batch size", "layers"):
        train(Large(), TensorBatches(draw_data(), 8), TrainingOptions())


def test_weights_that_the_last_step_broke_are_refused() -> None:
    class Kinked(Regression):
        """Its loss is 0, where the square root has no derivative."""

        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return (super().forward(x, y)[0] * 0).sqrt(), torch.tensor(1.0)

    with refuses(TrainingError, "weight", "not finite", "last epoch, 1", 0.001):
        train(Kinked(), TensorBatches(draw_data(), ROWS), TrainingOptions(epochs=1))


def test_an_interrupt_without_a_folder_goes_to_the_caller() -> None:
    model = Regression()
    model.steps_left = 3
    with pytest.raises(KeyboardInterrupt):
        fit(model, epochs=5)


def test_a_state_that_cannot_be_saved_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a full disk, torch raises an error of its own. Nothing is left, and an interrupt promises nothing."""

    def fail(_: object, file: IO[bytes]) -> None:
        file.write(b"a part")
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598")

    monkeypatch.setattr(torch, "save", fail)
    history = fit(Regression(), tmp_path, epochs=3)
    assert len(history.train) == 3
    assert list(tmp_path.iterdir()) == []
    assert_states(caplog.text, tmp_path)
    interrupted = Regression()
    interrupted.steps_left = 10
    with pytest.raises(KeyboardInterrupt):
        fit(interrupted, tmp_path, epochs=3)


def test_the_state_of_another_training_is_refused(tmp_path: Path) -> None:
    x, y = draw_data()
    model = Regression()
    model.steps_left = 9
    with refuses(InterruptedTrainingError):
        train(model, TensorBatches((x, y), 8), TrainingOptions(), folder=tmp_path, identity="a")
    with refuses(TrainingError, "a different model or different data", tmp_path):
        train(Regression(), TensorBatches((x, y), 8), TrainingOptions(), folder=tmp_path, identity="b")
    with refuses(TrainingError, "options", tmp_path):
        train(Regression(), TensorBatches((x, y), 8), TrainingOptions(epochs=7), folder=tmp_path, identity="a")
    (tmp_path / FILE).write_bytes((tmp_path / FILE).read_bytes()[:100])
    with refuses(TrainingError, tmp_path / FILE):
        train(Regression(), TensorBatches((x, y), 8), TrainingOptions(), folder=tmp_path, identity="a")


@pytest.mark.parametrize(
    ("options", "facts"),
    [({"epochs": 0}, ["epochs", 0, 1]), ({"patience": 0}, ["patience"]), ({"learning_rate": float("nan")}, ["nan"]),
     ({"averaging": 1.0}, ["averaging", 0.9999]), ({"device": "tpu"}, ["tpu", "cpu"]),
     ({"precision": "fp8"}, ["fp8", "bf16"])],
)  # fmt: skip
def test_bad_options_are_refused(options: dict[str, Any], facts: list[object]) -> None:
    with refuses(UsageError, *facts):
        fit(Regression(), **options)
