"""Dates in the columns of a user's table: how they are written, their times on the wall clock, and their zones."""

from __future__ import annotations

import datetime as dt
import re
import zoneinfo
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from attngeo.errors import TableError
from attngeo.estimators.shared.cells import MOST_UNREAD_SHARE, show_value

# How days are written. One that reads all cells of a column is found; if two do, day and month are uncertain.
DAY_FORMATS = ("%Y-%m-%d", "%Y/%m/%d", "%Y%m%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y")
# Those that have one form with the day first, and with the month first.
UNCERTAIN = (("%d/%m/%Y", "%m/%d/%Y"), ("%d-%m-%Y", "%m-%d-%Y"))
# Formats without a separator: whole numbers, which are dates only if the user says so.
WITHOUT_SEPARATOR = ("%Y%m%d",)
# A cell: a day, and perhaps a time of the day, and its zone.
CELL = re.compile(
    r"(?P<day>\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}|\d{8})"
    r"(?:(?P<gap>T|\s+)(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:\.(?P<fraction>\d{1,9}))?)?"
    r"\s*(?P<zone>Z|z|UTC|GMT|[-+](?:[01]\d|2[0-3])(?::?[0-5]\d)?)?)?\Z"
)
# A zone that is one difference from UTC, in hours and minutes.
OFFSET = re.compile(r"([-+])(\d{2}):?(\d{2})?")
UTC = "UTC"
# A cell that is a day with a year of two digits, whose century is unknown; perhaps with a time of the day.
SHORT_YEAR = re.compile(r"\s*(?:0?[1-9]|[12]\d|3[01])([-/.])(?:0?[1-9]|[12]\d|3[01])\1\d{2}\s*(?:\s\d{1,2}:.*)?")
# Cells that are tried before a whole column is read.
FIRST_CELLS = 20
# Days from which on a time may be of no year of Python's calendar in another zone.
FIRST, LAST = np.datetime64("0001-01-03", "us"), np.datetime64("9999-12-29", "us")


@dataclass(frozen=True)
class DateColumn:
    """A date column, as learned from the training rows.

    Attributes:
        written: format of its cells; "" for a dtype of dates.
        zone: zone of its times, such as Europe/Berlin, UTC or +02:00; "" if they have none; None if unknown, in models
            saved by older versions.
        example: a cell of the column.
        has_several_zones: whether its cells have several zones; `zone` is UTC then.
    """

    written: str
    zone: str | None = ""
    example: str = ""
    has_several_zones: bool = False

    @property
    def has_times(self) -> bool:
        """Whether cells may have a time of the day."""
        return not self.written or "%H" in self.written


class Moments(NamedTuple):
    """The times of cells.

    Attributes:
        wall: time on the wall clock of the cell's zone, datetime64[us], [rows]; NaT if missing or not a date.
        utc: the same in UTC; NaT also for a cell without a zone.
        zones: names of all zones.
        others: cells whose days are written in another way than in training.
    """

    wall: pd.Series[Any]
    utc: pd.Series[Any]
    zones: tuple[str, ...]
    others: np.ndarray

    @property
    def zone(self) -> str:
        """The zone of a column with these times: UTC for several zones, "" for none."""
        if len(self.zones) > 1:
            return UTC
        return self.zones[0] if self.zones else ""

    def is_naive(self) -> pd.Series[bool]:
        """The cells that are dates without a zone."""
        return self.wall.notna() & self.utc.isna()


def find_dates(column: pd.Series[Any], days: Sequence[str] = (), *, is_date: bool = False) -> DateColumn | None:
    """How the dates of a training column are written, and their zone; None if the column has no dates.

    Args:
        column: cells.
        days: the day formats to try; without them, all.
        is_date: whether the user says that the column has dates. If two formats read all cells, the first one is used
            then, and none otherwise.

    Raises:
        TableError: some cells have a zone, and others none.
    """
    values = _unfold(column).dropna()
    if _is_of_dates(values):
        written = ""
    else:
        found = list_day_formats(values, days, is_date=is_date)
        if not found or (len(found) > 1 and not is_date):
            return None
        written = found[0] + _find_time_format(values)
    moments = read_moments(values, written)
    refuse_mixed_zones(column, moments, f"--column-type {column.name!s:.60}:category keeps the values as text")
    example = _write_cell(values.iloc[0]) if len(values) else ""
    return DateColumn(written, moments.zone, example, len(moments.zones) > 1)


def find_short_year(column: pd.Series[Any]) -> str:
    """The first cell that looks like a date with a two-digit year, in a text column where most cells do.

    "" for other columns.
    """
    if not pd.api.types.is_string_dtype(column.dtype):
        return ""
    texts = column.dropna().astype("str")
    is_short = texts.str.fullmatch(SHORT_YEAR).to_numpy(bool)
    is_other = ~is_short
    if not is_short.any() or is_other.sum() > MOST_UNREAD_SHARE * len(texts):
        return ""
    return str(texts.iloc[int(is_short.argmax())])


