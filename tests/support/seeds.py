"""A plugin of pytest: it seeds the random numbers of each test, and of each example in a docstring.

Tests run in a random order, which `--randomly-seed=N` repeats. The numbers that a test draws do not depend on the
order: they follow from the test's name and `--draw-seed=N`, by default 0. The first lines of a run name both seeds.

Before a whole run, every second worker reads the files of tests from the last to the first. Python and pytest compile
each file that they import for the first time; in one order, workers would compile the same files at the same time.
"""

from __future__ import annotations

import itertools
import os
import random
import zlib
from collections.abc import Generator

import pytest

IS_SECOND = os.environ.get("PYTEST_XDIST_WORKER", "gw0")[-1] in "13579"


def pytest_report_header(config: pytest.Config) -> str:
    return f"Using --draw-seed={config.getoption('draw_seed')}"


def reads_backwards(config: pytest.Config) -> bool:
    return IS_SECOND and config.args == config.getini("testpaths")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if isinstance(collector, pytest.Session | pytest.Directory) and reads_backwards(collector.config):
        report.result.reverse()
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Bring the files back into the order of the other workers, before the tests are shuffled."""
    if reads_backwards(config):
        files = [list(tests) for _, tests in itertools.groupby(items, lambda item: item.getparent(pytest.File))]
        items[:] = itertools.chain.from_iterable(reversed(files))
    return (yield)


@pytest.fixture(autouse=True)
def seed_random_numbers(request: pytest.FixtureRequest) -> None:
    """Seed the generators of Python, numpy and torch."""
    # Not at the top: the process that hands out the tests loads this module, too.
    import numpy as np
    import torch

    seed = zlib.crc32(f"{request.config.getoption('draw_seed')} {request.node.nodeid}".encode())
    random.seed(seed)
    np.random.seed(seed)
    # torch.manual_seed keeps the stack of each call, for a CUDA device that may be used later: a millisecond.
    torch.default_generator.manual_seed(seed)
    if request.node.get_closest_marker("gpu"):
        torch.cuda.manual_seed_all(seed)
