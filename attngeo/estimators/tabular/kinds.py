"""The kinds of the columns of a user's table: numbers, categories and dates, and the columns that say nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from attngeo.bounds.names import list_names
from attngeo.errors import TableError
from attngeo.estimators.shared.cells import name_missing, refuse_unread, show_value
from attngeo.estimators.shared.dates import (
    DateColumn,
    find_dates,
    find_readable,
    find_short_year,
    list_day_formats,
    read_moments,
    read_wall_times,
)
from attngeo.estimators.shared.files import FEW, find_code, find_decimal, keep_whole, list_texts, naming
from attngeo.estimators.shared.numerals import describe_unit, find_numerals, read_beside_texts
from attngeo.estimators.shared.paths import refuse_column
from attngeo.estimators.tabular.options import Kind, Unseen

# Rows from which on a column with another value in each is left out.
MANY_ROWS = 20
# The parts of a date. Days count from 1970, with a fraction for the time of the day.
DAYS, MONTH, WEEKDAY, HOUR = PARTS = ("days", "month", "weekday", "hour")
SECONDS_OF_DAY = 86_400
# The formats of days of the kinds that say which of day and month is first.
ORDERS = {
    "day-month": ("%d/%m/%Y", "%d-%m-%Y", "%d.%m.%Y"),
    "month-day": ("%m/%d/%Y", "%m-%d-%Y"),
}


def ignore_note(note: str) -> None:
    """Ignore a note."""


def split_dates(
    frame: pd.DataFrame,
    dates: Mapping[str, DateColumn],
    unseen: Unseen = "mask",
    report: Callable[[str], None] = ignore_note,
) -> pd.DataFrame:
    """The frame with each date column replaced by its parts.

    Args:
        frame: the rows.
        dates: the date columns of the training rows, even if the frame lacks them.
        unseen: with "error", a cell that is not a date is an error; otherwise it is missing.
        report: gets notes about cells that are not dates, and about zones.

    Raises:
        TableError: a cell is not a date, more than a tenth of a column are not dates, or zones cannot be converted.
    """
    for name, training in dates.items():
        if name not in frame:
            continue
        column = frame[name]
        moments = read_moments(column, training.written)
        is_wrong = (moments.wall.isna() & column.notna()).to_numpy()
        unread = refuse_unread(column, is_wrong, "date", training.example, is_strict=unseen == "error")
        walls, notes = read_wall_times(column, training, moments)
        for note in filter(None, (unread, *notes)):
            report(f"column {name!r:.60}: {note}")
        place = int(frame.columns.get_loc(name))  # type: ignore[arg-type]
        frame = frame.drop(columns=name)
        for number, (part, values) in enumerate(_list_parts(walls)):
            frame.insert(place + number, name_part(name, part), values)
    return frame


def _list_parts(moments: pd.Series[Any]) -> Iterator[tuple[str, pd.Series[Any]]]:
    """The parts of times, datetime64[us]. All but the days are categories."""
    seconds = (moments - pd.Timestamp(0).as_unit("us")).dt.total_seconds()
    yield DAYS, seconds / SECONDS_OF_DAY
    for part, values in ((MONTH, moments.dt.month), (WEEKDAY, moments.dt.day_of_week), (HOUR, moments.dt.hour)):
        yield part, values.astype("Int64").astype("category")


def name_part(name: str, part: str) -> str:
    """The name of the column of a part of a date."""
    return f"{name}.{part}"


def list_parts(dates: Iterable[str]) -> list[str]:
    """The names of all parts of these columns of dates."""
    return [name_part(name, part) for name in dates for part in PARTS]


def list_sources(names: Iterable[str], dates: Iterable[str]) -> list[str]:
    """The columns of a file behind these columns: a date column in place of its parts."""
    sources: dict[str, str] = {}
    for name in dates:
        sources |= dict.fromkeys(list_parts([name]), name)
    return list(dict.fromkeys(sources.get(name, name) for name in names))


def select_columns(
    frame: pd.DataFrame, wanted: Collection[str] | None, dropped: Collection[str], path: str
) -> pd.DataFrame:
    """The columns to use, by the options. Raises TableError if the table lacks one, or if no column remains."""
    for name in (*(wanted or ()), *dropped):
        if name not in frame:
            raise refuse_column(name, frame.columns, path)
    names = [name for name in frame.columns if (wanted is None or name in wanted) and name not in dropped]
    if not names:
        raise TableError(f"no column remains of {list_names(list(frame.columns))}; drop fewer", subject=path)
    return frame[names]


def set_kinds(
    frame: pd.DataFrame, kinds: Mapping[str, Kind], path: str, report: Callable[[str], None] = ignore_note
) -> tuple[pd.DataFrame, dict[str, DateColumn]]:
    """The frame with columns of these kinds, and the date columns.

    Columns without a given kind keep theirs: numbers are numbers, other cells are categories, and dates are detected.
    report: gets a note about each column whose cells do not show which is day and which is month. Raises TableError for
    a missing column, or for cells of another kind.
    """
    for name in kinds:
        if name not in frame:
            raise refuse_column(name, frame.columns, path)
    dates: dict[str, DateColumn] = {}
    may_be_dates = {*list_texts(frame)} | {name for name in frame.columns if frame[name].dtype.kind in "MO"}
    for name in frame.columns:
        column = frame[name]
        kind = kinds.get(str(name))
        if kind == "category":
            frame = frame.assign(**{name: keep_whole(column).astype("category")})
        elif kind == "number":
            numbers = as_numbers(column, find_decimal(frame))
            unit = describe_unit(column)
            if unit and describe_unit(column[numbers.isna()]):  # 12% may be a number
                raise TableError(f"expected numbers, but {unit}", subject=path, column=name)
            if not numbers.notna().any():
                shown = show_value(column.dropna().iloc[0]) if column.notna().any() else "an empty cell"
                problem = f"has no numbers (its first value is {shown}); choose another kind"
                raise TableError(problem, subject=path, column=name)
            frame = frame.assign(**{name: numbers})
        elif kind is not None or name in may_be_dates:
            with naming({"": path}):
                dated, found = _read_kind(column, kind, report)
            if found is not None:
                frame = frame.assign(**{name: dated})
                dates[str(name)] = found
    return frame, dates


def _read_kind(
    column: pd.Series[Any], kind: Kind | None, report: Callable[[str], None]
) -> tuple[pd.Series[Any], DateColumn | None]:
    """The dates of a column that may have some, or has some if the user chose a kind; and its cells.

    A few texts among dates are missing cells, with a note. Raises TableError.
    """
    days = ORDERS.get(str(kind), ())
    found = find_dates(column, days, is_date=kind is not None)
    short = find_short_year(column) if found is None else ""
    if short:
        problem = f"{short!r:.40} looks like a date with a two-digit year, expected four digits, such as 31.12.2023"
        if kind is not None:
            raise TableError(problem, column=column.name)
        report(f"column {column.name!r:.60}: {problem}; it stays text")
    if found is None:
        cells = find_readable(column, days, is_date=kind is not None)
        is_wrong = column.notna().to_numpy() & ~np.any([*cells.values()], axis=0)
        is_few = 0 < is_wrong.sum() <= len(column) / FEW and 2 * (column.count() - is_wrong.sum()) > len(column)
        rest = column.mask(is_wrong) if is_few else column
        found = find_dates(rest, days, is_date=kind is not None) if is_few else None
        if found is None and kind is not None:
            raise _refuse_dates(column, is_wrong, cells)
        if found is not None:
            row = int(is_wrong.argmax())
            report(
                f"cells of column {column.name!r:.60} that are not dates count as missing: {is_wrong.sum():,}, such as "
                f"{show_value(column.iloc[row])} in row {row + 1}; --column-type {column.name}:category makes all of "
                "them categories"
            )
        column = rest
    uncertain = "" if kind in ORDERS else _describe_order(column, found)
    if uncertain:
        report(f"column {column.name!r:.60}: {uncertain}")
    return column, found


def _refuse_dates(column: pd.Series[Any], is_wrong: np.ndarray, cells: Mapping[str, np.ndarray]) -> TableError:
    """The error about a column without dates of one format.

    is_wrong: the cells that are no dates, [rows]. cells: those that each format reads, [rows].
    """
    expected = "expected a date such as 2023-12-31 or 31.12.2023 23:59:59"
    most = max(cells.values(), key=np.sum)
    if not most.any():
        return TableError(f"has no dates in one known format, {expected}; choose another kind", column=column.name)
    if not is_wrong.any():
        row = int((column.notna().to_numpy() & ~most).argmax())
        other = int(most.argmax())
        problem = f"does not have the format of {show_value(column.iloc[other])} in row {other + 1}"
        advice = "write all dates the same way"
    else:
        row = int(is_wrong.argmax())
        more = f" (nor are {is_wrong.sum() - 1:,} more of {column.count():,} cells)" if is_wrong.sum() > 1 else ""
        problem = f"is not a date{more}"
        advice = f"{name_missing([str(column.iloc[row])])} treats such values as missing"
    shown = show_value(column.iloc[row])
    return TableError(f"{shown} {problem}, {expected}; {advice}", row=row + 1, column=column.name)


def _describe_order(column: pd.Series[Any], found: DateColumn | None) -> str:
    """A note about dates whose cells do not tell the day from the month, "" for others. found: how they are read."""
    formats = list_day_formats(column)
    if len(formats) < 2:
        return ""
    example = show_value(str(column.dropna().iloc[0]))
    problem = f"day and month cannot be told apart, as in {example}"
    outcome = f"they are read as {found.written}" if found is not None else "they stay categories"
    return f"{problem}; {outcome}; --column-type {column.name!s:.60}:day-month or :month-day says which is first"


def as_numbers(column: pd.Series[Any], mark: str) -> pd.Series[Any]:
    """The cells of a column as numbers; other cells are missing: see `read_beside_texts`."""
    return keep_whole(pd.Series(read_beside_texts(column, mark), index=column.index))


def list_lost_texts(as_read: pd.DataFrame, frame: pd.DataFrame) -> dict[str, tuple[str, ...]]:
    """Column → the texts of a table that became missing cells when numbers and dates were read.

    Texts such as 1,5, which are numbers in another form, do not count. Both tables have the same rows.
    """
    lost = {}
    for name in frame.columns.intersection(list_texts(as_read), sort=False):
        cells = as_read[name][as_read[name].notna() & frame[name].isna()]
        texts = [text for text in cells.unique() if isinstance(text, str)]
        if pd.api.types.is_numeric_dtype(frame[name].dtype):
            texts = [text for text in texts if not find_numerals([text])]
        if texts:
            lost[str(name)] = tuple(texts)
    return lost


def find_free_texts(frame: pd.DataFrame) -> Iterator[tuple[str, int]]:
    """The columns where most texts occur only once, such as comments, each with its number of texts."""
    if len(frame) < MANY_ROWS:
        return
    for name in list_texts(frame):
        counts = frame[name].value_counts()
        if 2 * int((counts == 1).sum()) > int(counts.sum()):
            yield str(name), len(counts)


def find_likely_kind(column: pd.Series[Any], mark: str) -> tuple[str, np.ndarray]:
    """The kind of most cells of a text column, "number" or "date", and its other texts, [rows]; "" for neither kind.

    mark: the decimal mark of the file.
    """
    is_there = column.notna().to_numpy()
    if find_code(column.dropna().astype("str")):
        return "", np.zeros(len(column), bool)
    is_number = np.isfinite(read_beside_texts(column, mark))
    for kind, is_read in (("number", is_number), ("date", np.any([*find_readable(column).values()], axis=0))):
        if 2 * is_read.sum() > is_there.sum():
            return kind, is_there & ~is_read
    return "", np.zeros(len(column), bool)


def find_row_names(frame: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """The columns that only identify rows, each with the reason.

    They have a different text in every row, or whole numbers that count the rows.
    """
    if len(frame) < MANY_ROWS:
        return
    texts = list_texts(frame)
    for name in frame.columns:
        column = frame[name]
        if column.isna().any() or not column.is_unique:
            continue
        if name in texts:
            yield str(name), "has a different value in every row"
        elif column.dtype.kind in "iu" and int(column.max()) - int(column.min()) + 1 == len(column):
            yield str(name), "numbers the rows"
