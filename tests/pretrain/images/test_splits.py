"""Images as a model takes them, and their order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from attngeo.pretrain.images.sources import open_images
from attngeo.pretrain.images.splits import ImageSplit, ShuffledImages, convert_mode, make_processor


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
    assert all(torch.equal(pixels, each) for (pixels, _), each in zip(split, expected, strict=True))


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
        assert torch.equal(pixels, split[number][0])
        assert label == split[number][1]
    for outside in (-1, 360):
        with pytest.raises(IndexError):
            split[outside]
        with pytest.raises(IndexError):
            ShuffledImages(split, 360, 0)[outside]


def test_every_epoch_has_every_image_once_in_an_order_of_the_seed() -> None:
    split = ImageSplit(open_images("digits"), "test", make_processor(8, 1))
    seen = [
        [(item["pixel_values"].sum().item(), item["label"]) for item in ShuffledImages(split, 720, seed)]
        for seed in (0, 1)
    ]
    once = sorted((image.sum().item(), label) for image, label in split)
    for items in seen:
        assert sorted(items[:360]) == sorted(items[360:]) == once
        assert items[:360] != items[360:]
    assert seen[0] != seen[1]
    again = ShuffledImages(split, 720, 0)
    assert [again[index]["index"] for index in (500, 3)] == [500, 3]
    assert again[500]["pixel_values"].sum().item() == seen[0][500][0]
