"""The classifier: what it learns of a known joint distribution, and what it makes of tables."""

from __future__ import annotations

import itertools
import math
import pickle
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import get_scorer, log_loss
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks
from support.messages import assert_states, refuses
from support.plain_recipe import BATCH, DROPOUT, HEADS, HIDDEN, RATE, WIDTH, PlainAttention, fit_plain

from attngeo.errors import TableError, TrainingError, UsageError
from attngeo.estimators import AttentionClassifier, AttentionImputer, fit_together
from attngeo.estimators.tabular.cell_layout import MISSING
from attngeo.estimators.tabular.classifier import TableModel
from attngeo.estimators.tabular.coding import part_numbers
from attngeo.estimators.tabular.masking import MaskedRows

COLORS, WEIGHTS, LABELS = ["blue", "red"], ["heavy", "light", "medium"], ["no", "yes"]
FEATURES = ["color", "weight"]


@torch.no_grad()
def predict_plain(model: PlainAttention, features: np.ndarray) -> np.ndarray:
    """The chances of each class of the response, [rows, classes]."""
    rows = torch.as_tensor(np.column_stack([features + 1, np.zeros(len(features), int)]))
    return np.asarray(model(rows, torch.full((len(rows),), rows.shape[1] - 1)).softmax(1))


def draw_joint() -> pd.DataFrame:
    """A joint distribution of two features and the response, in which each one depends on the other two together."""
    rows = pd.DataFrame(itertools.product(COLORS, WEIGHTS, LABELS), columns=["color", "weight", "y"])
    chance = np.random.default_rng(0).dirichlet(np.full(len(rows), 0.7))
    return rows.assign(p=chance + 0.01).assign(p=lambda each: each["p"] / each["p"].sum())


@pytest.fixture(scope="module")
def joint() -> pd.DataFrame:
    return draw_joint()


@pytest.fixture(scope="module")
def rows(joint: pd.DataFrame) -> pd.DataFrame:
    """The rows of the joint distribution, and those in which a feature is missing, with a third of the weight."""
    parts = [joint, *(joint.assign(**{name: None}, p=joint["p"] / 3) for name in ("color", "weight"))]
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="module")
def exact(rows: pd.DataFrame) -> AttentionClassifier:
    """A model of the joint distribution: each row has its probability as weight, and a batch is all copies."""
    model = AttentionClassifier(
        n_heads=4, head_size=8, feed_forward=32, dropout=0, max_epochs=250, batch_size=1000, learning_rate=0.01,
        random_state=0, device="cpu",
    )  # fmt: skip
    return model.fit(rows[FEATURES], rows["y"], sample_weight=rows["p"] * 100)


def measure_loss(model: AttentionClassifier, rows: pd.DataFrame, labels: Any, weights: Any = None) -> float:
    """The loss of a model as it is: that of a further training at its first step, with one batch and no dropout."""
    further = pickle.loads(pickle.dumps(model)).set_params(batch_size=10_000, dropout=0)
    return float(further.partial_fit(rows, labels, sample_weight=weights).train_loss_[0])


def enumerate_cells(rows: pd.DataFrame, of: str) -> tuple[pd.Series[float], pd.Series[float]]:
    """The probability of a cell of each row that has it, given the other cells of its row, and the weight of the row.

    With weights that are probabilities, the mean of −log of the former is the least loss that a model can have.
    """
    filled = rows.fillna("missing")
    there = filled[filled[of] != "missing"]
    others = [name for name in (*FEATURES, "y") if name != of]
    return there.groupby([*others, of])["p"].transform("sum") / there.groupby(others)["p"].transform("sum"), there["p"]


@pytest.fixture(scope="module")
def excess(rows: pd.DataFrame, exact: AttentionClassifier) -> tuple[float, float]:
    """The divergence of the model's distributions of cells from the exact ones, over all cells, and the least loss.

    The sum of the cells' weights is 13/3: three of each row, two of each row with a missing feature.
    """
    cells = [enumerate_cells(rows, name) for name in (*FEATURES, "y")]
    least = -sum(float((weight * np.log(chance)).sum()) for chance, weight in cells) / (13 / 3)
    loss = measure_loss(exact, rows[FEATURES], rows["y"], rows["p"] * 100)
    return (max(loss - least, 0) + 1e-6) * 13 / 3, least  # 1e-6: the loss is a sum in single precision


def enumerate_conditional(joint: pd.DataFrame, of: str, given: dict[str, str]) -> tuple[dict[str, float], float]:
    """p(of | given), summed over what is not given, and p(given)."""
    rows = joint[np.logical_and.reduce([joint[name] == value for name, value in given.items()])]
    return dict(rows.groupby(of)["p"].sum() / rows["p"].sum()), float(rows["p"].sum())


