"""The data sets of Tables 1 and 2: simulated tables whose rows shift, and the cars of auto-mpg.

Sources: Wibisono and Wang 2023 (arXiv 2307.04057), appendix D, and section 3.2.2 after Sugiyama and Storkey 2006;
Quinlan, R. (1993). Auto MPG. UCI Machine Learning Repository, https://doi.org/10.24432/C5859H.
"""

from __future__ import annotations

import hashlib
import io
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from attngeo.bounds.small_files import read_small_text
from attngeo.choices import Settings
from attngeo.errors import DataError, about, first_line
from attngeo.papers.wibisono2023.options import ADDRESS, ShiftSetting, require_cars
from attngeo.progress import ProgressCallback, ignore_progress
from attngeo.studies.downloads import downloads_folder, fetch

# Standard deviations: of the response's noise, and of the features' noise at `noise` 1, for features that the response
# depends on and for others.
RESPONSE_NOISE = 2.0
CAUSE_NOISE = 0.4
OTHER_NOISE = 0.3
LARGEST_COEFFICIENT = 10.0
# The seed that draws the seeds of data sets, which are below a limit.
SEED_OF_SEEDS = 2023
SEED_LIMIT = 10_000

MOST_AUTO_MPG_BYTES = 1_000_000
# Columns of numbers, in the order of UCI's file, which has no header; the name of the car follows.
RESPONSE = "mpg"
CYLINDERS = "cylinders"
ORIGIN = "origin"
FEATURES = (CYLINDERS, "displacement", "horsepower", "weight", "acceleration", "model year")
NUMBER_FEATURES = (RESPONSE, *FEATURES, ORIGIN)
UNKNOWN = "?"
# SHA-256 of UCI's numbers; see `digest_cars`.
DIGEST = "434439b7bc17fe4262385bed6a7fb616c66ceb9023da8222289d0a627cebc300"
KEPT_CYLINDERS = (4, 6, 8)
AMERICAN = 1
N_CLASSES = 3


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


