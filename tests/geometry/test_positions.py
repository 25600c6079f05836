"""Position kernels against matrices that are formed in float64, and what must not change them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from attngeo.geometry.factors import rotate
from attngeo.geometry.forms import Form
from attngeo.geometry.positions import (
    PairStatistics,
    fast_share,
    pair_statistics,
    previous_token,
    rotary_kernel,
    table_kernel,
)

D_MODEL, HEAD_DIM, PAIRS = 20, 12, 4
OFFSETS = range(-5, 9)
FREQUENCIES = torch.tensor([1.0, 0.4, 0.1, 0.02], dtype=torch.float64)
# Key heads of the query heads: multi-head, grouped-query and multi-query attention.
GROUPS = {"MHA": [0, 1, 2, 3], "GQA": [0, 0, 1, 1], "MQA": [0, 0, 0, 0]}
# Neighbours or halves, and the first dimension that rotates; 8 of 12 do.
PAIRINGS = [(True, 0), (False, 0), (True, 4), (False, 4)]


def draw_form(groups: str = "GQA", seed: int = 0) -> Form:
    generator = torch.Generator().manual_seed(seed)
    key_heads = GROUPS[groups]
    q = torch.randn(len(key_heads), HEAD_DIM, D_MODEL, generator=generator, dtype=torch.float64)
    k = torch.randn(max(key_heads) + 1, HEAD_DIM, D_MODEL, generator=generator, dtype=torch.float64)
    return Form(q, k, key_heads)


def measure_pairs(form: Form, interleaved: bool = False, start: int = 0) -> PairStatistics:
    return pair_statistics(form, PAIRS, interleaved=interleaved, start=start)


def pair_places(pair: int, interleaved: bool, start: int) -> list[int]:
    """The two dimensions of a head that turn together."""
    return [start + 2 * pair, start + 2 * pair + 1] if interleaved else [start + pair, start + PAIRS + pair]


def form_matrices(form: Form) -> Tensor:
    """M of each head, [heads, d_model, d_model]."""
    return form.left.mT @ form.right[form.key_heads]


@pytest.mark.parametrize(("interleaved", "start"), PAIRINGS)
@pytest.mark.parametrize("groups", GROUPS)
def test_kernel_and_parts_are_those_of_formed_matrices(groups: str, interleaved: bool, start: int) -> None:
    form = draw_form(groups)
    statistics = measure_pairs(form, interleaved, start)
    kernel = rotary_kernel(statistics, FREQUENCIES, OFFSETS)
    for column, offset in enumerate(OFFSETS):
        angles = offset * FREQUENCIES
        rotated = rotate(form.left, angles.cos(), angles.sin(), interleaved=interleaved, start=start)
        traces = form_matrices(form._replace(left=rotated)).diagonal(dim1=1, dim2=2).sum(1)
        torch.testing.assert_close(kernel[:, column], traces, rtol=0, atol=1e-8)
    for pair in range(PAIRS):
        places = pair_places(pair, interleaved, start)
        parts = form_matrices(Form(form.left[:, places], form.right[:, places], form.key_heads))
        torch.testing.assert_close(statistics.norms[:, pair], parts.norm(dim=(1, 2)), rtol=0, atol=1e-8)


@pytest.mark.parametrize("interleaved", [True, False])
def test_rotations_and_scalings_inside_a_pair_change_nothing_and_those_across_pairs_do(interleaved: bool) -> None:
    form = draw_form()
    before = measure_pairs(form, interleaved)
    angles = torch.tensor([0.3, -1.2, 2.0, 0.9], dtype=torch.float64)
    turned = [rotate(factor, angles.cos(), angles.sin(), interleaved=interleaved) for factor in form[:2]]
    scale = torch.ones(HEAD_DIM, 1, dtype=torch.float64)
    scale[pair_places(1, interleaved, 0)] = 3.0
    after = measure_pairs(Form(turned[0] * scale, turned[1] / scale, form.key_heads), interleaved)
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-8)

    generator = torch.Generator().manual_seed(1)
    orthogonal, _ = torch.linalg.qr(torch.randn(HEAD_DIM, HEAD_DIM, generator=generator, dtype=torch.float64))
    mixed = Form(orthogonal @ form.left, orthogonal @ form.right, form.key_heads)
    across = measure_pairs(mixed, interleaved)
    kernels = [rotary_kernel(statistics, FREQUENCIES, OFFSETS) for statistics in (before, across)]
    at_zero = OFFSETS.index(0)
    torch.testing.assert_close(kernels[0][:, at_zero], kernels[1][:, at_zero])
    assert (kernels[0] - kernels[1]).abs().max() > 1
    assert (before.norms - across.norms).abs().max() > 1


@pytest.mark.parametrize("interleaved", [True, False])
def test_a_head_whose_keys_are_turned_queries_looks_as_far_back_as_they_are_turned(interleaved: bool) -> None:
    """Its kernel is Σ‖q_i‖²·cos ω_i(Δ − 3), largest at Δ = 3; turned the other way, 3 tokens ahead."""
    form = draw_form("MHA")
    for turn in (3, -3):
        angles = turn * FREQUENCIES
        keys = rotate(form.left, angles.cos(), angles.sin(), interleaved=interleaved)
        statistics = measure_pairs(form._replace(right=keys), interleaved)
        kernel = rotary_kernel(statistics, FREQUENCIES, OFFSETS)
        assert [OFFSETS[column] for column in kernel.argmax(1)] == [turn] * 4
        mirrored = rotary_kernel(statistics, -FREQUENCIES, OFFSETS)
        assert [OFFSETS[column] for column in mirrored.argmax(1)] == [-turn] * 4


def test_what_does_not_rotate_is_a_constant_and_counts_in_no_share() -> None:
    still = FREQUENCIES * torch.tensor([1, 1, 1, 0])
    form = draw_form()
    statistics = measure_pairs(form)
    plain = rotary_kernel(statistics, FREQUENCIES, [0, 1])
    shares = fast_share(statistics.norms, still)
    torch.testing.assert_close(shares, statistics.norms[:, 0] / statistics.norms[:, :3].sum(1))
    larger = form.left.clone()
    larger[:, 2 * PAIRS :] *= 10  # what follows the pairs
    other = measure_pairs(form._replace(left=larger))
    torch.testing.assert_close(other.norms, statistics.norms)
    moved = rotary_kernel(other, FREQUENCIES, [0, 1]) - plain
    torch.testing.assert_close(moved[:, 0], moved[:, 1])
    assert moved.abs().min() > 1e-3


@pytest.mark.parametrize(("pairs", "fast"), [(1, 1), (4, 1), (5, 2), (8, 2), (32, 8)])
def test_the_fastest_quarter_is_chosen_by_speed_and_rounded_up(pairs: int, fast: int) -> None:
    frequencies = torch.logspace(0, -3, pairs, dtype=torch.float64) * (-1) ** torch.arange(pairs)
    order = torch.randperm(pairs, generator=torch.Generator().manual_seed(0))
    norms = torch.rand(3, pairs, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = norms[:, :fast].sum(1) / norms.sum(1)
    torch.testing.assert_close(fast_share(norms[:, order], frequencies[order]), expected)


def test_shares_of_nothing_are_missing() -> None:
    for pairs, count in ((4, 1), (5, 2), (8, 2), (9, 3), (12, 3)):  # a quarter, rounded up
        assert fast_share(torch.ones(1, pairs), torch.linspace(1, 2, pairs)).item() == pytest.approx(count / pairs)
    assert fast_share(torch.zeros(1, 4), FREQUENCIES).isnan().all()
    assert fast_share(torch.ones(1, 4), torch.zeros(4)).isnan().all()


def test_the_kernel_of_a_table_is_the_mean_of_the_logits_of_positions() -> None:
    form = draw_form()
    table = torch.randn(30, D_MODEL, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    logits = table @ form_matrices(form) @ table.T
    offsets = [-29, -3, 0, 1, 8, 29]
    kernel, deviation = table_kernel(form, table, offsets)
    for column, offset in enumerate(offsets):
        means = logits.diagonal(-offset, dim1=1, dim2=2).mean(1)
        torch.testing.assert_close(kernel[:, column], means, rtol=0, atol=1e-8)
    torch.testing.assert_close(deviation, logits.std((1, 2), correction=0))
    beyond, _ = table_kernel(form, table[:4], [3, 4, 9, -9])
    assert beyond.isnan().tolist() == [[False, True, True, True]] * 4


def test_the_preference_for_the_previous_token_is_against_its_neighbours() -> None:
    kernel = torch.tensor([[1.0, 5.0, 2.0, 3.0, 100.0], [2.0, 2.0, 2.0, 2.0, 0.0]])
    assert previous_token(kernel, torch.tensor([2.0, 1.0])).tolist() == [1.5, 0.0]
    assert math.isinf(previous_token(kernel, torch.zeros(2))[0].item())
