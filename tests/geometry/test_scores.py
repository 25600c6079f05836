"""The two scores: compared with their definitions, and what must not change them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings, strategies as st
from support.dense import dense_directionality, dense_symmetry, form
from support.measure import LargestTensor
from torch import Tensor

from attngeo import directionality, symmetry
from attngeo.errors import ShapeError, UsageError
from attngeo.geometry import forms
from attngeo.geometry.forms import Form, form_statistics, layer_form
from attngeo.geometry.scores import measure_spread
from attngeo.scores.spec import directionality_at_chance, symmetry_at_chance

# (d_model, rank): the Gram form with one block and with several, the tiled form below and above one tile, a vector.
SHAPES = [(96, 8), (1200, 300), (40, 40), (1100, 700), (64, 1)]
# The tiled form with three tiles, of which two are whole.
LARGEST = (2300, 900)


def random_pair(d: int, rank: int, seed: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Factors with a share in common and rows of unequal size, so that neither score is near 0."""
    generator = torch.Generator().manual_seed(seed)
    wq, wk, shared = (torch.randn(d, rank, generator=generator) for _ in range(3))
    sizes = torch.rand(d, 2, generator=generator).square() + 0.05
    wq, wk = (wq + shared) * sizes[:, :1], (wk + 0.7 * shared) * sizes[:, 1:]
    return wq.to(dtype), wk.to(dtype)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    d, rank = draw(st.integers(2, 48)), draw(st.integers(1, 12))
    return random_pair(d, rank, draw(st.integers(0, 10**6)), torch.float64)


@pytest.mark.parametrize(
    ("d", "rank", "dtype"),
    [
        *(
            (*shape, dtype)
            for shape in SHAPES
            for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)
        ),
        pytest.param(*LARGEST, torch.float32, marks=pytest.mark.slow),
    ],
)
def test_factored_forms_agree_with_the_dense_definition(d: int, rank: int, dtype: torch.dtype) -> None:
    wq, wk = random_pair(d, rank, seed=d, dtype=dtype)
    m = form(wq, wk)
    assert symmetry(wq, wk).item() == pytest.approx(dense_symmetry(m), abs=1e-5)
    # The threshold is the same function of the norms in every form.
    for gamma in (2.0, 1.0, 0.0) if d < 1000 else (2.0,):
        for convention in ("corrected", "published"):
            got = directionality(wq, wk, gamma=gamma, convention=convention)  # type: ignore[arg-type]
            assert got.item() == pytest.approx(dense_directionality(m, gamma, convention), abs=1e-5)


@pytest.mark.parametrize("side", [-1, 1])
def test_rounding_moves_no_norm_across_the_threshold(side: int) -> None:
    """γ is set so that a norm misses the threshold by 1e-9 of it: less than float32 can tell, also of the threshold."""
    for seed in range(30):
        wq, wk = random_pair(300, 16, seed)
        m = form(wq, wk)
        norms = np.sort(np.sqrt((m**2).sum(axis=seed % 2)))
        gamma = (norms[-20] * (1 + side * 1e-9) - norms.mean()) / norms.std()
        assert directionality(wq, wk, gamma=gamma).item() == pytest.approx(dense_directionality(m, gamma), abs=1e-5)


@pytest.mark.parametrize(("d", "rank"), [(64, 4), (1100, 150)])
def test_cancelling_factors_are_still_exact(d: int, rank: int) -> None:
    """a·bᵀ − (a + εc)·bᵀ: the sums behind the norm of M are 10⁷ times larger than it, too much for float32."""
    generator = torch.Generator().manual_seed(0)
    a, b, c = (torch.randn(d, rank, generator=generator) for _ in range(3))
    wq, wk = torch.cat([a, a + 1e-3 * c], dim=1), torch.cat([b, -b], dim=1)
    m = form(wq, wk)
    assert symmetry(wq, wk).item() == pytest.approx(dense_symmetry(m), abs=1e-5)
    assert directionality(wq, wk).item() == pytest.approx(dense_directionality(m), abs=1e-5)


