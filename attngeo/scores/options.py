"""The options of `attngeo.score`, each declared once: the library, the command and the recipe read them here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from numbers import Integral

from attngeo.choices import Convention, Precision
from attngeo.errors import UsageError
from attngeo.layouts.config import MOST_LAYERS
from attngeo.options import COMPUTATION, INPUT, RUNNING, Options, device_option, option, parse_bytes

RANGE = re.compile(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", re.ASCII)
# Beyond this many positions, float64 cannot represent the angle of a rotation.
LARGEST_OFFSET = 2**31


def parse_layers(text: str) -> list[int]:
    """The layers of a list such as "0-3,7". Raises UsageError.

    >>> parse_layers("0-3,7")
    [0, 1, 2, 3, 7]
    """
    layers: set[int] = set()
    parts = text.split(",", MOST_LAYERS)
    for part in parts:
        range_ = RANGE.fullmatch(part)
        first, last = (int(range_[1]), int(range_[2] or range_[1])) if range_ else (1, 0)
        if not first <= last < MOST_LAYERS or len(parts) > MOST_LAYERS:
            raise UsageError(
                f"$layers is {text!r:.80}, expected for example 0-3,7, all below {MOST_LAYERS:,}", "layers"
            )
        layers.update(range(first, last + 1))
    return sorted(layers)


def check_layers(layers: Iterable[int] | str | None) -> tuple[int, ...] | None:
    """The layers that are asked for: a collection of numbers, a list in a text, or None. Raises UsageError."""
    if layers is None:
        return None
    if isinstance(layers, str):
        return tuple(parse_layers(layers))
    wanted = tuple(islice(layers, MOST_LAYERS + 1)) if isinstance(layers, Iterable) else ()
    numbers = all(isinstance(layer, Integral) and not isinstance(layer, bool) for layer in wanted)
    if not isinstance(layers, Iterable) or not numbers or len(wanted) > MOST_LAYERS:
        raise UsageError(f"$layers is {layers!r:.80}, expected whole numbers, such as [0, 1, 7]", "layers")
    return tuple(map(int, wanted))  # of numpy, too


class ResultOptions(Options):
    """Options for scores that are kept on this machine."""

    fresh: bool = option(False, "Compute again what is in the result store (see attngeo cache)", panel=RUNNING)


class ScoreOptions(Options):
    """What is scored, and how. Raises UsageError for a value that is no choice or outside its limits."""

    per_head: bool = option(False, "Add one row for each head", panel=INPUT)
    stack: str | None = option(
        None, "Score only this stack: encoder, decoder, cross, text, vision … (see attngeo inspect)",
        panel=INPUT, metavar="NAME",
    )  # fmt: skip
    layers: Sequence[int] | None = option(
        None, "Score only these layers, for example 0-3,7", panel=INPUT, metavar="LIST", parse=check_layers
    )
    gamma: float = option(2.0, "Outlier threshold: mean + gamma·std of the norms", panel=COMPUTATION)
    convention: Convention = option(
        "corrected",
        "Formulas: corrected follows the paper's definitions, published reproduces its tables S4 and S5",
        panel=COMPUTATION,
    )
    with_bias: bool = option(False, "Include the biases, as an extra input with the value 1", panel=COMPUTATION)
    fold_norm: bool = option(False, "Include the gain of the normalisation before attention", panel=COMPUTATION)
    rope_offset: int = option(
        0, "Query position minus key position, for rotary embeddings", panel=COMPUTATION, metavar="Δ",
        least=-LARGEST_OFFSET, most=LARGEST_OFFSET,
    )  # fmt: skip
    precision: Precision = option(
        "float32", "Number type of the matrix products; fast uses bfloat16 (error about 1e-3)", panel=COMPUTATION
    )
    device: str = device_option()
    memory: int | None = option(
        None, "Memory for the weights of layers in flight; at least one layer is read", panel=RUNNING, metavar="SIZE",
        shown_default="a quarter of what is free", least=1, parse=parse_bytes,
    )  # fmt: skip
