"""Spectra of forms of two factors: compared with those of formed matrices, and what must not change them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.dense import Matrix, form
from torch import Tensor

from attngeo.geometry.spectra import (
    eigenvalues,
    positive_share,
    random_edge,
    singular_values,
    standardize_trace,
)

# (heads, rank, n): ordinary heads, a vector, one head as wide as the stream, and one that is wider.
SHAPES = [(3, 8, 64), (2, 1, 16), (1, 24, 24), (2, 20, 12)]


def random_factors(heads: int, rank: int, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Factors with a share in common, and directions of very unequal size."""
    generator = torch.Generator().manual_seed(seed)
    left, right, shared = (torch.randn(heads, rank, n, generator=generator, dtype=torch.float64) for _ in range(3))
    sizes = torch.logspace(0, -3, rank, dtype=torch.float64)[:, None]
    return (left + shared) * sizes, (right + 0.7 * shared) * sizes


def formed(left: Tensor, right: Tensor) -> list[Matrix]:
    return [form(a.T, b.T) for a, b in zip(left, right, strict=True)]


@pytest.mark.parametrize(("heads", "rank", "n"), SHAPES)
def test_spectra_are_those_of_the_formed_matrices(heads: int, rank: int, n: int) -> None:
    left, right = random_factors(heads, rank, n)
    values = singular_values(left, right).numpy()
    of_products = eigenvalues(left, right)
    for head, m in enumerate(formed(left, right)):
        largest = np.linalg.norm(m, 2)
        expected = np.linalg.svd(m, compute_uv=False)[: values.shape[1]]
        np.testing.assert_allclose(values[head] / largest, expected / largest, rtol=0, atol=1e-8)
        z = np.sqrt(n) * np.trace(m) / np.linalg.norm(m)
        assert standardize_trace(left, right)[head].item() == pytest.approx(z, rel=1e-8, abs=1e-8)
        of_form = np.linalg.eigvals(m)
        share = of_form.real.sum() / np.abs(of_form).sum()
        assert positive_share(of_products)[head].item() == pytest.approx(share, abs=1e-5 if rank > 8 else 1e-8)


def test_a_spectrum_does_not_depend_on_what_factors_share() -> None:
    left, right = random_factors(2, 6, 40)
    generator = torch.Generator().manual_seed(1)
    inside = torch.randn(2, 6, 6, generator=generator, dtype=torch.float64)
    around = torch.linalg.qr(torch.randn(40, 40, generator=generator, dtype=torch.float64)).Q
    changed = (inside.mT @ left @ around, torch.linalg.inv(inside) @ right @ around)
    torch.testing.assert_close(singular_values(*changed), singular_values(left, right), rtol=1e-8, atol=0)
    torch.testing.assert_close(standardize_trace(*changed), standardize_trace(left, right), rtol=1e-8, atol=1e-9)
    before, after = (positive_share(eigenvalues(*factors)) for factors in ((left, right), changed))
    torch.testing.assert_close(after, before, rtol=1e-8, atol=0)


def test_known_spectra() -> None:
    frame = torch.linalg.qr(torch.randn(12, 4, generator=torch.Generator().manual_seed(0))).Q.mT[None]
    sizes = torch.tensor([4.0, 4.0, 2.0, 0.0])[:, None]
    values = singular_values(frame, sizes * frame)
    assert values[0].tolist() == pytest.approx([4, 4, 2, 0], abs=1e-6)
    assert positive_share(eigenvalues(frame, sizes * frame)).item() == pytest.approx(1)
    assert positive_share(eigenvalues(frame, -sizes * frame)).item() == pytest.approx(-1)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_head_that_is_not_finite_leaves_the_others_as_they_are(bad: float) -> None:
    left, right = random_factors(3, 4, 20)
    good = singular_values(left, right)
    left[1, 2, 3] = bad
    values, of_products = singular_values(left, right), eigenvalues(left, right)
    assert values[1].isnan().all()
    assert of_products[1].real.isnan().all()
    torch.testing.assert_close(values[[0, 2]], good[[0, 2]], rtol=0, atol=0)
    zero = torch.zeros(1, 4, 20)
    assert math.isnan(positive_share(eigenvalues(zero, zero)).item())


@pytest.mark.parametrize(("rank", "n"), [(60, 1200), (300, 600), (400, 400)])
def test_the_spectra_of_random_factors_end_at_the_edge(rank: int, n: int) -> None:
    generator = torch.Generator().manual_seed(rank)
    left, right = (torch.randn(1, rank, n, generator=generator, dtype=torch.float64) for _ in range(2))
    values = singular_values(left, right)[0]
    assert values.max().item() == pytest.approx(random_edge(float(values.norm()), rank, n), rel=0.04)


@pytest.mark.parametrize("decay", [0.0, 1.0, 3.0])
def test_z_of_the_trace_has_mean_0_and_deviation_1_for_any_spectrum(decay: float) -> None:
    """One factor rotated at random; its directions fall in size by 10 ** -decay."""
    heads, rank, n = 4_000, 6, 64
    generator = torch.Generator().manual_seed(int(decay))
    sizes = torch.logspace(0, -decay, rank, dtype=torch.float64)[:, None]
    frames, triangles = torch.linalg.qr(torch.randn(heads, n, rank, generator=generator, dtype=torch.float64))
    signs = triangles.diagonal(dim1=-2, dim2=-1).sign()  # LAPACK's signs are not random
    left = sizes * (frames * signs[:, None]).mT
    right = torch.eye(n, dtype=torch.float64)[:rank].expand(heads, -1, -1)
    z = standardize_trace(left, right)
    assert z.mean().item() == pytest.approx(0, abs=0.05)
    assert z.std().item() == pytest.approx(1, rel=0.05)
