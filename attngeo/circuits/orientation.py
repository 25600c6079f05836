"""The test of orientation: whether heads of a layer are transposes of each other more often than alike.

Heads are matched into disjoint pairs by the absolute value of the cosine of their antisymmetric parts, which does not
look at its sign. If heads were transposed at random, each of them alone, the signs of disjoint pairs would be
independent coins, so that the number of opposite pairs is binomial.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from attngeo.circuits.mirror_options import ORIENTATION_COLUMNS
from attngeo.tables.read import require_columns

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

# The columns of a table of pairs that the sign test needs.
NEEDED = ("model", "stack", "layer", "is_partner", "antisymmetric_cosine")


class SignTest(NamedTuple):
    """Signs of disjoint pairs.

    Attributes:
        opposite: pairs with a negative cosine: one head is like the transpose of the other.
        alike: pairs with a positive cosine.
        p_value: of both sides, in (0, 1]; 1 without pairs.
    """

    opposite: int
    alike: int
    p_value: float


def match_pairs(cosines: Tensor, key_heads: Sequence[int]) -> list[tuple[int, int]]:
    """Disjoint pairs of heads of one layer, those with the largest |cosine| first; heads that share keys are no pair.

    Args:
        cosines: of each head with each other one, [heads, heads], symmetric; NaN is no pair.
        key_heads: the key head of each head, [heads].

    Returns:
        The pairs (head, later head), from the largest |cosine| to the smallest.

    >>> import torch
    >>> match_pairs(torch.tensor([[1, 0.9, -0.8], [0.9, 1, 0.1], [-0.8, 0.1, 1]]), [0, 0, 1])
    [(0, 2)]
    """
    sizes = cosines.abs().tolist()
    pairs = [
        (head, other)
        for head, other in combinations(range(len(key_heads)), 2)
        if key_heads[head] != key_heads[other] and not math.isnan(sizes[head][other])
    ]
    left = {*range(len(key_heads))}
    matched = []
    for pair in sorted(pairs, key=lambda pair: -sizes[pair[0]][pair[1]]):
        if left.issuperset(pair):
            left.difference_update(pair)
            matched.append(pair)
    return matched


def judge_signs(cosines: Sequence[float]) -> SignTest:
    """The exact binomial test of the signs of disjoint pairs, of one layer or of all layers of a model.

    cosines: of the antisymmetric parts of each pair; a cosine of 0 counts in neither direction.

    >>> judge_signs([-0.5, -0.4, -0.3, -0.2, 0.1])
    SignTest(opposite=4, alike=1, p_value=0.375)
    """
    opposite = sum(cosine < 0 for cosine in cosines)
    alike = sum(cosine > 0 for cosine in cosines)
    count = opposite + alike
    rarer = min(opposite, alike)
    tail = sum(math.comb(count, number) for number in range(rarer + 1))
    return SignTest(opposite, alike, min(2 * tail / 2**count, 1.0))


def judge_orientation(rows: pd.DataFrame) -> pd.DataFrame:
    """The sign test of each stack of each model, pooled over its layers.

    Args:
        rows: table of `attngeo.mirrors`, or of its files, with all rows.

    Returns:
        The columns model, stack, layers (how many), partners (disjoint pairs of heads), opposite (with a negative
        cosine), alike (with a positive one) and p_value, of both sides, in (0, 1]; 1 without partners.

    Raises:
        DataError: a column is missing.

    >>> import attngeo
    >>> judge_orientation(attngeo.mirrors("demo:minilm"))[["layers", "partners", "opposite", "alike"]].values.tolist()
    [[6, 36, 12, 24]]
    """
    require_columns(rows, NEEDED, "the table", "attngeo mirrors")
    tests = []
    for (model, stack), pairs in rows.groupby(["model", "stack"], sort=False):
        partners = pairs[pairs["is_partner"].astype("bool")]
        test = judge_signs([float(cosine) for cosine in partners["antisymmetric_cosine"]])
        counts = (int(pairs["layer"].nunique()), len(partners), *test)
        tests.append(dict(zip(ORIENTATION_COLUMNS, (model, stack, *counts), strict=True)))
    judged = type(rows)(tests, columns=list(ORIENTATION_COLUMNS))
    judged.attrs = dict(rows.attrs)
    return judged
