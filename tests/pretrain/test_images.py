"""Training on images: the recipe part by part, whole runs, and restarts that leave no trace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
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
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file
from support.hub_server import serve
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR
from transformers import AutoImageProcessor, AutoModelForImageClassification, TrainerControl, TrainerState

import attngeo
from attngeo.errors import AttnGeoError, DataError, DataUnavailableError, InterruptedTrainingError, UsageError
from attngeo.pretrain.images import (
    ModelEMA,
    _Averaging,
    ema_decay,
    image_size,
    processor_of,
    schedule,
    soft_cross_entropy,
)
from attngeo.pretrain.imagesets import ImageSplit, ShuffledImages, open_images, pixels
from attngeo.pretrain.mixing import MixupCutmixCollator, box_of, cutmix, mixup
from attngeo.pretrain.runs import run
from attngeo.pretrain.settings import Settings
from attngeo.progress import Progress

VIT: dict[str, Any] = {
    "model_type": "vit", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
    "image_size": 16, "patch_size": 4,
}  # fmt: skip
SWIN: dict[str, Any] = {
    "model_type": "swin", "image_size": 16, "patch_size": 2, "embed_dim": 12, "depths": [1, 2], "num_heads": [2, 4],
    "window_size": 2,
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def write_images(folder: Path, labels: str = "ab", count: int = 6) -> Path:
    """PNGs of several sizes and modes, in a sub-folder for each label."""
    random = np.random.default_rng(0)
    for label in labels:
        (folder / label).mkdir(parents=True)
        for number in range(count):
            values = random.integers(0, 255, (20 + number, 30 - number, 3), dtype=np.uint8)
            Image.fromarray(values).convert(("RGB", "L", "RGBA")[number % 3]).save(folder / label / f"{number}.png")
    return folder


def write_config(folder: Path, config: dict[str, Any] = VIT) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return str(path)


def small_settings(folder: Path, *, config: dict[str, Any] = VIT, **given: Any) -> Settings:
    """Settings of a run of milliseconds a step."""
    fields = {"task": "image", "data": "digits", "steps": 4, "warmup": 1, "batch_size": 4, "lr": 1e-3, "log_every": 2,
              "save_every": 100}  # fmt: skip
    return Settings.of(write_config(folder, config), **(fields | given))


def weights_of(folder: Path, name: str = "model") -> dict[str, Tensor]:
    return load_file(folder / name / "model.safetensors")


# Whole runs


def test_digits_are_learned_from_a_symmetric_start(tmp_path: Path) -> None:
    """With all of the recipe, mixing and smoothing: three of four are right after seven epochs."""
    settings = Settings.of("vit-tiny", steps=150, batch_size=64, lr=3e-3, warmup=10, init="symmetric", log_every=50)
    result = run(settings, tmp_path / "run")
    summary = result.summary
    assert summary["eval_accuracy"] > 0.6
    assert 0.1 < summary["ema_accuracy"] < summary["eval_accuracy"]
    assert summary["eval_loss"] < summary["ema_loss"] < 2.3
    assert summary["images"] == 150 * 64
    assert summary["images_per_second"] == pytest.approx(summary["images"] / summary["seconds"], rel=0.05)
    assert summary["data"] == {
        "name": "digits", "images": 1437, "test_images": 360, "labels": 10, "label_column": "label", "channels": 1,
        "image_size": 8, "epochs": round(150 * 64 / 1437, 3), "ema_decay": ema_decay(0.998, 64, 150 / 23),
    }  # fmt: skip

    at_start = result.geometry[result.geometry["step"] == 0]
    assert at_start["symmetry"].tolist() == pytest.approx([1.0] * 3 * (1 + 4), abs=1e-6)
    assert all("k_proj.weight" in name or "key.weight" in name for name in summary["changed_at_init"])
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "run/model")
    assert [model.config.id2label[number] for number in range(10)] == list("0123456789")
    scored = attngeo.score(str(tmp_path / "run/model"), per_head=True)
    last = result.geometry[result.geometry["step"] == 150]
    assert last["symmetry"].tolist() == pytest.approx(scored["symmetry"].tolist(), abs=1e-6)

    # What was measured can be measured again from the saved folder alone: with its processor, on images as they come.
    data, right = open_images("digits"), {}
    processor = AutoImageProcessor.from_pretrained(tmp_path / "run/model")
    inputs = processor(data.test["image"][:], return_tensors="pt")
    for name, key in (("model", "eval_accuracy"), ("model-ema", "ema_accuracy")):
        with torch.no_grad():
            saved = AutoModelForImageClassification.from_pretrained(tmp_path / "run" / name).eval()
            right[key] = (
                (saved(**inputs).logits.argmax(-1) == torch.tensor(data.test["label"][:])).float().mean().item()
            )
    assert right == pytest.approx({key: summary[key] for key in right}, abs=1e-6)


FAMILIES = [*(VIT | {"model_type": name} for name in ("vit", "deit", "beit", "dinov2")), SWIN]


@pytest.mark.parametrize("config", FAMILIES, ids=lambda config: config["model_type"])
def test_a_folder_of_pngs_trains_other_families(config: dict[str, Any], tmp_path: Path) -> None:
    data = write_images(tmp_path / "images", "abc")
    result = run(small_settings(tmp_path, config=config, data=str(data), init="symmetric"), tmp_path / "run")
    about = result.summary["data"]
    assert (about["images"], about["test_images"], about["labels"], about["channels"]) == (16, 2, 3, 3)
    assert result.summary["start"]["heads"]["symmetry"] == pytest.approx([1.0] * 3, abs=1e-6)
    assert result.geometry["loss"].dropna().between(0, 3).all()
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "run/model")
    assert list(model.config.id2label.values()) == ["a", "b", "c"]


def interrupted_at(step: int) -> Callable[[Progress], None]:
    """A callback that presses Ctrl-C at a log."""

    def interrupt(progress: Progress) -> None:
        if progress.phase == "train" and progress.done == step:
            signal.raise_signal(signal.SIGINT)

    return interrupt


def test_an_interrupted_run_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    """Bit for bit, with dropout: also the average, which moves at steps 33 and 65, and the loss between logs."""
    dropout = VIT | {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.1}
    settings = small_settings(tmp_path, config=dropout, steps=70, warmup=3, log_every=8, grad_accum=2)
    whole = run(settings, tmp_path / "whole")
    with pytest.raises(InterruptedTrainingError, match="stopped at step 41 of 70"):
        run(settings, tmp_path / "parts", progress=interrupted_at(40))
    resumed = run(settings, tmp_path / "parts", resume=True)
    pd.testing.assert_frame_equal(resumed.geometry, whole.geometry)
    for name in ("model", "model-ema"):
        parts = weights_of(tmp_path / "parts", name)
        for key, weight in weights_of(tmp_path / "whole", name).items():
            assert torch.equal(weight, parts[key]), key
    measured = {key: value for key, value in whole.summary.items() if key.startswith(("eval_", "ema_"))}
    assert measured == {key: resumed.summary[key] for key in measured}
    assert len(measured) == 4
    assert resumed.summary["images"] == whole.summary["images"] == 70 * 8


def test_accumulated_batches_are_one_batch(tmp_path: Path) -> None:
    whole, parts = (
        run(small_settings(tmp_path, steps=6, mixup=0.0, cutmix=0.0, **sizes), tmp_path / name)
        for name, sizes in (("whole", {"batch_size": 32}), ("parts", {"batch_size": 8, "grad_accum": 4}))
    )
    pd.testing.assert_frame_equal(whole.geometry, parts.geometry, rtol=1e-3, atol=1e-4)
    assert whole.summary["eval_loss"] == pytest.approx(parts.summary["eval_loss"], abs=1e-3)


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path: Path) -> None:
    first, again, other = (
        run(small_settings(tmp_path, seed=seed), tmp_path / name) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    pd.testing.assert_frame_equal(first.geometry, again.geometry)
    assert first.summary["final_loss"] != other.summary["final_loss"]


def test_epochs_are_passes_over_the_images(tmp_path: Path) -> None:
    data = write_images(tmp_path / "images")  # 11 to train on: 3 steps of 4 in an epoch
    settings = small_settings(tmp_path, data=str(data), steps=None, warmup=None, epochs=4, warmup_epochs=2)
    summary = run(settings, tmp_path / "run").summary
    assert (summary["settings"]["steps"], summary["settings"]["warmup"]) == (12, 6)
    assert summary["data"]["ema_decay"] == pytest.approx(1 - 2e-5 * 4 * 32 / 4)


# Data


def test_digits_end_with_those_to_test_on() -> None:
    from sklearn.datasets import load_digits

    data, raw = open_images("digits"), load_digits()
    assert data.train["label"][:] + data.test["label"][:] == raw.target.tolist()
    assert (len(data.train), len(data.test), data.channels) == (1437, 360, 1)
    image, label = ImageSplit(data, "test", 8)[0]
    assert label == raw.target[1437]
    assert image.shape == (1, 8, 8)
    assert torch.allclose(image[0], torch.tensor(raw.images[1437]).float() / 8 - 1, atol=2 / 255)


@pytest.mark.parametrize("name", ["test", "validation", "val"])
def test_a_folder_may_say_what_to_test_on(name: str, tmp_path: Path) -> None:
    write_images(tmp_path / "images/train", "abc", count=5)
    write_images(tmp_path / "images" / name, "abc", count=2)
    data = open_images(str(tmp_path / "images"))
    assert (len(data.train), len(data.test), data.labels) == (15, 6, ["a", "b", "c"])


def test_otherwise_a_tenth_is_held_out_by_the_seed(tmp_path: Path) -> None:
    folder = str(write_images(tmp_path / "images", count=20))
    held_out = []
    for seed in (0, 0, 1):
        data = open_images(folder, seed=seed)
        train, test = ([pixels(row["image"], 8, 3) for row in rows] for rows in (data.train, data.test))
        assert (len(train), len(test)) == (36, 4)
        assert not any(torch.equal(a, b) for a in train for b in test)
        held_out.append(torch.stack(test))
    assert torch.equal(held_out[0], held_out[1])
    assert not torch.equal(held_out[0], held_out[2])


def hub_set(splits: dict[str, list[Any]], label: Any, columns: tuple[str, str] = ("image", "label")) -> Any:
    """What `datasets.load_dataset` gives, with these labels in each split."""
    features = datasets.Features({columns[0]: datasets.Image(), columns[1]: label})
    return datasets.DatasetDict(
        {
            name: datasets.Dataset.from_dict(
                {columns[0]: [Image.new("L", (5, 7), 9 * number) for number in range(len(labels))], columns[1]: labels},
                features=features,
            )
            for name, labels in splits.items()
        }
    )


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """A Hub that has one data set."""

    def publish(found: Any) -> None:
        class Builder:
            info = datasets.DatasetInfo(features=next(iter(found.values())).features)

            def download_and_prepare(self) -> None:
                """Have it already."""

            def as_dataset(self, split: str | None = None) -> Any:
                return found if split is None else found[split]

        monkeypatch.setattr(datasets, "load_dataset_builder", lambda *_, **__: Builder())

    return publish


def test_cifar10_comes_from_the_hub(tmp_path: Path) -> None:
    """Through the libraries themselves, which read where the Hub is when they are imported."""
    found = hub_set({"train": [1, 0, 1], "test": [0]}, datasets.ClassLabel(names=["cat", "dog"]), ("img", "label"))
    for name, rows in found.items():
        rows.to_parquet(tmp_path / f"cifar10/plain_text/{name}-00000-of-00001.parquet")
    script = """if True:
        from attngeo.pretrain.imagesets import ImageSplit, open_images
        data = open_images("cifar10")
        image, label = ImageSplit(data, "train", 8)[1]
        print(data.image, data.label, data.labels, data.channels, len(data.train), len(data.test), label)
        print(*image.shape, round((image[0, 0, 0].item() + 1) * 127.5))
    """
    with serve() as server:
        server.repositories["datasets/uoft-cs/cifar10"] = tmp_path / "cifar10"
        environment = {
            **os.environ,
            "HF_ENDPOINT": server.url,
            "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_OFFLINE": "0",
        }
        ran = subprocess.run(
            [sys.executable, "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )
    assert (ran.stdout.splitlines(), ran.stderr) == (["img label ['cat', 'dog'] 3 3 1 0", "3 8 8 9"], "")


def test_images_whose_labels_are_secret_are_not_tested_on(hub: Callable[[Any], None]) -> None:
    """As ImageNet's test split: validation takes its place."""
    classes = datasets.ClassLabel(names=["cat", "dog"])
    hub(hub_set({"train": [0, 1], "test": [-1, -1, -1], "validation": [1, 0, 1, 0]}, classes))
    assert len(open_images("org/name:config@v1").test) == 4


