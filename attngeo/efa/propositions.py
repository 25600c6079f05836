"""Propositions 1 to 3 computed: attention with the parameters of the proofs against the factor models.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), section 4.1, appendices E to G.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import torch
from torch import Tensor, nn

from attngeo.efa.attention import MaskedLayer
from attngeo.efa.factors import ItemFactors, SpatialFactors, ValueFactors
from attngeo.efa.network import Observations
from attngeo.efa.reductions import attention_of_items, attention_of_places, attention_of_values
from attngeo.papers.statements import EFA, Residuals, difference, statement
from attngeo.training import seeded

# Items, numbers of an embedding, length of a sequence; sequences of each size.
SIZES = ((7, 4, 5), (12, 3, 2), (30, 8, 9))
SEQUENCES = 4

Model = TypeVar("Model", bound=nn.Module)


@statement("efa-proposition-1", EFA, "Proposition 1", "logits of attention = those of the factor model of items")
@torch.no_grad()
def check_proposition_1(seed: int = 0) -> Residuals:
    """Proposition 1: logits of the items, [B, I, D]."""
    errors = []
    for items, size, length in _seeded_sizes(seed):
        factors = _randomise(ItemFactors(items, size))
        drawn, known = torch.randint(items, (SEQUENCES, length)), torch.ones(SEQUENCES, length, dtype=torch.bool)
        errors.append(difference(attention_of_items(factors, length)(drawn, known), factors(drawn, known)))
    return Residuals(f"logits of {_count_positions()} masked positions", tuple(errors))


@statement("efa-proposition-2", EFA, "Proposition 2", "means of linear attention = those of the factor model of places")
@torch.no_grad()
def check_proposition_2(seed: int = 0) -> Residuals:
    """Proposition 2: means of the values at places, [B, I]."""
    errors = []
    for _, size, length in _seeded_sizes(seed):
        places = torch.randn(length, 2, dtype=torch.float64)
        factors = _randomise(SpatialFactors(torch.cdist(places, places), 2, size, hidden=16))
        values, known = _draw_values(length)
        attention = attention_of_places(factors)
        errors.append(difference(attention(Observations(values, known, coordinates=places)), factors(values, places)))
    return Residuals(f"means of {_count_positions()} masked values", tuple(errors))


@statement(
    "efa-proposition-3", EFA, "Proposition 3", "log rates of linear attention = those of the factor model of values"
)
@torch.no_grad()
def check_proposition_3(seed: int = 0) -> Residuals:
    """Proposition 3: log rates of the values, [B, I], with the key matrix that the proof needs.

    Printed: the matrix with the block in the second row, under the name of the value matrix. As the value matrix it
    makes the number that is read 0, whatever the keys are; as the key matrix, all products.
    """
    errors, printed = [], []
    for items, size, length in _seeded_sizes(seed):
        factors = _randomise(ValueFactors(items, size))
        values, known = _draw_values(length)
        drawn = torch.randint(items, values.shape)
        attention, wanted = attention_of_values(factors, length), factors(values, known, drawn)
        errors.append(difference(attention(Observations(values, known, drawn)), wanted))
        layer = attention.attention.layers[0]
        assert isinstance(layer, MaskedLayer)
        layer.key.weight.copy_(layer.key.weight.T.clone())
        printed.append(_miss(attention(Observations(values, known, drawn)), wanted))
        layer.value.weight.copy_(layer.key.weight)
        layer.key.weight.normal_()
        printed.append(_miss(attention(Observations(values, known, drawn)), wanted))
    found = (
        f"log rates of {_count_positions()} masked values; printed matrix, read as that of values or that of keys: "
        f"off by {min(printed):.0%} to {max(printed):.0%}"
    )
    return Residuals(found, tuple(errors), tuple(printed))


def _seeded_sizes(seed: int) -> Iterator[tuple[int, int, int]]:
    """The sizes, each with random numbers of its own."""
    for place, sizes in enumerate(SIZES):
        with seeded(1000 * seed + place):
            yield sizes


def _count_positions() -> int:
    return sum(SEQUENCES * length for *_, length in SIZES)


def _randomise(model: Model) -> Model:
    """A model with normal weights in float64."""
    model.double()
    for weight in model.parameters():
        weight.normal_()
    return model


def _draw_values(length: int) -> tuple[Tensor, Tensor]:
    """Values and which are known, [B, I] each: all."""
    values = torch.randn(SEQUENCES, length, dtype=torch.float64)
    return values, torch.ones_like(values, dtype=torch.bool)


def _miss(found: Tensor, wanted: Tensor) -> float:
    """‖found − wanted‖ as a share of ‖wanted‖."""
    return float((found - wanted).norm() / wanted.norm())
