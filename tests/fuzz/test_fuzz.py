"""Mutated inputs give the right numbers or an AttnGeoError, within bounds of time and memory."""

from __future__ import annotations

import pytest
from support.fuzz import TARGETS, run_inputs

# Inputs of each target in `make test`, and in `make slow`; the slow ones are different from the others.
FEW, MANY = 20, 2_000


def test_mutated_inputs_are_read_rightly_or_refused() -> None:
    wrong = run_inputs({target: range(FEW) for target in TARGETS}, 300)
    assert not wrong, "\n".join(wrong[:5])


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_thousands_of_mutated_inputs(target: str) -> None:
    wrong = run_inputs({target: range(FEW, FEW + MANY)}, 1800)
    assert not wrong, "\n".join(wrong[:5])
