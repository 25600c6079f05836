"""Options and columns of `attngeo.mirrors`. Imports nothing heavy."""

from __future__ import annotations

from typing import Literal

from attngeo.attention.options import HeadOptions, ModelReading, ReadingOptions
from attngeo.options import COMPUTATION, INPUT, RUNNING, Converted, Memory, device_option, option, parse_bytes
from attngeo.questions.conditions import Checkable
from attngeo.questions.rows import ABOUT_MODEL

# The form in which heads are compared: with rotary embeddings over all offsets, or by W_qk at offset 0.
ROTARY, PLAIN = "rotary", "plain"
# The columns of numbers, which conditions may name.
MIRROR_NUMBERS = ("mirror", "twin", "antisymmetric_cosine", "mirror_z", "symmetry_part")
# One row for each pair of heads.
MIRROR_COLUMNS = (
    *ABOUT_MODEL, "model_type", "stack", "layer", "head", "other_layer", "other_head", "form", "shares_key_head",
    *MIRROR_NUMBERS, "is_partner", "note",
)  # fmt: skip
# What conditions may say of the table.
CHECKS = Checkable(MIRROR_NUMBERS, units=("pairs",))
# The table of the sign tests: one row for each stack.
ORIENTATION_COLUMNS = ("model", "stack", "layers", "partners", "opposite", "alike", "p_value")


class MirrorOptions(HeadOptions):
    """Options of `mirrors`. Raises UsageError for an invalid value."""

    across: bool = option(False, "Also compare heads of different layers of a stack", panel=INPUT)
    form: Literal["auto", "plain", "rotary"] = option(
        "auto",
        "Compare heads over all rotary offsets (rotary) or at offset 0 (plain); auto: rotary if a layer rotates",
        panel=COMPUTATION,
    )
    precision: Literal["float32", "float64"] = option(
        "float32", "Number type of the products", panel=COMPUTATION, advanced=True
    )
    device: str = device_option()
    memory: Converted[Memory | None, int | None] = option(
        None,
        "Memory limit for the heads; with across, if not all fit, layers are read several times",
        panel=RUNNING,
        metavar="SIZE",
        shown_default="a quarter of free memory",
        least=1,
        parse=parse_bytes,
        advanced=True,
    )

    def readings(self) -> tuple[ModelReading]:
        """What to read from the model."""
        return (ModelReading(ReadingOptions.of(self)),)
