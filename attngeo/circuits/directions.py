"""Tokens at the ends of the singular directions of a head, and those of embeddings with shuffled dimensions.

M = Σᵢ σᵢ·uᵢ·vᵢᵀ: token x has the value uᵢ·x on the left side, token y the value vᵢ·y on the right, and a pair adds σᵢ
times their product to what the head computes. uᵢ and vᵢ may change their sign only together. If singular values are
each near the one before, their directions mix, and a token's value is the norm of its projection on all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attngeo.circuits.products import ROWS, HeadFactors, Side
from attngeo.geometry.spectra import number_bands, singular_directions

# Shuffles of the dimensions of embeddings that give the chance.
SHUFFLES = 20
# Tokens at each end whose mean value a ratio compares.
COMPARED = 10
# Singular values below this share of the largest one are rounding errors.
LEAST_SHARE = 1e-6
# The kinds of rows: both ends of one direction, or the longest projections on a band.
LARGEST, SMALLEST, BAND = "largest", "smallest", "band"


class Band(NamedTuple):
    """Singular values that are each near the one before, often only one, and their directions.

    Attributes:
        first: number of the first of them, from 1.
        values: singular values, the largest first, [width].
        norm_share: their share of ‖M‖².
        left: directions of the left side, [width, d_model], float32.
        right: directions of the right side, [width, d_model], float32.
    """

    first: int
    values: Tensor
    norm_share: float
    left: Tensor
    right: Tensor

    @property
    def last(self) -> int:
        """The number of the last of them."""
        return self.first + len(self.values) - 1

    @property
    def is_single(self) -> bool:
        """Whether it is one direction, which has two ends."""
        return len(self.values) == 1

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of its rows."""
        return (LARGEST, SMALLEST) if self.is_single else (BAND,)


def find_bands(circuit: HeadFactors, count: int) -> list[Band]:
    """The bands of the largest singular values of a head, the last one complete.

    Args:
        circuit: the head.
        count: number of singular values, at least 1; fewer if fewer are above 0, and none if the matrix is zero.
    """
    values, left, right = singular_directions(circuit.left, circuit.right)
    values = values[values > LEAST_SHARE * values[0]]
    norm = float(values.norm())
    numbers = number_bands(values)
    bands = []
    for number in dict.fromkeys(numbers[:count].tolist()):
        members = (numbers == number).nonzero()[:, 0]
        of_band = values[members]
        norm_share = float(of_band.norm() / norm) ** 2
        bands.append(Band(int(members[0]) + 1, of_band, norm_share, left[members].float(), right[members].float()))
    return bands


class Ends(NamedTuple):
    """Tokens with the largest values, in descending order, with shuffled dimensions, too.

    Attributes:
        values: the values, then those of each shuffle, [1 + SHUFFLES, count], float32.
        numbers: the tokens, as numbers of the rows of their side, of the same shape.
    """

    values: Tensor
    numbers: Tensor

    def join(self, other: Ends, count: int) -> Ends:
        """The largest values of both."""
        values = torch.cat([self.values, other.values], -1)
        numbers = torch.cat([self.numbers, other.numbers], -1)
        largest = values.topk(min(count, values.shape[-1]))
        return Ends(largest.values, numbers.gather(-1, largest.indices))

    def negate(self) -> Ends:
        """The same tokens with the other sign."""
        return Ends(-self.values, self.numbers)


