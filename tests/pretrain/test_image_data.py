"""Where images come from, and how a model takes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from support.hub_server import serve
from support.images import write_images
from torch import Tensor

from attngeo.errors import DataError
from attngeo.pretrain.image_data import ImageSplit, ShuffledImages, convert_mode, make_processor, open_images


def decode_all(images: ImageSplit | ShuffledImages) -> list[Any]:
    return [*images.__getitems__(range(len(images)))]


def test_digits_end_with_those_to_test_on() -> None:
    from sklearn.datasets import load_digits

    data, raw = open_images("digits"), load_digits()
    assert data.train["label"][:] + data.test["label"][:] == raw.target.tolist()
    assert (len(data.train), len(data.test), data.channels) == (1437, 360, 1)
    ((image, label),) = ImageSplit(data, "test", make_processor(8, 1)).__getitems__([0])
    assert label == raw.target[1437]
    assert image.shape == (1, 8, 8)
    assert torch.allclose(image[0], torch.tensor(raw.images[1437]).float() / 8 - 1, atol=2 / 255)


@pytest.mark.parametrize("name", ["test", "validation", "val"])
def test_a_folder_may_say_what_to_test_on(name: str, tmp_path: Path) -> None:
    write_images(tmp_path / "images/train", "abc", count=5)
    write_images(tmp_path / "images" / name, "abc", count=2)
    data = open_images(str(tmp_path / "images"))
    assert (len(data.train), len(data.test), data.labels) == (15, 6, ["a", "b", "c"])


def test_a_link_in_a_folder_is_no_second_image(tmp_path: Path) -> None:
    """It would be in the training and in the test images. An image may have two labels."""
    folder = write_images(tmp_path / "images", count=5)
    (folder / "a/link.png").symlink_to(folder / "a/0.png")
    (folder / "a/hard.png").hardlink_to(folder / "a/0.png")
    (folder / "b/other.png").symlink_to(folder / "a/0.png")
    data = open_images(str(folder))
    assert sorted([*data.train["label"], *data.test["label"]]) == [0] * 5 + [1] * 6


def test_otherwise_a_tenth_is_held_out_by_the_seed(tmp_path: Path) -> None:
    folder = str(write_images(tmp_path / "images", count=20))
    held_out = []
    for seed in (0, 0, 1):
        data = open_images(folder, seed=seed)
        processor = make_processor(8, 3)
        train, test = (
            [image for image, _ in decode_all(ImageSplit(data, split, processor))] for split in ("train", "test")
        )
        assert (len(train), len(test)) == (36, 4)
        assert not any(torch.equal(a, b) for a in train for b in test)
        held_out.append(torch.stack(test))
    assert torch.equal(held_out[0], held_out[1])
    assert not torch.equal(held_out[0], held_out[2])


def hub_set(splits: dict[str, list[Any]], label: Any, columns: tuple[str, str] = ("image", "label")) -> Any:
    """The result of `datasets.load_dataset`, with these labels in each split."""
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
                """Do nothing: it is downloaded."""

            def as_dataset(self, split: str | None = None) -> Any:
                return found if split is None else found[split]

        monkeypatch.setattr(datasets, "load_dataset_builder", lambda *_, **__: Builder())

    return publish


def test_cifar10_comes_from_the_hub(
    reach_data_sets: Callable[[str], None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With the libraries themselves."""
    found = hub_set({"train": [1, 0, 1], "test": [0]}, datasets.ClassLabel(names=["cat", "dog"]), ("img", "label"))
    for name, rows in found.items():
        rows.to_parquet(tmp_path / f"cifar10/plain_text/{name}-00000-of-00001.parquet")
    with serve() as server:
        server.repositories["datasets/uoft-cs/cifar10"] = tmp_path / "cifar10"
        reach_data_sets(server.url)
        capfd.readouterr()  # from writing the files
        data = open_images("cifar10")
    assert (data.column, data.labels, data.channels, len(data.train)) == ("label", ["cat", "dog"], 3, 3)
    assert len(data.test) == 1
    ((image, label),) = ImageSplit(data, "train", make_processor(8, 3)).__getitems__([1])
    assert (image.shape, label) == ((3, 8, 8), 0)
    assert round((image[0, 0, 0].item() + 1) * 127.5) == 9
    assert capfd.readouterr() == ("", "")


def test_images_whose_labels_are_secret_are_not_tested_on(hub: Callable[[Any], None]) -> None:
    """As ImageNet's test split: validation takes its place."""
    classes = datasets.ClassLabel(names=["cat", "dog"])
    hub(hub_set({"train": [0, 1], "test": [-1, -1, -1], "validation": [1, 0, 1, 0]}, classes))
    assert len(open_images("org/name:config@v1").test) == 4


