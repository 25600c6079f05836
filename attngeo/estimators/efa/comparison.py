"""Two fits compared as theorem 1 does: models of one distribution have vectors that are linear maps of each other.

For items, H' = A·H and e' = B·e + b: the vectors H(x) that masked positions are read from, and the center embeddings e,
if they have K ≤ D − 1 numbers for D items. For values, the readout L of the vectors K(y) is one number of each; only
that number is determined.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), section 5.1, remark 13; Roeder et al. 2021 (arXiv 2007.00810).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional

from attngeo.bounds.names import list_names
from attngeo.errors import TableError, UsageError
from attngeo.estimators.efa.columns import TABLE

if TYPE_CHECKING:
    from attngeo.estimators.efa.estimator import ExponentialFamilyAttention

# Directions with a smaller share of the largest singular value are the rounding of single precision.
ROUNDING = 1e-6
# In this number of parts, the rows are left out of the map that explains them; one at a time if they are fewer.
FOLDS = 20


class Relation(NamedTuple):
    """How nearly one set of vectors is a linear map of another.

    forward: R² of the second from the first. backward: of the first from the second. correlation, lowest: the mean and
    the lowest canonical correlation. chance: the mean one if the rows of one set are shuffled. R² is that of rows that
    are left out of the map, a twentieth at a time: 0 or less by chance, NaN if there are too few rows for that.
    """

    forward: float
    backward: float
    correlation: float
    lowest: float
    chance: float

    @property
    def error(self) -> float:
        """1 − the lower R²."""
        return 1 - min(self.forward, self.backward)

    def __str__(self) -> str:
        return f"R² {self.forward:.4f} and {self.backward:.4f}, correlation {self.correlation:.4f}"


def relate(first: Tensor, second: Tensor, *, intercept: bool = False) -> Relation:
    """Compare vectors of the same things, [n, K] and [n, K']. intercept: whether the map may add a vector.

    R² is 1 − Σ‖error‖²/Σ‖vector − mean‖², so that a constant explains nothing.
    """
    first, second = first.detach().double(), second.detach().double()
    forward, backward = (_explain(*pair, intercept) for pair in ((first, second), (second, first)))
    left, right = (_find_basis(vectors - vectors.mean(0)) for vectors in (first, second))
    shuffled = torch.randperm(len(right), generator=torch.Generator().manual_seed(0))
    found, by_chance = (torch.linalg.svdvals(left.T @ basis).clamp(max=1) for basis in (right, right[shuffled]))
    if not len(found):  # vectors that are all equal
        return Relation(forward, backward, *[torch.nan] * 3)
    return Relation(forward, backward, float(found.mean()), float(found.min()), float(by_chance.mean()))


def _explain(inputs: Tensor, outputs: Tensor, intercept: bool) -> float:
    """R² of a linear map, on the rows of each fold by the map of the other rows."""
    if intercept:
        inputs = functional.pad(inputs, (0, 1), value=1.0)
    fold = torch.arange(len(inputs)) % FOLDS
    if int((fold != 0).sum()) < inputs.shape[1]:
        return torch.nan
    error = 0.0
    for number in range(min(FOLDS, len(inputs))):
        out, kept = fold == number, fold != number
        fitted = torch.linalg.lstsq(inputs[kept], outputs[kept], rcond=ROUNDING, driver="gelsd").solution
        error += float((outputs[out] - inputs[out] @ fitted).square().sum())
    return 1 - error / float((outputs - outputs.mean(0)).square().sum())


def _find_basis(vectors: Tensor) -> Tensor:
    """An orthonormal basis of the columns, [n, rank]."""
    left, sizes, _ = torch.linalg.svd(vectors, full_matrices=False)
    basis: Tensor = left[:, sizes > ROUNDING * sizes[0]]
    return basis


def compare_fits(
    first: ExponentialFamilyAttention, second: ExponentialFamilyAttention, data: pd.DataFrame
) -> pd.DataFrame:
    """Compare two fitted models of the same things on the rows of a table, which better trained neither.

    A row for the contexts of each part, and one for the centers of the items. Columns: part, vectors, map (linear, or
    affine for centers), rows (of the table, or items), size and other_size (K of both), items (D), applies (whether K ≤
    D − 1, without which one distribution has embeddings that no linear map relates; missing for values), those of
    `Relation`, and log_prob_difference, the mean |log p − log p'| of a row: theorem 1 is about models where it is 0.
    Raises UsageError for models of other parts, directions, families or items, or without such vectors, and TableError
    for a table that they cannot read or that has no more rows than the vectors have numbers.
    """
    _check_same(first, second)
    contexts, rows = [model.contexts(data) for model in (first, second)], []
    difference = float((first.log_prob(data) - second.log_prob(data)).abs().mean())
    for part, vectors in contexts[0].items():
        known = vectors.notna().all(axis=1) & contexts[1][part].notna().all(axis=1)
        pair = [torch.tensor(table[part][known].to_numpy()) for table in contexts]
        rows.append(_describe(part, "contexts", pair, len(first.items_)))
        if part == "items":
            tables = [model.embeddings()["center"].loc[first.items_] for model in (first, second)]
            rows.append(
                _describe(part, "centers", [torch.tensor(table.to_numpy()) for table in tables], len(tables[0]))
            )
    table = pd.DataFrame(rows).astype({"items": "Int64", "applies": "boolean"})
    return table.assign(log_prob_difference=difference)


def _describe(part: str, kind: str, pair: list[Tensor], items: int) -> dict[str, object]:
    """A row of `compare_fits`."""
    count, sizes, is_affine = len(pair[0]), [vectors.shape[1] for vectors in pair], kind == "centers"
    if not is_affine and count <= max(sizes):
        raise TableError(
            f"has {count} rows to compare, expected more than the {max(sizes)} numbers of a vector; give more rows",
            table=TABLE,
        )
    of_items = part == "items"
    return {
        "part": part, "vectors": kind, "map": "affine" if is_affine else "linear", "rows": count, "size": sizes[0],
        "other_size": sizes[1], "items": items if of_items else pd.NA,
        "applies": max(sizes) <= items - 1 if of_items else pd.NA,
        **relate(*pair, intercept=is_affine)._asdict(),
    }  # fmt: skip


def _check_same(first: ExponentialFamilyAttention, second: ExponentialFamilyAttention) -> None:
    """Raise UsageError for models that are not of the same things."""
    options = [model.options_ for model in (first, second)]
    kinds: dict[str, list[str]] = {"part": [first.part_, second.part_], "direction": [of.direction for of in options]}
    if first.part_ != "items":
        kinds["family"] = [", ".join(of.families.values()) for of in options]
    for name, kind in kinds.items():
        if kind[0] != kind[1]:
            raise UsageError(
                f"the models have another {name}: {kind[0]} and {kind[1]}; compare two fits of one {name}, which may "
                "have one distribution"
            )
    left, right = (dict.fromkeys(model.items_) for model in (first, second))
    if left.keys() != right.keys():
        missing = [item for pair in ((left, right), (right, left)) for item in pair[0] if item not in pair[1]]
        raise UsageError(
            f"the models have other items: {list_names(missing)} in one only; fit both to tables with the same items"
        )
