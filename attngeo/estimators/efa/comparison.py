"""Two fits compared as theorem 1 does: models of one distribution have vectors that are linear maps of each other.

For items, H' = A·H and e' = B·e + b: the vectors H(x) that masked positions are read from, and the center embeddings e,
if they have K ≤ D − 1 numbers for D items. For values, the readout L of the vectors K(y) is one number of each; only
that number is determined.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), section 5.1, remark 13.
"""

from __future__ import annotations

import pandas as pd
import torch

from attngeo.bounds.names import list_names
from attngeo.errors import TableError, UsageError
from attngeo.estimators.efa.columns import TABLE
from attngeo.estimators.efa.estimator import ExponentialFamilyAttention
from attngeo.estimators.efa.relations import relate


def compare_fits(
    first: ExponentialFamilyAttention, second: ExponentialFamilyAttention, data: pd.DataFrame
) -> pd.DataFrame:
    """Compare the vectors of two fitted models on the rows of a table.

    Theorem 1 is about models whose log_prob_difference is 0.

    Args:
        first: a fitted model.
        second: another model with the same parts, direction, families and items.
        data: rows, best ones that trained neither model.

    Returns:
        One row for the contexts of each part, and one for the centers of the items. Columns: part; vectors; map
        (linear, or affine for centers); rows (number of table rows, or of items); size and other_size (K of each
        model); items (D); applies (whether K ≤ D − 1, else embeddings of the same distribution may differ by more than
        a linear map; missing for values); the fields of `Relation`; and log_prob_difference, the mean |log p − log p'|
        per row.

    Raises:
        UsageError: the models differ in parts, directions, families or items, or have no such vectors.
        TableError: the models cannot read the table, or it has too few rows for vectors of this size.
    """
    _check_same(first, second)
    contexts = first.contexts(data)
    other_contexts = second.contexts(data)
    difference = float((first.log_prob(data) - second.log_prob(data)).abs().mean())
    rows = []
    for part, vectors in contexts.items():
        others = other_contexts[part]
        is_known = vectors.notna().all(axis=1) & others.notna().all(axis=1)
        items = len(first.items_) if part == "items" else None
        size = max(vectors.shape[1], others.shape[1])
        if is_known.sum() <= size:
            raise TableError(
                f"has {is_known.sum()} rows to compare, expected more than {size}, the size of a vector; give more "
                "rows",
                subject=TABLE,
            )
        rows.append(_describe(part, "contexts", vectors[is_known], others[is_known], items))
        if part == "items":
            centers = first.embeddings()["center"].loc[first.items_]
            other_centers = second.embeddings()["center"].loc[first.items_]
            rows.append(_describe(part, "centers", centers, other_centers, items))
    table = pd.DataFrame(rows).astype({"items": "Int64", "applies": "boolean"})
    return table.assign(log_prob_difference=difference)


def _describe(
    part: str, kind: str, vectors: pd.DataFrame, others: pd.DataFrame, items: int | None
) -> dict[str, object]:
    """A row of `compare_fits`. kind: "contexts" or "centers". items: D; None for values."""
    is_affine = kind == "centers"
    size = vectors.shape[1]
    other_size = others.shape[1]
    relation = relate(torch.tensor(vectors.to_numpy()), torch.tensor(others.to_numpy()), intercept=is_affine)
    return {
        "part": part,
        "vectors": kind,
        "map": "affine" if is_affine else "linear",
        "rows": len(vectors),
        "size": size,
        "other_size": other_size,
        "items": pd.NA if items is None else items,
        "applies": pd.NA if items is None else max(size, other_size) <= items - 1,
        **relation._asdict(),
    }


def _check_same(first: ExponentialFamilyAttention, second: ExponentialFamilyAttention) -> None:
    """Raise UsageError for models that are not of the same things."""
    facts = []
    for model in (first, second):
        families = model.options_.families.values() if model.part_ != "items" else []
        facts.append({"part": model.part_, "direction": model.options_.direction, "family": ", ".join(families)})
    for name, fact in facts[0].items():
        other = facts[1][name]
        if fact != other:
            raise UsageError(f"the models differ in {name}: {fact} and {other}; compare two fits with the same {name}")
    missing = set(first.items_) ^ set(second.items_)
    if missing:
        items = [item for item in [*first.items_, *second.items_] if item in missing]
        raise UsageError(
            f"the models differ in items: only one has {list_names(items)}; fit both to tables with the same items"
        )