def limit_difference(excess: float, weight: float) -> float:
    """How much a probability can differ from the exact one, by Pinsker's inequality, if all divergence is of one cell.

    weight: of the rows with that cell masked and these others.
    """
    return math.sqrt(excess / weight / 2)


def test_probabilities_are_those_of_the_joint_distribution(
    joint: pd.DataFrame, exact: AttentionClassifier, excess: tuple[float, float]
) -> None:
    for color, weight in itertools.product([*COLORS, None], [*WEIGHTS, None]):
        if color is weight is None:
            continue  # no row of the training has no feature
        given = {name: value for name, value in (("color", color), ("weight", weight)) if value}
        expected, chance = enumerate_conditional(joint, "y", given)
        found = exact.predict_proba(pd.DataFrame({"color": [color], "weight": [weight]}))[0]
        most = limit_difference(excess[0], chance if len(given) == 2 else chance / 3)
        np.testing.assert_allclose(found, [expected[label] for label in LABELS], rtol=0, atol=most)


def test_any_masked_cell_has_its_conditional_distribution(
    joint: pd.DataFrame, exact: AttentionClassifier, excess: tuple[float, float]
) -> None:
    filled = 0
    for weight, label in itertools.product(WEIGHTS, LABELS):
        expected, chance = enumerate_conditional(joint, "color", {"weight": weight, "y": label})
        row = pd.DataFrame({"color": [None], "weight": [weight]}, dtype=object)
        found = exact.predict_cell(row, "color", y=[label])
        assert found.columns.tolist() == COLORS
        most = limit_difference(excess[0], chance)
        np.testing.assert_allclose(found.iloc[0], [expected[color] for color in COLORS], rtol=0, atol=most)
        if abs(expected["blue"] - expected["red"]) > 2 * most:
            assert exact.impute(row, y=[label])["color"].tolist() == [max(expected, key=lambda c: expected[c])]
            filled += 1
    assert filled >= 4


def test_the_loss_is_the_mean_conditional_entropy_of_a_cell(
    exact: AttentionClassifier, excess: tuple[float, float]
) -> None:
    """At the best model, by enumeration; the untrained one is near the entropy of equal chances."""
    assert exact.train_loss_[-1] == pytest.approx(excess[1], abs=1e-3)
    assert exact.train_loss_[-1] >= excess[1] - 1e-6
    assert exact.train_loss_[0] == pytest.approx((3 * np.log(2) + 4 / 3 * np.log(3)) / (13 / 3), rel=0.3)


def draw_table(rows: int = 60, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "size": random.choice(["s", "m", "l"], rows),
            "age": random.integers(0, 4, rows),
            "mass": random.normal(size=rows),
        }
    )
    return frame, np.where(random.random(rows) < 0.9, frame["mass"] > 0, frame["size"] == "s")


def small(**parameters: Any) -> AttentionClassifier:
    return AttentionClassifier(**{"max_epochs": 3, "random_state": 0, "device": "cpu", **parameters})


def test_weights_are_repetitions_where_nothing_is_random() -> None:
    """Without dropout and with all copies in one batch, a weight of 2 is a row that occurs twice, one of 0 is none.

    Sums in another order differ by less than 1e-6, other weights by more than 0.1.
    """
    frame, labels = draw_table(20)
    weights = np.arange(20) % 3
    options = {"dropout": 0, "batch_size": 10_000, "n_bins": 3, "max_epochs": 5, "learning_rate": 0.02}
    weighted = small(**options).fit(frame, labels, weights)
    rows = np.repeat(np.arange(20), weights)
    repeated = small(**options).fit(frame.iloc[rows], labels[rows])
    assert weighted.coding_.columns[2].edges == repeated.coding_.columns[2].edges
    np.testing.assert_allclose(weighted.train_loss_, repeated.train_loss_, rtol=1e-5)
    np.testing.assert_allclose(weighted.predict_proba(frame), repeated.predict_proba(frame), rtol=0, atol=1e-4)
    assert np.abs(small(**options).fit(frame, labels).predict_proba(frame) - weighted.predict_proba(frame)).max() > 0.1


def test_equal_rows_have_equal_probabilities_and_vectors_to_the_last_digit(exact: AttentionClassifier) -> None:
    # Kernels round rows at the end of a product, and those of a second, small one, in another way.
    features = pd.DataFrame({"color": ["red"] * 4099, "weight": ["light"] * 4099})
    assert len(np.unique(exact.predict_proba(features), axis=0)) == 1
    assert len(np.unique(exact.transform(features), axis=0)) == 1
    hidden = exact.predict_cell(features.assign(color=["red", "blue", None] * 1366 + ["red"]), "color")
    assert len(np.unique(hidden.to_numpy(), axis=0)) == 1


