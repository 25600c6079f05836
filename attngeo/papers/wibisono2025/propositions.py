"""Propositions 1 to 3: attention with the parameters of the proofs equals the factor models.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), section 4.1, appendices E to G. Appendix G prints the key matrix of
proposition 3 under the name of the value matrix, and transposed: as printed, all products of queries and keys are 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import torch
from torch import Tensor, nn

from attngeo.estimators.efa.attention import AttentionShape, MaskedLayer
from attngeo.estimators.efa.factors import ItemFactors, SpatialFactors, ValueFactors
from attngeo.estimators.efa.networks import Batch, ItemAttention, ValueAttention, ValueShape
from attngeo.papers.residuals import Residuals, difference
from attngeo.training.loop import seeded

# Items, numbers of an embedding, length of a sequence; sequences of each size.
SIZES = ((7, 4, 5), (12, 3, 2), (30, 8, 9))
SEQUENCES = 4

Model = TypeVar("Model", bound=nn.Module)


@torch.no_grad()
def attention_of_items(factors: ItemFactors, length: int) -> ItemAttention:
    """The model of section 3.1 that equals a bidirectional factor model for sequences of the same length (Prop. 1)."""
    items, size = factors.center.weight.shape
    shape = AttentionShape(width=size, residual=False, output=False)
    model = ItemAttention(items, shape).to(factors.center.weight)
    layer = _clear(model)
    layer.value.weight.copy_(torch.eye(size))
    model.context.weight[:-1] = factors.context.weight
    model.context.weight[-1] = 0
    # Equal weights, that of the mask included: 1/I each.
    model.center.weight.copy_(factors.center.weight * length / (length - 1))
    return model


@torch.no_grad()
def attention_of_places(factors: SpatialFactors) -> ValueAttention:
    """The model of section 3.2, with linear attention, that equals a factor model of all other places (Prop. 2)."""
    first = factors.place[0]
    last = factors.place[-1]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    size = last.out_features
    width = size + 1
    shape = ValueShape(size=size, coordinates=first.in_features, hidden=first.out_features, output_units=None)
    attention = AttentionShape(width=width, kind="linear", residual=False, output=False)
    model = ValueAttention(shape, attention).to(last.weight)
    model.place.load_state_dict(factors.place.state_dict())
    layer = _clear(model)
    for weight in (layer.query.weight, layer.key.weight):
        weight[:size, :size] = torch.eye(size)
    layer.value.weight[-1, -1] = width  # by which products of queries and keys are divided
    return model


@torch.no_grad()
def attention_of_values(factors: ValueFactors, length: int) -> ValueAttention:
    """The model of section 3.3, with linear attention, that equals a factor model in both directions (Prop. 3)."""
    items, size = factors.center.weight.shape
    width = 2 * size + 1
    shape = ValueShape(size=size, items=items, output_units=None)
    attention = AttentionShape(width=width, kind="linear", residual=False, output=False)
    model = ValueAttention(shape, attention).to(factors.center.weight)
    assert model.center is not None
    model.context.weight.copy_(factors.center.weight)
    model.center.weight.copy_(factors.context.weight / (length - 1))
    layer = _clear(model)
    layer.query.weight[:size, :size] = torch.eye(size)
    layer.key.weight[:size, size : 2 * size] = torch.eye(size)
    layer.value.weight[-1, -1] = width  # by which products of queries and keys are divided
    return model


def first_layer(model: ItemAttention | ValueAttention) -> MaskedLayer:
    """The only layer of a one-layer model."""
    layer = model.attention.layers[0]
    assert isinstance(layer, MaskedLayer)
    return layer


def _clear(model: ItemAttention | ValueAttention) -> MaskedLayer:
    """The only layer, with zeros for all of its weights."""
    layer = first_layer(model)
    for weight in layer.parameters():
        weight.zero_()
    return layer


@torch.no_grad()
def check_proposition_1(seed: int = 0) -> Residuals:
    """Proposition 1: logits of the items, [B, I, D]."""
    errors = []
    for items, size, length in _seeded_sizes(seed):
        factors = randomise(ItemFactors(items, size))
        known = torch.ones(SEQUENCES, length, dtype=torch.bool)
        batch = Batch(known, torch.randint(items, known.shape))
        errors.append(difference(attention_of_items(factors, length)(batch), factors(batch)))
    return Residuals(f"logits of {_count_positions()} masked positions", errors)


@torch.no_grad()
def check_proposition_2(seed: int = 0) -> Residuals:
    """Proposition 2: means of the values at places, [B, I, 1]."""
    errors = []
    for _, size, length in _seeded_sizes(seed):
        places = torch.randn(length, 2, dtype=torch.float64)
        factors = randomise(SpatialFactors(torch.cdist(places, places), 2, size, hidden=16))
        values, known = _draw_values(length)
        batch = Batch(known, values=values, coordinates=places)
        errors.append(difference(attention_of_places(factors)(batch), factors(batch)))
    return Residuals(f"means of {_count_positions()} masked values", errors)


@torch.no_grad()
def check_proposition_3(seed: int = 0) -> Residuals:
    """Proposition 3: log rates of the values, [B, I, 1], with the key matrix that the proof needs.

    Printed: the matrix with the block in the second row, under the name of the value matrix. As the value matrix it
    makes the number that is read 0, whatever the keys are; as the key matrix, all products.
    """
    errors = []
    printed = []
    for items, size, length in _seeded_sizes(seed):
        factors = randomise(ValueFactors(items, size))
        values, known = _draw_values(length)
        batch = Batch(known, torch.randint(items, known.shape), values)
        attention = attention_of_values(factors, length)
        expected = factors(batch)
        errors.append(difference(attention(batch), expected))
        layer = first_layer(attention)
        layer.key.weight.copy_(layer.key.weight.T.clone())
        printed.append(_miss(attention(batch), expected))
        layer.value.weight.copy_(layer.key.weight)
        layer.key.weight.normal_()
        printed.append(_miss(attention(batch), expected))
    computed = (
        f"log rates of {_count_positions()} masked values; printed matrix, read as that of values or that of keys: "
        f"off by {min(printed):.0%} to {max(printed):.0%}"
    )
    return Residuals(computed, errors, printed)


def _seeded_sizes(seed: int) -> Iterator[tuple[int, int, int]]:
    """The sizes, each with random numbers of its own."""
    for number, sizes in enumerate(SIZES):
        with seeded(1000 * seed + number):
            yield sizes


def _count_positions() -> int:
    return sum(SEQUENCES * length for *_, length in SIZES)


def randomise(model: Model) -> Model:
    """A model with normal weights in float64."""
    model.double()
    for weight in model.parameters():
        weight.normal_()
    return model


def _draw_values(length: int) -> tuple[Tensor, Tensor]:
    """Values, [B, I, 1], and which are known, [B, I]: all."""
    known = torch.ones(SEQUENCES, length, dtype=torch.bool)
    return torch.randn(*known.shape, 1, dtype=torch.float64), known


def _miss(computed: Tensor, expected: Tensor) -> float:
    """‖computed − expected‖ as a share of ‖expected‖."""
    return float((computed - expected).norm() / expected.norm())
