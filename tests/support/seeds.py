"""A plugin of pytest: it seeds the random numbers of each test, and of each example in a docstring.

Tests run in a random order, which `--randomly-seed=N` repeats. The numbers that a test draws do not depend on the
order: they follow from the test's name and `--draw-seed=N`, by default 0. The first lines of a run name both seeds.
"""

from __future__ import annotations

import random
import zlib

import numpy as np
import pytest
import torch


def pytest_report_header(config: pytest.Config) -> str:
    return f"Using --draw-seed={config.getoption('draw_seed')}"


@pytest.fixture(autouse=True)
def seed_random_numbers(request: pytest.FixtureRequest) -> None:
    """Seed the generators of Python, numpy and torch."""
    seed = zlib.crc32(f"{request.config.getoption('draw_seed')} {request.node.nodeid}".encode())
    random.seed(seed)
    np.random.seed(seed)
    # torch.manual_seed keeps the stack of each call, for a CUDA device that may be used later: a millisecond.
    torch.default_generator.manual_seed(seed)
    if request.node.get_closest_marker("gpu"):
        torch.cuda.manual_seed_all(seed)