def test_an_unlabelled_row_is_learned_from_but_its_label_is_not_predicted() -> None:
    frame, labels = draw_table()
    some = pd.Series(labels, dtype=object)
    some[10:] = None
    few = small().prepare(frame, some)
    assert (few.codes[10:, -1] == MISSING).all()
    assert (few.codes[:, :-1] >= 0).all()
    copies = MaskedRows(few.layout, few.codes[None], few.weights[None], 1000)
    column = torch.cat([batch[1][0] for batch in copies.epoch(0)])
    assert [int((column == at).sum()) for at in range(4)] == [60, 60, 60, 10]


def test_columns_are_learned_from_unlabelled_rows() -> None:
    """The second column repeats the first one. Six rows have a label, of three of the six numbers.

    The least loss is 0. Of 246 masked cells, 18 or more are a first one of the same number and without a label; if
    another number were as probable there, the loss were more than log 2 times their share.
    """
    first = np.arange(120) % 6
    rows = pd.DataFrame({"first": first, "second": first})
    labels = pd.Series(first, dtype=object).where((np.arange(120) < 12) & (first < 3), None)
    model = small(max_epochs=15, learning_rate=0.02, dropout=0, batch_size=32).fit(rows, labels)
    assert measure_loss(model, rows, labels) < np.log(2) * 18 / 246
    assert model.predict_cell(rows.assign(first=None), "first").idxmax(1).tolist() == first.tolist()


def test_tables_that_are_fitted_together_end_as_each_alone() -> None:
    """Also in the rows that are held out, and with tables of two shapes.

    Sums in another order differ by about 1e-7, and losses that decide when a training stops by 1e-3 and more.
    """
    tables = [draw_table(seed=seed) for seed in range(3)]
    tables[1][0].loc[0, "size"] = None
    options = {"max_epochs": 12, "validation_fraction": 0.2, "patience": 2, "learning_rate": 0.02}
    together = fit_together([small(random_state=seed, **options) for seed in range(3)], tables)
    for seed, (model, table) in enumerate(zip(together, tables, strict=True)):
        alone = small(random_state=seed, **options).fit(*table)
        np.testing.assert_allclose(model.predict_proba(table[0]), alone.predict_proba(table[0]), rtol=0, atol=1e-4)
        epochs = alone.n_iter_
        np.testing.assert_allclose(model.validation_loss_[:epochs], alone.validation_loss_, rtol=1e-5)


def test_a_patience_of_0_never_stops() -> None:
    frame, labels = draw_table()
    options = {"max_epochs": 5, "validation_fraction": 0.2, "learning_rate": 1.0}
    always, stopped = (small(patience=patience, **options).fit(frame, labels) for patience in (0, 1))
    assert stopped.n_iter_ < always.n_iter_ == 5


@pytest.mark.parametrize(("copies", "patience"), [(1, 10), (30, 4), (45, 3)])
def test_few_held_out_rows_are_waited_for_longer(copies: int, patience: int) -> None:
    """Their loss goes up and down by chance."""
    frame, labels = draw_table()
    frame, labels = pd.concat([frame] * copies), np.concatenate([labels] * copies)
    options = {"max_epochs": 40, "validation_fraction": 0.2, "learning_rate": 1.0, "epoch_cells": 200}
    losses = small(**options).fit(frame, labels).validation_loss_
    assert len(losses) - 1 - losses.argmin() == patience
    assert len(losses) < 40


@pytest.mark.parametrize(("batch_size", "threads"), [(32, 1), (1000, 2)])
def test_only_large_batches_are_divided_between_threads(batch_size: int, threads: int) -> None:
    """The number of threads is as before afterwards."""
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        model = small(max_epochs=1, batch_size=batch_size, n_heads=5, head_size=4)
        fit_together([model], [draw_table()], lambda _: seen.append(torch.get_num_threads()))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {threads}


