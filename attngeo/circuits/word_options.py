"""Options and columns of `attngeo.words`. Imports nothing heavy."""

from __future__ import annotations

from typing import Any, Literal

from attngeo.choices import whole
from attngeo.errors import UsageError
from attngeo.options import COMPUTATION, INPUT, Converted, Options, Reference, as_text, device_option, option
from attngeo.questions.rows import ABOUT_MODEL

ALL: Literal["all"] = "all"
PAIR_COLUMNS = ("kind", "token", "token_id", "target", "target_id", "rank", "value", "value_chance")
# The columns of tokens of directions, in place of those of pairs.
DIRECTION_COLUMNS = (
    "direction", "last_direction", "singular_value", "last_singular_value", "norm_share",
    "token_ratio", "token_ratio_chance", "target_ratio", "target_ratio_chance",
    "kind", "rank", "token", "token_id", "token_value", "token_value_chance",
    "target", "target_id", "target_value", "target_value_chance",
)  # fmt: skip


def word_columns(directions: int | None = None) -> tuple[str, ...]:
    """The columns of the table of `words`, in order: of pairs of tokens, or of tokens of singular directions."""
    columns = PAIR_COLUMNS if directions is None else DIRECTION_COLUMNS
    return (*ABOUT_MODEL, "stack", "layer", "head", "circuit", *columns, "note")


def _parse_layer(layer: Any) -> int | Literal["all"]:
    return _parse_number("layer", layer)


def _parse_head(head: Any) -> int | Literal["all"]:
    return _parse_number("head", head)


def _parse_number(name: str, value: Any) -> int | Literal["all"]:
    """A whole number, also as a text, or "all". Raises UsageError."""
    if value == ALL:
        return ALL
    try:
        return whole(name, int(value) if isinstance(value, str) else value, 0)
    except (UsageError, ValueError):
        raise UsageError(f"${name} is {value!r:.60}, expected a whole number of at least 0, or all", name) from None


class WordOptions(Options):
    """Options of `words`: the heads and the tokens. Raises UsageError for an invalid value."""

    layer: Converted[int | str, int | Literal["all"]] = option(
        0, "Layer in its stack, counted from 0; all for every layer", panel=INPUT, metavar="N", parse=_parse_layer
    )
    head: Converted[int | str, int | Literal["all"]] = option(
        0, "Query head, counted from 0; all for every head", panel=INPUT, metavar="N", parse=_parse_head
    )
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
    directions: int | None = option(
        None,
        "Show the tokens of the N largest singular directions instead of pairs",
        panel=INPUT,
        metavar="N",
        least=1,
    )
    top: int = option(10, "Number of tokens or pairs to show", panel=COMPUTATION, least=1, most=10_000)
    seed: int = option(0, "Seed for shuffling the embeddings", panel=COMPUTATION, least=0, most=2**32 - 1)
    device: str = device_option()

    @property
    def is_one_head(self) -> bool:
        """Whether the table is about a single head."""
        return ALL not in (self.layer, self.head)

    def _check(self) -> None:
        if self.directions is not None and self.tokens is not None:
            raise UsageError(
                "$directions and $tokens contradict each other: a direction has its own tokens; leave out one of them",
                "directions",
                "tokens",
            )
