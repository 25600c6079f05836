"""The models of sections 3.3 and 5.2.1, fitted by the estimator: the latter is the class of theorem 2."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.messages import refuses

from attngeo.errors import UsageError
from attngeo.estimators import ExponentialFamilyAttention
from attngeo.estimators.efa.options import Architecture
from attngeo.papers.wibisono2025.generalisation import (
    ToySequences,
    TransformerClass,
    draw_weights,
    list_sequences,
    measure_loss,
    predict_by_bayes,
    predict_values,
)
from attngeo.training.loop import seeded

# λ1 reads values as they are, λ2 the last number; layers are those of Bai et al. 2023.
THEOREM_2: dict[str, Any] = {
    "weights": "relu", "value_embedding": "identity", "readout": "last", "bias": False, "residual": True,
}  # fmt: skip
SECTION_3_3: dict[str, Any] = {"weights": "linear", "residual": False, "readout": "last"}
PLACES: dict[str, Any] = {
    "value": "y:gaussian:1", "coordinates": "tau", "item_vectors": False, "order": False, "standardize": False,
    "validation_fraction": 0, "context_dropout": 0, "device": "cpu",
}  # fmt: skip


def tabulate(sequences: ToySequences) -> pd.DataFrame:
    """A row for each place of each sequence."""
    count, places = sequences.places.shape
    numbers = np.repeat(range(count), places)
    return pd.DataFrame({"sequence": numbers, "tau": sequences.places.flatten(), "y": sequences.values.flatten()})


def test_the_architecture_is_the_class_of_theorem_2() -> None:
    """With the weights of the statement's class, the estimator's means are its predictions, which it clips."""
    shape = TransformerClass(
        layers=2, heads=2, hidden=3, place_hidden=128, size=4, coordinates=1, norm=12.0, clip=1e9, largest=1e9
    )
    with seeded(0):
        weights = draw_weights(shape)
    sequences = list_sequences()
    rows = tabulate(sequences)
    model = ExponentialFamilyAttention(
        **PLACES, width=4, n_layers=2, n_heads=2, max_epochs=1,
        architecture=Architecture(**THEOREM_2, head_size=shape.token, feed_forward=3),
    ).fit(rows)  # fmt: skip
    network = model.model_.network.double()
    assert not any("bias" in name for name, _ in network.named_parameters())
    with torch.no_grad():
        network.place[0].weight.copy_(weights.first)
        network.place[2].weight.copy_(weights.second)
        for number, layer in enumerate(network.attention.layers):
            layer.query.weight.copy_(weights.query[number].flatten(0, 1) * shape.token)  # by which it divides
            layer.key.weight.copy_(weights.key[number].flatten(0, 1))
            layer.value.weight.copy_(weights.value[number].flatten(0, 1))
            layer.output.weight.copy_(torch.eye(shape.token).repeat(1, 2))
            layer.feed_forward[0].weight.copy_(weights.inner[number])
            layer.feed_forward[2].weight.copy_(weights.outer[number])
    expected = predict_values(weights, sequences, shape)
    assert 1e-3 < expected.std() < 1e3
    (read,) = model.read(rows)
    batch = model.model_.batch(read)
    found = network(batch.apply(lambda _, tensor: tensor.double() if tensor.is_floating_point() else tensor))
    torch.testing.assert_close(found[..., 0], expected)


def test_a_fit_of_the_class_is_close_to_bayes_rule_on_its_data() -> None:
    """The loss of 0 as prediction is 0.5, that of Bayes' rule 0.25: nine tenths of the gap, or more, are closed."""
    everything = list_sequences()
    with seeded(0):
        drawn = torch.multinomial(everything.share, 1500, replacement=True)
    train = ToySequences(everything.places[drawn], everything.values[drawn], everything.share[drawn])
    model = ExponentialFamilyAttention(
        **PLACES, width=4, n_layers=1, n_heads=2, max_epochs=15, learning_rate=0.02, batch_size=100,
        architecture=Architecture(**THEOREM_2, head_size=5, feed_forward=4),
    ).fit(tabulate(train))  # fmt: skip
    predicted = torch.tensor(model.predict(tabulate(everything))["predicted_mean"].to_numpy()).view(
        everything.values.shape
    )
    loss = float(measure_loss(predicted, everything))
    least = float(measure_loss(predict_by_bayes(everything), everything))
    nothing = float(measure_loss(torch.zeros_like(everything.values), everything))
    assert (least, nothing) == pytest.approx((0.25, 0.5), abs=0.005)
    assert least - 1e-9 <= loss < least + (nothing - least) / 10


@pytest.mark.parametrize("embedding", ["network", "identity"])
def test_linear_attention_learns_ratings_that_depend_on_the_others(embedding: str) -> None:
    """Ratings have a sign of the user times one of the movie, which no mean of a movie tells."""
    draw = np.random.default_rng(0)
    rows = []
    for user in range(350):
        sign = draw.choice([-1, 1])
        movies = draw.permutation(6)[:4]
        values = sign * (-1.0) ** movies + 0.3 * draw.normal(size=4)
        rows += [{"sequence": user, "item": item, "value": value} for item, value in zip(movies, values, strict=True)]
    table = pd.DataFrame(rows)
    train, test = table[table["sequence"] < 250], table[table["sequence"] >= 250]
    model = ExponentialFamilyAttention(
        family="gaussian:1", width=8, n_layers=1, n_heads=1, max_epochs=15, learning_rate=0.03, order=False,
        validation_fraction=0, device="cpu", architecture=Architecture(**SECTION_3_3, value_embedding=embedding),
    ).fit(train)  # fmt: skip
    errors = model.predict(test)["predicted_mean"] - test["value"]
    of_movie = test["item"].map(train.groupby("item")["value"].mean()) - test["value"]
    assert (errors**2).mean() < 0.3 * (of_movie**2).mean()
    weights = model.attention_weights(test)
    assert (weights["weight"] < 0).any()


def test_an_unknown_kind_of_weights_is_refused() -> None:
    with refuses(UsageError, "weights", "'hard'", "softmax"):
        Architecture(weights="hard")
