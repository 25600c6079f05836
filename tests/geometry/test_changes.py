"""Changes of forms over all rotary offsets, and overlaps of spaces, against formed matrices and bases of NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from attngeo.geometry.changes import FormChange, measure_head_changes, measure_layer_change
from attngeo.geometry.factors import rotate
from attngeo.geometry.forms import Form
from attngeo.geometry.offsets import STILL, PairLayout, head_forms, inner_products
from attngeo.geometry.subspaces import subspace_overlap

HEADS, KEY_HEADS, HEAD_DIM = 4, 2, 12
GROUPS = [0, 0, 1, 1]
ROTATES = torch.tensor([True, True, False, True])
LAYOUTS = {
    "halves": PairLayout(ROTATES, interleaved=False, start=2),
    "neighbours": PairLayout(ROTATES, interleaved=True, start=0),
    "whole": PairLayout(torch.ones(6, dtype=torch.bool)),
    "still": STILL,
}
ANY_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
# Products of factors, and their Gram matrices.
ANY_WIDTH = pytest.mark.parametrize("width", [10, 80])
Measure = Callable[[Form, Form, PairLayout, PairLayout], FormChange]


def draw(seed: int, width: int = 10) -> Form:
    """Random heads, of which two share each key."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(HEADS, HEAD_DIM, width, generator=generator, dtype=torch.float64)
    k = torch.randn(KEY_HEADS, HEAD_DIM, width, generator=generator, dtype=torch.float64)
    return Form(q, k, GROUPS)


def list_products(form: Form, other: Form, layout: PairLayout) -> Tensor:
    """⟨M, M'⟩ of all heads with all others, as `test_offsets` checks it against means over offsets."""
    return inner_products(head_forms(form, layout), head_forms(other, layout))


def expect(form: Form, other: Form, layout: PairLayout, *, of_layers: bool) -> tuple[Tensor, Tensor, Tensor]:
    """‖M‖², ‖M'‖² and ⟨M, M'⟩."""
    products = [list_products(a, b, layout) for a, b in ((form, form), (other, other), (form, other))]
    mine, others, both = (part.sum() if of_layers else part.diagonal() for part in products)
    return mine, others, both


@ANY_LAYOUT
@ANY_WIDTH
@pytest.mark.parametrize("measure", [measure_head_changes, measure_layer_change])
def test_changes_follow_from_inner_products(layout: PairLayout, width: int, measure: Measure) -> None:
    form, other = draw(1, width), draw(2, width)
    mine, others, both = expect(form, other, layout, of_layers=measure is measure_layer_change)
    found = measure(form, other, layout, layout)
    expected = {
        "change": ((mine + others - 2 * both) / mine).sqrt(),
        "cosine": both / (mine * others).sqrt(),
    }
    for name, values in expected.items():
        torch.testing.assert_close(getattr(found, name), values, rtol=1e-10, atol=1e-12)


def test_pairs_of_both_layouts_are_compared_in_their_order() -> None:
    form = draw(1)
    pairs = torch.arange(HEAD_DIM).reshape(2, -1).T.flatten()  # halves become neighbours
    moved = Form(form.left[:, pairs], form.right[:, pairs], GROUPS)
    layouts = LAYOUTS["whole"], PairLayout(LAYOUTS["whole"].rotates, interleaved=True)
    for measure in (measure_head_changes, measure_layer_change):
        assert measure(form, moved, *layouts).change.abs().max() == 0
        assert measure(form, moved, layouts[0], layouts[0]).change.min() > 0.3


@ANY_LAYOUT
@ANY_WIDTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_small_changes_keep_their_digits(layout: PairLayout, width: int, dtype: torch.dtype) -> None:
    form, noise = draw(1, width), draw(2, width)
    scale = 2.0**-20
    left = form.left.bfloat16().to(dtype)
    moved = Form(left + scale * noise.left.bfloat16().to(dtype), form.right.to(dtype), GROUPS)
    start = Form(left, moved.right, GROUPS)
    added = Form((moved.left - left).double(), moved.right.double(), GROUPS)
    for measure, of_layers in ((measure_head_changes, False), (measure_layer_change, True)):
        found = measure(start, moved, layout, layout)
        squares, _, _ = expect(added, added, layout, of_layers=of_layers)
        mine, _, _ = expect(start, start, layout, of_layers=of_layers)
        torch.testing.assert_close(found.change, (squares / mine).sqrt(), rtol=2e-6, atol=0)


@ANY_LAYOUT
def test_equal_factors_have_no_change_at_all(layout: PairLayout) -> None:
    for width in (10, 80):
        form = draw(1, width)
        for measure in (measure_head_changes, measure_layer_change):
            found = measure(form, form, layout, layout)
            assert found.change.abs().max() == 0
            assert found.cosine.min() == 1


def turn(x: Tensor, layout: PairLayout, angles: Tensor) -> Tensor:
    return rotate(x, angles.cos(), angles.sin(), interleaved=layout.interleaved, start=layout.start)


def test_a_rotation_inside_pairs_changes_nothing() -> None:
    layout = LAYOUTS["halves"]
    form = draw(1)
    angles = torch.tensor([0.3, 1.1, -0.4, 2.0], dtype=torch.float64)
    turned = Form(turn(form.left, layout, angles), turn(form.right, layout, angles), GROUPS)
    for measure in (measure_head_changes, measure_layer_change):
        assert float(measure(form, turned, layout, layout).change.max()) < 1e-7


