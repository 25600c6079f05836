"""Images as a model takes them: decoded, preprocessed, and for training in an order that depends on the seed alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Literal

import datasets
import numpy as np
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset
from transformers import ViTImageProcessorPil

from attngeo.errors import DataError, first_line
from attngeo.pretrain.images.sources import ImageData


def make_processor(size: int, channels: int) -> ViTImageProcessorPil:
    """What makes a model's input of an image; it is saved with the model.

    The shorter side is resized to `size`, bilinearly, the middle is cropped to a square, and values are scaled to
    [−1, 1]. channels: 1 for grey images, 3 for RGB.
    """
    return ViTImageProcessorPil(
        size={"shortest_edge": size}, crop_size={"height": size, "width": size}, do_center_crop=True,
        do_convert_rgb=channels == 3, image_mean=[0.5] * channels, image_std=[0.5] * channels,
    )  # fmt: skip


def convert_mode(image: Image.Image, channels: int) -> Image.Image:
    """The image in grey for 1 channel, or in RGB for 3, with a white background if it is transparent.

    The processors of transformers 5.4 would drop the transparency, and show the colours behind it.
    """
    if channels == 1:
        return image.convert("L")
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


class ImageSplit(Dataset[tuple[Tensor, int]]):
    """Images of one split as a model takes them, [channels, size, size], each with the number of its label.

    Images are decoded when they are requested. Raises DataError for one that cannot be decoded.
    """

    def __init__(self, data: ImageData, split: Literal["train", "test"], processor: ViTImageProcessorPil) -> None:
        self._data, self._split, self._processor = data, split, processor
        self._rows = data.train if split == "train" else data.test

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[tuple[Tensor, int]]:
        """Several images; data loaders request whole batches by this name, which takes half the time for small ones."""
        if outside := [number for number in numbers if not 0 <= number < len(self)]:
            raise IndexError(outside[0])
        try:
            rows = self._rows[[int(number) for number in numbers]]
            images = [convert_mode(image, self._data.channels) for image in rows[self._data.image]]
            pixels = self._processor(images, return_tensors="pt")["pixel_values"]
        except Exception as error:
            if len(numbers) > 1:
                return [self[number] for number in numbers]  # raises for the broken one alone
            raise DataError(
                f"{self._data.name}: {self._place(numbers[0])} cannot be decoded ({first_line(error)}); replace it, or "
                "leave it out"
            ) from error
        labels = [self._data.numbers[label] for label in rows[self._data.label]]
        return list(zip(pixels, labels, strict=True))

    def _place(self, number: int) -> str:
        encoded = self._rows.cast_column(self._data.image, datasets.Image(decode=False))[int(number)][self._data.image]
        return (encoded and encoded["path"]) or f"{self._split} image {number}"


class ShuffledImages(Dataset[dict[str, Any]]):
    """`count` images to train on: all of a split in a random order, then all again in another, and so on.

    The order depends on the seed alone, not on the processes, the batches or the initialisation. Each image carries its
    number `index` in that order.
    """

    def __init__(self, split: ImageSplit, count: int, seed: int) -> None:
        self._split, self._count, self._seed = split, count, seed

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Several images; see `ImageSplit`."""
        if outside := [index for index in indices if not 0 <= index < self._count]:
            raise IndexError(outside[0])
        images = self._split.__getitems__([self._number(index) for index in indices])
        return [
            {"pixel_values": pixels, "label": label, "index": index}
            for index, (pixels, label) in zip(indices, images, strict=True)
        ]

    def _number(self, index: int) -> int:
        """Which image of the split comes at this place."""
        epoch, place = divmod(index, len(self._split))
        return int(_shuffle(self._seed, epoch, len(self._split))[place])


@lru_cache(maxsize=2)
def _shuffle(seed: int, epoch: int, count: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(count)


@contextmanager
def unwrap_worker_errors() -> Iterator[None]:
    """A DataError in its own line: from a process that decodes images, it comes with a traceback around it."""
    try:
        yield
    except DataError as error:
        raise DataError(str(error).strip().splitlines()[-1].removeprefix("attngeo.errors.DataError: ")) from error
