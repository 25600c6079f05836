"""The item and the value part: against torch's own attention on masked copies, and what a position may see."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attngeo.estimators.efa.attention import AttentionShape
from attngeo.estimators.efa.networks import Batch, ItemAttention, ValueAttention, ValueShape, start_like_keras

ITEMS, LENGTH = 6, 4
TWO_LAYERS: dict[str, Any] = {"layers": 2, "heads": 2, "scale": "head", "bias": True}


def randomise(model: nn.Module) -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.double().parameters():
            weight.copy_(torch.randn_like(weight) * 0.6)
    return model


def draw() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    known = torch.arange(LENGTH)[None] < torch.tensor([[LENGTH], [2], [3]])
    return torch.randint(0, ITEMS, (3, LENGTH)), torch.randn(3, LENGTH, 1, dtype=torch.float64), known


def to_torch(layer: nn.Module, width: int) -> nn.MultiheadAttention:
    """The attention of a layer as torch's own module."""
    plain = nn.MultiheadAttention(width, 2, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        plain.in_proj_weight.copy_(torch.cat([layer.query.weight, layer.key.weight, layer.value.weight]))
        plain.in_proj_bias.copy_(torch.cat([layer.query.bias, layer.key.bias, layer.value.bias]))
        plain.out_proj.load_state_dict(layer.output.state_dict())
    return plain


def attend(model: Any, tokens: Tensor, known: Tensor, causal: bool) -> Tensor:
    """Two layers of torch's attention with residual connections."""
    length = tokens.shape[1]
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1) if causal else None
    for layer in model.attention.layers:
        plain = to_torch(layer, tokens.shape[-1])
        mixed, _ = plain(tokens, tokens, tokens, key_padding_mask=~known, attn_mask=hidden, need_weights=False)
        tokens = tokens + mixed
    return tokens


def test_positions_begin_as_matrices_and_items_as_embeddings_of_keras() -> None:
    shape = AttentionShape(width=4, **TWO_LAYERS)
    model = ItemAttention(ITEMS, shape, positions=LENGTH)
    start_like_keras(model)
    assert 0.03 < model.context.weight.abs().max() <= 0.05
    assert model.position is not None
    assert 0.4 < model.position.weight.abs().max() <= (6 / (LENGTH + 4)) ** 0.5
    start_like_keras(ItemAttention(ITEMS, shape))  # without positions


@pytest.mark.parametrize("causal", [False, True])
def test_the_item_part_is_attention_on_masked_sequences(causal: bool) -> None:
    items, _, known = draw()
    model = randomise(ItemAttention(ITEMS, AttentionShape(width=4, **TWO_LAYERS), positions=LENGTH, causal=causal))
    found = model(Batch(known, items))
    for i in range(LENGTH):
        masked = items.clone()
        masked[:, i] = ITEMS
        x = attend(model, model.context(masked) + model.position.weight, known, causal)
        rows = known[:, i]
        torch.testing.assert_close(found[rows, i], (x[:, i] @ model.center.weight.T)[rows])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("value", ["identity", "lookup", "network"])
def test_the_value_part_is_attention_on_masked_values(value: Any, causal: bool) -> None:
    items, values, known = draw()
    values = values.abs().clamp(max=2.9) if value == "lookup" else values
    shape = ValueShape(
        size=3 if value == "identity" else 4, items=ITEMS, value=value, levels=3, hidden=5, positions=LENGTH,
        output_units=(5,), two_item_vectors=value != "identity",
    )  # fmt: skip
    model = randomise(ValueAttention(shape, AttentionShape(width=shape.attended, **TWO_LAYERS), causal=causal))
    found = model(Batch(known, items, values))
    for i in range(LENGTH):
        if value == "identity":
            embedded = values.clone()
            embedded[:, i] = 0
        else:
            embedded = model.level(values[..., 0].long() if value == "lookup" else values)
            embedded = torch.where((torch.arange(LENGTH) == i)[None, :, None], model.mask, embedded)
        parts = [model.context(items), *([model.center(items)] if shape.two_item_vectors else []), embedded]
        x = attend(model, torch.cat(parts, -1) + model.position.weight, known, causal)
        rows = known[:, i]
        torch.testing.assert_close(found[rows, i], model.head(x[:, i])[rows])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_value_changes_no_prediction_of_itself_nor_of_earlier_ones(causal: bool, layers: int) -> None:
    items, values, known = draw()
    known[:] = True
    shape = ValueShape(size=3, items=ITEMS, output_units=())
    attention = AttentionShape(width=shape.attended, layers=layers, heads=1)
    model = randomise(ValueAttention(shape, attention, causal=causal))
    before = model(Batch(known, items, values))
    for at in range(LENGTH):
        changed = values.clone()
        changed[:, at] += 2
        same = torch.isclose(before, model(Batch(known, items, changed)), rtol=1e-12, atol=1e-12).all(0)[:, 0]
        expected = torch.arange(LENGTH) <= at if causal else torch.arange(LENGTH) == at
        assert torch.equal(same, expected)


def test_earlier_values_are_context_and_time_is_told() -> None:
    torch.manual_seed(2)
    coordinates, values = torch.randn(5, 2, dtype=torch.float64), torch.randn(3, 5, 1, dtype=torch.float64)
    known = torch.ones(3, 5, dtype=torch.bool)
    shape = ValueShape(size=6, coordinates=2, hidden=6, value="network", lags=2, join=8, output_units=(16, 8))
    model = randomise(ValueAttention(shape, AttentionShape(width=6, layers=2, heads=2, norm=True, feed_forward=7)))
    lagged = torch.randn(3, 2, 5, dtype=torch.float64)
    found = model(Batch(known, values=values, coordinates=coordinates, lagged=lagged))
    assert found.shape == (3, 5, 1)
    swapped = model(Batch(known, values=values, coordinates=coordinates, lagged=lagged.flip(1)))
    assert not torch.isclose(found, swapped).any()
    order = torch.randperm(5)
    moved = model(Batch(known, values=values[:, order], coordinates=coordinates[order], lagged=lagged[:, :, order]))
    torch.testing.assert_close(moved, found[:, order])
    known[1, 3] = False
    unknown = torch.where(known[..., None], values, torch.nan)
    lost = torch.where(known[:, None], lagged, torch.nan)
    with_nan = model(Batch(known, values=unknown, coordinates=coordinates, lagged=lost))[known]
    without = model(Batch(known, values=values, coordinates=coordinates, lagged=lagged))[known]
    torch.testing.assert_close(with_nan, without)
