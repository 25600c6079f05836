"""The check against the running model notices each way to read weights wrongly.

That it agrees with every family is tested in tests/layouts/test_families.py.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from support import check_model as in_memory
from support.check_model import check_model
from support.running_model import inputs_for
from support.tiny_models import TINY_MODELS
from torch import Tensor

from attngeo.layouts.families import FAMILIES
from attngeo.layouts.layout import make_fused
from attngeo.verification import checking
from attngeo.verification.checking import Findings
from attngeo.verification.mixing import Mixture
from attngeo.verification.written import OutputPrediction, compare_outputs

Build = Callable[[str], Any]


def check(name: str, built: Build) -> Findings:
    model = built(name)
    inputs = inputs_for(TINY_MODELS[name].inputs, model)
    return check_model(model, lambda: model(**inputs))


def _swap(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return k, q


def _give_keys_to_other_heads(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return q, k.flip(0)


def _shift_a_row(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return q.flatten(0, 1).roll(1, 0).reshape(q.shape), k


def _cut_other_heads(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Every n-th row belongs to the same head."""
    heads, width, d_model = q.shape
    return q.reshape(width, heads, d_model).transpose(0, 1), k.reshape(width, heads, d_model).transpose(0, 1)


@pytest.mark.parametrize(
    ("name", "mutate"),
    [("bert", _swap), ("gpt_oss", _give_keys_to_other_heads), ("gpt2", _shift_a_row), ("vit", _cut_other_heads)],
)
def test_weights_that_are_read_wrongly_differ(
    name: str, mutate: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], built: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = checking.projections

    def read_wrongly(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, list[str]]:
        q, k, notes = original(*args, **kwargs)
        return *mutate(q, k), notes

    monkeypatch.setattr(checking, "projections", read_wrongly)
    assert {check.verdict for check in check(name, built).checks} == {"differs"}


@pytest.mark.parametrize(("size", "verdict"), [(0.9, "agrees"), (1.1, "differs")])
def test_weights_differ_from_two_thousandths_on(
    size: float, verdict: str, built: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The products of queries that are changed by noise of this part of the limit."""
    original = checking.projections
    limit = 2e-3

    def add_noise(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, list[str]]:
        q, k, notes = original(*args, **kwargs)
        noise = torch.randn(q.shape, generator=torch.Generator().manual_seed(0))
        return q + share * q.std() * noise, k, notes

    monkeypatch.setattr(checking, "projections", add_noise)
    share = 1e-3
    differences = [found.difference for found in check("llama", built).checks]
    for number, difference in enumerate(differences):
        share = 1e-3 * size * limit / difference
        found = check("llama", built).checks[number]
        assert found.difference == pytest.approx(size * limit, rel=0.05)
        assert found.verdict == verdict


def _without_offset(family: Any) -> Any:
    return replace(family, head_norm=replace(family.head_norm, gain_offset=0.0))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("gemma3_text", _without_offset),
        ("phi-qk-norm", lambda family: replace(family, head_norm=replace(family.head_norm, centered=False))),
        ("qwen3", lambda family: replace(family, head_norm=None)),
        ("phi3", lambda family: replace(family, layouts=(make_fused("qkv_proj", "kqv"),))),
        ("gpt_neox", lambda family: replace(family, layouts=(make_fused("query_key_value"),))),
        ("codegen", lambda family: replace(family, layouts=(make_fused("qkv_proj", "qvk", blocks=2),))),
    ],
)
def test_a_family_that_is_declared_wrongly_differs(
    name: str, change: Callable[[Any], Any], built: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_type = TINY_MODELS[name].model_type
    monkeypatch.setitem(FAMILIES, model_type, change(FAMILIES[model_type]))
    assert "differs" in {check.verdict for check in check(name, built).checks}


def test_attention_that_is_not_read_is_reported(built: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    original = in_memory.sites_of

    def leave_out_vision(*args: Any, **more: Any) -> Any:
        sites, skipped = original(*args, **more)
        return [site for site in sites if site.stack != "vision"], skipped

    monkeypatch.setattr(in_memory, "sites_of", leave_out_vision)
    assert check("clip", built).unexplained == ["vision_model.encoder.layers.#.self_attn"]


class Pooling(torch.nn.Module):
    """Attention of tokens to each other, weighted by dimension; its class name says nothing."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        read = x * self.weight if self.weight.ndim == 1 else x @ self.weight
        return torch.softmax(read @ x.mT, -1) @ x


@pytest.mark.parametrize(("shape", "unexplained"), [((8,), []), ((8, 8), ["pooling"])])
def test_products_of_a_module_without_matrices_are_no_attention_that_is_left_out(
    shape: tuple[int, ...], unexplained: list[str], built: Build
) -> None:
    model = deepcopy(built("llama"))
    model.pooling = Pooling(torch.ones(shape))
    inputs = inputs_for(TINY_MODELS["llama"].inputs, model)
    tokens = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(0))

    def run() -> None:
        model(**inputs)
        model.pooling(tokens)

    findings = check_model(model, run)
    assert {check.verdict for check in findings.checks} == {"agrees"}
    assert findings.unexplained == unexplained


def test_a_module_without_softmax_has_no_product(built: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    def pass_through(scores: Tensor, *_: Any, **__: Any) -> Tensor:
        return scores

    monkeypatch.setattr(torch.nn.functional, "softmax", pass_through)
    assert {check.verdict for check in check("llama", built).checks} == {"no product"}


def test_an_output_projection_agrees_with_its_own_input_though_heads_are_changed_before_it() -> None:
    """As by a norm between what heads read and the projection: only values and the projection can be compared."""
    seeded = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=seeded)

    heads, runs, tokens, value_dim, width = 2, 4, 3, 5, 7
    values, o, projected = draw(heads, runs, value_dim), draw(heads, value_dim, width), draw(runs, 1, heads * value_dim)
    predicted = OutputPrediction(values, o, torch.einsum("hrk,hkd->rd", values, o))
    ran = values.mT.transpose(0, 2).mT[:, :, None].expand(-1, -1, tokens, -1)
    mixture = Mixture(ran, draw(*ran.shape), ("attention",), projected, projected @ o.flatten(0, 1))
    compared = compare_outputs(predicted, mixture)
    assert compared.verdict == "parts agree"
    assert compared.of_verdict == pytest.approx(0, abs=1e-5)
    other = replace(mixture, projected=draw(*projected.shape))
    assert compare_outputs(predicted, other).verdict == "differs"
