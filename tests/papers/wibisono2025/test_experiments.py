"""The paper's experiments: which runs they have, what is kept, and the table beside the published numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.data import DATA, needs, write_table
from support.messages import refuses

from attngeo.errors import DataError, DataUnavailableError, UsageError
from attngeo.estimators import ExponentialFamilyAttention
from attngeo.estimators.efa.vectors import rank_similar
from attngeo.papers.runs import perform_runs
from attngeo.papers.wibisono2025.experiments import (
    build_frame,
    load_split,
    plan_runs,
    published_results,
    rename_items,
)
from attngeo.papers.wibisono2025.options import EXPERIMENT_COLUMNS, SETTINGS, RunOptions
from attngeo.papers.wibisono2025.splits import Split
from attngeo.papers.wibisono2025.synthetic import synthetic_ratings
from attngeo.papers.wibisono2025.temperature import list_sites
from attngeo.progress import Progress
from attngeo.provenance import is_current
from attngeo.session import Session
from attngeo.studies.results import list_entries
from attngeo.studies.run import require_all

pytestmark = pytest.mark.usefixtures("cache")
PLACES = {
    "movielens-sequence": "movielens", "movielens-ratings": "movielens", "instacart": "instacart",
    "temperature": "temperature",
}  # fmt: skip


def write_movielens(folder: Path, users: int = 20) -> None:
    """Ratings of five movies at a time by each user, one a minute."""
    draw = np.random.default_rng(0)
    rows = [(user, 1 + (user + at) % 9, draw.integers(1, 6), 60 * at) for user in range(1, users) for at in range(5)]
    (folder / "u.data").write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))


def write_instacart(folder: Path) -> None:
    """Baskets of ten of twelve products, 30 for training and 10 for the test."""
    for part, orders in {"train": range(30), "test": range(30, 40)}.items():
        rows = [(order, 1 + (order + at) % 12, at + 1) for order in orders for at in range(10)]
        write_table(folder / f"data_{part}_final.csv", ["order_id", "product_id", "rank"], rows)


def write_temperatures(folder: Path, cities: int = 5) -> None:
    """Temperatures of the last days of September and of October, in all years of the paper."""
    draw = np.random.default_rng(0)
    names = [site.city for site in list_sites()[:cities]]
    days = [date(year, 9, 29) + timedelta(days=at) for year in range(2007, 2020) for at in range(33)]
    for month, name in ((9, "sep29_30_2007_2019.csv"), (10, "october_2007_2019.csv")):
        rows = [(day, *draw.uniform(20, 90, cities).round(1)) for day in days if day.month == month]
        write_table(folder / name, ["date", *names], rows)
    places = [(*name.split("|"), 30 + at, -90 - at) for at, name in enumerate(names)]
    write_table(folder / "all_cities_lat_lon.csv", ["State", "City", "Latitude", "Longitude"], places)


WRITERS = {"movielens": write_movielens, "instacart": write_instacart, "temperature": write_temperatures}


@pytest.fixture(autouse=True)
def _few_users(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Synthetic ratings of 400 users: tests are of the runs, not of their numbers."""
    monkeypatch.setattr("attngeo.papers.wibisono2025.datasets.synthetic_ratings", partial(synthetic_ratings, 400))
    load_split.cache_clear()
    yield
    load_split.cache_clear()


def run(experiment: str, **options: Any) -> Any:
    chosen = RunOptions(**options)
    return build_frame(require_all(perform_runs(plan_runs(experiment, chosen))), chosen)


@pytest.mark.parametrize("experiment", SETTINGS)
def test_every_published_number_belongs_to_a_run(experiment: str) -> None:
    runs = plan_runs(experiment, RunOptions(settings="code"))
    planned = {(each.experiment, each.model, each.direction, each.setting) for each in runs}
    results = published_results().query("experiment == @experiment")
    published = {*results[["experiment", "model", "direction", "setting"]].itertuples(index=False, name=None)}
    assert published <= planned


