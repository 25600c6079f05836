"""Fixtures of the tests of checkpoints: a Hub on this machine, and clients of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.hub_client import reach_hub
from support.hub_server import Hub

from attngeo.checkpoints import remote


@pytest.fixture
def impatient(online: dict[str, str]) -> dict[str, str]:
    """The environment of a client whose time-outs are a second."""
    return online | {"HF_HUB_ETAG_TIMEOUT": "1", "HF_HUB_DOWNLOAD_TIMEOUT": "1"}


@pytest.fixture
def here(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The Hub, reached by this process, whose time-outs are a second, and which asks again after a thousandth."""
    reach_hub(hub.url, tmp_path, monkeypatch, HF_HUB_ETAG_TIMEOUT=1, HF_HUB_DOWNLOAD_TIMEOUT=1)
    monkeypatch.setattr(remote, "FIRST_PAUSE", 0.001)
    return hub
