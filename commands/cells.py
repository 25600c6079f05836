"""Scores as cells of tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attngeo.questions.spread import QUARTILES, statistic
from attngeo.scores.spec import SCORES

from .tables import format_number


def score_format(score: str, digits: int = 3) -> str:
    """The format of a score's numbers, with a sign if they can be negative. digits: the largest number of digits."""
    spec = SCORES[score]
    sign = "+" if spec.low < 0 else ""
    return f"{sign}.{min(digits, spec.digits)}f" if not spec.is_size else f".{spec.digits}g"


def format_quartiles(
    spread: Mapping[Any, float], score: str, *, digits: int = 3, heads: bool = False
) -> tuple[str, str]:
    """The median of a score over layers or heads, and its quartiles in brackets."""
    form = score_format(score, digits)
    lower, median, upper = (format_number(spread[statistic(score, place, heads=heads)], form) for place in QUARTILES)
    return median, f"[{lower}, {upper}]"