def test_edges_of_bins_are_quantiles_of_the_training_rows_only() -> None:
    frame, labels = draw_table(100)
    model = small(n_bins=4).fit(frame[:60], labels[:60])
    edges = model.coding_.columns[2].edges
    assert edges is not None
    ranks = np.searchsorted(np.sort(frame["mass"][:60]), edges, side="right")
    assert ranks.tolist() == [15, 30, 45]
    assert np.bincount(model.coding_.columns[2].encode(frame["mass"][:60], "error")).tolist() == [15] * 4
    ordered = np.sort(frame["mass"][:60])
    assert model.coding_.columns[2].values == tuple(np.median(ordered[at : at + 15]) for at in range(0, 60, 15))
    before = model.predict_proba(frame)
    shifted = frame.assign(mass=frame["mass"] + 1000)
    model.predict(shifted)
    assert model.coding_.columns[2].edges == edges
    np.testing.assert_array_equal(model.predict_proba(frame), before)
    last = small(n_bins=4).fit(frame[:60].assign(mass=sorted(frame["mass"][:60])), labels[:60])
    assert last.coding_.columns[2].encode(pd.Series([-1e9, 1e9]), "error").tolist() == [0, 3]


@pytest.mark.parametrize("scale", [1.0, 1e-42, 1e-8, 2.0**24, 1e30])
def test_single_precision_keeps_the_bins_of_training_values(scale: float) -> None:
    """Wherever it keeps two values apart, also near a power of two, where the values below it are nearer together."""
    random = np.random.default_rng(0)
    for _ in range(2000):
        low, high = np.sort((1 + random.integers(-6, 7, 2) * 2.0**-26) * scale * 2.0 ** random.integers(-3, 4))
        if low == high:
            continue
        edge = part_numbers(low, high)
        assert low <= edge < high
        rounded_low, rounded_high = np.float32(low), np.float32(high)
        assert rounded_low == rounded_high or float(rounded_low) <= edge < float(rounded_high)


def test_edges_of_bins_are_in_the_middle_of_numbers() -> None:
    assert part_numbers(1.0, 4.0) == 2.5
    for low, high in ((0.0, 5e-324), (1.0, 1 + 2.0**-52), (-1.7e308, 1.7e308), (1e308, 1.7e308)):
        assert low <= part_numbers(low, high) < high


def test_seconds_that_single_precision_does_not_tell_apart_are_noted() -> None:
    seconds = pd.DataFrame({"at": 1.7e9 + np.arange(40.0), "near": np.arange(40.0)})
    coding = small().fit(seconds, [0, 1] * 20).coding_
    assert [*coding.describe_cells(seconds, "error")] == []
    (note,) = coding.describe_cells(seconds.astype("float32"), "error")
    assert_states(note, "'at'", "40 of 40", "single precision")


def test_each_of_few_whole_numbers_has_a_bin() -> None:
    frame, labels = draw_table()
    model = small().fit(frame, labels)
    size, age, mass, response = model.coding_.columns
    assert size.values == ("l", "m", "s")
    assert age.values == (0, 1, 2, 3)
    assert age.edges == (0.5, 1.5, 2.5)
    assert age.encode(pd.Series([-7, 0, 1.4, 3, 11, None]), "error").tolist() == [0, 0, 1, 3, 3, -1]
    assert mass.size == 10
    assert response.values == (False, True)
    ordered = frame.assign(size=pd.Categorical(frame["size"], ["s", "m", "l", "xl"], ordered=True))
    assert small().fit(ordered, labels).coding_.columns[0].values == ("s", "m", "l")


def test_a_further_data_set_has_the_columns_categories_and_classes_of_the_first_one() -> None:
    """Of 25 rows, both features are right in 16, one of them in 4 and the other in 4."""
    truth = np.repeat([0, 1], 100)
    wrong = np.tile([0] * 16 + [1] * 4 + [2] * 4 + [3], 8)
    first, second = (np.where(wrong & bit, 1 - truth, truth) for bit in (1, 2))
    rows = pd.DataFrame({"first": first, "second": np.where(second == 1, "a", "b")})
    model = small(learning_rate=0.02)
    for half in (slice(0, None, 2), slice(1, None, 2)) * 5:
        model.partial_fit(rows[half], truth[half], classes=[0, 1])
    assert model.score(rows, truth) >= 0.8
    before = model.predict_proba(rows)
    for bad, labels, facts in (
        (rows.assign(third=1), truth, ["third"]),
        (rows[["first"]], truth, ["second"]),
        (rows[["second", "first"]], truth, ["same order"]),
        (rows.assign(second="c"), truth, ["'second'", "'c'", "unseen"]),
        (rows, truth + 1, ["'response'", "2", "labels"]),
    ):
        with pytest.raises(ValueError, match=".*".join(map(re.escape, facts))):
            model.partial_fit(bad, labels)
        np.testing.assert_array_equal(model.predict_proba(rows), before)
    model.set_params(unseen="mask").partial_fit(rows.assign(second="c"), truth)
    assert model.columns_ == ["first", "second", "response"]


