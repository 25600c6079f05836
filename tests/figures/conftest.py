"""Scores that figures are drawn from."""

from __future__ import annotations

import pandas as pd
import pytest

import attngeo


@pytest.fixture(scope="session")
def rows() -> pd.DataFrame:
    """The scores of every layer and head of the three demo models."""
    frames = [attngeo.score(name, per_head=True) for name in ("demo:minilm", "demo:encoder", "demo:decoder")]
    return pd.concat(frames, ignore_index=True)
