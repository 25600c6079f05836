"""Families whose code is on the Hub: the attention of each, written from that code, against the weights that are found.

Each function gives the queries and keys [heads, tokens, width] that the published attention makes of its input, with
the tensors of the published names. The `source` of a family is the file that it was written from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from support.checkpoints import write_single
from support.running_model import Attended, assert_same_logits
from torch import Tensor
from torch.nn.functional import normalize

import attngeo
from attngeo.errors import AttnGeoError
from attngeo.layouts.families import REMOTE

Run = Callable[[Mapping[str, Tensor], Tensor, Tensor], tuple[Tensor, Tensor]]
TOKENS = 5


class Site(NamedTuple):
    """One attention module: the shapes of its tensors, and what it makes of its inputs.

    norm: the normalisation in front of it. rotary: which dimensions make a pair, and how many of a head rotate. keys:
    the input width of the keys.
    """

    stack: str
    shapes: Mapping[str, tuple[int, ...]]
    run: Run
    norm: str = ""
    rotary: tuple[str, int] | None = None
    keys: int = 0


class Remote(NamedTuple):
    """config: config.json. sites: the start of the names of a module's tensors → the module."""

    config: Mapping[str, Any]
    sites: Mapping[str, Site]


def heads(x: Tensor, *counts: int) -> tuple[Tensor, ...]:
    """Outputs [tokens, outputs] as one block of heads after the other: [heads, tokens, width] each."""
    return x.view(len(x), sum(counts), -1).transpose(0, 1).split(list(counts))


def rms(x: Tensor, gain: Tensor) -> Tensor:
    return x / x.square().mean(-1, keepdim=True).sqrt() * gain


