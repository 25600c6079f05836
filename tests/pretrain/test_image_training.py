"""A training run on images: the run, the average of the weights, mixup and cutmix, the schedule."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, strategies as st
from safetensors.torch import load_file
from support.images import VIT, small_image_options, write_images, write_vit_config
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR
from transformers import AutoImageProcessor, AutoModelForImageClassification, TrainerControl, TrainerState

import attngeo
from attngeo.errors import AttnGeoError, DataError, DataUnavailableError, InterruptedTrainingError, UsageError
from attngeo.pretrain import ImagePretrainOptions
from attngeo.pretrain.image_data import open_images
from attngeo.pretrain.image_training import (
    MixupCutmixCollator,
    UpdateEMA,
    adapt_decay,
    cutmix,
    draw_box,
    make_schedule,
    mixup,
    read_image_size,
    soft_cross_entropy,
    start_average,
)
from attngeo.pretrain.runs import run
from attngeo.progress import Progress

SWIN: dict[str, Any] = {
    "model_type": "swin", "image_size": 16, "patch_size": 2, "embed_dim": 12, "depths": [1, 2], "num_heads": [2, 4],
    "window_size": 2,
}  # fmt: skip


def weights_of(folder: Path, name: str = "model") -> dict[str, Tensor]:
    return load_file(folder / name / "model.safetensors")


def test_digits_are_learned_from_a_symmetric_start(tmp_path: Path) -> None:
    """With the whole recipe, mixing and smoothing; for so few steps that rounding does not grow to another model."""
    options = ImagePretrainOptions.of(
        "vit-tiny", steps=40, batch_size=64, lr=3e-3, warmup=10, init="symmetric", log_every=20
    )
    result = run(options, tmp_path / "run")
    summary = result.summary
    # Guesses are right for a tenth of the 360 images, with a deviation of 0.016.
    assert min(summary["eval_accuracy"], summary["ema_accuracy"]) > 0.1 + 6 * 0.016
    # Each step still helps, so that the average is behind; guesses have the loss log 10.
    assert summary["eval_loss"] < summary["ema_loss"] < math.log(10) - 0.1
    assert summary["images"] == 40 * 64
    assert summary["images_per_second"] > 0
    assert summary["data"] == {
        "name": "digits", "images": 1437, "test_images": 360, "labels": 10, "label_column": "label", "channels": 1,
        "image_size": 8, "epochs": round(40 * 64 / 1437, 3), "ema_decay": adapt_decay(0.998, 64, 40 / 23),
    }  # fmt: skip

    at_start = result.rows[result.rows["step"] == 0]
    assert at_start["symmetry"].tolist() == pytest.approx([1.0] * 3 * (1 + 4), abs=1e-6)
    assert all("k_proj.weight" in name or "key.weight" in name for name in summary["changed_at_init"])
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "run/model")
    assert [model.config.id2label[number] for number in range(10)] == list("0123456789")
    scored = attngeo.score(str(tmp_path / "run/model"), per_head=True)
    last = result.rows[result.rows["step"] == 40]
    assert last["symmetry"].tolist() == pytest.approx(scored["symmetry"].tolist(), abs=1e-6)

    # The saved folder alone, with its processor and the images as they are, gives the same accuracy, but for images
    # whose two largest logits float32 cannot tell apart.
    data = open_images("digits")
    labels = torch.tensor(data.test["label"][:])
    processor = AutoImageProcessor.from_pretrained(tmp_path / "run/model")
    inputs = processor(data.test["image"][:], return_tensors="pt")
    for name, key in (("model", "eval_accuracy"), ("model-ema", "ema_accuracy")):
        with torch.no_grad():
            saved = AutoModelForImageClassification.from_pretrained(tmp_path / "run" / name).eval()
            logits = saved(**inputs).logits
        accuracy = (logits.argmax(-1) == labels).float().mean().item()
        first, second = logits.topk(2).values.T
        assert abs(accuracy - summary[key]) <= (first - second < 1e-4).float().mean().item() + 1e-6


FAMILIES = [
    VIT,
    SWIN,
    *(pytest.param(VIT | {"model_type": name}, marks=pytest.mark.slow) for name in ("deit", "beit", "dinov2")),
]


@pytest.mark.parametrize("config", FAMILIES, ids=lambda config: config["model_type"])
def test_a_folder_of_pngs_trains_other_families(config: dict[str, Any], tmp_path: Path) -> None:
    data = write_images(tmp_path / "images", "abc")
    result = run(small_image_options(tmp_path, config=config, data=str(data), init="symmetric"), tmp_path / "run")
    about = result.summary["data"]
    assert (about["images"], about["test_images"], about["labels"], about["channels"]) == (16, 2, 3, 3)
    assert result.summary["start"]["heads_symmetry_min"] == pytest.approx(1.0, abs=1e-6)
    assert result.rows["loss"].dropna().between(0, 3).all()
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "run/model")
    assert list(model.config.id2label.values()) == ["a", "b", "c"]


def interrupted_at(step: int) -> Callable[[Progress], None]:
    """A callback that presses Ctrl-C at a log."""

    def interrupt(progress: Progress) -> None:
        if progress.phase == "train" and progress.done == step:
            signal.raise_signal(signal.SIGINT)

    return interrupt


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    """Bit for bit, with dropout: also the average, which moves at steps 33 and 65, and the loss between logs."""
    dropout = VIT | {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.1}
    data = str(write_images(tmp_path / "images", "abc"))
    options = small_image_options(tmp_path, config=dropout, data=data, steps=70, warmup=3, log_every=8, grad_accum=2)
    whole = run(options, tmp_path / "whole")
    with pytest.raises(InterruptedTrainingError, match="step 41 of 70"):
        run(options, tmp_path / "parts", progress=interrupted_at(40))
    resumed = run(options, tmp_path / "parts", resume=True)
    pd.testing.assert_frame_equal(resumed.rows, whole.rows)
    for name in ("model", "model-ema"):
        parts = weights_of(tmp_path / "parts", name)
        for key, weight in weights_of(tmp_path / "whole", name).items():
            assert torch.equal(weight, parts[key]), key
    measured = {key: value for key, value in whole.summary.items() if key.startswith(("eval_", "ema_"))}
    assert measured == {key: resumed.summary[key] for key in measured}
    assert len(measured) == 4
    assert resumed.summary["images"] == whole.summary["images"] == 70 * 8


def test_accumulated_batches_are_one_batch(tmp_path: Path) -> None:
    """Adam turns rounding of small gradients into whole steps, which move weights, but to first order not the loss."""
    data = str(write_images(tmp_path / "images", "abc", count=14))
    fields = {"data": data, "steps": 3, "log_every": 1, "mixup": 0.0, "cutmix": 0.0}
    whole, parts = (
        run(small_image_options(tmp_path, **fields, **sizes), tmp_path / name)
        for name, sizes in (("whole", {"batch_size": 32}), ("parts", {"batch_size": 8, "grad_accum": 4}))
    )
    losses, others = (each.rows.groupby("step")["loss"].first().dropna().tolist() for each in (whole, parts))
    assert losses[0] == pytest.approx(others[0], rel=1e-5)  # of the same weights
    assert losses == pytest.approx(others, rel=1e-4)
    assert whole.summary["eval_loss"] == pytest.approx(parts.summary["eval_loss"], rel=1e-4)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path: Path) -> None:
    data = str(write_images(tmp_path / "images"))
    first, again, other = (
        run(small_image_options(tmp_path, data=data, steps=2, seed=seed), tmp_path / name)
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    pd.testing.assert_frame_equal(first.rows, again.rows)
    assert first.summary["final_loss"] != other.summary["final_loss"]


def test_epochs_are_passes_over_the_images(tmp_path: Path) -> None:
    data = write_images(tmp_path / "images")  # 11 to train on: 3 steps of 4 in an epoch
    options = small_image_options(tmp_path, data=str(data), steps=None, warmup=None, epochs=4, warmup_epochs=2)
    summary = run(options, tmp_path / "run").summary
    assert (summary["settings"]["steps"], summary["settings"]["warmup"]) == (12, 6)
    assert summary["data"]["ema_decay"] == pytest.approx(1 - 2e-5 * 4 * 32 / 4)


@pytest.mark.parametrize(
    ("make", "error", "expected"),
    [
        (lambda folder: folder / "none", DataUnavailableError, "none"),
        (lambda folder: write_vit_config(folder), DataError, "config.json"),
        (lambda folder: folder / "empty", DataError, "empty"),
        (lambda folder: write_images(folder / "one", "a"), DataError, "columns are image"),
        (lambda folder: write_images(folder / "few", count=2), DataError, " 3 training images.* batch of 4"),
        (lambda _: "org name", DataUnavailableError, "org name"),
        (lambda _: "~nobody/images", DataUnavailableError, "~nobody"),
    ],
    ids=["missing", "file", "empty", "no-labels", "too-few", "name", "nobody"],
)  # fmt: skip
def test_data_that_cannot_be_trained_on(
    make: Callable[[Path], Any], error: type[AttnGeoError], expected: str, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/notes.txt").write_text("no image")
    reference = str(make(tmp_path))
    with pytest.raises(error, match=expected) as raised:
        run(small_image_options(tmp_path, data=reference), tmp_path / "run")
    assert reference in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_a_hub_that_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataUnavailableError, match="cifar10") as raised:
        run(small_image_options(tmp_path, data="cifar10"), tmp_path / "run")
    assert "\n" not in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_image_is_named(workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, also if other processes decode."""
    data = write_images(tmp_path / "images/train", count=5)
    write_images(tmp_path / "images/test", count=1)
    (data / "b/3.png").write_text("no image")
    monkeypatch.setattr("attngeo.pretrain.image_training.image_workers", lambda _: workers)
    with pytest.raises(DataError, match=r"b/3\.png") as raised:
        run(small_image_options(tmp_path, data=str(data.parent)), tmp_path / "run")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"patch_size": 5}, r"image_size is \[16\] and patch_size \[5\]"),
        ({"image_size": [16, 8]}, r"image_size is \[16, 8\]"),
        ({"model_type": "bert"}, "'bert'"),
    ],
)
def test_models_that_cannot_take_the_images(config: dict[str, Any], expected: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=expected):
        run(small_image_options(tmp_path, config=VIT | config), tmp_path / "run")


