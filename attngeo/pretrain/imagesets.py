"""Where labelled images come from: scikit-learn's digits, a folder, the Hub; and how one becomes what a model takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import datasets
import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from attngeo.checkpoints.reference import is_path, local_path
from attngeo.errors import DataError, DataUnavailableError, ModelNotFoundError, first_line
from attngeo.pretrain.hub_data import HUB_REFERENCE, check_cached_revision, explain_errors, list_names

# Data sets of the Hub that have a name here.
NAMED: Mapping[str, str] = {"cifar10": "uoft-cs/cifar10"}
# What the images to test on may be called, in the order in which they are looked for.
TEST_SPLITS = ("test", "validation")
HELD_OUT = 0.1
DIGITS_TRAINED_ON = 0.8


@dataclass(frozen=True)
class ImageData:
    """Labelled images to train and to test on, in tables of `datasets` with the columns `image` and `label`.

    labels: their names, in the order of their numbers. numbers: what stands in the column `label` → its number.
    channels: 1 for grey images, 3 for RGB.
    """

    name: str
    train: datasets.Dataset
    test: datasets.Dataset
    image: str
    label: str
    labels: list[str]
    numbers: Mapping[Any, int]
    channels: int


def open_images(reference: str, *, seed: int = 0) -> ImageData:
    """The images that `reference` names. Nothing is decoded.

    reference: "digits" (scikit-learn's 1,797 grey images of 8 × 8, the last fifth of them to test on), "cifar10", a
    folder with a sub-folder for each label, or such a folder in each of train/ and test/ or validation/; or a Hub data
    set as `org/name[:config][@revision][#split]`. Without images to test on, a tenth is held out, chosen by `seed`.
    Raises DataUnavailableError or DataError.
    """
    if reference == "digits":
        return _labelled(reference, _digits(), channels=1, seed=seed)
    hub = HUB_REFERENCE.fullmatch(NAMED.get(reference, reference))
    path = None if reference in NAMED else _existing(reference)
    with explain_errors(reference):
        if path is not None:
            found = _open_folder(reference, path)
        elif hub and not is_path(hub["name"]):
            found = _open_hub(reference, **hub.groupdict())
        else:
            raise DataUnavailableError(
                f"{reference or repr(reference)}: no such folder; give one, org/name of the Hub, digits or cifar10"
            )
        return _labelled(reference, found, channels=3, seed=seed)


def _existing(reference: str) -> Path | None:
    try:
        path = local_path(reference)
    except ModelNotFoundError:
        return None
    return path if reference and path.exists() else None


def _digits() -> dict[str, datasets.Dataset]:
    from sklearn.datasets import load_digits

    raw = load_digits()
    images = [Image.fromarray(np.rint(each * 255 / 16).astype(np.uint8)) for each in raw.images]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list("0123456789"))})
    rows = datasets.Dataset.from_dict({"image": images, "label": raw.target.tolist()}, features=features)
    cut = int(len(rows) * DIGITS_TRAINED_ON)
    return {"train": rows.select(range(cut)), "test": rows.select(range(cut, len(rows)))}


def _open_folder(reference: str, path: Path) -> dict[str, datasets.Dataset]:
    if not path.is_dir():
        raise DataError(f"{reference} is a file, expected a folder with a sub-folder of images for each label")
    endings = Image.registered_extensions()
    if not any(each.suffix.lower() in endings for each in path.rglob("*")):
        raise DataError(f"{reference} holds no images, expected a sub-folder of them for each label")
    found: dict[str, datasets.Dataset] = datasets.load_dataset("imagefolder", data_dir=str(path.absolute()))
    return found


def _open_hub(
    reference: str, name: str, config: str | None, revision: str | None, split: str | None
) -> dict[str, datasets.Dataset]:
    # Without its scheme, a folder of that name would be taken instead.
    builder = datasets.load_dataset_builder(f"hf://datasets/{name}", config, revision=revision)
    check_cached_revision(reference, builder, name, revision)
    if builder.info.features is not None:
        _image_column(reference, builder.info.features)  # before a terabyte of text is downloaded
    builder.download_and_prepare()
    found: dict[str, datasets.Dataset] = builder.as_dataset()
    if split:
        found = {key: rows for key, rows in found.items() if key != split.partition("[")[0]}
        found["train"] = builder.as_dataset(split=split)
    return found


def _labelled(reference: str, found: Mapping[str, datasets.Dataset], *, channels: int, seed: int) -> ImageData:
    if "train" not in found:
        raise DataError(
            f"{reference}: no split 'train'; its splits are {list_names(found)}; choose one with {reference}#SPLIT"
        )
    train, features = found["train"], found["train"].features
    image, label = _image_column(reference, features), _label_column(reference, features)
    splits = [found[name] for name in TEST_SPLITS if name in found and label in found[name].features]
    test = next((rows for rows in splits if _all_labelled(rows, label)), None)
    if not _all_labelled(train, label):
        raise DataError(f"{reference}: some of its images to train on have no {label}; leave them out")
    if isinstance(features[label], datasets.ClassLabel):
        labels = list(features[label].names)
        numbers = {number: number for number in range(len(labels))}
    else:
        values = sorted({*train.unique(label), *(test.unique(label) if test is not None else ())})
        labels, numbers = list(map(str, values)), {value: number for number, value in enumerate(values)}
    if len(labels) < 2:
        raise DataError(f"{reference}: its images have one label, {labels[0]!r}, expected two at least")
    if test is None:
        train, test = _held_out(train, seed)
    train, test = (rows.select_columns([image, label]) for rows in (train, test))
    return ImageData(reference, train, test, image, label, labels, numbers, channels)


def _image_column(reference: str, features: Mapping[str, Any]) -> str:
    images = [name for name, kind in features.items() if isinstance(kind, datasets.Image)]
    if not images:
        raise DataError(f"{reference} holds no images; its columns are {list_names(features)}")
    return next((name for name in images if name in ("image", "img")), images[0])


def _label_column(reference: str, features: Mapping[str, Any]) -> str:
    """`label` or `labels`, else the first column of labels; in cifar100, that is the finer of two."""
    usual = ("label", "labels")
    classes = [name for name, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    plain = [name for name in usual if getattr(features.get(name), "dtype", "") in ("int32", "int64", "string")]
    found = classes or plain
    if not found:
        raise DataError(
            f"{reference}: its images have no labels, its columns are {list_names(features)}; expected one named "
            "label, or in a folder a sub-folder for each of several labels"
        )
    return next((name for name in usual if name in found), found[0])


def _all_labelled(rows: datasets.Dataset, column: str) -> bool:
    """Data sets that keep labels secret have -1 in place of a class, or nothing."""
    values = rows.unique(column)
    return None not in values and not (isinstance(rows.features[column], datasets.ClassLabel) and -1 in values)


def _held_out(rows: datasets.Dataset, seed: int) -> tuple[datasets.Dataset, datasets.Dataset]:
    order = np.random.default_rng(seed).permutation(len(rows))
    cut = max(round(len(rows) * HELD_OUT), 1)
    return rows.select(np.sort(order[cut:])), rows.select(np.sort(order[:cut]))


class ImageSplit(Dataset[tuple[Tensor, int]]):
    """Images of one split as a model takes them, [channels, size, size], each with the number of its label.

    One is decoded when it is asked for. Raises DataError for one that cannot be.
    """

    def __init__(self, data: ImageData, split: Literal["train", "test"], size: int) -> None:
        self._data, self._split, self._size = data, split, size
        self._rows = data.train if split == "train" else data.test

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        if not 0 <= number < len(self):
            raise IndexError(number)
        try:
            row = self._rows[int(number)]
            image = pixels(row[self._data.image], self._size, self._data.channels)
        except Exception as error:
            raise DataError(
                f"{self._data.name}: {self._place(number)} cannot be decoded ({first_line(error)}); replace it, or "
                "leave it out"
            ) from error
        return image, self._data.numbers[row[self._data.label]]

    def _place(self, number: int) -> str:
        encoded = self._rows.cast_column(self._data.image, datasets.Image(decode=False))[int(number)][self._data.image]
        return (encoded and encoded["path"]) or f"{self._split} image {number}"


def pixels(image: Image.Image, size: int, channels: int) -> Tensor:
    """[channels, size, size] in [−1, 1]: the shorter side resized to `size`, bilinearly, then the middle cut out.

    Bit for bit what the processor saved beside the model makes of it; transparency is laid on white.
    """
    if channels == 1:
        image = image.convert("L")
    elif "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    else:
        image = image.convert("RGB")
    width, height = image.size
    if min(width, height) != size:
        short = min(width, height)
        width, height = int(size * width / short), int(size * height / short)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = (width - size) // 2, (height - size) // 2
    values = torch.from_numpy(np.array(image)[top : top + size, left : left + size]).reshape(size, size, channels)
    return values.permute(2, 0, 1).float().div_(127.5).sub_(1)


class ShuffledImages(Dataset[dict[str, Any]]):
    """`count` images to train on: all of them in a new random order, then all again, and so on.

    The order is that of the seed, whatever the processes, batches and initialisation, and each image carries its number
    `index` in it.
    """

    def __init__(self, pictures: ImageSplit, count: int, seed: int) -> None:
        self._pictures, self._count, self._seed = pictures, count, seed

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < self._count:
            raise IndexError(index)
        epoch, place = divmod(index, len(self._pictures))
        image, label = self._pictures[_order(self._seed, epoch, len(self._pictures))[place]]
        return {"pixel_values": image, "label": label, "index": index}


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, count: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(count)