def test_labels_may_be_words_in_a_split_of_any_name(hub: Callable[[Any], None]) -> None:
    hub(hub_set({"small": ["dog", "cat"], "test": ["eel"]}, datasets.Value("string")))
    data = open_images("org/name#small")
    assert data.labels == ["cat", "dog", "eel"]
    assert [ImageSplit(data, split, 8)[0][1] for split in ("train", "test")] == [1, 2]


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "LA", "1"])
@pytest.mark.parametrize("shape", [(8, 8), (20, 13), (5, 31)])
def test_the_saved_processor_makes_the_same_pixels(mode: str, shape: tuple[int, int]) -> None:
    image = Image.fromarray(np.random.default_rng(1).integers(0, 255, (*shape, 4), dtype=np.uint8), "RGBA").convert(
        mode
    )
    expected = processor_of(8, 3)(image, return_tensors="pt")["pixel_values"][0]
    assert torch.equal(pixels(image, 8, 3), expected)
    if mode == "L":
        expected = processor_of(8, 1)(image, return_tensors="pt")["pixel_values"][0]
        assert torch.equal(pixels(image, 8, 1), expected)


def test_every_epoch_has_every_image_once_in_an_order_of_the_seed() -> None:
    pictures = ImageSplit(open_images("digits"), "test", 8)
    seen = [
        [(item["pixel_values"].sum().item(), item["label"]) for item in ShuffledImages(pictures, 720, seed)]
        for seed in (0, 1)
    ]
    once = sorted((image.sum().item(), label) for image, label in pictures)
    for items in seen:
        assert sorted(items[:360]) == sorted(items[360:]) == once
        assert items[:360] != items[360:]
    assert seen[0] != seen[1]
    again = ShuffledImages(pictures, 720, 0)
    assert [again[index]["index"] for index in (500, 3)] == [500, 3]
    assert again[500]["pixel_values"].sum().item() == seen[0][500][0]


