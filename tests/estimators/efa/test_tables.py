"""Tables that are unusual: far from 0, of very different lengths, of other kinds of columns; and what has no effect."""

from __future__ import annotations

import itertools
from collections import Counter
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from support.measure import LargestTensor
from support.messages import refuses
from support.sequences import make_efa, measure_fit

from attngeo.errors import (
    CorruptCheckpointError,
    NotEnoughMemoryError,
    TableError,
    TrainingError,
    UnknownColumnError,
    UsageError,
)
from attngeo.estimators import ExponentialFamilyAttention
from attngeo.estimators.efa.columns import TABLE, TRAINING, rank_positions, require_numbers
from attngeo.estimators.efa.covariates import Covariate, read_covariates
from attngeo.estimators.efa.files import fit_own_sequences, predict_file, predict_own_rows, read_basket
from attngeo.estimators.efa.model import PartModel, split_lengths
from attngeo.estimators.efa.networks import Batch
from attngeo.estimators.efa.options import EfaFitOptions
from attngeo.estimators.efa.reading import TableReader
from attngeo.estimators.shared.files import read_own_table
from attngeo.estimators.shared.paths import CONFIG

SMALL: dict[str, Any] = {"width": 4, "max_epochs": 1, "validation_fraction": 0, "learning_rate": 0.01, "device": "cpu"}
ITEMS = ["bread", "jam", "milk", "tea"]


