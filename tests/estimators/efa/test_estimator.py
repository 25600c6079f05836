"""Models of tidy tables: what they learn, say and draw, and which tables they refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from scipy.optimize import brentq
from scipy.special import softmax
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold
from support.messages import refuses
from support.sequences import make_efa, measure_fit
from torch.distributions import constraints

from attngeo.errors import (
    DataError,
    InterruptedTrainingError,
    TableError,
    TrainingError,
    UnknownColumnError,
    UnsupportedModelError,
    UsageError,
)
from attngeo.estimators import ExponentialFamilyAttention
from attngeo.estimators.efa.families import ExponentialFamily, Gaussian, parse_family
from attngeo.papers.wibisono2025.synthetic import synthetic_ratings

SMALL: dict[str, Any] = {"width": 4, "max_epochs": 2, "validation_fraction": 0, "learning_rate": 0.01}
FAMILIES = {
    "gaussian": [0.5, -1.0], "gaussian:2": [0.5, -1.0], "poisson": [0, 3], "poisson:1": [1, 3],
    "poisson-from-1": [1, 2], "bernoulli": [0, 1], "binomial:4": [0, 4], "negative-binomial:2": [0, 5],
    "gamma:2": [0.5, 3.0], "ordinal:3": [0, 2],
}  # fmt: skip


def draw_table(values: list[float] | None = None) -> pd.DataFrame:
    """Sequences of 2 to 4 rows, with items and coordinates; values are drawn from those given."""
    draw = np.random.default_rng(0)
    rows = [
        {"sequence": name, "item": item, "x": float(draw.normal()), "y": float(draw.normal())}
        for name in "abcdef"
        for item in draw.permutation(["milk", "bread", "tea", "jam"])[: draw.integers(2, 5)]
    ]
    frame = pd.DataFrame(rows)
    return frame if values is None else frame.assign(value=draw.choice(values, len(frame)).astype(float))


def fit(frame: Any, **options: Any) -> ExponentialFamilyAttention:
    return make_efa(**SMALL | options).fit(frame)


def density(of_mean: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Callable[..., np.ndarray]:
    """The logarithm of a density of SciPy at the rows of a table, by the predicted mean and the value."""
    return lambda model, frame: of_mean(model.predict(frame)["predicted_mean"].to_numpy(), frame["value"].to_numpy())


def normal_density(model: ExponentialFamilyAttention, frame: pd.DataFrame) -> np.ndarray:
    deviation = float(model.model_.families[0].variance_as(torch.zeros(())).detach()) ** 0.5
    found: np.ndarray = stats.norm.logpdf(frame["value"], model.predict(frame)["predicted_mean"], deviation)
    return found


def ordinal_density(model: ExponentialFamilyAttention, frame: pd.DataFrame) -> np.ndarray:
    """Log softmax(η·k + b)_y, with the η whose mean is the predicted one."""
    levels, weights = np.arange(3), model.model_.families[0].weights.detach().double().numpy()
    chances = [
        softmax(
            brentq(lambda eta, mean=mean: softmax(eta * levels + weights) @ levels - mean, -50, 50) * levels + weights
        )
        for mean in model.predict(frame)["predicted_mean"]
    ]
    found: np.ndarray = np.log(np.array(chances)[range(len(frame)), frame["value"].astype(int)])
    return found


DENSITIES: dict[str, Callable[[ExponentialFamilyAttention, pd.DataFrame], np.ndarray]] = {
    "gaussian": normal_density,
    "poisson": density(lambda mean, value: stats.poisson.logpmf(value, mean)),
    "poisson-from-1": density(lambda mean, value: stats.poisson.logpmf(value - 1, mean - 1)),
    "bernoulli": density(lambda mean, value: stats.bernoulli.logpmf(value, mean)),
    "binomial": density(lambda mean, value: stats.binom.logpmf(value, 4, mean / 4)),
    "negative-binomial": density(lambda mean, value: stats.nbinom.logpmf(value, 2, 2 / (2 + mean))),
    "gamma": density(lambda mean, value: stats.gamma.logpdf(value, 2, scale=mean / 2)),
    "ordinal": ordinal_density,
}


def randomise(model: ExponentialFamilyAttention, size: float = 1) -> ExponentialFamilyAttention:
    """Parameters of the size that keeps numbers near 1, or larger, so that what a position sees matters."""
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.model_.network.parameters():
            weight.copy_(size * torch.randn_like(weight) / weight.shape[-1] ** 0.5)
    return model


@pytest.mark.parametrize("direction", ["bi", "uni"])
def test_values_are_learned_from_their_context(direction: str) -> None:
    """The exact means are known. The error is a fifth, or less, of that of a mean for each item."""
    data = synthetic_ratings(600)
    train, test = data[data["sequence"] < 450], data[data["sequence"] >= 450]
    options: dict[str, Any] = {"max_epochs": 8, "learning_rate": 0.005, "batch_size": 64}
    model = ExponentialFamilyAttention(direction=direction, **options).fit(train)
    per_item = test["item"].map(train.groupby("item")["value"].mean())
    error, of_items = (
        ((found - test["mean"]) ** 2).mean() for found in (model.predict(test)["predicted_mean"], per_item)
    )
    assert error < of_items / 2
    assert model.score(test) == pytest.approx(float(model.log_prob(test).mean()))


@pytest.mark.parametrize("direction", ["bi", "uni"])
def test_items_that_follow_each_other_are_learned(direction: str) -> None:
    """An item has probability 1 if one before it is known. If another one is as probable, −log p is at least log 2."""
    starts = np.random.default_rng(0).integers(0, 5, 80)
    rows = [{"sequence": n, "item": (start + k) % 5} for n, start in enumerate(starts) for k in range(4)]
    frame = pd.DataFrame(rows)
    options: dict[str, Any] = {"max_epochs": 40, "learning_rate": 0.02, "batch_size": 20, "patience": 0, "order": True}
    model = ExponentialFamilyAttention(direction=direction, **options).fit(frame)
    later = frame.groupby("sequence").cumcount() > 0
    loss = -float(model.log_prob(frame)[later].mean())
    assert loss < 0.05
    found = model.predict(frame)
    assert (found["predicted_item"] != frame["item"])[later].mean() <= loss / np.log(2)
    chances = model.predict_proba(frame)
    assert chances.columns.tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(chances.sum(axis=1), 1, rtol=1e-5)
    own = chances.to_numpy()[np.arange(len(frame)), frame["item"]]
    np.testing.assert_allclose(np.log(own), model.log_prob(frame), rtol=1e-4, atol=1e-5)


OF_FACTORS = ("gaussian", "ordinal:3")


@pytest.mark.parametrize(
    ("name", "model"),
    [
        *((name, "efa") for name in FAMILIES),
        *(pytest.param(name, "fm", marks=() if name in OF_FACTORS else pytest.mark.slow) for name in FAMILIES),
    ],
)  # fmt: skip
def test_each_family_is_fitted_and_drawn_from(name: str, model: str) -> None:
    frame = draw_table(FAMILIES[name])
    fitted = fit(frame, family=name, model=model)
    expected = DENSITIES[name.partition(":")[0]](fitted, frame)
    np.testing.assert_allclose(fitted.log_prob(frame), expected, rtol=1e-4, atol=1e-4)
    with torch.no_grad():  # counts that raise each other would grow without limit
        for weight in fitted.model_.network.parameters():
            weight.mul_(0.1)
    drawn = fitted.sample(data=frame.drop(columns="value"), seed=3, sweeps=3)
    assert fitted.model_.families[0].supports(torch.tensor(drawn["value"].to_numpy())).all()
    assert drawn["value"].dtype == ("float64" if name.partition(":")[0] in ("gaussian", "gamma") else "int64")
    assert drawn["item"].equals(frame["item"])
    assert drawn.equals(fitted.sample(data=frame, seed=3, sweeps=3))


class Waiting(ExponentialFamily):
    """Exponential times; the network gives the logarithm of the rate."""

    values, support = "positive numbers", constraints.positive

    def __init__(self, slowest: float = 1e-6) -> None:
        super().__init__()
        self.slowest = slowest

    def log_partition(self, natural: torch.Tensor) -> torch.Tensor:
        return -torch.log(-natural)

    def log_base(self, value: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(value)

    def distribution(self, natural: torch.Tensor) -> torch.distributions.Distribution:
        return torch.distributions.Exponential(-natural)

    def natural(self, raw: torch.Tensor) -> torch.Tensor:
        return -torch.exp(-raw) - self.slowest


def test_a_family_of_ones_own_is_given_as_an_instance(tmp_path: Path) -> None:
    family = Waiting(0.01)
    rows = draw_table([0.5, 2.0, 7.0])
    model = fit(rows, family=family)
    assert model.model_.families[0] is not family
    assert model.model_.families[0].slowest == 0.01
    rate = 1 / torch.tensor(model.predict(rows)["predicted_mean"].to_numpy())
    expected = torch.distributions.Exponential(rate).log_prob(torch.tensor(rows["value"].to_numpy()))
    np.testing.assert_allclose(model.log_prob(rows), expected, rtol=1e-5, atol=1e-5)
    assert measure_fit(model)["train"].without_context < 0
    model.save(tmp_path / "m")
    loaded = ExponentialFamilyAttention.load(tmp_path / "m", Waiting(0.01))
    pd.testing.assert_series_equal(loaded.log_prob(rows), model.log_prob(rows))
    with pytest.raises(TableError, match="positive numbers"):
        model.log_prob(rows.assign(value=-1.0))
    with pytest.raises(UnsupportedModelError, match="Waiting"):
        ExponentialFamilyAttention.load(tmp_path / "m")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_named_by_a_text_that_gives_it_again(name: str) -> None:
    family = parse_family(name)
    assert parse_family(family.text).text == family.text
    assert fit(draw_table(FAMILIES[name]), family=family).options_.family == family.text


def test_it_is_an_estimator_of_scikit_learn() -> None:
    """Groups of sequences are divided, and the scores are those of models that did not see them."""
    rows = synthetic_ratings(60)
    model = make_efa(**SMALL | {"max_epochs": 3, "family": Gaussian(), "norm": True})
    copied = clone(model)
    assert copied.get_params()["architecture"] == model.architecture
    assert copied.set_params(n_heads=1).n_heads == 1
    search = GridSearchCV(model, {"n_layers": [1, 2]}, cv=GroupKFold(2))
    search.fit(rows, groups=rows["sequence"])
    scores = search.cv_results_["mean_test_score"]
    assert np.isfinite(scores).all()
    assert search.best_estimator_.score(rows) == pytest.approx(search.score(rows))
    train = rows[rows["sequence"] % 3 > 0]
    first, again = (make_efa(**SMALL | {"random_state": np.random.RandomState(3)}).fit(train) for _ in range(2))
    assert first.score(rows) == again.score(rows)


@pytest.mark.parametrize("part", ["items", "values"])
@pytest.mark.parametrize("direction", ["bi", "uni"])
def test_a_row_is_predicted_from_the_rows_that_its_position_sees(part: str, direction: str) -> None:
    frame = draw_table([0.0, 1.0, 2.0])
    repeats = True if part == "items" else None
    model = randomise(fit(frame, part=part, direction=direction, short="keep", order=True, repeats=repeats))
    before = model.predict_proba(frame).to_numpy() if part == "items" else model.predict(frame).to_numpy()
    for row in (0, 4, len(frame) - 1):
        changed = frame.copy()
        if part == "items":
            changed.loc[row, "item"] = next(each for each in ("milk", "tea") if each != frame["item"][row])
        else:
            changed.loc[row, "value"] += 5
        after = model.predict_proba(changed).to_numpy() if part == "items" else model.predict(changed).to_numpy()
        differs = np.abs(after - before).max(axis=1)
        same = (frame["sequence"] == frame["sequence"][row]).to_numpy() & (np.arange(len(frame)) != row)
        expected = same & (np.arange(len(frame)) > row) if direction == "uni" else same
        assert (differs[expected] > 1e-3).all()  # numbers are near 1, and products in single precision
        assert (differs[~expected] < 1e-5).all()


def test_rows_may_come_in_any_order_and_have_any_index() -> None:
    frame = draw_table([0.0, 1.0]).assign(position=lambda each: each.groupby("sequence").cumcount())
    model = randomise(fit(frame, position="position"))
    shuffled = frame.sample(frac=1, random_state=1)
    np.testing.assert_allclose(model.log_prob(shuffled).sort_index(), model.log_prob(frame), rtol=1e-5, atol=1e-5)
    reversed_ones = frame.assign(position=-frame["position"])
    assert not np.allclose(model.log_prob(reversed_ones), model.log_prob(frame), atol=0.01)


@pytest.mark.parametrize("options", [{}, {"order": False}])
def test_a_set_without_an_order_gives_the_same_numbers_in_each_order(options: dict[str, Any]) -> None:
    frame = draw_table([0.0, 1.0])
    model = randomise(fit(frame, **options))
    shuffled = frame.sample(frac=1, random_state=1)
    np.testing.assert_allclose(model.log_prob(shuffled).sort_index(), model.log_prob(frame), rtol=1e-5, atol=1e-5)
    longer = pd.concat([frame, frame], ignore_index=True)
    assert np.isfinite(model.log_prob(longer)).all()


@pytest.mark.parametrize("part", ["items", "values"])
def test_positions_have_vectors_if_a_column_states_an_order(part: str, tmp_path: Path) -> None:
    frame = draw_table([0.0, 1.0])
    stated = frame.assign(position=frame.groupby("sequence").cumcount())

    def has_vectors(table: pd.DataFrame, **options: Any) -> bool:
        model = fit(table, part=part, **options)
        model.save(tmp_path / "m")
        loaded = ExponentialFamilyAttention.load(tmp_path / "m")
        assert loaded.log_prob(table).equals(model.log_prob(table))
        return "network.position.weight" in loaded.model_.state_dict()

    assert not has_vectors(frame)
    assert has_vectors(stated)
    assert has_vectors(stated.rename(columns={"position": "rank"}), position="rank")
    assert has_vectors(frame, direction="uni")  # its rows are asked for in their order
    assert has_vectors(frame, order=True)
    assert not has_vectors(stated, order=False)
    assert not has_vectors(frame, order=False, direction="uni")
    assert not has_vectors(stated, model="fm")


def test_coordinates_and_earlier_values_enter() -> None:
    frame = draw_table([0.0, 1.0]).assign(before=1.5)
    model = randomise(fit(frame, coordinates=("x", "y"), lags="before", item_vectors=False))
    for column in ("x", "before"):
        moved = frame.assign(**{column: frame[column] + 1})
        assert not np.allclose(model.predict(moved), model.predict(frame), atol=1e-3)
    assert np.allclose(model.predict(frame.assign(item="milk")), model.predict(frame))


def test_scaling_inside_the_model_does_not_change_what_units_mean() -> None:
    frame = draw_table([10.0, 20.0, 70.0])
    fahrenheit = frame.assign(value=frame["value"] * 9 / 5 + 32)
    celsius_model, other = fit(frame, family="gaussian:1"), fit(fahrenheit, family="gaussian:1")
    assert celsius_model.model_.shape.values[0].scale[1] * 9 / 5 == pytest.approx(other.model_.shape.values[0].scale[1])
    other.model_.load_state_dict(randomise(celsius_model).model_.state_dict())
    expected = celsius_model.predict(frame)["predicted_mean"] * 9 / 5 + 32
    np.testing.assert_allclose(
        other.predict(fahrenheit)["predicted_mean"], expected, rtol=1e-5, atol=1e-3
    )  # units of 20


@pytest.mark.parametrize("direction", ["bi", "uni"])
def test_weights_of_attention_sum_to_1_and_see_what_the_prediction_sees(direction: str) -> None:
    frame = draw_table([0.0, 1.0])
    model = randomise(fit(frame, direction=direction, short="keep", n_layers=2))
    weights = model.attention_weights(frame)
    assert set(weights["layer"]) == {0, 1} == set(weights["head"])
    sums = weights.groupby(["row", "layer", "head"])["weight"].sum()
    np.testing.assert_allclose(sums, 1, rtol=1e-5)
    assert len(sums) == 4 * len(frame)
    items = frame["item"].to_numpy()
    assert (items[weights["row"]] == weights["item"]).all()
    assert (items[weights["attended_row"]] == weights["attended_item"]).all()
    assert (frame["sequence"].to_numpy()[weights["attended_row"]] == weights["sequence"]).all()
    if direction == "uni":
        assert (weights["attended_position"] <= weights["position"]).all()


def test_weights_of_a_model_of_values_name_the_items_that_the_table_has() -> None:
    frame = draw_table([0.0, 1.0])
    frame = frame.assign(x=np.arange(len(frame)) % 3)
    model = fit(frame, family="bernoulli", part="values", item_vectors=False, coordinates=("x",))
    assert not model.items_
    weights = model.attention_weights(frame)
    assert weights["attended_item"].tolist() == frame["item"].to_numpy()[weights["attended_row"]].tolist()
    assert "item" not in model.attention_weights(frame.drop(columns="item"))


def test_weights_of_attention_give_the_prediction_of_one_linear_layer() -> None:
    """With values as they are and no residual, the read vector is Σ weight·value, which the last layer scores."""
    frame = draw_table()
    model = randomise(fit(frame, n_layers=1, n_heads=1, residual=False, order=False, repeats=True))
    weights = model.attention_weights(frame)
    network = model.model_.network
    layer = network.attention.layers[0]
    numbers = {item: at for at, item in enumerate(model.items_)}
    attended = zip(weights["row"], weights["attended_row"], weights["attended_item"], strict=True)
    vectors = [network.context.weight[-1] if a == b else network.context.weight[numbers[item]]
               for a, b, item in attended]  # fmt: skip
    values = layer.output.weight @ layer.value(torch.stack(vectors)).T * torch.tensor(weights["weight"].to_numpy())
    mixed = pd.DataFrame(values.detach().T.numpy()).groupby(weights["row"]).sum().to_numpy()
    logits = (mixed + layer.output.bias.detach().numpy()) @ network.center.weight.detach().numpy().T
    np.testing.assert_allclose(
        torch.tensor(logits).softmax(-1).numpy(), model.predict_proba(frame).to_numpy(), rtol=1e-4, atol=1e-5
    )


def test_vectors_of_items_are_those_of_the_first_layer() -> None:
    model = fit(draw_table())
    found = model.embeddings()
    assert list(found) == ["context", "center", "query", "key", "value"]
    assert all(each.index.tolist() == ["bread", "jam", "milk", "tea"] for each in found.values())
    layer = model.model_.network.attention.layers[0]
    wanted = found["context"].to_numpy() @ layer.key.weight.detach().numpy().T + layer.key.bias.detach().numpy()
    np.testing.assert_allclose(found["key"], wanted, rtol=1e-5, atol=1e-5)
    assert list(fit(draw_table(), model="fm").embeddings()) == ["context", "center"]


def test_drawn_sequences_have_the_distribution_of_the_model() -> None:
    """Pairs drawn in order, against the products of the model's own conditional probabilities: five standard errors."""
    frame = pd.DataFrame({"sequence": [1, 1, 2, 2], "item": ["a", "b", "b", "a"]})
    model = randomise(fit(frame, direction="uni", repeats=True), size=1.25)  # the second item depends on the first
    drawn = model.sample(sequences=4000, length=2, seed=5)
    pairs = drawn.pivot(index="sequence", columns="position", values="item")
    for first in "ab":
        for second in "ab":
            pair = pd.DataFrame({"sequence": 1, "item": [first, second]})
            share = ((pairs[0] == first) & (pairs[1] == second)).mean()
            chance = np.exp(model.log_prob(pair).sum())
            assert share == pytest.approx(chance, abs=5 * np.sqrt(chance * (1 - chance) / 4000))