# MixupCutmixCollator


def examples(count: int, labels: int, size: int, first: int = 0) -> list[dict[str, Any]]:
    """Images of one value each, so that what comes from where can be seen."""
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
    top, bottom, left, right = box = box_of(share, height, width, random)
    assert 0 <= top <= bottom <= height
    assert 0 <= left <= right <= width
    assert (bottom - top) * (right - left) <= (1 - share) * height * width + 1e-9
    mixed, shares = cutmix(images, targets, box)
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


# The recipe


@pytest.mark.parametrize(("warmup", "steps"), [(0, 20), (7, 30), (10, 11), (5, 5)])
def test_the_schedule_is_that_of_pytorch(warmup: int, steps: int) -> None:
    ours, theirs = (torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=3e-3) for _ in range(2))
    schedule_of_ours = schedule(ours, warmup, steps)

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


def test_the_average_is_its_recurrence() -> None:
    """A copy every 32 steps during warm-up and once after it; from then on decay · average + (1 − decay) · weights."""
    model, decay, warmup = torch.nn.Linear(3, 2), 0.9, 40
    average: Any = ModelEMA(model, decay)  # type: ignore[arg-type]
    callback, state = _Averaging(average, warmup), TrainerState()
    expected = model.weight.detach().clone()
    copied = False
    for step in range(1, 200):
        torch.nn.init.normal_(model.weight)
        state.global_step = step
        callback.on_step_end(None, state, TrainerControl(), model=model)  # type: ignore[arg-type]
        if step % 32 == 1:
            expected = (
                decay * expected + (1 - decay) * model.weight.detach() if copied else model.weight.detach().clone()
            )
            copied = step > warmup
        assert torch.allclose(average.model.weight, expected, atol=1e-6)
    assert average.n_averaged == 5  # at 65, 97, 129, 161 and 193