def test_a_missing_value_among_texts_of_a_list_is_missing() -> None:
    """NumPy would write it as the text "nan"."""
    cells = [[text, number] for text, number in (("a", 1), (np.nan, 2), ("b", np.nan), (None, 1))] * 5
    model = small().fit(cells, ["u", np.nan, "v", "u"] * 5)
    assert model.classes_.tolist() == ["u", "v"]
    assert [column.values for column in model.coding_.columns[:-1]] == [("a", "b"), (1, 2)]
    texts = [["a"], [np.nan], ["b"]]
    assert small().fit(texts * 5, ["u", "v", "u"] * 5).coding_.columns[0].values == ("a", "b")
    assert model.impute([[np.nan, 1]])[0, 0] in ("a", "b")


def test_a_further_data_set_may_have_no_label() -> None:
    rows = pd.DataFrame({"a": ["x", "y"] * 10})
    model = small().partial_fit(rows, ["u", "v"] * 10)
    before = model.predict_cell(rows, "a")
    model.partial_fit(rows, [None] * 20)
    assert model.classes_.tolist() == ["u", "v"]
    assert not model.predict_cell(rows, "a").equals(before)
    with refuses(TableError, "no label"):
        small().partial_fit(rows, [None] * 20)


def test_a_data_set_that_cannot_be_used_leaves_the_model_as_it_was() -> None:
    rows = pd.DataFrame({"a": ["x", "y"] * 10, "age": [20, 30] * 10})
    labels = ["u", "v"] * 10
    model = small().partial_fit(rows, labels)
    before = model.predict_proba(rows)
    for bad, wrong, facts in (
        (rows, np.linspace(0, 1, 20), ["fractions"]),
        (rows.assign(a="z"), labels, ["row 1", "'a'", "'z'", "x, y"]),
        (rows.assign(age=pd.Timestamp("2020-01-01")), labels, ["'age'"]),
    ):
        with refuses(TableError, *facts):
            model.partial_fit(bad, wrong)
        np.testing.assert_array_equal(model.predict_proba(rows), before)
    with refuses(TableError, "dates"):
        model.fit(rows.assign(age=pd.Timestamp("2020-01-01")), labels)
    np.testing.assert_array_equal(model.predict_proba(rows), before)


def test_a_training_that_fails_or_is_interrupted_leaves_the_model_as_it_was() -> None:
    rows = pd.DataFrame({"a": ["x", "y"] * 10, "age": [20, 30] * 10})
    labels = np.array(["u", "v"] * 10)
    other = pd.DataFrame({"b": ["p", "q", "r", "s"] * 5})
    models = [small().fit(rows, labels) for _ in range(2)]
    before = models[0].predict_proba(rows)

    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    diverging = np.where(np.arange(20) < 10, 1.0, 3e38)  # single precision cannot add them
    for fit in (
        lambda: fit_together(models, [(other, labels)] * 2, interrupt),
        lambda: models[0].fit(other, labels, diverging),
        lambda: models[0].set_params(batch_size=4).partial_fit(rows, labels[::-1], None, diverging),
    ):
        with pytest.raises((KeyboardInterrupt, TrainingError)):
            fit()
        for model in models:
            assert model.columns_ == ["a", "age", "response"]
            np.testing.assert_array_equal(model.predict_proba(rows), before)
    further = [model.set_params(batch_size=4).partial_fit(rows, labels).predict_proba(rows) for model in models]
    np.testing.assert_array_equal(*further)


def test_columns_that_no_text_names_are_known_by_their_place() -> None:
    rows = pd.DataFrame({0: ["x", "y"] * 10, 1: [1, 2] * 10, 2: [3, 4] * 10})
    model = small().partial_fit(rows, ["u", "v"] * 10)
    for other in (rows[[1, 2]], rows.assign(**{"3": 1}).set_axis(range(4), axis=1)):
        with pytest.raises(ValueError, match=f"{other.shape[1]} features.*3 features"):
            model.partial_fit(other, ["u", "v"] * 10)


def test_it_is_an_estimator_among_others() -> None:
    frame, labels = draw_table()
    pipeline = make_pipeline(
        FunctionTransformer(lambda rows: rows.drop(columns="age")), small(n_bins=3, max_epochs=30, learning_rate=0.02)
    )
    scores = cross_val_score(pipeline, frame, labels, cv=3)
    assert scores.mean() > 0.6
    model = small().fit(frame, labels)
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict_proba(frame), model.predict_proba(frame))
    again = clone(model).fit(frame, labels)
    np.testing.assert_array_equal(again.predict_proba(frame), model.predict_proba(frame))
    assert not np.array_equal(small(random_state=1).fit(frame, labels).predict_proba(frame), model.predict_proba(frame))
    assert model.get_feature_names_out().tolist() == [f"attentionclassifier{number}" for number in range(20)]
    assert model.transform(frame).shape == (60, 20)