def draw_rows(lengths: list[int], seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    rows = [
        {"sequence": number, "item": draw.choice(ITEMS), "value": draw.normal(), "before": draw.normal(),
         "x": draw.normal(), "y": draw.normal()}
        for number, length in enumerate(lengths) for _ in range(length)
    ]  # fmt: skip
    return pd.DataFrame(rows)


ROWS = draw_rows([2, 3, 4, 2, 3])
# Numbers in single precision that are near 1, of other batches; files have other types of columns.
NEAR: dict[str, Any] = {"check_dtype": False, "check_column_type": False, "rtol": 1e-5, "atol": 1e-5}
KINDS: dict[str, dict[str, Any]] = {
    "items": {"part": "items", "n_layers": 2},
    "items, uni": {"part": "items", "direction": "uni", "n_layers": 2},
    "one layer": {"n_layers": 1},
    "two layers": {"n_layers": 2},
    "three layers": {"n_layers": 3, "norm": True, "feed_forward": 5},
    "earlier values": {"lags": ("before",), "coordinates": ("x", "y"), "n_layers": 2},
    "earlier values, uni": {"lags": ("before",), "direction": "uni", "n_layers": 2},
    "factors": {"model": "fm"},
    "factors of items, uni": {"model": "fm", "part": "items", "direction": "uni"},
}
# One of each part, model, number of layers, direction and kind of earlier value; the slow tests have the others.
QUICK = ("items, uni", "one layer", "three layers", "earlier values", "factors")
EVERY_KIND = [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]


def fit(rows: pd.DataFrame = ROWS, *, size: float = 1, **options: Any) -> ExponentialFamilyAttention:
    """Parameters of the size that keeps numbers near 1, or larger, so that what a position sees matters."""
    model = make_efa(**SMALL | options).fit(rows)
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.model_.network.parameters():
            weight.copy_(size * torch.randn_like(weight) / weight.shape[-1] ** 0.5)
    return model


def batch_of(model: ExponentialFamilyAttention, rows: pd.DataFrame) -> Batch:
    """What the network reads of a table."""
    reader = TableReader(model.options_, model.items_, model.model_.shape)
    return model.model_.batch(reader.read(rows))


@pytest.mark.parametrize("mean", [1e3, 1e5])
def test_normal_densities_far_from_0_are_those_of_scipy(mean: float) -> None:
    rows = ROWS.assign(value=(ROWS["value"] + mean).astype("float32").astype(float))
    model = make_efa(**SMALL | {"family": "gaussian:1", "scale": "head"}).fit(rows)
    expected = stats.norm(model.predict(rows)["predicted_mean"], 1).logpdf(rows["value"])
    np.testing.assert_allclose(model.log_prob(rows), expected, atol=1e-4)


def test_the_best_distribution_without_a_context_is_found_far_from_0() -> None:
    means = {"bread": 5e4, "jam": 9e4, "milk": -2e4, "tea": 0.0}
    rows = pd.concat([ROWS.assign(sequence=ROWS["sequence"] + 10 * k) for k in range(4)], ignore_index=True)
    rows["value"] = rows["item"].map(means) + 2e4 * np.random.default_rng(1).normal(size=len(rows))
    residuals = rows["value"] - rows.groupby("item")["value"].transform("mean")
    model = make_efa(**SMALL).fit(rows)
    expected = stats.norm(0, residuals.std(ddof=0)).logpdf(residuals).mean()
    assert measure_fit(model)["train"].without_context == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_long_sequence_does_not_change_the_numbers_of_the_others(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short sequences are read without its positions; and few at once have the numbers of all at once."""
    long = draw_rows([40]).assign(sequence=9)
    rows = pd.concat([ROWS, long], ignore_index=True)
    model = fit(rows, **KINDS[kind])
    expected = pd.concat([model.log_prob(ROWS), model.log_prob(long)], ignore_index=True)
    np.testing.assert_allclose(model.log_prob(rows), expected, rtol=1e-5, atol=1e-5)
    monkeypatch.setattr("attngeo.estimators.efa.batches.MOST_BATCH_NUMBERS", 1)
    np.testing.assert_allclose(model.log_prob(rows), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_batch_with_a_long_sequence_has_one_loss_and_gradient(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The short ones are computed apart, where padding would be long."""
    rows = pd.concat([ROWS, draw_rows([40]).assign(sequence=9)], ignore_index=True)
    model = make_efa(**SMALL | KINDS[kind]).fit(rows)
    network = model.model_
    batch = batch_of(model, rows)
    found = []
    for padded in (10**6, 0):
        monkeypatch.setattr("attngeo.estimators.efa.model.PADDED", padded)
        assert len([*split_lengths(batch)]) == (1 if padded else 2)
        network.zero_grad()
        loss, count = network(batch)
        loss.backward()
        found.append([loss, count, *(each.grad for each in network.parameters() if each.grad is not None)])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def test_a_long_sequence_does_not_make_all_others_as_long() -> None:
    rows = draw_rows([3] * 700 + [200])
    options = {"part": "items", "n_layers": 1, "direction": "uni", "max_epochs": 1, "batch_size": 100}
    with LargestTensor() as largest:
        model = make_efa(**SMALL | options | {"validation_fraction": 0.2}).fit(rows)
        model.log_prob(rows)
        model.predict(rows)
    assert largest.numbers <= 2 * 200**2  # the weights of the long sequence, of two heads


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_one_position_has_the_numbers_that_it_has_among_all(kind: str) -> None:
    model = fit(**KINDS[kind])
    batch = batch_of(model, ROWS)
    known = batch.known
    every = model.model_.natural(batch)
    for position in range(known.shape[1]):
        rows = known[:, position]
        one = model.model_.natural_at(position, batch)
        torch.testing.assert_close(one[rows], every[rows, position], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model", ["efa", "fm"])
def test_sequences_are_drawn_as_often_as_they_are_probable(model: str) -> None:
    """All sequences of three items: their probabilities sum to 1, and are those of draws: five standard errors."""
    fitted = fit(ROWS.assign(item=ROWS["item"].replace({"milk": "jam", "tea": "bread"})), model=model, part="items",
                 direction="uni", longest=4, size=1.25)  # fmt: skip
    table = pd.DataFrame(itertools.product(["bread", "jam"], repeat=3)).stack().rename("item").reset_index()
    log_prob = fitted.log_prob(table.rename(columns={"level_0": "sequence"}))
    chances = np.exp(log_prob.groupby(table["level_0"]).sum().to_numpy())
    assert chances.sum() == pytest.approx(1, abs=1e-5)
    drawn = fitted.sample(sequences=4000, length=3)
    counts = Counter(tuple(part) for _, part in drawn.groupby("sequence")["item"])
    names = [tuple(part) for _, part in table.groupby("level_0")["item"]]
    found = np.array([counts[name] for name in names]) / 4000
    assert (np.abs(found - chances) <= 5 * np.sqrt(chances * (1 - chances) / 4000)).all()


def test_values_of_earlier_times_are_not_seen_before_their_position() -> None:
    """A sequence may be a series in time, whose next row has this value as that of the time before."""
    rows = ROWS.sort_values("sequence", ignore_index=True)
    rows["before"] = rows.groupby("sequence")["value"].shift(1).fillna(0)
    model = fit(rows, lags=("before",), direction="uni", n_layers=3)
    last = rows.groupby("sequence").tail(1).index
    changed = rows.copy()
    changed.loc[last, "before"] += 5
    kept = rows.index.difference(last)
    pd.testing.assert_series_equal(model.log_prob(changed)[kept], model.log_prob(rows)[kept])
    assert not np.allclose(model.log_prob(changed)[last], model.log_prob(rows)[last], atol=1e-3)
    weights = model.attention_weights(rows)
    assert (weights["attended_position"] <= weights["position"]).all()
    assert weights["lag"].max() == 1


def test_items_of_another_kind_of_column_are_found() -> None:
    """The kind of a column of a text file depends on all of its cells."""
    model = fit(ROWS.assign(item=ROWS["item"].replace({"bread": "8", "jam": "7"})))
    only = pd.DataFrame({"sequence": 1, "item": [8, 7], "value": [0.5, 1.0]})
    assert model.log_prob(only).equals(model.log_prob(only.assign(item=["8", "7"])))
    with refuses(TableError, "row 2: column 'item': 9"):
        model.log_prob(only.assign(item=[8, 9]))


def test_items_with_commas_and_positions_are_read_as_a_basket() -> None:
    rows = ROWS.assign(item=ROWS["item"].replace({"jam": "Boise, Idaho"}), rank=range(len(ROWS)))
    model = fit(rows, part="items", position="rank")
    basket = read_basket(model, '"Boise, Idaho", tea,milk')
    assert basket["item"].tolist() == ["Boise, Idaho", "tea", "milk"]
    assert len(model.log_prob(basket)) == 3


def test_a_missing_time_is_no_number() -> None:
    times = pd.Series(pd.date_range("2020-01-01", periods=len(ROWS)))
    times[3] = pd.NaT
    with refuses(TableError, "row 4: column 'when'"):
        fit(ROWS.assign(when=times), position="when")


@pytest.mark.parametrize("kind", ["text", "days of Parquet", "times", "any year", "huge", "huge texts"])
def test_positions_are_dates_or_numbers_of_any_size(kind: str) -> None:
    numbers = np.random.default_rng(0).permutation(len(ROWS))
    days = pd.Timestamp("1999-12-30") + pd.to_timedelta(numbers, unit="D")
    when: dict[str, Any] = {
        "text": days.strftime("%Y-%m-%d"), "days of Parquet": days.date, "times": days,
        "any year": [f"{1000 + 600 * number}-12-31" for number in numbers],
        "huge": np.uint64(2**63) + numbers.astype(np.uint64), "huge texts": [str(2**60 + number) for number in numbers],
    }  # fmt: skip
    model = fit(part="items", direction="uni", position="when", short="keep", rows=ROWS.assign(when=when[kind]))
    plain = model.log_prob(ROWS.assign(when=numbers))
    pd.testing.assert_series_equal(model.log_prob(ROWS.assign(when=when[kind])), plain)
    twice = ROWS.assign(when=when[kind]).pipe(lambda rows: rows.assign(when=rows.loc[0, "when"]))
    with refuses(TableError, "row 2", "when", "twice"):
        model.log_prob(twice)


def test_positions_of_training_are_required_where_order_matters() -> None:
    rows = ROWS.assign(position=range(len(ROWS)))
    model = fit(rows, part="items")
    with refuses(TableError, "position", "as in training"):
        model.log_prob(ROWS)
    assert model.options_.position is None
    for options in ({"order": False}, {"model": "fm"}):
        unordered = fit(rows, part="items", **options)
        np.testing.assert_allclose(unordered.log_prob(ROWS), unordered.log_prob(rows))


@pytest.mark.parametrize("bad", ["unknown", "01/02/2024"])
def test_a_position_that_is_no_date_is_named(bad: str) -> None:
    days = [f"2024-02-{day:02d}" for day in range(1, len(ROWS) + 1)]
    rows = ROWS.assign(when=[*days[:2], bad, *days[3:]])
    with refuses(TableError, "row 3", f"'{bad}'", "2020-01-31"):
        fit(rows, position="when")


@pytest.mark.parametrize("options", [{"position": "when"}, {"covariates": {"when": "time"}}])
def test_a_whole_number_that_no_float_has_is_named(options: dict[str, Any]) -> None:
    when: list[Any] = [*range(len(ROWS))]
    when[3] = 10**400
    with refuses(TableError, "row 4: column 'when'", "expected a finite number"):
        fit(ROWS.assign(when=pd.Series(when, dtype=object)), **options)


def test_columns_that_give_the_answer_away_are_refused() -> None:
    for name in ("lags", "coordinates"):
        with refuses(UsageError, name, "'value'"):
            fit(**{name: "value"})


def test_items_that_are_lists_are_refused() -> None:
    with refuses(TableError, "'item'", "list"):
        fit(ROWS.assign(item=[["a"]] * len(ROWS)))


@pytest.mark.parametrize("options", [{"seed": -1}, {"sweeps": 0}])
def test_bad_options_of_samples_are_refused(options: dict[str, int]) -> None:
    with refuses(UsageError, *options):
        fit(part="items").sample(**options)


def test_places_in_single_precision_are_the_same_places() -> None:
    rows = draw_rows([3, 3, 3])
    rows[["x", "y"]] = np.tile(np.random.default_rng(0).uniform(20, 120, (3, 2)), (3, 1))
    model = fit(rows, model="fm", item_vectors=False, coordinates=("x", "y"), distance="euclidean")
    single = rows.astype({"x": "float32", "y": "float32"})
    np.testing.assert_allclose(model.log_prob(single), model.log_prob(rows), rtol=1e-5, atol=1e-5)
    holes = rows.assign(value=rows["value"].where(rows.index != 4))
    found = predict_own_rows(model, holes)
    assert found["predicted_mean"].isna().tolist() == [each in (3, 5) for each in range(9)]  # they would need row 4
    assert found["log_prob"].isna().tolist() == [each in (3, 4, 5) for each in range(9)]
    own = model.predict(rows)["predicted_mean"]  # no value is predicted from itself
    np.testing.assert_allclose(found["predicted_mean"][4], own[4], rtol=1e-5, atol=1e-5)
    with refuses(TableError, "sequence 1", "2 missing", "efa"):
        model.predict(rows.assign(value=rows["value"].where(~rows.index.isin([3, 4]))))


def test_latitude_and_longitude_are_degrees_in_this_order() -> None:
    rows = draw_rows([3, 3, 3])
    rows["north"], rows["east"] = np.tile([40.0, 41.0, 45.0], 3), np.tile([-120.0, 200.0, -80.0], 3)
    options: dict[str, Any] = {"model": "fm", "item_vectors": False}
    assert fit(rows, coordinates=("north", "east"), **options).part_ == "values"
    with refuses(TableError, "latitude 200", "expected -90 to 90 degrees", "euclidean"):
        fit(rows, coordinates=("east", "north"), **options)


def test_whole_items_stay_whole_if_one_is_missing() -> None:
    rows = ROWS.assign(item=ROWS["item"].map(ITEMS.index) + 100)
    holes = rows.assign(item=rows["item"].where(rows.index != 4))
    found = predict_own_rows(fit(rows, part="items"), holes)
    assert found["item"].dtype == "Int64"
    assert found["item"].drop(4).tolist() == rows["item"].drop(4).tolist()
    assert found["predicted_item"].isin([100, 101, 102, 103]).all()
    assert found["predicted_item"].dtype.kind == "i"
    large = fit(rows.assign(item=rows["item"] + 2**53 + 1), part="items", short="keep")
    found = large.predict(rows.assign(item=(rows["item"] + 2**53 + 1).astype("Int64").where(rows.index != 4)))
    assert found["predicted_item"].isin(large.items_).all()


def test_more_rows_may_be_asked_for_than_a_sequence_has_positions() -> None:
    rows = pd.DataFrame({"sequence": np.repeat(range(4), 3), "item": ["a", "b", "c"] * 4, "value": np.arange(12.0)})
    asked = pd.DataFrame({"sequence": 9, "item": list("abcab"), "value": [1.0, 2.0, None, None, None]})
    model = fit(rows)
    found = model.predict(asked)["predicted_mean"]
    for row in (2, 3, 4):
        own = model.predict(asked.iloc[[0, 1, row]])["predicted_mean"]
        assert found[row] == pytest.approx(own[row], rel=1e-5, abs=1e-5)
    unseen = asked.assign(item=list("abcad"))
    with refuses(TableError, "row 5", "'d'"):
        model.predict(unseen)


def test_items_of_several_files_are_of_one_kind(tmp_path: Path) -> None:
    """A product 01 is no text in one file and a number in another, whatever else the files have."""
    for name, items in {"train": ["01", "12", "13"], "other": ["13", "12", "12"]}.items():
        pd.DataFrame({"sequence": [1, 1, 1], "item": items}).to_csv(tmp_path / f"{name}.csv", index=False)
    for first, second in (("train", "other"), ("other", "train")):
        validation = str(tmp_path / f"{second}.csv")
        options = EfaFitOptions(**SMALL | {"validation": validation})
        fit_own_sequences(str(tmp_path / f"{first}.csv"), options.replace(save=str(tmp_path / "m")))
        items = ExponentialFamilyAttention.load(tmp_path / "m").items_
        assert len({str(item).zfill(2) for item in items}) == len(items)
        assert predict_file(tmp_path / "m", validation)["log_prob"].notna().all()


def test_errors_of_a_fit_name_the_file(tmp_path: Path) -> None:
    good, bad = str(tmp_path / "good.csv"), str(tmp_path / "bad.csv")
    ROWS.to_csv(good, index=False)
    ROWS.assign(item=[None, *ROWS["item"][1:]]).to_csv(bad, index=False)
    for train, more in ((bad, {}), (good, {"validation": bad}), (good, {"test": bad})):
        with refuses(TableError, f"{bad}: row 1: column 'item'"):
            fit_own_sequences(train, EfaFitOptions(**SMALL | {"part": "items"} | more))


@pytest.mark.parametrize("residual", [True, False])
def test_half_precision_trains_copies_of_both_directions(residual: bool) -> None:
    for more in ({}, {"norm": True, "feed_forward": 4, "join": 6, "order": False}):
        model = make_efa(**SMALL | {"precision": "bf16", "residual": residual, "n_layers": 3} | more)
        assert np.isfinite(model.fit(ROWS).score(ROWS))


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"model": "fm", "lags": ("before",)}, ["lags", "factor model"]),
        ({"model": "fm", "coordinates": ("x", "y")}, ["coordinates", "item_vectors"]),
        ({"model": "fm", "n_layers": 5}, ["n_layers", "factor model"]),
        ({"n_neighbors": 2}, ["n_neighbors", "attention"]),
        ({"model": "fm", "distance": "euclidean"}, ["distance", "factor model of items"]),
        ({"distance": "euclidean"}, ["distance", "attention"]),
        ({"part": "items", "lags": ("before",)}, ["lags", "items"]),
        ({"part": "items", "family": "poisson"}, ["poisson", "items"]),
    ],
)
def test_options_that_would_change_nothing_are_refused(options: dict[str, Any], facts: list[str]) -> None:
    with refuses(UsageError, *facts):
        fit(**options)


