"""Labelled images to train on: their sources, and their form as inputs of a model.

They are decoded and preprocessed when they are requested, in an order that depends on the seed alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import datasets
import numpy as np
import pandas as pd
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset
from transformers import ViTImageProcessorPil

from attngeo.bounds.links import without_links
from attngeo.bounds.names import list_names
from attngeo.errors import DataError, first_line
from attngeo.pretrain.hub_data import explain_errors, open_builder
from attngeo.pretrain.references import EXPECTED_IMAGES
from attngeo.pretrain.sources import find_path, is_on_hub
from attngeo.pretrain.trainer import draw_order

CIFAR10 = "uoft-cs/cifar10"
# Names of the split to test on, in the order in which they are tried.
TEST_SPLITS = ("test", "validation")
# Share of the images that is held out to test on, if there is no such split.
HELD_OUT = 0.1
# Share of the digits to train on.
DIGITS_TRAINED_ON = 0.8


@dataclass(frozen=True)
class ImageData:
    """Labelled images for training and testing, as tables of `datasets` with the columns "image" and "label".

    Attributes:
        name: name of the data set.
        train: training images.
        test: test images.
        column: name of the label column in the source.
        labels: names of the labels, ordered by their numbers.
        channels: 1 for grey images, 3 for RGB.
    """

    name: str
    train: datasets.Dataset
    test: datasets.Dataset
    column: str
    labels: list[str]
    channels: int


def open_images(reference: str, *, seed: int = 0) -> ImageData:
    """The images that `reference` names, not yet decoded.

    reference: "digits" (scikit-learn's 1,797 grey images of 8 × 8; the last fifth is for testing), "cifar10", a folder
    with a sub-folder for each label, or with such folders in train/ and test/ or validation/, or a Hub data set as
    `org/name[:config][@revision][#split]`. Without test images, a tenth is held out, chosen by `seed`. Raises
    DataUnavailableError or DataError.
    """
    if reference == "digits":
        return _build_data(reference, _make_digits(), channels=1, seed=seed)
    with explain_errors(reference):
        if reference == "cifar10":
            splits = _open_hub(CIFAR10)
        elif is_on_hub(reference):
            splits = _open_hub(reference)
        else:
            splits = _open_folder(find_path(reference, EXPECTED_IMAGES))
        return _build_data(reference, splits, channels=3, seed=seed)


def _make_digits() -> dict[str, datasets.Dataset]:
    from sklearn.datasets import load_digits

    raw = load_digits()
    images = [Image.fromarray(np.rint(values * 255 / 16).astype(np.uint8)) for values in raw.images]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list("0123456789"))})
    rows = datasets.Dataset.from_dict({"image": images, "label": raw.target.tolist()}, features=features)
    cut = int(len(rows) * DIGITS_TRAINED_ON)
    return {"train": rows.select(range(cut)), "test": rows.select(range(cut, len(rows)))}


def _open_folder(path: Path) -> dict[str, datasets.Dataset]:
    endings = Image.registered_extensions()
    if not any(file.suffix.lower() in endings for file in path.rglob("*")):
        raise DataError("no images, expected a folder with one sub-folder of images per label")
    splits = datasets.load_dataset("imagefolder", data_dir=str(path.absolute()))
    return {name: _drop_links(rows) for name, rows in splits.items()}


def _drop_links(rows: datasets.Dataset) -> datasets.Dataset:
    """The images of a folder, without symbolic links to others of the same label."""
    paths = [image["path"] for image in rows.cast_column("image", datasets.Image(decode=False))["image"]]
    if None in paths or "label" not in rows.features:  # in an archive, or not to be trained on
        return rows
    kept: set[str] = set()
    for _, paths_of_label in pd.Series(paths).groupby(rows["label"][:]):
        kept.update(map(str, without_links(map(Path, paths_of_label))))
    return rows.select([number for number, path in enumerate(paths) if path in kept])


def _open_hub(reference: str) -> dict[str, datasets.Dataset]:
    builder, split = open_builder(reference)
    if builder.info.features is not None:
        _image_column(builder.info.features)  # before a large data set of text is downloaded
    builder.download_and_prepare()
    splits: dict[str, datasets.Dataset] = builder.as_dataset()
    if split:
        splits = {name: rows for name, rows in splits.items() if name != split.partition("[")[0]}
        splits["train"] = builder.as_dataset(split=split)
    return splits


def _build_data(reference: str, splits: Mapping[str, datasets.Dataset], *, channels: int, seed: int) -> ImageData:
    if "train" not in splits:
        raise DataError(f"no split 'train', only {list_names([*splits])}; choose one with {reference}#SPLIT")
    train = splits["train"]
    image = _image_column(train.features)
    label = _label_column(train.features)
    if not _all_label(train, label):
        raise DataError(f"some training images have no {label}; remove them")
    labels = list(train.features[label].names)
    if len(labels) < 2:
        raise DataError(f"only {len(labels)} label ({list_names(labels)}), expected at least two")
    test = _find_test_split(splits, label)
    if test is None:
        order = np.random.default_rng(seed).permutation(len(train))
        cut = max(round(len(train) * HELD_OUT), 1)
        test = train.select(np.sort(order[:cut]))
        train = train.select(np.sort(order[cut:]))
    columns = {image: "image", label: "label"}
    train = train.select_columns([image, label]).rename_columns(columns)
    test = test.select_columns([image, label]).rename_columns(columns)
    return ImageData(reference, train, test, label, labels, channels)


def _find_test_split(splits: Mapping[str, datasets.Dataset], label: str) -> datasets.Dataset | None:
    """The first split to test on that has a label for each image."""
    for name in TEST_SPLITS:
        rows = splits.get(name)
        if rows is not None and label in rows.features and _all_label(rows, label):
            return rows
    return None


def _image_column(features: Mapping[str, Any]) -> str:
    """`image` or `img`, otherwise the first column of images."""
    columns = [name for name, feature in features.items() if isinstance(feature, datasets.Image)]
    if not columns:
        raise DataError(f"no column of images; the columns are {list_names([*features])}")
    return next((name for name in columns if name in ("image", "img")), columns[0])


def _label_column(features: Mapping[str, Any]) -> str:
    """`label` or `labels`, otherwise the first column of labels; in cifar100, that is the finer of two."""
    columns = [name for name, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    if not columns:
        raise DataError(
            f"no column of labels, expected one of type ClassLabel; the columns are {list_names([*features])}; a "
            "folder needs one sub-folder per label"
        )
    return next((name for name in ("label", "labels") if name in columns), columns[0])


def _all_label(rows: datasets.Dataset, column: str) -> bool:
    """Whether each row has a label; data sets with secret labels have -1 or nothing instead."""
    values = rows.unique(column)
    return None not in values and -1 not in values


def make_processor(size: int, channels: int) -> ViTImageProcessorPil:
    """The image processor, which turns images into a model's input and is saved with the model.

    It resizes the shorter side to `size` (bilinear), crops the middle to a square, and scales values to [−1, 1].
    channels: 1 for grey images, 3 for RGB.
    """
    return ViTImageProcessorPil(
        size={"shortest_edge": size},
        crop_size={"height": size, "width": size},
        do_center_crop=True,
        do_convert_rgb=channels == 3,
        image_mean=[0.5] * channels,
        image_std=[0.5] * channels,
    )


def convert_mode(image: Image.Image, channels: int) -> Image.Image:
    """The image in grey (1 channel) or RGB (3 channels), on a white background if it is transparent.

    The processors of transformers 5.4 would drop the transparency and show the colours behind it.
    """
    if channels == 1:
        return image.convert("L")
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


@dataclass(eq=False)
class ImageSplit(Dataset[tuple[Tensor, int]]):
    """Images of one split as input of a model, [channels, size, size], each with the number of its label.

    Images are decoded when they are requested.

    Attributes:
        data: the data set.
        split: "train" or "test".
        processor: image processor that scales and normalises images.

    Raises:
        DataError: an image cannot be decoded.
    """

    data: ImageData
    split: Literal["train", "test"]
    processor: ViTImageProcessorPil

    @property
    def rows(self) -> datasets.Dataset:
        """The table of the split."""
        return self.data.train if self.split == "train" else self.data.test

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, numbers: Sequence[int]) -> list[tuple[Tensor, int]]:
        """Several images; data loaders request whole batches by this name, which takes half the time for small ones."""
        try:
            rows = self.rows[list(numbers)]
            images = [convert_mode(image, self.data.channels) for image in rows["image"]]
            pixels = self.processor(images, return_tensors="pt")["pixel_values"]
        except Exception as error:
            if len(numbers) > 1:  # raises for the broken one alone
                return list(chain.from_iterable(self.__getitems__([number]) for number in numbers))
            encoded = self.rows.cast_column("image", datasets.Image(decode=False))[numbers[0]]["image"]
            name = (encoded and encoded["path"]) or f"{self.split} image {numbers[0]}"
            raise DataError(
                f"{name} cannot be decoded ({first_line(error)}); replace or remove it", subject=self.data.name
            ) from error
        return list(zip(pixels, rows["label"], strict=True))


@dataclass(eq=False)
class ShuffledImages(Dataset[dict[str, Any]]):
    """Training images: all images of a split in a random order, then all again in another order, and so on.

    The order depends only on the seed, not on the processes, the batches or the initialisation. Each image carries its
    number `index` in that order.

    Attributes:
        split: the images.
        count: number of images, including repeats.
        seed: seed of the order.
    """

    split: ImageSplit
    count: int
    seed: int

    def __len__(self) -> int:
        return self.count

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Several images; see `ImageSplit`."""
        size = len(self.split)
        numbers = []
        for index in indices:
            epoch, position = divmod(index, size)
            order, _ = draw_order(size, 0, self.seed, epoch)
            numbers.append(int(order[position]))
        images = self.split.__getitems__(numbers)
        return [
            {"pixel_values": pixels, "label": label, "index": index}
            for index, (pixels, label) in zip(indices, images, strict=True)
        ]


@contextmanager
def unwrap_worker_errors() -> Iterator[None]:
    """Inside the block, a DataError has one line, even with the traceback of a process that decodes images."""
    try:
        yield
    except DataError as error:
        raise DataError(str(error).strip().splitlines()[-1].removeprefix("attngeo.errors.DataError: ")) from error
