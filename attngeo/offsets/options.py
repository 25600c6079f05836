"""The options and the columns of `attngeo.positions`. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attngeo.attention.layers import check_layers
from attngeo.attention.options import ModelReading, ReadingOptions, SourceOptions
from attngeo.options import COMPUTATION, INPUT, RUNNING, Converted, Layers, Memory, option, parse_bytes
from attngeo.questions.conditions import Checkable
from attngeo.questions.rows import ABOUT_MODEL
from attngeo.questions.spread import LARGE, spread_columns, summarize_columns

if TYPE_CHECKING:
    import pandas as pd

# The largest offset with a column of the kernel, and the largest offset at which its peak is searched.
LAST_COLUMN, FARTHEST = 8, 64
KERNEL = tuple(f"kernel_{offset}" for offset in range(LAST_COLUMN + 1))
# Columns of numbers, whose names a reader of results files needs.
MEASURES = ("fast_share", "previous_token", "peak", *KERNEL)
# The columns of a summary.
SUMMARIZED = {"fast_share": LARGE, "previous_token": LARGE}
# The columns that conditions may use.
CHECKS = Checkable(MEASURES, units=("heads",))


def position_columns() -> tuple[str, ...]:
    """The columns of the table of positions, in order; `kernel_Δ` is κ(Δ)."""
    return (*ABOUT_MODEL, "model_type", "stack", "layer", "head", "key_head", *MEASURES, "note")


def summary_columns() -> tuple[str, ...]:
    """The columns of `summarize_positions`, in order."""
    return spread_columns(SUMMARIZED, only_heads=True)


def summarize_positions(rows: pd.DataFrame) -> pd.DataFrame:
    """Quartiles and maximum over the heads of a table of positions, one row per stack."""
    return summarize_columns(rows, SUMMARIZED, only_heads=True)


class PositionOptions(SourceOptions):
    """Options of `positions`: the heads and their forms. Raises UsageError for a value outside its limits.

    `ScoreOptions` has all of these fields, too.
    """

    stack: str | None = option(
        None,
        "Measure only this stack: encoder, decoder, text, vision …",
        in_command=" (see attngeo inspect)",
        panel=INPUT,
        metavar="NAME",
    )
    layers: Converted[Layers | None, Sequence[int] | None] = option(
        None,
        "Measure only these layers",
        in_command=", for example 0-3,7",
        panel=INPUT,
        metavar="LIST",
        parse=check_layers,
    )
    with_bias: bool = option(
        False, "Include the biases, as an extra input of value 1", panel=COMPUTATION, advanced=True
    )
    fold_norm: bool = option(False, "Include the gain of the normalisation before attention", panel=COMPUTATION)
    memory: Converted[Memory | None, int | None] = option(
        None,
        "Memory limit for layer weights; at least one layer is held, even if larger",
        panel=RUNNING,
        metavar="SIZE",
        shown_default="a quarter of free memory",
        least=1,
        parse=parse_bytes,
        advanced=True,
    )

    def readings(self) -> tuple[ModelReading]:
        """The parts of the model to read."""
        return (ModelReading(ReadingOptions.of(self, device="cpu")),)