def test_a_model_that_is_not_fitted_says_so() -> None:
    model = ExponentialFamilyAttention()
    asked = [
        lambda: model.part_, model.embeddings, model.sample, model.measure_columns, lambda: model.save("none"),
        lambda: model.predict_proba(ROWS), lambda: model.score(ROWS),
    ]  # fmt: skip
    for ask in asked:
        with refuses(UsageError, "fit"):
            ask()


def test_a_file_of_huge_sizes_is_refused_before_its_memory_is_taken(tmp_path: Path) -> None:
    fit(part="items", order=True, n_layers=2).save(tmp_path / "m")
    config = (tmp_path / "m" / CONFIG).read_text()
    for old, new in (('"n_layers": 2', '"n_layers": 99999999'), ('"longest": 4', '"longest": 99999999999')):
        assert old in config
        (tmp_path / "m" / CONFIG).write_text(config.replace(old, new))
        with refuses(CorruptCheckpointError, tmp_path / "m"):
            ExponentialFamilyAttention.load(tmp_path / "m")


def test_a_model_is_saved_before_it_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise TableError("the table is gone")

    ROWS.to_csv(tmp_path / "train.csv", index=False)
    monkeypatch.setattr(ExponentialFamilyAttention, "measure_columns", fail)
    with refuses(TableError, "gone"):
        fit_own_sequences(str(tmp_path / "train.csv"), EfaFitOptions(**SMALL, save=str(tmp_path / "m")))
    assert ExponentialFamilyAttention.load(tmp_path / "m").items_ == sorted(ROWS["item"].unique())