def simulate(
    setting: ShiftSetting,
    seed: int,
    *,
    settings: Settings = "text",
    features: int = 5,
    classes: int = 10,
    rows: int = 2000,
) -> ShiftedTable:
    """Draw one data set of a setting. The same seed gives the same underlying numbers with `text` and `code`.

    The generator is NumPy's RandomState, whose numbers do not change between versions. Draws follow the order of the
    published runs: a seed of Table 1 gives the coefficients and the noise of its data set, but rotated features.

    Args:
        setting: a row of Table 1.
        seed: from 0 to 2³² − 1.
        settings: `text` follows appendix D; `code` follows the code that made Table 1, which multiplies the
            first features by −1 in test rows, too, and bins training and test rows together.
        features: number of features, K.
        classes: number of classes of each feature and of the response, C.
        rows: number of training rows, and of test rows.
    """
    draw = np.random.RandomState(seed)
    numbers = np.arange(features)
    is_cause = numbers < setting.n_c
    flips = np.where(numbers < features // 2, -1.0, 1.0)
    scales = np.where(is_cause, CAUSE_NOISE, OTHER_NOISE) * setting.noise
    train = _draw_normal(draw, rows, features, setting.corr) * flips
    test = _draw_normal(draw, rows, features, 1 - setting.corr)
    if settings == "code":
        test = test * flips
    exact = (train, test)
    observed = [x + scales * draw.normal(size=x.shape) for x in exact]
    coefficients = draw.uniform(size=setting.n_c) * LARGEST_COEFFICIENT
    responses = [x[:, : setting.n_c] @ coefficients + RESPONSE_NOISE * draw.normal(size=rows) for x in exact]
    tables = [np.column_stack([x, y]) for x, y in zip(observed, responses, strict=True)]
    if settings == "code":
        tables = np.split(_bin(np.concatenate(tables), classes), 2)
    else:
        tables = [_bin(table, classes) for table in tables]
    return ShiftedTable(*(Rows(table[:, :-1], table[:, -1]) for table in tables))


def seeds_of_data_sets(count: int) -> list[int]:
    """The seeds of the first data sets of every setting, all different; the first 20 are the seeds of Table 1."""
    draw = np.random.RandomState(SEED_OF_SEEDS)
    seeds: dict[int, None] = {}
    while len(seeds) < count:
        seeds[int(draw.randint(SEED_LIMIT))] = None
    return list(seeds)


def quantile_codes(values: np.ndarray, n_classes: int) -> np.ndarray:
    """The number of the quantile bin of each value, from 0: [rows].

    Quantiles are interpolated and bins are closed on the right, as in `pandas.qcut`, but a quantile that equals a value
    is exact.
    """
    ordered = np.sort(values)
    last = len(values) - 1
    below, remainder = np.divmod(np.arange(1, n_classes) * last, n_classes)
    above = np.minimum(below + 1, last)
    edges = ordered[below] + remainder / n_classes * (ordered[above] - ordered[below])
    return np.searchsorted(edges, values, side="left")


def _draw_normal(draw: np.random.RandomState, rows: int, k: int, correlation: float) -> np.ndarray:
    """Normal rows with mean 0, variance 1 and one correlation between all features: [rows, k].

    The square root of the covariance is the symmetric one, a·I + b·J. `RandomState.multivariate_normal` draws the same
    numbers, but multiplies them by a root that depends on LAPACK, because eigenvalues repeat.
    """
    least = math.sqrt(1 - correlation)
    largest = math.sqrt(1 + (k - 1) * correlation)
    root = least * np.eye(k) + (largest - least) / k * np.ones((k, k))
    return draw.standard_normal((rows, k)) @ root


def _bin(table: np.ndarray, n_classes: int) -> np.ndarray:
    """Each column by its own quantiles."""
    return np.column_stack([quantile_codes(column, n_classes) for column in table.T])


class AutoMpg(NamedTuple):
    """The table, and whether it is the paper's."""

    table: ShiftedTable
    is_of_paper: bool


def load_auto_mpg(path: str | Path | None = None, progress: ProgressCallback = ignore_progress) -> AutoMpg:
    """Load the data set: 245 American cars to train, 140 others to test, six features with three categories each.

    Args:
        path: a CSV file with a header, or UCI's auto-mpg.data; None downloads UCI's file from `ADDRESS` once, and keeps
            it in the cache folder.
        progress: called during the download.

    Raises:
        DataUnavailableError: the file cannot be read or reached.
        DataError: the file is another table.
    """
    if path is not None:
        cars = read_cars(Path(path).expanduser())
        with about(str(path)):
            return AutoMpg(divide_cars(cars), digest_cars(cars) == DIGEST)
    advice = f"download {ADDRESS} on another machine, and give the file as data (--data)"
    with downloads_folder() as folder:
        cars = fetch(
            ADDRESS,
            folder / ADDRESS.rpartition("/")[2],
            _read_cars_of_paper,
            what="auto-mpg",
            advice=advice,
            most_bytes=MOST_AUTO_MPG_BYTES,
            progress=progress,
        )
    return AutoMpg(divide_cars(cars), True)


def _read_cars_of_paper(path: Path) -> pd.DataFrame:
    """The cars of a download. Raises DataError if they are not those of the paper."""
    cars = read_cars(path, ADDRESS)
    if digest_cars(cars) != DIGEST:
        raise DataError(f"{ADDRESS} does not have the expected numbers; give the original file as $data", "data")
    return cars


def read_cars(path: Path, source: str = "") -> pd.DataFrame:
    """The cars of a file in either format: one row per car, with the columns NUMBER_FEATURES; unknown numbers are NaN.

    source: name in messages instead of the file's. Raises DataUnavailableError or DataError.
    """
    require_cars(path)
    try:
        text = read_small_text(path, MOST_AUTO_MPG_BYTES, "utf-8-sig")
        header, _, _ = text.partition("\n")
        form: dict[str, Any] = {}
        if "," not in header:  # UCI's file
            form = {"sep": r"\s+", "names": [*NUMBER_FEATURES, "car name"]}
        cells = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False, **form)
        missing = [name for name in NUMBER_FEATURES if name not in cells]
        if missing:
            raise ValueError(f"lacks the column {missing[0]!r}")
        if not isinstance(cells.index, pd.RangeIndex):
            raise ValueError("a row has too many cells")
        cells = cells[list(NUMBER_FEATURES)]
        is_missing = cells.isna() | (cells == "")
        if is_missing.any(axis=None):
            row = int(is_missing.any(axis=1).argmax())
            raise ValueError(f"row {row + 1} has {(~is_missing).iloc[row].sum()} cells")
        cars: pd.DataFrame = cells.apply(lambda column: column.str.strip().replace(UNKNOWN, "nan")).astype("float64")
    except (OSError, ValueError) as error:
        raise DataError(
            f"{source or path} cannot be read ({first_line(error)}); expected UCI's auto-mpg.data, or a CSV file with "
            f"the columns {', '.join(NUMBER_FEATURES)}"
        ) from None
    return cars


def digest_cars(cars: pd.DataFrame) -> str:
    """The SHA-256 of all numbers, which does not depend on the format of the file."""
    texts = cars[list(NUMBER_FEATURES)].map("{:g}".format).replace("nan", UNKNOWN)
    lines = texts.agg(",".join, axis=1)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def divide_cars(cars: pd.DataFrame) -> ShiftedTable:
    """Training and test rows: cars with 4, 6 or 8 cylinders and without unknown numbers, divided by origin.

    Each column except the cylinders is cut at its terciles over all these cars. Raises DataError if a part is empty.
    """
    rows = cars.dropna()
    rows = rows[rows[CYLINDERS].isin(KEPT_CYLINDERS)]
    is_american = (rows[ORIGIN] == AMERICAN).to_numpy()
    if not 0 < is_american.sum() < len(rows):
        raise DataError(
            f"{int(is_american.sum())} of {len(rows)} cars with 4, 6 or 8 cylinders have origin {AMERICAN}, expected "
            f"at least one with origin {AMERICAN} for training, and one with a different origin for testing"
        )
    codes = {name: quantile_codes(rows[name].to_numpy(), N_CLASSES) for name in NUMBER_FEATURES}
    codes[CYLINDERS] = np.searchsorted(KEPT_CYLINDERS, rows[CYLINDERS])
    x = np.column_stack([codes[name] for name in FEATURES])
    y = codes[RESPONSE]
    return ShiftedTable(Rows(x[is_american], y[is_american]), Rows(x[~is_american], y[~is_american]))
