"""Options and columns of `attngeo.compose`. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from attngeo.attention.layers import check_layers
from attngeo.attention.options import ModelReading, ReadingOptions, SourceOptions
from attngeo.choices import one_of
from attngeo.errors import UsageError
from attngeo.options import COMPUTATION, INPUT, RUNNING, Converted, Layers, Memory, device_option, option, parse_bytes
from attngeo.questions.conditions import Checkable
from attngeo.questions.rows import ABOUT_MODEL

# What a head reads with: its queries, its keys or its values.
KINDS = ("q", "k", "v")
# One row for each causal pair of heads and kind.
COMPOSE_COLUMNS = (
    *ABOUT_MODEL, "kind", "from_stack", "from_layer", "from_head", "to_stack", "to_layer", "to_head", "composition",
    "composition_z", "above_threshold", "note",
)  # fmt: skip
# The columns of numbers, which conditions may name.
COMPOSE_NUMBERS = ("composition", "composition_z", "above_threshold")
# What conditions may say of the table.
CHECKS = Checkable(COMPOSE_NUMBERS, about=("model", "kind", "from_stack", "to_stack"), units=("pairs",))


def parse_kinds(kinds: Any) -> tuple[str, ...]:
    """The kinds in a text such as "q,k" or in a list, in the order of `KINDS`. Raises UsageError.

    >>> parse_kinds("k,q")
    ('q', 'k')
    """
    names = kinds.split(",") if isinstance(kinds, str) else kinds
    if not isinstance(names, list | tuple) or not names:
        raise UsageError(f"$kind is {kinds!r:.60}, expected one or more of q, k and v, for example q,k", "kind")
    names = [name.strip() if isinstance(name, str) else name for name in names]
    for name in names:
        one_of("kind", name, KINDS)
    return tuple(kind for kind in KINDS if kind in names)


def _layers_option(help: str, in_command: str = "") -> Any:
    return option(
        None, help, in_command=in_command, panel=INPUT, metavar="LIST", shown_default="all", parse=check_layers
    )


class ComposeOptions(SourceOptions):
    """Options of `compose`. Raises UsageError for an invalid value."""

    kind: Sequence[str] = option(
        KINDS,
        "Kinds of composition: with the later head's queries (q), keys (k) or values (v), for example q,k",
        panel=INPUT,
        metavar="LIST",
        shown_default="q,k,v",
        parse=parse_kinds,
    )
    stack: str | None = option(
        None, "Use only heads of this stack", in_command=" (see attngeo inspect)", panel=INPUT, metavar="NAME"
    )
    from_layers: Converted[Layers | None, Sequence[int] | None] = _layers_option(
        "Layers of the heads that write", in_command=", for example 0-3,7"
    )
    to_layers: Converted[Layers | None, Sequence[int] | None] = _layers_option("Layers of the heads that read")
    fold_norm: bool = option(
        False,
        "Include gains of normalisations: before attention for reading heads, after attention for writing heads",
        panel=COMPUTATION,
    )
    precision: Literal["float32", "float64"] = option(
        "float32", "Number type of the products", panel=COMPUTATION, advanced=True
    )
    device: str = device_option()
    memory: Converted[Memory | None, int | None] = option(
        None,
        "Memory limit for the heads; if not all fit, layers are read several times",
        panel=RUNNING,
        metavar="SIZE",
        shown_default="a quarter of free memory",
        least=1,
        parse=parse_bytes,
    )

    def readings(self) -> tuple[ModelReading]:
        """What to read from the model."""
        return (ModelReading(ReadingOptions.of(self), "qkvo"),)
