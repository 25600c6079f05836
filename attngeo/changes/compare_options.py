"""Options and columns of `attngeo.compare`. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from attngeo.attention.layers import check_layers
from attngeo.attention.options import LARGEST_OFFSET, ModelReading, ReadingOptions, SourceOptions
from attngeo.choices import PARTS_OF, OneCircuit, one_of
from attngeo.errors import UsageError
from attngeo.options import (
    COMPUTATION,
    INPUT,
    RUNNING,
    Converted,
    Layers,
    Memory,
    References,
    as_texts,
    device_option,
    option,
    parse_bytes,
)
from attngeo.questions.conditions import Checkable
from attngeo.questions.rows import ABOUT_BOTH
from attngeo.questions.spread import LARGE, SMALL, spread_columns, summarize_columns

if TYPE_CHECKING:
    import pandas as pd

# The scores of each of two models, which are those that `attngeo.score` always computes.
SCORES = ("symmetry", "directionality")
OTHER = "_other"
SCORES_OF_BOTH = ("symmetry", "symmetry_other", "directionality", "directionality_other")
CHANGES = ("change", "cosine")
# How much of the inputs that a head reads, or writes to, is the same in both models; by circuit.
OVERLAPS: dict[OneCircuit, tuple[str, str]] = {
    "qk": ("query_overlap", "key_overlap"),
    "ov": ("value_overlap", "output_overlap"),
}
# The columns that whole layers do not have.
OF_HEADS = (*OVERLAPS["qk"], *OVERLAPS["ov"])


def compare_columns(circuit: OneCircuit = "qk") -> tuple[str, ...]:
    """The columns of the table of changes, in order. A table about W_qk has no column `circuit`.

    Raises UsageError for an unknown circuit.
    """
    circuits = () if one_of("circuit", circuit, OneCircuit) == "qk" else ("circuit",)
    place = ("stack", "layer", "head", "key_head")
    return (*ABOUT_BOTH, *circuits, *place, *SCORES_OF_BOTH, *CHANGES, *OVERLAPS[circuit], "note")


def number_columns() -> tuple[str, ...]:
    """The numeric columns, which conditions can name; each circuit has its own overlaps."""
    return (*CHANGES, *OF_HEADS, *SCORES_OF_BOTH)


def find_circuit(column: str) -> OneCircuit | None:
    """The only circuit whose tables have this column; None if the tables of all circuits have it, or no table."""
    return next((circuit for circuit, overlaps in OVERLAPS.items() if column in overlaps), None)


# What a summary is of, and the columns that tell its rows apart: of small cosines one wants to know.
SUMMARIZED = {"change": LARGE, "cosine": SMALL}
STACK = ("model", "other", "stack")


def summary_columns() -> tuple[str, ...]:
    """The columns of `summarize_changes`, in order."""
    return spread_columns(SUMMARIZED, STACK)


def summarize_changes(rows: pd.DataFrame) -> pd.DataFrame:
    """Quartiles over the layers and heads of a table of changes, one row per other model and stack.

    Each row also has the largest change and the smallest cosine.
    """
    return summarize_columns(rows, SUMMARIZED, STACK)


# What conditions may say of the table.
CHECKS = Checkable(number_columns, about=("other", "stack"), of_heads=OF_HEADS, counted=SCORES[0])


class CompareOptions(SourceOptions):
    """Options of `compare`. Raises UsageError for an invalid value."""

    per_head: bool = option(False, "Add one row per head", panel=INPUT)
    stack: str | None = option(
        None,
        "Compare only this stack: encoder, decoder, cross, text, vision …; text=decoder if the "
        "other model names it differently",
        in_command=" (see attngeo inspect)",
        panel=INPUT,
        metavar="NAME",
    )
    layers: Converted[Layers | None, Sequence[int] | None] = option(
        None,
        "Compare only these layers of the first model",
        in_command=", for example 0-3,7",
        panel=INPUT,
        metavar="LIST",
        parse=check_layers,
    )
    adapter: Converted[References, Sequence[str]] = option(
        (),
        "PEFT adapter to add to each of the other models; REF=0.5 adds half of it",
        panel=INPUT,
        metavar="REF",
        parse=as_texts,
        repeated=True,
    )
    circuit: OneCircuit = option(
        "qk", "Matrix of each head: queries with keys (qk), or values with outputs (ov)", panel=COMPUTATION
    )
    rope_offset: int | None = option(
        None,
        "Compare only at this rotary offset (query position minus key position)",
        panel=COMPUTATION,
        metavar="Δ",
        shown_default="all offsets",
        least=-LARGEST_OFFSET,
        most=LARGEST_OFFSET,
    )
    fold_norm: bool = option(False, "Include the gain of the normalisation before attention", panel=COMPUTATION)
    precision: Literal["float32", "float64"] = option(
        "float32", "Number type of the weights and of the matrix products", panel=COMPUTATION, advanced=True
    )
    device: str = device_option()
    memory: Converted[Memory | None, int | None] = option(
        None,
        "Memory limit for layer weights; at least one layer of each model is held, even if larger",
        panel=RUNNING,
        metavar="SIZE",
        shown_default="a quarter of free memory",
        least=1,
        parse=parse_bytes,
        advanced=True,
    )

    def readings(self) -> tuple[ModelReading, ModelReading]:
        """What to read from the first model, and from the other with its adapters: all stacks and layers."""
        asked = ReadingOptions.of(self, stack=None, layers=None, adapter=(), rope_offset=self.rope_offset or 0)
        parts = PARTS_OF[self.circuit]
        return ModelReading(asked, parts), ModelReading(asked.replace(adapter=self.adapter), parts)

    def _check(self) -> None:
        if self.circuit == "ov" and self.rope_offset is not None:
            raise UsageError(
                "$rope_offset applies only to queries and keys; leave out $rope_offset or $circuit",
                "rope_offset",
                "circuit",
            )
