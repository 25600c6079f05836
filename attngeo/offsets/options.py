"""The options and the columns of `attngeo.positions`. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.attention.options import HeadOptions, ModelReading, ReadingOptions
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


class PositionOptions(HeadOptions):
    """Options of `positions`: the heads and their forms. Raises UsageError for a value outside its limits.

    `ScoreOptions` has all of these fields, too.
    """

    def readings(self) -> tuple[ModelReading]:
        """The parts of the model to read."""
        return (ModelReading(ReadingOptions.of(self, device="cpu")),)
