"""Values and outputs of every family against the running model, whose attention is fed with equal tokens.

If all tokens are x, and the weights of attention sum to 1, each head h writes x·Wv_g(h)·Wo_h, wherever it looks.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints import write_single
from support.running_model import inputs_for
from support.tiny_models import TINY_MODELS, build, list_one_of_each_kind
from torch import Tensor, nn

import attngeo
from attngeo.attention import projections
from attngeo.attention.weights import SiteWeights
from attngeo.errors import CorruptCheckpointError, UnsupportedModelError
from attngeo.layouts.layout import AttentionSite, Heads
from attngeo.layouts.rules import OutputNote
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


@pytest.mark.parametrize("name", list_one_of_each_kind())
def test_outputs_are_what_the_running_model_writes(name: str, built: Build) -> None:
    model = deepcopy(built(name))
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("sinks"):  # a sink takes a share of the weights
            parameter.data.fill_(-1e4)
    weights = list(attngeo.attention_sites(model, circuit="both", with_bias=True))
    written = run_on_equal_tokens(name, model, [of_site.site for of_site in weights])
    assert weights
    for of_site in weights:
        expected = expect_written(of_site)
        got = written[of_site.site.module]
        assert expected.norm() > 1e-3
        assert torch.allclose(got, expected.expand_as(got), atol=1e-5 * float(expected.abs().max())), of_site.site


def test_weights_that_are_not_asked_for_have_no_heads(built: Build) -> None:
    model = built("llama")
    queries = next(attngeo.attention_sites(model))
    assert (len(queries.wv), len(queries.wo), queries.bo) == (0, 0, None)
    outputs = next(attngeo.attention_sites(model, circuit="ov"))
    assert (len(outputs.wq), len(outputs.wk)) == (0, 0)
    assert len(outputs.wo) == len(queries.wq) > 0


def test_latent_attention_without_biases_has_no_further_input() -> None:
    tiny = TINY_MODELS["deepseek_v3"]
    model = build(replace(tiny, config={**tiny.config, "attention_bias": False}))
    for of_site in attngeo.attention_sites(model, circuit="both", with_bias=True):
        assert {w.shape[1] for w in (of_site.wq, of_site.wk, of_site.wv)} == {of_site.site.d_model}
        assert of_site.bo is None


def test_biases_of_queries_and_values_alone_are_read(tmp_path: Path) -> None:
    """As VideoMAE is published: they have names of their own."""
    attention = "videomae.encoder.layer.0.attention"
    draw = random_vectors(3)
    tensors = {f"{attention}.attention.{name}.weight": torch.eye(24) for name in ("query", "key", "value")}
    tensors |= {f"{attention}.attention.{letter}_bias": draw(24) for letter in "qv"}
    tensors |= {f"{attention}.output.dense.weight": torch.eye(24), f"{attention}.output.dense.bias": draw(24)}
    config = {"model_type": "videomae", "num_attention_heads": 4, "hidden_size": 24}
    folder = write_single(tmp_path, tensors, config)
    (of_site,) = attngeo.attention_sites(folder, circuit="both", with_bias=True)
    for weight, letter in ((of_site.wq, "q"), (of_site.wv, "v")):
        assert torch.equal(weight[:, -1].flatten(), tensors[f"{attention}.attention.{letter}_bias"])
    assert not of_site.wk[:, -1].any()


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
    weights = list(attngeo.attention_sites(model, circuit="both", with_bias=True))
    written = run_on_equal_tokens(name, model, [of_site.site for of_site in weights])
    assert set(attngeo.verify(model, circuit="ov")["verdict"]) == {"agrees"}
    original = projections.assemble

    def assemble(site: AttentionSite, tensors: dict[str, Tensor], letters: Any = "qk") -> Assembled:
        parts = original(site, tensors, letters)
        if "v" in parts:
            mutate(parts, original(site, tensors, "k")["k"])
        return parts

    monkeypatch.setattr(projections, "assemble", assemble)
    for of_site in attngeo.attention_sites(model, circuit="both", with_bias=True):
        expected = expect_written(of_site)
        assert (written[of_site.site.module] - expected).norm(dim=-1).min() > 0.1 * expected.norm()
    assert set(attngeo.verify(model, circuit="both").set_index("circuit").loc["ov", "verdict"]) == {"differs"}


@pytest.mark.parametrize("name", ["bert", "gpt_neox", "deepseek_v3"])
def test_another_order_of_heads_is_noticed(name: str, built: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """All heads together write the same."""
    original = projections.assemble

    def assemble(*arguments: Any) -> Assembled:
        heads = original(*arguments)
        return {
            letter: of_letter._replace(weight=of_letter.weight.roll(1, 0)) if letter in "vo" else of_letter
            for letter, of_letter in heads.items()
        }

    monkeypatch.setattr(projections, "assemble", assemble)
    assert set(attngeo.verify(built(name), circuit="ov")["verdict"]) == {"differs"}


CONFIG = {
    "model_type": "llama", "hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "num_hidden_layers": 1,
}  # fmt: skip
ATTENTION = "model.layers.0.self_attn"


def draw_llama() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = {"q": (32, 24), "k": (16, 24), "v": (16, 24), "o": (24, 32)}
    return {
        f"{ATTENTION}.{letter}_proj.weight": torch.randn(shape, generator=generator) for letter, shape in shapes.items()
    }


# What is wrong → the tensors that differ, and what the error says.
UNKNOWN: dict[str, tuple[dict[str, Tensor | None], str]] = {
    "no values": ({"v_proj": None}, f"it has no {ATTENTION}.v_proj.weight"),
    "no output projection": ({"o_proj": None}, "its output projection is unknown: found none, looked for o_proj, "),
    "two output projections": ({"dense": torch.ones(24, 32)}, "found several candidates: o_proj.weight, dense.weight"),
    "an output projection of another width": (
        {"o_proj": torch.ones(24, 31)},
        r"\[24, 31\] with 31 inputs, expected 32",
    ),
    "values of another input": ({"v_proj": torch.ones(16, 20)}, "its values read 20 inputs, but its keys read 24"),
    "a bias of another width": ({"o_proj.bias": torch.ones(5)}, "with 5 numbers, expected 24"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_values_and_outputs_are_never_guessed(case: str, tmp_path: Path) -> None:
    """Queries and keys are read all the same."""
    changes, message = UNKNOWN[case]
    tensors = draw_llama()
    for name, tensor in changes.items():
        full = f"{ATTENTION}.{name}" if name.endswith(".bias") else f"{ATTENTION}.{name}.weight"
        tensors.pop(full, None)
        if tensor is not None:
            tensors[full] = tensor
    folder = write_single(tmp_path, tensors, CONFIG)
    for circuit in ("ov", "both"):
        with pytest.raises(UnsupportedModelError, match=message):
            list(attngeo.attention_sites(folder, circuit=circuit, with_bias=True))
    (weights,) = attngeo.attention_sites(folder)
    assert torch.equal(weights.wq.mT.flatten(0, 1), tensors[f"{ATTENTION}.q_proj.weight"])
    assert not weights.wv.numel()
    assert len(attngeo.score(folder)) == 1


def test_values_may_have_another_width(tmp_path: Path) -> None:
    tensors = draw_llama() | {
        f"{ATTENTION}.v_proj.weight": torch.randn(2 * 5, 24), f"{ATTENTION}.o_proj.weight": torch.randn(24, 4 * 5),
    }  # fmt: skip
    (weights,) = attngeo.attention_sites(write_single(tmp_path, tensors, CONFIG), circuit="ov")
    assert torch.equal(weights.wv.mT.flatten(0, 1), tensors[f"{ATTENTION}.v_proj.weight"])
    assert torch.equal(weights.wo.flatten(0, 1).T, tensors[f"{ATTENTION}.o_proj.weight"])
    assert weights.wq.shape == (0, 24, 8)


def test_values_may_be_keys(tmp_path: Path) -> None:
    """Those of Gemma 4, before the gain of their norm."""
    tensors = draw_llama() | {f"{ATTENTION}.{letter}_norm.weight": torch.rand(8) for letter in "qk"}
    keys = tensors[f"{ATTENTION}.k_proj.weight"]
    del tensors[f"{ATTENTION}.v_proj.weight"]
    folder = write_single(tmp_path, tensors, CONFIG | {"model_type": "gemma4_text"})
    (weights,) = attngeo.attention_sites(folder, circuit="both")
    assert torch.equal(weights.wv.mT.flatten(0, 1), keys)
    assert not torch.allclose(weights.wk, weights.wv)
    assert OutputNote.VALUE_NORM in weights.site.output_notes


@pytest.mark.parametrize("scale", ["much", True, float("inf")])
def test_a_scale_of_values_that_is_no_number_is_refused(scale: Any, tmp_path: Path) -> None:
    config = CONFIG | {"model_type": "mimo_v2_flash"}
    values = draw_llama()[f"{ATTENTION}.v_proj.weight"]
    for number, factor in enumerate((None, 0.5)):
        folder = write_single(tmp_path / str(number), draw_llama(), config | {"attention_value_scale": factor})
        (weights,) = attngeo.attention_sites(folder, circuit="ov")
        assert torch.equal(weights.wv.mT.flatten(0, 1), values if factor is None else factor * values)
    (weights,) = attngeo.attention_sites(write_single(tmp_path / "unstated", draw_llama(), config), circuit="ov")
    torch.testing.assert_close(weights.wv.mT.flatten(0, 1), 0.707 * values)  # as transformers does
    folder = write_single(tmp_path / "broken", draw_llama(), config | {"attention_value_scale": scale})
    with pytest.raises(CorruptCheckpointError, match="attention_value_scale"):
        list(attngeo.attention_sites(folder, circuit="ov"))