def test_values_that_grow_without_limit_are_not_drawn() -> None:
    frame = draw_table([1.0, 2.0])
    model = fit(frame, family="poisson", model="fm")
    with torch.no_grad():
        for weight in model.model_.network.parameters():
            weight.fill_(2.0)
    with refuses(DataError, "the drawn values grow without limit"):
        model.sample(data=frame)


def test_gibbs_sampling_finds_items_that_go_together() -> None:
    """Each item of a pair has probability 1 given the other."""
    frame = pd.DataFrame({"sequence": np.repeat(range(60), 2), "item": ["a", "b", "c", "d"] * 30})
    options = {"max_epochs": 20, "learning_rate": 0.02, "width": 8, "batch_size": 20, "order": True}
    model = fit(frame, **options, repeats=True, context_dropout=0)
    assert model.log_prob(frame).min() > np.log(0.99)
    drawn = model.sample(sequences=50, length=2, seed=1).groupby("sequence")["item"].agg("".join)
    assert drawn.isin(["ab", "cd"]).mean() > 0.8


@pytest.mark.parametrize("values", [None, [0.5, -1.0]])
def test_an_average_of_the_weights_is_kept_and_another_model_trains(values: list[float] | None) -> None:
    """By default, too: the losses of training are those without it, the weights at the end are not."""
    frame = draw_table(values)
    averaged, default, last = (fit(frame, max_epochs=6, **how) for how in ({"averaging": 0.9}, {}, {"averaging": 0}))
    for model in (averaged, default):
        np.testing.assert_array_equal(model.history_.train, last.history_.train)
        assert np.abs(model.log_prob(frame) - last.log_prob(frame)).max() > 1e-3


