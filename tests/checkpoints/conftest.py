"""Fixtures of the tests of checkpoints: a Hub on this machine, and clients of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Command
from support.hub_client import connect, environment_of, reach_hub
from support.hub_server import Hub, serve

from attngeo.checkpoints import remote


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A Hub on this machine, without repositories."""
    with serve() as running:
        yield running


@pytest.fixture
def online(hub: Hub, tmp_path: Path) -> dict[str, str]:
    """The environment of a machine that reaches the server, with a cache of its own."""
    return environment_of(hub.url, tmp_path / "home")


@pytest.fixture
def connected(hub: Hub, inside: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run the command in this process, which reaches the server, with the cache of `online`."""
    return connect(inside, hub.url, tmp_path / "home", monkeypatch)


@pytest.fixture
def impatient(online: dict[str, str]) -> dict[str, str]:
    """The environment of a client whose time-outs are a second."""
    return online | {"HF_HUB_ETAG_TIMEOUT": "1", "HF_HUB_DOWNLOAD_TIMEOUT": "1"}


@pytest.fixture
def here(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The Hub, reached by this process, whose time-outs are a second, and which asks again after a hundredth."""
    reach_hub(hub.url, tmp_path, monkeypatch, HF_HUB_ETAG_TIMEOUT=1, HF_HUB_DOWNLOAD_TIMEOUT=1)
    monkeypatch.setattr(remote, "FIRST_PAUSE", 0.01)
    return hub
