"""Temperatures of 44 cities of the United States on the days of October, 2007 to 2019, in degrees Fahrenheit.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), section 6.4: data of the University of Dayton, one city of each state
of the contiguous United States, except Arizona, Connecticut, South Dakota and Delaware, where numbers are missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from attngeo.efa.datasets.dayton import ARCHIVE, COLDEST, HOTTEST, read_days
from attngeo.efa.datasets.files import find_file, folder_of, has_file, read_cells, real_numbers, require, require_once
from attngeo.efa.datasets.splits import Split, take_sequences
from attngeo.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

COORDINATES, OCTOBER_FILE, SEPTEMBER_FILE = "all_cities_lat_lon.csv", "october_2007_2019.csv", "sep29_30_2007_2019.csv"
PLACE = ("State", "City", "Latitude", "Longitude")
# States of the table of coordinates that are left out.
LEFT_OUT = ("Arizona", "Connecticut", "South Dakota")
OCTOBER, LAGS = 10, (1, 2)
COLUMNS = ("sequence", "position", "item", "value", "latitude", "longitude", "lag_1", "lag_2")
# Years that train and that validate; later ones test.
TRAINING, VALIDATION = range(2007, 2013), range(2013, 2017)


def read_temperatures(path: str | Path) -> pd.DataFrame:
    """One row for each day and city, with the columns `COLUMNS`; sequence is the date, item the city and its state.

    lag_1 and lag_2 are the temperatures of the same city one and two days before. path: a folder with
    all_cities_lat_lon.csv, and either october_2007_2019.csv and sep29_30_2007_2019.csv with a column for each city, or
    the files of the archive that `dayton.read_days` reads; or one of these files, beside the others.
    Raises DataUnavailableError if a file is missing, DataError if it is not such a table.
    """
    folder = folder_of(path)
    cities = _read_cities(find_file(folder, COORDINATES))
    if has_file(folder, OCTOBER_FILE) or not has_file(folder, ARCHIVE):
        source = find_file(folder, OCTOBER_FILE)
        days = _read_wide(source, find_file(folder, SEPTEMBER_FILE), list(cities.index))
    else:
        source = find_file(folder, ARCHIVE)
        days = read_days(folder, [city for city in cities.index if city.partition("|")[0] not in LEFT_OUT])
    return _list_days(days, cities, source)


def _read_cities(path: Path) -> pd.DataFrame:
    """Latitude and longitude of each city, which is named as in the tables of days: State|City."""
    import pandas as pd

    cells = read_cells(path, PLACE)
    require_once(path, cells, ["State", "City"])
    places = {"latitude": real_numbers(path, cells["Latitude"], -90, 90)}
    places["longitude"] = real_numbers(path, cells["Longitude"], -180, 180)
    return pd.DataFrame(places, index=pd.Index(cells["State"] + "|" + cells["City"]))


def _read_wide(october: Path, september: Path, known: list[str]) -> pd.DataFrame:
    """Both tables: a row for each date, a column for each city. known: the cities that have coordinates."""
    import pandas as pd

    tables = [_read_wide_table(path, known) for path in (october, september)]
    months = tables[0].index.month  # type: ignore[attr-defined]
    if (months != OCTOBER).any():
        row = int((months != OCTOBER).argmax())
        raise DataError(f"{october}: row {row + 1}: date is {tables[0].index[row]:%Y-%m-%d}, expected a day of October")
    if list(tables[0]) != list(tables[1]):
        raise DataError(f"{september} has other cities than {october}, expected the same columns")
    days = pd.concat(tables)
    if days.index.has_duplicates:
        again = days.index[days.index.duplicated()][0]
        raise DataError(f"{september} has the date {again:%Y-%m-%d} of {october}, expected each once")
    return days


def _read_wide_table(path: Path, known: list[str]) -> pd.DataFrame:
    import pandas as pd

    cells = read_cells(path, ("date",))
    cities = [name for name in cells if name != "date"]
    unknown = [name for name in cities if name not in known]
    if unknown or not cities:
        what = f"{unknown[0]!r:.60}" if unknown else "none"
        raise DataError(f"{path}: a column of an unknown city: {what}, expected State|City of {COORDINATES}")
    require_once(path, cells, ["date"])
    dates = pd.to_datetime(cells["date"], format="%Y-%m-%d", errors="coerce")
    require(path, cells["date"], dates.notna().to_numpy(), "a date such as 2007-10-01")
    return pd.DataFrame(
        {name: real_numbers(path, cells[name], COLDEST, HOTTEST) for name in cities}, index=pd.DatetimeIndex(dates)
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
