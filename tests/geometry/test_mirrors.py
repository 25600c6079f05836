"""Pairs of heads, against formed matrices, means over angles and random rotations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attngeo.geometry import mirrors
from attngeo.geometry.factors import rotate
from attngeo.geometry.forms import Form
from attngeo.geometry.mirrors import (
    Products,
    cosines,
    measure_moments,
    multiply_pairs,
    multiply_themselves,
    pair_heads,
    standardize_mirrors,
)
from attngeo.geometry.offsets import STILL, PairLayout

HEADS, KEY_HEADS, HEAD_DIM, WIDTH = 6, 2, 12, 16
GROUPS = [0, 0, 0, 1, 1, 1]
ROTATES = torch.tensor([True, True, False, True])
LAYOUTS = {
    "halves": PairLayout(ROTATES, interleaved=False, start=2),
    "neighbours": PairLayout(ROTATES, interleaved=True, start=0),
    "all": PairLayout(torch.ones(6, dtype=torch.bool)),
    "still": STILL,
}
ANY_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())


def draw(seed: int, key_heads: int = KEY_HEADS) -> Form:
    """Random heads that share keys in groups."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(HEADS, HEAD_DIM, WIDTH, generator=generator, dtype=torch.float64)
    k = torch.randn(key_heads, HEAD_DIM, WIDTH, generator=generator, dtype=torch.float64)
    return Form(q, k, [head * key_heads // HEADS for head in range(HEADS)])


def at_angles(form: Form, layout: PairLayout, angles: Tensor) -> Tensor:
    """M of each head, [heads, n, n], whose queries turn by an angle for each pair."""
    angles = angles * layout.rotates
    turned = rotate(form.left, angles.cos(), angles.sin(), interleaved=layout.interleaved, start=layout.start)
    return torch.stack([turned[head].T @ form.right[key] for head, key in enumerate(form.key_heads)])


def mean_products(form: Form, other: Form, layout: PairLayout) -> Products:
    """The means over angles of tr(M_Δ·M'_−Δ) and ⟨M_Δ, M'_Δ⟩, of formed matrices."""
    pairs = len(layout.rotates)
    # All combinations of right angles: the means of all products of two pairs are exact.
    draws = torch.cartesian_prod(*[torch.arange(4)] * pairs).double() * torch.pi / 2 if pairs else torch.zeros(1, 0)
    total = torch.zeros(2, HEADS, HEADS, dtype=torch.float64)
    for angles in draws:
        mine = at_angles(form, layout, angles)
        total[0] += torch.einsum("hab,gba->hg", mine, at_angles(other, layout, -angles))
        total[1] += torch.einsum("hab,gab->hg", mine, at_angles(other, layout, angles))
    return Products(*(total / len(draws)))


@pytest.mark.parametrize("layout", ["halves", "neighbours", "still"])
@pytest.mark.parametrize("rows", [HEAD_DIM, 30, 1024])
def test_the_products_are_those_of_formed_matrices_over_all_angles(
    layout: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a layer, and between two layers whose heads share keys in other groups; in blocks of any size."""
    monkeypatch.setattr(mirrors, "BLOCK_ROWS", rows)
    form = draw(0)
    other = draw(1, key_heads=3)
    rotation = LAYOUTS[layout]
    heads = pair_heads(form, rotation)
    for mine, theirs in (
        (multiply_pairs(heads, heads), mean_products(form, form, rotation)),
        (multiply_pairs(heads, pair_heads(other, rotation)), mean_products(form, other, rotation)),
    ):
        torch.testing.assert_close(mine.mirrors, theirs.mirrors)
        torch.testing.assert_close(mine.twins, theirs.twins)


@ANY_LAYOUT
def test_the_products_of_heads_with_themselves_are_the_diagonal(layout: PairLayout) -> None:
    """All layouts, with shared keys."""
    heads = pair_heads(draw(2), layout)
    products = multiply_pairs(heads, heads)
    alone = multiply_themselves(heads)
    torch.testing.assert_close(alone.mirrors, products.mirrors.diagonal())
    torch.testing.assert_close(alone.twins, products.twins.diagonal())


@ANY_LAYOUT
def test_single_precision_is_near_double_precision(layout: PairLayout) -> None:
    """Also where keys are nearly parallel, whose Gram matrices cancel."""
    form = draw(3)
    right = form.right.clone()
    right[0, 1:] = right[0, :1] + 1e-4 * right[0, 1:]
    form = form._replace(right=right)
    exact = pair_heads(form, layout)
    rounded = pair_heads(form._replace(left=form.left.float(), right=right.float()), layout)
    sizes = multiply_themselves(exact).twins.sqrt()
    limit = 2e-6 * sizes[:, None] * sizes
    for mine, theirs in zip(multiply_pairs(rounded, rounded), multiply_pairs(exact, exact), strict=True):
        assert bool(((mine - theirs).abs() < limit).all())


def test_a_transpose_is_a_mirror_and_a_copy_a_twin() -> None:
    """Cosines of a head with its transpose, with itself, with a symmetric head, and with a zero head."""
    generator = torch.Generator().manual_seed(4)
    q, k = torch.randn(2, 3, 10, generator=generator)
    form = Form(torch.stack([q, 2 * k, 3 * q, q, 0 * q]), torch.stack([k, q, k, q, k]), [0, 1, 2, 3, 4])
    heads = pair_heads(form)
    alone = multiply_themselves(heads)
    mirror, twin, antisymmetric = cosines(multiply_pairs(heads, heads), alone, alone)
    torch.testing.assert_close(mirror[0, 1], torch.tensor(1.0).double())
    torch.testing.assert_close(twin[0, 2], torch.tensor(1.0).double())
    torch.testing.assert_close(antisymmetric[0, 1:3], torch.tensor([-1.0, 1.0]).double())
    assert antisymmetric[0, 3:].isnan().all()
    assert mirror[0, 4].isnan()
    assert twin[4, 4].isnan()


def test_a_small_antisymmetric_part_is_seen_in_single_precision() -> None:
    """‖A‖ is 1e-3 of ‖M‖: products of float32 alone would lose it."""
    generator = torch.Generator().manual_seed(5)
    q, change = torch.randn(2, 6, 40, generator=generator)
    form = Form(torch.stack([q, q]), torch.stack([q + 1e-3 * change, q - 1e-3 * change]), [0, 1])
    heads = pair_heads(form)
    alone = multiply_themselves(heads)
    _, _, antisymmetric = cosines(multiply_pairs(heads, heads), alone, alone)
    torch.testing.assert_close(antisymmetric[0, 1], torch.tensor(-1.0).double(), atol=1e-4, rtol=0)


def test_only_a_mirror_on_the_same_frequencies_is_a_mirror() -> None:
    """Queries and keys swapped give 1; the same on other pairs give the plain form's mirror and no rotary one."""
    generator = torch.Generator().manual_seed(6)
    layout = PairLayout(torch.ones(4, dtype=torch.bool), interleaved=True)
    q, k = torch.randn(2, 8, 200, generator=generator)
    order = [2, 3, 4, 5, 6, 7, 0, 1]
    form = Form(torch.stack([q, k, k[order]]), torch.stack([k, q, q[order]]), [0, 1, 2])
    found = {}
    for name, rotation in (("rotary", layout), ("plain", STILL)):
        heads = pair_heads(form, rotation)
        alone = multiply_themselves(heads)
        found[name] = cosines(multiply_pairs(heads, heads), alone, alone)[0][0]
    torch.testing.assert_close(found["rotary"][1], torch.tensor(1.0).double())
    torch.testing.assert_close(found["plain"][2], torch.tensor(1.0).double())
    assert abs(found["rotary"][2]) < 0.2


@ANY_LAYOUT
def test_the_z_of_a_mirror_is_standard_normal_for_random_rotations(layout: PairLayout) -> None:
    """The mean and the deviation of tr(M·M'), over rotations of the stream of one of the two."""
    form = draw(7)
    other = draw(8)
    generator = torch.Generator().manual_seed(9)
    mine = pair_heads(form, layout)
    moments = measure_moments(mine)
    z = []
    for _ in range(400):
        basis, triangle = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64))
        basis = basis * triangle.diagonal().sign()
        turned = other._replace(left=other.left @ basis, right=other.right @ basis)
        theirs = pair_heads(turned, layout)
        products = multiply_pairs(mine, theirs)
        z.append(standardize_mirrors(products.mirrors, moments, measure_moments(theirs), WIDTH))
    values = torch.stack(z)
    assert abs(values.mean()) < 0.05
    assert abs(values.std() - 1) < 0.05
    assert bool((values.mean(0).abs() < 5 / 20).all())
    assert bool(((values.std(0) - 1).abs() < 5 / 28).all())


def test_heads_that_are_not_finite_have_no_mirror() -> None:
    """Others keep theirs."""
    form = draw(10)
    left = form.left.clone()
    left[0, 0, 0] = torch.nan
    form = form._replace(left=left)
    heads = pair_heads(form)
    alone = multiply_themselves(heads)
    mirror, _, _ = cosines(multiply_pairs(heads, heads), alone, alone)
    moments = measure_moments(heads)
    z = standardize_mirrors(multiply_pairs(heads, heads).mirrors, moments, moments, WIDTH)
    assert mirror[0].isnan().all()
    assert mirror[1:, 1:].isfinite().all()
    assert z[0].isnan().all()
    assert z[1:, 1:].isfinite().all()
