"""Settings of huggingface_hub for one test: of a process that it starts, and of this one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from huggingface_hub.hf_api import api


def environment_of(url: str, home: Path) -> dict[str, str]:
    """The environment of a machine that reaches the Hub at `url`, with a cache of its own in `home`."""
    return {"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}


def reach_hub(url: str, home: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    """Let this process use the Hub at `url`, with a cache and no token in `home`. more: further constants."""
    monkeypatch.setattr(api, "endpoint", url)
    settings = {
        "ENDPOINT": url, "HUGGINGFACE_CO_URL_TEMPLATE": url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(home / "hub"), "HF_TOKEN_PATH": str(home / "token"), "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True, **more,
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setattr(constants, name, value)


def connect(inside: Callable[..., Any], url: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The fixture `inside`, and this process, with the Hub at `url`, as in a process with `environment_of` them."""
    reach_hub(url, home, monkeypatch)
    # A command that fails ends its process at once if threads still wait for a server: here, that of the tests.
    monkeypatch.setattr("attngeo.commands.app._leave", sys.exit)
    return partial(inside, HF_HUB_OFFLINE="0")