def list_ends(
    bands: Sequence[Band], tokens: Side, others: Side, *, count: int, seed: int, device: torch.device
) -> dict[str, list[Any]]:
    """The tokens of bands: a row for each rank of each kind, with the columns of `attngeo.words`.

    Args:
        bands: bands of one head, at least one.
        tokens: the left side.
        others: the right side.
        count: number of tokens of each kind; fewer if a side has fewer.
        seed: of the shuffles.
        device: where to compute.

    Returns:
        Column → its values.
    """
    generator = torch.Generator().manual_seed(seed)
    widths = (bands[0].left.shape[1], bands[0].right.shape[1])
    orders = [[torch.randperm(width, generator=generator) for width in widths] for _ in range(SHUFFLES)]
    count = min(count, len(tokens.rows), len(others.rows))
    of_tokens = _find_ends(tokens, [band.left for band in bands], [order[0] for order in orders], count, device)
    of_others = _find_ends(others, [band.right for band in bands], [order[1] for order in orders], count, device)
    columns: dict[str, list[Any]] = {}
    for band, ends, other_ends in zip(bands, of_tokens, of_others, strict=True):
        if band.is_single and -ends[1].values[0, 0] > ends[0].values[0, 0]:
            ends, other_ends = _turn(ends), _turn(other_ends)
        of_band = {
            "direction": band.first,
            "last_direction": band.last,
            "singular_value": float(band.values[0]),
            "last_singular_value": float(band.values[-1]),
            "norm_share": band.norm_share,
            **_compare_with_chance("token", ends),
            **_compare_with_chance("target", other_ends),
        }
        for kind, end, other_end in zip(band.kinds, ends, other_ends, strict=True):
            rows = {name: [value] * count for name, value in (of_band | {"kind": kind}).items()}
            rows["rank"] = [*range(1, count + 1)]
            rows |= _name_tokens("token", tokens, end, count) | _name_tokens("target", others, other_end, count)
            for name, values in rows.items():
                columns.setdefault(name, []).extend(values)
    return columns


def _find_ends(
    side: Side, directions: Sequence[Tensor], orders: Sequence[Tensor], count: int, device: torch.device
) -> list[tuple[Ends, ...]]:
    """The tokens of each band, by kind.

    Args:
        side: the tokens.
        directions: those of each band, [width, d_model].
        orders: orders of the dimensions, one for each shuffle.
        count: number of tokens of a kind, at least; `_compare_with_chance` needs COMPARED of them.
        device: where to compute.
    """
    weights = [torch.stack([part, *(part[:, order] for order in orders)]).to(device) for part in directions]
    count = max(count, COMPARED)
    best: list[tuple[Ends, ...]] = []
    for first in range(0, len(side.rows), ROWS):
        vectors = side.embedding.matrix[side.rows[first : first + ROWS]].to(device, torch.float32)
        found = []
        for weight in weights:
            tops = [values.topk(min(count, len(vectors))) for values in _project(vectors, weight)]
            found.append(tuple(Ends(top.values, first + top.indices) for top in tops))
        if first == 0:
            best = found
            continue
        for band, of_band in enumerate(found):
            best[band] = tuple(ends.join(more, count) for ends, more in zip(best[band], of_band, strict=True))
    on_cpu = [tuple(Ends(ends.values.cpu(), ends.numbers.cpu()) for ends in of_band) for of_band in best]
    # The smallest values were found as the largest negated ones.
    return [(ends[0], *(end.negate() for end in ends[1:])) for ends in on_cpu]


def _project(vectors: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """The values of vectors, and these negated, for one direction; the norms of their projections for several.

    Args:
        vectors: [n, d_model].
        weight: directions in each order of the dimensions, [orders, width, d_model].

    Returns:
        [orders, n] each.
    """
    if weight.shape[1] == 1:
        values = weight[:, 0] @ vectors.T
        return values, -values
    products = (weight.flatten(0, 1) @ vectors.T).reshape(*weight.shape[:2], len(vectors))
    return (torch.linalg.vector_norm(products, dim=1),)


def _turn(ends: tuple[Ends, ...]) -> tuple[Ends, ...]:
    """The ends of a direction with the other sign."""
    largest, smallest = ends
    return smallest.negate(), largest.negate()


def _compare_with_chance(title: str, ends: tuple[Ends, ...]) -> dict[str, float]:
    """How much larger the extreme values are than those of shuffled dimensions, and how much larger one shuffle's are.

    Of a direction, it compares the distance between the means of its ends; of a band, the mean of the norms.
    """
    means = [end.values[:, :COMPARED].double().mean(1) for end in ends]
    sizes = means[0] - means[1] if len(means) > 1 else means[0]
    expected = sizes[1:].mean()
    return {f"{title}_ratio": float(sizes[0] / expected), f"{title}_ratio_chance": float(sizes[1:].max() / expected)}


def _name_tokens(title: str, side: Side, end: Ends, count: int) -> dict[str, list[Any]]:
    """The columns of the tokens of one side."""
    return {
        **side.name(title, end.numbers[0, :count]),
        f"{title}_value": end.values[0, :count].tolist(),
        f"{title}_value_chance": end.values[1:, :count].mean(0).tolist(),
    }
