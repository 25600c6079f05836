"""Parameters with which exponential family attention equals a latent factor model: propositions 1 to 3.

Source: Wibisono and Wang 2025 (arXiv 2501.16790), appendices E to G. Appendix G prints the key matrix of proposition 3
under the name of the value matrix, and transposed: as printed, all products of queries and keys are 0.
"""

from __future__ import annotations

import torch
from torch import nn

from attngeo.efa.attention import AttentionShape, MaskedLayer
from attngeo.efa.factors import ItemFactors, SpatialFactors, ValueFactors
from attngeo.efa.network import ItemAttention, ValueAttention, ValueShape
from attngeo.errors import UsageError


@torch.no_grad()
def attention_of_items(factors: ItemFactors, length: int) -> ItemAttention:
    """The model of section 3.1 that equals a factor model in both directions for sequences of one length (Prop. 1)."""
    _require_mean(factors)
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
    places = len(factors.neighbour)
    if int(factors.neighbour.sum()) != places * (places - 1):
        raise UsageError("the factor model has fewer neighbours than all other places, expected all")
    first, last = factors.place[0], factors.place[-1]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    size = last.out_features
    width = size + 1
    shape = ValueShape(
        coordinates=first.in_features, coordinate_size=size, hidden=first.out_features, head=None, head_scale=width
    )
    attention = AttentionShape(width=width, kind="linear", residual=False, output=False)
    model = ValueAttention(shape, attention).to(last.weight)
    model.place.load_state_dict(factors.place.state_dict())
    layer = _clear(model)
    for weight in (layer.query.weight, layer.key.weight):
        weight[:size, :size] = torch.eye(size)
    layer.value.weight[-1, -1] = 1
    return model


@torch.no_grad()
def attention_of_values(factors: ValueFactors, length: int) -> ValueAttention:
    """The model of section 3.3, with linear attention, that equals a factor model in both directions (Prop. 3)."""
    _require_mean(factors)
    items, size = factors.center.weight.shape
    width = 2 * size + 1
    shape = ValueShape(items=items, item_size=size, head=None, head_scale=width)
    attention = AttentionShape(width=width, kind="linear", residual=False, output=False)
    model = ValueAttention(shape, attention).to(factors.center.weight)
    assert model.center is not None
    model.context.weight.copy_(factors.center.weight)
    model.center.weight.copy_(factors.context.weight / (length - 1))
    layer = _clear(model)
    layer.query.weight[:size, :size] = torch.eye(size)
    layer.key.weight[:size, size : 2 * size] = torch.eye(size)
    layer.value.weight[-1, -1] = 1
    return model


def _require_mean(factors: ItemFactors | ValueFactors) -> None:
    if factors.causal or factors.pooling != "mean" or factors.start is not None:
        raise UsageError("the factor model is not that of the proposition, expected both directions and a mean")


def _clear(model: ItemAttention | ValueAttention) -> MaskedLayer:
    """The only layer, with zeros for all of its weights."""
    layer = model.attention.layers[0]
    assert isinstance(layer, MaskedLayer)
    for weight in layer.parameters():
        weight.zero_()
    return layer
