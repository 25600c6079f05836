"""The largest entries of a product, compared with the whole product."""

from __future__ import annotations

import pytest
import torch

from attngeo.geometry import pairs
from attngeo.geometry.pairs import largest_of_all, largest_of_rows


@pytest.mark.parametrize("block_bytes", [1, 4 * 31 * 7, 1 << 26])  # one row at a time, seven, all
@pytest.mark.parametrize("count", [1, 5, 40 * 31, 10_000])
def test_the_largest_entries_are_those_of_the_whole_product(
    block_bytes: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "BLOCK_BYTES", block_bytes)
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(40, 6, generator=generator)
    right = torch.randn(31, 6, generator=generator)
    product = left.double() @ right.double().T
    expected = product.flatten().sort(descending=True).values[:count]
    values, rows, columns = largest_of_all(left, right, count)
    torch.testing.assert_close(values.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(product[rows, columns], values.double(), rtol=1e-5, atol=1e-5)
    assert len(set(zip(rows.tolist(), columns.tolist(), strict=True))) == len(values)
    of_rows = largest_of_rows(left, right, count)
    expected = product.sort(descending=True).values[:, :count]
    torch.testing.assert_close(of_rows.values.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(product[of_rows.rows, of_rows.columns], of_rows.values.double(), rtol=1e-5, atol=1e-5)
