"""The parts of a model, items and values, that options and a table ask for; options without an effect are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pandas as pd

from attngeo.errors import TableError, UsageError
from attngeo.estimators.efa.columns import TRAINING, check_columns
from attngeo.estimators.efa.options import Architecture, EfaOptions
from attngeo.options import Options

ModelledPart = Literal["items", "values"]
DEFAULT = EfaOptions()
# Options that only attention, factor models, factor models of places, models of values, or models of items have.
OF_ATTENTION = ("n_layers", "n_heads", "context_dropout")
OF_FACTORS = ("n_neighbors", "distance", "window")
OF_PLACES = ("coordinates", "n_neighbors", "distance")
OF_VALUES = ("value", "coordinates", "lags", "item_vectors")
OF_ITEMS = ("repeats",)
# Choices of an architecture that only models of values have.
ARCHITECTURE_OF_VALUES = ("two_item_vectors", "value_embedding", "join", "output_units", "readout")


def choose_parts(options: EfaOptions, train: pd.DataFrame) -> tuple[tuple[ModelledPart, ...], bool]:
    """The parts to model, from the options or else from the columns of the table; and whether values have items.

    train: the training table. Raises TableError if it lacks a named column, or has nothing to model, and UsageError for
    an option without an effect.
    """
    check_columns(train, [], TRAINING)
    if options.part == "both":
        parts: tuple[ModelledPart, ...] = ("items", "values")
    elif options.part != "auto":
        parts = (options.part,)
    else:
        has_values = any(name in train and name != options.item for name in options.families)
        parts = ("values",) if has_values or options.value != DEFAULT.value else ("items",)
    items = [options.item] if "items" in parts else []
    values = list(options.families) if "values" in parts else []
    has_items = options.item_vectors and options.item in train
    check_columns(train, [*items, *values], TRAINING)
    _refuse_predicted("position", options.position, [*items, *values])
    if values and (has_items or options.part == "both"):
        _refuse_predicted("item", options.item, values)
    if "items" not in parts:
        _refuse_given(options, "a model of values", OF_ITEMS)
    _refuse_without_effect(options, values, has_items=has_items)
    if values and not has_items and not options.coordinates:
        raise TableError(
            f"has neither the column {options.item!r} nor coordinates, expected one of them for a model of values; "
            "name the columns with options such as $item",
            "item",
            subject=TRAINING,
        )
    if values and options.item_vectors and options.item != DEFAULT.item:
        check_columns(train, [options.item], TRAINING)
    return parts, has_items


def refuse_architecture(architecture: Architecture, parts: Sequence[ModelledPart]) -> None:
    """Raise UsageError for a choice of the architecture that changes nothing about these parts."""
    if "values" not in parts:
        _refuse_given(architecture, "a model of items", ARCHITECTURE_OF_VALUES)


def _refuse_predicted(name: str, column: str | None, predicted: Sequence[str]) -> None:
    """Raise UsageError if the column of an option is one that is predicted."""
    if column in predicted:
        raise UsageError(f"${name} is {column!r}, the predicted column; name another one", name)


def _refuse_without_effect(options: EfaOptions, values: Sequence[str], *, has_items: bool) -> None:
    """Raise UsageError for an option that changes nothing. values: columns that are modelled."""
    if not values:
        _refuse_given(options, "a model of items", OF_VALUES)
        if options.family is not None:
            raise UsageError(
                f"$family is {options.family}, but the model predicts items, which have no family; name the value "
                "column with $value",
                "family",
                "value",
            )
    if options.model == "efa":
        _refuse_given(options, "attention", OF_FACTORS)
    else:
        _refuse_given(options, "a factor model", ("lags", "covariates", *OF_ATTENTION))
        if has_items:
            _refuse_given(options, "a factor model of items", OF_PLACES, "turn item_vectors off for a model of places")
        elif values:
            _refuse_given(options, "a factor model of places", ("window",), "set n_neighbors")
    if len(values) > 1 and (options.model == "fm" or options.lags):
        subject = "a factor model accepts" if options.model == "fm" else "$lags can belong to only"
        raise UsageError(
            f"$value names {len(values)} columns, but {subject} one value; name one, or fit a model for each",
            "value",
            "lags",
        )


def _refuse_given(options: Options, subject: str, names: Sequence[str], advice: str = "leave it out") -> None:
    """Raise UsageError if one of these options is given, which change nothing about the subject."""
    for name in names:
        if getattr(options, name) != type(options).model_fields[name].default:
            raise UsageError(f"${name} has no effect on {subject}; {advice}", name)
