"""The kinds of the columns of a user's table: numbers, categories and dates, and the columns that say nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import product
from typing import Any

import pandas as pd

from attngeo.bounds.names import list_names
from attngeo.errors import TableError
from attngeo.estimators.shared.cells import read_numbers, show_value
from attngeo.estimators.shared.files import keep_whole, list_texts
from attngeo.estimators.shared.paths import refuse_column
from attngeo.estimators.tabular.options import Kind, Unseen

# How dates are written. One that reads all cells of a column is found; if two do, day and month are uncertain.
DATE_FORMATS = ("%Y-%m-%d", "%Y/%m/%d", "%Y%m%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y")
TIME_FORMATS = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", "T%H:%M", "T%H:%M:%S", "T%H:%M:%S.%f")
# Formats without a separator: whole numbers, which are dates only if the user says so.
WITHOUT_SEPARATOR = ("%Y%m%d",)
# Cells that are tried before a whole column is read.
FIRST_CELLS = 20
# Rows from which on a column with another value in each is left out.
MANY_ROWS = 20
# The parts of a date. Days count from 1970, with a fraction for the time of the day.
DAYS, MONTH, WEEKDAY, HOUR = PARTS = ("days", "month", "weekday", "hour")
SECONDS_OF_DAY = 86_400


def find_date_format(column: pd.Series[Any], *, is_date: bool = False) -> str | None:
    """How the dates of a column are written; "" for a dtype of dates; None for a column of something else.

    is_date: whether the user says that it has dates. If two formats read all cells, the first one is taken then, and
    none otherwise.
    """
    if column.dtype.kind == "M" or isinstance(column.dtype, pd.DatetimeTZDtype):
        return ""
    texts = column.dropna().map(str).str.strip()
    if not len(texts):
        return None
    days = DATE_FORMATS if is_date else [day for day in DATE_FORMATS if day not in WITHOUT_SEPARATOR]
    found = [written for written in map("".join, product(days, TIME_FORMATS)) if _are_dates(texts, written)]
    has_one = len({text.replace(".%f", "") for text in found}) == 1
    return found[0] if has_one or (found and is_date) else None


def _are_dates(texts: pd.Series[Any], written: str) -> bool:
    """Whether all texts are dates of this format. Only the first ones are read if one of them is none."""
    return all(bool(_read_dates(some, written).notna().all()) for some in (texts[:FIRST_CELLS], texts))


def _read_dates(texts: pd.Series[Any], written: str) -> pd.Series[Any]:
    """Texts as dates, NaT for what is none."""
    return pd.to_datetime(texts, format=written, errors="coerce")


def split_dates(frame: pd.DataFrame, dates: Mapping[str, str], unseen: Unseen = "mask") -> pd.DataFrame:
    """The frame with the parts of dates in place of the columns of dates.

    Args:
        frame: the rows.
        dates: the columns of dates, those that the frame lacks among them, and how each is written.
        unseen: with "error", a cell that is no date is refused; otherwise it is missing.

    Raises:
        TableError: a cell is no date.
    """
    for name, written in dates.items():
        if name not in frame:
            continue
        column = frame[name]
        if column.dtype.kind == "M" or isinstance(column.dtype, pd.DatetimeTZDtype):
            moments = column
        elif written:
            moments = _read_dates(column.astype("str").str.strip(), written)
        else:
            moments = pd.to_datetime(column, errors="coerce")
        is_wrong = moments.isna() & column.notna()
        if unseen == "error" and is_wrong.any():
            row = int(is_wrong.to_numpy().argmax())
            problem = f"{show_value(column.iloc[row])} is no date as in training ({written or 'a date of Parquet'})"
            raise TableError(f"{problem}; correct it, or leave the row out", row=row + 1, column=name)
        place = int(frame.columns.get_loc(name))  # type: ignore[arg-type]
        frame = frame.drop(columns=name)
        for number, (part, values) in enumerate(_list_parts(moments)):
            frame.insert(place + number, name_part(name, part), values)
    return frame


def _list_parts(moments: pd.Series[Any]) -> Iterator[tuple[str, pd.Series[Any]]]:
    """The parts of dates. All but the days are categories."""
    if isinstance(moments.dtype, pd.DatetimeTZDtype):
        moments = moments.dt.tz_localize(None)
    seconds = (moments - pd.Timestamp(0)).dt.total_seconds()
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
    """The columns of a file that give these columns: a column of dates in place of its parts."""
    sources: dict[str, str] = {}
    for name in dates:
        sources |= dict.fromkeys(list_parts([name]), name)
    return list(dict.fromkeys(sources.get(name, name) for name in names))


def select_columns(
    frame: pd.DataFrame, wanted: Collection[str] | None, dropped: Collection[str], path: str
) -> pd.DataFrame:
    """The columns that the user wants. Raises TableError for one that the table lacks, or if none remains."""
    for name in (*(wanted or ()), *dropped):
        if name not in frame:
            raise refuse_column(name, frame.columns, path)
    names = [name for name in frame.columns if (wanted is None or name in wanted) and name not in dropped]
    if not names:
        raise TableError(f"no column remains of {list_names(list(frame.columns))}; drop fewer", table=path)
    return frame[names]


def set_kinds(frame: pd.DataFrame, kinds: Mapping[str, Kind], path: str) -> tuple[pd.DataFrame, dict[str, str]]:
    """The frame with columns of these kinds, and the columns of dates, each with how it is written.

    Columns without a kind stay as they are: numbers are numbers, other cells are categories, but dates are found.
    Raises TableError for a column that the table lacks, or whose cells are of another kind.
    """
    for name in kinds:
        if name not in frame:
            raise refuse_column(name, frame.columns, path)
    dates: dict[str, str] = {}
    may_be_dates = {*list_texts(frame)} | {name for name in frame.columns if frame[name].dtype.kind in "MO"}
    for name in frame.columns:
        column = frame[name]
        kind = kinds.get(str(name))
        if kind == "category":
            frame = frame.assign(**{name: keep_whole(column).astype("category")})
        elif kind == "number":
            numbers = as_numbers(column)
            if not numbers.notna().any():
                raise TableError("has no numbers, expected some; choose another kind", table=path, column=name)
            frame = frame.assign(**{name: numbers})
        elif kind == "date" or name in may_be_dates:
            written = find_date_format(column, is_date=kind == "date")
            if written is not None:
                dates[str(name)] = written
            elif kind == "date":
                raise TableError(
                    "has cells that are no dates of one format, expected such as 2023-12-31 or 31.12.2023 23:59:59; "
                    "write all dates alike",
                    table=path,
                    column=name,
                )
    return frame, dates


def as_numbers(column: pd.Series[Any]) -> pd.Series[Any]:
    """The cells of a column as numbers, missing for what is none."""
    return keep_whole(pd.Series(read_numbers(column), index=column.index))


def find_free_texts(frame: pd.DataFrame) -> Iterator[tuple[str, int]]:
    """The columns of which most texts occur once, such as comments, each with the number of its texts."""
    if len(frame) < MANY_ROWS:
        return
    for name in list_texts(frame):
        counts = frame[name].value_counts()
        if 2 * int((counts == 1).sum()) > int(counts.sum()):
            yield str(name), len(counts)


def find_row_names(frame: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """The columns that name rows, and say nothing of other rows, each with the reason.

    They are texts with another value in every row, and whole numbers that count the rows.
    """
    if len(frame) < MANY_ROWS:
        return
    texts = list_texts(frame)
    for name in frame.columns:
        column = frame[name]
        if column.isna().any() or not column.is_unique:
            continue
        if name in texts:
            yield str(name), "has another text in every row"
        elif column.dtype.kind in "iu" and int(column.max()) - int(column.min()) + 1 == len(column):
            yield str(name), "numbers the rows"