def test_sizes_may_be_pairs_or_those_of_a_tower() -> None:
    from transformers import CLIPConfig, DPTConfig, ViTConfig

    assert read_image_size(ViTConfig(image_size=[32, 32], patch_size=[8, 4]), "") == 32
    assert read_image_size(CLIPConfig(vision_config={"image_size": 48, "patch_size": 12}), "") == 48
    assert read_image_size(DPTConfig(), "") > 0


def test_a_warm_up_longer_than_the_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"warmup_epochs is 4.* 48 .* 20 "):
        run(ImagePretrainOptions.of("vit-tiny", steps=20, warmup=0, warmup_epochs=4), tmp_path / "run")


def test_the_average_is_its_recurrence() -> None:
    """A copy every 32 steps during warm-up and once after it; from then on decay · average + (1 − decay) · weights."""
    model, decay, warmup = torch.nn.Linear(3, 2), 0.9, 40
    average: Any = start_average(model, decay)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    callback, state = UpdateEMA(average, warmup), TrainerState()
    expected = model.weight.detach().clone()
    copied = False
    for step in range(1, 200):
        torch.nn.init.normal_(model.weight, generator=generator)
        state.global_step = step
        callback.on_step_end(None, state, TrainerControl(), model=model)  # type: ignore[arg-type]
        if step % 32 == 1:
            expected = (
                decay * expected + (1 - decay) * model.weight.detach() if copied else model.weight.detach().clone()
            )
            copied = step > warmup
        assert torch.allclose(average.module.weight, expected, atol=1e-6)
    assert average.n_averaged == 5  # at 65, 97, 129, 161 and 193