def list_day_formats(column: pd.Series[Any], days: Sequence[str] = (), *, is_date: bool = False) -> list[str]:
    """The day formats that read all cells of a column without a date dtype; see `find_dates`."""
    values = _unfold(column).dropna()
    if _is_of_dates(values) or not len(values):
        return []
    formats = _list_tried(days, is_date=is_date)
    for cells in (values[:FIRST_CELLS], values):
        if not formats:
            break
        parts = _split_cells(pd.Series(cells.unique()))
        times = _read_times(parts)
        formats = [day for day in formats if (_read_days(parts["day"], day) + times).notna().all()]
    return formats


def find_readable(column: pd.Series[Any], days: Sequence[str] = (), *, is_date: bool = False) -> dict[str, np.ndarray]:
    """Day format → the cells that it reads, [rows]; empty for a column where most cells are not dates.

    Args:
        column: the cells.
        days: as for `find_dates`.
        is_date: as for `find_dates`.
    """
    values = _unfold(column).astype(object)
    some = values.dropna()
    some = some.iloc[:: max(1, len(some) // FIRST_CELLS)]
    formats = _list_tried(days, is_date=is_date)
    if 2 * _split_cells(some)["day"].notna().sum() <= len(some):
        return {day: np.zeros(len(values), bool) for day in formats}
    codes, distinct = pd.factorize(values)
    parts = _split_cells(pd.Series(distinct, dtype=object))
    times = _read_times(parts)
    cells = {}
    for day in formats:
        is_read = (_read_days(parts["day"], day) + times).notna().to_numpy(bool)
        cells[day] = np.append(is_read, False)[codes]  # a missing cell has the code −1
    return cells


def _list_tried(days: Sequence[str], *, is_date: bool) -> list[str]:
    """The formats of days that are tried. days, is_date: as of `find_dates`."""
    return list(days) or [day for day in DAY_FORMATS if is_date or day not in WITHOUT_SEPARATOR]


def _find_time_format(values: pd.Series[Any]) -> str:
    """How the times of the day are written in cells that are dates, with all that any of them has."""
    texts = values.map(_write_cell).astype("str")
    if not texts.str.contains(":").any():
        return ""
    gap = "T" if texts.str.contains(r"\dT\d").any() else " "
    parts = {"%S": r":\d{2}:\d{2}", "%f": r":\d{2}\.\d", "%z": r":.*[-+A-Za-z]"}
    seconds, fraction, zone = (name if texts.str.contains(pattern).any() else "" for name, pattern in parts.items())
    return f"{gap}%H:%M{seconds and ':'}{seconds}{fraction and '.'}{fraction}{zone}"


def read_moments(column: pd.Series[Any], written: str) -> Moments:
    """The times of cells of a column whose training cells are written so.

    Cells of another form are read, too, if only one reading is possible: ISO dates, days with points, and, of other
    forms, those whose day or month some cell of the column tells.
    """
    values = _unfold(column)
    index = values.index
    none = np.zeros(len(values), bool)
    if isinstance(values.dtype, pd.DatetimeTZDtype):
        utc = values.dt.tz_convert(UTC).dt.tz_localize(None).astype("datetime64[us]")
        zone = name_zone(values.dt.tz)
        return Moments(to_zone(utc, zone), utc, (zone,) if utc.notna().any() else (), none)
    nothing = pd.Series(np.full(len(values), np.datetime64("NaT", "us")), index)
    if values.dtype.kind == "M":
        return Moments(values.astype("datetime64[us]"), nothing, (), none)
    codes, distinct = pd.factorize(values.map(_write_cell, na_action="ignore").astype(object))
    if not len(distinct):
        return Moments(nothing, nothing, (), none)
    parts = _split_cells(pd.Series(distinct, dtype=object))
    own = next((day for day in DAY_FORMATS if written.startswith(day)), DAY_FORMATS[0])
    days = _read_days(parts["day"], own)
    times = _read_times(parts)
    wall = (_read_other_days(parts["day"], days, own) + times).to_numpy()
    is_other = days.isna().to_numpy() & ~np.isnat(wall)
    offsets = _read_offsets(parts["zone"].where(~np.isnat(wall)))
    utc_times = wall - offsets.to_numpy()
    last = np.datetime64("NaT", "us")  # of a missing cell, whose code is −1
    zones = dict.fromkeys(map(_name_offset, offsets.dropna().unique()))
    return Moments(
        pd.Series(np.append(wall, last)[codes], index),
        pd.Series(np.append(utc_times, last)[codes], index),
        tuple(zones),
        np.append(is_other, False)[codes],
    )


def read_wall_times(column: pd.Series[Any], training: DateColumn, moments: Moments) -> tuple[pd.Series[Any], list[str]]:
    """The times of a column on the wall clock of the training column's zone, and notes about unexpected readings.

    A time without a zone is taken to be on that wall clock. Raises TableError for a time with a zone if the training
    column has none, except midnight in a column of days; and if only some cells have a zone.
    """
    notes = []
    count = int(moments.others.sum())
    if count:
        row = int(moments.others.argmax())
        first = show_value(_show(column.iloc[row]))
        form = f" {show_value(training.example)}" if training.example else ""
        present = int(moments.wall.notna().sum())
        notes.append(
            f"{count:,} of {present:,} dates are not in the format used in training{form}, but are still read as "
            f"dates: {first} in row {row + 1} as {moments.wall.iloc[row]}"
        )
    if training.zone is None:
        if moments.zones:
            notes.append(
                "zones are ignored, because the model was saved without them by an older version; fit it again"
            )
        return moments.wall, notes
    refuse_mixed_zones(column, moments, "write them all the same way")
    if training.zone and moments.zones:
        return to_zone(moments.utc, training.zone), notes
    if training.zone and moments.wall.notna().any():
        notes.append(f"times without a zone are taken to be in {training.zone}")
    if not training.zone and moments.zones:
        is_wrong = moments.utc.notna()
        if not training.has_times:
            is_wrong &= moments.wall != moments.wall.dt.normalize()
        if is_wrong.any():
            row = int(is_wrong.to_numpy().argmax())
            example = f" (such as {show_value(training.example)})" if training.example else ""
            problem = f"{show_value(_show(column.iloc[row]))} has a zone, but the training column{example} has none"
            advice = "convert it to local times without a zone, as in that column"
            raise TableError(f"{problem}; {advice}", row=row + 1, column=column.name)
    return moments.wall, notes


def refuse_mixed_zones(column: pd.Series[Any], moments: Moments, advice: str) -> None:
    """Raise TableError if some cells have a zone, and others none. The message ends with the advice."""
    naive = moments.is_naive()
    if not moments.zones or not naive.any():
        return
    first, second = (column.loc[is_kind[is_kind].index[0]] for is_kind in (naive, moments.utc.notna()))
    raise TableError(
        f"has both a time without a zone, {show_value(_show(first))}, and one with a zone, "
        f"{show_value(_show(second))}; {advice}",
        column=column.name,
    )


def to_zone(utc: pd.Series[Any], zone: str) -> pd.Series[Any]:
    """UTC times on the wall clock of a zone, datetime64[us].

    Python's calendar may end before the first and last times in another zone; these get the nearest known offset.
    """
    inside = pd.Series(np.clip(utc.to_numpy(), FIRST, LAST), utc.index)
    walls = inside.dt.tz_localize(UTC).dt.tz_convert(find_zone(zone)).dt.tz_localize(None)
    times: pd.Series[Any] = utc + (walls - inside)
    return times


def from_zone(wall: pd.Series[Any], zone: str) -> pd.Series[Any]:
    """Times on the wall clock of a zone in UTC, datetime64[us].

    Of a time that is there twice, when clocks are set back, it is the later one; one that is skipped when they are set
    forward is the end of the gap.
    """
    inside = pd.Series(np.clip(wall.to_numpy(), FIRST, LAST), wall.index)
    is_summer = np.zeros(len(inside), bool)
    zoned = inside.dt.tz_localize(find_zone(zone), ambiguous=is_summer, nonexistent="shift_forward")
    times: pd.Series[Any] = wall + (zoned.dt.tz_convert(UTC).dt.tz_localize(None) - inside)
    return times


def read_any_moments(column: pd.Series[Any]) -> Moments:
    """The times of a column of dates, as `read_moments` of ISO dates; and of other forms of ISO, which are in UTC."""
    values = column.dt.start_time if isinstance(column.dtype, pd.PeriodDtype) else column
    moments = read_moments(values, DAY_FORMATS[0])
    is_unread = moments.wall.isna() & column.notna()
    if not is_unread.any() or column.dtype.kind == "M":
        return moments
    others = pd.to_datetime(values[is_unread], errors="coerce", utc=True, format="ISO8601")
    wall = moments.wall.copy()
    wall[is_unread] = others.dt.tz_localize(None).astype("datetime64[us]")
    return moments._replace(wall=wall)


def name_zone(zone: dt.tzinfo | None) -> str:
    """The name of a zone, such as Europe/Berlin, UTC or +02:00."""
    name = getattr(zone, "key", None) or getattr(zone, "zone", None)
    if name:
        return str(name)
    offset = None if zone is None else zone.utcoffset(None)
    return UTC if offset is None else _name_offset(offset)


def find_zone(name: str) -> dt.tzinfo:
    """The zone with this name from `name_zone`. Raises ValueError if there is none."""
    if name == UTC:
        return dt.UTC
    match = OFFSET.fullmatch(name)
    try:
        if match is not None:
            return dt.timezone(_read_offset(name))
        return zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        raise ValueError(
            f"zone {name!r:.60} is unknown, expected a time zone such as Europe/Berlin or +02:00"
        ) from None


def _name_offset(offset: Any) -> str:
    """The name of a zone that differs from UTC by a time."""
    minutes = round(pd.Timedelta(offset).total_seconds() / 60)
    if not minutes:
        return UTC
    hours, rest = divmod(abs(minutes), 60)
    return f"{'-' if minutes < 0 else '+'}{hours:02}:{rest:02}"


def _read_offset(text: str) -> dt.timedelta:
    """The difference of a zone from UTC that a text such as +02:00, +0200, +02 or Z has."""
    match = OFFSET.fullmatch(text)
    if match is None:
        return dt.timedelta(0)
    sign, hours, minutes = match.groups()
    offset = dt.timedelta(hours=int(hours), minutes=int(minutes or 0))
    return -offset if sign == "-" else offset


def _read_offsets(texts: pd.Series[Any]) -> pd.Series[Any]:
    """The differences of zones from UTC, timedelta64[us]; NaT for none."""
    return pd.Series(texts.map(_read_offset, na_action="ignore"), dtype="timedelta64[us]")


def _is_of_dates(column: pd.Series[Any]) -> bool:
    """Whether a column has a dtype of dates."""
    return column.dtype.kind == "M" or isinstance(column.dtype, pd.DatetimeTZDtype)


def _unfold(column: pd.Series[Any]) -> pd.Series[Any]:
    """A column of categories as one of their values, and one of Arrow's times as one of pandas' own."""
    if isinstance(column.dtype, pd.ArrowDtype) and column.dtype.kind == "M":
        return pd.Series(pd.DatetimeIndex(column.tolist()), column.index, name=column.name)
    return column.astype(column.cat.categories.dtype) if isinstance(column.dtype, pd.CategoricalDtype) else column


def _write_cell(value: Any) -> str:
    """A cell as a text; 20230131 without a fraction, which it has in a column with missing cells."""
    is_whole = isinstance(value, float | np.floating) and float(value).is_integer()
    return str(int(value) if is_whole else value).strip()


def _show(value: Any) -> Any:
    """A cell for messages: a date as a text."""
    return str(value) if isinstance(value, dt.date) else value


def _split_cells(cells: pd.Series[Any]) -> pd.DataFrame:
    """The texts of the parts of cells, named as in CELL, each missing for a cell that is no date."""
    return cells.map(_write_cell, na_action="ignore").astype("str").str.extract(CELL)


def _read_days(texts: pd.Series[Any], written: str) -> pd.Series[Any]:
    """Texts as days, datetime64[us]; NaT for what is none of this format."""
    return pd.to_datetime(texts, format=written, errors="coerce").astype("datetime64[us]")


def _read_other_days(texts: pd.Series[Any], days: pd.Series[Any], own: str) -> pd.Series[Any]:
    """Days of another format than the training's own beside those of that one, if no second format reads them."""
    uncertain = [day for pair in UNCERTAIN for day in pair]
    for written in DAY_FORMATS:
        if written not in uncertain and days.isna().any():
            days = days.fillna(_read_days(texts, written))
    for pair in UNCERTAIN:
        rest = texts[days.isna()]
        if own in pair or not rest.notna().any():
            continue  # the training column has the one, so that the other is none
        first, second = (_read_days(rest, written) for written in pair)
        tells_first = bool((first.notna() & second.isna()).any())
        tells_second = bool((second.notna() & first.isna()).any())
        if tells_first != tells_second:
            days = days.fillna(first if tells_first else second)
        else:
            days = days.fillna(first.where(first == second))
    return days


def _read_times(parts: pd.DataFrame) -> pd.Series[Any]:
    """The times of the day of cells, timedelta64[us]; NaT for what is none."""
    hour, minute, second = (
        pd.to_numeric(parts[name], errors="coerce").fillna(0).astype(int) for name in ("hour", "minute", "second")
    )
    micro = parts["fraction"].fillna("").str.slice(0, 6).str.pad(6, side="right", fillchar="0").astype(int)
    total = ((hour * 60 + minute) * 60 + second) * 10**6 + micro
    times = pd.Series(total.to_numpy().astype("timedelta64[us]"), parts.index)
    return times.where((hour < 24) & (minute < 60) & (second < 60))
