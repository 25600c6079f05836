"""Where labelled images come from: scikit-learn's digits, a folder, the Hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from PIL import Image

from attngeo.checkpoints.reference import is_path, local_path
from attngeo.errors import DataError, DataUnavailableError, ModelNotFoundError
from attngeo.pretrain.hub_data import HUB_REFERENCE, check_cached_revision, explain_errors, list_names

# Short names of data sets of the Hub.
NAMED: Mapping[str, str] = {"cifar10": "uoft-cs/cifar10"}
# Names of the split to test on, in the order in which they are tried.
TEST_SPLITS = ("test", "validation")
HELD_OUT = 0.1
DIGITS_TRAINED_ON = 0.8


@dataclass(frozen=True)
class ImageData:
    """Labelled images to train and to test on, as tables of `datasets`.

    image, label: the names of the columns. labels: names of the labels, in the order of their numbers. numbers: from
    values of the label column to numbers. channels: 1 for grey images, 3 for RGB.
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
    """The images that `reference` names, not yet decoded.

    reference: "digits" (scikit-learn's 1,797 grey images of 8 × 8; the last fifth is for testing), "cifar10", a folder
    with a sub-folder for each label, or with such folders in train/ and test/ or validation/, or a Hub data set as
    `org/name[:config][@revision][#split]`. If there are no images to test on, a tenth is held out, chosen by `seed`.
    Raises DataUnavailableError or DataError.
    """
    if reference == "digits":
        return _build_data(reference, _make_digits(), channels=1, seed=seed)
    hub = HUB_REFERENCE.fullmatch(NAMED.get(reference, reference))
    path = None if reference in NAMED else _find_existing(reference)
    with explain_errors(reference):
        if path is not None:
            found = _open_folder(reference, path)
        elif hub and not is_path(hub["name"]):
            found = _open_hub(reference, **hub.groupdict())
        else:
            raise DataUnavailableError(
                f"{reference or repr(reference)}: no such folder; give one, org/name of the Hub, digits or cifar10"
            )
        return _build_data(reference, found, channels=3, seed=seed)


def _find_existing(reference: str) -> Path | None:
    try:
        path = local_path(reference)
    except ModelNotFoundError:
        return None
    return path if reference and path.exists() else None


def _make_digits() -> dict[str, datasets.Dataset]:
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
    # Without the scheme, a local folder of that name would be read instead.
    builder = datasets.load_dataset_builder(f"hf://datasets/{name}", config, revision=revision)
    check_cached_revision(reference, builder, name, revision)
    if builder.info.features is not None:
        _image_column(reference, builder.info.features)  # before a large data set of text is downloaded
    builder.download_and_prepare()
    found: dict[str, datasets.Dataset] = builder.as_dataset()
    if split:
        found = {key: rows for key, rows in found.items() if key != split.partition("[")[0]}
        found["train"] = builder.as_dataset(split=split)
    return found


def _build_data(reference: str, found: Mapping[str, datasets.Dataset], *, channels: int, seed: int) -> ImageData:
    if "train" not in found:
        raise DataError(
            f"{reference}: no split 'train'; its splits are {list_names(found)}; choose one with {reference}#SPLIT"
        )
    train, features = found["train"], found["train"].features
    image, label = _image_column(reference, features), _label_column(reference, features)
    splits = [found[name] for name in TEST_SPLITS if name in found and label in found[name].features]
    test = next((rows for rows in splits if _all_label(rows, label)), None)
    if not _all_label(train, label):
        raise DataError(f"{reference}: some images to train on have no {label}; leave them out")
    if isinstance(features[label], datasets.ClassLabel):
        labels = list(features[label].names)
        numbers = {number: number for number in range(len(labels))}
    else:
        values = sorted({*train.unique(label), *(test.unique(label) if test is not None else ())})
        labels, numbers = list(map(str, values)), {value: number for number, value in enumerate(values)}
    if len(labels) < 2:
        raise DataError(f"{reference}: all images have the label {labels[0]!r}, expected at least two labels")
    if test is None:
        train, test = _hold_out(train, seed)
    train, test = (rows.select_columns([image, label]) for rows in (train, test))
    return ImageData(reference, train, test, image, label, labels, numbers, channels)


def _image_column(reference: str, features: Mapping[str, Any]) -> str:
    images = [name for name, kind in features.items() if isinstance(kind, datasets.Image)]
    if not images:
        raise DataError(f"{reference} holds no images; its columns are {list_names(features)}")
    return next((name for name in images if name in ("image", "img")), images[0])


def _label_column(reference: str, features: Mapping[str, Any]) -> str:
    """`label` or `labels`, otherwise the first column of labels; in cifar100, that is the finer of two."""
    usual = ("label", "labels")
    classes = [name for name, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    plain = [name for name in usual if getattr(features.get(name), "dtype", "") in ("int32", "int64", "string")]
    found = classes or plain
    if not found:
        raise DataError(
            f"{reference}: no column of labels, expected one named label; its columns are {list_names(features)}; a "
            "folder needs a sub-folder for each label"
        )
    return next((name for name in usual if name in found), found[0])


def _all_label(rows: datasets.Dataset, column: str) -> bool:
    """Whether each row has a label; data sets with secret labels have -1 or nothing instead."""
    values = rows.unique(column)
    return None not in values and not (isinstance(rows.features[column], datasets.ClassLabel) and -1 in values)


def _hold_out(rows: datasets.Dataset, seed: int) -> tuple[datasets.Dataset, datasets.Dataset]:
    order = np.random.default_rng(seed).permutation(len(rows))
    cut = max(round(len(rows) * HELD_OUT), 1)
    return rows.select(np.sort(order[cut:])), rows.select(np.sort(order[:cut]))