def test_a_test_table_that_cannot_be_used_is_refused_before_the_training(tmp_path: Path) -> None:
    ROWS.to_csv(tmp_path / "train.csv", index=False)
    ROWS.assign(item="coffee").to_csv(tmp_path / "test.csv", index=False)
    options = EfaFitOptions(**SMALL | {"test": str(tmp_path / "test.csv")})
    said: list[object] = []
    with refuses(TableError, "test.csv", "row 1", "coffee"):
        fit_own_sequences(str(tmp_path / "train.csv"), options.replace(save=str(tmp_path / "m")), said.append)
    assert said == []
    assert not (tmp_path / "m").exists()


def test_items_that_cannot_be_saved_are_refused_before_the_training(tmp_path: Path) -> None:
    rows = ROWS.assign(item=pd.to_datetime("2020-01-01") + pd.to_timedelta(range(len(ROWS)), unit="D"))
    rows.to_parquet(tmp_path / "rows.parquet")
    said: list[object] = []
    with refuses(TableError, "Timestamp", "strings or numbers"):
        fit_own_sequences(str(tmp_path / "rows.parquet"), EfaFitOptions(**SMALL, save=str(tmp_path / "m")), said.append)
    assert said == []


def test_cells_that_have_no_column_are_refused_and_an_index_is_a_column(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("sequence,item\n1,Limes, fresh\n1,Tea\n")
    with refuses(TableError, "rows.csv", "more cells"):
        read_own_table(tmp_path / "rows.csv")
    ROWS.set_index("sequence").to_parquet(tmp_path / "rows.parquet")
    assert read_own_table(tmp_path / "rows.parquet").equals(ROWS)


def at_places(model: ExponentialFamilyAttention, places: list[int]) -> ExponentialFamilyAttention:
    """A copy whose first positions have the vectors of these ones."""
    moved = deepcopy(model)
    vectors = dict(moved.model_.network.named_parameters()).get("position.weight")
    if vectors is not None:
        vectors.data[: len(places)] = vectors.data[places].clone()
    return moved


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_what_is_missing_is_predicted_from_what_is_there(kind: str) -> None:
    """As without the other missing rows, where rows have the position vectors of their places in the whole table."""
    model = fit(**KINDS[kind])
    column = "item" if "items" in kind else "value"
    rows = ROWS.copy().set_index(np.arange(len(ROWS)) * 7)
    gaps = [3, 5, 6]  # one between others, and the first two of the next sequence
    rows.iloc[gaps, rows.columns.get_loc(column)] = np.nan
    found, filled = model.predict(rows), predict_own_rows(model, rows)
    assert found.index.equals(rows.index)
    assert found.notna().all(axis=None)
    places, there = rows.groupby("sequence").cumcount(), rows[column].notna()
    for gap in gaps:
        asked = rows.index == rows.index[gap]
        others = (rows["sequence"] == rows["sequence"].iloc[gap]) & (there | asked)
        moved = at_places(model, places[others].tolist())
        for other in ("tea", "jam") if column == "item" else (0.0, 9.0):
            expected = moved.predict(rows[others].fillna({column: other})).loc[rows.index[asked]]
            pd.testing.assert_frame_equal(found[asked], expected, rtol=1e-5, atol=1e-5)
    for _, own in rows[there].groupby("sequence"):
        moved = at_places(model, places[own.index].tolist())
        pd.testing.assert_frame_equal(found.loc[own.index], moved.predict(own), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(filled["log_prob"][own.index], moved.log_prob(own), rtol=1e-5, atol=1e-5)
    assert filled["log_prob"].isna().tolist() == rows[column].isna().tolist()
    if column == "item":
        assert model.predict_proba(rows).sum(axis=1).to_numpy() == pytest.approx(1)


@pytest.mark.parametrize("direction", ["bi", "uni"])
def test_rows_that_are_asked_for_keep_their_position_or_share_one(direction: str) -> None:
    model = fit(ROWS.assign(position=range(len(ROWS))), direction=direction)
    asked = pd.DataFrame(
        {
            "sequence": 1,
            "position": [7, 5, 1, 9, 9],
            "item": [*ITEMS, "jam"],
            "value": [None, 2.0, 1.0, None, None],
        }
    )
    found = model.predict(asked)["predicted_mean"]
    for row, places in ((0, [0, 1, 2]), (3, [0, 1, 3]), (4, [0, 1, 3])):
        own = asked.iloc[[2, 1, row]].fillna({"value": 5.0})
        assert found[row] == pytest.approx(at_places(model, places).predict(own)["predicted_mean"][row], abs=1e-5)
    assert found[3] != pytest.approx(found[4], abs=1e-3)
    with refuses(TableError, "row 3", "twice"):
        model.predict(asked.assign(position=[7, 5, 7, 9, 9]))
    with refuses(TableError, "sequence 1 has 5 positions", "at most 4", "share a position"):
        model.predict(asked.assign(position=[7, 5, 1, 9, 10]))


def test_rows_with_others_missing_are_checked_as_all_are() -> None:
    rows = ROWS.assign(value=np.arange(len(ROWS)) % 3)
    model = fit(rows, family="poisson", direction="uni")
    for values in ([-3, None], [-3, None, 1]):
        asked = pd.DataFrame({"sequence": 1, "item": "tea", "value": values})
        with refuses(TableError, "row 1: column 'value': -3"):
            model.predict(asked)
        with refuses(TableError, "row 1: column 'value': -3"):
            predict_own_rows(model, asked)
    nameless = rows.assign(sequence=rows["sequence"].where(rows.index != 1), value=rows["value"].where(rows.index != 1))
    for options in ({"direction": "uni"}, {"direction": "bi"}):
        with refuses(TableError, "row 2: column 'sequence'"):
            fit(rows, **options).predict(nameless)


def test_a_factor_model_of_counts_starts_with_probable_ones() -> None:
    rows = ROWS.assign(value=np.random.default_rng(0).poisson(3, len(ROWS)).astype(float))
    model = make_efa(**SMALL | {"family": "poisson", "model": "fm", "width": 32}).fit(rows)
    assert model.score(rows) > -20


def test_items_that_no_training_row_has_count_once_without_a_context() -> None:
    """An item of validation rows only."""
    train = pd.DataFrame({"sequence": [1, 1, 2, 2], "item": ["tea", "tea", "tea", "jam"]})
    other = train.assign(item=["jam", "milk", "tea", "milk"])
    model = make_efa(**SMALL | {"part": "items"}).fit(train, validation=other)
    chances = {"tea": 4 / 7, "jam": 2 / 7, "milk": 1 / 7}
    expected = np.log([chances[item] for item in other["item"]]).mean()
    assert measure_fit(model)["validation"].without_context == pytest.approx(expected)


@pytest.mark.parametrize("direction", ["bi", "uni"])
def test_items_that_do_not_come_again_are_known_without_repeats(direction: str) -> None:
    """Each item of the context is left out, and the other frequencies are divided by their sum."""
    train = pd.DataFrame({"sequence": [1, 1, 1, 2, 2], "item": ["tea", "jam", "milk", "tea", "bread"]})
    shown = pd.DataFrame({"sequence": [1, 1, 2, 2, 2], "item": ["jam", "tea", "bread", "milk", "jam"]})
    repeated = shown.assign(item="tea")
    model = make_efa(**SMALL | {"part": "items", "direction": direction}, repeats=True)
    model.fit(train, validation=shown, test=repeated)
    counts = {item: 1 + int((train["item"] == item).sum()) for item in ITEMS}
    expected = []
    for _, part in shown.groupby("sequence"):
        items = part["item"].tolist()
        for at, item in enumerate(items):
            context = items[:at] if direction == "uni" else items[:at] + items[at + 1 :]
            left = [counts[each] for each in ITEMS if each not in context]
            expected.append(np.log(counts[item] / sum(left)))
    measured = measure_fit(model)
    assert measured["validation"].without_repeats == pytest.approx(np.mean(expected))
    assert np.isnan(measured["test"].without_repeats)
    values = make_efa(**SMALL).fit(ROWS)
    assert np.isnan(measure_fit(values)["train"].without_repeats)


def test_the_table_that_lacks_an_item_is_named() -> None:
    with refuses(TableError, "the validation table: row 2: column 'item'"):
        make_efa(**SMALL | {"part": "items"}).fit(ROWS, validation=ROWS.assign(item=["tea", None, *ROWS["item"][2:]]))


def test_a_basket_of_many_items_is_not_taken_for_a_file() -> None:
    model = fit(part="items")
    assert len(read_basket(model, ",".join(["tea"] * 100))) == 100
    with refuses(UsageError, "item is '~tea'"):
        read_basket(model, "~tea,milk")


@pytest.mark.parametrize("part", ["values", "both"])
def test_items_alone_are_no_basket_of_a_model_of_values(part: str) -> None:
    """A saved model of both has one of its items beside it."""
    with refuses(UsageError, "'tea,milk' has no values", ".csv") as caught:
        read_basket(make_efa(**SMALL | {"part": part}).fit(ROWS), "tea,milk")
    assert ('give the subfolder "items" of the model' in str(caught.value)) is (part == "both")


def test_a_column_has_one_role() -> None:
    names = ROWS[["sequence", "item"]].rename(columns={"item": "value"})
    assert fit(names, item="value").part_ == "items"
    for options, facts in (
        ({"item": "value", "part": "values"}, ("item is 'value'", "predicted")),
        ({"position": "value"}, ("position is 'value'", "predicted")),
        ({"position": "item", "part": "items"}, ("position is 'item'", "predicted")),
        ({"item": "sequence"}, ("sequence is 'sequence'", "another option")),
        ({"coordinates": ("x", "y", "x")}, ("coordinates", "twice", "x")),
    ):
        with refuses(UsageError, *facts):
            fit(**options)


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"value": "valeu"}, ["'valeu'", "did you mean value?"]),
        ({"value": "price", "family": "poisson"}, ["'price'", "name the columns"]),
        ({"item": "itme", "coordinates": ("x", "y"), "n_layers": 2}, ["'itme'", "did you mean item?"]),
        ({"position": "posn"}, ["'posn'"]),
    ],
)
def test_a_column_that_is_named_and_missing_is_not_done_without(options: dict[str, Any], facts: list[str]) -> None:
    with refuses(UnknownColumnError, "no column", *facts):
        fit(**options)