def test_the_decay_is_adjusted_to_batch_and_epochs() -> None:
    """The numbers of torchvision's own ViT-B/16: 8 GPUs × 64 images, 32 steps, 300 epochs."""
    assert adapt_decay(0.99998, 512, 300) == pytest.approx(1 - (1 - 0.99998) * 512 * 32 / 300)
    assert adapt_decay(0.99998, 128, 500) == pytest.approx(1 - 2e-5 * 8.192)
    assert adapt_decay(0.99998, 10**6, 1) == 0


def examples(count: int, labels: int, size: int, first: int = 0) -> list[dict[str, Any]]:
    """Images of one value each, which shows the source of every pixel of a mixed image."""
    return [
        {"pixel_values": torch.full((3, size, size), float(place)), "label": place % labels, "index": first + place}
        for place in range(count)
    ]


batches = st.tuples(st.integers(1, 6), st.integers(2, 5), st.integers(1, 9), st.integers(0, 10**6))


@given(batches, st.sampled_from([(0.2, 1.0), (0.2, 0.0), (0.0, 1.0), (0.0, 0.0), (5.0, 5.0)]), st.integers(0, 99))
def test_targets_are_shares_of_what_is_in_the_image(
    batch: tuple[int, int, int, int], alphas: tuple[float, float], seed: int
) -> None:
    """Mean of each image = Σ target · value, as every image has one value: true of mixup, and of cutmix by area."""
    count, labels, size, first = batch
    collate = MixupCutmixCollator(labels, *alphas, seed)
    mixed = collate(examples(count, labels, size, first))
    targets = mixed["targets"]
    assert targets.shape == (count, labels)
    assert torch.allclose(targets.sum(1), torch.ones(count))
    assert targets.min() >= 0
    before = torch.arange(count).roll(1).float()
    means = mixed["pixel_values"].mean((1, 2, 3))
    own = torch.where(before == torch.arange(count), 1.0, (means - before) / (torch.arange(count) - before))
    expected = torch.zeros(count, labels)
    for place in range(count):
        expected[place, place % labels] += own[place]
        expected[place, (place - 1) % count % labels] += 1 - own[place]
    assert torch.allclose(targets, expected, atol=1e-5)
    again = collate(examples(count, labels, size, first))
    assert all(torch.equal(mixed[name], again[name]) for name in mixed)
    if alphas == (0.0, 0.0):
        assert torch.equal(own, torch.ones(count))


