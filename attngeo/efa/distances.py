"""Distances between places: on the Earth, or straight."""

from __future__ import annotations

from typing import Any

import numpy as np

from attngeo.errors import TableError

# Of the Earth, in km.
RADIUS = 6371.0


def measure_distances(places: np.ndarray) -> np.ndarray:
    """Great-circle distances in km between places, [I, I]; places: latitude and longitude in degrees, [I, 2].

    By the haversine formula on a sphere of radius 6,371 km. Raises TableError for degrees that no place has.
    """
    for name, degrees, most in zip(("latitude", "longitude"), places.T, (90, 360), strict=True):
        if np.abs(degrees).max() > most:
            wrong = degrees[np.abs(degrees).argmax()]
            raise TableError(
                f"a place has the {name} {wrong:g}, expected degrees from -{most} to {most}; name the columns of "
                "latitude and longitude in this order, or set distance to euclidean"
            )
    latitude, longitude = np.radians(places).T
    between = [each[:, None] - each for each in (latitude, longitude)]
    cosines = np.cos(latitude)[:, None] * np.cos(latitude)
    half: Any = np.sin(between[0] / 2) ** 2 + cosines * np.sin(between[1] / 2) ** 2
    found: np.ndarray = 2 * RADIUS * np.arcsin(np.sqrt(half))
    return found


def measure_straight(places: np.ndarray) -> np.ndarray:
    """Euclidean distances between places, [I, I]; places: [I, dimensions]."""
    found: np.ndarray = np.sqrt(((places[:, None] - places) ** 2).sum(-1))
    return found
