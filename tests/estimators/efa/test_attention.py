"""Attention at masked positions, against masked copies that go through plain layers one by one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.special
import torch
from support.messages import refuses
from torch import Tensor

from attngeo.errors import UsageError
from attngeo.estimators.efa.attention import AttentionShape, MaskedAttention, MaskedLayer

SHAPES: dict[str, dict[str, Any]] = {
    "text": {"heads": 1, "output": False, "residual": False},
    "published": {"heads": 2, "scale": "head", "bias": True},
    "temperature": {"heads": 2, "scale": "head", "bias": True, "norm": True, "feed_forward": 7},
    "linear": {"kind": "linear", "heads": 2, "bias": True, "residual": False},
    "relu": {"kind": "relu", "heads": 2, "head_size": 12, "feed_forward": 7},
    "wide heads": {"heads": 3, "head_size": 5, "scale": "head"},
}
WIDTH, LENGTH = 12, 5


def run_copies(network: MaskedAttention, tokens: Tensor, masked: Tensor, known: Tensor, *, causal: bool) -> Tensor:
    """Each position masked in turn, and all layers of torch's functions applied to each copy of each sequence."""
    shape = network.shape
    found = torch.zeros_like(masked)
    total, positions = tokens.shape[1], masked.shape[1]
    for b in range(len(tokens)):
        for i in range(positions):
            x = tokens[b].clone()
            x[i] = masked[b, i]
            allowed = torch.ones(total, total, dtype=torch.bool)
            if causal:
                for j in range(total):
                    for k in range(total):
                        # A context-only token belongs to a position, and is of an earlier time.
                        allowed[j, k] = k % positions <= j % positions and (j < positions or k >= positions)
            allowed = allowed & known[b]
            for layer in network.layers:
                query, key, value = (
                    part(x).view(total, shape.heads, -1).transpose(0, 1)
                    for part in (layer.query, layer.key, layer.value)
                )
                logits = (
                    query @ key.mT * (1 / shape.width if shape.scale == "width" else 1 / math.sqrt(query.shape[-1]))
                )
                if shape.kind == "softmax":
                    weights = torch.where(allowed, logits, -math.inf).softmax(-1).nan_to_num()  # of none that is known
                elif shape.kind == "relu":
                    weights = (logits.clamp(min=0) * allowed / allowed.sum(-1, keepdim=True)).nan_to_num()
                else:
                    weights = logits * allowed
                mixed = (weights @ value).transpose(0, 1).flatten(1)
                mixed = mixed if layer.output is None else layer.output(mixed)
                x = layer.norm1(x * shape.residual + mixed)
                if layer.feed_forward is not None:
                    x = layer.norm2(x * shape.residual + layer.feed_forward(x))
            found[b, i] = x[i]
    return found


def make(
    layers: int, context: int = 0, seed: int = 0, **options: Any
) -> tuple[MaskedAttention, Tensor, Tensor, Tensor]:
    torch.manual_seed(seed)
    network = MaskedAttention(AttentionShape(width=WIDTH, layers=layers, **options)).double()
    with torch.no_grad():
        for each in network.parameters():
            each.copy_(torch.randn_like(each) * 0.7)
    tokens = torch.randn(3, LENGTH + context, WIDTH, dtype=torch.float64)
    known = torch.ones(3, LENGTH + context, dtype=torch.bool)
    known[1, 3:LENGTH] = False
    known[2, 1:] = False
    known[2, LENGTH : LENGTH + 1] = True  # of the position that is known
    return network, tokens, torch.randn(3, LENGTH, WIDTH, dtype=torch.float64), known


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        pytest.param(name, layers, marks=() if layers == 2 or name == "published" else pytest.mark.slow)
        for name in SHAPES for layers in (1, 2, 3)
    ],
)  # fmt: skip
@pytest.mark.parametrize(("causal", "context"), [(True, 0), (False, 0), (True, LENGTH), (False, LENGTH)])
def test_numbers_are_those_of_masked_copies(name: str, layers: int, causal: bool, context: int) -> None:
    """Values and gradients, of sequences of several lengths."""
    network, tokens, masked, known = make(layers, context, **SHAPES[name])
    inputs = [each.requires_grad_() for each in (tokens, masked)]
    targets = known[:, :LENGTH]
    results = []
    for compute in (network.forward, lambda *args, **options: run_copies(network, *args, **options)):
        found = compute(tokens, masked, known, causal=causal)[targets]
        weights = torch.linspace(0.5, 2, found.numel(), dtype=found.dtype).view_as(found)
        gradients = torch.autograd.grad((found * weights).sum(), [*network.parameters(), *inputs], allow_unused=True)
        results.append((found, gradients))
    torch.testing.assert_close(results[0][0], results[1][0])
    for one, other in zip(results[0][1], results[1][1], strict=True):
        zero = torch.zeros(())
        torch.testing.assert_close(zero if one is None else one, zero if other is None else other, check_dtype=False)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("causal", [True, False])
