"""The page of a large study: its size, and the time until its first figure."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.browser import needs_browser, open_page, start_browser

from attngeo.reporting.report import build_report

MODELS, LAYERS, HEADS = 200, 80, 64
RECIPE = """
title = "200 models"
[[results]]
name = "scores"
command = "file"
path = "scores.parquet"
[[section]]
title = "All"
figures = [
    { kind = "size", of = "scores" }, { kind = "layers", of = "scores" },
    { kind = "heatmap", of = "scores", score = "symmetry" },
    { kind = "heatmap", of = "scores", score = "directionality" },
]
tables = [{ of = "scores", show = "summary" }, { of = "scores" }]
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    random = np.random.default_rng(0)
    layer = np.repeat(np.arange(LAYERS), HEADS + 1)
    head = pd.array(np.tile(np.r_[np.nan, np.arange(HEADS)], LAYERS), dtype="Int64")
    frames = [
        pd.DataFrame({
            "model": f"org/model-{i}", "stack": "decoder", "layer": layer, "head": head, "parameters": 10**8 * (i + 1),
            "symmetry": random.normal(0.1, 0.12, len(layer)).clip(-1, 1),
            "directionality": random.normal(-0.2, 0.25, len(layer)).clip(-1, 1),
        })
        for i in range(MODELS)
    ]  # fmt: skip
    pd.concat(frames).to_parquet(folder / "scores.parquet", index=False)
    (folder / "recipe.toml").write_text(RECIPE)
    return build_report(folder / "recipe.toml", folder / "report").page


@needs_browser
def test_a_page_of_200_models_is_small_and_fast(page: Path, benchmark: Any) -> None:
    """Under 8 MB; the first figure is drawn within 3 seconds."""
    assert page.stat().st_size < 8_000_000
    with start_browser() as browser, open_page(browser, page) as (tab, complaints):

        def loaded() -> float:
            start = time.perf_counter()
            tab.reload()
            tab.wait_for_selector(".chart[data-drawn=yes]")
            return time.perf_counter() - start

        seconds = benchmark.pedantic(loaded, rounds=3, warmup_rounds=1)
        assert complaints == []
    print(f"\npage: {page.stat().st_size / 1e6:.2f} MB, first figure after {seconds:.2f} s")
    assert benchmark.stats.stats.median < 3
