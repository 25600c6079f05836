"""Several values with their families, covariates, and both parts at once: what sees what, and what is missing."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold
from support.messages import assert_states, refuses
from support.sequences import make_efa, measure_fit

from attngeo.errors import (
    AttnGeoError,
    CorruptCheckpointError,
    InterruptedTrainingError,
    OutputError,
    TableError,
    UnknownColumnError,
    UsageError,
)
from attngeo.estimators import ExponentialFamilyAttention
from attngeo.estimators.efa.columns import TEST, TRAINING, rank_positions
from attngeo.estimators.efa.covariates import Covariate, describe_times, learn_covariates, read_covariates
from attngeo.estimators.efa.files import predict_file
from attngeo.estimators.efa.vectors import rank_similar
from attngeo.estimators.shared.paths import CONFIG
from attngeo.progress import Progress

SMALL: dict[str, Any] = {"width": 4, "max_epochs": 2, "validation_fraction": 0, "learning_rate": 0.01, "device": "cpu"}
VALUES = ("rating:poisson", "minutes:gaussian")
COVARIATES = ("genre", "age:number", "when:time")
KINDS: dict[str, dict[str, Any]] = {
    "values": {"value": VALUES, "n_layers": 2},
    "values, identity": {"value": VALUES, "n_layers": 1, "n_heads": 1},
    "values of whole numbers": {"value": ("rating:poisson", "age:ordinal:90"), "value_embedding": "lookup"},
    "values of places": {"value": VALUES, "coordinates": ("age",), "item_vectors": False},
    "covariates of values": {"value": VALUES, "covariates": COVARIATES},
    "covariates of items": {"part": "items", "covariates": COVARIATES, "n_layers": 2},
    "both": {"part": "both", "value": VALUES},
    "categories": {"value": VALUES, "covariates": ("genre:categories", "age:number", "when:time")},
    "both with covariates": {"part": "both", "value": VALUES, "covariates": COVARIATES, "n_layers": 2},
}  # fmt: skip
DIRECTIONS, ITEMS = ("bi", "uni"), ["jam", "milk", "rice", "tea"]


def draw_rows(sequences: int = 5) -> pd.DataFrame:
    """Sequences of 3 to 5 rows, in an order."""
    draw = np.random.default_rng(0)
    lengths = draw.integers(3, 6, sequences)
    count = int(lengths.sum())
    return pd.DataFrame(
        {
            "sequence": np.repeat(range(sequences), lengths), "item": draw.choice(ITEMS, count),
            "rating": draw.poisson(3, count).astype(float), "minutes": draw.normal(90, 20, count),
            "genre": draw.choice(["drama", "war"], count), "age": draw.integers(1, 90, count).astype(float),
            "when": pd.Timestamp("1998-01-01") + pd.to_timedelta(draw.integers(0, 10**7, count), "s"),
        }
    )  # fmt: skip


ROWS = draw_rows()


def fit(rows: pd.DataFrame = ROWS, *, size: float = 1, **options: Any) -> ExponentialFamilyAttention:
    """Parameters of the size that keeps numbers near 1, so that what a position sees matters, in place of trained."""
    model = make_efa(**SMALL | {"max_epochs": 1} | options).fit(rows)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in model.model_.named_parameters():
            if "families" not in name:
                weight.copy_(size * torch.randn_like(weight) / weight.shape[-1] ** 0.5)
    return model


def read_natural(model: ExponentialFamilyAttention, rows: pd.DataFrame) -> dict[str, np.ndarray]:
    """What the networks say of each row, by part: the logarithms of means of counts, and of probabilities."""
    found = {}
    if model.part_ != "values":
        found["items"] = np.log(model.predict_proba(rows).to_numpy())
    if model.part_ != "items":
        means = model.predict(rows).filter(like="mean").to_numpy()
        found["values"] = np.column_stack([np.log(means[:, 0]), means[:, 1] / 20])
    return found


def find_seen(rows: pd.DataFrame, row: int, direction: str, *, own: bool) -> np.ndarray:
    """Which rows see a row: those of its sequence, or those after it; and itself, or not."""
    at, same = np.arange(len(rows)), (rows["sequence"] == rows["sequence"][row]).to_numpy()
    later: np.ndarray = same & ((at > row) if direction == "uni" else (at != row)) | (own & (at == row))
    return later


CHANGES: dict[str, dict[str, Any]] = {
    "item": {"items": False, "values": True}, "rating": {"values": False}, "minutes": {"values": False},
    "genre": {"items": False, "values": True}, "age": {"items": False, "values": True},
    "when": {"items": False, "values": True},
}  # fmt: skip


# Each kind with one direction; the slow tests have the other one.
SEEN = {kind: DIRECTIONS[number % 2] for number, kind in enumerate(kind for kind in KINDS if "whole" not in kind)}


@pytest.mark.parametrize(
    ("kind", "direction"),
    [
        pytest.param(kind, direction, marks=() if direction == quick else pytest.mark.slow)
        for kind, quick in SEEN.items() for direction in DIRECTIONS
    ],
)  # fmt: skip
def test_what_is_predicted_never_sees_itself_nor_one_direction_the_future(kind: str, direction: str) -> None:
    """A cell that changes changes the predictions that see it, and no others.

    Its own row is among them for what goes with the item, if values are predicted: an item is masked with its
    covariates, a value with those of its row.
    """
    options = KINDS[kind]
    model = fit(**options, direction=direction, order=True)
    before = read_natural(model, ROWS)
    columns = {"item"} if model.items_ else set()
    columns |= {"rating", "minutes"} if model.part_ != "items" else set()
    columns |= {"genre", "age", "when"} if options.get("covariates") else set()
    for column in columns | set(options.get("coordinates", ())):
        for row in (1, len(ROWS) - 2):
            now: Any = ROWS[column][row]
            others = ROWS[column][ROWS[column] != now]
            changed = ROWS.astype({"age": float})
            changed.loc[row, column] = now + 9 if column in ("rating", "age") else others.iloc[0]
            after = read_natural(model, changed)
            for part, own in CHANGES[column].items():
                if part in before:
                    differs = np.abs(after[part] - before[part]).max(1)
                    expected = find_seen(ROWS, row, direction, own=own)
                    assert (differs[expected] > 1e-4).all(), (column, part)
                    assert (differs[~expected] < 2e-5).all(), (column, part)
            for part in before.keys() - CHANGES[column].keys():
                np.testing.assert_allclose(after[part], before[part], atol=2e-5)  # items do not depend on values


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_log_p_of_a_row_is_the_sum_over_the_values_that_it_has(direction: str) -> None:
    rows = ROWS.copy()
    rows.loc[[1, 5], "rating"] = np.nan
    rows.loc[[2, 7], "minutes"] = np.nan
    model = fit(rows, value=VALUES, direction=direction)
    means = model.predict(rows)
    assert list(means) == ["predicted_mean_rating", "predicted_mean_minutes"]
    assert means.notna().all(axis=None)
    deviation = float(model.model_.parts[0].families[1].variance_as(torch.zeros(())).detach()) ** 0.5
    expected = stats.poisson.logpmf(rows["rating"].fillna(0), means["predicted_mean_rating"]) * rows["rating"].notna()
    expected += (
        stats.norm.logpdf(rows["minutes"].fillna(0), means["predicted_mean_minutes"], deviation)
        * rows["minutes"].notna()
    )
    np.testing.assert_allclose(model.log_prob(rows), expected, rtol=1e-4, atol=1e-4)
    measured = model.measure_columns()["train"]
    assert [found.rows for found in measured.values()] == [len(rows) - 2, len(rows) - 2, len(rows)]
    total = measure_fit(model)["train"]
    assert total.log_prob == pytest.approx(expected.mean(), rel=1e-4)
    own = rows["rating"].dropna().groupby(rows["item"]).transform("mean")
    alone = stats.poisson.logpmf(rows["rating"].dropna(), own).mean()
    assert measured["values", "rating"].without_context == pytest.approx(alone, abs=1e-4)


@pytest.mark.parametrize("embedding", ["network", "lookup"])
def test_a_missing_value_is_no_number_and_a_row_without_any_is_predicted_and_not_seen(embedding: str) -> None:
    value = ("rating:poisson", "age:ordinal:90")
    model = fit(value=value, value_embedding=embedding, size=2)
    lacking = ROWS.assign(rating=ROWS["rating"].where(ROWS.index != 1))
    found = model.predict(lacking)
    others = (ROWS["sequence"] == ROWS["sequence"][1]) & (ROWS.index != 1)
    for number in (0.0, 3.0, 4.0):
        stated = model.predict(lacking.fillna({"rating": number}))
        assert (np.abs(stated / found - 1).max(axis=1)[others] > 1e-4).all()
    np.testing.assert_allclose(found.loc[1], model.predict(ROWS).loc[1], rtol=1e-4)  # its own values are masked anyway
    empty = lacking.assign(age=ROWS["age"].where(ROWS.index != 1))
    gone = model.predict(empty)
    np.testing.assert_allclose(gone.loc[1], found.loc[1], rtol=1e-4)
    np.testing.assert_allclose(gone[others], model.predict(ROWS.drop(index=1)).loc[others[others].index], rtol=1e-4)
    assert np.isnan(model.log_prob(empty, known_only=True)[1])
    with refuses(TableError, "row 2", "'rating': nan"):
        model.log_prob(empty)
    with refuses(TableError, "the training table", "row 2", "'rating': nan"):
        fit(empty, value=value)


def test_a_missing_value_is_not_the_mean_of_its_column() -> None:
    """At which a value is 0 inside the model."""
    model = fit(value=VALUES, size=2)
    means = [model.predict(ROWS.assign(minutes=ROWS["minutes"].mask(ROWS.index == 1, number)))
             for number in (ROWS["minutes"].mean(), np.nan)]  # fmt: skip
    others = (ROWS["sequence"] == ROWS["sequence"][1]) & (ROWS.index != 1)
    assert (np.abs(means[0] / means[1] - 1).max(axis=1)[others] > 1e-4).all()


def test_one_value_with_its_family_is_the_same_model_as_by_the_option_family() -> None:
    models = [
        make_efa(**SMALL, **options).fit(ROWS)
        for options in ({"value": "rating:poisson:1"}, {"value": {"rating": "poisson:1"}},
                        {"value": "rating", "family": "poisson:1"})
    ]  # fmt: skip
    assert all(model.log_prob(ROWS).equals(models[0].log_prob(ROWS)) for model in models)
    assert list(models[0].predict(ROWS)) == ["predicted_mean"]


def test_categories_and_times_are_read_as_they_are_written() -> None:
    """Dates as texts, and as seconds; categories of another kind of column."""
    model = fit(value="rating:poisson", covariates=("age:category", "when:time"))
    expected = model.predict(ROWS)
    seconds = (ROWS["when"] - pd.Timestamp(0)) / pd.Timedelta(seconds=1)
    days = ROWS["when"].dt.floor("D")
    pd.testing.assert_frame_equal(model.predict(ROWS.assign(when=days.dt.date)), model.predict(ROWS.assign(when=days)))
    pd.testing.assert_frame_equal(
        model.predict(ROWS.assign(when=days.dt.to_period("D"))), model.predict(ROWS.assign(when=days))
    )
    others = [{"when": ROWS["when"].astype(str)}, {"when": seconds}, {"age": ROWS["age"].astype(str)}]
    for changed in others:
        pd.testing.assert_frame_equal(model.predict(ROWS.assign(**changed)), expected, rtol=1e-5)
    zoned = ROWS["when"].dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo")
    with refuses(TableError, "row 1", "'when'", "zone"):
        model.predict(ROWS.assign(when=zoned))
    dates = ROWS.assign(when=days.dt.date)
    shapes = fit(dates, value="rating:poisson", covariates=("genre", "age", "when")).model_.parts[0].shape.covariates
    assert [shape.kind for shape in shapes] == ["category", "number", "time"]
    assert shapes[0].categories == ("drama", "war")


def test_several_categories_of_a_cell_are_marks_of_each() -> None:
    genres = pd.Series(["war", "drama|war", " drama | crime"] * len(ROWS))[: len(ROWS)]
    rows = ROWS.assign(genres=genres)
    learned = learn_covariates({TRAINING: rows}, {"genres": "categories"})
    assert learned[0].categories == ("crime", "drama", "war")
    codes, numbers = read_covariates(rows, {"genres": learned[0]}, TRAINING)
    assert codes.shape == (len(ROWS), 0)
    assert numbers[:3].tolist() == [[0, 0, 1], [0, 1, 1], [1, 1, 0]]
    model = fit(rows, value="rating:poisson", covariates="genres:categories")
    expected = model.predict(rows)
    pd.testing.assert_frame_equal(model.predict(rows.assign(genres=genres.replace("drama|war", "war|drama"))), expected)
    other = model.predict(rows.assign(genres="war"))
    assert (np.abs(other / expected - 1).max(axis=1) > 1e-4).all()
    years = pd.Series(range(len(ROWS))) % 2
    assert learn_covariates({TRAINING: rows.assign(year=years)}, {"year": "categories"})[0].categories == ("0", "1")
    for cell, facts in (
        ("noir", ["row 2", "'noir'", "not in the training rows", "3 categories such as 'crime'"]),
        ("war|noir", ["row 2", "'war|noir'", "not in the training rows"]),
        ("war|", ["row 2", "'war|'", "empty category"]),
        (None, ["row 2", "the cell is empty"]),
        (["war"], ["'genres'", "has a list"]),
    ):
        changed = genres.astype(object)
        changed.iloc[1] = cell
        with refuses(TableError, *facts):
            model.predict(rows.assign(genres=changed))


def test_a_time_is_how_late_it_is_and_where_in_a_day_a_week_and_a_year() -> None:
    """1970 began on a Thursday at midnight, where each angle is 0."""
    days = pd.Series([0, 0.25, 7, 10.5, 365.2425])
    frame = pd.DataFrame({"when": pd.Timestamp(0) + pd.to_timedelta(days, "D")})
    learned = learn_covariates({TRAINING: frame}, {"when": None})
    codes, numbers = read_covariates(frame, {"when": learned[0]}, TRAINING)
    assert codes.shape == (5, 0)
    np.testing.assert_allclose(numbers[:, 0], (days - days.mean()) / days.std(ddof=0), atol=1e-9)
    for at, period in enumerate((1, 7, 365.2425)):
        angles = np.arctan2(numbers[:, 2 + 2 * at], numbers[:, 1 + 2 * at])
        np.testing.assert_allclose(np.exp(1j * angles), np.exp(2j * np.pi * days / period), atol=1e-6)


def test_both_parts_are_those_that_are_fitted_apart() -> None:
    """Each keeps its own best epoch, and stops by itself."""
    rows = draw_rows(20)
    options: dict[str, Any] = SMALL | {"validation_fraction": 0.3, "patience": 3, "max_epochs": 40, "width": 8}
    options |= {"learning_rate": 0.05}
    both = make_efa(**options, part="both", value=VALUES).fit(rows)
    items = make_efa(**options, part="items").fit(rows)
    values = make_efa(**options, part="values", value=VALUES).fit(rows)
    assert both.log_prob(rows).equals(items.log_prob(rows) + values.log_prob(rows))
    assert items.history_.best_epoch != values.history_.best_epoch
    np.testing.assert_array_equal(both.history_.best_epoch, [*items.history_.best_epoch, *values.history_.best_epoch])
    for number, alone in enumerate((items.history_, values.history_)):
        for name in ("train", "validation"):
            losses = getattr(both.history_, name)[:, number]
            np.testing.assert_array_equal(losses[~np.isnan(losses)], getattr(alone, name))


def test_an_interrupted_fit_of_both_parts_resumes_and_ends_as_one_that_was_not(tmp_path: Path) -> None:
    options: dict[str, Any] = SMALL | {"part": "both", "value": VALUES, "max_epochs": 3}
    whole = make_efa(**options).fit(ROWS)

    def stop_in_values(step: Progress) -> None:
        if step.what.startswith("values") and step.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(InterruptedTrainingError):
        make_efa(**options).fit(ROWS, folder=tmp_path, progress=stop_in_values)
    assert {path.name for path in tmp_path.iterdir()} == {"items", "values"}
    assert make_efa(**options).fit(ROWS, folder=tmp_path).log_prob(ROWS).equals(whole.log_prob(ROWS))
    assert not list(tmp_path.iterdir())


def test_log_p_of_both_parts_is_the_sum_of_theirs(tmp_path: Path) -> None:
    rows = pd.concat([ROWS, ROWS.assign(sequence=ROWS["sequence"] + 5)], ignore_index=True)
    options: dict[str, Any] = SMALL | {"part": "both", "value": VALUES, "max_epochs": 3}
    model = make_efa(**options | {"validation_fraction": 0.3, "patience": 1}).fit(rows)
    model.save(tmp_path / "m")
    parts = [ExponentialFamilyAttention.load(tmp_path / "m" / part) for part in ("items", "values")]
    assert [part.part_ for part in parts] == ["items", "values"]
    together = parts[0].log_prob(rows) + parts[1].log_prob(rows)
    np.testing.assert_allclose(model.log_prob(rows), together, rtol=1e-6)
    held_out = measure_fit(model)["held-out"].log_prob
    assert held_out == pytest.approx(-np.nanmin(model.history_.validation, axis=0).sum(), rel=1e-4)
    measured = model.measure_columns()["held-out"]
    assert [*measured] == [("items", ""), ("values", "rating"), ("values", "minutes"), ("all", "")]
    assert held_out == pytest.approx(sum(found.log_prob for found in measured.values()) / 2, rel=1e-6)
    found = model.predict(rows)
    assert list(found) == ["predicted_item", "probability", "predicted_mean_rating", "predicted_mean_minutes"]
    assert found["predicted_item"].equals(parts[0].predict(rows)["predicted_item"])
    assert model.embeddings().keys() == {"context", "center", "query", "key", "value"}
    assert len(rank_similar(model.model_, model.items_, "tea")) == 3
    weights = model.attention_weights(rows)
    assert set(weights["part"]) == {"items", "values"}
    sums = weights.groupby(["part", "layer", "head", "row"])["weight"].sum()
    np.testing.assert_allclose(sums, 1, rtol=1e-5)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_of_both_parts_a_row_without_an_item_has_a_predicted_item_and_no_values(direction: str) -> None:
    model = fit(part="both", value=VALUES, direction=direction, short="keep")
    asked = ROWS.assign(
        item=ROWS["item"].where(ROWS.index != 4), rating=ROWS["rating"].where(~ROWS.index.isin([4, 9])),
        minutes=ROWS["minutes"].where(~ROWS.index.isin([4, 9])),
    )  # fmt: skip
    found = model.predict(asked)
    assert found["predicted_item"].notna().all()
    assert found.index[found["predicted_mean_rating"].isna()].tolist() == [4]
    assert model.log_prob(asked, known_only=True).isna().tolist() == [row in (4, 9) for row in ROWS.index]
    kept = asked.drop(index=4)
    alone = model.predict(kept.assign(position=kept.index)) if direction == "uni" else model.predict(kept)
    if direction == "bi":
        np.testing.assert_allclose(found["predicted_mean_rating"].drop(4), alone["predicted_mean_rating"], rtol=1e-4)


SAVED = ("values of whole numbers", "covariates of items", "both with covariates", "both, factors")


@pytest.mark.parametrize(
    "kind", [*SAVED, *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind not in SAVED)]
)
def test_a_loaded_model_of_mixed_data_says_and_draws_the_same(kind: str, tmp_path: Path) -> None:
    factors: dict[str, Any] = {"part": "both", "value": "rating:poisson", "model": "fm"}
    model = fit(**KINDS.get(kind, factors), size=0.3)
    model.save(tmp_path / "m")
    loaded = ExponentialFamilyAttention.load(tmp_path / "m")
    assert loaded.part_ == model.part_
    assert loaded.options_ == model.options_
    assert loaded.log_prob(ROWS).equals(model.log_prob(ROWS))
    assert loaded.predict(ROWS).equals(model.predict(ROWS))
    needs_rows = kind not in ("both", "both, factors")
    given: dict[str, Any] = {"data": ROWS} if needs_rows else {"sequences": 3, "length": 2}
    given |= {"seed": 1, "sweeps": 3}
    drawn = loaded.sample(**given)
    assert drawn.equals(model.sample(**given))
    assert len(drawn) == (len(ROWS) if needs_rows else 6)
    columns = [*model.options_.families]
    if model.part_ != "items":
        for family, column in zip(model.model_.parts[-1].families, columns, strict=True):
            assert family.supports(torch.tensor(drawn[column].to_numpy(float))).all()
    if model.part_ != "values":
        assert set(drawn["item"]) <= set(model.items_)
    if needs_rows and "item" in drawn and model.part_ == "values":
        assert drawn["item"].equals(ROWS["item"])
    if needs_rows:  # what is drawn is not read
        own = {"items": ["item"], "values": columns, "both": ["item", *columns]}[model.part_]
        other = ROWS.assign(**{name: ROWS[name][::-1].to_numpy() for name in own})
        assert drawn.equals(model.sample(**given | {"data": other}))


def test_it_is_an_estimator_of_scikit_learn_with_several_values() -> None:
    rows = draw_rows(12)
    model = make_efa(**SMALL | {"part": "both", "value": VALUES, "covariates": ("genre",)})
    assert clone(model).get_params()["value"] == VALUES
    search = GridSearchCV(model, {"n_layers": [1, 2]}, cv=GroupKFold(2)).fit(rows, groups=rows["sequence"])
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.score(rows) == pytest.approx(search.best_estimator_.log_prob(rows).mean())


WHEN = pd.Series(pd.to_datetime(["2024-01-31", "1969-07-20", "2001-09-09 01:46:40"], format="ISO8601"))
SECONDS = (WHEN - pd.Timestamp(0)) / pd.Timedelta(seconds=1)


@pytest.mark.parametrize("unit", [1e3, 1e6])
def test_times_in_other_units_than_seconds_are_refused(unit: float) -> None:
    """Read as seconds, these are of the year 55842 and later."""
    times = {"when": Covariate(kind="time")}
    read_covariates(pd.DataFrame({"when": SECONDS}), times, TRAINING)
    with refuses(TableError, "row 1", "'when'", "seconds", "milliseconds"):
        read_covariates(pd.DataFrame({"when": (SECONDS * unit).astype("int64")}), times, TRAINING)


def test_a_text_among_times_does_not_change_how_the_others_are_read() -> None:
    times = {"when": Covariate(kind="time")}
    texts = SECONDS.map(str)
    for one, other in zip(*(read_covariates(pd.DataFrame({"when": each}), times, TRAINING) for each in (texts, WHEN)),
                          strict=True):  # fmt: skip
        np.testing.assert_allclose(one, other)
    for changed in (texts, WHEN.astype(str)):
        with refuses(TableError, "row 2", "'when'", "'n/a'"):
            read_covariates(pd.DataFrame({"when": [changed[0], "n/a", changed[2]]}), times, TRAINING)


ZONED = pd.Series(pd.to_datetime(["2023-01-15 23:30", "2023-07-15 23:30"]).tz_localize("UTC"))


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "+02:00"])
def test_times_of_any_zone_are_those_of_the_training_column(zone: str) -> None:
    """Times without a zone are those of the training column's zone."""
    train = pd.DataFrame({"when": ZONED.dt.tz_convert(zone)})
    times = {"when": learn_covariates({TRAINING: train}, {"when": None})[0]}
    assert times["when"].zone == zone
    _, expected = read_covariates(train, times, TRAINING)
    tokyo = ZONED.dt.tz_convert("Asia/Tokyo")
    texts = tokyo.dt.strftime("%Y-%m-%dT%H:%M:%S%z")
    for when in (ZONED, tokyo, tokyo.astype(str), texts, train["when"].dt.tz_localize(None)):
        np.testing.assert_allclose(read_covariates(pd.DataFrame({"when": when}), times, TRAINING)[1], expected)
    naive = pd.DataFrame({"when": ZONED.dt.tz_localize(None)})
    (note,) = describe_times(naive, times, TRAINING)
    assert_states(note, "'when'", zone)
    assert [*describe_times(train, times, TRAINING)] == []


