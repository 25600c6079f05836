"""The numbers of the paper's experiments.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), tables 1 and 2, sections 6.3 and 6.4; the outputs that the authors
stored have more digits, and the temperatures' numbers that the paper shows in figure 6 only.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple

SOURCE = "Wibisono and Wang 2025 (arXiv 2501.16790), section 6"


class ResultName(NamedTuple):
    """What a number is of."""

    experiment: str
    model: str
    direction: str
    setting: str
    metric: str


@cache
def published_results() -> Mapping[ResultName, float]:
    """The published numbers."""
    rows = csv.reader((files(__package__) / "published_results.csv").read_text("utf-8").splitlines()[1:])
    return {ResultName(*row[:-1]): float(row[-1]) for row in rows}
