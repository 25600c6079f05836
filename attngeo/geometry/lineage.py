"""Whether the forms of two models share coordinates of the stream more than chance gives: a permutation test.

The similarity of two models is the mean, over layers and pairs of matched heads, of the cosine of their forms over all
rotary offsets (see `offsets`). If initial weights were drawn independently, and all coordinates of the stream alike, a
permutation of the coordinates of one of them, the same in all layers, gives a model that is as likely as itself. So the
similarities with permuted coordinates, each with heads matched anew, are those that chance gives:

    p = (1 + #{permuted ≥ observed})/(1 + permutations),   z = (observed − mean)/sd of the permuted ones

Strangers may share which coordinates are large, because a tool sorted them or by chance, and permutations do not keep
that. Random signs of the coordinates keep it, so that they show what it gives. So z is the smaller one of both kinds of
draws.

The test is exact for permutations of a part of the coordinates, too, if the part is chosen without looking:
MOST_COORDINATES of them at most are kept in both models, and the forms are those of these rows and columns. What a
permutation costs grows with the number of coordinates, and that of forms that stand still with its square; the smallest
p does not depend on it, and 512 of 4096 coordinates leave z of related models far above that of strangers. Models of a
width of at most 512 are compared as a whole.

Source: Zhu et al. 2025, Independence tests for language models (arXiv 2502.12292).
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from attngeo.geometry.forms import Form
from attngeo.geometry.matching import match_heads
from attngeo.geometry.offsets import STILL, PairLayout, split_rotating
from attngeo.geometry.spectra import to_float64

# Coordinates of the stream that are compared at most.
MOST_COORDINATES = 512
# A smaller standard deviation of permuted similarities is rounding: permutations change nothing.
LEAST_DEVIATION = 1e-9
# Spectra of two models are equal if this share of heads is nearer to the other model than any of so many independent
# random heads of their sizes is. That is 10 to 50 times as far as rounding to 8 bits, and a little farther than most
# heads that are rounded to 4 bits.
EQUAL_SHARE = 0.9
RANDOM_HEADS = 64
# Of these, heads that are drawn at a time at most.
MOST_HEADS_AT_ONCE = 16


class Coordinates(NamedTuple):
    """The coordinates of the stream to compare, and their orders.

    Attributes:
        kept: their numbers, [count], in ascending order.
        orders: permutations of these, [permutations, count], of the numbers from 0.
        signs: −1 or 1 for each of these, [draws, count], float64; by default, none are drawn.
    """

    kept: Tensor
    orders: Tensor
    signs: Tensor = torch.zeros(0, dtype=torch.float64)


class Judgement(NamedTuple):
    """The outcome of a permutation test.

    Attributes:
        similarity: the observed one, in [−1, 1]; NaN if it is not finite.
        p_value: in (0, 1]; NaN if permutations change nothing.
        z: standard deviations above the mean of the permuted similarities; NaN as for the p-value.
    """

    similarity: float
    p_value: float
    z: float


def draw_coordinates(width: int, n_permutations: int, seed: int, most: int = MOST_COORDINATES) -> Coordinates:
    """Random coordinates of a stream of this width, with random permutations and signs of them."""
    generator = torch.Generator().manual_seed(seed)
    kept = torch.randperm(width, generator=generator)[:most].sort().values
    orders = [torch.randperm(len(kept), generator=generator) for _ in range(n_permutations)]
    signs = 2 * torch.randint(2, (n_permutations, len(kept)), generator=generator) - 1
    return Coordinates(kept, torch.stack(orders), signs.double())


class _LayerForms(NamedTuple):
    """The heads of a layer on n coordinates of the stream. The last axis is that of heads: it is permuted fastest.

    Attributes:
        queries: q₁ + i·q₂ of each pair that turns, [pairs, n, heads].
        keys: k₁ + i·k₂ of each pair that turns, [pairs, n, key heads].
        still: form of the dimensions of each head that do not turn, [n, n, heads]; None if all dimensions turn.
        key_heads: key head of each head.
    """

    queries: Tensor
    keys: Tensor
    still: Tensor | None
    key_heads: list[int]

    def permute(self, order: Tensor) -> _LayerForms:
        """The heads with their coordinates in another order."""
        still = None if self.still is None else self.still[order[:, None], order]
        queries = self.queries.index_select(1, order)
        keys = self.keys.index_select(1, order)
        return _LayerForms(queries, keys, still, self.key_heads)

    def flip(self, signs: Tensor) -> _LayerForms:
        """The heads with their coordinates times signs, [n]."""
        still = None if self.still is None else self.still * (signs[:, None] * signs)[..., None]
        return _LayerForms(self.queries * signs[:, None], self.keys * signs[:, None], still, self.key_heads)


def _build_forms(form: Form, layout: PairLayout, kept: Tensor) -> _LayerForms:
    """The heads of a form on the kept coordinates, in double precision."""
    queries, still_left = _split(form.left[..., kept], layout)
    keys, still_right = _split(form.right[..., kept], layout)
    still = None
    if still_left.shape[1]:
        of_heads = still_left.mT @ still_right[form.key_heads]
        still = of_heads.permute(1, 2, 0).contiguous()
    return _LayerForms(queries, keys, still, form.key_heads)


def _split(x: Tensor, layout: PairLayout) -> tuple[Tensor, Tensor]:
    """What turns, complex [pairs, n, heads], and what stands still, [heads, rank, n], of x [heads, head_dim, n]."""
    first, second, still = split_rotating(to_float64(x), layout)
    return torch.complex(first, second).permute(1, 2, 0).contiguous(), still


def _multiply(layer: _LayerForms, other: _LayerForms) -> Tensor:
    """⟨M, M'⟩ of every head of a layer with every head of another one, [heads, other heads].

    As `offsets.inner_products`, but products of keys are computed once for all heads that share them.
    """
    queries = layer.queries.mT @ other.queries.conj()
    keys = layer.keys.mT @ other.keys.conj()
    of_heads = keys[:, layer.key_heads][:, :, other.key_heads]
    products = (queries * of_heads.conj()).real.sum(0) / 2
    if layer.still is not None and other.still is not None:
        products = products + layer.still.flatten(0, 1).T @ other.still.flatten(0, 1)
    return products


def _norms(layer: _LayerForms) -> Tensor:
    """‖M‖ of every head, [heads]."""
    return _multiply(layer, layer).diagonal().clamp(min=0).sqrt()


def layer_similarities(
    form: Form, other: Form, layouts: tuple[PairLayout, PairLayout], coordinates: Coordinates
) -> Tensor:
    """The similarity of one layer of two models: unchanged, with the other's coordinates permuted, and with signs.

    Args:
        form: heads of one model.
        other: as many heads of the other model, of the same rank and width, in key groups of the same size.
        layouts: which dimensions rotate, in each model; none are taken to rotate if the numbers of pairs differ.
        coordinates: those to compare.

    Returns:
        [1 + permutations + draws of signs], float64. Heads whose form is zero or not finite are similar to none.
    """
    layout, other_layout = _agree(layouts)
    ours = _build_forms(form, layout, coordinates.kept)
    theirs = _build_forms(other, other_layout, coordinates.kept)
    norms = _norms(ours)[:, None] * _norms(theirs)
    as_they_are = torch.arange(len(coordinates.kept))[None]
    orders = torch.cat([as_they_are, coordinates.orders])
    permuted = [_match_forms(ours, theirs.permute(order), norms) for order in orders]
    flipped = [_match_forms(ours, theirs.flip(signs.to(norms)), norms) for signs in coordinates.signs]
    return torch.stack([*permuted, *flipped])


def aligned_similarities(
    form: Form, other: Form, layouts: tuple[PairLayout, PairLayout], kept: Tensor, bases: Tensor
) -> Tensor:
    """The similarity of one layer of two models in each of some bases of the other's stream.

    Args:
        form: as for `layer_similarities`.
        other: as for `layer_similarities`.
        layouts: as for `layer_similarities`.
        kept: coordinates of the one model, [count].
        bases: as columns, the other model's direction for each of these, [bases, width, count].

    Returns:
        [bases], float64.
    """
    layout, other_layout = _agree(layouts)
    ours = _build_forms(form, layout, kept)
    our_norms = _norms(ours)
    every = torch.arange(len(kept))
    left = to_float64(other.left)
    right = to_float64(other.right)
    similarities = []
    for basis in bases:
        theirs = _build_forms(Form(left @ basis, right @ basis, other.key_heads), other_layout, every)
        similarities.append(_match_forms(ours, theirs, our_norms[:, None] * _norms(theirs)))
    return torch.stack(similarities)


def _agree(layouts: tuple[PairLayout, PairLayout]) -> tuple[PairLayout, PairLayout]:
    """The layouts if as many pairs turn in both, else those of heads that stand still."""
    counts = {int(layout.rotates.sum()) for layout in layouts}
    return layouts if len(counts) == 1 else (STILL, STILL)


def _match_forms(layer: _LayerForms, other: _LayerForms, norms: Tensor) -> Tensor:
    """The mean cosine of matched heads. norms: products of the norms of all pairs of heads."""
    cosines = (_multiply(layer, other) / norms).nan_to_num(nan=0, posinf=0, neginf=0).clamp(-1, 1)
    matched = match_heads(cosines, layer.key_heads, other.key_heads)
    return cosines[range(len(matched)), matched].mean()


def judge(similarities: Tensor) -> Judgement:
    """The outcome of the test.

    Args:
        similarities: means over layers: the observed one, then the permuted ones, [1 + permutations].

    >>> import torch
    >>> judgement = judge(torch.tensor([0.9, 0.1, -0.1, 0.0]))
    >>> judgement.p_value, round(judgement.z, 1)
    (0.25, 9.0)
    """
    observed = similarities[0]
    permuted = similarities[1:]
    deviation = permuted.std()
    if not deviation >= LEAST_DEVIATION:
        return Judgement(observed.item(), float("nan"), float("nan"))
    reached = int((permuted >= observed).sum())
    p_value = (1 + reached) / (1 + len(permuted))
    z = (observed - permuted.mean()) / deviation
    return Judgement(observed.item(), p_value, z.item())


def spectral_distances(form: Form, other: Form) -> Tensor:
    """The distance between the singular values of each head of a layer and its match in the other layer.

    A rotated stream keeps singular values. They are compared relative to their norm, and heads are matched.

    Args:
        form: heads of one model.
        other: as many heads of the other model, in key groups of the same size.

    Returns:
        The Euclidean distances of normalised spectra, [heads], float64, in [0, √2]; NaN for a head that is zero.
    """
    distances = torch.cdist(_find_spectra(form), _find_spectra(other))
    matched = match_heads(-distances, form.key_heads, other.key_heads)
    return distances[range(len(matched)), matched]


def least_distance(form: Form) -> float:
    """The least of `spectral_distances` of RANDOM_HEADS independent random heads with the sizes of a form.

    It is smaller in wider models: 0.011 for heads of 32 in a width of 384, and 0.003 for heads of 128 in 4096. It is 0
    for heads of one dimension, whose spectra tell nothing.
    """
    _, rank, width = form.left.shape
    return _draw_least(len(form.left) // len(form.right), len(form.right), rank, width)


@cache
def _draw_least(group: int, key_heads: int, rank: int, width: int) -> float:
    """The least distance of random heads. group: of heads with one key head."""
    if rank == 1:
        return 0.0
    key_heads = min(key_heads, max(MOST_HEADS_AT_ONCE // group, 1))
    groups = [head // group for head in range(key_heads * group)]
    generator = torch.Generator().manual_seed(0)

    def draw() -> Form:
        left = torch.randn(len(groups), rank, width, generator=generator)
        return Form(left, torch.randn(key_heads, rank, width, generator=generator), groups)

    draws = [spectral_distances(draw(), draw()) for _ in range(math.ceil(RANDOM_HEADS / len(groups)))]
    return float(torch.cat(draws).min())


def have_equal_spectra(shares: Tensor) -> bool:
    """Whether enough heads have spectra of the other model for it to be a rotated copy, rounded or not.

    shares: the distance of each head of all layers, as a share of `least_distance`, [heads].
    """
    return bool((shares < 1).double().mean() >= EQUAL_SHARE)


def _find_spectra(form: Form) -> Tensor:
    """The singular values of each head, the smallest first, divided by their norm, [heads, rank].

    From Gram matrices, which is faster than `singular_values`: with A = q·qᵀ = R·Rᵀ, the squares of the singular values
    of qᵀ·k are the eigenvalues of Rᵀ·B·R, B = k·kᵀ. Their error of 1e-8 of the largest one is far below all distances.
    """
    q = to_float64(form.left).nan_to_num(nan=0, posinf=0, neginf=0)
    k = to_float64(form.right).nan_to_num(nan=0, posinf=0, neginf=0)
    roots, directions = torch.linalg.eigh(q @ q.mT)
    factor = directions * roots.clamp(min=0).sqrt()[:, None]
    key_gram = (k @ k.mT)[form.key_heads]
    values = torch.linalg.eigvalsh(factor.mT @ key_gram @ factor).clamp(min=0).sqrt()
    normalised: Tensor = values / values.norm(dim=1, keepdim=True)
    return normalised
