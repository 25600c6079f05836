"""Fixtures of the tests of text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.hub_server import Hub, serve


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A Hub on this machine, without repositories."""
    with serve() as running:
        yield running