@given(st.floats(0, 1), st.integers(0, 10**6))
def test_mixup_is_convex(share: float, seed: int) -> None:
    images, targets = torch.rand(4, 3, 5, 5, generator=torch.Generator().manual_seed(seed)), torch.eye(4)
    mixed, shares = mixup(images, targets, share)
    before = images.roll(1, 0)
    assert torch.allclose(mixed, share * images + (1 - share) * before, atol=1e-6)
    assert (mixed <= torch.maximum(images, before) + 1e-6).all()
    assert (mixed >= torch.minimum(images, before) - 1e-6).all()
    assert torch.allclose(shares.diagonal(), torch.full((4,), share), atol=1e-6)


@given(st.floats(0, 1), st.integers(1, 12), st.integers(1, 12), st.integers(0, 10**6))
def test_cutmix_pastes_the_area_that_the_label_says(share: float, height: int, width: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    images, targets = torch.arange(3.0)[:, None, None, None].expand(3, 2, height, width), torch.eye(3)
    rows, columns = draw_box(share, height, width, random)
    assert 0 <= rows.start <= rows.stop <= height
    assert 0 <= columns.start <= columns.stop <= width
    area = (rows.stop - rows.start) * (columns.stop - columns.start)
    assert area <= (1 - share) * height * width + 1e-9
    mixed, shares = cutmix(images, targets, rows, columns)
    for place in range(3):
        pasted = (mixed[place] == (place - 1) % 3).float().mean().item()
        assert shares[place, (place - 1) % 3].item() == pytest.approx(pasted, abs=1e-6)
        assert shares[place, place].item() == pytest.approx(1 - pasted, abs=1e-6)
    assert images.unique().tolist() == [0.0, 1.0, 2.0]  # the batch itself is left alone


def test_a_batch_is_mixed_by_its_first_image_and_the_seed_alone() -> None:
    collate, other = MixupCutmixCollator(4, 0.2, 1.0, seed=0), MixupCutmixCollator(4, 0.2, 1.0, seed=1)
    firsts = range(0, 4000, 4)
    torch.manual_seed(0)
    drawn = [collate(examples(4, 4, 8, first))["targets"] for first in firsts]
    torch.manual_seed(1)
    np.random.seed(1)
    assert all(torch.equal(collate(examples(4, 4, 8, 4 * n))["targets"], drawn[n]) for n in (999, 0, 500))
    assert len({tuple(targets.flatten().tolist()) for targets in drawn}) > 500
    assert not torch.equal(
        torch.stack(drawn[:9]), torch.stack([other(examples(4, 4, 8, n))["targets"] for n in firsts[:9]])
    )
    mixed_up = [bool((collate(examples(4, 4, 8, first))["pixel_values"] % 1).any()) for first in firsts]
    assert 0.35 < np.mean(mixed_up) < 0.55  # half of them, but for shares too close to 1 to be seen


@pytest.mark.parametrize(("warmup", "steps"), [(0, 20), (7, 30), (10, 11), (5, 5)])
def test_the_schedule_is_that_of_pytorch(warmup: int, steps: int) -> None:
    ours, theirs = (torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=3e-3) for _ in range(2))
    schedule_of_ours = make_schedule(ours, warmup, steps)

    def reference() -> Iterator[float]:
        if warmup:
            linear = LinearLR(theirs, start_factor=0.033, total_iters=warmup)
            for _ in range(warmup):
                yield theirs.param_groups[0]["lr"]
                theirs.step()
                linear.step()
        cosine = CosineAnnealingLR(theirs, T_max=max(steps - warmup, 1))
        while True:
            yield theirs.param_groups[0]["lr"]
            theirs.step()
            cosine.step()

    for expected in islice(reference(), steps + 1 if steps > warmup else steps):
        assert ours.param_groups[0]["lr"] == pytest.approx(expected, rel=1e-9, abs=1e-12)
        ours.step()
        schedule_of_ours.step()
    if steps > warmup:
        assert expected == pytest.approx(0, abs=1e-12)


@given(st.integers(2, 6), st.floats(0, 0.9), st.integers(0, 10**6))
def test_labels_and_whole_shares_have_the_same_loss(labels: int, smoothing: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits, numbers = torch.randn(5, labels, generator=generator), torch.randint(labels, (5,), generator=generator)
    whole = torch.nn.functional.one_hot(numbers, labels).float()
    smoothed = (1 - smoothing) * whole + smoothing / labels
    by_hand = -(smoothed * logits.log_softmax(-1)).sum(-1).mean()
    for targets in (numbers, whole):
        assert soft_cross_entropy(logits, targets, smoothing).item() == pytest.approx(by_hand.item(), abs=1e-5)
