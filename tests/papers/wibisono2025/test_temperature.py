"""Temperatures of cities: both formats give the same rows; the published size where it can be read; bad files."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.data import DATA, needs, write_table
from support.messages import refuses

from attngeo.errors import DataError, DataUnavailableError
from attngeo.papers.wibisono2025.temperature import list_sites, read_temperatures, split_temperatures

CITIES = ("Alabama|Birmingham", "South Carolina|Charleston", "West Virginia|Charleston")
OCTOBER, SEPTEMBER, COORDINATES = "october_2007_2019.csv", "sep29_30_2007_2019.csv", "all_cities_lat_lon.csv"
ARCHIVE, HEADER = "city_temperature.csv", "Region,Country,State,City,Month,Day,Year,AvgTemperature"
Days = dict[date, list[float]]


def make_days(years: Sequence[int], cities: int = len(CITIES)) -> Days:
    draw = np.random.default_rng(0)
    spans = [date(year, 9, 29) + timedelta(days=at) for year in years for at in range(33)]
    return {day: [round(float(value), 1) for value in draw.uniform(20, 90, cities)] for day in spans}


def write_coordinates(folder: Path, cities: Sequence[str] = CITIES) -> None:
    rows = [(*city.split("|"), 30 + at, -90 - at) for at, city in enumerate(cities)]
    write_table(folder / COORDINATES, ["State", "City", "Latitude", "Longitude"], rows)


def write_wide(folder: Path, days: Days, cities: Sequence[str] = CITIES) -> None:
    for name, month in ((OCTOBER, 10), (SEPTEMBER, 9)):
        write_table(folder / name, ["date", *cities], [(day, *row) for day, row in days.items() if day.month == month])


def write_archive(folder: Path, days: Days, cities: Sequence[str] = CITIES, *, sites_until: int) -> None:
    """Years up to the given one in the files of sites, later ones in the table of all cities, with some rows twice."""
    files = {site.city: site.file for site in list_sites()}
    rows: list[tuple[object, ...]] = [("Elsewhere", "Georgia", *city.split("|"), 10, 1, 2010, 3.0) for city in cities]
    for at, city in enumerate(cities):
        old = {day: row[at] for day, row in days.items() if day.year <= sites_until}
        lines = [f" {day.month}     {day.day}   {day.year}   {value}\n" for day, value in old.items()]
        (folder / files[city]).write_text(" 1 1 1995 -99\n 12 31 2007 30.2\n" + "".join(lines))
        new = [
            ("North America", "US", *city.split("|"), day.month, day.day, day.year, row[at])
            for day, row in days.items() if day.year > sites_until
        ]  # fmt: skip
        rows += [*new, *new[:5], ("North America", "US", *city.split("|"), 1, 1, 2019, -99)]
    write_table(folder / ARCHIVE, HEADER.split(","), rows)


def assert_refused(folder: Path, name: str, old: str, new: str) -> None:
    """The temperatures of the folder cannot be read if a text in one of its files is another one."""
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new, 1))
    with refuses(DataError, folder.name):
        read_temperatures(folder)


def test_lags_are_the_days_before(tmp_path: Path) -> None:
    days = make_days([2008, 2013, 2019])
    write_wide(tmp_path, days)
    write_coordinates(tmp_path, [*reversed(CITIES), "Arizona|Phoenix"])
    frame = read_temperatures(tmp_path)
    assert len(frame) == 3 * 31 * 3
    assert frame["item"][:3].tolist() == [
        "Birmingham, Alabama",
        "Charleston, South Carolina",
        "Charleston, West Virginia",
    ]
    assert frame[["latitude", "longitude"]][:3].to_numpy().tolist() == [[32, -92], [31, -91], [30, -90]]
    for row in frame.itertuples():
        day = date.fromisoformat(row.sequence)
        found = [days[day - timedelta(days=back)][row.position] for back in range(3)]
        assert [row.value, row.lag_1, row.lag_2] == found
    years = [sorted({day[:4] for day in part["sequence"]}) for part in split_temperatures(frame)]
    assert years == [["2008"], ["2013"], ["2019"]]
    with refuses(DataError, "validation"):
        split_temperatures(frame[frame["sequence"].str[:4] != "2013"])


@pytest.mark.parametrize("sites_until", [2018, 2006])
def test_the_archive_gives_the_same_rows(tmp_path: Path, sites_until: int) -> None:
    days = make_days(range(2007, 2020))
    for name in ("wide", "archive"):
        (tmp_path / name).mkdir()
        write_coordinates(tmp_path / name)
    write_wide(tmp_path / "wide", days)
    write_archive(tmp_path / "archive", days, sites_until=sites_until)
    expected = read_temperatures(tmp_path / "wide" / OCTOBER)
    pd.testing.assert_frame_equal(read_temperatures(tmp_path / "archive"), expected, check_exact=True)


@needs("temperature")
def test_the_published_size_and_the_archive_written_from_it(tmp_path: Path) -> None:
    frame = read_temperatures(DATA / "temperature")
    assert (frame["sequence"].nunique(), frame["item"].nunique(), len(frame)) == (403, 44, 403 * 44)
    assert not frame.isna().any().any()
    assert [part["sequence"].nunique() for part in split_temperatures(frame, published=True)] == [186, 124, 93]
    assert len(split_temperatures(frame).test) == 4092  # masked copies of the test days, as the published code printed
    # The published city order, whatever the file: that of the table of coordinates.
    tables = [pd.read_csv(DATA / "temperature" / f"{name}.gz", index_col=0) for name in (OCTOBER, SEPTEMBER)]
    wide = pd.concat(tables).sort_index()
    days = {date.fromisoformat(str(day)): row.tolist() for day, row in zip(wide.index, wide.to_numpy(), strict=True)}
    write_archive(tmp_path, days, list(wide), sites_until=2018)
    (tmp_path / COORDINATES).write_bytes((DATA / "temperature" / COORDINATES).read_bytes())
    pd.testing.assert_frame_equal(read_temperatures(tmp_path), frame, check_exact=True)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        (OCTOBER, "Alabama|Birmingham", "Ohio|Nowhere"),
        (OCTOBER, "2008-10-03", "2008-10-04"),
        (OCTOBER, "2008-10-03", "3 October"),
        (OCTOBER, "2008-10-03", "2008-11-03"),
        (OCTOBER, "2008-10-03", "2008-10-03,1"),
        (OCTOBER, ",20.0", ","),
        (OCTOBER, ",20.0", ",nan"),
        (OCTOBER, ",20.0", ",-99"),
        (OCTOBER, ",20.0", ",2_0"),
        (OCTOBER, ",20.0", ",1e999"),
        (OCTOBER, "date", "day"),
        (SEPTEMBER, "2008-09-30", "2008-09-28"),
        (SEPTEMBER, "2008-09-30", "2008-10-01"),
        (SEPTEMBER, "Alabama|Birmingham,South Carolina|Charleston", "South Carolina|Charleston,Alabama|Birmingham"),
        (COORDINATES, "Latitude", "lat"),
        (COORDINATES, "Charleston,31", "Charleston,91"),
        (COORDINATES, "West Virginia", "South Carolina"),
    ],
)  # fmt: skip
def test_bad_tables_are_one_line(tmp_path: Path, name: str, old: str, new: str) -> None:
    days = make_days([2008])
    days[date(2008, 10, 1)][0] = 20.0
    write_wide(tmp_path, days)
    write_coordinates(tmp_path)
    assert_refused(tmp_path, name, old, new)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("ALBIRMIN.txt", "2010   21.5", "2010   -99"),
        ("ALBIRMIN.txt", "2010   21.5", "2010   warm"),
        ("ALBIRMIN.txt", "2010   21.5", "2010   nan"),
        ("ALBIRMIN.txt", "2010   21.5", "2010"),
        ("ALBIRMIN.txt", "10     9   2010", "10     8   2010"),
        (ARCHIVE, "AvgTemperature", "Celsius"),
        (ARCHIVE, "2019,", "2019,x"),
    ],
)
def test_a_bad_archive_is_one_line(tmp_path: Path, name: str, old: str, new: str) -> None:
    days = make_days(range(2007, 2020))
    days[date(2010, 10, 9)][0] = 21.5
    write_archive(tmp_path, days, sites_until=2018)
    write_coordinates(tmp_path)
    assert_refused(tmp_path, name, old, new)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with refuses(DataUnavailableError, COORDINATES):
        read_temperatures(tmp_path)
    write_coordinates(tmp_path)
    with refuses(DataUnavailableError, OCTOBER):
        read_temperatures(tmp_path)
    days = make_days(range(2007, 2020))
    write_archive(tmp_path, days, sites_until=2018)
    (tmp_path / "SCCHARLE.txt").unlink()
    with refuses(DataUnavailableError, "SCCHARLE.txt"):
        read_temperatures(tmp_path)
    write_wide(tmp_path, days)
    (tmp_path / SEPTEMBER).unlink()
    with refuses(DataUnavailableError, SEPTEMBER):
        read_temperatures(tmp_path)
