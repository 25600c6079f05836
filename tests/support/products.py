"""A plugin of pytest: which tests multiply tensors. Only these can fail on another processor alone.

    --rounding 1                    a test that multiplies and is not in tests/products.txt fails
    --rounding 1 --products write   adds it to the list instead
    --products only                 runs the tests of the list

Under --rounding each product of torch puts up a sign, in the process of the test or in one that it starts.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from support import rounding

ROOT = Path(__file__).parents[2]
LIST = ROOT / "tests" / "products.txt"
# A function under @cache.
Cache = type(cache(print))
# Tests with these marks are not in the list.
LEFT_OUT = ("slow", "explore", "gpu")


def name_function(item: pytest.Item) -> str:
    """The test function of an item, without its parameters."""
    return item.nodeid.partition("[")[0]


def read_list() -> set[str]:
    """The test functions that multiply."""
    return set(LIST.read_text("utf-8").splitlines())


class Products:
    """Counts products. One in the setup of a fixture is one of each test that has this fixture."""

    def __init__(self, sign: rounding.Sign, *, writes: bool) -> None:
        self._sign = sign
        self._writes = writes
        self._listed = read_list()
        # Fixtures that several tests share: the node that they belong to, and their names.
        self._shared: set[tuple[str, str]] = set()
        self._caches: list[Any] = []

    def pytest_collection_finish(self) -> None:
        """Find the functions that keep what they return, as a test may get the products of another one from them."""
        for module in list(sys.modules.values()):
            path = Path(getattr(module, "__file__", None) or "")
            if path.is_relative_to(ROOT / "attngeo") or path.is_relative_to(ROOT / "tests"):
                self._caches += [value for value in vars(module).values() if isinstance(value, Cache)]

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        """Remember a fixture that multiplies, as later tests of its scope get what it made."""
        before = self._sign.take_down()
        try:
            value = yield
        finally:
            multiplies = self._sign.take_down()
            if multiplies and fixturedef.scope != "function":
                self._shared.add((fixturedef.baseid, fixturedef.argname))
            if before or multiplies:
                self._sign.put_up()
        if self._writes and isinstance(value, Cache):
            self._caches.append(value)
        return value

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Forget the products of the test before; to write the list, also what was kept of them."""
        self._sign.take_down()
        if self._writes:
            for kept in self._caches:
                kept.cache_clear()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Compare the test with the list."""
        result = yield
        multiplies = self._sign.take_down() or self._takes_products(item)
        function = name_function(item)
        if not multiplies or function in self._listed or any(map(item.get_closest_marker, LEFT_OUT)):
            return result
        if not self._writes:
            pytest.fail(f"{function} multiplies tensors and is not in {LIST.name}: make products adds it")
        self._listed.add(function)
        with LIST.open("a", encoding="utf-8") as file:
            file.write(function + "\n")
        return result

    def _takes_products(self, item: pytest.Item) -> bool:
        """Whether a test gets what a fixture that multiplies made."""
        names = getattr(item, "fixturenames", ())
        return any(name in names and item.nodeid.startswith(node) for node, name in self._shared)


def start(config: pytest.Config, seed: int) -> None:
    """Round products in this process and in those that it starts, and compare the tests that multiply with the list."""
    from support import rounding  # loads torch

    handle, path = tempfile.mkstemp(prefix="products-")
    os.truncate(handle, 1)
    os.close(handle)
    config.add_cleanup(Path(path).unlink)
    os.environ.update(rounding.variables(seed), **{rounding.SIGN: path})
    sign = rounding.Sign(path)
    rounding.start(seed, sign)
    config.pluginmanager.register(Products(sign, writes=config.getoption("products") == "write"))


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave only the tests of the list."""
    listed = read_list()
    left_out = [item for item in items if name_function(item) not in listed]
    items[:] = [item for item in items if name_function(item) in listed]
    config.hook.pytest_deselected(items=left_out)