AMOUNTS = np.random.default_rng(0).normal(size=90)
STEPS = pd.DataFrame({"step": np.digitize(AMOUNTS, [-1, -0.4, 0, 0.4, 1]), "sign": AMOUNTS > 0})
# Labels whose dtype has another order than the alphabet or the numbers.
ORDERED = {
    "cut": pd.Series(pd.cut(AMOUNTS, [-9, -0.4, 0.4, 9], labels=["low", "mid", "high"])),
    "sizes": pd.Series(pd.Categorical(np.where(AMOUNTS > 0, "large", "small"), ["small", "large"])),
    "numbers": pd.Series(pd.Categorical((AMOUNTS > 0).astype(int), [1, 0], ordered=True)),
}


@pytest.mark.parametrize("kind", ["cut", "numbers", pytest.param("sizes", marks=pytest.mark.slow)])
def test_classes_have_the_order_that_scorers_of_scikit_learn_expect(kind: str) -> None:
    """The step decides the label, so that any other order gives a poor score."""
    labels = ORDERED[kind]
    model = small(max_epochs=25, learning_rate=0.03, dropout=0, batch_size=32)
    classes = LogisticRegression().fit(STEPS, labels).classes_
    for fitted in (model.fit(STEPS, labels), clone(model).partial_fit(STEPS, labels, classes=classes)):
        assert fitted.classes_.tolist() == classes.tolist() == np.unique(labels).tolist()
    for scorer, least in {"roc_auc_ovr": 0.95, "neg_log_loss": -0.4}.items():
        assert get_scorer(scorer)(model, STEPS, labels) > least


@pytest.mark.parametrize("kind", ["sizes", pytest.param("cut", marks=pytest.mark.slow)])
def test_a_model_of_ordered_labels_is_calibrated(kind: str) -> None:
    model = small(max_epochs=25, learning_rate=0.03, dropout=0, batch_size=32)
    calibrated = CalibratedClassifierCV(model, cv=2).fit(STEPS, ORDERED[kind])
    assert calibrated.score(STEPS, ORDERED[kind]) > 0.9


def test_labels_that_cannot_be_sorted_are_refused() -> None:
    with refuses(TableError, "sorted"):
        small().fit(STEPS, pd.Series(pd.Categorical([1, "a", "a"] * 30)))


def test_early_stopping_ends_at_the_lowest_loss_on_rows_that_are_held_out() -> None:
    frame, labels = draw_table(200)
    model = small(max_epochs=300, validation_fraction=0.25, patience=5, learning_rate=0.02).fit(frame, labels)
    assert model.n_iter_ == len(model.validation_loss_) == model.validation_loss_.argmin() + 6 < 300


def test_attention_on_cells_is_a_distribution_and_encodings_have_names() -> None:
    frame, labels = draw_table()
    model = small().fit(frame, labels)
    attention = model.attention(frame[:7], labels[:7])
    assert attention.shape == (7, 5, 4, 4)
    assert (attention > 0).all()
    np.testing.assert_allclose(attention.sum(-1), 1)
    assert not np.allclose(attention, model.attention(frame[:7]))
    encodings = model.category_encodings_
    assert encodings.index[:3].tolist() == [("size", "l"), ("size", "m"), ("size", "s")]
    assert encodings.shape == (3 + 4 + 10 + 2, 20)
    shared = small(vocabulary="shared").fit(frame, labels).category_encodings_
    np.testing.assert_array_equal(shared.loc[("size", "l")], shared.loc[("age", 0)])


def test_impute_fills_missing_cells_only_and_keeps_kinds() -> None:
    frame, labels = draw_table()
    model = small().fit(frame, labels)
    holes = frame.copy()
    holes.loc[2, "size"] = holes.loc[3, "mass"] = None
    filled = model.impute(holes)
    pd.testing.assert_frame_equal(filled.drop([2, 3]), frame.drop([2, 3]), check_dtype=False)
    assert filled["size"][2] in {"s", "m", "l"}
    assert filled["mass"][3] in model.coding_.columns[2].values
    assert filled["mass"].dtype == np.float64
    array = small().fit(frame[["age", "mass"]].to_numpy(), labels).impute(holes[["age", "mass"]].to_numpy())
    assert array.dtype == np.float64
    assert not np.isnan(array).any()


