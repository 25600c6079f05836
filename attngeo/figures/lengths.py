"""Lengths of figures: pixels of a screen, or inches, centimetres, millimetres and points of paper.

As in CSS, 96 pixels are an inch. A point is 1/72 inch, as in PDF; that of TeX is 0.4% shorter. Imports nothing heavy.
"""

from __future__ import annotations

import re
from typing import Any

from attngeo.choices import as_python
from attngeo.errors import UsageError

# Pixels of each unit of paper.
INCH = 96.0
PAPER = {"in": INCH, "cm": INCH / 2.54, "mm": INCH / 25.4, "pt": INCH / 72}
LENGTH = re.compile(r"(\d{1,6}(?:\.\d{1,6})?|\.\d{1,6})\s*(px|in|cm|mm|pt)?", re.ASCII)


def parse_length(name: str, least: float, most: float, length: Any) -> Any:
    """The length of an option, as written. Raises UsageError for other values.

    Args:
        name: name of the option.
        least: lower limit in pixels.
        most: upper limit in pixels.
        length: the value.

    >>> parse_length("width", 100, 10_000, "3.4in"), parse_length("width", 100, 10_000, "600")
    ('3.4in', 600)
    """
    length = as_python(length)
    is_number = isinstance(length, int | float) and not isinstance(length, bool)
    parts = LENGTH.fullmatch(length.strip().lower()) if isinstance(length, str) else None
    if not is_number and parts is None:
        raise UsageError(
            f"${name} is {length!r:.60}, expected pixels, or a length on paper such as 3.4in, 8.6cm, 86mm or 245pt",
            name,
        )
    if parts is not None and parts[2] in (None, "px"):
        length = _shorten(float(parts[1]))
    if not least <= to_pixels(length) <= most:
        points = f"{least / PAPER['pt']:,.12g}pt to {most / PAPER['pt']:,.12g}pt"
        text = f"${name} is {length!r:.60}, expected {least:,} to {most:,} pixels ({points})"
        if not is_on_paper(length):
            text += "; a number without a unit is in pixels; write other units out: 3.4in, 8.6cm, 86mm or 245pt"
        raise UsageError(text, name)
    return length


def to_pixels(length: float | str) -> float:
    """A length that `parse_length` allows, in pixels.

    >>> to_pixels("1in"), to_pixels("36pt"), to_pixels("25.4 mm"), to_pixels(600)
    (96, 48, 96, 600)
    """
    if not isinstance(length, str):
        return _shorten(float(length))
    parts = LENGTH.fullmatch(length.strip().lower())
    assert parts is not None
    return _shorten(float(parts[1]) * PAPER[parts[2]])


def _shorten(number: float) -> float:
    """A number of pixels to six decimals, a whole one without any."""
    return int(number) if number.is_integer() else round(number, 6)


def is_on_paper(length: float | str | None) -> bool:
    """Whether a length has a unit of paper."""
    return isinstance(length, str)


def describe_pixels(pixels: float, like: float | str) -> str:
    """A number of pixels in the unit of another length.

    >>> describe_pixels(288, "2.4in"), describe_pixels(288, 250)
    ('3in', '288 pixels')
    """
    parts = LENGTH.fullmatch(like.strip().lower()) if isinstance(like, str) else None
    if parts is None:
        return f"{pixels:.12g} pixels"
    return f"{pixels / PAPER[parts[2]]:.3g}{parts[2]}"
