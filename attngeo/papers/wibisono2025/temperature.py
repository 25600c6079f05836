"""Temperatures of 44 cities of the United States on the days of October, 2007 to 2019, in degrees Fahrenheit.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), section 6.4: the archive of average daily temperatures of the
University of Dayton, one city of each state of the contiguous United States, except Arizona, Connecticut, South Dakota
and Delaware, where numbers are missing. The archive has two formats: city_temperature.csv, with all cities, and a file
for each site, such as ALBIRMIN.txt. The list of sites has those with the same numbers as the states and cities of the
experiment.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from attngeo.errors import DataError
from attngeo.papers.wibisono2025.files import explaining, find_file, folder_of, look_for, read_table, require_once
from attngeo.papers.wibisono2025.splits import Split, take_sequences

COORDINATES = "all_cities_lat_lon.csv"
OCTOBER_FILE = "october_2007_2019.csv"
SEPTEMBER_FILE = "sep29_30_2007_2019.csv"
PLACE = ("State", "City", "Latitude", "Longitude")
ARCHIVE = "city_temperature.csv"
DATED = ("Month", "Day", "Year", "AvgTemperature")
# The archive as one table has 140 MB.
MOST_TEMPERATURE_BYTES = 300_000_000
# States of the table of coordinates that are left out.
LEFT_OUT = ("Arizona", "Connecticut", "South Dakota")
OCTOBER = 10
LAGS = (1, 2)
TEMPERATURE_COLUMNS = ("sequence", "position", "item", "value", "latitude", "longitude", "lag_1", "lag_2")
# Years of the experiment; those that train and that validate; later ones test.
YEARS = range(2007, 2020)
TRAINING = range(2007, 2013)
VALIDATION = range(2013, 2017)
FIRST_DAY = "09-29"
LAST_DAY = "10-31"
# A temperature that the archive lacks.
MISSING = -99.0
# Limits of temperatures.
COLDEST = -80.0
HOTTEST = 140.0


class Site(NamedTuple):
    """A city of the experiment.

    Attributes:
        city: name of the city, as State|City.
        file: its file of the archive.
        sha256: SHA-256 of that file.
    """

    city: str
    file: str
    sha256: str


@cache
def list_sites() -> tuple[Site, ...]:
    """The 44 cities of the experiment."""
    with files(__package__).joinpath("temperature_sites.csv").open("rb") as file:
        rows = pd.read_csv(file)
    return tuple(Site(f"{row.state}|{row.city}", f"{row.site}.txt", str(row.sha256)) for row in rows.itertuples())


def read_temperatures(path: str | Path) -> pd.DataFrame:
    """One row per day and city, with the columns `TEMPERATURE_COLUMNS`.

    sequence is the date, item the city with its state. lag_1 and lag_2 are the temperatures of the same city one and
    two days before.

    Args:
        path: a folder with all_cities_lat_lon.csv, and either october_2007_2019.csv and sep29_30_2007_2019.csv with one
            column per city, or city_temperature.csv and, for days that it lacks, the files of the sites. Or one of
            these files, with the others beside it.

    Raises:
        DataUnavailableError: a file is missing.
        DataError: a file is not such a table.
    """
    folder = folder_of(path)
    cities = _read_cities(find_file(folder, COORDINATES))
    archive = None if look_for(folder, OCTOBER_FILE) else look_for(folder, ARCHIVE)
    if archive is not None:
        source = archive
        names = [city for city in cities.index if city.partition("|")[0] not in LEFT_OUT]
        days = _read_archive(folder, archive, names)
    else:
        source = find_file(folder, OCTOBER_FILE)
        october = _read_wide(source)
        september = _read_wide(find_file(folder, SEPTEMBER_FILE))
        if list(october) != list(september):
            raise DataError(
                f"{SEPTEMBER_FILE} and {OCTOBER_FILE} have different cities, expected the same", subject=folder
            )
        days = pd.concat([october, september])
    _check_days(days, cities, source)
    return _list_days(days, cities, source)


def _read_cities(path: Path) -> pd.DataFrame:
    """The latitude and longitude of each city, which are named State|City."""
    table = read_table(path, PLACE)
    require_once(path, table, ["State", "City"])
    table = table.assign(city=table["State"] + "|" + table["City"]).set_index("city")
    with explaining(path, "a table of latitudes and longitudes"):
        cities: pd.DataFrame = table[["Latitude", "Longitude"]].astype("float64").rename(columns=str.lower)
        if not (cities["latitude"].abs() <= 90).all() or not (cities["longitude"].abs() <= 180).all():
            raise ValueError("a latitude or longitude is missing or out of range")
    return cities


def _read_wide(path: Path) -> pd.DataFrame:
    """A table of days: a row for each date, a column for each city."""
    table = read_table(path, ("date",), every=True)
    with explaining(path, 'a table with a column "date", and one column for each city'):
        days = pd.to_datetime(table["date"], format="%Y-%m-%d")
        numbers = table.drop(columns="date").apply(pd.to_numeric).astype("float64")
        wide: pd.DataFrame = numbers.set_index(days)
    return wide


def _read_archive(folder: Path, archive: Path, cities: list[str]) -> pd.DataFrame:
    """Temperatures from 29 September to 31 October of each year: a row for each date, a column for each city.

    folder: has the files of the sites, for the cities of which the archive lacks days.
    """
    names = ("Country", "State", "City")
    columns = [*names, *DATED]
    types = dict.fromkeys(names, str)
    # Names of cities elsewhere have other letters than ASCII, in an encoding that is not stated.
    table = read_table(
        archive, columns, most=MOST_TEMPERATURE_BYTES, usecols=columns, encoding_errors="replace", dtype=types
    )
    table = table[table["Country"] == "US"]
    dates: list[pd.Timestamp] = []
    for year in YEARS:
        dates.extend(pd.date_range(f"{year}-{FIRST_DAY}", f"{year}-{LAST_DAY}"))
    table = table.assign(city=table["State"] + "|" + table["City"])
    days = _spread(table, archive).reindex(index=dates, columns=cities)
    for site in list_sites():
        if site.city in days and days[site.city].isna().any():
            path = find_file(folder, site.file)
            rows = read_table(path, DATED, sep=r"\s+", names=list(DATED)).assign(city=site.city)
            days[site.city] = days[site.city].fillna(_spread(rows, path)[site.city])
    return days.replace(MISSING, np.nan)


def _spread(table: pd.DataFrame, source: Path) -> pd.DataFrame:
    """Temperatures of the days of the experiment: a row for each date, a column for each city.

    table: has the columns `DATED` and city. Raises DataError if a day has two temperatures, or a cell is no number.
    """
    with explaining(source, "a table of months, days, years and temperatures"):
        month, day, year, value = (pd.to_numeric(table[name]) for name in DATED)
        month_and_day = 100 * month + day
        is_kept = year.isin(list(YEARS)) & (month_and_day >= 929) & (month_and_day <= 1031)
        dates = pd.to_datetime(pd.DataFrame({"year": year, "month": month, "day": day})[is_kept])
        rows = pd.DataFrame({"date": dates, "value": value.astype("float64"), "city": table["city"]})
        rows = rows[is_kept].drop_duplicates()
        repeats = rows[rows.duplicated(["city", "date"])]
        if len(repeats):
            date, second, city = repeats.iloc[0]
            raise ValueError(f"{city} has several temperatures on {date:%Y-%m-%d}, including {second}")
        return rows.pivot(index="date", columns="city", values="value")


def _check_days(days: pd.DataFrame, cities: pd.DataFrame, source: Path) -> None:
    """Raise DataError for a city without coordinates, a date that comes twice, and what is no temperature."""
    unknown = [city for city in days if city not in cities.index]
    if unknown or days.empty:
        shown = f"{unknown[0]!r:.60}" if unknown else "none"
        raise DataError(f"a column of an unknown city: {shown}, expected State|City from {COORDINATES}", subject=source)
    repeats = days.index[days.index.duplicated()]
    if len(repeats):
        raise DataError(f"the date {repeats[0]:%Y-%m-%d} occurs twice, expected each date once", subject=source)
    wrong = ~((days >= COLDEST) & (days <= HOTTEST))
    if wrong.any(axis=None):
        city = wrong.columns[wrong.any()][0]
        date = wrong.index[wrong[city]][0]
        raise DataError(
            f"{city} has {days.loc[date, city]} on {date:%Y-%m-%d}, expected a temperature from "
            f"{COLDEST:g} to {HOTTEST:g} on each day",
            subject=source,
        )


def _list_days(days: pd.DataFrame, cities: pd.DataFrame, source: Path) -> pd.DataFrame:
    """One row for each day of October and city, with the temperatures of the days before. source: for messages."""
    known = pd.DatetimeIndex(days.index)
    dates = known.sort_values()
    dates = dates[dates.month == OCTOBER]
    labels = [", ".join(reversed(str(name).split("|"))) for name in days]
    places = cities.loc[list(days)].assign(position=range(len(labels)), item=labels)
    frame = pd.DataFrame({"sequence": dates.strftime("%Y-%m-%d")}).merge(places, how="cross")
    frame["value"] = days.loc[dates].to_numpy().reshape(-1)
    for lag in LAGS:
        earlier = pd.DatetimeIndex(dates - pd.Timedelta(days=lag))
        missing = earlier.difference(known)
        if len(missing):
            raise DataError(
                f"{missing[0]:%Y-%m-%d} is missing, expected the {lag} days before each date", subject=source
            )
        frame[f"lag_{lag}"] = days.loc[earlier].to_numpy().reshape(-1)
    return frame[list(TEMPERATURE_COLUMNS)]


def split_temperatures(frame: pd.DataFrame, seed: int = 0, *, published: bool = False) -> Split:
    """Split the days: 2007 to 2012 train, 2013 to 2016 validate, 2017 to 2019 test.

    frame: rows of `read_temperatures`. seed, published: ignored; all splits accept them.
    """
    del seed, published
    dates = frame["sequence"].unique()
    years = np.array([int(date[:4]) for date in dates])
    train = dates[np.isin(years, TRAINING)]
    validation = dates[np.isin(years, VALIDATION)]
    test = dates[years >= VALIDATION.stop]
    return take_sequences(frame, train, validation, test)