def test_a_column_called_position_may_say_anything_where_no_order_matters() -> None:
    for options in ({"order": False, "part": "items"}, {"model": "fm"}):
        for position in ("manager", 1):
            rows = ROWS.assign(position=position)
            np.testing.assert_array_equal(fit(rows, **options).log_prob(rows), fit(**options).log_prob(ROWS))
    with refuses(TableError, "row 1", "'manager'", "position"):
        fit(ROWS.assign(position="manager"))


def test_items_that_a_model_does_not_use_may_be_of_any_kind(tmp_path: Path) -> None:
    rows = ROWS.assign(item=pd.Timestamp("2020-01-01"))
    rows.to_parquet(tmp_path / "rows.parquet")
    options = EfaFitOptions(**SMALL, item_vectors=False, coordinates=("x", "y"))
    fit_own_sequences(str(tmp_path / "rows.parquet"), options.replace(save=str(tmp_path / "model")))
    assert ExponentialFamilyAttention.load(tmp_path / "model").items_ == []


def test_periods_are_positions_but_no_values_and_complex_numbers_are_neither() -> None:
    periods = pd.period_range("2020-01", periods=len(ROWS), freq="M")
    complex_ones = ROWS["value"] + 1j
    plain = fit(ROWS.assign(position=range(len(ROWS))))
    dated = plain.log_prob(ROWS.assign(position=periods))
    np.testing.assert_array_equal(dated, plain.log_prob(ROWS.assign(position=range(len(ROWS)))))
    for column, values, fact in (
        ("value", periods, "dates"), ("value", complex_ones, "complex"), ("position", complex_ones, "complex"),
    ):  # fmt: skip
        with refuses(TableError, f"column '{column}'", fact):
            fit(ROWS.assign(**{column: values}))


