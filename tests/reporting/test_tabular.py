"""Reports on methods on tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.messages import refuses

from attngeo.errors import UsageError
from attngeo.reporting.recipe import read_recipe
from attngeo.reporting.report import build_report

RECIPE = """
title = "Methods"
[[results]]
name = "tiny"
command = "simulate"
options = { shifts = ["1,0,0.9", "2,0,0.1"], datasets = 2, methods = "lr", rows = 60, classes = 3, features = 3 }
[[section]]
title = "Shift"
figures = [{ kind = "shift", of = "tiny", where = { n_c = 1 } }]
tables = [{ of = "tiny" }, { of = "tiny", show = "methods" }, { of = "tiny", show = "advantage" }]
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    return path


def test_a_report_has_the_rows_the_means_and_a_figure(tmp_path: Path) -> None:
    report = build_report(write(tmp_path, RECIPE), tmp_path / "out")
    assert not report.failures
    rows = pd.read_csv(tmp_path / "out/tables/tiny.csv")
    assert len(rows) == 4
    means = pd.read_csv(tmp_path / "out/tables/tiny-methods.csv")
    assert means["runs"].tolist() == [2, 2]
    assert means["accuracy_mean"].tolist() == pytest.approx(rows.groupby("n_c")["accuracy"].mean().tolist())
    assert (tmp_path / "out/index.html").is_file()


@pytest.mark.parametrize(
    ("old", "new", "facts"),
    [
        ('"1,0,0.9"', '"1,0"', ["shifts", "'1,0'"]),
        ('methods = "lr"', 'methods = "lt"', ["methods", "'lt'", "lr"]),
        ("datasets = 2", "datasets = 0", ["datasets", 0]),
        ("rows = 60", "row = 60", ["row", "rows"]),
        ('kind = "shift"', 'kind = "analogies"', ["'tiny'", "simulate", "analogy"]),
        ('show = "methods"', 'show = "summary"', ["'tiny'", "simulate", "score"]),
    ],
)
def test_a_mistake_in_the_recipe_is_one_line(tmp_path: Path, old: str, new: str, facts: list[Any]) -> None:
    assert old in RECIPE
    with refuses(UsageError, *facts):
        read_recipe(write(tmp_path, RECIPE.replace(old, new)))