def test_a_table_has_each_model_beside_the_paper_and_the_baselines() -> None:
    quick = RunOptions(epochs=1, model="fm", seeds=2)
    outcomes = perform_runs(plan_runs("synthetic", quick))
    fits = [each for each in outcomes if each.result and each.result[0]["model"] == "fm"]
    efa = [replace(each, result=[row | {"model": "efa"} for row in each.result or ()]) for each in fits]
    for made, layers, is_known in ((efa, 1, False), (efa, 2, True), (fits, 1, True)):  # the paper has two
        frame = build_frame(made, RunOptions(n_layers=layers))
        assert frame.loc[frame["metric"] == "mse", "published"].notna().all() == is_known
    assert build_frame(outcomes, quick)["published"].isna().all()  # another number of epochs than the paper's
    rows = build_frame(outcomes, RunOptions(model="fm", seeds=2))
    assert tuple(rows.columns) == EXPERIMENT_COLUMNS
    mse = rows[rows["metric"] == "mse"]
    assert mse.groupby("model").size().to_dict() == {"bayes": 2, "fm": 4, "mean-per-item": 2}
    paper = mse.drop_duplicates(["model", "direction"]).set_index(["model", "direction"])["published"]
    assert paper["fm"].to_dict() == {"bi": pytest.approx(2.636, abs=1e-3), "uni": pytest.approx(4.519, abs=1e-3)}
    assert paper["bayes"].isna().all()
    seeds = mse[mse["model"] == "fm"].groupby("seed")["value"].mean()
    assert seeds[0] != seeds[1]


def test_what_is_kept_is_not_computed_again_and_the_text_differs_from_the_code() -> None:
    first = run("synthetic", epochs=1, model="fm", settings="code", direction="uni")
    again = plan_runs("synthetic", RunOptions(epochs=1, model="fm", settings="code", direction="uni"))
    outcomes = perform_runs(again)
    assert all("from kept results" in each.notes[0] for each in outcomes)
    assert build_frame(outcomes, RunOptions(epochs=1, settings="code")).equals(first)
    by_text = run("synthetic", epochs=1, model="fm", direction="uni")
    fm = (first["model"] == "fm") & (first["metric"] == "mse")
    assert (first["value"][fm] != by_text["value"][fm]).all()
    entries = list_entries()
    assert len(entries) == 6
    assert all(is_current(entry.about["version"]) for entry in entries)


def test_fitted_models_are_saved_and_a_missing_one_is_fitted_again(tmp_path: Path) -> None:
    options = {"epochs": 1, "direction": "uni", "save": str(tmp_path / "models"), "baselines": False, "model": "fm"}
    rows = run("synthetic", **options)
    folder = tmp_path / "models" / "synthetic-fm-uni-seed-0"
    assert ExponentialFamilyAttention.load(folder).options_.direction == "uni"
    (folder / "model.safetensors").unlink()
    (folder / "config.json").unlink()
    folder.rmdir()
    assert run("synthetic", **options).equals(rows)
    assert ExponentialFamilyAttention.load(folder)
    (folder / "config.json").unlink()  # as after a kill
    run("synthetic", **options)
    assert ExponentialFamilyAttention.load(folder)
    other = options | {"epochs": 2}
    run("synthetic", **other | {"save": None})
    run("synthetic", **other)
    assert ExponentialFamilyAttention.load(folder).options_.max_epochs == 2


def test_saved_models_have_the_names_of_items(tmp_path: Path) -> None:
    """Names that two items would share are left out."""
    write_instacart(tmp_path)
    (tmp_path / "items.csv").write_text("item,name\n1,Limes\n2,Milk\n3,Milk\n99,Unknown\n")
    options = {"epochs": 1, "direction": "bi", "model": "efa", "baselines": False, "data": str(tmp_path)}
    rows = run("instacart", **options, save=str(tmp_path / "models"))
    model = ExponentialFamilyAttention.load(tmp_path / "models" / "instacart-efa-bi-seed-0")
    assert model.items_ == ["Limes", *range(2, 13)]
    frame = pd.DataFrame({"sequence": 0, "position": range(3), "item": ["Limes", 2, 3]})
    assert len(rank_similar(model.model_, model.items_, "Limes", 3)) == 3
    assert model.log_prob(frame.astype({"item": object})).notna().all()
    again = run("instacart", **options | {"data": str(tmp_path)})
    assert again.equals(rows)
    (tmp_path / "items.csv").write_text("product_id,name\n1,Limes\n")
    (other,) = plan_runs("instacart", RunOptions(**options | {"save": str(tmp_path / "others")}))
    steps: list[Progress] = []
    with refuses(DataError, "items.csv"):
        other.perform(Session(progress=steps.append))
    assert steps == []  # the training has not begun


