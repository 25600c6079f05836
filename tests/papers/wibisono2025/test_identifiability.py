"""Theorem 1: what two parameters with the same distribution have in common."""

from __future__ import annotations

import math
import re

import pytest
import torch

from attngeo.estimators.efa.prediction import draw_sequences
from attngeo.papers.wibisono2025 import identifiability
from attngeo.papers.wibisono2025.identifiability import (
    check_theorem_1_fits,
    check_theorem_1_items,
    check_theorem_1_values,
    compare_models,
    draw_truth,
    fit_items,
    know_all,
    make_part,
    mean_loss,
)


def test_other_parameters_of_the_same_distribution_are_related_and_others_are_not() -> None:
    truth = draw_truth(30, 3, 5, 0)
    same, other = draw_truth(30, 3, 5, 0), draw_truth(30, 3, 5, 1)
    basis = torch.tensor([[1.0, 2.0, 0.0], [0.0, 1.0, -1.0], [1.0, 0.0, 1.0]])
    with torch.no_grad():
        layer = same.attention.layers[0]
        layer.value.weight.copy_(basis @ layer.value.weight)  # type: ignore[union-attr, operator]
        same.center.weight.copy_(same.center.weight @ basis.inverse() + 3)
    items = torch.randint(30, (100, 5), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(*(torch.softmax(model(know_all(items)), -1) for model in (truth, same)))
    assert max(relation.error for relation in compare_models(truth, same, know_all(items))) < 1e-5
    assert max(relation.error for relation in compare_models(truth, other, know_all(items))) > 0.5


def test_the_printed_theorem_fails_where_the_corrected_one_holds() -> None:
    for check in (check_theorem_1_items, check_theorem_1_values):
        found = check(3)
        assert found.worst < 1e-10
        assert found.worst_printed > 0.1


def test_further_starts_go_on_only_if_a_fit_is_not_good_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identifiability, "SCHEDULE", ((2e-2, 2), (1e-2, 20)))
    truth = draw_truth(12, 2, 4, 0)
    items = draw_sequences(make_part(truth), know_all(torch.zeros(1500, 4)), causal=True, sweeps=1, seed=0)
    lowest, first = (fit_items(items, 12, 2, 0, enough=enough, starts=2) for enough in (-1.0, 100.0))
    assert mean_loss(lowest, items) <= mean_loss(first, items) < math.log(12)
    assert mean_loss(truth, items) < math.log(12)


@pytest.mark.explore
def test_two_fits_are_related_and_models_without_training_are_not() -> None:
    found = check_theorem_1_fits(1)
    assert found.worst < 0.01
    untrained = found.computed.split("untrained")[1]
    errors = [1 - float(r2) for pair in re.findall(r"R² (\S+) and (\S+),", untrained) for r2 in pair]
    assert len(errors) == 4
    # Contexts of models without training have in common what follows from the position alone, so R² is not 0.
    assert min(errors) > 0.3
