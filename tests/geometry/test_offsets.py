"""Forms at every rotary offset, against formed matrices and the mean over offsets."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attngeo.geometry.factors import rotate
from attngeo.geometry.forms import Form
from attngeo.geometry.offsets import (
    STILL,
    OffsetForm,
    PairLayout,
    difference,
    head_forms,
    inner_products,
    layer_forms,
    squared_norm,
)

HEADS, KEY_HEADS, HEAD_DIM, WIDTH = 4, 2, 12, 10
GROUPS = [0, 0, 1, 1]
ROTATES = torch.tensor([True, True, False, True])
LAYOUTS = {
    "halves": PairLayout(ROTATES, interleaved=False, start=2),
    "neighbours": PairLayout(ROTATES, interleaved=True, start=0),
    "still": STILL,
}
ANY_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())


def draw(seed: int) -> Form:
    """Random heads, of which two share each key."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(HEADS, HEAD_DIM, WIDTH, generator=generator, dtype=torch.float64)
    k = torch.randn(KEY_HEADS, HEAD_DIM, WIDTH, generator=generator, dtype=torch.float64)
    return Form(q, k, GROUPS)


def at_angles(form: Form, layout: PairLayout, angles: Tensor) -> Tensor:
    """M of each head, [heads, n, n], whose queries turn by an angle for each pair."""
    angles = angles * layout.rotates
    turned = rotate(form.left, angles.cos(), angles.sin(), interleaved=layout.interleaved, start=layout.start)
    return torch.stack([turned[head].T @ form.right[key] for head, key in enumerate(form.key_heads)])


def mean_products(form: Form, other: Form, layout: PairLayout, *, of_layers: bool = False) -> Tensor:
    """⟨M, M'⟩ of all pairs of heads as a mean over angles: exact on a grid, since products have at most two of them."""
    pairs = len(layout.rotates)
    generator = torch.Generator().manual_seed(0)
    total = torch.zeros((), dtype=torch.float64)
    # Each pair of pairs sees all combinations of four right angles equally often in an orthogonal array: here, all.
    grids = torch.cartesian_prod(*[torch.arange(4)] * max(pairs, 1)).reshape(-1, max(pairs, 1)).double()
    shift = torch.rand(max(pairs, 1), generator=generator, dtype=torch.float64)
    for angles in grids * torch.pi / 2 + shift:
        mine = at_angles(form, layout, angles[:pairs])
        others = at_angles(other, layout, angles[:pairs])
        if of_layers:
            mine, others = mine.sum(0, keepdim=True), others.sum(0, keepdim=True)
        total = total + torch.einsum("hab,gab->hg", mine, others)
    return total / len(grids)


@ANY_LAYOUT
def test_inner_products_are_means_over_offsets(layout: PairLayout) -> None:
    form, other = draw(1), draw(2)
    expected = mean_products(form, other, layout)
    torch.testing.assert_close(
        inner_products(head_forms(form, layout), head_forms(other, layout)), expected, rtol=1e-10, atol=1e-10
    )


@ANY_LAYOUT
def test_norms_are_inner_products_of_a_form_with_itself(layout: PairLayout) -> None:
    form = draw(1)
    expected = mean_products(form, form, layout).diagonal()
    torch.testing.assert_close(squared_norm(head_forms(form, layout)), expected, rtol=1e-10, atol=0)
    of_layer = mean_products(form, form, layout, of_layers=True)
    torch.testing.assert_close(squared_norm(layer_forms(form, layout)), of_layer.squeeze(), rtol=1e-10, atol=0)


@ANY_LAYOUT
@pytest.mark.parametrize("make", [head_forms, layer_forms])
def test_differences_are_those_of_the_forms(layout: PairLayout, make: type) -> None:
    form, other = draw(1), draw(2)
    of_layers = make is layer_forms
    norms = [mean_products(a, b, layout, of_layers=of_layers).diagonal() for a, b in [(form, form), (other, other)]]
    expected = norms[0] + norms[1] - 2 * mean_products(form, other, layout, of_layers=of_layers).diagonal()
    found = squared_norm(difference(make(form, layout), make(other, layout)))
    torch.testing.assert_close(found.reshape(-1), expected, rtol=1e-10, atol=1e-10)


def test_small_differences_keep_their_digits() -> None:
    form = draw(1)
    noise = draw(2)
    scale = 1e-9
    moved = Form(form.left + scale * noise.left, form.right, GROUPS)
    found = squared_norm(difference(head_forms(moved), head_forms(form))).sqrt()
    expected = torch.stack([(noise.left[h].T @ form.right[k]).norm() * scale for h, k in enumerate(GROUPS)])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


def turn(x: Tensor, layout: PairLayout, angles: Tensor) -> Tensor:
    return rotate(x, angles.cos(), angles.sin(), interleaved=layout.interleaved, start=layout.start)


def test_a_rotation_inside_pairs_changes_nothing() -> None:
    layout = LAYOUTS["halves"]
    form = draw(1)
    angles = torch.tensor([0.3, 1.1, -0.4, 2.0], dtype=torch.float64)
    turned = Form(turn(form.left, layout, angles), turn(form.right, layout, angles), GROUPS)
    mine = head_forms(form, layout)
    change = squared_norm(difference(head_forms(turned, layout), mine)).sqrt() / squared_norm(mine).sqrt()
    assert float(change.max()) < 1e-7


def test_a_rotation_across_pairs_changes_the_forms_but_not_that_at_offset_0() -> None:
    layout = LAYOUTS["halves"]
    form = draw(1)
    generator = torch.Generator().manual_seed(3)
    rotation, _ = torch.linalg.qr(torch.randn(HEAD_DIM, HEAD_DIM, generator=generator, dtype=torch.float64))
    turned = Form(rotation @ form.left, rotation @ form.right, GROUPS)
    apart = squared_norm(difference(head_forms(turned), head_forms(form))) / squared_norm(head_forms(form))
    assert float(apart.max()) < 1e-13
    mine = head_forms(form, layout)
    change = squared_norm(difference(head_forms(turned, layout), mine)) / squared_norm(mine)
    assert float(change.min()) > 0.1


def test_weights_that_are_not_finite_have_no_norm() -> None:
    form = draw(1)
    form.left[0, 0, 0] = torch.nan
    norms = squared_norm(head_forms(form, LAYOUTS["halves"]))
    assert norms.isnan().tolist() == [True, False, False, False]


def test_forms_in_blocks_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = LAYOUTS["halves"]
    whole = squared_norm(head_forms(draw(1), layout))
    monkeypatch.setattr("attngeo.geometry.offsets.BLOCK_BYTES", 1)
    torch.testing.assert_close(squared_norm(head_forms(draw(1), layout)), whole)


def test_shapes() -> None:
    form: OffsetForm = head_forms(draw(1), LAYOUTS["halves"])
    assert form.left.shape == (HEADS, 1, 3, WIDTH)
    assert form.still_left.shape == (HEADS, HEAD_DIM - 6, WIDTH)
    assert layer_forms(draw(1), LAYOUTS["halves"]).left.shape == (KEY_HEADS, 3, WIDTH)