def load_first(experiment: str, data: str | None, published: bool) -> Split:
    """The first 200 sequences of each part, on which a model is trained in seconds; all rows are read."""
    parts = []
    for frame in load_split(experiment, data, published):
        first = frame["sequence"].unique()[:200]
        parts.append(frame[frame["sequence"].isin(first)])
    return Split(*parts)


@pytest.mark.parametrize(
    ("experiment", "write"),
    [
        *((name, WRITERS[place]) for name, place in PLACES.items()),
        *(pytest.param(name, None, marks=[needs(place), pytest.mark.slow]) for name, place in PLACES.items()),
    ],
)
def test_each_experiment_runs_on_its_data(
    experiment: str, write: Callable[[Path], None] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attngeo.papers.wibisono2025.experiments.load_split", load_first)
    folder = tmp_path if write else DATA / PLACES[experiment]
    if write:
        write(folder)
    more = {"n_neighbors": 3} if experiment == "temperature" else {}
    rows = run(experiment, data=str(folder), epochs=1, model="fm", **more)
    assert rows["value"].notna().all()
    assert set(rows["model"]) == {"fm", *SETTINGS[experiment].trivial}


def test_layers_and_earlier_days_are_settings(tmp_path: Path) -> None:
    write_temperatures(tmp_path)
    runs = plan_runs("temperature", RunOptions(model="efa", data=str(tmp_path)))
    names = [each.setting for each in runs if each.model == "efa"]
    assert names == ["1 layer", "2 layers", "4 layers", "4 layers, 1 day", "4 layers, 2 days"]
    runs = plan_runs("temperature", RunOptions(model="efa", n_layers=1, lags=1, epochs=1, baselines=False))
    assert [(each.setting, len(each.options.lags)) for each in runs if each.options] == [("1 layer, 1 day", 1)]


def test_what_cannot_be_run_is_refused(tmp_path: Path) -> None:
    with refuses(UsageError, "experiment is 'books'"):
        plan_runs("books", RunOptions())
    with refuses(UsageError, "n_neighbors is 0"):
        RunOptions(n_neighbors=0)
    with refuses(UsageError, "n_neighbors has no effect on synthetic"):
        plan_runs("synthetic", RunOptions(n_neighbors=3))
    for model, options in {"fm": ["n_layers", "lags"], "efa": ["n_neighbors"]}.items():
        for name in options:
            with refuses(UsageError, f"{name} has no effect on {model}"):
                plan_runs("temperature", RunOptions(model=model, **{name: 1}))
    with refuses(UsageError, "n_layers has no effect on fm"):
        plan_runs("synthetic", RunOptions(model="fm", n_layers=3))
    with refuses(UsageError, "direction is 'uni', expected bi for temperature"):
        plan_runs("temperature", RunOptions(direction="uni"))
    runs = plan_runs("instacart", RunOptions(data=str(tmp_path / "none"), model="fm", direction="bi"))
    assert isinstance(perform_runs(runs)[0].failure, DataUnavailableError)
    with refuses(DataUnavailableError, "none"):
        run("instacart", data=str(tmp_path / "none"))


def test_names_of_items_that_are_no_other_item_replace_them() -> None:
    items = ["bread", "jam", "milk", "tea"]
    assert rename_items(items, {"tea": "Tee", "milk": "Milch", "jam": "Tee"}) == ["bread", "jam", "Milch", "tea"]
    assert rename_items(items, {"tea": "jam", "jam": "milk"}) == items