def test_without_a_response_it_is_the_network_of_the_same_columns_with_one() -> None:
    """The last column is what the response was, so the training is the same."""
    frame, labels = draw_table()
    table = frame.assign(y=labels)
    parameters: dict[str, Any] = {"max_epochs": 3, "random_state": 1, "device": "cpu"}
    one, other = AttentionClassifier(**parameters).fit(frame, labels), AttentionImputer(**parameters).fit(table)
    assert one.columns_[:-1] == other.columns_[:-1]
    np.testing.assert_array_equal(one.train_loss_, other.train_loss_)
    np.testing.assert_array_equal(one.predict_proba(frame), other.predict_cell(table, "y"))
    np.testing.assert_array_equal(one.attention(frame, labels), other.attention(table))
    holes = table.astype(object)
    holes.loc[4, ["size", "y"]] = None
    filled, cells = other.transform(holes), other.find_cells(holes)
    assert cells[["row", "column"]].to_numpy().tolist() == [[4, "size"], [4, "y"]]
    assert filled.loc[4, ["size", "y"]].tolist() == cells["value"].tolist()
    assert other.get_feature_names_out().tolist() == ["size", "age", "mass", "y"]
    with refuses(UsageError, "labels", "y"):
        other.find_cells(table, labels)


def test_whole_numbers_keep_all_their_digits() -> None:
    large = 2**53 + 1
    frame, labels = pd.DataFrame({"place": [large, large + 1, 7] * 4}), pd.Series([0, 1, 1] * 4, name="y")
    model = small().fit(frame, labels)
    assert model.coding_.columns[0].values == (7, large, large + 1)
    assert len(model.predict(frame)) == len(frame)


FRAME, TARGET = draw_table()


@pytest.mark.parametrize(
    ("rows", "labels", "facts"),
    [
        (FRAME[:0], TARGET[:0], ["0 rows"]),
        (FRAME[[]], TARGET, ["0 columns"]),
        (FRAME.set_axis(["a", "b", "a"], axis=1), TARGET, ["'a'", "rename"]),
        (FRAME, TARGET[:5], [5, 60]),
        (FRAME, np.zeros(60), ["one class", 2]),
        (FRAME, np.full(60, None), ["no label"]),
        (FRAME, np.arange(60).astype(str), [60, "classes"]),
        (FRAME, np.linspace(0, 1, 60), ["fractions", "qcut"]),
        (FRAME.assign(mass=np.inf), TARGET, ["'mass'", "infinity"]),
        (FRAME.assign(mass=pd.Timestamp("2020-01-01")), TARGET, ["'mass'", "dates"]),
        (FRAME.assign(mass=[[1]] * 60), TARGET, ["'mass'"]),
    ],
)
def test_tables_that_cannot_be_used_are_refused(rows: pd.DataFrame, labels: Any, facts: list[object]) -> None:
    with refuses(TableError, *facts):
        small().fit(rows, labels)
    assert issubclass(TableError, ValueError)


def test_an_unseen_value_is_an_error_or_a_missing_one() -> None:
    model = small().fit(FRAME, TARGET)
    new = FRAME.assign(size="xxl")
    with refuses(TableError, "'size'", "'xxl'", 'unseen="mask"'):
        model.predict(new)
    masked = small(unseen="mask").fit(FRAME, TARGET)
    pd.testing.assert_frame_equal(masked.impute(new), new, check_dtype=False)  # it is no missing cell
    np.testing.assert_array_equal(masked.predict_proba(new), masked.predict_proba(FRAME.assign(size=None)))
    with refuses(TableError, "row 1", "'mass'", "'heavy'", "number"):
        model.predict(FRAME.assign(mass="heavy"))


KINDS = {
    "whole numbers": np.arange(60) % 4,
    "booleans": np.arange(60) % 2 == 0,
    "bins": np.linspace(0, 1, 60),
    "texts": np.array(["p", "q", "r"])[np.arange(60) % 3],
}


@pytest.mark.parametrize("kind", KINDS)
def test_one_cell_does_not_decide_how_the_others_are_read(kind: str) -> None:
    """One text makes texts of all cells of a column of a file; the other rows keep their predictions."""
    table = pd.DataFrame({"a": KINDS[kind], "b": np.arange(60) % 5})
    model = small(unseen="mask", learning_rate=0.02).fit(table, TARGET)
    texts = table["a"].astype(str)
    texts[17] = "n/a"
    changed = table.assign(a=texts)
    missing = table.astype({"a": object})
    missing.loc[17, "a"] = None
    np.testing.assert_array_equal(model.predict_proba(changed), model.predict_proba(missing))
    filled = model.impute(changed)
    assert filled["a"].tolist() == texts.tolist()
    model.set_params(unseen="error")
    with refuses(TableError, "row 18", "column 'a'", "'n/a'", 'unseen="mask"') as caught:
        model.predict(changed)
    assert "other row" not in str(caught.value)


