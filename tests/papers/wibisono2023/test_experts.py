"""Lemma 1 and Theorem 2, and the attention that they are compared with, against torch.nn.MultiheadAttention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attngeo.papers.residuals import difference
from attngeo.papers.wibisono2023 import experts
from attngeo.papers.wibisono2023.experts import AttentionLayer, BidirectionalAttention
from attngeo.training.loop import seeded

# Of float64, as a share of the largest number: a thousand times what is measured.
ROUNDING = 1e-12
SIZES = [
    {"words": 3, "length": 2, "dimensions": 1, "head_dim": 1},
    {"words": 5, "length": 9, "dimensions": 7, "head_dim": 2},
    {"words": 40, "length": 3, "dimensions": 4, "head_dim": 11},
]


def torchs_logits(model: BidirectionalAttention, sentences: Tensor) -> Tensor:
    """The logits of a model, with its attention computed by torch's own layer; heads·head_dim must be p."""
    x = model.tokens(sentences) + model.positions.weight
    for layer in model.layers:
        assert isinstance(layer, AttentionLayer)
        attention = nn.MultiheadAttention(x.shape[-1], layer.heads, bias=False, batch_first=True, dtype=x.dtype)
        attention.in_proj_weight.data = torch.cat([layer.query.weight, layer.key.weight, layer.value.weight])
        attention.out_proj.weight.data = layer.output.weight
        x = x + attention(x, x, x, need_weights=False)[0]
        x = x + x @ layer.linear.weight.T
    return x @ model.last.weight.T


@pytest.mark.parametrize(("heads", "layers"), [(1, 1), (4, 1), (2, 3)])
def test_the_model_and_the_mixture_agree_with_torchs_attention(heads: int, layers: int) -> None:
    with seeded(heads + layers), torch.no_grad():
        model = BidirectionalAttention(9, 5, 8, heads=heads, head_dim=8 // heads, layers=layers)
        sentences = torch.randint(10, (6, 5))
        sentences[:, 2] = 9
        expected = torchs_logits(model, sentences)
        assert difference(model(sentences), expected) < ROUNDING
        for sentence, logits in zip(sentences, expected, strict=True):
            mixed = experts.mixture_of_mixtures(model, sentence, 2)
            assert difference(mixed, logits[2]) < ROUNDING
            if layers == 1:
                assert difference(experts.mixture_logits(model, sentence, 2), logits[2]) < ROUNDING
            if layers == heads == 1:
                losses = experts.lemma_1_losses(model, sentence, 2)
                wanted = [nn.functional.cross_entropy(logits[2], torch.tensor(word)) for word in range(9)]
                assert difference(losses, torch.stack(wanted)) < ROUNDING


@pytest.mark.parametrize(("sizes", "seed"), [*zip(SIZES, [0, 1, 2**32 - 1], strict=True)])
def test_the_statements_hold_for_any_sizes(sizes: dict[str, int], seed: int) -> None:
    assert experts.check_lemma_1(seed, **sizes).worst < ROUNDING
    assert experts.check_parts(seed, **sizes).worst < ROUNDING
    lengths = {name: size for name, size in sizes.items() if name != "head_dim"}
    assert experts.check_cbow_loss(seed, **lengths).worst < ROUNDING
    assert experts.check_theorem_2(seed, **sizes).worst < ROUNDING
    assert experts.check_theorem_2(seed, heads=3, **sizes).worst < ROUNDING
    assert experts.check_theorem_2(seed, layers=2, heads=2, **sizes).worst < ROUNDING


def test_the_weights_of_the_mixture_sum_to_the_constant_experts() -> None:
    """If W^LOV is 0, every expert is g + D·e_m, and so is the mixture: the weights sum to 1."""
    with seeded(0), torch.no_grad():
        model = BidirectionalAttention(6, 4, 5)
        layer = model.layers[0]
        assert isinstance(layer, AttentionLayer)
        layer.value.weight.zero_()
        weights = experts.expert_weights(model)
        mixed = experts.mixture_logits(model, torch.tensor([1, 6, 2, 2]), 1)
        assert difference(mixed, weights.mask + weights.position[:, 1]) < ROUNDING


original = AttentionLayer.head_forms


def transposed(layer: AttentionLayer) -> Iterator[tuple[Tensor, Tensor]]:
    for key_query, value in original(layer):
        yield key_query.T, value


def unscaled(layer: AttentionLayer) -> Iterator[tuple[Tensor, Tensor]]:
    for key_query, value in original(layer):
        yield key_query * 2, value


@pytest.mark.parametrize("wrong", [transposed, unscaled])
def test_a_wrong_formula_is_noticed(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AttentionLayer, "head_forms", wrong)
    assert experts.check_lemma_1().worst > 1e-4
    assert experts.check_parts().worst > 1e-4
    assert experts.check_theorem_2(heads=2).worst > 1e-4
    assert experts.check_theorem_2(layers=3, heads=2).worst > 1e-4


@pytest.mark.parametrize("part", experts.Parts._fields)
def test_a_part_that_is_missing_is_noticed(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = experts.split_parts

    def without(model: experts.BidirectionalAttention) -> experts.Parts:
        parts = original(model)
        return parts._replace(**{part: torch.zeros_like(getattr(parts, part))})

    monkeypatch.setattr(experts, "split_parts", without)
    assert experts.check_parts().worst > 1e-3


def test_another_window_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = experts.cbow_losses
    monkeypatch.setattr(experts, "cbow_losses", lambda *args: original(*args[:-1], args[-1] + 1))
    assert experts.check_cbow_loss().worst > 1e-3