def test_the_zone_of_times_is_kept_in_a_saved_model(tmp_path: Path) -> None:
    rows = ROWS.assign(when=ROWS["when"].dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"))
    fit(rows, value="rating:poisson", covariates="when:time").save(tmp_path / "m")
    notes: list[Progress] = []
    zoned, naive = str(tmp_path / "zoned.parquet"), str(tmp_path / "naive.parquet")
    rows.to_parquet(zoned)
    rows.assign(when=rows["when"].dt.tz_localize(None)).to_parquet(naive)
    expected, predicted = (predict_file(tmp_path / "m", path, progress=notes.append) for path in (zoned, naive))
    pd.testing.assert_frame_equal(predicted.drop(columns="when"), expected.drop(columns="when"))
    assert len(notes) == 1
    assert_states(notes[0].what, naive, "'when'", "Asia/Tokyo")
    config = json.loads((tmp_path / "m" / CONFIG).read_text())
    config["shape"]["covariates"][0]["zone"] = "Nowhere/None"
    (tmp_path / "m" / CONFIG).write_text(json.dumps(config))
    with refuses(CorruptCheckpointError, CONFIG, "'Nowhere/None'"):
        predict_file(tmp_path / "m", zoned)


def test_zones_that_contradict_one_another_are_refused() -> None:
    naive = pd.DataFrame({"when": ZONED.dt.tz_localize(None).astype(str)})
    mixed = pd.DataFrame({"when": ["2023-01-15 23:30", "2023-07-15 23:30Z"]})
    learned = learn_covariates({TRAINING: naive}, {"when": "time"})[0]
    assert learned.zone == ""
    with refuses(TableError, TEST, "row 1", "'when'", "2023-01-15 23:30:00+00:00", "zone"):
        read_covariates(pd.DataFrame({"when": ZONED.astype(str)}), {"when": learned}, TEST)
    with refuses(TableError, TEST, "'when'", "'2023-01-15 23:30'", "'2023-07-15 23:30Z'"):
        read_covariates(mixed, {"when": learned}, TEST)
    with refuses(TableError, TEST, "'when'", "'2023-01-15 23:30'", "'2023-07-15 23:30Z'"):
        rank_positions(mixed["when"], np.zeros(2, int), TEST, np.zeros(2, bool))
    older = {"when": Covariate(kind="time")}
    zoned = pd.DataFrame({"when": ZONED.dt.tz_convert("Asia/Tokyo")})
    np.testing.assert_allclose(read_covariates(zoned, older, TEST)[1], read_covariates(naive, older, TEST)[1])
    (note,) = describe_times(zoned, older, TEST)
    assert_states(note, "'when'", "older version")


def test_clocks_that_are_set_leave_no_time_out() -> None:
    """Berlin has 2023-03-26 02:30 never, and 2023-10-29 02:30 twice."""
    berlin = {"when": Covariate(kind="time", zone="Europe/Berlin", scale=(0.0, 1.0))}
    frame = pd.DataFrame({"when": ["2023-03-26 02:30", "2023-10-29 02:30", "2023-07-01 02:00"]})
    _, numbers = read_covariates(frame, berlin, TEST)
    expected = pd.to_datetime(["2023-03-26 01:00", "2023-10-29 01:30", "2023-07-01 00:00"])
    np.testing.assert_allclose(numbers[:, 0], (expected - pd.Timestamp(0)) / pd.Timedelta(days=1))


@pytest.mark.parametrize("text", ["9999-12-31", "2999-01-01", "1600-01-01", "0001-01-01"])
def test_times_of_any_year_are_days_since_1970(text: str) -> None:
    day = (dt.date.fromisoformat(text) - dt.date(1970, 1, 1)).days
    for cells in ([text], pd.to_datetime([text], format="ISO8601"), pd.to_datetime([text], format="ISO8601", utc=True)):
        frame = pd.DataFrame({"when": cells})
        _, numbers = read_covariates(frame, {"when": Covariate(kind="time")}, TEST)
        assert numbers[0, 0] == day
        assert learn_covariates({TRAINING: frame}, {"when": "time"})[0].scale[0] == day
        both = pd.Series([*frame["when"], pd.Timestamp("2020-01-01", tz=getattr(frame["when"].dtype, "tz", None))])
        ranks = rank_positions(both, np.zeros(2, int), TEST, np.zeros(2, bool))
        assert (ranks[0] < ranks[1]) == (day < 0)


REFUSED: dict[str, tuple[dict[str, Any], type[AttnGeoError], list[object]]] = {
    "no family": ({"value": ("rating:poisson", "age")}, UsageError, ["'age'", "without a family", "age:gaussian"]),
    "twice": ({"value": ("rating:poisson", "rating:gaussian")}, UsageError, ["value names a column twice"]),
    "none": ({"value": ()}, UsageError, ["value names no column"]),
    "mistyped family": ({"value": "rating:poison"}, UsageError, ["value has", "'poison'", "did you mean poisson?"]),
    "other family": ({"value": "rating:normal"}, UsageError, ["'normal'", "gaussian[:VARIANCE]"]),
    "number of a family": ({"value": "rating:binomial"}, UsageError, ["value", "binomial:TOTAL_COUNT"]),
    "missing column": ({"value": ("ratin:poisson", "age:gaussian")}, UnknownColumnError, ["'ratin'", "rating?"]),
    "levels": ({"value": "rating:ordinal:5"}, TableError, ["'rating'", "from 0 to 4 (ordinal:5)"]),
    "support": ({"value": ("rating:poisson", "minutes:bernoulli")}, TableError, ["row 1", "'minutes'", "from 0 to 1"]),
    "factors": ({"value": VALUES, "model": "fm"}, UsageError, ["value names 2 columns", "one value"]),
    "lags": ({"value": VALUES, "lags": "age"}, UsageError, ["value names 2 columns", "lags"]),
    "covariates of factors": ({"value": "rating:poisson", "model": "fm", "covariates": "genre"}, UsageError,
                              ["covariates has no effect on a factor model"]),
    "answer": ({"value": VALUES, "covariates": "minutes"}, UsageError, ["covariates has 'minutes'", "predicted"]),
    "item": ({"part": "items", "covariates": "item"}, UsageError, ["item is 'item'", "another option"]),
    "kind": ({"value": VALUES, "covariates": "genre:categry"}, UsageError, ["'categry'", "did you mean category?"]),
    "covariate twice": ({"value": VALUES, "covariates": ("age", "age:category")}, UsageError, ["column twice"]),
    "no covariate": ({"value": VALUES, "covariates": "gnre"}, UnknownColumnError, ["'gnre'", "did you mean genre?"]),
    "text as number": ({"value": VALUES, "covariates": "genre:number"}, TableError, ["row 1", "'genre'", "number"]),
    "text as time": ({"value": VALUES, "covariates": "genre:time"}, TableError, ["row 1", "'genre'", "2020-01-31"]),
    "values of items": ({"part": "items", "value": "rating:poisson"}, UsageError, ["value has no effect", "items"]),
    "values of items, looked up": (
        {"part": "items", "value_embedding": "lookup"}, UsageError, ["value_embedding has no effect"]
    ),
    "outputs of items": ({"part": "items", "output_units": (8,)}, UsageError, ["output_units has no effect"]),
    "nothing": ({"value": ("rating:poisson", "empty:gaussian")}, TableError, ["'empty'", "has no values"]),
    "both without values": ({"part": "both"}, UnknownColumnError, ["no column 'value'"]),
    "both without items": ({"part": "both", "value": VALUES, "item": "film"}, UnknownColumnError, ["no column 'film'"]),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_bad_options_of_mixed_data_are_refused_in_one_line(case: str) -> None:
    options, kind, facts = REFUSED[case]
    with refuses(kind, *facts) as caught:
        fit(ROWS.assign(empty=np.nan), **options)
    assert "\n" not in str(caught.value)


def test_what_a_model_of_mixed_data_was_not_fitted_to_is_refused(tmp_path: Path) -> None:
    model = fit(part="both", value=VALUES, covariates=COVARIATES)
    for rows, facts in (
        (ROWS.drop(columns="genre"), ["no column 'genre'"]),
        (ROWS.drop(columns="minutes"), ["no column 'minutes'"]),
        (ROWS.assign(genre="noir"), ["row 1", "'genre'", "'noir'", "2 categories such as 'drama'"]),
        (ROWS.assign(genre=None), ["row 1", "'genre'", "empty"]),
        (ROWS.assign(genre=[["war"]] * len(ROWS)), ["'genre'", "has a list"]),
        (ROWS.assign(item=[["tea"]] * len(ROWS)), ["'item'", "has a list"]),
        (ROWS.assign(when=[["soon"]] * len(ROWS)), ["row 1", "'when'", "date"]),
        (ROWS.assign(when=ROWS["when"].diff()), ["row 1", "'when'", "empty"]),
        (ROWS.assign(when=ROWS["when"].diff().fillna(pd.Timedelta(0))), ["'when'", "has a Timedelta"]),
        (ROWS.assign(age=np.inf), ["row 1", "'age': inf"]),
        (ROWS.assign(when="soon"), ["row 1", "'when': 'soon'", "date"]),
        (ROWS.assign(minutes="long"), ["row 1", "'minutes': 'long'"]),
    ):
        with refuses(TableError, *facts):
            model.predict(rows)
    with refuses(UsageError, "data is missing"):
        model.sample(sequences=2)
    fit(value=VALUES).save(tmp_path / "one")
    with refuses(OutputError, "one part"):
        model.save(tmp_path / "one")


@pytest.fixture(scope="module")
def saved_both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a saved model of both parts, which tests copy."""
    folder = tmp_path_factory.mktemp("both")
    fit(part="both", value=VALUES, covariates=COVARIATES).save(folder)
    return folder


@pytest.mark.parametrize(
    ("place", "value", "facts"),
    [
        ("shape.values", [{}], ["values is 1, expected 2"]),
        ("shape.covariates", [], ["covariates is 0, expected 3"]),
        ("shape.covariates.0.categories", ["war", "war"], ["'genre'", "repeated"]),
        ("shape.covariates.0.categories", [], ["'genre'", "no categories"]),
        ("shape.covariates.0.categories", ["war"], ["model.safetensors"]),
        ("shape.covariates.1.kind", "category", ["'age' is a category, expected a number"]),
        ("shape.covariates.1.scale", [0.0, -1.0], ["shape.covariates.1.scale"]),
        ("options.value", ["rating:poisson"], ["values is 2, expected 1"]),
        ("options.covariates", ["genre", "genre", "genre"], ["twice"]),
        ("options.width", 6, ["model.safetensors"]),
        ("options.seed", 3, ["unknown key"]),
        ("options.n_heads", 1, ["different models"]),
    ],
)
def test_a_file_of_mixed_data_that_no_model_saves_is_refused(
    place: str, value: object, facts: list[object], saved_both: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(saved_both, tmp_path / "m")
    path = folder / "values" / CONFIG
    about = json.loads(path.read_text())
    *holders, key = place.split(".")
    holder = about
    for name in holders:
        holder = holder[int(name) if name.isdigit() else name]
    holder[key] = value
    if place == "options.n_heads":
        about["num_attention_heads"], about["head_dim"] = 1, about["hidden_size"]
    path.write_text(json.dumps(about))
    with refuses(CorruptCheckpointError, *facts):
        ExponentialFamilyAttention.load(folder)


# The truth of the simulated data: chances of the next item, log means of counts and what a genre adds, means of
# minutes, what is left of the last deviation, and its deviation.
CHAIN = np.array([[0.1, 0.6, 0.2, 0.1], [0.1, 0.1, 0.7, 0.1], [0.2, 0.1, 0.1, 0.6], [0.5, 0.2, 0.2, 0.1]])
LOG_MEANS, OF_WAR = np.array([0.2, 1.0, 1.6, 0.6]), 0.8
MINUTES, KEPT, DEVIATION = np.array([80.0, 95.0, 110.0, 125.0]), 0.8, 6.0


def simulate(sequences: int, length: int, seed: int) -> tuple[pd.DataFrame, pd.DataFrame, np.ndarray]:
    """Rows, the true means of their values, and the true chances of their items, each given the rows before."""
    draw = np.random.default_rng(seed)
    rows, means, chances = [], [], []
    for number in range(sequences):
        chance, gone = np.full(4, 0.25), 0.0
        for _ in range(length):
            item, is_war = draw.choice(4, p=chance), bool(draw.integers(2))
            rate, minutes = np.exp(LOG_MEANS[item] + OF_WAR * is_war), MINUTES[item] + KEPT * gone
            chances.append(chance)
            means.append({"rating": rate, "minutes": minutes})
            chance, gone = CHAIN[item], KEPT * gone + DEVIATION * draw.normal()
            rows.append({"sequence": number, "item": ITEMS[item], "genre": "war" if is_war else "drama",
                         "rating": float(draw.poisson(rate)), "minutes": MINUTES[item] + gone})  # fmt: skip
    return pd.DataFrame(rows), pd.DataFrame(means), np.array(chances)


@pytest.mark.slow
def test_a_known_distribution_of_items_and_values_is_found_again() -> None:
    """From what is predicted in one direction, with a tenth of the values missing where a model trains.

    The errors of means are a quarter, or less, of those of a mean for each item; log p is within 0.25 nats of that of
    the truth; the learned variance, which starts at nine times the true one and moves slowly, is below twice that.
    """
    train, _, _ = simulate(1500, 6, seed=0)
    test, means, chances = simulate(300, 6, seed=1)
    hidden = np.random.default_rng(2).random((len(train), 2)) < 0.1
    hidden[hidden.all(1)] = False
    train["rating"], train["minutes"] = (train[name].mask(hidden[:, at]) for at, name in enumerate(means))
    options: dict[str, Any] = {"value": VALUES, "part": "both", "covariates": "genre", "direction": "uni"}
    options |= {"width": 16, "max_epochs": 40, "learning_rate": 0.006, "batch_size": 64, "device": "cpu"}
    model = make_efa(**options).fit(train, test=test)
    found = model.predict(test)
    for name in means:
        of_item = test["item"].map(train.groupby("item")[name].mean())
        error, alone = (((guess - means[name]) ** 2).mean() for guess in (found[f"predicted_mean_{name}"], of_item))
        assert error < alone / 4
    variance = float(model.model_.parts[1].families[1].variance_as(torch.zeros(())).detach())
    assert 0.8 * DEVIATION**2 < variance < 2 * DEVIATION**2
    assert np.abs(model.predict_proba(test).to_numpy() - chances).mean() < 0.05
    truth = np.log(chances[range(len(test)), test["item"].map(ITEMS.index)])
    truth = truth + stats.poisson.logpmf(test["rating"], means["rating"])
    truth = truth + stats.norm.logpdf(test["minutes"], means["minutes"], DEVIATION)
    assert truth.mean() - 0.25 < model.score(test) < truth.mean() + 0.03
    assert model.score(test) > measure_fit(model)["test"].without_context + 0.5
