"""Fixtures of the tests of checkpoints: a Hub on this machine, and clients of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Command
from huggingface_hub import constants, logging
from support.hub_client import reach_hub
from support.hub_server import Hub

from attngeo.checkpoints import remote


@pytest.fixture
def impatient(connected: Command, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """`connected`, with time-outs of half a second, and without the pauses and the log of huggingface_hub."""
    for name in ("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"):
        monkeypatch.setattr(constants, name, 0.5)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    level = logging.get_verbosity()
    logging.set_verbosity_error()  # as HF_HUB_VERBOSITY, which it has read already
    yield connected
    logging.set_verbosity(level)


@pytest.fixture
def here(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The Hub, reached by this process, whose time-outs are a second, and which asks again after a thousandth."""
    reach_hub(hub.url, tmp_path, monkeypatch, HF_HUB_ETAG_TIMEOUT=1, HF_HUB_DOWNLOAD_TIMEOUT=1)
    monkeypatch.setattr(remote, "FIRST_PAUSE", 0.001)
    return hub
