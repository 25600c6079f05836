"""Inner products of forms with one left factor, compared with the formed matrices."""

from __future__ import annotations

import pytest
import torch

from attngeo.geometry import forms
from attngeo.geometry.forms import multiply_forms


@pytest.mark.parametrize("size", [(5, 96), (24, 40), (40, 24)])  # the Gram form; tiled, of several tiles
def test_products_of_forms_are_those_of_the_matrices(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "TILE", 17)
    random = torch.Generator().manual_seed(0)
    left = torch.randn(size, generator=random)
    rights = torch.randn(3, *size, generator=random)
    matrices = (left.double().T @ rights.double()).flatten(1)
    expected = matrices @ matrices.T
    products = multiply_forms(left, rights)
    assert products.dtype == torch.float64
    torch.testing.assert_close(products, expected, rtol=1e-5, atol=1e-5 * float(expected.diagonal().max()))


def test_forms_whose_terms_cancel_keep_their_digits() -> None:
    """The rows of both factors have a large common part that sums to almost nothing in the form."""
    random = torch.Generator().manual_seed(0)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0])[:, None]
    left = 100 + torch.randn(4, 64, generator=random).round()
    rights = (1000 * signs + torch.randn(2, 4, 64, generator=random)).float()
    matrices = (left.double().T @ rights.double()).flatten(1)
    expected = matrices @ matrices.T
    torch.testing.assert_close(multiply_forms(left, rights), expected, rtol=1e-5, atol=0)