def stop_after(steps: int) -> Callable[[Any], None]:
    """A progress callback that is interrupted at its n-th call."""
    calls: list[Any] = []

    def stop(step: Any) -> None:
        calls.append(step)
        if len(calls) == steps:
            raise KeyboardInterrupt

    return stop


@pytest.mark.parametrize(("count", "batch_size", "threads"), [(20, 2, 1), (800, 500, 2)])
def test_only_large_batches_are_divided_between_threads(count: int, batch_size: int, threads: int) -> None:
    """The number of threads is as before afterwards."""
    rows = pd.DataFrame({"sequence": np.arange(count) // 2, "item": "x", "value": np.arange(count) % 3})
    seen: list[int] = []
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        model = make_efa(width=16, batch_size=batch_size, max_epochs=1, validation_fraction=0, device="cpu")
        model.fit(rows, progress=lambda _: seen.append(torch.get_num_threads()))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen[-1] == threads


def test_an_interrupted_fit_resumes_and_ends_as_one_that_was_not(tmp_path: Any) -> None:
    frame = draw_table([0.0, 1.0])
    whole = fit(frame, max_epochs=6)

    def start() -> ExponentialFamilyAttention:
        return make_efa(**SMALL | {"max_epochs": 6})

    with pytest.raises(InterruptedTrainingError):
        start().fit(frame, folder=tmp_path, progress=stop_after(3))
    with pytest.raises(TrainingError, match="a different model or different data"):
        start().fit(frame.assign(value=0.0), folder=tmp_path)
    assert start().fit(frame, folder=tmp_path).log_prob(frame).equals(whole.log_prob(frame))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("part", ["items", "values"])
def test_a_fit_that_fails_or_is_interrupted_leaves_the_model_as_it_was(part: str) -> None:
    frame = draw_table([0.0, 1.0])
    other = frame.assign(item=frame["item"].map({"milk": "rice", "bread": "oats", "tea": "salt", "jam": "oil"}))
    model = fit(frame, part=part)
    before, measured = model.log_prob(frame), measure_fit(model)

    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.fit(other, progress=interrupt)
    with pytest.raises(TableError):
        model.fit(other, validation=other.assign(item="beer"), test=other.assign(sequence=None))
    assert model.items_ == ["bread", "jam", "milk", "tea"]
    assert model.log_prob(frame).equals(before)
    assert measure_fit(model)["train"] == pytest.approx(measured["train"], nan_ok=True)
    fresh = make_efa(**SMALL, part=part)
    with pytest.raises(KeyboardInterrupt):
        fresh.fit(frame, progress=interrupt)
    with refuses(UsageError, "not fitted"):
        fresh.part_  # noqa: B018 - raises


def test_mixed_precision_changes_the_numbers_a_little() -> None:
    """Products have eight bits, so that they differ by 0.4% and less."""
    frame = draw_table([0.0, 3.0])
    for part in ("items", "values"):
        exact, mixed = (fit(frame, part=part, precision=precision, max_epochs=5) for precision in ("fp32", "bf16"))
        assert mixed.score(frame) != exact.score(frame)
        assert mixed.score(frame) == pytest.approx(exact.score(frame), rel=0.01)


def test_held_out_sequences_stop_the_training_and_seeds_give_the_same_numbers() -> None:
    frame = pd.concat([draw_table([0.0, 1.0]).assign(sequence=lambda each, k=k: each["sequence"] + str(k))
                       for k in range(3)])  # fmt: skip
    options: dict[str, Any] = {"max_epochs": 100, "validation_fraction": 0.3, "patience": 2, "learning_rate": 0.05}
    first, second, other = (fit(frame, random_state=seed, **options) for seed in (1, 1, 2))
    assert len(first.history_.validation) < 100
    assert first.score(frame) == second.score(frame) != other.score(frame)


def test_a_new_place_is_refused_with_the_option_that_reads_coordinates_only() -> None:
    rows = draw_table([1.0, 2.0]).assign(x=range(len(draw_table([1.0, 2.0]))))
    new = rows.assign(item="elsewhere")
    model = fit(rows, coordinates=("x",), part="values")
    with refuses(TableError, "'elsewhere'", "not in the training rows", "--no-item-vectors"):
        model.predict(new)
    assert fit(rows, coordinates=("x",), part="values", item_vectors=False).predict(new)["predicted_mean"].notna().all()
    with refuses(TableError, "'elsewhere'", "not in the training rows") as caught:
        fit(rows, part="values").predict(new)
    assert "--no-item-vectors" not in str(caught.value)


REFUSED: dict[str, tuple[dict[str, Any], pd.DataFrame, str]] = {
    "no rows": ({}, draw_table([1.0]).head(0), "no rows"),
    "no column": ({"sequence": "basket"}, draw_table([1.0]), "no column 'basket'"),
    "NaN": ({}, draw_table([1.0, np.nan]), "row 1: column 'value': nan, expected a value: the cell is empty; fill it"),
    "larger than single precision can square": ({}, draw_table([1.0, -1e30]), "'value': -1e+30, expected"),
    "infinite": ({}, draw_table([1.0, np.inf]), "row 1: column 'value': inf, expected a finite number"),
    "text": ({}, draw_table([1.0]).assign(value="many"), "column 'value': 'many'"),
    "support": ({"family": "poisson"}, draw_table([1.0, -2.0]), "column 'value': -2.0, expected whole numbers from 0"),
    "levels": ({"family": "ordinal:3"}, draw_table([1.0, 3.0]), "from 0 to 2 (ordinal:3); ordinal:4 has"),
    "one row": ({}, pd.DataFrame({"sequence": [1, 1, 2], "item": list("aba"), "value": 1.0}), "sequence 2 has one row"),
    "no item": ({}, draw_table([1.0]).assign(item=None), "row 1: column 'item'"),
    "no sequence": ({}, draw_table([1.0]).assign(sequence=None), "the training table: row 1: column 'sequence'"),
    "coordinates": ({"coordinates": ("x",)}, draw_table([1.0]).assign(x=np.nan), "row 1: column 'x': nan"),
    "twice": ({"position": "x"}, draw_table([1.0]).assign(x=0), "row 2: column 'x': 0"),
    "nothing known": ({"item": "thing"}, draw_table([1.0]), "neither the column 'thing' nor coordinates"),
    "nothing to hold out": ({"validation_fraction": 0.01}, draw_table([1.0]), "too few to hold out"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_table_that_cannot_be_used_is_refused_with_its_row(case: str) -> None:
    options, frame, message = REFUSED[case]
    with refuses(UnknownColumnError if case == "no column" else TableError, message):
        fit(frame, **options)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "family": ({"family": "normal"}, "family is 'normal'; expected one of: gaussian[:VARIANCE], poisson"),
    "no number": ({"family": "binomial"}, "expected binomial:TOTAL_COUNT"),
    "number": ({"family": "binomial:2.5"}, "expected a whole number after the colon"),
    "output_units": ({"output_units": (-1,)}, "output_units is -1"),
    "n_heads": ({"n_heads": 5}, "expected a multiple of n_heads, 5"),
    "longest": ({"longest": 2}, "longest is 2, but a sequence has 4 positions"),
}


@pytest.mark.parametrize("case", WRONG)
def test_options_that_do_not_fit_are_refused(case: str) -> None:
    options, message = WRONG[case]
    with refuses(UsageError, message):
        fit(draw_table([1.0]), **options)


def test_what_a_model_was_not_fitted_to_is_refused() -> None:
    frame = draw_table([1.0, 2.0])
    model = fit(frame, order=True)
    longer = pd.DataFrame({"sequence": 1, "item": ["tea"] * 5, "value": 1.0})
    for data, message in (
        (
            frame.assign(item="beer"),
            "row 1: column 'item': 'beer' is not in the training rows, expected one of 4 items",
        ),
        (longer, "sequence 1 has 5 positions, expected at most 4"),
        (frame.drop(columns="value"), "no column 'value'"),
    ):
        with refuses(TableError, message):
            model.log_prob(data)
    assert len(fit(frame, model="fm").log_prob(longer)) == 5  # it has no positions
    with refuses(UsageError, "not fitted"):
        ExponentialFamilyAttention().log_prob(frame)
    with refuses(UsageError, "no item probabilities"):
        model.predict_proba(frame)
    with refuses(UsageError, "expected a table of the sequences to draw values for"):
        model.sample()
    with refuses(UsageError, "a factor model has no attention"):
        fit(frame, model="fm").attention_weights(frame)
    with refuses(UsageError, "length is 9, expected at most 4"):
        fit(draw_table()).sample(sequences=2, length=9)


def test_a_factor_model_of_places_knows_its_places_only() -> None:
    places = pd.DataFrame({"x": [0.0, 1.0, 5.0], "y": [0.0, 2.0, 1.0]})
    days = pd.concat([places.assign(sequence=day, value=[1.0, 2.0, day]) for day in range(4)], ignore_index=True)
    options: dict[str, Any] = {"model": "fm", "coordinates": ("x", "y"), "n_neighbors": 1}
    model = fit(days, **options)
    assert len(model.predict(days)) == 12
    for other in (days.iloc[::-1], days[days["x"] < 5], days.assign(x=days["x"] + 1)):
        with refuses(TableError, "requires its 3 places in each sequence"):
            model.predict(other)
    with refuses(TableError, "requires its 3 places"):
        fit(days.iloc[:-1], **options)


@pytest.mark.parametrize(("distance", "is_same"), [(4.5e-6, True), (5.5e-6, False)])
def test_a_place_is_the_same_within_a_millionth_of_the_largest_coordinate(distance: float, is_same: bool) -> None:
    places = pd.DataFrame({"x": [0.0, 1.0, 5.0], "y": [0.0, 2.0, 1.0]})
    days = pd.concat([places.assign(sequence=day, value=[1.0, 2.0, day]) for day in range(4)], ignore_index=True)
    model = fit(days, model="fm", coordinates=("x", "y"), n_neighbors=1)
    moved = days.assign(x=days["x"] + distance * (days["x"] == 1))
    if is_same:
        assert len(model.predict(moved)) == 12
        return
    with refuses(TableError, "requires its 3 places"):
        model.predict(moved)


@pytest.mark.parametrize(("deviation", "are_apart"), [(0.9 * 2**-17, False), (1.1 * 2**-17, True)])
def test_numbers_that_single_precision_cannot_tell_apart_are_refused(deviation: float, are_apart: bool) -> None:
    frame = draw_table()
    frame["value"] = -4 * (1 + deviation * np.where(np.arange(len(frame)) % 2, 1, -1))
    if are_apart:
        assert fit(frame, family="gaussian").predict(frame)["predicted_mean"].notna().all()
        return
    with refuses(TableError, "'value'", "single precision cannot tell its values apart", "subtract a constant"):
        fit(frame, family="gaussian")


@pytest.mark.parametrize("family", ["gamma:2", "negative-binomial:2", "poisson", "shifted"])
def test_values_far_from_one_are_learned_in_few_epochs(family: str) -> None:
    """A model begins at the mean of the values, whatever their unit, and is better than without a context."""
    draw = np.random.default_rng(0)
    level = np.repeat(draw.normal(0, 1, 120), 4)
    values = np.ceil(5000 * np.exp(level) * draw.gamma(2, 0.5, len(level)))
    frame = pd.DataFrame({"sequence": np.arange(len(level)) // 4, "item": list("abcd") * 120, "value": values})
    name = "poisson-from-1" if family == "shifted" else family
    model = fit(frame, family=name, max_epochs=10, batch_size=30)
    measured = measure_fit(model)["train"]
    assert measured.log_prob > measured.without_context + 0.3  # by 0.7 nats and more
    first = fit(frame, family=name, max_epochs=1).predict(frame)["predicted_mean"]
    assert first.mean() == pytest.approx(values.mean(), rel=0.5)


def test_a_loss_that_diverges_stops_the_training_and_names_the_batch() -> None:
    with refuses(TrainingError, "batch"):
        fit(draw_table([1e18, -1e18]), standardize=False, family="gaussian:1", learning_rate=1e9, max_epochs=5)


def test_an_architecture_of_another_type_is_refused() -> None:
    rows = pd.DataFrame({"sequence": [1, 1, 2, 2], "item": ["tea", "jam"] * 2})
    with refuses(UsageError, "architecture", "'linear'", "Architecture"):
        ExponentialFamilyAttention(architecture="linear").fit(rows)  # type: ignore[arg-type]
