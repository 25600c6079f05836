"""The columns of a tidy table: which part of the model they ask for; as codes, ranks and numbers; what is refused.

Covariates are what is known of a row beside its item, as categories and as numbers near 1. A time is seven numbers: how
late it is, and where it is in a day, a week and a year (cosine and sine of each).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import Field

from attngeo.bounds.names import list_names, printable
from attngeo.choices import advise
from attngeo.errors import TableError, UsageError
from attngeo.estimators.efa.families import LARGEST
from attngeo.estimators.efa.options import EfaOptions, Kind
from attngeo.estimators.shared.cells import UNKNOWN, find_values, parse_numbers, read_numbers, show_value
from attngeo.estimators.shared.files import sort_values
from attngeo.estimators.shared.saving import PLAIN, Plain, list_plain
from attngeo.schemas import Table

# What messages call the tables of a fit, and one that a fitted model reads.
TRAINING, HELD_OUT, TEST, TABLE = "the training table", "the validation table", "the test table", "the table"
# Options of attention, of factor models, of factor models of places, and of values.
OF_ATTENTION, OF_FACTORS = ("n_layers", "n_heads"), ("neighbours", "distance", "window")
OF_PLACES, OF_VALUES = ("coordinates", "neighbours", "distance"), ("value", "coordinates", "lags", "item_vectors")
DEFAULT = EfaOptions()
Part = Literal["items", "values"]
# Days of a day, a week and a year; seconds of a day.
PERIODS, DAY = (1.0, 7.0, 365.2425), 86_400
# Seconds from 1970 to the last time that 64 bits of nanoseconds have. Milliseconds since 1970 are more from April 1970.
MOST_SECONDS = 2**63 / 10**9
# A deviation that is a smaller share of the mean is that of equal numbers, whose mean is rounded.
ROUNDING = 2.0**-48
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
MeanAndDeviation = tuple[Number, Annotated[float, Field(ge=1 / LARGEST, le=LARGEST, allow_inf_nan=False)]]


def choose_parts(options: EfaOptions, columns: list[Any]) -> tuple[tuple[Part, ...], bool]:
    """The parts that are asked for, or else the one of which the table has a column; and whether values have items.

    columns: of the training table. Raises TableError if it lacks one, or one that the options name, and UsageError for
    an option without an effect.
    """
    has_values = any(name in columns and name != options.item for name in options.families)
    part = options.part
    if part == "auto":
        part = "values" if has_values or options.value != DEFAULT.value else "items"
    parts: tuple[Part, ...] = ("items", "values") if part == "both" else (part,)
    values = [*options.families] if "values" in parts else []
    has_items = options.item_vectors and options.item in columns
    modelled = [*([options.item] if "items" in parts else []), *values]
    require_columns(columns, modelled, TRAINING)
    others = {"position": (options.position, modelled)}
    if values and (has_items or part == "both"):
        others["item"] = (options.item, values)
    for name, (column, predicted) in others.items():
        if column in predicted:
            raise UsageError(f"${name} is {column!r}, which is the column that is predicted; name another one", name)
    _refuse_without_effect(options, values, has_items=has_items)
    if values and not has_items and not options.coordinates:
        raise TableError(
            f"has neither the column {options.item!r} nor coordinates, expected one of them for a model of values; "
            "name the columns by options such as $item",
            "item",
            table=TRAINING,
        )
    if values and options.item_vectors and options.item != DEFAULT.item:
        require_columns(columns, [options.item], TRAINING)
    return parts, has_items


def _refuse_without_effect(options: EfaOptions, values: Sequence[str], *, has_items: bool) -> None:
    """Raise UsageError for an option that changes nothing. values: columns that are modelled."""
    if not values:
        _refuse(options, "a model of items", OF_VALUES)
        if options.family is not None:
            raise UsageError(
                f"$family is {options.family}, which values have, but the model is of items; name the column of values "
                "by $value",
                "family",
                "value",
            )
    if options.model == "efa":
        _refuse(options, "attention", OF_FACTORS)
    else:
        _refuse(options, "a factor model", ("lags", "covariates", *OF_ATTENTION))
        if has_items:
            _refuse(options, "a factor model of items", OF_PLACES, "turn item_vectors off for a model of places")
        elif values:
            _refuse(options, "a factor model of places", ("window",), "set neighbours")
    if len(values) > 1 and (options.model == "fm" or options.lags):
        what = "a factor model has" if options.model == "fm" else "$lags are of"
        advice = "name one, or fit a model for each"
        raise UsageError(f"$value names {len(values)} columns, but {what} one value; {advice}", "value", "lags")


def _refuse(options: EfaOptions, what: str, names: Sequence[str], advice: str = "leave it out") -> None:
    """Raise UsageError if one of these options is given, which change nothing."""
    for name in names:
        if getattr(options, name) != getattr(DEFAULT, name):
            raise UsageError(f"${name} has no effect on {what}; {advice}", name)


def require_frame(data: Any, source: str = TABLE) -> None:
    """Raise UsageError unless it is a DataFrame."""
    if not isinstance(data, pd.DataFrame):
        raise UsageError(f"{source} is a {type(data).__name__}, expected a DataFrame; read a file with pandas first")


def check_columns(frame: pd.DataFrame, names: Iterable[str], source: str) -> None:
    """Raise TableError unless the table has rows, and these columns once each."""
    if not len(frame):
        raise TableError("has no rows, expected some", table=source)
    require_columns(list(frame.columns), names, source)


def require_columns(columns: Sequence[Any], names: Iterable[str], source: str) -> None:
    """Raise TableError unless a table has these columns once each."""
    for name in names:
        count = columns.count(name)
        if count != 1:
            have = list_names(columns)
            what = f"{count} columns {name!r:.60}" if count else f"no column {name!r:.60}"
            options = () if source == TABLE else ("sequence", "item")
            by = "by options such as $sequence and $item" if options else "as in training"
            names_again = f"name the columns {by}"
            advice = names_again if count else advise(name, map(printable, map(str, columns)), names_again)
            raise TableError(f"{what}, expected one; it has {have}; {advice}", *options, table=source)


def require_values(column: pd.Series[Any], source: str) -> None:
    """Raise TableError for a missing value."""
    missing = column.isna().to_numpy()
    if missing.any():
        row = int(missing.argmax()) + 1
        problem = "the cell is empty, or a text such as NA that --missing names; fill it or leave the row out"
        raise TableError(problem, table=source, row=row, column=column.name)


def refuse_kind(column: Any, value: Any, source: str) -> TableError:
    """The error for a value that cannot be told from others, such as a list, or that no saved model keeps."""
    kind = type(value).__name__
    return TableError(f"has a {kind}, expected texts or numbers; convert it", table=source, column=column)


def code_sequences(column: pd.Series[Any], source: str) -> tuple[np.ndarray, np.ndarray]:
    """The number of the sequence of each row, and the names of all sequences, as they come first. Raises TableError."""
    require_values(column, source)
    try:
        codes, labels = pd.factorize(column)
    except TypeError:
        raise refuse_kind(column.name, column.iloc[0], source) from None
    return codes, np.asarray(labels)


def rank_positions(column: pd.Series[Any], codes: np.ndarray, source: str, missing: np.ndarray) -> np.ndarray:
    """The ranks of the positions of rows. Raises TableError for one that a sequence has twice, but for missing rows.

    codes: of the sequences of rows. missing: which rows may share a position with other missing ones.
    """
    positions = _read_positions(column, source)
    twice = pd.DataFrame({"sequence": codes, "position": positions}).duplicated()
    if missing.any():
        twice &= ~pd.Series(missing).groupby([codes, positions]).transform("all")
    if twice.any():
        at = int(np.flatnonzero(twice)[0])
        problem = f"{show_value(column.iloc[at])} is in its sequence twice; name a column that numbers its rows"
        raise TableError(problem, table=source, row=at + 1, column=column.name)
    return positions


def _read_positions(column: pd.Series[Any], source: str) -> np.ndarray:
    """The ranks of positions, equal ones together: of numbers with all their digits, or of dates of any year."""
    require_values(column, source)
    values = column.dt.start_time if isinstance(column.dtype, pd.PeriodDtype) else column
    if column.dtype.kind == "c":
        raise TableError("has complex numbers, expected real ones, or dates", table=source, column=column.name)
    if not (pd.api.types.is_numeric_dtype(values.dtype) or values.dtype.kind in "mM"):  # texts, or days of Parquet
        values = parse_numbers(column)
        if values.isna().any():
            dates = pd.to_datetime(column, errors="coerce", utc=True, format="ISO8601")
            values = dates if dates.isna().sum() < values.isna().sum() else values
    wrong = values.isna().to_numpy() | (values.abs() == np.inf if values.dtype.kind == "f" else False)
    if wrong.any():
        at = int(wrong.argmax())
        problem = f"{show_value(column.iloc[at])}, expected a finite number or a date (2020-01-31); leave the row out"
        raise TableError(problem, table=source, row=at + 1, column=column.name)
    return values.rank(method="dense").to_numpy(np.int64)


def learn_items(tables: Mapping[str, pd.DataFrame], column: str) -> list[Any]:
    """The items of tables, sorted. tables: by what messages call them.

    Raises TableError for an item that is missing, or that a saved model could not keep.
    """
    items: set[Any] = set()
    for source, table in tables.items():
        check_columns(table, [column], source)
        require_values(table[column], source)
        try:
            new = set(table[column].unique().tolist()) - items
        except TypeError:
            raise refuse_kind(column, table[column].iloc[0], source) from None
        for item in new:
            if not isinstance(item.item() if isinstance(item, np.generic) else item, PLAIN):
                raise refuse_kind(column, item, source)
        items |= new
    return sort_values(items)


def code_values(
    column: pd.Series[Any], known: Sequence[Any], *, kept: np.ndarray, source: str, noun: str = "items"
) -> np.ndarray:
    """The numbers of values among the known ones; 0 for rows that are not kept, which are not read.

    Those of other kinds are found as `find_values` does. Raises TableError for a value that is missing or unknown.
    """
    try:
        codes = find_values(column, known, are_codes=True)
    except TypeError:
        raise refuse_kind(column.name, column.iloc[0], source) from None
    unseen = kept[codes[kept] == UNKNOWN]
    if len(unseen):
        at = int(unseen.min())
        if column.isna().iloc[at]:
            require_values(column, source)
        value, example = show_value(column.iloc[at]), show_value(known[0])
        problem = f"{value} is in no training row, expected one of {len(known):,} {noun} such as {example}; "
        problem += "leave the row out, or fit again with it"
        raise TableError(problem, table=source, row=at + 1, column=column.name)
    return np.where(codes == UNKNOWN, 0, codes)


def require_numbers(frame: pd.DataFrame, name: str, *, kept: np.ndarray, source: str) -> np.ndarray:
    """A column as finite numbers whose squares are finite, checked for the kept rows. Raises TableError."""
    if frame[name].dtype.kind in "mM" or isinstance(frame[name].dtype, pd.PeriodDtype):
        raise TableError("has dates or times, expected numbers; convert it, or name another", table=source, column=name)
    if frame[name].dtype.kind == "c":
        raise TableError("has complex numbers, expected real ones; convert it", table=source, column=name)
    numbers = read_numbers(frame[name])
    wrong = kept[~(np.abs(numbers[kept]) <= LARGEST)]
    if len(wrong):
        at = int(wrong.min())
        value = show_value(frame[name].iloc[at])
        problem = f"{value}, expected a finite number of at most {LARGEST:g}; leave the row out, or scale the column"
        raise TableError(problem, table=source, row=at + 1, column=name)
    return numbers


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
        mean, deviation = measure_scale(numbers)
        found.append(Covariate(kind=kind, scale=(mean, deviation or 1.0)))
    return tuple(found)


def measure_scale(numbers: np.ndarray) -> tuple[float, float]:
    """Mean and deviation of numbers; 0 for equal ones, whose mean is rounded."""
    mean, deviation = float(numbers.mean()), float(numbers.std())
    return mean, 0.0 if deviation <= max(ROUNDING * abs(mean), 1 / LARGEST) else deviation


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
    return require_numbers(frame, name, kept=np.arange(len(frame)), source=source)


def _read_days(column: pd.Series[Any], source: str) -> np.ndarray:
    """Days since 1970 of dates, or of numbers, which are seconds. Raises TableError."""
    require_values(column, source)
    if column.dtype.kind == "m":
        raise refuse_kind(column.name, column.iloc[0], source)
    if pd.api.types.is_numeric_dtype(column.dtype) or pd.api.types.infer_dtype(column) == "integer":
        return _read_seconds(column, source) / DAY
    values = column.dt.start_time if isinstance(column.dtype, pd.PeriodDtype) else column
    times = pd.to_datetime(values, errors="coerce", utc=True, format="ISO8601")
    if times.isna().any():
        numbers = parse_numbers(column)
        if numbers.notna().sum() > times.notna().sum():  # of a file, with a text among them
            return _read_seconds(column, source) / DAY
        at = int(times.isna().to_numpy().argmax())
        problem = (
            f"{show_value(column.iloc[at])}, expected a date (2020-01-31) or seconds since 1970; leave the row out"
        )
        raise TableError(problem, table=source, row=at + 1, column=column.name)
    days: np.ndarray = ((times - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)).to_numpy(np.float64)
    return days


def _read_seconds(column: pd.Series[Any], source: str) -> np.ndarray:
    """Seconds since 1970. Raises TableError for what is no number, or too many seconds to be meant as such."""
    seconds = require_numbers(column.to_frame(), str(column.name), kept=np.arange(len(column)), source=source)
    far = np.abs(seconds) > MOST_SECONDS
    if far.any():
        at = int(far.argmax())
        problem = f"{show_value(column.iloc[at])}, expected seconds since 1970 of a time from 1677 to 2262; "
        problem += "divide milliseconds by 1,000, or give dates (2020-01-31)"
        raise TableError(problem, table=source, row=at + 1, column=column.name)
    return seconds
