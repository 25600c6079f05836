"""Lists of layers from users, as text such as "0-3,7" or as numbers. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from numbers import Integral

from attngeo.errors import UsageError
from attngeo.layouts.names import MOST_LAYERS

RANGE = re.compile(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", re.ASCII)


def parse_layers(text: str) -> list[int]:
    """The layers of a list such as "0-3,7". Raises UsageError.

    >>> parse_layers("0-3,7")
    [0, 1, 2, 3, 7]
    """
    ranges = text.split(",", MOST_LAYERS)
    layers: set[int] = set()
    for range_text in ranges:
        numbers = RANGE.fullmatch(range_text)
        if numbers is None or len(ranges) > MOST_LAYERS:
            raise _refuse_text(text)
        first = int(numbers[1])
        last = int(numbers[2] or first)
        if not first <= last < MOST_LAYERS:
            raise _refuse_text(text)
        layers.update(range(first, last + 1))
    return sorted(layers)


def _refuse_text(text: str) -> UsageError:
    return UsageError(
        f"$layers is {text!r:.80}, expected numbers and ranges below {MOST_LAYERS:,}, such as 0-3,7", "layers"
    )


def check_layers(layers: Iterable[int] | str | None) -> tuple[int, ...] | None:
    """Layers as numbers, from a collection or a text; None stays None. Raises UsageError."""
    if layers is None:
        return None
    if isinstance(layers, str):
        return tuple(parse_layers(layers))
    numbers = tuple(islice(layers, MOST_LAYERS + 1)) if isinstance(layers, Iterable) else (None,)
    are_whole = all(isinstance(number, Integral) and not isinstance(number, bool) for number in numbers)
    if not are_whole or len(numbers) > MOST_LAYERS:
        raise UsageError(f"$layers is {layers!r:.80}, expected whole numbers, such as [0, 1, 7]", "layers")
    return tuple(map(int, numbers))  # of numpy, too
