"""Numbers as the cells of a table show them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from attngeo.scores.spec import SCORES
from attngeo.scores.summary import QUARTILES, statistic

MISSING = "—"


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN or pandas' NA."""
    import pandas as pd

    return bool(pd.isna(value))


# Larger numbers have so many digits that tables cut them.
LARGE = 1e12


def format_number(value: Any, form: str = ".3f") -> str:
    """A number by a format; a dash for a missing one, and no minus in front of a zero."""
    if is_missing(value):
        return MISSING
    text = f"{value:{form}}" if not abs(value) > LARGE else f"{value:.3g}"
    if math.isinf(value):
        return text
    if any(digit in text for digit in "123456789"):
        return text
    return text.replace("-", "+" if "+" in form else "")


def format_score(value: Any, score: str, digits: int = 3) -> str:
    """A score; with its sign if the score can be negative."""
    sign = "+" if SCORES[score].low < 0 else ""
    return format_number(value, f"{sign}.{digits}f")


def format_quartiles(
    spread: Mapping[Any, float], score: str, *, digits: int = 3, heads: bool = False
) -> tuple[str, str]:
    """The median of a score over layers or heads, and its quartiles in brackets."""
    lower, median, upper = (
        format_score(spread[statistic(score, place, heads=heads)], score, digits) for place in QUARTILES
    )
    return median, f"[{lower}, {upper}]"


def name_layers(layers: Iterable[int]) -> str:
    """Layer numbers in words.

    >>> name_layers([0, 1, 2, 5]), name_layers([3])
    ('layers 0-2, 5', 'layer 3')
    """
    numbers = sorted(set(map(int, layers)))
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    runs = (str(first) if first == last else f"{first}-{last}" for first, last in zip(starts, ends, strict=True))
    return f"layer{'s' if len(numbers) > 1 else ''} {', '.join(runs)}"
