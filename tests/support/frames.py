"""Rows of results that tests draw, summarise and report."""

from __future__ import annotations

import pandas as pd


def one_model(rows: pd.DataFrame, model: str) -> pd.DataFrame:
    """The rows of one model."""
    return rows[rows["model"] == model]
