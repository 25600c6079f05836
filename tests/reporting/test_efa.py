"""Reports on exponential family attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.messages import refuses

from attngeo.errors import UsageError
from attngeo.estimators import ExponentialFamilyAttention
from attngeo.reporting.recipe import read_recipe
from attngeo.reporting.report import build_report

pytestmark = pytest.mark.usefixtures("cache")
RECIPE = """
title = "Sequences"
[[results]]
name = "errors"
command = "efa"
experiment = "temperature"
options = { data = "days", model = "fm", n_neighbors = [1, 2], epochs = 1 }
[[results]]
name = "weights"
command = "file"
path = "weights.csv"
[[section]]
title = "Errors"
figures = [
    { kind = "test-errors", of = "errors", published = false },
    { kind = "item-attention", of = "weights", where = { layer = 0 } },
    { kind = "item-vectors", model = "model" },
]
tables = [{ of = "errors", columns = ["model", "metric", "value"], where = { metric = "mse" } }]
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    return path


def write_days(folder: Path) -> None:
    """Three cities in a year of each part of the temperatures."""
    folder.mkdir()
    places = [
        "State,City,Latitude,Longitude",
        "Idaho,Boise,43.6,-116.2",
        "Maine,Caribou,46.9,-68",
        "Texas,Abilene,32.4,-99",
    ]
    (folder / "all_cities_lat_lon.csv").write_text("\n".join(places))
    header = "date,Idaho|Boise,Maine|Caribou,Texas|Abilene"
    for name, month, days in (("october_2007_2019", 10, range(1, 32)), ("sep29_30_2007_2019", 9, (29, 30))):
        lines = [f"{year}-{month:02}-{day:02},{40 + day},{30 + day},{60 - day}" for year in (2007, 2013, 2017)
                 for day in days]  # fmt: skip
        (folder / f"{name}.csv").write_text("\n".join([header, *lines, ""]))


def test_a_report_has_errors_attention_and_vectors(tmp_path: Path) -> None:
    write_days(tmp_path / "days")
    baskets = pd.DataFrame({"sequence": [1, 1, 2, 2], "item": ["tea", "jam", "jam", "rye"]})
    model = ExponentialFamilyAttention(width=4, max_epochs=1, validation_fraction=0).fit(baskets)
    model.save(tmp_path / "model")
    model.attention_weights(baskets).to_csv(tmp_path / "weights.csv", index=False)
    report = build_report(write(tmp_path, RECIPE), tmp_path / "out")
    assert not report.failures
    rows = pd.read_csv(tmp_path / "out/tables/errors-mse.csv")
    assert set(rows["model"]) == {"fm", "ridge-per-city", "day-before"}
    page = (tmp_path / "out/index.html").read_text("utf-8")
    assert "Test errors of exponential family attention, factor models and baselines" in page
    assert "Queries, keys and values of items in each head of the first layer (model)" in page


@pytest.mark.parametrize(
    ("old", "new", "facts"),
    [
        ('"temperature"', '"temprature"', ["experiment", "'temprature'", "did you mean temperature?"]),
        ('model = "fm"', 'model = "atn"', ["model", "'atn'", "fm"]),
        ("epochs = 1", "epoch = 1", ["epoch", "epochs"]),
        ("epochs = 1", 'save = "models"', ["save"]),
        ('of = "errors", published', 'of = "weights", layer = 1, published', ["layer", "test-errors"]),
        ('attention", of = "weights"', 'attention", of = "errors"', ["'errors'", "efa", "file"]),
        (', model = "model" }', " }", ["of", "model"]),
        ('model = "model" }', 'model = "model", of = "weights" }', ["item-vectors", "of"]),
        ('columns = ["model"', 'columns = ["modle"', ["'modle'", "model"]),
    ],
)  # fmt: skip
def test_a_mistake_in_the_recipe_is_one_line(tmp_path: Path, old: str, new: str, facts: list[Any]) -> None:
    assert old in RECIPE
    with refuses(UsageError, *facts):
        read_recipe(write(tmp_path, RECIPE.replace(old, new)))
