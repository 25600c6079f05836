"""Fixtures of the tests of training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import datasets
import huggingface_hub
import pytest
from support.hub_client import reach_hub


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of `datasets` that is empty."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture(autouse=True, scope="module")
def _trains_quickly(without_collecting: None) -> None:
    """In all tests of this folder."""


@pytest.fixture
def reach_data_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let this process read data sets of the Hub at an address, as one that starts with it in HF_ENDPOINT."""

    def reach(url: str) -> None:
        reach_hub(url, tmp_path / "home", monkeypatch)
        for name, value in (
            ("HF_ENDPOINT", url),
            ("HUB_DATASETS_URL", url + "/datasets/{repo_id}/resolve/{revision}/{path}"),
            ("HF_HUB_OFFLINE", False),
            ("HF_UPDATE_DOWNLOAD_COUNTS", False),
        ):
            monkeypatch.setattr(datasets.config, name, value)
        monkeypatch.setattr("time.sleep", lambda _: None)  # huggingface_hub waits 23 seconds in all between attempts
        huggingface_hub.HfFileSystem.clear_instance_cache()

    return reach
