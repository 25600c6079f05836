"""The permutation test of lineage, against formed matrices; what it must not see, and its p-value under the null."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from attngeo.geometry.factors import rotate
from attngeo.geometry.forms import Form
from attngeo.geometry.lineage import (
    Coordinates,
    aligned_similarities,
    draw_coordinates,
    have_equal_spectra,
    judge,
    layer_similarities,
    least_distance,
    spectral_distances,
)
from attngeo.geometry.offsets import STILL, PairLayout, head_forms, inner_products

HEADS, KEY_HEADS, HEAD_DIM, WIDTH = 4, 2, 8, 20
GROUPS = [0, 0, 1, 1]
LAYOUTS = {
    "halves": PairLayout(torch.tensor([True, False, True]), interleaved=False, start=2),
    "neighbours": PairLayout(torch.ones(4, dtype=torch.bool), interleaved=True),
    "still": STILL,
}
ANY_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
ALL = Coordinates(torch.arange(WIDTH), torch.arange(WIDTH)[None].flip(1))


def draw(seed: int, *, like: Form | None = None, noise: float = 1.0, width: int = WIDTH) -> Form:
    """Random heads, of which two share each key; or those of another form with noise."""
    generator = torch.Generator().manual_seed(seed)
    q = noise * torch.randn(HEADS, HEAD_DIM, width, generator=generator, dtype=torch.float64)
    k = noise * torch.randn(KEY_HEADS, HEAD_DIM, width, generator=generator, dtype=torch.float64)
    return Form(q, k, GROUPS) if like is None else Form(like.left + q, like.right + k, GROUPS)


def choose(form: Form, order: Tensor) -> Form:
    return Form(form.left[..., order], form.right[..., order], form.key_heads)


def search_matching(cosines: Tensor) -> float:
    """The mean cosine of the greedy matching of heads in groups of two: each step looks at all pairs that are left."""
    left = {(h, g) for h in range(HEADS) for g in range(HEADS)}
    groups: dict[int, int] = {}
    chosen = []
    while left:
        head, other = max(left, key=lambda pair: cosines[pair].item())
        chosen.append(cosines[head, other].item())
        groups[GROUPS[head]] = GROUPS[other]
        taken = set(groups.values())
        left = {
            (h, g)
            for h, g in left
            if h != head and g != other and groups.get(GROUPS[h], GROUPS[g]) == GROUPS[g]
            and (GROUPS[h] in groups or GROUPS[g] not in taken)
        }  # fmt: skip
    return sum(chosen) / HEADS


def similarity_of(form: Form, other: Form, layout: PairLayout) -> float:
    """The definition, from the inner products of all pairs of heads."""
    ours, theirs = head_forms(form, layout), head_forms(other, layout)
    norms = (inner_products(ours, ours).diagonal()[:, None] * inner_products(theirs, theirs).diagonal()).sqrt()
    return search_matching(inner_products(ours, theirs) / norms)


@ANY_LAYOUT
def test_every_permutation_has_the_similarity_of_its_forms_with_heads_matched_anew(layout: PairLayout) -> None:
    form = draw(1)
    other = draw(2, like=form, noise=0.7)
    coordinates = draw_coordinates(WIDTH, 30, seed=3)
    found = layer_similarities(form, other, (layout, layout), coordinates)
    orders = [torch.arange(WIDTH), *coordinates.orders]
    expected = [similarity_of(form, choose(other, order), layout) for order in orders]
    for signs in coordinates.signs:
        assert set(signs.tolist()) == {-1, 1}
        flipped = Form(other.left * signs, other.right * signs, GROUPS)
        expected.append(similarity_of(form, flipped, layout))
    assert found.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_without_rotation_forms_are_products_of_queries_and_keys() -> None:
    form, other = draw(1), draw(2)
    matrices = [[f.left[h].T @ f.right[g] for h, g in enumerate(GROUPS)] for f in (form, other)]
    cosines = torch.tensor([[float((m * n).sum() / m.norm() / n.norm()) for n in matrices[1]] for m in matrices[0]])
    found = layer_similarities(form, other, (STILL, STILL), ALL)
    assert found[0].item() == pytest.approx(search_matching(cosines), rel=1e-6)


@ANY_LAYOUT
def test_heads_in_another_order_rotated_inside_pairs_and_rescaled_are_the_same(layout: PairLayout) -> None:
    form = draw(1)
    angles = torch.linspace(0.3, 2.0, len(layout.rotates), dtype=torch.float64)
    turned = [
        rotate(x, angles.cos(), angles.sin(), interleaved=layout.interleaved, start=layout.start)
        for x in (form.left, form.right)
    ]
    changed = Form(3 * turned[0][[3, 2, 1, 0]], turned[1][[1, 0]] / 7, GROUPS)
    found = layer_similarities(form, changed, (layout, layout), ALL)
    assert found[0].item() == pytest.approx(1, abs=1e-12)
    assert found[1].item() < 0.5


def test_a_rotation_across_pairs_changes_the_similarity_of_rotary_heads_alone() -> None:
    form = draw(1)
    rotation = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(1)).double()).Q
    mixed = Form(rotation @ form.left, rotation @ form.right, GROUPS)
    layout = LAYOUTS["neighbours"]
    assert layer_similarities(form, mixed, (layout, layout), ALL)[0].item() < 0.9
    assert layer_similarities(form, mixed, (STILL, STILL), ALL)[0].item() == pytest.approx(1)
    # If it is not known how one of the two rotates, both are compared at offset 0.
    assert layer_similarities(form, mixed, (layout, STILL), ALL)[0].item() == pytest.approx(1)


def test_a_part_of_the_coordinates_is_that_part_of_both_forms() -> None:
    form, other = draw(1), draw(2)
    coordinates = draw_coordinates(WIDTH, 5, seed=0, most=12)
    assert len(set(coordinates.kept.tolist())) == 12
    found = layer_similarities(form, other, (STILL, STILL), coordinates)
    part, other_part = choose(form, coordinates.kept), choose(other, coordinates.kept)
    whole = coordinates._replace(kept=torch.arange(12))
    assert torch.equal(found, layer_similarities(part, other_part, (STILL, STILL), whole))


@ANY_LAYOUT
def test_in_the_basis_of_a_rotation_a_rotated_copy_is_the_same(layout: PairLayout) -> None:
    form = draw(1)
    rotation = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(1)).double()).Q
    copy = Form(form.left @ rotation, form.right @ rotation, GROUPS)
    kept = torch.tensor([3, 1, 7, 12])
    bases = torch.stack([rotation.T[:, kept], torch.eye(WIDTH, dtype=torch.float64)[:, kept]])
    found = aligned_similarities(form, copy, (layout, layout), kept, bases)
    assert found[0].item() == pytest.approx(1)
    unmoved = Coordinates(kept, torch.arange(4)[None])
    assert found[1].item() == pytest.approx(layer_similarities(form, copy, (layout, layout), unmoved)[0].item())


@ANY_LAYOUT
def test_a_copy_has_a_similarity_of_at_most_one(layout: PairLayout) -> None:
    copies = [layer_similarities(form, form, (layout, layout), ALL)[0].item() for form in map(draw, range(30))]
    assert 1 - 1e-12 < min(copies) <= max(copies) <= 1


def test_heads_without_a_form_are_similar_to_none() -> None:
    form = draw(1)
    broken = Form(form.left.clone(), form.right, GROUPS)
    broken.left[0] = 0
    broken.left[1, 0, 0] = math.nan
    assert layer_similarities(form, broken, (STILL, STILL), ALL)[0].item() == pytest.approx(0.5, abs=0.1)
    nothing = Form(torch.zeros_like(form.left), form.right, GROUPS)
    similarities = layer_similarities(form, nothing, (STILL, STILL), draw_coordinates(WIDTH, 19, 0))
    judgement = judge(similarities)
    assert judgement.similarity == 0
    assert math.isnan(judgement.p_value)
    assert math.isnan(judgement.z)


def test_p_counts_the_observed_similarity_and_those_that_equal_it() -> None:
    judgement = judge(torch.tensor([0.5, 0.5, 0.6, 0.1, 0.2], dtype=torch.float64))
    assert judgement.p_value == 3 / 5
    permuted = torch.tensor([0.5, 0.6, 0.1, 0.2], dtype=torch.float64)
    assert judgement.z == pytest.approx(float((0.5 - permuted.mean()) / permuted.std()))
    assert judge(torch.tensor([0.9, 0.5, 0.6, 0.1, 0.2])).p_value == 1 / 5


def test_p_is_exact_over_all_permutations() -> None:
    """Among all orders of the coordinates, each rank of the observed similarity is taken once."""
    width = 4
    form = draw(1, width=width)
    other = draw(2, width=width)
    orders = torch.tensor(list(itertools.permutations(range(width))))
    ranks = []
    for order in orders:
        similarities = layer_similarities(
            form, choose(other, order), (STILL, STILL), Coordinates(torch.arange(width), orders)
        )
        # All orders of an order are all orders: the permuted similarities are the same, and include the observed one.
        rank = int((similarities[1:] >= similarities[0] - 1e-12).sum())
        ranks.append(rank)
    assert sorted(ranks) == list(range(1, len(orders) + 1))


@pytest.mark.parametrize("layout", [LAYOUTS["neighbours"], STILL], ids=["rotary", "still"])
def test_p_is_uniform_for_heads_that_are_drawn_independently(layout: PairLayout) -> None:
    """Matching selects the largest cosines, in the permuted models as in the observed one."""
    p_values = []
    for seed in range(100):
        form, other = draw(2 * seed), draw(2 * seed + 1)
        coordinates = draw_coordinates(WIDTH, 19, seed)
        permuted = coordinates._replace(signs=coordinates.signs[:0])
        p_values.append(judge(layer_similarities(form, other, (layout, layout), permuted)).p_value)
    empirical = torch.tensor(p_values)
    for step in range(1, 20):  # a distance of 0.163 has p = .01 in a Kolmogorov-Smirnov test of 100 values
        assert abs(float((empirical <= step / 20 + 1e-9).double().mean()) - step / 20) < 0.163


@pytest.mark.parametrize(("deviation", "is_defined"), [(0.8e-9, False), (1.25e-9, True)])
def test_permuted_similarities_that_differ_by_rounding_tell_nothing(deviation: float, is_defined: bool) -> None:
    permuted = 0.25 + deviation * torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    judgement = judge(torch.cat([permuted.new_tensor([0.5]), permuted]))
    assert judgement.similarity == 0.5
    assert math.isnan(judgement.z) is not is_defined
    assert math.isnan(judgement.p_value) is not is_defined


def test_spectral_distances_are_those_of_singular_values() -> None:
    form, other = draw(1), draw(2)

    def find(one: Form) -> Tensor:
        matrices = torch.einsum("hrd,hre->hde", one.left, one.right[one.key_heads])
        values = torch.linalg.svdvals(matrices)
        return values / values.norm(dim=1, keepdim=True)

    distances = torch.cdist(find(form), find(other))
    found = spectral_distances(form, other)
    assert all(bool((distances[head] - found[head]).abs().min() < 1e-6) for head in range(len(found)))
    assert float(spectral_distances(form, form).max()) < 1e-6


@pytest.mark.parametrize(("near", "are_equal"), [(10, True), (9, True), (8, False)])
def test_spectra_are_equal_if_nine_of_ten_heads_are_nearer_than_random_ones(near: int, are_equal: bool) -> None:
    shares = torch.tensor([0.99] * near + [1.01] * (10 - near))
    assert have_equal_spectra(shares) is are_equal
    assert not have_equal_spectra(torch.full((10,), torch.nan))


def share_of(form: Form, other: Form) -> Tensor:
    return spectral_distances(form, other) / least_distance(form)


def test_spectra_of_rotated_streams_are_equal_and_those_of_strangers_are_not() -> None:
    form = draw(1, width=64)
    rotation = torch.linalg.qr(torch.randn(64, 64, generator=torch.Generator().manual_seed(1)).double()).Q
    rotated = Form(form.left[[2, 3, 0, 1]] @ rotation, 5 * form.right[[1, 0]] @ rotation, GROUPS)
    assert have_equal_spectra(share_of(form, rotated))
    rounded = Form(rotated.left.bfloat16(), rotated.right.bfloat16(), GROUPS)
    assert have_equal_spectra(share_of(form, rounded))
    for seed in range(2, 40):
        assert not have_equal_spectra(share_of(form, draw(seed, width=64)))
    one_other = Form(rotated.left.clone(), rotated.right, GROUPS)
    one_other.left[0] += 0.2 * draw(3, width=64).left[0]
    assert not have_equal_spectra(share_of(form, one_other))
    assert not have_equal_spectra(share_of(form, Form(0 * form.left, form.right, GROUPS)))
    first = Form(form.left[:, :1], form.right[:, :1], GROUPS)
    assert not have_equal_spectra(share_of(first, first))
