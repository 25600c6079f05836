"""Data that may not be shipped with the project, and made-up files in the same formats.

Tests that need the data itself skip where it is not there.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest

from attngeo.papers.wibisono2023.data import NUMBERS
from attngeo.papers.wibisono2025.temperature import list_sites

# A folder beside the clone, unless the environment names another.
DATA = Path(os.environ.get("ATTNGEO_DATA", Path(__file__).parents[3] / "shared" / "data"))


def needs(name: str) -> pytest.MarkDecorator:
    """Skip where this file or folder of the data is not there."""
    return pytest.mark.skipif(
        not (DATA / name).exists(),
        reason=f"needs {name} in the folder that ATTNGEO_DATA names, which cannot be shipped",
    )


def make_cars(count: int = 30, seed: int = 0) -> list[dict[str, float]]:
    draw = np.random.default_rng(seed)
    return [
        {name: float(draw.integers(10, 4000)) for name in NUMBERS}
        | {"cylinders": float(draw.choice([4, 6, 8])), "origin": float(at % 3 + 1)}
        for at in range(count)
    ]


def write_uci(cars: list[dict[str, float]]) -> str:
    return "".join(" ".join(f"{car[name]:.1f}" for name in NUMBERS) + '\t"a car\'s name"\n' for car in cars)


def write_table(path: Path, header: Sequence[object], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def write_movielens(folder: Path, users: int = 20) -> None:
    """Ratings of five movies at a time by each user, one a minute."""
    draw = np.random.default_rng(0)
    rows = [(user, 1 + (user + at) % 9, draw.integers(1, 6), 60 * at) for user in range(1, users) for at in range(5)]
    (folder / "u.data").write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))


def write_instacart(folder: Path) -> None:
    """Baskets of ten of twelve products, 30 for training and 10 for the test."""
    for part, orders in {"train": range(30), "test": range(30, 40)}.items():
        rows = [(order, 1 + (order + at) % 12, at + 1) for order in orders for at in range(10)]
        write_table(folder / f"data_{part}_final.csv", ["order_id", "product_id", "rank"], rows)


def write_temperatures(folder: Path, cities: int = 5) -> None:
    """Temperatures of the last days of September and of October, in all years of the paper."""
    draw = np.random.default_rng(0)
    names = [site.city for site in list_sites()[:cities]]
    days = [date(year, 9, 29) + timedelta(days=at) for year in range(2007, 2020) for at in range(33)]
    for month, name in ((9, "sep29_30_2007_2019.csv"), (10, "october_2007_2019.csv")):
        rows = [(day, *draw.uniform(20, 90, cities).round(1)) for day in days if day.month == month]
        write_table(folder / name, ["date", *names], rows)
    places = [(*name.split("|"), 30 + at, -90 - at) for at, name in enumerate(names)]
    write_table(folder / "all_cities_lat_lon.csv", ["State", "City", "Latitude", "Longitude"], places)
