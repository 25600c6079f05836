"""Data that may not be shipped with the project: tests that need it skip where it is not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# A folder beside the clone, unless the environment names another.
DATA = Path(os.environ.get("ATTNGEO_DATA", Path(__file__).parents[3] / "shared" / "data"))


def needs(name: str) -> pytest.MarkDecorator:
    """Skip where this file or folder of the data is not there."""
    return pytest.mark.skipif(
        not (DATA / name).exists(),
        reason=f"needs {name} in the folder that ATTNGEO_DATA names, which cannot be shipped",
    )
