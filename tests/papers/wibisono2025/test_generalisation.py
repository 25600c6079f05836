"""The bound of theorem 2 and its terms, and the class of transformers where all losses are known."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st

from attngeo.papers.wibisono2025.generalisation import (
    TransformerClass,
    bound_deviation,
    bound_excess,
    check_theorem_2,
    draw_weights,
    list_sequences,
    measure_loss,
    predict_by_bayes,
    predict_values,
)  # fmt: skip

SHAPE = TransformerClass(
    layers=2, heads=3, hidden=5, place_hidden=4, size=6, coordinates=2, norm=2.0, clip=3.0, largest=0.5
)


def test_the_terms_by_hand() -> None:
    # D = 7: 2·(3·3·49 + 2·7·5) + 4·(6 + 2) = 2·511 + 32; ι = log(2 + 3).
    assert SHAPE.parameters == 1054
    assert SHAPE.iota == pytest.approx(1.6094379124341003)
    root = math.sqrt((43 * 2 * 1054 * 1.6094379124341003 + 2.995732273553991) / 1000)
    assert bound_excess(SHAPE, 1000, 0.05) == pytest.approx(0.25 * root)
    # B_H = 5·(1 + 4·27) = 545, B_Θ = 6·(1 + 18 + 72) = 546; Λ = 2·0.5·3·545²·546.
    scale = 2 * 0.5 * 3 * 545**2 * 546
    assert math.exp(SHAPE.log_lipschitz) == pytest.approx(scale)
    assert math.exp(SHAPE.log_cover) == pytest.approx(4 + 4 * 3 * 545**2 * 546 * 2 / 0.5)
    bound = bound_deviation(SHAPE, 1000, 0.05)
    radius = 0.25 / (2 * scale * math.sqrt(1000))
    assert bound.net == pytest.approx(1054 * math.log(1 + 2 * 2 / radius))
    assert bound.at_points == pytest.approx(0.25 * math.sqrt(2 * (bound.net + math.log(40)) / 1000))
    assert bound.between == pytest.approx(2 * scale * radius)
    assert bound.excess == pytest.approx(2 * (bound.at_points + bound.between))


sizes = st.integers(1, 6)
numbers = st.floats(1e-3, 1e3)
shapes = st.builds(
    TransformerClass, layers=sizes, heads=sizes, hidden=sizes, place_hidden=sizes, size=sizes, coordinates=sizes,
    norm=numbers, clip=numbers, largest=numbers,
)  # fmt: skip


@given(shape=shapes, sequences=st.integers(1, 10**9), failure=st.floats(1e-6, 0.99))
@settings(max_examples=60, deadline=None)
def test_bounds_fall_with_data_and_rise_with_the_class(shape: TransformerClass, sequences: int, failure: float) -> None:
    def values(shape: TransformerClass, sequences: int, failure: float) -> tuple[float, float]:
        return bound_excess(shape, sequences, failure), bound_deviation(shape, sequences, failure).excess

    here = values(shape, sequences, failure)
    assert all(math.isfinite(each) and each > 0 for each in here)
    for more in (values(shape, 2 * sequences, failure), values(shape, sequences, (1 + failure) / 2)):
        assert all(after < before for after, before in zip(more, here, strict=True))
    for name in ("layers", "heads", "hidden", "place_hidden", "size", "coordinates"):
        larger = values(replace(shape, **{name: getattr(shape, name) + 1}), sequences, failure)
        assert all(after > before for after, before in zip(larger, here, strict=True))
    for name in ("norm", "clip"):
        larger = values(replace(shape, **{name: 2 * getattr(shape, name)}), sequences, failure)
        assert all(after >= before for after, before in zip(larger, here, strict=True))


@given(shape=shapes)
@settings(max_examples=60, deadline=None)
def test_the_last_step_of_the_proof(shape: TransformerClass) -> None:
    assert shape.log_cover <= 43 * shape.layers * shape.iota


def test_the_sequences_are_all_and_bayes_rule_is_the_mean_of_those_that_agree() -> None:
    everything = list_sequences(2.0, places=3, wrong=0.2)
    assert len(everything.share) == 64
    assert float(everything.share.sum()) == pytest.approx(1)
    found = predict_by_bayes(everything, wrong=0.2)
    rows = list(zip(everything.places.tolist(), everything.values.tolist(), everything.share.tolist(), strict=True))
    for at, (tau, y, _) in enumerate(rows):
        for i in range(3):
            alike = [(v[i], share) for t, v, share in rows if t == tau and v[:i] + v[i + 1 :] == y[:i] + y[i + 1 :]]
            mean = sum(value * share for value, share in alike) / sum(share for _, share in alike)
            assert float(found[at, i]) == pytest.approx(mean)


def test_a_prediction_does_not_read_its_own_value_and_the_loss_changes_no_faster_than_the_bound() -> None:
    torch.manual_seed(0)
    shape = replace(SHAPE, coordinates=1, largest=1.0)
    everything = list_sequences()
    for _ in range(5):
        weights = draw_weights(shape)
        assert float(weights.norm()) == pytest.approx(shape.norm)
        found = predict_values(weights, everything, shape)
        assert found.abs().max() <= shape.largest
        for i in range(3):
            values = everything.values.clone()
            values[:, i] *= -1
            other = predict_values(weights, everything._replace(values=values), shape)
            torch.testing.assert_close(other[:, i], found[:, i])
    lipschitz = math.exp(shape.log_lipschitz)
    drawn = [draw_weights(shape).scale(torch.rand(1)) for _ in range(6)]
    for first, second in itertools.combinations(drawn, 2):
        apart = type(first)(*(a - b for a, b in zip(first, second, strict=True))).norm()
        losses = [measure_loss(predict_values(each, everything, shape), everything) for each in (first, second)]
        assert abs(float(losses[0] - losses[1])) <= lipschitz * float(apart)


def test_theorem_2_holds_with_few_steps_and_more_data() -> None:
    found = check_theorem_2(1, sequences=5_000_000, steps=3)
    assert len(found.errors) == 3
    assert found.errors[1] < 0.2
    assert found.errors[2] < 1
    assert "Bayes" in found.computed