def test_drawn_sequences_are_as_long_as_the_longest_that_trained(tmp_path: Path) -> None:
    model = fit(part="items", longest=50)
    model.save(tmp_path / "model")
    for each in (model, ExponentialFamilyAttention.load(tmp_path / "model")):
        assert len(each.sample()) == 4
        assert len(each.sample(length=6)) == 6


def test_rows_that_are_left_alone_are_read_if_the_model_reads_such() -> None:
    asked = pd.DataFrame({"sequence": [1, 1, 2, 2, 3], "item": ["milk", None, "tea", "jam", None]})
    assert fit(part="items", short="keep").predict(asked)["probability"].notna().all()
    model = fit(part="items")
    with refuses(TableError, "sequence 3", "no row with item", "keep"):
        model.predict(asked)
    alone = predict_own_rows(model, asked.drop(4))
    assert alone["probability"].notna().tolist() == [False, True, True, True]
    assert alone["log_prob"].notna().tolist() == [False, False, True, True]
    assert predict_own_rows(fit(part="items", short="keep"), asked.set_axis([0] * 5))["probability"].notna().all()


@pytest.mark.parametrize("column", ["sequence", "item"])
def test_columns_of_lists_are_refused(column: str, tmp_path: Path) -> None:
    rows = ROWS.assign(**{column: [[1]] * len(ROWS)})
    rows.to_parquet(tmp_path / "rows.parquet")
    with refuses(TableError, f"column '{column}'", "strings or numbers"):
        fit(rows, part="items")
    with refuses(TableError, f"column '{column}'", "rows.parquet"):
        fit_own_sequences(
            str(tmp_path / "rows.parquet"), EfaFitOptions(**SMALL, part="items", save=str(tmp_path / "m"))
        )


