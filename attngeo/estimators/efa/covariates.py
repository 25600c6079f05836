"""Covariates: facts of a row beside its item and its values, as categories and as numbers near 1.

A cell of several categories, such as Drama|War, is a number for each known category: 1 for those that it has, else 0. A
time is seven numbers: how late it is, and where it is in a day, a week and a year (cosine and sine of each).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import Field

from attngeo.errors import TableError
from attngeo.estimators.efa.columns import (
    TRAINING,
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
    """A column of covariates as a model knows it.

    categories: in the order of their numbers, if its kind is category or categories. scale: mean and deviation of its
    numbers; of a time, of its days since 1970.
    """

    kind: Kind
    categories: tuple[Plain, ...] = ()
    scale: MeanAndDeviation = (0.0, 1.0)

    @property
    def numbers(self) -> int:
        """How many numbers a row has of it."""
        of_kind = {"category": 0, "categories": len(self.categories), "number": 1, "time": 1 + 2 * len(PERIODS)}
        return of_kind[self.kind]

    @property
    def codes(self) -> int:
        """How many codes it has, one of which a row has."""
        return len(self.categories) if self.kind == "category" else 0


def learn_covariates(tables: Mapping[str, pd.DataFrame], kinds: Mapping[str, Kind | None]) -> tuple[Covariate, ...]:
    """The covariates of tables: categories of all of them, the scales of the training table. Raises TableError.

    tables: by their names in messages. kinds: of the columns; None for number, time or category as the column has
    numbers, dates or others.
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
            mean, deviation = measure_scale(_read_column(train[name], kind, TRAINING))
            covariates.append(Covariate(kind=kind, scale=(mean, deviation or 1.0)))
    return tuple(covariates)


def read_covariates(
    frame: pd.DataFrame, covariates: Mapping[str, Covariate], source: str
) -> tuple[np.ndarray, np.ndarray]:
    """The categories of rows, [rows, columns of categories], and their numbers, [rows, numbers].

    Categories of all columns are numbered one after the other. covariates: by column. Raises TableError for a cell that
    is empty, a category that no training row has, and what is no number or time.
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
        column = _read_column(frame[name], covariate.kind, source)
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
            problem = f"{show_value(value)} has an empty category, expected texts with {SEPARATOR} between them"
            raise TableError(problem, table=source, row=row + 1, column=column.name)
        cells.append(names)
    return cells


def _mark_categories(column: pd.Series[Any], categories: Sequence[Any], source: str) -> np.ndarray:
    """Which categories each cell has, [rows, categories]; 1 or 0. Raises TableError, also for an unknown category."""
    number_of = {name: number for number, name in enumerate(categories)}
    cells = _split_cells(column, source)
    unknown = np.array([not number_of.keys() >= names for names in cells])
    problem = (
        f" has a category that no training row has, expected some of {len(categories):,} categories such as "
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


def _read_column(column: pd.Series[Any], kind: Kind, source: str) -> np.ndarray:
    """Numbers, or the days since 1970 of dates and of numbers, which are seconds then, [rows]. Raises TableError."""
    if kind == "number":
        return require_numbers(column, source)
    require_values(column, source)
    if column.dtype.kind == "m":
        raise refuse_kind(column.name, column.iloc[0], source)
    is_number = pd.api.types.is_numeric_dtype(column.dtype) or pd.api.types.infer_dtype(column) == "integer"
    if not is_number:
        values = column.dt.start_time if isinstance(column.dtype, pd.PeriodDtype) else column
        times = pd.to_datetime(values, errors="coerce", utc=True, format="ISO8601")
        # Numbers of a file are texts if there is a text among them.
        is_number = bool(times.isna().any()) and parse_numbers(column).notna().sum() > times.notna().sum()
    if is_number:
        seconds = require_numbers(column, source)
        problem = (
            ", expected seconds since 1970 of a time from 1677 to 2262; divide milliseconds by 1,000, or give dates "
            "(2020-01-31)"
        )
        refuse_first(np.abs(seconds) > MOST_SECONDS, column, source, problem)
        return seconds / DAY
    problem = ", expected a date (2020-01-31) or seconds since 1970; leave the row out"
    refuse_first(times.isna().to_numpy(), column, source, problem)
    days: np.ndarray = ((times - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)).to_numpy(np.float64)
    return days
