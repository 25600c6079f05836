"""Composition of heads: compared with formed matrices, what must not change it, and its chance level."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from support.dense import form
from torch import Tensor

from attngeo.geometry.composition import compositions, fold, standardize, unevenness


class Layer(NamedTuple):
    """Factors of each head, [heads, rank, n]."""

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor

    @property
    def written(self) -> Tensor:
        return fold(self.o, self.v)

    @property
    def read(self) -> list[Tensor]:
        """By queries, keys and values."""
        return [fold(self.q, self.k), fold(self.k, self.q), fold(self.v, self.o)]

    def forms(self) -> list[tuple[np.ndarray, np.ndarray]]:  # type: ignore[type-arg]
        """M and O of each head."""
        return [(form(q.T, k.T), form(v.T, o.T)) for q, k, v, o in zip(*self, strict=True)]


def random_layer(heads: int, seed: int, n: int = 48, rank: int = 6, width: int = 4) -> Layer:
    generator = torch.Generator().manual_seed(seed)
    sizes = [rank, rank, width, width]
    return Layer(*(torch.randn(heads, size, n, generator=generator, dtype=torch.float64) for size in sizes))


def compose(first: Layer, second: Layer) -> list[Tensor]:
    """Q-, K- and V-composition of the heads of two layers."""
    return [compositions(first.written, readers).sqrt() for readers in second.read]


def test_composition_is_that_of_the_formed_matrices() -> None:
    first, second = random_layer(3, 0), random_layer(2, 1)
    got = compose(first, second)
    for i, (_, writer) in enumerate(first.forms()):
        for j, (m, o) in enumerate(second.forms()):
            for kind, reader in enumerate((m, m.T, o)):
                norm = np.linalg.norm(writer @ reader) / np.linalg.norm(writer) / np.linalg.norm(reader)
                assert got[kind][i, j].item() == pytest.approx(norm, rel=1e-8)


def test_what_leaves_a_running_model_leaves_its_composition() -> None:
    first, second = random_layer(3, 0), random_layer(3, 1)
    generator = torch.Generator().manual_seed(2)
    inside = torch.randn(3, 4, 4, generator=generator, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(3, 6, 6, generator=generator, dtype=torch.float64)).Q
    around = torch.linalg.qr(torch.randn(48, 48, generator=generator, dtype=torch.float64)).Q

    def change(layer: Layer) -> Layer:
        return Layer(
            5 * rotation @ layer.q @ around,
            rotation @ layer.k @ around,
            inside.mT @ layer.v @ around,
            torch.linalg.inv(inside) @ layer.o @ around,
        )

    for before, after in zip(compose(first, second), compose(change(first), change(second)), strict=True):
        torch.testing.assert_close(after, before, rtol=1e-8, atol=0)
    swapped = Layer(*(x.flip(0) for x in second))
    for before, after in zip(compose(first, second), compose(first, swapped), strict=True):
        torch.testing.assert_close(after, before.flip(1), rtol=1e-12, atol=0)


def test_composition_at_its_ends() -> None:
    frame = torch.eye(12, dtype=torch.float64)[:8].reshape(2, 4, 12)
    writers = fold(frame, frame)
    torch.testing.assert_close(compositions(writers, writers), torch.eye(2, dtype=torch.float64) / 4)
    vector = torch.ones(1, 1, 12)
    assert compositions(fold(vector, vector), fold(vector, vector)).item() == pytest.approx(1)


def test_heads_without_a_form_are_missing_and_extreme_ones_are_not() -> None:
    layer = random_layer(4, 0)
    plain = layer.written
    layer.o[1] = 0
    layer.v[2, 0, 0] = float("inf")
    layer.o[3] *= 1e-200
    written = layer.written
    torch.testing.assert_close(written[[0, 3]], plain[[0, 3]])
    got = compositions(written, written)
    assert got[:, 1:3].isnan().all()
    assert got[1:3].isnan().all()
    assert got[[0, 3]][:, [0, 3]].isfinite().all()


@pytest.mark.parametrize("decay", [0.0, 1.0, 3.0])
def test_z_of_random_heads_has_mean_0_and_deviation_1_for_any_spectrum(decay: float) -> None:
    """One factor rotated at random; both spectra fall by 10 ** -decay. 40 × 40 heads in each of 12 draws."""
    n, rank, heads = 96, 8, 40
    generator = torch.Generator().manual_seed(3)
    sizes = torch.logspace(0, -decay, rank, dtype=torch.float64)[:, None]

    def draw() -> Tensor:
        frames = torch.linalg.qr(torch.randn(heads, n, rank, generator=generator, dtype=torch.float64)).Q
        return fold(sizes * frames.mT, torch.eye(rank, dtype=torch.float64).expand(heads, -1, -1))

    values = []
    for _ in range(12):
        writers, readers = draw(), draw()
        values.append(standardize(compositions(writers, readers), unevenness(writers), unevenness(readers), n))
    z = torch.stack(values)
    assert z.mean().item() == pytest.approx(0, abs=0.05)
    assert z.std().item() == pytest.approx(1, rel=0.05)
