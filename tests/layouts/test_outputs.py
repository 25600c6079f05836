"""Values and outputs of every family against the running model, whose attention is fed with equal tokens.

If all tokens are x, and the weights of attention sum to 1, each head h writes x·Wv_g(h)·Wo_h, wherever it looks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.running_model import inputs_for
from support.tiny_models import TINY_MODELS
from torch import Tensor, nn

import attngeo
from attngeo.layouts.layout import AttentionSite, Heads
from attngeo.scores import projections
from attngeo.scores.weights import SiteWeights
from attngeo.verification.probing import linear_norms, probe_inputs, random_vectors

Build = Callable[[str], Any]
# Their attention adds its own input to what it writes.
ADDING = ("albert", "bloom")


def run_on_equal_tokens(name: str, model: nn.Module, sites: list[AttentionSite]) -> dict[str, Tensor]:
    """Module → what it writes at each token [tokens, width], if every token that enters it is the same vector.

    Of a module that has no output projection of its own, or adds its input, it is what that projection writes.
    """
    written: dict[str, Tensor] = {}
    handles = []
    for site in sites:
        output = site.tensors["o"].removesuffix(".weight")
        is_inside = output.startswith(f"{site.module}.") and not name.startswith(ADDING)
        source = site.module if is_inside else output

        def keep(_: Any, __: Any, result: Any, site: AttentionSite = site) -> None:
            first = result[0] if isinstance(result, tuple | list) else result
            written[site.module] = first.detach().reshape(-1, first.shape[-1])

        handles.append(model.get_submodule(source).register_forward_hook(keep))
    widths = {site.module: {site.d_model, site.key_width} for site in sites}
    vectors = random_vectors(0)
    with torch.no_grad(), linear_norms(model, widths, vectors), probe_inputs(model, widths, vectors, {}):
        model(**inputs_for(TINY_MODELS[name].inputs, model))
    for handle in handles:
        handle.remove()
    return written


def expect_written(weights: SiteWeights) -> Tensor:
    """What the weights of a site write for the vector that is every token."""
    site = weights.site
    token = random_vectors(0)(site.key_width)
    if weights.wv.shape[1] > site.key_width:
        token = torch.cat([token, torch.ones(1)])
    of_heads = token @ weights.wv[[head // (site.heads // site.key_heads) for head in range(site.heads)]]
    written = torch.einsum("hk,hkd->d", of_heads, weights.wo)
    return written if weights.bo is None else written + weights.bo


@pytest.mark.parametrize("name", TINY_MODELS)
def test_outputs_are_what_the_running_model_writes(name: str, built: Build) -> None:
    model = built(name)
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("sinks"):  # a sink takes a share of the weights
            parameter.data.fill_(-1e4)
    weights = list(attngeo.attention_sites(model, parts="qkvo", with_bias=True))
    written = run_on_equal_tokens(name, model, [of_site.site for of_site in weights])
    assert weights
    for of_site in weights:
        expected = expect_written(of_site)
        got = written[of_site.site.module]
        assert expected.norm() > 1e-3
        assert torch.allclose(got, expected.expand_as(got), atol=1e-5 * float(expected.abs().max())), of_site.site


Assembled = dict[str, Heads]


def cut_values_as_keys(parts: Assembled, keys: Heads) -> None:
    parts["v"] = keys


def transpose_the_projection(parts: Assembled, _: Heads) -> None:
    o = parts["o"].weight
    matrix = o.flatten(0, 1)
    parts["o"] = parts["o"]._replace(weight=matrix.T.reshape(o.shape))


def take_rows_of_another_head(parts: Assembled, _: Heads) -> None:
    parts["o"] = parts["o"]._replace(weight=parts["o"].weight.roll(1, 0))


def pair_heads_in_turn(parts: Assembled, _: Heads) -> None:
    """The group of each query head is h mod K: the same as its outputs in another order."""
    o = parts["o"].weight
    key_heads = len(parts["v"].weight)
    parts["o"] = parts["o"]._replace(weight=o.reshape(-1, key_heads, *o.shape[1:]).transpose(0, 1).reshape(o.shape))


@pytest.mark.parametrize(
    ("name", "mutate"),
    [
        ("llama", cut_values_as_keys),
        ("gpt_neox", cut_values_as_keys),
        ("bert", transpose_the_projection),
        ("gpt2", transpose_the_projection),
        ("gpt2", take_rows_of_another_head),
        ("deepseek_v3", take_rows_of_another_head),
        ("llama", pair_heads_in_turn),
    ],
)
def test_weights_that_are_read_wrongly_are_noticed(
    name: str, mutate: Callable[[Assembled, Heads], None], built: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the oracle above, and by verification."""
    model = built(name)
    weights = list(attngeo.attention_sites(model, parts="qkvo", with_bias=True))
    written = run_on_equal_tokens(name, model, [of_site.site for of_site in weights])
    assert set(attngeo.verify(model, parts="vo")["verdict"]) == {"agrees"}
    original = projections.assemble

    def assemble(site: AttentionSite, tensors: dict[str, Tensor], letters: Any = "qk") -> Assembled:
        parts = original(site, tensors, letters)
        if "v" in parts:
            mutate(parts, original(site, tensors, "k")["k"])
        return parts

    monkeypatch.setattr(projections, "assemble", assemble)
    for of_site in attngeo.attention_sites(model, parts="qkvo", with_bias=True):
        expected = expect_written(of_site)
        assert (written[of_site.site.module] - expected).norm(dim=-1).min() > 0.1 * expected.norm()
    assert set(attngeo.verify(model, parts="qkvo").set_index("circuit").loc["ov", "verdict"]) == {"differs"}
