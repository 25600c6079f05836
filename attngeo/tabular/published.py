"""The numbers that the paper prints in Tables 1 and 2.

Source: Wibisono and Wang 2023 (arXiv 2307.04057), and the authors' stored results per data set for the deviations.
"""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files
from typing import NamedTuple

SOURCE = "Wibisono and Wang 2023 (arXiv 2307.04057), tables 1 and 2"


class ShiftSetting(NamedTuple):
    """A row of Table 1: features that the response depends on, noise of features, correlation in training rows."""

    n_c: int
    noise: float
    corr: float

    def __str__(self) -> str:
        return f"{self.n_c},{self.noise:g},{self.corr:g}"


class PublishedScores(NamedTuple):
    """Mean and standard deviation over data sets; the deviations are None for Table 2, which has one data set."""

    accuracy: float
    mse: float
    accuracy_sd: float | None = None
    mse_sd: float | None = None


@cache
def simulation_scores() -> dict[tuple[ShiftSetting, str], PublishedScores]:
    """Table 1: setting and method → its scores over 20 data sets."""
    return {
        (ShiftSetting(int(row["n_c"]), float(row["noise"]), float(row["corr"])), row["method"]): PublishedScores(
            float(row["accuracy"]), float(row["mse"]), float(row["accuracy_sd"]), float(row["mse_sd"])
        )
        for row in _read("published_simulation.csv")
    }


@cache
def auto_mpg_scores() -> dict[str, PublishedScores]:
    """Table 2: method → its scores."""
    return {
        row["method"]: PublishedScores(float(row["accuracy"]), float(row["mse"]))
        for row in _read("published_auto_mpg.csv")
    }


def paper_settings() -> tuple[ShiftSetting, ...]:
    """The twelve settings of Table 1, in its order."""
    return tuple(dict.fromkeys(setting for setting, _ in simulation_scores()))


def _read(name: str) -> list[dict[str, str]]:
    text = (files(__package__) / name).read_text("utf-8")
    return list(csv.DictReader(text.splitlines()))