def test_the_decay_is_adjusted_to_batch_and_epochs() -> None:
    """The numbers of torchvision's own ViT-B/16: 8 GPUs × 64 images, 32 steps, 300 epochs."""
    assert ema_decay(0.99998, 512, 300) == pytest.approx(1 - (1 - 0.99998) * 512 * 32 / 300)
    assert ema_decay(0.99998, 128, 500) == pytest.approx(1 - 2e-5 * 8.192)
    assert ema_decay(0.99998, 10**6, 1) == 0


@given(st.integers(2, 6), st.floats(0, 0.9), st.integers(0, 10**6))
def test_labels_and_whole_shares_have_the_same_loss(labels: int, smoothing: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits, numbers = torch.randn(5, labels, generator=generator), torch.randint(labels, (5,), generator=generator)
    whole = torch.nn.functional.one_hot(numbers, labels).float()
    smoothed = (1 - smoothing) * whole + smoothing / labels
    by_hand = -(smoothed * logits.log_softmax(-1)).sum(-1).mean()
    for targets in (numbers, whole):
        assert soft_cross_entropy(logits, targets, smoothing).item() == pytest.approx(by_hand.item(), abs=1e-5)


# Faults


@pytest.mark.parametrize(
    ("make", "error", "expected"),
    [
        (lambda folder: folder / "none", DataUnavailableError, "no such folder; give one"),
        (lambda folder: write_config(folder), DataError, "is a file, expected a folder with a sub-folder"),
        (lambda folder: folder / "empty", DataError, "holds no images"),
        (lambda folder: write_images(folder / "one", "a"), DataError, "have no labels, its columns are image"),
        (lambda folder: write_images(folder / "few", count=2), DataError, "has 3 images to train on, .* batch of 4"),
        (lambda _: "org name", DataUnavailableError, "no such folder; give one"),
        (lambda _: "~nobody/images", DataUnavailableError, "no such folder; give one"),
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
        run(small_settings(tmp_path, data=reference), tmp_path / "run")
    assert reference in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_a_hub_that_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataUnavailableError, match=r"^cifar10\b.*\boffline mode") as raised:
        run(small_settings(tmp_path, data="cifar10"), tmp_path / "run")
    assert "\n" not in str(raised.value)


def test_data_sets_of_other_kinds(hub: Callable[[Any], None]) -> None:
    classes = datasets.ClassLabel(names=["cat", "dog"])
    hub(datasets.DatasetDict(train=datasets.Dataset.from_dict({"text": ["a"], "label": [1]})))
    with pytest.raises(DataError, match="org/name holds no images; its columns are text, label"):
        open_images("org/name")
    hub(hub_set({"all": [0, 1]}, classes))
    with pytest.raises(DataError, match="no split 'train'; its splits are all; choose one with org/name#SPLIT"):
        open_images("org/name")
    hub(hub_set({"train": [0, -1]}, classes))
    with pytest.raises(DataError, match="some of its images to train on have no label"):
        open_images("org/name")
    hub(hub_set({"train": [3, 3]}, datasets.Value("int64")))
    with pytest.raises(DataError, match="have one label, '3', expected two at least"):
        open_images("org/name")


@pytest.mark.parametrize("decoders", [0, 2])
def test_a_broken_image_is_named(decoders: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, also where other processes decode."""
    data = write_images(tmp_path / "images/train", count=5)
    write_images(tmp_path / "images/test", count=1)
    (data / "b/3.png").write_text("no image")
    monkeypatch.setattr("attngeo.pretrain.images.decoders", lambda _: decoders)
    with pytest.raises(DataError, match=r"images: .*b/3\.png cannot be decoded \(.*\); replace it") as raised:
        run(small_settings(tmp_path, data=str(data.parent)), tmp_path / "run")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"patch_size": 5}, "patch_size 5 does not divide image_size 16"),
        ({"image_size": [16, 8]}, "image_size is 16 × 8, expected a square"),
        ({"model_type": "bert"}, "no head of model type 'bert' to classify images"),
    ],
)
def test_models_that_cannot_take_the_images(config: dict[str, Any], expected: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=expected):
        run(small_settings(tmp_path, config=VIT | config), tmp_path / "run")


def test_sizes_may_be_pairs_or_those_of_a_tower() -> None:
    from transformers import CLIPConfig, DPTConfig, ViTConfig

    assert image_size(ViTConfig(image_size=[32, 32], patch_size=[8, 4]), "") == 32
    assert image_size(CLIPConfig(vision_config={"image_size": 48, "patch_size": 12}), "") == 48
    assert image_size(DPTConfig(), "") > 0


def test_a_warm_up_longer_than_the_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="warmup_epochs is 4, here 48 steps, expected at most the 20 of the run"):
        run(Settings.of("vit-tiny", steps=20, warmup=0, warmup_epochs=4), tmp_path / "run")
