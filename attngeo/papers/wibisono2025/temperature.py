"""Temperatures of 44 cities of the United States on the days of October, 2007 to 2019, in degrees Fahrenheit.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), section 6.4: the archive of average daily temperatures of the
University of Dayton, one city of each state of the contiguous United States, except Arizona, Connecticut, South Dakota
and Delaware, where numbers are missing. The archive has two formats: city_temperature.csv, with all cities, and a file
for each site, such as ALBIRMIN.txt. The list of sites has those with the same numbers as the states and cities of the
experiment.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from attngeo.errors import DataError
from attngeo.papers.wibisono2025.files import (
    Split,
    explaining,
    find_file,
    folder_of,
    has_file,
    read_content,
    read_table,
    require_once,
    take_sequences,
)

if TYPE_CHECKING:
    import pandas as pd

COORDINATES, OCTOBER_FILE, SEPTEMBER_FILE = "all_cities_lat_lon.csv", "october_2007_2019.csv", "sep29_30_2007_2019.csv"
PLACE = ("State", "City", "Latitude", "Longitude")
ARCHIVE = "city_temperature.csv"
ARCHIVE_COLUMNS = ("Country", "State", "City", "Month", "Day", "Year", "AvgTemperature")
# The whole archive as one table has 140 MB.
MOST_BYTES = 300_000_000
# States of the table of coordinates that are left out.
LEFT_OUT = ("Arizona", "Connecticut", "South Dakota")
OCTOBER, LAGS = 10, (1, 2)
COLUMNS = ("sequence", "position", "item", "value", "latitude", "longitude", "lag_1", "lag_2")
# Years of the experiment; those that train and that validate; later ones test.
YEARS, TRAINING, VALIDATION = range(2007, 2020), range(2007, 2013), range(2013, 2017)
FIRST_DAY, LAST_DAY, MISSING = "09-29", "10-31", -99.0
# Limits of temperatures.
COLDEST, HOTTEST = -80.0, 140.0


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


def read_temperatures(path: str | Path) -> pd.DataFrame:
    """One row for each day and city, with the columns `COLUMNS`; sequence is the date, item the city and its state.

    lag_1 and lag_2 are the temperatures of the same city one and two days before. path: a folder with
    all_cities_lat_lon.csv, and either october_2007_2019.csv and sep29_30_2007_2019.csv with a column for each city, or
    city_temperature.csv and, for what that lacks, the files of the sites; or one of these files, beside the others.
    Raises DataUnavailableError if a file is missing, DataError if it is not such a table.
    """
    folder = folder_of(path)
    place = find_file(folder, COORDINATES)
    cities = read_table(place, PLACE)
    require_once(place, cities, ["State", "City"])
    cities = cities.assign(city=cities["State"] + "|" + cities["City"]).set_index("city")
    with explaining(place, "a table of latitudes and longitudes"):
        cities = cities[["Latitude", "Longitude"]].astype("float64").rename(columns=str.lower)
        if not (cities["latitude"].abs() <= 90).all() or not (cities["longitude"].abs() <= 180).all():
            raise ValueError("a latitude or longitude is missing or out of range")
    if has_file(folder, OCTOBER_FILE) or not has_file(folder, ARCHIVE):
        source = find_file(folder, OCTOBER_FILE)
        days = _read_wide([source, find_file(folder, SEPTEMBER_FILE)])
    else:
        source = find_file(folder, ARCHIVE)
        days = _read_archive(folder, source, [city for city in cities.index if city.partition("|")[0] not in LEFT_OUT])
    _check_days(days, cities, source)
    return _list_days(days, cities, source)


def _read_wide(paths: Sequence[Path]) -> pd.DataFrame:
    """Both tables of days: a row for each date, a column for each city."""
    import pandas as pd

    tables = []
    for path in paths:
        content = read_content(path)
        with explaining(path, "a table with a column date, and one for each city"):
            table = pd.read_csv(io.BytesIO(content), index_col="date").apply(pd.to_numeric).astype("float64")
            tables.append(table.set_index(pd.to_datetime(table.index, format="%Y-%m-%d")))
    if list(tables[0]) != list(tables[1]):
        raise DataError(f"{paths[1]} has other cities than {paths[0]}, expected the same columns")
    days: pd.DataFrame = pd.concat(tables)
    return days


def _read_archive(folder: Path, archive: Path, cities: Sequence[str]) -> pd.DataFrame:
    """Temperatures from 29 September to 31 October of each year: a row for each date, a column for each city.

    folder: has the files of the sites, for the cities of which the archive lacks days.
    """
    import pandas as pd

    content = read_content(archive, MOST_BYTES)
    with explaining(archive, f"a table with {','.join(ARCHIVE_COLUMNS)}"):
        # Names of cities elsewhere have other letters than ASCII, in an encoding that is not stated.
        table = pd.read_csv(
            io.BytesIO(content), usecols=list(ARCHIVE_COLUMNS), encoding="utf-8-sig", encoding_errors="replace",
            dtype=dict.fromkeys(ARCHIVE_COLUMNS[:3], str),
        )  # fmt: skip
        table = table[table["Country"] == "US"]
        known = _list_dates(table[list(ARCHIVE_COLUMNS[3:])], table["State"] + "|" + table["City"], archive)
    wanted = [day for year in YEARS for day in pd.date_range(f"{year}-{FIRST_DAY}", f"{year}-{LAST_DAY}")]
    sites, columns = {site.city: site.file for site in list_sites()}, {}
    for city in cities:
        days = known.xs(city) if city in known.index.get_level_values(0) else known.iloc[:0].droplevel(0)
        if not set(wanted) <= set(days.index) and city in sites:
            path = find_file(folder, sites[city])
            content = read_content(path)
            with explaining(path, "a table of month, day, year and temperature"):
                site = pd.read_csv(io.BytesIO(content), sep=r"\s+", header=None)
                if site.shape[1] != 4:
                    raise ValueError(f"rows have {site.shape[1]} cells")
                own = _list_dates(site, pd.Series(city, index=site.index), path).droplevel(0)
            days = days.combine_first(own)
        columns[city] = days.reindex(wanted).replace(MISSING, float("nan"))
    return pd.DataFrame(columns, index=pd.DatetimeIndex(wanted))


def _list_dates(table: pd.DataFrame, cities: pd.Series[str], source: Path) -> pd.Series[float]:
    """Temperatures of the days of the experiment, by city and date. table: month, day, year and temperature.

    Raises DataError if a day has two of them, ValueError for a cell that is no number.
    """
    import pandas as pd

    month, day, year, value = (pd.to_numeric(table[name]) for name in table.columns)
    of_day = 100 * month + day
    kept = year.isin(list(YEARS)) & (of_day >= 929) & (of_day <= 1031)
    dates = pd.to_datetime(pd.DataFrame({"year": year[kept], "month": month[kept], "day": day[kept]}))
    rows = pd.DataFrame({"city": cities[kept], "date": dates, "value": value[kept].astype("float64")}).drop_duplicates()
    again = rows[rows.duplicated(["city", "date"])]
    if len(again):
        city, date, second = again.iloc[0]
        raise DataError(f"{source}: {city} has several temperatures on {date:%Y-%m-%d}, one is {second}; expected one")
    return rows.set_index(["city", "date"])["value"]


def _check_days(days: pd.DataFrame, cities: pd.DataFrame, source: Path) -> None:
    """Raise DataError for a city without a place, a date that comes twice, and a temperature that none is."""
    unknown = [city for city in days if city not in cities.index]
    if unknown or days.empty:
        what = f"{unknown[0]!r:.60}" if unknown else "none"
        raise DataError(f"{source}: a column of an unknown city: {what}, expected State|City of {COORDINATES}")
    twice = days.index[days.index.duplicated()]
    if len(twice):
        raise DataError(f"{source}: the date {twice[0]:%Y-%m-%d} comes twice, expected each once")
    wrong = ~((days >= COLDEST) & (days <= HOTTEST))
    if wrong.any(axis=None):
        city = wrong.columns[wrong.any()][0]
        date = wrong.index[wrong[city]][0]
        raise DataError(
            f"{source}: {city} has {days.loc[date, city]} on {date:%Y-%m-%d}, expected a temperature from "
            f"{COLDEST:g} to {HOTTEST:g} on each day"
        )


def _list_days(days: pd.DataFrame, cities: pd.DataFrame, source: Path) -> pd.DataFrame:
    """One row for each day of October and city, with the temperatures of the days before. source: for messages."""
    import numpy as np
    import pandas as pd

    october = days[pd.DatetimeIndex(days.index).month == OCTOBER].sort_index()
    dates, names = pd.DatetimeIndex(october.index), list(map(str, october))
    tables = {"value": october.to_numpy()}
    for lag in LAGS:
        before = dates - pd.Timedelta(days=lag)
        missing = before[~before.isin(days.index)]
        if len(missing):
            raise DataError(f"{source}: {missing[0]:%Y-%m-%d} is missing, expected {lag} days before each one")
        tables[f"lag_{lag}"] = days.loc[before].to_numpy()
    of_city = {"item": [", ".join(reversed(name.split("|"))) for name in names]}
    of_city |= {place: cities[place].loc[names].tolist() for place in map(str, cities)}
    columns: dict[str, object] = {
        "sequence": np.repeat(dates.strftime("%Y-%m-%d"), len(names)),
        "position": np.tile(np.arange(len(names)), len(dates)),
    }
    columns |= {name: np.tile(values, len(dates)) for name, values in of_city.items()}
    columns |= {name: table.reshape(-1) for name, table in tables.items()}
    return pd.DataFrame(columns)[list(COLUMNS)]


def split_temperatures(frame: pd.DataFrame, seed: int = 0, *, published: bool = False) -> Split:
    """The days of 2007 to 2012 train, those of 2013 to 2016 validate and those of 2017 to 2019 test.

    frame: rows of `read_temperatures`. seed, published: change nothing; they are what all experiments take.
    """
    del seed, published
    dates = frame["sequence"].unique()
    years = {date: int(date[:4]) for date in dates}
    return take_sequences(
        frame,
        [date for date in dates if years[date] in TRAINING],
        [date for date in dates if years[date] in VALIDATION],
        [date for date in dates if years[date] >= VALIDATION.stop],
    )
