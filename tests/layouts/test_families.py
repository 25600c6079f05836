"""Every family against the running model: the weights that it multiplies are those that attngeo finds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from support.check_model import check_model
from support.readme import COMPOSITES
from support.running_model import assert_same_logits, inputs_for, inputs_of, record_tiny
from support.tiny_models import KINDS, TINY_MODELS, list_one_of_each_kind
from torch import Tensor

import attngeo
from attngeo.layouts.families import FAMILIES, OWN_FAMILIES, REMOTE

Build = Callable[[str], Any]
ROTARY = [
    "gptj",
    "gpt_neox",
    "codegen",
    "falcon-new",
    "llama",
    "mistral",
    "qwen3",
    "gemma",
    "gemma3_text",
    "olmo2",
    "phi",
    "phi3",
    "stablelm",
    "cohere",
    "gpt_oss",
    "modernbert",
    "roformer",
    "deepseek_v2",
    "deepseek_v3",
]

POST_NORM = [
    "bert", "roberta", "electra", "mpnet", "roformer", "distilbert", "albert", "deberta", "deberta-v2", "bart",
    "openai-gpt", "gemma2", "gemma3_text", "olmo2", "git",
]  # fmt: skip
ENCODER_DECODERS = ("bart", "whisper", "speech_to_text", "speecht5", "t5", "mt5")
# What each family must report: stack → layers. The rest of the families have two layers in one stack.
STACKS = {
    "bert-decoder": {"decoder": 2},
    "modernbert": {"encoder": 3},
    "gemma3_text": {"decoder": 6},
    **{name: {"encoder": 2, "decoder": 3, "cross": 3} for name in ENCODER_DECODERS},
    "gpt2-cross": {"decoder": 2, "cross": 2},
    "gemma3": {"text": 2, "vision": 2},
    "vit_mae": {"encoder": 2, "decoder": 1},
    "swin": {"encoder": 3},
    "detr": {"encoder": 2, "decoder": 2, "cross": 2},
    "sam": {
        "vision": 2, "decoder": 2, "cross_token_to_image": 2, "cross_image_to_token": 2,
        "cross_final_token_to_image": 1,
    },
    "mask2former": {"backbone": 4, "decoder": 2, "cross": 2},
    "clip": {"text": 2, "vision": 2},
    "siglip": {"text": 2, "vision": 2, "vision_pooling": 1},
    "git": {"text": 2, "vision": 2},
    "mllama": {"text": 2, "cross": 2, "vision": 2, "vision_global": 2},
    "musicgen": {"text": 2, "decoder": 3, "cross": 3},
}  # fmt: skip


@pytest.mark.parametrize("name", TINY_MODELS)
def test_weights_are_what_the_running_model_multiplies(name: str, built: Build) -> None:
    model = built(name)
    inputs = inputs_for(TINY_MODELS[name].inputs, model)
    findings = check_model(model, lambda: model(**inputs))
    assert {check.verdict for check in findings.checks} == {"agrees"}
    assert all(check.difference < 1e-5 for check in findings.checks)
    assert findings.unexplained == []
    stacks = pd.Series([check.site.stack for check in findings.checks]).value_counts().to_dict()
    assert stacks == STACKS.get(name, {next(iter(stacks)): 2})


@pytest.mark.parametrize("name", list_one_of_each_kind())
def test_a_saved_model_scores_as_the_one_in_memory(name: str, built: Build, saved: Callable[[str], Path]) -> None:
    drop = ["model", "note"]
    in_memory = attngeo.score(built(name), per_head=True).drop(columns=drop)
    from_file = attngeo.score(saved(name), per_head=True).drop(columns=drop)
    pd.testing.assert_frame_equal(in_memory, from_file)
    assert from_file["symmetry"].notna().all()


@pytest.mark.parametrize("name", ROTARY)
def test_rope_offset_is_a_difference_of_positions(name: str, built: Build) -> None:
    """Tokens at positions 0, 1, 2 …: the logit of a query n steps after a key is the form at offset n."""
    model, tiny = built(name), TINY_MODELS[name]
    ran = record_tiny(tiny, model, position=None)
    for offset in (1, 3, -2):
        for site, wq, wk in attngeo.attention_sites(model, with_bias=True, rope_offset=offset):
            assert_same_logits(site, wq, wk, *inputs_of(site, ran[site.module]), ran[site.module], offset)


@pytest.mark.parametrize("name", list_one_of_each_kind())
def test_fold_norm_is_the_form_in_front_of_the_gain(name: str, built: Build) -> None:
    model = built(name)
    ran = record_tiny(TINY_MODELS[name], model)
    modules = dict(model.named_modules())
    for site, wq, wk in attngeo.attention_sites(model, with_bias=True, fold_norm=True):
        xq, xk = inputs_of(site, ran[site.module])
        if "pre_norm" in site.tensors:
            norm = site.tensors["pre_norm"].removesuffix(".weight")
            given = ran[norm].arguments[0]
            plain = rearranged_like(xq, modules[norm](given), without_gain(modules[norm], given))
            xq, xk = plain, (xk if site.is_cross else plain)
        assert_same_logits(site, wq, wk, xq, xk, ran[site.module])


@pytest.mark.parametrize("name", POST_NORM)
def test_fold_norm_folds_the_gain_of_a_norm_after_attention(name: str, built: Build) -> None:
    """The norm is the one that is given what the output projection writes, alone or added to the stream."""
    model = built(name)
    ran = record_tiny(TINY_MODELS[name], model)
    modules = dict(model.named_modules())
    plain = attngeo.attention_sites(model, circuit="ov")
    folded = attngeo.attention_sites(model, circuit="ov", fold_norm=True)
    pairs = [pair for pair in zip(plain, folded, strict=True) if pair[0].site.family.post_norm]
    assert pairs
    for before, after in pairs:
        norm = after.site.tensors["o_norm"].removesuffix(".weight")
        projection = after.site.tensors["o"].removesuffix(".weight")
        with torch.no_grad():
            written = modules[projection](ran[projection].arguments[0])
        stream = ran[norm].arguments[0] - written
        is_alone = float(stream.abs().max()) < 1e-5
        residual = ran[after.site.module].arguments[0]
        assert is_alone or torch.allclose(stream, residual, atol=1e-5), "the norm is not the one after attention"
        shift = 1.0 if "Gemma" in type(modules[norm]).__name__ else 0.0
        torch.testing.assert_close(after.wo, before.wo * (modules[norm].weight + shift))


def rearranged_like(x: Tensor, normed: Tensor, plain: Tensor) -> Tensor:
    """The tokens of `plain`, in the order that those of `normed` have in x, which may be cut into windows."""
    tokens, known = (t.detach().reshape(-1, x.shape[-1]) for t in (x, normed))
    distances = torch.cdist(tokens, known, compute_mode="donot_use_mm_for_euclid_dist")
    assert distances.min(dim=1).values.max() < 1e-4, "the norm is not the one in front of attention"
    return plain.reshape(-1, x.shape[-1])[distances.argmin(dim=1)].reshape(x.shape)


def without_gain(norm: torch.nn.Module, x: Tensor) -> Tensor:
    """The output of the norm module for x, with a gain of one and no shift."""
    kept = {name: parameter.detach().clone() for name, parameter in norm.named_parameters()}
    neutral = 0.0 if "Gemma" in type(norm).__name__ else 1.0
    with torch.no_grad():
        for name, parameter in norm.named_parameters():
            parameter.fill_(neutral if name == "weight" else 0.0)
        result = norm(x)
        for name, parameter in norm.named_parameters():
            parameter.copy_(kept[name])
    return torch.as_tensor(result)


def test_pre_norm_families_are_known_as_such() -> None:
    expected = {
        "gpt2",
        "gpt_neo",
        "gptj",
        "gpt_neox",
        "codegen",
        "bloom",
        "falcon",
        "mpt",
        "llama",
        "mistral",
        "gemma3_text",
        "phi",
        "cohere",
        "deepseek_v3",
        "t5",
        "whisper",
        "vit",
        "swin",
        "clip_text_model",
        "modernbert",
        "musicgen_decoder",
    }
    assert expected <= {name for name, family in FAMILIES.items() if family.pre_norm}
    assert not {"bert", "bart", "olmo2", "openai-gpt", "detr"} & {n for n, f in FAMILIES.items() if f.pre_norm}


def test_every_family_of_the_table_has_a_tiny_model() -> None:
    """A family cannot be declared without being compared with the running model; test_saving has those of attngeo.

    test_remote.py has those whose code is on the Hub.
    """
    tested = {tiny.model_type for tiny in TINY_MODELS.values()}
    tested |= {kind for tiny in TINY_MODELS.values() for kind, _ in tiny.sub_configs.values() if kind}
    tested |= {"sam_mask_decoder"}
    assert set(FAMILIES) - set(OWN_FAMILIES) - set(REMOTE) <= tested
    assert set(COMPOSITES) <= tested
    assert {part for parts in COMPOSITES.values() for part in parts} <= set(FAMILIES)


@pytest.mark.slow  # it builds all models
def test_one_model_of_each_kind_of_layout_is_among_those_that_are_not_slow(built: Build) -> None:
    def describe(name: str) -> set[tuple[Any, ...]]:
        """The layouts of its sites, which tensors they have, and whether key heads are shared and sites cross."""
        return {
            (repr(site.layout), *sorted(site.tensors), site.is_cross, site.heads == site.key_heads)
            for site in (weights.site for weights in attngeo.attention_sites(built(name)))
        }

    assert set().union(*map(describe, KINDS)) == set().union(*map(describe, TINY_MODELS))


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"sam_mask_decoder", *OWN_FAMILIES, *REMOTE}))
def test_defaults_are_those_of_transformers(name: str) -> None:
    """A field that a configuration leaves out has the value that transformers gives it."""
    from transformers import CONFIG_MAPPING

    config = CONFIG_MAPPING[name]()
    rope = getattr(config, "rope_parameters", None) or {}
    for field, value in FAMILIES[name].defaults.items():
        match field:
            case "rope_theta":
                expected = rope.get("full_attention", rope)["rope_theta"]
            case "rope_local_base_freq" | "local_rope_theta":
                expected = rope["sliding_attention"]["rope_theta"]
            case "global_rope_theta":
                expected = rope["full_attention"]["rope_theta"]
            case "partial_rotary_factor" | "rotary_pct":
                expected = rope["partial_rotary_factor"]
            case "sliding_window_pattern" | "global_attn_every_n_layers":
                expected = config.layer_types.index("full_attention") + 1 if name == "gemma3_text" else value
                if name == "modernbert":
                    assert [kind == "full_attention" for kind in config.layer_types[:4]] == [True, False, False, True]
            case _:
                expected = getattr(config, field)
        assert (list(expected) if isinstance(value, list) else expected) == value, field
