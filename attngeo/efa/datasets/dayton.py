"""The archive of average daily temperatures of the University of Dayton: two formats, and the days of the experiment.

The formats are city_temperature.csv, with all cities, and a file for each site, such as ALBIRMIN.txt: month, day, year
and temperature in columns. Source of the list of sites: the states and cities of the experiment, and the sites of the
archive that have the same numbers.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import date, timedelta
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from attngeo.efa.datasets.files import find_file, read_content
from attngeo.errors import DataError, first_line

if TYPE_CHECKING:
    import pandas as pd

ARCHIVE = "city_temperature.csv"
COLUMNS = ("Country", "State", "City", "Month", "Day", "Year", "AvgTemperature")
# The whole archive as one table has 140 MB.
MOST_BYTES = 300_000_000
YEARS, FIRST_DAY, LAST_DAY = range(2007, 2020), (9, 29), (10, 31)
MISSING = -99.0
# Limits of temperatures, in degrees Fahrenheit.
COLDEST, HOTTEST = -80.0, 140.0
Days = dict[date, float]


class Site(NamedTuple):
    """A city of the experiment, and its file of the archive."""

    city: str
    file: str
    nbytes: int
    sha256: str


@cache
def list_sites() -> tuple[Site, ...]:
    """The 44 cities of the experiment, named State|City."""
    text = files(__package__).joinpath("temperature_sites.csv").read_text("utf-8")
    return tuple(
        Site(f"{row['state']}|{row['city']}", f"{row['site']}.txt", int(row["bytes"]), row["sha256"])
        for row in csv.DictReader(io.StringIO(text))
    )


def read_days(folder: Path, cities: Sequence[str]) -> pd.DataFrame:
    """Temperatures from 29 September to 31 October of 2007 to 2019: a row for each date, a column for each city.

    folder: has city_temperature.csv and, for what that file lacks, the files of the sites. cities: as State|City.
    Raises DataUnavailableError if the file of a site is missing, DataError if a number is.
    """
    import pandas as pd

    archive = find_file(folder, ARCHIVE)
    known = _read_archive(archive, cities)
    wanted = _list_dates()
    sites = {site.city: site.file for site in list_sites()}
    columns = {}
    for city in cities:
        source, days = archive, known[city]
        if not days.keys() >= set(wanted) and city in sites:
            source = find_file(folder, sites[city])
            days = {**_read_site(source), **days}
        missing = [day for day in wanted if days.get(day, MISSING) == MISSING]
        if missing:
            raise DataError(f"{source}: {city} has no temperature on {missing[0]}, expected one of each day")
        columns[city] = [days[day] for day in wanted]
    return pd.DataFrame(columns, index=pd.DatetimeIndex(wanted))


def _list_dates() -> list[date]:
    spans = [(date(year, *FIRST_DAY), date(year, *LAST_DAY)) for year in YEARS]
    return [first + timedelta(days=at) for first, last in spans for at in range((last - first).days + 1)]


def _read_archive(path: Path, cities: Sequence[str]) -> dict[str, Days]:
    """The days of the experiment in city_temperature.csv."""
    found: dict[str, Days] = {city: {} for city in cities}
    # Names of cities elsewhere have other letters than ASCII, in an encoding that is not stated.
    text = io.TextIOWrapper(io.BytesIO(read_content(path, MOST_BYTES)), "utf-8-sig", errors="replace", newline="")
    rows = csv.reader(text)
    try:
        header = next(rows, [])
        missing = [name for name in COLUMNS if name not in header]
        if missing:
            raise DataError(f"{path} lacks the column {missing[0]!r}, expected {','.join(COLUMNS)}")
        country, state, city, *numbers = (header.index(name) for name in COLUMNS)
        for cells in rows:
            if cells and cells[country] == "US" and (name := f"{cells[state]}|{cells[city]}") in found:
                _add_day(found[name], [cells[at] for at in numbers])
    except (ValueError, LookupError, csv.Error) as error:
        row = max(rows.line_num - 1, 0)
        raise DataError(f"{path}: row {row}: {first_line(error)}") from None
    return found


def _read_site(path: Path) -> Days:
    days: Days = {}
    for number, line in enumerate(read_content(path).decode("ascii", "replace").splitlines(), 1):
        try:
            if line.strip():
                _add_day(days, line.split())
        except ValueError as error:
            raise DataError(f"{path}: row {number}: {first_line(error)}") from None
    return days


def _add_day(days: Days, cells: list[str]) -> None:
    """Keep the temperature of a day of the experiment. Raises ValueError if the day has another one."""
    if len(cells) != 4:
        raise ValueError(f"{len(cells)} cells, expected month, day, year and temperature")
    month, day, year = (int(cell) for cell in cells[:3])
    if year not in YEARS or not FIRST_DAY <= (month, day) <= LAST_DAY:
        return
    at, value = date(year, month, day), float(cells[3])
    if not (value == MISSING or COLDEST <= value <= HOTTEST):
        raise ValueError(f"temperature is {cells[3]!r:.60}, expected a number from {COLDEST:g} to {HOTTEST:g}")
    if days.setdefault(at, value) != value:
        raise ValueError(f"{at} has the temperatures {days[at]} and {value}, expected one")