def test_a_split_of_any_name(hub: Callable[[Any], None]) -> None:
    hub(hub_set({"small": ["dog", "cat"], "test": ["eel"]}, datasets.ClassLabel(names=["cat", "dog", "eel"])))
    data = open_images("org/name#small")
    assert data.labels == ["cat", "dog", "eel"]
    splits = (ImageSplit(data, split, make_processor(8, 3)) for split in ("train", "test"))
    assert [split.__getitems__([0])[0][1] for split in splits] == [1, 2]


def test_data_sets_of_other_kinds(hub: Callable[[Any], None]) -> None:
    classes = datasets.ClassLabel(names=["cat", "dog"])
    hub(datasets.DatasetDict(train=datasets.Dataset.from_dict({"text": ["a"], "label": [1]})))
    with pytest.raises(DataError, match=r"org/name.* text, label"):
        open_images("org/name")
    hub(hub_set({"all": [0, 1]}, classes))
    with pytest.raises(DataError, match=r"'train'.* all.*org/name#SPLIT"):
        open_images("org/name")
    hub(hub_set({"train": [0, -1]}, classes))
    with pytest.raises(DataError, match="no label"):
        open_images("org/name")
    hub(hub_set({"train": [0, 0]}, datasets.ClassLabel(names=["cat"])))
    with pytest.raises(DataError, match=r"cat.*at least two"):
        open_images("org/name")
    hub(hub_set({"train": ["cat", "dog"]}, datasets.Value("string")))
    with pytest.raises(DataError, match=r"ClassLabel.* image, label"):
        open_images("org/name")


def preprocess(image: Image.Image, size: int, channels: int) -> Tensor:
    """The definition, in PIL and numpy: [channels, size, size] in [−1, 1]."""
    width, height = image.size
    short = min(width, height)
    width, height = int(size * width / short), int(size * height / short)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = (width - size) // 2, (height - size) // 2
    values = torch.from_numpy(np.array(image)[top : top + size, left : left + size]).reshape(size, size, channels)
    return values.permute(2, 0, 1).float().div_(127.5).sub_(1)


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "LA", "1"])
@pytest.mark.parametrize("shape", [(8, 8), (20, 13), (5, 31)])
def test_the_saved_processor_is_its_definition_bit_for_bit(mode: str, shape: tuple[int, int]) -> None:
    values = np.random.default_rng(1).integers(0, 255, (*shape, 4), dtype=np.uint8)
    image = Image.fromarray(values, "RGBA").convert(mode)
    for channels in (1, 3):
        converted = convert_mode(image, channels)
        made = make_processor(8, channels)(converted, return_tensors="pt")["pixel_values"][0]
        assert torch.equal(made, preprocess(converted, 8, channels))


def test_digits_are_what_they_were_bit_for_bit() -> None:
    data = open_images("digits")
    split = ImageSplit(data, "test", make_processor(8, 1))
    expected = [preprocess(image, 8, 1) for image in data.test["image"]]
    assert all(torch.equal(pixels, each) for (pixels, _), each in zip(decode_all(split), expected, strict=True))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparency_is_white(mode: str) -> None:
    image = Image.new("RGBA", (8, 8), (200, 30, 90, 0)).convert(mode)
    if mode == "P":
        image.info["transparency"] = image.getpixel((0, 0))
    assert np.array(convert_mode(image, 3)).min() == 255


def test_grey_and_colour() -> None:
    red = Image.new("RGB", (2, 2), (255, 0, 0))
    assert convert_mode(red, 1).mode == "L"
    assert np.array(convert_mode(Image.new("L", (2, 2), 7), 3)).tolist() == [[[7] * 3] * 2] * 2


def test_a_batch_is_the_same_as_its_images() -> None:
    split = ImageSplit(open_images("digits"), "test", make_processor(8, 1))
    numbers = [7, 0, 359, 7]
    batch = split.__getitems__(numbers)
    for (pixels, label), number in zip(batch, numbers, strict=True):
        ((pixels_alone, label_alone),) = split.__getitems__([number])
        assert torch.equal(pixels, pixels_alone)
        assert label == label_alone


def test_every_epoch_has_every_image_once_in_an_order_of_the_seed() -> None:
    split = ImageSplit(open_images("digits"), "test", make_processor(8, 1))
    seen = [
        [(item["pixel_values"].sum().item(), item["label"]) for item in decode_all(ShuffledImages(split, 720, seed))]
        for seed in (0, 1)
    ]
    once = sorted((image.sum().item(), label) for image, label in decode_all(split))
    for items in seen:
        assert sorted(items[:360]) == sorted(items[360:]) == once
        assert items[:360] != items[360:]
    assert seen[0] != seen[1]
    again = ShuffledImages(split, 720, 0)
    one, other = again.__getitems__([500, 3])
    assert (one["index"], other["index"]) == (500, 3)
    assert one["pixel_values"].sum().item() == seen[0][500][0]