def test_what_does_not_fit_in_memory_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = fit()

    def fail(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 5832000000000 bytes.")

    for rows in (ROWS, ROWS.assign(value=ROWS["value"].where(ROWS.index != 3))):
        with (
            monkeypatch.context() as changed,
            refuses(TrainingError, "does not fit into memory", "layers 1", "5832000000000"),
        ):
            changed.setattr(model.model_, "natural", fail)
            model.predict(rows)
    monkeypatch.setattr("attngeo.bounds.machine.UNCHECKED", 0)
    monkeypatch.setattr("attngeo.bounds.machine.available_memory", lambda: 100)
    for name in ("rows.csv", "rows.parquet"):
        getattr(ROWS, "to_csv" if name.endswith(".csv") else "to_parquet")(tmp_path / name)
        with refuses(NotEnoughMemoryError, name, "GB of memory"):
            fit_own_sequences(str(tmp_path / name), EfaFitOptions(**SMALL))


def test_few_long_validation_sequences_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    forward = PartModel.forward

    def count(model: PartModel, batch: Batch) -> Any:
        if not model.training:
            sizes.append(len(batch.known))
        return forward(model, batch)

    monkeypatch.setattr(PartModel, "forward", count)
    for largest, expected in ((2**25, {5}), (1, {1})):
        monkeypatch.setattr("attngeo.estimators.efa.batches.MOST_BATCH_NUMBERS", largest)
        sizes.clear()
        make_efa(**SMALL).fit(ROWS, validation=ROWS)
        assert set(sizes) == expected


def test_alternatives_at_one_position_are_predicted_as_each_alone() -> None:
    """Also if several positions of a sequence have some, or a row between others has."""
    rows = ROWS.assign(position=ROWS.groupby("sequence").cumcount())
    model = fit(rows, direction="bi")
    asked = pd.DataFrame(
        {"sequence": 1, "position": [0, 1, 1, 2, 3, 3, 3], "item": [*ITEMS, "tea", "jam", "milk"],
         "value": [1.0, None, None, 2.0, None, None, None]}
    )  # fmt: skip
    found = model.predict(asked)["predicted_mean"]
    for row in asked.index[asked["value"].isna()]:
        own = asked[asked["value"].notna() | (asked.index == row)]
        moved = at_places(model, own["position"].tolist())
        assert found[row] == pytest.approx(moved.predict(own)["predicted_mean"][row], abs=1e-5)


# Cells of a column of values, the row of the first that is no number, and what its message says.
NO_NUMBERS: dict[str, tuple[list[str | None], int, list[str]]] = {
    "a text among decimal commas": ([None, "k.A.", "4,10"], 2, ["'k.A.'", "1 of 3", "--missing k.A."]),
    "a text among decimal points": (["4.10", "not yet"], 2, ["'not yet'", "1 of 2", "--missing 'not yet'"]),
    "a unit": (["3,10 €", "4 €"], 1, ["'3,10 €'", "unit '€'", "remove"]),
    "a unit beside a text": (["3,10 €", "4 €", "-"], 1, ["'3,10 €'", "unit '€'", "remove", "--missing -"]),
    "decimal commas": (["4,10", "3,2"], 1, ["'4,10'", "decimal point"]),
}


@pytest.mark.parametrize("kind", NO_NUMBERS)
def test_a_value_that_is_no_number_is_refused_with_what_to_do(kind: str) -> None:
    cells, row, facts = NO_NUMBERS[kind]
    with refuses(TableError, f"row {row}", "'price'", *facts) as caught:
        require_numbers(pd.Series(cells, name="price", dtype=object), TABLE)
    assert "scale" not in str(caught.value)


def test_a_missing_value_is_no_matter_of_scale() -> None:
    column = pd.Series([1.5, None], name="price")
    for source in (TRAINING, "prices.csv"):
        with refuses(TableError, "row 2", "'price'", "empty", "leave the row out") as caught:
            require_numbers(column, source)
        assert "scale" not in str(caught.value)
        assert ("--missing ''" in str(caught.value)) == (source != TRAINING)  # an option of files
    with refuses(TableError, "row 2", "'-'", "if it has other values", "--missing -"):
        require_numbers(pd.Series(["1.5", "-"], name="price"), TRAINING)


@pytest.mark.parametrize("text", ["01/02/2023", "soon"])
@pytest.mark.parametrize("use", ["position", "covariate"])
def test_dates_that_do_not_tell_day_and_month_are_told_how_to(text: str, use: str) -> None:
    column = pd.Series([text, "03/04/2023", "05/06/2023", "07/08/2023"], name="day", dtype="str")
    facts = ["day and month cannot be told apart"] if "/" in text else ["leave the row out"]
    with refuses(TableError, "row 1", "'day'", repr(text), "2020-01-31", *facts):
        if use == "position":
            rank_positions(column, np.zeros(4, int), TABLE, np.zeros(4, bool))
        else:
            read_covariates(column.to_frame(), {"day": Covariate(kind="time", zone="")}, TABLE)


def test_only_a_fit_may_name_another_column_than_one_without_numbers() -> None:
    column = pd.Series(["a", "b"], name="price")
    with refuses(TableError, "no cell of the column is a number", "name another column"):
        require_numbers(column, TRAINING)
    with refuses(TableError, "no cell of the column is a number", "as in training"):
        require_numbers(column, TABLE)
