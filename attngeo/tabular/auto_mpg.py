"""The auto-mpg data: American cars train, others test, and consumption is one of three classes.

Source: Quinlan, R. (1993). Auto MPG. UCI Machine Learning Repository, https://doi.org/10.24432/C5859H; the division of
Wibisono and Wang 2023 (arXiv 2307.04057), section 3.2.2, after Sugiyama and Storkey 2006.
"""

from __future__ import annotations

import csv
import hashlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from attngeo.bounds.small_files import read_small_text
from attngeo.errors import DataError, DataUnavailableError, first_line
from attngeo.progress import ProgressCallback, ignore_progress
from attngeo.studies.results import downloads_folder, fetch
from attngeo.tabular.simulation import Rows, ShiftedTable, quantile_codes

ADDRESS = "https://archive.ics.uci.edu/ml/machine-learning-databases/auto-mpg/auto-mpg.data"
MOST_BYTES = 1_000_000
# Columns of numbers, in the order of UCI's file, which has no header; the name of the car follows.
RESPONSE, CYLINDERS, ORIGIN = "mpg", "cylinders", "origin"
FEATURES = (CYLINDERS, "displacement", "horsepower", "weight", "acceleration", "model year")
NUMBERS = (RESPONSE, *FEATURES, ORIGIN)
UNKNOWN = "?"
# SHA-256 of UCI's numbers; see `digest_cars`.
DIGEST = "434439b7bc17fe4262385bed6a7fb616c66ceb9023da8222289d0a627cebc300"
KEPT_CYLINDERS, AMERICAN, N_CLASSES = (4, 6, 8), 1, 3

Car = Mapping[str, float | None]


class AutoMpg(NamedTuple):
    """The table, and whether it is that of the paper."""

    table: ShiftedTable
    is_of_paper: bool


def load_auto_mpg(path: str | Path | None = None, progress: ProgressCallback = ignore_progress) -> AutoMpg:
    """The data set: 245 American cars to train, 140 others to test, six features of three categories.

    path: a CSV file with a header, or UCI's auto-mpg.data; None downloads the latter from `ADDRESS` once, and keeps it
    in the cache folder. Raises DataUnavailableError if it cannot be read or reached, DataError if it is another table.
    """
    if path is not None:
        cars = read_cars(Path(path).expanduser())
        return AutoMpg(divide_cars(cars), digest_cars(cars) == DIGEST)
    return AutoMpg(divide_cars(_fetch_cars(progress)), True)


def read_cars(path: Path, source: str = "") -> list[Car]:
    """The cars of a file; None is an unknown number. Raises DataUnavailableError or DataError.

    source: what messages name instead of the file.
    """
    try:
        text = read_small_text(path, MOST_BYTES, "utf-8-sig")
    except FileNotFoundError:
        raise DataUnavailableError(f"{path}: no such file; download it from {ADDRESS}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{source or path} cannot be read ({first_line(error)})") from None
    return parse_cars(text, source or str(path))


def parse_cars(text: str, source: str) -> list[Car]:
    """The cars of a text in either format. source: for messages. Raises DataError."""
    try:
        return [_parse_car(row) for row in _parse_rows(text)]
    except (ValueError, LookupError, csv.Error) as error:
        raise DataError(
            f"{source}: {first_line(error)}; expected UCI's auto-mpg.data, or a CSV file with the columns "
            f"{', '.join(NUMBERS)}"
        ) from None


def _parse_rows(text: str) -> Iterator[Mapping[str, str]]:
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise ValueError("the file is empty")
    if "," in lines[0]:
        rows = csv.DictReader(lines, strict=True)
        missing = [name for name in NUMBERS if name not in (rows.fieldnames or ())]
        if missing:
            raise ValueError(f"lacks the column {missing[0]!r}")
        yield from rows
        return
    for number, line in enumerate(lines, 1):
        cells = shlex.split(line)
        if len(cells) < len(NUMBERS):
            raise ValueError(f"line {number} has {len(cells)} cells")
        yield dict(zip(NUMBERS, cells, strict=False))


def _parse_car(row: Mapping[str, str]) -> Car:
    cells = {name: (row[name] or "").strip() for name in NUMBERS}
    return {name: None if cell == UNKNOWN else float(cell) for name, cell in cells.items()}


def digest_cars(cars: Sequence[Car]) -> str:
    """The SHA-256 of all numbers, which does not depend on the format of the file."""
    lines = (",".join(UNKNOWN if car[name] is None else f"{car[name]:g}" for name in NUMBERS) for car in cars)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def divide_cars(cars: Sequence[Car]) -> ShiftedTable:
    """Training and test rows: whole cars of 4, 6 or 8 cylinders, by their origin. Raises DataError if one is empty.

    Each column but the cylinders is cut at its terciles over all these cars.
    """
    whole = [{name: value for name, value in car.items() if value is not None} for car in cars]
    whole = [car for car in whole if len(car) == len(NUMBERS) and car[CYLINDERS] in KEPT_CYLINDERS]
    columns = {name: np.array([car[name] for car in whole]) for name in NUMBERS}
    is_american = columns[ORIGIN] == AMERICAN
    if not 0 < is_american.sum() < len(whole):
        raise DataError(
            f"{int(is_american.sum())} of {len(whole)} cars with 4, 6 or 8 cylinders have origin {AMERICAN}, expected "
            "some that have and some that have not"
        )
    codes = {name: quantile_codes(values, N_CLASSES) for name, values in columns.items()}
    codes[CYLINDERS] = np.searchsorted(KEPT_CYLINDERS, columns[CYLINDERS])
    x, y = np.column_stack([codes[name] for name in FEATURES]), codes[RESPONSE]
    return ShiftedTable(Rows(x[is_american], y[is_american]), Rows(x[~is_american], y[~is_american]))


def _fetch_cars(progress: ProgressCallback) -> list[Car]:
    """UCI's cars, from the cache folder or else from their address."""
    advice = f"download {ADDRESS} on another machine, and give the file as data (--data)"
    with downloads_folder() as folder:
        return fetch(
            ADDRESS, folder / ADDRESS.rpartition("/")[2], _read_cars_of_paper, what="auto-mpg", advice=advice,
            most_bytes=MOST_BYTES, progress=progress,
        )  # fmt: skip


def _read_cars_of_paper(path: Path) -> list[Car]:
    """The cars of a download. Raises DataError if they are not those of the paper."""
    cars = read_cars(path, ADDRESS)
    if digest_cars(cars) != DIGEST:
        raise DataError(f"{ADDRESS} has other numbers than expected; give the original file as data (--data)")
    return cars
