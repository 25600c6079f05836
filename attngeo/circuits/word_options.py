"""Options and columns of `attngeo.words`. Imports nothing heavy."""

from __future__ import annotations

from typing import Literal

from attngeo.options import COMPUTATION, INPUT, Converted, Options, Reference, as_text, device_option, option
from attngeo.questions.rows import ABOUT_MODEL

WORD_COLUMNS = (
    *ABOUT_MODEL, "stack", "layer", "head", "circuit", "kind", "token", "token_id", "target", "target_id",
    "rank", "value", "value_chance", "note",
)  # fmt: skip


class WordOptions(Options):
    """Options of `words`: the head and the tokens. Raises UsageError for an invalid value."""

    layer: int = option(0, "Layer in its stack, counted from 0", panel=INPUT, least=0)
    head: int = option(0, "Query head, counted from 0", panel=INPUT, least=0)
    stack: str | None = option(
        None,
        "Stack of the layer; by default, the first",
        in_command=" (see attngeo inspect)",
        panel=INPUT,
        metavar="NAME",
    )
    circuit: Literal["qk", "ov"] = option(
        "qk",
        "Show which token attends to which (qk), or which tokens an attended token promotes (ov)",
        panel=INPUT,
    )
    tokens: Converted[Reference | None, str | None] = option(
        None, "For each token in FILE (one per line), list its top pairs", panel=INPUT,
        metavar="FILE", parse=as_text,
    )  # fmt: skip
    top: int = option(10, "Number of tokens or pairs to show", panel=COMPUTATION, least=1, most=10_000)
    seed: int = option(0, "Seed for shuffling the embeddings", panel=COMPUTATION, least=0, most=2**32 - 1)
    device: str = device_option()