def test_a_position_is_not_read_when_it_is_masked_nor_the_future(layers: int, causal: bool) -> None:
    network, tokens, masked, known = make(layers, **SHAPES["published"])
    known[:] = True
    before = network(tokens, masked, known, causal=causal)
    for at in range(LENGTH):
        changed = tokens.clone()
        changed[:, at] += 3
        after = network(changed, masked, known, causal=causal)
        same = [i for i in range(LENGTH) if torch.allclose(before[:, i], after[:, i], rtol=1e-12, atol=1e-12)]
        assert same == (list(range(at + 1)) if causal else [at])


@pytest.mark.parametrize("layers", [1, 2])
def test_single_precision_keeps_small_weights_beside_a_large_one(layers: int) -> None:
    """The token with nearly all of the weight is the masked one in one copy; the others' weights count there."""
    network, tokens, masked, known = make(layers, heads=1, scale="head")
    known[:] = True
    tokens[:, 2] *= 12
    wanted = network(tokens, masked, known, causal=False)
    found = network.float()(tokens.float(), masked.float(), known, causal=False)
    torch.testing.assert_close(found.double(), wanted, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("layers", [2, 3])
def test_sequences_of_many_lengths_have_the_numbers_that_each_has_alone(layers: int) -> None:
    network, _, _, _ = make(layers, **SHAPES["published"])
    tokens, masked = torch.randn(2, 40, 10, WIDTH, dtype=torch.float64)
    lengths = torch.randint(1, 11, (40,), generator=torch.Generator().manual_seed(0))
    known = torch.arange(10)[None] < lengths[:, None]
    found = network(tokens, masked, known, causal=False)
    for row, length in enumerate(lengths.tolist()):
        part = (slice(row, row + 1), slice(0, length))
        alone = network(tokens[part], masked[part], known[part], causal=False)
        torch.testing.assert_close(found[part], alone)


def test_positions_without_a_token_are_not_read() -> None:
    network, tokens, masked, known = make(2, **SHAPES["temperature"])
    before = network(tokens, masked, known, causal=False)
    changed = torch.where(known[..., None], tokens, 1e3)
    after = network(changed, masked, known, causal=False)
    torch.testing.assert_close(before[known], after[known])


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"width": 6, "heads": 4}, ["width", "6", "n_heads", "4"]),
    ],
)
def test_shapes_that_do_not_fit_are_refused(options: dict[str, Any], facts: list[str]) -> None:
    with refuses(UsageError, *facts):
        AttentionShape(**options)


def test_copies_in_groups_of_any_size_give_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    network = MaskedAttention(AttentionShape(width=8, layers=3, heads=2, norm=True, bias=True))
    tokens, masked = torch.randn(2, 11, 6, 8, dtype=torch.float64)
    known = torch.arange(6) < torch.randint(1, 7, (11, 1))
    network.double()
    whole = network(tokens, masked, known, causal=False)[known]
    for numbers in (1, 8 * 6 * 6 * 3):
        monkeypatch.setattr("attngeo.estimators.efa.attention.LARGEST_GROUP", numbers)
        torch.testing.assert_close(network(tokens, masked, known, causal=False)[known], whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("tokens", [1, 2, 5, 15, 16, 30])
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_weights_are_the_softmax_of_what_is_seen(tokens: int, size: float) -> None:
    generator = torch.Generator().manual_seed(tokens)
    logits = size * torch.randn(3, 4, tokens, generator=generator, dtype=torch.float64)
    seen = torch.rand(3, 4, tokens, generator=generator) < 0.7
    seen[..., 0] = True
    layer = MaskedLayer(AttentionShape(width=4))
    wanted = scipy.special.softmax(np.where(seen, logits, -np.inf), axis=-1)
    np.testing.assert_allclose(layer.weigh(logits, seen), wanted, atol=1e-12)
    small = torch.randn(2, tokens, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: layer.weigh(x, seen[0, :2]), small)
