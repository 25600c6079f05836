"""Covariates: facts of a row beside its item and its values, as categories and as numbers near 1.

A cell of several categories, such as Drama|War, is a number for each known category: 1 for those that it has, else 0. A
time is seven numbers: how late it is, and where it is in a day, a week and a year (cosine and sine of each).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import Field, model_validator

from attngeo.errors import TableError
from attngeo.estimators.efa.columns import (
    TRAINING,
    advise_date,
    check_columns,
    code_values,
    learn_items,
    measure_scale,
    refuse_first,
    refuse_kind,
    require_numbers,
    require_values,
)
from attngeo.estimators.efa.families import LARGEST
from attngeo.estimators.efa.options import Kind
from attngeo.estimators.shared.cells import parse_numbers, show_value
from attngeo.estimators.shared.dates import Moments, find_zone, from_zone, read_any_moments, refuse_mixed_zones
from attngeo.estimators.shared.files import naming
from attngeo.estimators.shared.saving import Plain
from attngeo.schemas import Table

# What is between several categories of a cell.
SEPARATOR = "|"
# Days of a day, a week and a year.
PERIODS = (1.0, 7.0, 365.2425)
# Seconds of a day.
DAY = 86_400
# Seconds from 1970 to the last time that 64 bits of nanoseconds have. Milliseconds since 1970 are more from April 1970.
MOST_SECONDS = 2**63 / 10**9
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
MeanAndDeviation = tuple[Number, Annotated[float, Field(ge=1 / LARGEST, le=LARGEST, allow_inf_nan=False)]]


class Covariate(Table):
    """A covariate column, as learned from the training rows.

    Attributes:
        kind: kind of its values.
        categories: categories in the order of their numbers, if the kind is category or categories.
        scale: mean and standard deviation of its numbers; for times, in days since 1970.
        zone: zone of its times, such as Europe/Berlin; "" if the training column has none; None for seconds since 1970,
            and in a model saved by an older version.
    """

    kind: Kind
    categories: tuple[Plain, ...] = ()
    scale: MeanAndDeviation = (0.0, 1.0)
    zone: str | None = None

    @model_validator(mode="after")
    def _check_zone(self) -> Covariate:
        if self.zone:
            find_zone(self.zone)
        return self

    @property
    def numbers(self) -> int:
        """How many numbers a row has of it."""
        of_kind = {"category": 0, "categories": len(self.categories), "number": 1, "time": 1 + 2 * len(PERIODS)}
        return of_kind[self.kind]

    @property
    def codes(self) -> int:
        """The number of codes that a cell may have."""
        return len(self.categories) if self.kind == "category" else 0


def learn_covariates(tables: Mapping[str, pd.DataFrame], kinds: Mapping[str, Kind | None]) -> tuple[Covariate, ...]:
    """Learn the covariates: categories from all tables, scales from the training table. Raises TableError.

    tables: name in messages → table. kinds: column → kind; None for number, time or category, depending on whether the
    column has numbers, dates or other cells.
    """
    for source, table in tables.items():
        check_columns(table, kinds, source)
    train = tables[TRAINING]
    covariates = []
    for name, stated in kinds.items():
        kind = stated or _guess_kind(train[name])
        if kind == "category":
            covariates.append(Covariate(kind=kind, categories=tuple(learn_items(tables, name))))
        elif kind == "categories":
            found: set[str] = set()
            for source, table in tables.items():
                found.update(*_split_cells(table[name], source))
            covariates.append(Covariate(kind=kind, categories=tuple(sorted(found))))
        else:
            zone = _find_zone(train[name], TRAINING) if kind == "time" else None
            mean, deviation = measure_scale(_read_column(train[name], kind, TRAINING, zone))
            covariates.append(Covariate(kind=kind, scale=(mean, deviation or 1.0), zone=zone))
    return tuple(covariates)


def read_covariates(
    frame: pd.DataFrame, covariates: Mapping[str, Covariate], source: str
) -> tuple[np.ndarray, np.ndarray]:
    """The categories of rows, [rows, columns of categories], and their numbers, [rows, numbers].

    Categories of all columns are numbered one after the other. covariates: by column. Raises TableError for an empty
    cell, a category in no training row, and a cell that is not a number or time.
    """
    categories = [np.zeros((len(frame), 0), np.int64)]
    numbers = [np.zeros((len(frame), 0))]
    first = 0
    for name, covariate in covariates.items():
        if covariate.kind == "category":
            codes = code_values(frame[name], covariate.categories, source, noun="categories")
            categories.append(codes + first)
            first += len(covariate.categories)
            continue
        if covariate.kind == "categories":
            numbers.append(_mark_categories(frame[name], covariate.categories, source))
            continue
        column = _read_column(frame[name], covariate.kind, source, covariate.zone)
        mean, deviation = covariate.scale
        numbers.append((column - mean) / deviation)
        if covariate.kind == "time":
            for period in PERIODS:
                angle = 2 * np.pi * column / period
                numbers += [np.cos(angle), np.sin(angle)]
    return np.column_stack(categories), np.column_stack(numbers)


def _split_cells(column: pd.Series[Any], source: str) -> list[set[str]]:
    """The categories of each cell. Raises TableError for a cell that is empty, or neither a text nor a whole number."""
    require_values(column, source)
    cells = []
    for row, value in enumerate(column):
        if not isinstance(value, str | int | np.integer):
            raise refuse_kind(column.name, value, source)
        names = {name.strip() for name in str(value).split(SEPARATOR)}
        if "" in names:
            problem = f"{show_value(value)} has an empty category, expected categories with {SEPARATOR} between them"
            raise TableError(problem, subject=source, row=row + 1, column=column.name)
        cells.append(names)
    return cells


def _mark_categories(column: pd.Series[Any], categories: Sequence[Any], source: str) -> np.ndarray:
    """Which categories each cell has, [rows, categories]; 1 or 0. Raises TableError, also for an unknown category."""
    number_of = {name: number for number, name in enumerate(categories)}
    cells = _split_cells(column, source)
    unknown = np.array([not number_of.keys() >= names for names in cells])
    problem = (
        f" has a category that is not in the training rows, expected some of {len(categories):,} categories such as "
        f"{show_value(categories[0])}; leave the row out, or fit again with it"
    )
    refuse_first(unknown, column, source, problem)
    marks = np.zeros((len(column), len(categories)))
    for row, names in enumerate(cells):
        marks[row, [number_of[name] for name in names]] = 1
    return marks


def _guess_kind(column: pd.Series[Any]) -> Kind:
    if pd.api.types.infer_dtype(column) in ("datetime64", "datetime", "date", "period"):
        return "time"
    is_number = pd.api.types.is_numeric_dtype(column.dtype) and column.dtype.kind != "b"
    return "number" if is_number else "category"


def _read_moments(column: pd.Series[Any], source: str) -> Moments | None:
    """The times of a column; None for numbers. Raises TableError if some have a zone, and others none."""
    is_number = pd.api.types.is_numeric_dtype(column.dtype) or pd.api.types.infer_dtype(column) == "integer"
    if is_number or column.dtype.kind == "m":
        return None
    moments = read_any_moments(column)
    # Numbers of a file are texts if there is a text among them.
    if moments.wall.isna().any() and parse_numbers(column).notna().sum() > moments.wall.notna().sum():
        return None
    with naming({"": source}):
        refuse_mixed_zones(column, moments, "write them all the same way")
    return moments


def _find_zone(column: pd.Series[Any], source: str) -> str | None:
    """The zone of a column of times; "" without, None for numbers."""
    moments = _read_moments(column, source)
    return None if moments is None else moments.zone


def describe_times(frame: pd.DataFrame, covariates: Mapping[str, Covariate], source: str) -> Iterator[str]:
    """Notes about times whose zones differ from the training columns. covariates: by column."""
    for name, covariate in covariates.items():
        if covariate.kind != "time" or covariate.zone == "" or name not in frame:
            continue
        moments = _read_moments(frame[name], source)
        if moments is None:
            continue
        if covariate.zone and moments.is_naive().any():
            yield f"column {name!r:.60}: times without a zone are taken to be in {covariate.zone}"
        if covariate.zone is None and moments.zones:
            yield (
                f"column {name!r:.60}: times are taken to be in UTC, because the model has no time zone: it was saved "
                "by an older version, or fitted to seconds"
            )


def _read_column(column: pd.Series[Any], kind: Kind, source: str, zone: str | None = None) -> np.ndarray:
    """Numbers, or the days since 1970 of dates and of numbers, which are seconds then, [rows]. Raises TableError.

    zone: of the training column. Times without one are those of this zone, and otherwise of UTC.
    """
    if kind == "number":
        return require_numbers(column, source)
    require_values(column, source)
    if column.dtype.kind == "m":
        raise refuse_kind(column.name, column.iloc[0], source)
    moments = _read_moments(column, source)
    if moments is None:
        seconds = require_numbers(column, source)
        problem = (
            ", expected the seconds since 1970, for a time from 1677 to 2262; divide milliseconds by 1,000, or give "
            "dates "
            "(2020-01-31)"
        )
        refuse_first(np.abs(seconds) > MOST_SECONDS, column, source, problem)
        return seconds / DAY
    is_wrong = moments.wall.isna().to_numpy()
    problem = f", expected a date (2020-01-31) or seconds since 1970; {advise_date(column, is_wrong)}"
    refuse_first(is_wrong, column, source, problem)
    times = moments.wall
    if moments.zones:
        problem = " has a zone, but the training column has none; convert it to local times without a zone"
        refuse_first(np.full(len(column), zone == ""), column, source, problem)
        times = moments.utc
    elif zone:
        times = from_zone(moments.wall, zone)
    days: np.ndarray = times.to_numpy().astype("datetime64[us]").astype(np.int64) / (DAY * 10**6)
    return days