@pytest.mark.parametrize(
    ("parameters", "facts"),
    [({"n_heads": 0}, ["n_heads", 1]), ({"dropout": 1.5}, ["dropout"]), ({"vocabulary": "row"}, ["row", "shared"]),
     ({"n_bins": 1}, ["n_bins", 2]), ({"unseen": "skip"}, ["skip", "mask"]), ({"max_epochs": 0}, ["max_epochs"]),
     ({"patience": 3}, ["patience", "validation_fraction"]), ({"device": "tpu"}, ["tpu"])],
)  # fmt: skip
def test_parameters_out_of_range_are_refused(parameters: dict[str, Any], facts: list[object]) -> None:
    with refuses(UsageError, *facts):
        small(**parameters).fit(FRAME, TARGET)


def test_the_defaults_are_those_of_the_plain_recipe() -> None:
    model = AttentionClassifier()
    sizes = (model.n_heads, model.n_heads * model.head_size, model.feed_forward, model.batch_size)
    assert sizes == (HEADS, WIDTH, HIDDEN, BATCH)
    assert (model.dropout, model.learning_rate) == (DROPOUT, RATE)


SEEDS, ROWS, EPOCHS, CLASSES = 20, 400, 25, 5


def draw_codes(seed: int) -> np.ndarray:
    """Three features and the sum of two of them, in five classes."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(2 * ROWS, 3))
    values = np.column_stack([x, x[:, 0] + x[:, 1]])
    edges = np.quantile(values, np.arange(1, CLASSES) / CLASSES, axis=0)
    return np.column_stack([np.searchsorted(edges[:, at], values[:, at]) for at in range(4)])


@pytest.mark.explore
def test_scores_have_the_same_distribution_over_seeds() -> None:
    """Accuracy and log-loss of the test rows, by Kolmogorov and Smirnov, and by Welch's test of the means."""
    data = [draw_codes(seed) for seed in range(SEEDS)]
    plain = [fit_plain(each[:ROWS], CLASSES, epochs=EPOCHS, seed=seed) for seed, each in enumerate(data)]
    models = [
        AttentionClassifier(vocabulary="shared", max_epochs=EPOCHS, random_state=seed, device="cpu")
        for seed in range(SEEDS)
    ]
    fast = fit_together(models, [(each[:ROWS, :3], each[:ROWS, 3]) for each in data])
    chances = {
        "plain": [predict_plain(model, each[ROWS:, :3]) for model, each in zip(plain, data, strict=True)],
        "fast": [model.predict_proba(each[ROWS:, :3]) for model, each in zip(fast, data, strict=True)],
    }
    truths = [each[ROWS:, 3] for each in data]
    scores = {
        name: (
            [float(np.mean(chance.argmax(1) == truth)) for chance, truth in zip(values, truths, strict=True)],
            [log_loss(truth, chance, labels=range(CLASSES)) for chance, truth in zip(values, truths, strict=True)],
        )
        for name, values in chances.items()
    }
    assert np.mean(scores["plain"][0]) > 0.3  # it has learned: chance is 0.2
    for one, other in zip(scores["plain"], scores["fast"], strict=True):
        assert stats.ks_2samp(one, other).pvalue > 0.01
        assert stats.ttest_ind(one, other, equal_var=False).pvalue > 0.01
        assert stats.levene(one, other).pvalue > 0.01


BATCHES = "mini-batches in a random order: weights are repetitions only with one batch and without dropout"
EXPECTED = {"check_sample_weight_equivalence_on_dense_data": BATCHES}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [AttentionClassifier(max_epochs=20, device="cpu"), AttentionImputer(max_epochs=2, device="cpu")],
    expected_failed_checks=lambda estimator: EXPECTED if isinstance(estimator, AttentionClassifier) else {},
)
def test_checks_of_scikit_learn(estimator: TableModel, check: Any) -> None:
    check(estimator)


def test_a_column_that_was_empty_in_training_stays_empty() -> None:
    table = pd.DataFrame({"a": ["x", "y"] * 10, "b": ["u", "v"] * 10, "empty": [None] * 20})
    imputer = AttentionImputer(max_epochs=1, device="cpu", random_state=0).fit(table)
    cells = imputer.find_cells(table.assign(a=[None, *table["a"][1:]]))
    assert cells[["row", "column"]].to_numpy().tolist() == [[0, "a"]]
