"""Data that may not be shipped with the project, and made-up files in the same formats.

Tests that need the data itself skip where it is not there.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

from attngeo.papers.wibisono2023.data import NUMBER_FEATURES

# A folder beside the clone, unless the environment names another.
DATA = Path(os.environ.get("ATTNGEO_DATA", Path(__file__).parents[3] / "shared" / "data"))


# Where to get them: the README of each paper has the terms.
SOURCES = {
    "auto-mpg.csv": "doi.org/10.24432/C5859H",
    "instacart": "attngeo/papers/wibisono2025/README.md",
    "movielens": "grouplens.org/datasets/movielens/100k",
    "published": "the stored outputs of the authors' notebooks",
    "temperature": "attngeo/papers/wibisono2025/README.md",
    "wikitext-2": "WikiText-2, its valid split",
}


def needs(name: str) -> pytest.MarkDecorator:
    """Skip where this file or folder of the data is missing."""
    return pytest.mark.skipif(
        not (DATA / name).exists(),
        reason=f"{name} is missing in the folder ATTNGEO_DATA; it may not be shipped, get it from "
        f"{SOURCES[name.partition('/')[0]]}",
    )


def make_cars(count: int = 30, seed: int = 0) -> list[dict[str, float]]:
    draw = np.random.default_rng(seed)
    return [
        {name: float(draw.integers(10, 4000)) for name in NUMBER_FEATURES}
        | {"cylinders": float(draw.choice([4, 6, 8])), "origin": float(at % 3 + 1)}
        for at in range(count)
    ]


def write_uci(cars: list[dict[str, float]]) -> str:
    return "".join(" ".join(f"{car[name]:.1f}" for name in NUMBER_FEATURES) + '\t"a car\'s name"\n' for car in cars)


def write_table(path: Path, header: Sequence[object], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
