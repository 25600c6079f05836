"""The option --rounding of these tests: without it, products are those of this processor; with it, they are moved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from support.rounding import BITS, SEED, SIGN, STARTUP, move
from torch import Tensor
from torch.nn import functional

# Small integers, of which every processor adds the products exactly.
A, B, C = (torch.arange(64.0).reshape(8, 8).add(shift).remainder(5) + 1 for shift in (0, 1, 2))
BATCH, IMAGE = A.reshape(2, 4, 8), A.reshape(1, 1, 8, 8)


def train_convolution() -> Tensor:
    kernel = torch.ones(1, 1, 2, 2, requires_grad=True)
    functional.conv2d(IMAGE, kernel).sum().backward()
    assert kernel.grad is not None
    return kernel.grad


PRODUCTS: dict[str, Callable[[], Tensor]] = {
    "mm": lambda: A @ B,
    "mm.out": lambda: torch.mm(A, B, out=torch.empty(8, 8)),
    "addmm": lambda: torch.addmm(C, A, B),
    "addmm_": lambda: C.clone().addmm_(A, B),
    "bmm": lambda: BATCH @ BATCH.mT,
    "baddbmm": lambda: torch.baddbmm(torch.ones(2, 4, 4), BATCH, BATCH.mT),
    "mv": lambda: A @ B[0],
    "addmv": lambda: torch.addmv(C[0], A, B[0]),
    "dot": lambda: torch.stack([A[row] @ B[row] for row in range(8)]),
    "linear": lambda: functional.linear(A, B, C[0]),
    "convolution": lambda: functional.conv2d(IMAGE, torch.ones(1, 1, 2, 2)),
    "convolution backward": train_convolution,
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_moved_if_that_is_asked_for(name: str, request: pytest.FixtureRequest) -> None:
    first, again = (PRODUCTS[name]().detach() for _ in range(2))
    assert torch.equal(first, again)
    moved = first != first.round()
    assert moved.any() == (request.config.getoption("rounding") is not None)
    assert torch.allclose(first, first.round(), rtol=1e-6)


@pytest.mark.parametrize("dtype", BITS, ids=str)
def test_a_number_moves_by_few_units_in_the_way_of_a_seed(dtype: torch.dtype) -> None:
    values = torch.randn(4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    one, same, other = (values.clone() for _ in range(3))
    for moved, seed in ((one, 1), (same, 1), (other, 2)):
        move(moved, seed)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    units = one.view(BITS[dtype][0]) - values.view(BITS[dtype][0])
    assert set(units.tolist()) == {-1, 0, 1, 2}
    rest = torch.tensor([0.0, float("inf"), float("-inf")], dtype=dtype)
    kept = rest.clone()
    move(kept, 1)
    assert torch.equal(kept, rest)


def test_a_process_that_is_started_rounds_in_the_same_way(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("rounding") is None:  # nothing tells processes to round
        assert not os.environ.keys() & {SEED, SIGN}
        assert str(STARTUP) not in os.environ.get("PYTHONPATH", "")
        return
    factor = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    code = (
        "import torch; factor = torch.randn(8, 8, generator=torch.Generator().manual_seed(0)); "
        "print((factor @ factor).tolist())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == (factor @ factor).tolist()
