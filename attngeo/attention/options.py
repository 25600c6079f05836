"""Options for reading a model, and for the forms built from it. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

from attngeo.attention.layers import check_layers
from attngeo.choices import Parts, Precision
from attngeo.options import (
    COMPUTATION,
    INPUT,
    RUNNING,
    Converted,
    Layers,
    Memory,
    Options,
    Reference,
    References,
    as_texts,
    device_option,
    option,
    parse_bytes,
)

# Beyond this many positions, float64 cannot represent the angle of a rotation.
LARGEST_OFFSET = 2**31


class SourceOptions(Options):
    """Options for the adapters and the config.json of a model."""

    adapter: Converted[References, Sequence[str]] = option(
        (),
        "PEFT adapter to add, from the Hub or a folder; REF=0.5 adds half of it",
        panel=INPUT,
        metavar="REF",
        parse=as_texts,
        repeated=True,
    )
    config: Converted[Reference | None, str | None] = option(
        None,
        "Source of config.json, if not beside the weights: a folder, a file or a model on the Hub",
        panel=INPUT,
        metavar="REF",
        parse=str,
        advanced=True,
    )


class HeadOptions(SourceOptions):
    """Options of the heads to read, and of their forms. Raises UsageError for a value outside its limits."""

    stack: str | None = option(
        None,
        "Read only this stack: encoder, decoder, cross, text, vision …",
        in_command=" (see attngeo inspect)",
        panel=INPUT,
        metavar="NAME",
    )
    layers: Converted[Layers | None, Sequence[int] | None] = option(
        None,
        "Read only these layers",
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


class ReadingOptions(HeadOptions):
    """Options of the attention weights and their forms. Raises UsageError for a value outside its limits."""

    fold_norm: bool = option(
        False,
        "Include the gain of the normalisation before attention and, for Wv·Wo, of any normalisation after it",
        panel=COMPUTATION,
    )
    rope_offset: int = option(
        0,
        "Query position minus key position, for rotary embeddings",
        panel=COMPUTATION,
        metavar="Δ",
        least=-LARGEST_OFFSET,
        most=LARGEST_OFFSET,
        advanced=True,
    )
    precision: Precision = option(
        "float32",
        "Number type of the matrix products; fast uses bfloat16 (error about 1e-3)",
        panel=COMPUTATION,
        advanced=True,
    )
    device: str = device_option()

    @classmethod
    def of(cls, options: Options, **others: object) -> Self:
        """These options, from the options of a question; `others` replace some of them."""
        return cls(**{name: value for name, value in options.given.items() if name in cls.model_fields} | others)


class ModelReading(NamedTuple):
    """The part of a model that a question reads.

    Attributes:
        options: which weights to read, and into which forms.
        parts: the letters of the weights.
        only_updates: whether to read only the change by adapters.
    """

    options: ReadingOptions
    parts: Parts = "qk"
    only_updates: bool = False
