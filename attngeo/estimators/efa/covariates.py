"""Covariates: what is known of a row beside its item, as categories and as numbers near 1.

A time is seven numbers: how late it is, and where it is in a day, a week and a year (cosine and sine of each).
"""

from __future__ import annotations

from collections.abc import Mapping
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
    read_numbers,
    refuse_kind,
    require_values,
    show_name,
)
from attngeo.estimators.efa.families import LARGEST
from attngeo.estimators.efa.options import Kind
from attngeo.estimators.shared.saving import Plain, list_plain
from attngeo.schemas import Table

# Days of a day, a week and a year; seconds of a day.
PERIODS, DAY = (1.0, 7.0, 365.2425), 86_400
# A deviation that is a smaller share of the mean is that of equal numbers, whose mean is rounded.
ROUNDING = 2.0**-48
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
MeanAndDeviation = tuple[Number, Annotated[float, Field(ge=1 / LARGEST, le=LARGEST, allow_inf_nan=False)]]


class Covariate(Table):
    """What a model knows of a column of covariates.

    categories: in the order of their numbers, if its kind is category. scale: mean and deviation of its numbers; of a
    time, of its days since 1970.
    """

    kind: Kind
    categories: tuple[Plain, ...] = ()
    scale: MeanAndDeviation = (0.0, 1.0)

    @property
    def numbers(self) -> int:
        """How many numbers a row has of it."""
        return {"category": 0, "number": 1, "time": 1 + 2 * len(PERIODS)}[self.kind]


def learn_covariates(tables: Mapping[str, pd.DataFrame], kinds: Mapping[str, Kind | None]) -> tuple[Covariate, ...]:
    """The covariates of tables: categories of all of them, the scales of the training table. Raises TableError.

    tables: by what messages call them. kinds: of the columns; None for number, time or category as the column has
    numbers, dates or others.
    """
    for source, table in tables.items():
        check_columns(table, kinds, source)
    train, found = tables[TRAINING], []
    for name, stated in kinds.items():
        kind = stated or _guess_kind(train[name])
        if kind == "category":
            categories = list_plain(learn_items(tables, name), "a category is a")
            found.append(Covariate(kind=kind, categories=tuple(categories)))
            continue
        numbers = _read_days(train[name], TRAINING) if kind == "time" else _read_all(train, name, TRAINING)
        mean, deviation = float(numbers.mean()), float(numbers.std())
        is_constant = deviation <= max(ROUNDING * abs(mean), 1 / LARGEST)
        found.append(Covariate(kind=kind, scale=(mean, 1.0 if is_constant else deviation)))
    return tuple(found)


def read_covariates(
    frame: pd.DataFrame, covariates: Mapping[str, Covariate], source: str
) -> tuple[np.ndarray, np.ndarray]:
    """The categories of rows, [rows, columns of categories], and their numbers, [rows, numbers].

    Categories of all columns are numbered one after the other. covariates: by column. Raises TableError for a cell that
    is empty, a category that no training row has, and what is no number or time.
    """
    categories, numbers, first = [], [], 0
    for name, covariate in covariates.items():
        if covariate.kind == "category":
            every = np.arange(len(frame))
            codes = code_values(frame[name], covariate.categories, kept=every, source=source, noun="categories")
            categories.append(codes + first)
            first += len(covariate.categories)
            continue
        is_time = covariate.kind == "time"
        read = _read_days(frame[name], source) if is_time else _read_all(frame, name, source)
        numbers.append((read - covariate.scale[0]) / covariate.scale[1])
        for angle in [2 * np.pi * read / period for period in PERIODS] if is_time else []:
            numbers += [np.cos(angle), np.sin(angle)]
    none = np.zeros((len(frame), 0))
    return np.column_stack([none.astype(np.int64), *categories]), np.column_stack([none, *numbers])


def _guess_kind(column: pd.Series[Any]) -> Kind:
    if pd.api.types.infer_dtype(column) in ("datetime64", "datetime", "date", "period"):
        return "time"
    return "number" if pd.api.types.is_numeric_dtype(column.dtype) and column.dtype.kind != "b" else "category"


def _read_all(frame: pd.DataFrame, name: str, source: str) -> np.ndarray:
    return read_numbers(frame, name, kept=np.arange(len(frame)), source=source)


def _read_days(column: pd.Series[Any], source: str) -> np.ndarray:
    """Days since 1970 of dates, or of numbers, which are seconds. Raises TableError."""
    require_values(column, source)
    if column.dtype.kind == "m":
        raise refuse_kind(column.name, column.iloc[0], source)
    if pd.api.types.is_numeric_dtype(column.dtype):
        return read_numbers(column.to_frame(), str(column.name), kept=np.arange(len(column)), source=source) / DAY
    values = column.dt.start_time if isinstance(column.dtype, pd.PeriodDtype) else column
    times = pd.to_datetime(values, errors="coerce", utc=True, format="ISO8601")
    if times.isna().any():
        at = int(times.isna().to_numpy().argmax())
        problem = f"{show_name(column.iloc[at])}, expected a date (2020-01-31) or seconds since 1970; leave the row out"
        raise TableError(problem, table=source, row=at + 1, column=column.name)
    days: np.ndarray = ((times - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)).to_numpy(np.float64)
    return days