def openelm(count: int, keys: int) -> Run:
    def run(w: Mapping[str, Tensor], x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        q, k, _v = heads(x @ w["attn.qkv_proj.weight"].T, count, keys, keys)
        return rms(q, w["attn.q_norm.weight"]), rms(k, w["attn.k_norm.weight"])

    return run


def bailing(w: Mapping[str, Tensor], x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    q, k, _v = heads(x @ w["attention.query_key_value.weight"].T, 4, 2, 2)
    return rms(q, w["attention.query_layernorm.weight"]), rms(k, w["attention.key_layernorm.weight"])


def plamo2(w: Mapping[str, Tensor], x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    q, k, _v = (x @ w["mixer.qkv_proj.weight"].T).split([24, 12, 12], -1)
    q, k = q.view(len(x), 4, 6).transpose(0, 1), k.view(len(x), 2, 6).transpose(0, 1)
    return rms(q, w["mixer.q_weight"][:, None]), rms(k, w["mixer.k_weight"][:, None])


def neobert(w: Mapping[str, Tensor], x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    q, k, _v = (x @ w["qkv.weight"].T).view(len(x), 3, 8 * 3).chunk(3, -1)
    return q.transpose(0, 1), k.transpose(0, 1)


def jais(w: Mapping[str, Tensor], x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    q, k, _v = (x @ w["attn.c_attn.weight"] + w["attn.c_attn.bias"]).split(24, -1)
    return heads(q, 3)[0], heads(k, 3)[0]


def neox(w: Mapping[str, Tensor], x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    qkv = x @ w["attention.query_key_value.weight"].T + w["attention.query_key_value.bias"]
    q, k, _v = qkv.view(len(x), 3, 3 * 8).transpose(0, 1).chunk(3, -1)
    return q, k


def refact(w: Mapping[str, Tensor], x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    k, _v = (x @ w["attn.kv.weight"].T).chunk(2, -1)
    return heads(x @ w["attn.q.weight"].T, 3)[0], k[None]


def transfo_xl(w: Mapping[str, Tensor], x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    q, k, _v = (x @ w["dec_attn.qkv_net.weight"].T).chunk(3, -1)
    return heads(q, 4)[0], heads(k, 4)[0]


def cogvlm(kind: str) -> Run:
    def run(w: Mapping[str, Tensor], x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        qkv = x @ w[f"{kind}_expert_query_key_value.weight"].T + w.get("vision_expert_query_key_value.bias", 0)
        q, k, _v = qkv.split([24, 8, 8], -1)
        return heads(q, 6)[0], heads(k, 2)[0]

    return run


def eva_clip(w: Mapping[str, Tensor], x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    qkv = (x @ w["attention.query_key_value.weight"].T).reshape(len(x), 3, 5, -1).permute(1, 2, 0, 3)
    return qkv[0], qkv[1]


def xcomposer(w: Mapping[str, Tensor], x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    qkv = (x @ w["attention.wqkv.weight"].T).view(len(x), 2, 3 + 2, 4)
    return qkv[:, :, :3].reshape(len(x), 6, 4).transpose(0, 1), qkv[:, :, -2].transpose(0, 1)


def codet5p(width: int) -> Run:
    def run(w: Mapping[str, Tensor], x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        q, _v, k = (x @ w["attn.qkv_proj.weight"].T).reshape(len(x), 4, -1).split(8 * width // 4, -1)
        return heads(q.reshape(len(x), -1), 8)[0], heads(k.reshape(len(x), -1), 8)[0]

    return run


def codet5p_cross(w: Mapping[str, Tensor], x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
    (q,) = (x @ w["crossattention.q_attn.weight"].T).reshape(len(x), 4, -1).split(12, -1)
    _v, k = (context @ w["crossattention.qkv_proj.weight"].T).reshape(len(context), 4, -1).split(12, -1)
    return heads(q.reshape(len(x), -1), 8)[0], heads(k.reshape(len(context), -1), 8)[0]


def elm(count: int, keys: int) -> Site:
    shapes = {
        "attn.qkv_proj.weight": (4 * (count + 2 * keys), 20),
        "attn.q_norm.weight": (4,),
        "attn.k_norm.weight": (4,),
    }
    return Site("decoder", shapes, openelm(count, keys), "attn_norm", ("half", 4))


MODELS: dict[str, Remote] = {
    "openelm": Remote(
        {"model_type": "openelm", "model_dim": 20, "head_dim": 4, "num_query_heads": [4, 6], "num_kv_heads": [2, 3],
         "num_gqa_groups": 2, "num_transformer_layers": 2, "normalize_qk_projections": True},
        {"transformer.layers.0.": elm(4, 2), "transformer.layers.1.": elm(6, 3)},
    ),
    "jais": Remote(
        {"model_type": "jais", "n_embd": 24, "n_head": 3, "n_layer": 1, "position_embedding_type": "alibi"},
        {"transformer.h.0.": Site(
            "decoder", {"attn.c_attn.weight": (24, 72), "attn.c_attn.bias": (72,)}, jais, "ln_1",
        )},
    ),
    **{name: Remote(
        {"model_type": name, "hidden_size": 20, "head_dim": 8, "num_attention_heads": 4, "num_key_value_heads": 2,
         "num_hidden_layers": 1, "partial_rotary_factor": 0.5, "use_qk_norm": True},
        {"model.layers.0.": Site(
            "decoder",
            {"attention.query_key_value.weight": (64, 20), "attention.query_layernorm.weight": (8,),
             "attention.key_layernorm.weight": (8,)},
            bailing, "input_layernorm", ("half", 4),
        )},
    ) for name in ("bailing_moe", "bailing_moe_v2")},
    "neobert": Remote(
        {"model_type": "neobert", "hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 1, "dim_head": 8},
        {"model.transformer_encoder.0.": Site(
            "encoder", {"qkv.weight": (72, 24)}, neobert, "attention_norm", ("neighbours", 8)
        )},
    ),
    "plamo2": Remote(
        {"model_type": "plamo2", "hidden_size": 20, "hidden_size_per_head": 6, "num_attention_heads": 4,
         "num_key_value_heads": 2, "num_hidden_layers": 2, "mamba_step": 2, "rope_theta": 10_000},
        {"model.layers.layers.1.": Site(
            "decoder", {"mixer.qkv_proj.weight": (48, 20), "mixer.q_weight": (4, 6), "mixer.k_weight": (2, 6)}, plamo2
        )},
    ),
    "cogvlm": Remote(
        {"architectures": ["CogVLMForCausalLM"], "hidden_size": 24, "num_attention_heads": 6,
         "num_multi_query_heads": 2, "num_hidden_layers": 1, "vision_config": {"hidden_size": 20, "num_heads": 5}},
        {
            "model.layers.0.self_attn.language_": Site(
                "decoder", {"expert_query_key_value.weight": (40, 24)},
                lambda w, x, c: cogvlm("language")({f"language_{name}": tensor for name, tensor in w.items()}, x, c),
            ),
            "model.layers.0.self_attn.": Site(
                "decoder_vision",
                {"vision_expert_query_key_value.weight": (40, 24), "vision_expert_query_key_value.bias": (40,)},
                cogvlm("vision"),
            ),
            "model.vision.transformer.layers.0.": Site(
                "vision", {"attention.query_key_value.weight": (60, 20)}, eva_clip
            ),
        },
    ),
    "codet5p": Remote(
        {"model_type": "codet5p", "is_encoder_decoder": True,
         "encoder": {"model_type": "codet5p_module", "n_embd": 32, "n_head": 8, "n_layer": 1, "rotary_dim": 2},
         "decoder": {"model_type": "codet5p_module", "n_embd": 48, "n_head": 8, "n_layer": 1, "rotary_dim": 4}},
        {
            "encoder.h.0.": Site(
                "encoder", {"attn.qkv_proj.weight": (96, 32)}, codet5p(4), "ln_1", ("neighbours", 2)
            ),
            "decoder.transformer.h.0.": Site(
                "decoder", {"attn.qkv_proj.weight": (144, 48)}, codet5p(6), "ln_1", ("neighbours", 4)
            ),
            "decoder.transformer.h.00.": Site(
                "cross", {"crossattention.q_attn.weight": (48, 48), "crossattention.qkv_proj.weight": (96, 48)},
                codet5p_cross, keys=48,
            ),
        },
    ),
    **{name: Remote(
        {"model_type": name, "architectures": ["InternLMXComposer2ForCausalLM"], "hidden_size": 24,
         "num_attention_heads": 6, "num_key_value_heads": 2, "num_hidden_layers": 1},
        {"model.layers.0.": Site("decoder", {"attention.wqkv.weight": (40, 24)}, xcomposer)},
    ) for name in ("internlmxcomposer2", "internlm2")},
    "gpt_refact": Remote(
        {"model_type": "gpt_refact", "n_embd": 24, "n_head": 3, "n_layer": 1, "multi_query": True},
        {"transformer.h.0.": Site("decoder", {"attn.q.weight": (24, 24), "attn.kv.weight": (16, 24)}, refact, "ln_1")},
    ),
    "transfo-xl": Remote(
        {"model_type": "transfo-xl", "d_model": 20, "n_head": 4, "d_head": 6, "n_layer": 1, "pre_lnorm": True},
        {"transformer.layers.0.": Site(
            "decoder", {"dec_attn.qkv_net.weight": (72, 20)}, transfo_xl, "dec_attn.layer_norm"
        )},
    ),
    "gpt_neox_reward_model": Remote(
        {"model_type": "gpt_neox_reward_model", "hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 1,
         "rotary_pct": 0.5},
        {"gpt_neox.layers.0.": Site(
            "decoder",
            {"attention.query_key_value.weight": (72, 24), "attention.query_key_value.bias": (72,)},
            neox, "input_layernorm", ("half", 4),
        )},
    ),
}  # fmt: skip


def draw(remote: Remote) -> dict[str, dict[str, Tensor]]:
    """The tensors of each site, by the start of their names."""
    generator = torch.Generator().manual_seed(5)
    tensors = {}
    for start, site in remote.sites.items():
        tensors[start] = {name: torch.randn(shape, generator=generator) for name, shape in site.shapes.items()}
        if site.norm:
            width = next(iter(site.shapes.values()))["attn.c_attn.weight" not in site.shapes]
            tensors[start][f"{site.norm}.weight"] = torch.rand(width, generator=generator) + 0.5
    return tensors


def write(folder: Path, remote: Remote, tensors: Mapping[str, Mapping[str, Tensor]]) -> Path:
    """The checkpoint. "00" stands for a second module of layer 0."""
    stored = {start.replace(".00.", ".0.") + name: x for start, part in tensors.items() for name, x in part.items()}
    return write_single(folder, stored, remote.config)


def rotate(x: Tensor, kind: str, count: int) -> Tensor:
    """The first `count` dimensions of tokens at positions 0, 1, 2 …, with a base of 10,000."""
    angles = torch.arange(x.shape[1])[:, None] * 10_000.0 ** (-torch.arange(0, count, 2) / count)
    plain, rest = x[..., :count], x[..., count:]
    if kind == "half":
        a, b = plain.chunk(2, -1)
        turned = torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)
    else:
        pairs = torch.view_as_complex(plain.reshape(*plain.shape[:-1], -1, 2).contiguous())
        turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)
    return torch.cat([turned, rest], -1)


def run(site: Site, tensors: Mapping[str, Tensor], width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs of queries and of keys, and queries and keys of every query head."""
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(TOKENS, width, generator=generator)
    context = torch.randn(TOKENS, site.keys, generator=generator) if site.keys else x
    q, k = site.run(tensors, x, context)
    return x, context, q, k.repeat_interleave(len(q) // len(k), 0)


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_what_the_published_attention_multiplies(name: str, tmp_path: Path) -> None:
    remote = MODELS[name]
    tensors = draw(remote)
    found = {site.stack: [] for site, *_ in attngeo.attention_sites(write(tmp_path, remote, tensors))}
    assert sorted(found) == sorted({site.stack for site in remote.sites.values()})
    for weights in attngeo.attention_sites(tmp_path, with_bias=True):
        found[weights.site.stack].append(weights)
    for start, site in remote.sites.items():
        own, wq, wk = found[site.stack].pop(0)
        x, context, q, k = run(site, tensors[start], own.d_model)
        assert_same_logits(own, wq, wk, x[None], context[None], Attended(query=q, key=k))
    assert not any(found.values())


@pytest.mark.parametrize(
    "name", [name for name, remote in MODELS.items() if any(s.rotary for s in remote.sites.values())]
)
def test_rope_offset_is_a_difference_of_positions(name: str, tmp_path: Path) -> None:
    remote = MODELS[name]
    tensors = draw(remote)
    folder = write(tmp_path, remote, tensors)
    for start, site in remote.sites.items():
        if site.rotary is None:
            continue
        layer = int(start.rstrip(".").rpartition(".")[2])
        for offset in (1, -2):
            ((own, wq, wk),) = attngeo.attention_sites(
                folder, stack=site.stack, layers=[layer], with_bias=True, rope_offset=offset
            )
            x, context, q, k = run(site, tensors[start], own.d_model)
            if any("gain" in role for role in own.tensors):  # the division by the norm is not part of a form
                q, k = normalize(q, dim=-1), normalize(k, dim=-1)
            q, k = (rotate(x, *site.rotary) for x in (q, k))
            assert_same_logits(own, wq, wk, x[None], context[None], Attended(query=q, key=k), offset)


@pytest.mark.parametrize(
    "name", [name for name, remote in MODELS.items() if any(s.norm for s in remote.sites.values())]
)
def test_fold_norm_is_the_form_in_front_of_the_gain(name: str, tmp_path: Path) -> None:
    remote = MODELS[name]
    tensors = draw(remote)
    folder = write(tmp_path, remote, tensors)
    plain, folded = (list(attngeo.attention_sites(folder, fold_norm=fold)) for fold in (False, True))
    for (own, wq, _), (_, expected, _) in zip(plain, folded, strict=True):
        if own.stack == "cross":
            continue
        gains = [part[f"{site.norm}.weight"] for part, site in zip(tensors.values(), remote.sites.values(), strict=True)
                 if site.stack == own.stack and site.norm]  # fmt: skip
        assert any(gain.shape == wq.shape[1:2] and torch.allclose(expected, wq * gain[:, None]) for gain in gains)


def test_rotary_embeddings_whose_base_only_the_code_has_are_refused(tmp_path: Path) -> None:
    """CogVLM's base is not in config.json; PLaMo 2's does not say which of its bases each layer uses."""
    for name in ("cogvlm", "plamo2"):
        folder = write(tmp_path / name, MODELS[name], draw(MODELS[name]))
        with pytest.raises(AttnGeoError, match=r"has no relative offset: .*\bbases?\b"):
            list(attngeo.attention_sites(folder, stack="decoder", rope_offset=1))


def test_the_update_of_image_tokens_is_listed(tmp_path: Path) -> None:
    remote = MODELS["internlmxcomposer2"]
    tensors = draw(remote)
    tensors["model.layers.0."] |= {"attention.wqkv.Plora_A.weight": torch.ones(4, 24),
                                   "attention.wqkv.Plora_B.weight": torch.ones(40, 4)}  # fmt: skip
    frame = attngeo.score(write(tmp_path, remote, tensors))
    assert len(frame) == 1
    assert "model.layers.#.attention.wqkv.Plora_A.weight" in frame.attrs["skipped"]


def test_every_family_with_code_on_the_hub_has_a_model_here() -> None:
    tested = {remote.config.get("model_type") for remote in MODELS.values()} | {"cogvlm", "cogvlm_vision"}
    assert set(REMOTE) <= tested | {"codet5p_module"}
    assert all(family.source.startswith("https://") for family in REMOTE.values())
