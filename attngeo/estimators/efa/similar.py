"""The items that go with an item, by their probabilities beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from attngeo.estimators.efa.counts import ItemCounts
from attngeo.estimators.efa.model import PartModel
from attngeo.estimators.efa.options import EfaOptions
from attngeo.estimators.efa.prediction import predict_beside
from attngeo.estimators.efa.vectors import find_number


def explain_no_probability(model: PartModel) -> str | None:
    """Why a model has no probability of an item beside another item, and what to do; None if it has.

    model: the first part.
    """
    if not model.is_of_items:
        return (
            "the model predicts values and has no item probabilities; fit a model of items (attngeo efa fit --part "
            "items or both)"
        )
    if model.shape.covariates:
        return (
            "the model also predicts from covariates, which a single item does not have; give rows with an empty item "
            "to attngeo efa predict"
        )
    if model.shape.longest < 2:
        return "the model was fitted to sequences of one row; fit to sequences of two or more"
    return None


def rank_beside(
    model: PartModel,
    items: Sequence[Any],
    item: Any,
    counts: ItemCounts | None,
    options: EfaOptions,
    top: int | None = None,
) -> pd.DataFrame:
    """Rank the items that go with an item by their probabilities, best first, without the item itself.

    Args:
        model: the part that predicts items, without covariates.
        items: all items in the order of their numbers.
        item: an item of these.
        counts: counts of sequences; None if the model has none.
        options: options of the model.
        top: number of rows; None for all.

    Returns:
        Columns: rank, item, score, probability, sequences, lift. probability: p(other | item) at the next position of a
        sequence with this item alone. score: p(other | item) / p(other), where p(other) is the mean of such
        probabilities over all items but the other one, weighted by their numbers of sequences (equally without counts).
        If order has no effect, p(item | other) / p(item) is the same ratio. With up to 11,585 items, score is then the
        geometric mean of both, which is right more often. sequences: number of sequences with both items. lift: their
        share of all sequences, divided by the product of each item's share. Both are missing without counts.

    Raises:
        UsageError: the item is unknown.
    """
    number = find_number(items, item)
    weights = np.ones(len(items)) if counts is None else counts.items + 1.0
    beside = predict_beside(model, number, weights, options)
    scores = _divide(beside.chances, beside.usual)
    has_order = options.has_order(options.position or model.shape.position)
    if not has_order and not np.isnan(beside.reverse).any():
        scores = np.sqrt(scores * _divide(beside.reverse, beside.usual[number]))
    order = np.argsort(-scores, kind="stable")
    others = order[order != number][:top]
    both = np.full(len(items), np.nan)
    lift = both
    if counts is not None:
        both = counts.count_with(number)
        expected = counts.items * (counts.items[number] / max(counts.sequences, 1))
        lift = _divide(both, expected)
    return pd.DataFrame(
        {
            "rank": range(1, len(others) + 1),
            "item": [items[other] for other in others],
            "score": scores[others],
            "probability": beside.chances[others],
            "sequences": pd.array(both[others], dtype="Int64"),
            "lift": lift[others],
        }
    )


def _divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """A quotient; 0 where both are 0."""
    return numerator / np.where(denominator > 0, denominator, 1)
