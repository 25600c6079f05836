"""Which part of the model a table asks for, items or values, and options that change nothing there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attngeo.efa.columns import TRAINING, require_columns
from attngeo.efa.options import EfaOptions
from attngeo.errors import TableError, UsageError
from attngeo.options import default_of

# Options of a factor model of places.
SPATIAL = ("coordinates", "neighbours", "distance")
# Options of attention, of factor models, and of tokens of values.
OF_ATTENTION = ("layers", "heads", "head_size", "kind", "scale", "residual", "norm", "feed_forward")
OF_FACTORS = ("neighbours", "pooling", "start", "distance")
OF_TOKENS = ("embedding", "readout", "join", "both", "head")
OF_VALUES = ("coordinates", "lags", "item_vectors", *OF_TOKENS)
DEFAULT = EfaOptions()


def choose_part(options: EfaOptions, columns: list[Any]) -> tuple[str, bool]:
    """The part that is asked for, or else that of which the table has a column; and whether it needs items.

    columns: of the training table. Raises TableError if it lacks one, or one that the options name, and UsageError for
    an option without an effect.
    """
    part: str = options.part
    if part == "auto":
        has_values = options.value in columns and options.value != options.item
        part = "values" if has_values or options.value != DEFAULT.value else "items"
    modelled = options.value if part == "values" else options.item
    require_columns(columns, [modelled], TRAINING)
    has_items = options.item_vectors and options.item in columns
    others = {"position": options.position} | ({"item": options.item} if part == "values" and has_items else {})
    for name, column in others.items():
        if column == modelled:
            raise UsageError(f"{name} is {column!r}, which is the column that is predicted; name another one")
    if part == "items":
        _refuse(options, "a model of items", OF_VALUES)
        if options.family != default_of(EfaOptions, "family"):
            raise UsageError(
                f"family is {options.family}, which values have, but the model is of items; name the column of values "
                "by the option value"
            )
    if options.model == "efa":
        _refuse(options, "attention", OF_FACTORS)
    else:
        _refuse(options, "a factor model", ("lags", *OF_ATTENTION, *OF_TOKENS))
        if has_items:
            _refuse(options, "a factor model of items", SPATIAL, "turn item_vectors off for a model of places")
        elif part == "values":
            _refuse(options, "a factor model of places", ("pooling", "start"))
    if part == "values":
        _check_tokens(options, columns, has_items=has_items)
    return part, part == "items" or has_items


def _check_tokens(options: EfaOptions, columns: list[Any], *, has_items: bool) -> None:
    """Raise TableError if values have neither items nor coordinates, or lack the items that the options name."""
    if not has_items and not options.coordinates:
        raise TableError(
            f"{TRAINING} has neither the column {options.item!r} nor coordinates, expected one of them for a model of "
            "values; name the columns by options such as item"
        )
    if options.item_vectors and options.item != DEFAULT.item:
        require_columns(columns, [options.item], TRAINING)


def _refuse(options: EfaOptions, what: str, names: Sequence[str], advice: str = "leave it out") -> None:
    """Raise UsageError if one of these options is given, which change nothing."""
    for name in names:
        if getattr(options, name) != getattr(DEFAULT, name):
            raise UsageError(f"{name} has no effect on {what}; {advice}")
