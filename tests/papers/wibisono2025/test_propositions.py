"""Propositions 1 to 3 as statements: the residuals see a wrong parameter, and the printed matrix."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from attngeo.papers.residuals import Residuals
from attngeo.papers.wibisono2025 import propositions
from attngeo.papers.wibisono2025.propositions import check_proposition_1, check_proposition_2, check_proposition_3

CHECKS = {
    "attention_of_items": check_proposition_1,
    "attention_of_places": check_proposition_2,
    "attention_of_values": check_proposition_3,
}


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1])
@pytest.mark.parametrize("check", CHECKS.values())
def test_they_hold_for_any_seed_and_leave_the_random_numbers(check: Callable[[int], Residuals], seed: int) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    assert check(seed).worst < 1e-12
    torch.testing.assert_close(torch.rand(2), expected)


@pytest.mark.parametrize("constructor", CHECKS)
def test_a_wrong_parameter_is_seen(constructor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = getattr(propositions, constructor)

    def wrong(*arguments: object) -> torch.nn.Module:
        model = right(*arguments)
        with torch.no_grad():
            model.attention.layers[0].value.weight.mul_(1.001)
        return model

    monkeypatch.setattr(propositions, constructor, wrong)
    assert CHECKS[constructor](0).worst > 1e-5


def test_the_printed_matrix_of_proposition_3_gives_nothing() -> None:
    found = check_proposition_3(1)
    assert found.printed == pytest.approx([1.0] * 6)
