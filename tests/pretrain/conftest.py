"""Fixtures of the tests of training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import datasets
import pytest
from support.hub_server import Hub, serve


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of `datasets` that is empty."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A Hub on this machine, without repositories."""
    with serve() as running:
        yield running