@pytest.mark.parametrize("heads", [2, 32])
def test_heads_share_products(heads: int) -> None:
    """A device computes the Gram matrices of all heads at once, and all norms of their rows and of their columns."""
    q, k = torch.ones(heads, 4, 40), torch.ones(heads // 2, 4, 40)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        form_statistics(Form(q, k, [head // 2 for head in range(heads)]))
    counts = {each.key: each.count for each in profile.key_averages()}
    assert counts["aten::bmm"] == 5
    assert "aten::mm" not in counts


def test_one_head_that_cancels_is_exact_beside_others() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b, c, d = (torch.randn(4, 64, generator=generator) for _ in range(4))
    q, k = torch.stack([torch.cat([a, a + 1e-3 * c]), torch.cat([a, d])]), torch.cat([b, -b])[None]
    statistics = form_statistics(Form(q, k, [0, 0]))
    m = (q.mT.double() @ k.double()).float()
    torch.testing.assert_close(statistics.squared_norm, m.square().sum((1, 2)), rtol=1e-5, atol=0)
    torch.testing.assert_close(statistics.row_norms, m.norm(dim=2), rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("d", "rank"), [(96, 8), (100, 30), (40, 20)])  # one block, several blocks, three tiles
def test_heads_of_every_kind_have_their_own_scores(
    d: int, rank: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside each other: ordinary, tiny, huge, cancelling, zero, NaN and infinite ones, with an outlier in some."""
    monkeypatch.setattr(forms, "BLOCK", 8)
    monkeypatch.setattr(forms, "TILE", 16)
    generator = torch.Generator().manual_seed(rank)
    wq, wk = torch.stack([torch.stack(random_pair(d, rank, seed)) for seed in range(8)], 1).to(dtype)
    wq[1] *= 1e-25
    wk[2] *= 1e25
    a, b, c = (torch.randn(d, rank // 2, generator=generator, dtype=dtype) for _ in range(3))
    wq[3] = torch.cat([a, a + 1e-3 * c], dim=1)
    wk[3] = torch.cat([b, -b], dim=1)
    wq[4, d // 2] *= 9
    wq[5], wk[6, 3, 1], wq[7, 0, 0] = 0, math.nan, math.inf
    for score, dense in ((symmetry, dense_symmetry), (directionality, dense_directionality)):
        scores = score(wq, wk)  # type: ignore[operator]
        assert scores.isnan().tolist() == [False] * 5 + [True] * 3
        for head in range(5):
            assert scores[head].item() == pytest.approx(dense(form(wq[head], wk[head])), abs=1e-5)
            alone = score(wq[head], wk[head])  # type: ignore[operator]
            assert scores[head].item() == pytest.approx(alone.item(), abs=1e-6)


@pytest.mark.parametrize("side", [-1, 1])
def test_several_heads_at_once_have_a_norm_near_the_threshold(side: int) -> None:
    """Rows of some heads and columns of others, whose norms are those of the first times a power of two."""
    wq, wk = random_pair(300, 16, 0)
    norms = np.sort(np.linalg.norm(form(wq, wk), axis=1))
    gamma = (norms[-20] * (1 + side * 1e-9) - norms.mean()) / norms.std()
    others = random_pair(300, 16, 1)
    left, right = (torch.stack(factors) for factors in zip((wq, wk), (4 * wq, wk), others, (wk, 2 * wq), strict=True))
    scores = directionality(left, right, gamma=gamma)
    expected = [dense_directionality(form(q, k), gamma) for q, k in zip(left, right, strict=True)]
    assert scores.tolist() == pytest.approx(expected, abs=1e-6)
    assert scores[3].item() == pytest.approx(-scores[0].item(), abs=1e-6)


def test_memory_is_that_of_few_heads() -> None:
    """Products are as large as the factor of one head, if that is large."""
    heads, rank, n = 8, 64, 4096
    q, k = torch.ones(heads, rank, n), torch.ones(1, rank, n)
    with LargestTensor() as largest:
        form_statistics(Form(q, k, [0] * heads))
    assert largest.numbers == rank * n


@given(pairs())
def test_transposing_keeps_symmetry_and_negates_directionality(pair: tuple[Tensor, Tensor]) -> None:
    wq, wk = pair
    assert symmetry(wk, wq).item() == pytest.approx(symmetry(wq, wk).item(), abs=1e-9)
    assert directionality(wk, wq).item() == pytest.approx(-directionality(wq, wk).item(), abs=1e-9)


@given(pairs(), st.floats(-30, 30), st.floats(-30, 30))
def test_scale_changes_nothing(pair: tuple[Tensor, Tensor], log_q: float, log_k: float) -> None:
    """Even if fourth powers of the weights leave the range of float32."""
    wq, wk = (w.float() for w in pair)
    big, small = wq * 10.0**log_q, wk * 10.0**log_k
    assume(all(bool(((w.abs() >= 1e-30) & w.isfinite()).all()) for w in (big, small)))
    assert symmetry(big, small).item() == pytest.approx(symmetry(wq, wk).item(), abs=1e-4)


@given(pairs(), st.integers(0, 10**6))
def test_a_change_of_basis_within_the_head_changes_nothing(pair: tuple[Tensor, Tensor], seed: int) -> None:
    wq, wk = pair
    rank = wq.shape[1]
    basis = torch.eye(rank, dtype=torch.float64) * 2 + torch.rand(
        rank, rank, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    assume(bool(torch.linalg.cond(basis) <= 1e3))
    turned = wq @ basis, wk @ torch.linalg.inv(basis).T
    assert symmetry(*turned).item() == pytest.approx(symmetry(wq, wk).item(), abs=1e-8)
    assert directionality(*turned).item() == pytest.approx(directionality(wq, wk).item(), abs=1e-8)


@given(pairs())
def test_range(pair: tuple[Tensor, Tensor]) -> None:
    assert -1 <= symmetry(*pair).item() <= 1
    assert -1 <= directionality(*pair).item() <= 1
    assert -1 <= directionality(*pair, convention="published").item() <= 1


@given(pairs())
def test_extremes(pair: tuple[Tensor, Tensor]) -> None:
    wq, wk = pair
    assert symmetry(wq, wq).item() == pytest.approx(1, abs=1e-9)
    skew = torch.cat([wq, wk], dim=1), torch.cat([wk, -wq], dim=1)  # Wq·Wkᵀ − Wk·Wqᵀ
    if form(*skew).any():
        assert symmetry(*skew).item() == pytest.approx(-1, abs=1e-9)


def test_sign_of_directionality() -> None:
    """One large key coordinate makes one column of M an outlier: negative, as in a causal model."""
    wq, wk = torch.ones(64, 1), torch.linspace(0, 1, 64).unsqueeze(1)
    wk[3] = 20
    assert directionality(wq, wk) == -1
    assert directionality(wk, wq) == 1


def test_equal_norms_have_no_outlier() -> None:
    eye = torch.eye(12)
    assert directionality(eye, eye).item() == 0
    assert directionality(eye, eye, convention="published").item() == 0


def test_norms_that_differ_by_rounding_are_equal() -> None:
    """Every row and column of an orthogonal matrix has norm 1, give or take an ulp."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        turn, _ = torch.linalg.qr(torch.randn(40, 40, dtype=torch.float64, generator=generator))
        assert directionality(turn, torch.eye(40, dtype=torch.float64)).item() == 0


def test_the_largest_finite_weights_have_scores() -> None:
    wq, wk = torch.full((4, 2), 3e38), torch.ones(4, 2)
    assert symmetry(wq, wk).item() == pytest.approx(1)


@pytest.mark.parametrize("spoil", [0.0, math.nan, math.inf])
def test_zero_and_non_finite_forms_have_no_score(spoil: float) -> None:
    for seed in range(20):  # infinities meet as NaN or stay infinite, by their signs
        generator = torch.Generator().manual_seed(seed)
        wq, wk = torch.randn(2, 3, 16, 4, generator=generator)
        wq[1] *= spoil
        for scores in (symmetry(wq, wk), directionality(wq, wk)):
            assert scores.isnan().tolist() == [False, True, False]


def test_orthogonal_factors_make_a_zero_form() -> None:
    wq, wk = torch.zeros(8, 4), torch.zeros(8, 4)
    wq[:, 0], wk[:, 1] = 1.0, 1.0
    assert symmetry(wq, wk).isnan()
    assert directionality(wq, wk).isnan()


def test_leading_dimensions_broadcast() -> None:
    generator = torch.Generator().manual_seed(0)
    wq, wk = (torch.randn(*size, 20, 4, generator=generator, dtype=torch.float64) for size in ((5, 3), (3,)))
    for score in (symmetry, directionality):
        single = [[score(wq[i, j], wk[j]) for j in range(3)] for i in range(5)]  # type: ignore[operator]
        torch.testing.assert_close(score(wq, wk), torch.tensor(single, dtype=torch.float64))  # type: ignore[operator]


@pytest.mark.parametrize("n", [20, 3])  # the Gram form, with keys that are shared, and the tiled form
@pytest.mark.parametrize("at_once", [1, 3, 4])
@pytest.mark.parametrize("key_head", [[0, 0, 1, 1], [0, 1, 0, 1], [1, 1, 1, 1]])
def test_the_statistics_of_heads_are_those_of_their_forms(
    n: int, at_once: int, key_head: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(n)
    q, k = torch.randn(4, 5, n, generator=generator), torch.randn(2, 5, n, generator=generator)
    monkeypatch.setattr(forms, "CPU_BATCH", at_once * q[0].nbytes)
    statistics = form_statistics(Form(q, k, key_head))
    m = q.mT.double() @ k[key_head].double()
    size = m.norm(dim=(1, 2))
    for found, expected, scale in (
        (statistics.trace, (m * m.mT).sum((1, 2)), size**2),
        (statistics.squared_norm, size**2, size**2),
        (statistics.row_norms, m.norm(dim=2), size[:, None]),
        (statistics.column_norms, m.norm(dim=1), size[:, None]),
    ):
        assert ((found - expected).abs() < 1e-5 * scale).all()


@pytest.mark.parametrize("key_heads", [[0, 0, 1, 1], [0, 1, 2, 3]])
def test_the_factors_of_a_layer_are_those_of_the_sum_over_its_heads(key_heads: list[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(4, 5, 20, generator=generator), torch.randn(max(key_heads) + 1, 5, 20, generator=generator)
    products = [head.double().T @ k[key].double() for head, key in zip(q, key_heads, strict=True)]
    left, right, pairs = layer_form(Form(q, k, key_heads))
    assert left.shape == right.shape == (1, 5 * len(k), 20)
    assert pairs == [0]
    torch.testing.assert_close(left[0].double().T @ right[0].double(), sum(products), rtol=1e-4, atol=1e-4)


@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_inputs_are_left_alone(seed: int) -> None:
    wq, wk = random_pair(30, 4, seed)
    before = wq.clone(), wk.clone()
    symmetry(wq * 1e-30, wk)
    directionality(wq, wk)
    assert torch.equal(wq, before[0])
    assert torch.equal(wk, before[1])


@pytest.mark.parametrize(
    ("wq", "wk", "message"),
    [
        ((8, 4), (8, 3), r"8, 4\].*8, 3\]"),
        ((8, 4), (7, 4), r"8, 4\].*7, 4\]"),
        ((2, 8, 4), (3, 8, 4), r"\[2\].*\[3\].*repeat_interleave"),
        ((4,), (4,), r"wq.*\[4\].*\[\*lead, d_model, head_dim\]"),
        ((0, 4), (0, 4), r"wq.*\[0, 4\]"),
    ],
)
def test_shapes_that_make_no_form_are_refused(wq: tuple[int, ...], wk: tuple[int, ...], message: str) -> None:
    for score in (symmetry, directionality):
        with pytest.raises(ShapeError, match=message):
            score(torch.ones(wq), torch.ones(wk))  # type: ignore[operator]


def test_integers_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"torch\.int64"):
        symmetry(torch.ones(4, 2, dtype=torch.long), torch.ones(4, 2))


def test_arrays_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"wq.*ndarray"):
        symmetry(np.ones((4, 2)), torch.ones(4, 2))  # type: ignore[arg-type]


def test_choices_are_checked() -> None:
    with pytest.raises(UsageError, match=r"gamma.*nan"):
        directionality(torch.ones(4, 2), torch.ones(4, 2), gamma=math.nan)
    with pytest.raises(UsageError, match=r"convention.*printed.*corrected, published"):
        directionality(torch.ones(4, 2), torch.ones(4, 2), convention="printed")  # type: ignore[arg-type]


@pytest.mark.parametrize("rank", [2, 16, 32])
def test_chance_level_of_symmetry_is_that_of_random_factors(rank: int) -> None:
    """At any rank, from 4,000 random forms."""
    n, count = 32, 4000
    generator = torch.Generator().manual_seed(rank)
    wq, wk = (torch.randn(count, n, rank, generator=generator, dtype=torch.float64) for _ in range(2))
    m = wq @ wk.mT
    scores = (m * m.mT).sum((1, 2)) / m.square().sum((1, 2))
    mean, deviation = symmetry_at_chance(n)
    assert scores.mean().item() == pytest.approx(mean, abs=4 * deviation / math.sqrt(count))
    assert scores.std().item() == pytest.approx(deviation, rel=0.06)


@pytest.mark.parametrize("rank", [32, 384])
def test_chance_level_of_directionality_is_that_of_random_factors(rank: int) -> None:
    n, count = 384, 200
    generator = torch.Generator().manual_seed(rank)
    wq, wk = (torch.randn(count, n, rank, generator=generator) for _ in range(2))
    scores, (mean, deviation) = directionality(wq, wk), directionality_at_chance(n)
    assert scores.mean().item() == pytest.approx(mean, abs=4 * deviation / math.sqrt(count))
    assert scores.std().item() == pytest.approx(deviation, rel=0.2)


def test_chance_level_of_directionality_is_that_of_its_definition() -> None:
    """From 1,500 random heads that are half as wide as the stream."""
    n, rank, count = 128, 64, 1500
    generator = torch.Generator().manual_seed(0)
    wq, wk = (torch.randn(count, n, rank, generator=generator) for _ in range(2))
    m = wq @ wk.mT
    sums = []
    for axis in (2, 1):
        norms = m.norm(dim=axis)
        thresholds = norms.mean(1, keepdim=True) + 2 * norms.std(1, correction=0, keepdim=True)
        sums.append(norms.where(norms > thresholds, 0).sum(1))
    rows, columns = sums
    scores = (rows - columns) / (rows + columns)
    assert scores.std().item() == pytest.approx(directionality_at_chance(n).deviation, rel=0.06)


@pytest.mark.parametrize(("n", "rank"), [(512, 8), (512, 64), (128, 128)])
def test_chance_level_of_spreads_is_that_of_random_factors(n: int, rank: int) -> None:
    count = 40
    generator = torch.Generator().manual_seed(rank)
    q, k = (torch.randn(count, rank, n, generator=generator) for _ in range(2))
    statistics = form_statistics(Form(q, k, list(range(count))))
    for norms in (statistics.row_norms, statistics.column_norms):
        spreads = measure_spread(norms)
        assert spreads.mean().item() == pytest.approx((1 / rank + 1 / n) / 2, rel=0.1)


def test_spreads_are_between_those_of_equal_norms_and_of_one() -> None:
    norms = torch.tensor([[3.0, 3.0, 3.0, 3.0], [0.0, 5.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert measure_spread(norms).tolist() == pytest.approx([0, 0.75, math.nan], nan_ok=True)
