"""The data sets of Tables 1 and 2: simulated tables whose rows shift, and the cars of auto-mpg.

Sources: Wibisono and Wang 2023 (arXiv 2307.04057), appendix D, and section 3.2.2 after Sugiyama and Storkey 2006;
Quinlan, R. (1993). Auto MPG. UCI Machine Learning Repository, https://doi.org/10.24432/C5859H.
"""

from __future__ import annotations

import csv
import hashlib
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from attngeo.bounds import read_small_text
from attngeo.choices import whole
from attngeo.errors import DataError, DataUnavailableError, first_line
from attngeo.papers.wibisono2023.options import Shift
from attngeo.progress import ProgressCallback, ignore_progress
from attngeo.studies.results import downloads_folder, fetch

# Standard deviations: of the response's noise, and of the features' noise at `noise` 1, for features that the response
# depends on and for others.
RESPONSE_NOISE, CAUSE_NOISE, OTHER_NOISE = 2.0, 0.4, 0.3
LARGEST_COEFFICIENT = 10.0
# The seed that draws the seeds of data sets, which are below a limit.
SEED_OF_SEEDS, SEED_LIMIT = 2023, 10_000

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


class Rows(NamedTuple):
    """Rows of a table of categories, as numbers from 0.

    x: features, [rows, n_features]. y: responses, [rows].
    """

    x: np.ndarray
    y: np.ndarray


class ShiftedTable(NamedTuple):
    """A data set: training rows, and test rows with other correlations."""

    train: Rows
    test: Rows


def simulate(shift: Shift, seed: int) -> ShiftedTable:
    """One data set of a setting. Equal seeds give the same underlying numbers under both conventions.

    seed: from 0 to 2³² − 1. The generator is NumPy's RandomState, whose numbers do not change between versions. Order
    of draws is that of the published runs: a seed of Table 1 has the coefficients and the noise of the data set there,
    and features that are rotated.
    """
    draw, k = np.random.RandomState(seed), shift.n_features
    sizes = (shift.train_rows, shift.test_rows)
    flips = np.where(np.arange(k) < k // 2, -1.0, 1.0)
    exact = [
        _draw_normal(draw, rows, k, correlation)
        for rows, correlation in zip(sizes, (shift.corr, 1 - shift.corr), strict=True)
    ]
    exact = [exact[0] * flips, exact[1] * flips if shift.convention == "published" else exact[1]]
    scales = np.where(np.arange(k) < shift.n_c, CAUSE_NOISE, OTHER_NOISE) * shift.noise
    observed = [x + scales * draw.normal(size=x.shape) for x in exact]
    coefficients = draw.uniform(size=shift.n_c) * LARGEST_COEFFICIENT
    responses = [x[:, : shift.n_c] @ coefficients + RESPONSE_NOISE * draw.normal(size=len(x)) for x in exact]
    cells = [np.column_stack([x, y]) for x, y in zip(observed, responses, strict=True)]
    binned = _bin_together(cells, shift.n_classes) if shift.convention == "published" else _bin(cells, shift.n_classes)
    return ShiftedTable(*(Rows(table[:, :-1], table[:, -1]) for table in binned))


def seeds_of_data_sets(count: int) -> list[int]:
    """The seeds of the first data sets of every setting; the first 20 are those of Table 1. All are different."""
    whole("datasets", count, 1, SEED_LIMIT // 2)
    draw = np.random.RandomState(SEED_OF_SEEDS)
    seeds: dict[int, None] = {}
    while len(seeds) < count:
        seeds[int(draw.randint(SEED_LIMIT))] = None
    return list(seeds)


def quantile_codes(values: np.ndarray, n_classes: int) -> np.ndarray:
    """The number of the quantile bin of each value, from 0: [rows].

    Quantiles are interpolated and bins are closed on the right, as those of `pandas.qcut`, but a quantile that is one
    of the values is exactly that.
    """
    ordered, last = np.sort(values), len(values) - 1
    below, left = np.divmod(np.arange(1, n_classes) * last, n_classes)
    edges = ordered[below] + left / n_classes * (ordered[np.minimum(below + 1, last)] - ordered[below])
    return np.searchsorted(edges, values, side="left")


def _draw_normal(draw: np.random.RandomState, rows: int, k: int, correlation: float) -> np.ndarray:
    """Normal rows with mean 0, variance 1 and one correlation between all features: [rows, k].

    The square root of the covariance is the symmetric one, a·I + b·J. `RandomState.multivariate_normal` draws the same
    numbers, but multiplies them by a root that depends on LAPACK, because eigenvalues repeat.
    """
    least, largest = math.sqrt(1 - correlation), math.sqrt(1 + (k - 1) * correlation)
    return draw.standard_normal((rows, k)) @ (least * np.eye(k) + (largest - least) / k * np.ones((k, k)))


def _bin(tables: Sequence[np.ndarray], n_classes: int) -> list[np.ndarray]:
    """Each column of each table by its own quantiles."""
    return [np.column_stack([quantile_codes(column, n_classes) for column in table.T]) for table in tables]


def _bin_together(tables: Sequence[np.ndarray], n_classes: int) -> list[np.ndarray]:
    """Each column by the quantiles over all tables."""
    (binned,) = _bin([np.concatenate(tables)], n_classes)
    return np.split(binned, np.cumsum([len(table) for table in tables])[:-1])


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
    known = [{name: value for name, value in car.items() if value is not None} for car in cars]
    kept = [car for car in known if len(car) == len(NUMBERS) and car[CYLINDERS] in KEPT_CYLINDERS]
    columns = {name: np.array([car[name] for car in kept]) for name in NUMBERS}
    is_american = columns[ORIGIN] == AMERICAN
    if not 0 < is_american.sum() < len(kept):
        raise DataError(
            f"{int(is_american.sum())} of {len(kept)} cars with 4, 6 or 8 cylinders have origin {AMERICAN}, expected "
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
        raise DataError(f"{ADDRESS} has other numbers than expected; give the original file as $data", "data")
    return cars
