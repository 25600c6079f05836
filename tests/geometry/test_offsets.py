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
    head_forms,
    inner_products,
    squared_norms,
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


def mean_products(form: Form, other: Form, layout: PairLayout) -> Tensor:
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
def test_squared_norms_are_inner_products_of_a_form_with_itself(layout: PairLayout) -> None:
    form = head_forms(draw(1), layout)
    torch.testing.assert_close(squared_norms(form), inner_products(form, form).diagonal(), rtol=1e-10, atol=1e-10)


def test_shapes() -> None:
    form: OffsetForm = head_forms(draw(1), LAYOUTS["halves"])
    assert form.left.shape == (HEADS, 3, WIDTH)
    assert form.still_left.shape == (HEADS, HEAD_DIM - 6, WIDTH)