@ANY_WIDTH
def test_a_rotation_across_pairs_changes_the_forms_but_not_that_at_offset_0(width: int) -> None:
    layout = LAYOUTS["halves"]
    form = draw(1, width)
    generator = torch.Generator().manual_seed(3)
    rotation, _ = torch.linalg.qr(torch.randn(HEAD_DIM, HEAD_DIM, generator=generator, dtype=torch.float64))
    turned = Form(rotation @ form.left, rotation @ form.right, GROUPS)
    assert float(measure_head_changes(form, turned).change.max()) < 1e-7
    assert float(measure_head_changes(form, turned, layout, layout).change.min()) > 0.3


def test_weights_that_are_zero_or_not_finite_have_no_change() -> None:
    form, other = draw(1), draw(2)
    other.left[0, 0, 0] = torch.nan
    form.left[1] = 0
    found = measure_head_changes(form, other, LAYOUTS["halves"], LAYOUTS["halves"])
    assert found.change.isnan().tolist() == [True, True, False, False]
    assert found.cosine.isnan().tolist() == [True, True, False, False]
    back = measure_head_changes(other, form)
    assert back.change.tolist()[1] == pytest.approx(1)
    assert back.cosine.isnan().tolist() == [True, True, False, False]


@pytest.mark.parametrize(("factor", "is_zero"), [(4.2e-7, True), (4.8e-7, False)])
@pytest.mark.parametrize("measure", [measure_head_changes, measure_layer_change])
def test_a_form_is_zero_if_its_square_is_a_ten_trillionth_of_the_rest(
    factor: float, is_zero: bool, measure: Callable[..., FormChange]
) -> None:
    """A form and a multiple of it, with the squares 1 and f², and (1 − f)² between both."""
    form = draw(1)
    small = form._replace(left=factor * form.left)
    from_zero = measure(small, form, STILL, STILL)
    to_zero = measure(form, small, STILL, STILL)
    assert from_zero.change.isnan().all().item() is is_zero
    assert from_zero.cosine.isnan().all().item() is is_zero
    assert to_zero.cosine.isnan().all().item() is is_zero
    torch.testing.assert_close(to_zero.change, torch.full_like(to_zero.change, 1 - factor))


def test_forms_in_blocks_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = LAYOUTS["halves"]
    whole = measure_layer_change(draw(1), draw(2), layout, layout)
    monkeypatch.setattr("attngeo.geometry.changes.BLOCK_BYTES", 1)
    monkeypatch.setattr("attngeo.geometry.changes.TILE", 3)
    torch.testing.assert_close(measure_layer_change(draw(1), draw(2), layout, layout), whole)


def test_queries_and_keys_of_other_widths() -> None:
    form, other = draw(1), draw(2)
    wide, other_wide = (Form(part.left, torch.cat([part.right, part.right], 2), GROUPS) for part in (form, other))
    for measure in (measure_head_changes, measure_layer_change):
        expected = measure(form, other, STILL, STILL).change
        torch.testing.assert_close(measure(wide, other_wide, STILL, STILL).change, expected)


def conditioned(condition: float) -> Tensor:
    """Rows of this condition."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(3, HEAD_DIM, 40, generator=generator, dtype=torch.float64)
    mix = torch.randn(3, HEAD_DIM, HEAD_DIM, generator=generator, dtype=torch.float64)
    scales = torch.logspace(0, -float(np.log10(condition)), HEAD_DIM, dtype=torch.float64)
    return torch.linalg.qr(mix).Q @ (scales[:, None] * torch.linalg.qr(x.mT).Q.mT)


@pytest.mark.parametrize("condition", [1.0, 1e3, 1e6, 1e10])
def test_overlaps_are_projection_kernels(condition: float) -> None:
    x = conditioned(condition)
    other = draw(5, 40).left[:3]
    basis = np.linalg.qr(x.mT.numpy())[0]
    other_basis = np.linalg.qr(other.mT.numpy())[0]
    expected = (np.swapaxes(basis, 1, 2) @ other_basis) ** 2
    found = subspace_overlap(x, other)
    np.testing.assert_allclose(found, expected.sum((1, 2)) / HEAD_DIM, rtol=1e-6 if condition > 1e7 else 1e-8)


def test_overlaps_do_not_depend_on_the_basis() -> None:
    x = conditioned(10)
    mix = torch.randn(HEAD_DIM, HEAD_DIM, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    torch.testing.assert_close(subspace_overlap(x, mix @ x), torch.ones(3, dtype=torch.float64))
    outside = torch.cat([torch.zeros_like(x), x], 2)
    inside = torch.cat([x, torch.zeros_like(x)], 2)
    assert subspace_overlap(inside, outside).abs().max() < 1e-12
    x[1, 0, 0] = torch.nan
    assert subspace_overlap(x, conditioned(10)).isnan().tolist() == [False, True, False]
    x[1] = 0
    assert subspace_overlap(x, conditioned(10)).isnan().tolist() == [False, True, False]
    assert subspace_overlap(conditioned(10), x).isnan().tolist() == [False, True, False]
    square = torch.randn(2, 8, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    torch.testing.assert_close(subspace_overlap(square, square.flip(0)), torch.ones(2, dtype=torch.float64))
