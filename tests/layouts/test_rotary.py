"""Rotary embeddings from every kind of configuration, against transformers' own functions and running layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints import CONFIG, write_single
from support.messages import assert_fails, refuses
from support.running_model import assert_same_logits, inputs_of, record_tiny
from support.tiny_models import BERT, LLAMA as TINY, MLA, TEXT, TinyModel, build

import attngeo
from attngeo.errors import CorruptCheckpointError, UnsupportedModelError
from attngeo.layouts.families import FAMILIES
from attngeo.layouts.heads import load_defaults
from attngeo.layouts.layout import Family
from attngeo.layouts.modules import make_unlisted_family
from attngeo.layouts.rotary import rotary_frequencies, rotary_scaling, rotates

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 8192,
}
SCALED: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    "yarn": {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 512},
    "yarn, not truncated": {
        "rope_type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 256,
        "truncate": False,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
    },
    "yarn, scales": {
        "rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 512, "mscale": 0.7,
        "mscale_all_dim": 0.4,
    },
    "longrope": {
        "rope_type": "longrope", "original_max_position_embeddings": 512, "long_factor": [2.0] * 16,
        "short_factor": [1 + i / 8 for i in range(16)],
    },
    "longrope, stated": {
        "rope_type": "longrope", "original_max_position_embeddings": 512, "short_factor": [1.5] * 16,
        "long_factor": [2.0] * 16, "attention_factor": 1.25,
    },
}  # fmt: skip


def of_transformers(config: dict[str, Any], rope: dict[str, Any]) -> tuple[torch.Tensor, float]:
    """The frequencies, and the factor of what rotates."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    built = LlamaConfig(**config, rope_parameters={"rope_theta": 50_000.0, **rope})
    frequencies, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](built, None)
    return frequencies.double(), factor


@pytest.mark.parametrize("kind", SCALED)
@pytest.mark.parametrize("style", ["transformers 5", "before"])
def test_scaled_frequencies(kind: str, style: str) -> None:
    rope = SCALED[kind]
    section = dict(LLAMA)
    if style == "before":
        old = {"type" if name == "rope_type" and kind == "linear" else name: value for name, value in rope.items()}
        section |= {"rope_theta": 50_000.0, "rope_scaling": old}
    else:
        section |= {"rope_parameters": {"rope_theta": 50_000.0, **rope}}
    got = rotary_frequencies(section, FAMILIES["llama"], 32, 0)
    frequencies, factor = of_transformers(LLAMA, rope)
    assert torch.allclose(got, frequencies, rtol=1e-5)
    assert not torch.allclose(got, 50_000.0 ** (-torch.arange(0, 32, 2).double() / 32), rtol=1e-3)
    assert rotary_scaling(section, FAMILIES["llama"], 32, 0, rotated=16)[0] == pytest.approx(factor)
    assert rotary_scaling(section, FAMILIES["llama"], 32, 0) == (1, 0)


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize(
    ("base", "trained"),
    [
        (50_000.0, 8),  # the blend begins before the first pair
        (50_000.0, 100),  # it begins between the first two
        (12.0, 1000),  # it ends behind the last dimension, which bounds it
        (4.0, 4096),  # it begins behind the last dimension, where it ends
    ],
)
def test_the_blend_of_yarn_is_that_of_transformers_at_both_ends(base: float, trained: int, truncate: bool) -> None:
    rope = {
        "rope_type": "yarn", "rope_theta": base, "factor": 4.0, "original_max_position_embeddings": trained,
        "truncate": truncate,
    }  # fmt: skip
    got = rotary_frequencies(LLAMA | {"rope_parameters": rope}, FAMILIES["llama"], 32, 0)
    frequencies, _ = of_transformers(LLAMA, rope)
    assert torch.allclose(got, frequencies, rtol=1e-5)


@pytest.mark.parametrize("share", [0.25, 0.3, 0.75])
def test_an_odd_number_of_rotated_dimensions_is_rounded_up_to_whole_pairs(share: float) -> None:
    """2, 3 and 7 of 10 dimensions."""
    pairs = -(-int(10 * share) // 2)
    rope = {
        "rope_type": "longrope", "original_max_position_embeddings": 64, "partial_rotary_factor": share,
        "short_factor": [1.5] * pairs, "long_factor": [2.0] * pairs,
    }  # fmt: skip
    config = LLAMA | {"head_dim": 10}
    frequencies, factor = of_transformers(config, rope)
    section = config | {"rope_parameters": {"rope_theta": 50_000.0, **rope}}
    assert len(rotary_frequencies(section, FAMILIES["llama"], 10, 0)) == len(frequencies)
    assert rotary_scaling(section, FAMILIES["llama"], 10, 0) == (pytest.approx(factor), 2 * len(frequencies))


def test_missing_and_null_fields_mean_the_defaults() -> None:
    got = rotary_frequencies({**LLAMA, "rope_scaling": None}, FAMILIES["llama"], 32, 0)
    assert torch.allclose(got, 10_000.0 ** (-torch.arange(0, 32, 2).double() / 32))
    assert len(rotary_frequencies({"rotary_dim": 8}, FAMILIES["gptj"], 32, 0)) == 4
    assert len(rotary_frequencies({"rotary_pct": 0.25}, FAMILIES["gpt_neox"], 32, 0)) == 4


def test_the_older_name_of_the_base_is_read() -> None:
    """GPT-NeoX called it rotary_emb_base; what a checkpoint states comes before what its family usually has."""
    got = rotary_frequencies({"rotary_pct": 1.0, "rotary_emb_base": 1e6}, FAMILIES["gpt_neox"], 8, 0)
    assert got[1].item() == pytest.approx(1e6**-0.25)


@pytest.mark.parametrize(
    ("family", "section", "bases"),
    [
        # As the checkpoints were published, before transformers 5 renamed the fields.
        (
            "gemma3_text",
            {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 6},
            [1e4] * 5 + [1e6],
        ),
        ("modernbert", {"global_rope_theta": 160_000.0, "local_rope_theta": 1e4}, [160_000.0, 1e4, 1e4, 160_000.0]),
    ],
)
def test_local_layers_rotate_by_their_own_base(family: str, section: dict[str, Any], bases: list[float]) -> None:
    for layer, base in enumerate(bases):
        got = rotary_frequencies(section, FAMILIES[family], 8, layer)
        assert got[1].item() == pytest.approx(base**-0.25), layer


def test_gemma3_scales_only_its_global_layers() -> None:
    section = {"rope_theta": 1e6, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    local, full = (rotary_frequencies(section, FAMILIES["gemma3_text"], 8, layer) for layer in (0, 5))
    assert (local[0].item(), full[0].item()) == (1.0, 0.125)


def test_unknown_scaling_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="rotary scaling 'wobbly' is unsupported"):
        rotary_frequencies({"rope_scaling": {"rope_type": "wobbly"}}, FAMILIES["llama"], 32, 0)
    folder = write_single(tmp_path, config=CONFIG | {"rope_scaling": {"rope_type": "wobbly"}})
    with pytest.raises(UnsupportedModelError, match=r"'wobbly'.*without rope_offset"):
        attngeo.score(folder, rope_offset=1)


@pytest.mark.parametrize("nested", [{}, {"a": 1}, {"rope_theta": 1e9}], ids=str)
def test_something_nested_does_not_hide_what_is_stated(nested: dict[str, Any]) -> None:
    """It was taken for the parameters of a type of layer, and the stated theta and fraction were lost."""
    rope = {"rope_theta": 1e6, "partial_rotary_factor": 0.5, "rope_type": "default"}
    section = LLAMA | {"rope_parameters": {**rope, "scaling_of_others": nested}}
    got = rotary_frequencies(section, FAMILIES["llama"], 32, 0)
    assert torch.allclose(got, 1e6 ** (-torch.arange(0, 16, 2).double() / 16))


def test_parameters_of_a_type_of_layer_come_before_those_of_all() -> None:
    types = {"layer_types": ["sliding_attention", "full_attention"]}
    rope = {"rope_theta": 1e6, "rope_type": "default", "sliding_attention": {"rope_theta": 1e4}}
    for layer, base in enumerate((1e4, 1e6)):
        got = rotary_frequencies(LLAMA | types | {"rope_parameters": rope}, FAMILIES["llama"], 8, layer)
        assert got[1].item() == pytest.approx(base**-0.25)


def test_parameters_of_any_type_of_layer_are_read() -> None:
    rope = {"sliding_attention": {"rope_theta": 1e4}, "indexed_attention": {"rope_theta": 1e6}}
    section = LLAMA | {"layer_types": ["indexed_attention"], "rope_parameters": rope}
    got = rotary_frequencies(section, FAMILIES["llama"], 8, 0)
    assert got[1].item() == pytest.approx(1e6**-0.25)


def test_null_states_nothing_for_a_type_of_layer() -> None:
    rope = {"rope_theta": None, "full_attention": {"rope_theta": 1e6, "rope_type": "default"}}
    section = LLAMA | {"layer_types": ["sliding_attention"], "rope_parameters": rope}
    got = rotary_frequencies(section, FAMILIES["llama"], 8, 0)
    assert got[1].item() == pytest.approx(1e6**-0.25)


@pytest.mark.parametrize("value", [True, "10000", [1e4]], ids=str)
@pytest.mark.parametrize(
    ("family", "section", "field"),
    [
        ("llama", {"rope_parameters": {"rope_theta": 1e4}}, "rope_parameters.rope_theta"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 1}}, "rope_parameters.partial_rotary_factor"),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2}}, "rope_parameters.factor"),
        ("llama", {"rope_theta": 1e4}, "rope_theta"),
        ("gptj", {"rotary_dim": 4}, "rotary_dim"),
        ("gpt_neox", {"rotary_pct": 0.25}, "rotary_pct"),
        ("gemma3_text", {"sliding_window_pattern": 6}, "sliding_window_pattern"),
        *(
            ("llama", {"rope_parameters": rope}, "rope_parameters.factor")
            for rope in SCALED.values()
            if "factor" in rope
        ),
    ],
)
def test_only_numbers_count_as_numbers(family: str, section: dict[str, Any], field: str, value: object) -> None:
    *outer, name = field.split(".")
    inner = section[outer[0]] if outer else section
    changed = {**inner, name: value}
    with pytest.raises(TypeError):
        rotary_frequencies({**section, outer[0]: changed} if outer else changed, FAMILIES[family], 32, 0)


# Families that rotate a part of each head: 4 heads of 8 dimensions.
PART: dict[str, TinyModel] = {
    "phi": TinyModel("phi", "PhiForCausalLM", BERT | {"num_key_value_heads": 2, "qk_layernorm": True}),
    "phi3": TinyModel("phi3", "Phi3ForCausalLM", BERT | {"num_key_value_heads": 2}),
    "gpt_neox": TinyModel("gpt_neox", "GPTNeoXForCausalLM", BERT),
    "stablelm": TinyModel("stablelm", "StableLmForCausalLM", BERT | {"num_key_value_heads": 2, "use_qkv_bias": True}),
    "glm": TinyModel("glm", "GlmForCausalLM", TINY | {"head_dim": 8, "attention_bias": True}),
    "glm4": TinyModel("glm4", "Glm4ForCausalLM", TINY | {"head_dim": 8, "attention_bias": True}),
    "persimmon": TinyModel("persimmon", "PersimmonForCausalLM", BERT),
    "nemotron": TinyModel("nemotron", "NemotronForCausalLM", BERT | {"num_key_value_heads": 2}),
    "qwen3_next": TinyModel(
        "qwen3_next", "Qwen3NextForCausalLM",
        TINY | {"head_dim": 8, "layer_types": ["full_attention"], "mlp_only_layers": [0], "num_experts": 0},
    ),
    "gpt_neox_japanese": TinyModel(
        "gpt_neox_japanese", "GPTNeoXJapaneseForCausalLM", BERT | {"intermediate_multiple_size": 1}
    ),
    "moonshine": TinyModel(
        "moonshine", "MoonshineForConditionalGeneration",
        TEXT | {"hidden_size": 32, "intermediate_size": 24, "decoder_start_token_id": 1, "attention_bias": True,
                "max_position_embeddings": 40}
        | {f"{part}_num_{name}": n for part in ("encoder", "decoder")
           for name, n in (("hidden_layers", 1), ("attention_heads", 4), ("key_value_heads", 4))},
        "long-speech",
    ),
}  # fmt: skip


SHARES = (0.25, 0.5, 0.75, 1.0)


def list_parts() -> list[Any]:
    """Families, scalings and shares of heads, for `parametrize`. One share of each family and scaling is not slow."""
    parts: list[Any] = []
    for number, name in enumerate(PART):
        kinds = ("default", "longrope") if name == "phi3" else ("default", "linear", "yarn", "longrope")
        for place, kind in enumerate(kinds):
            fast = SHARES[(number + place) % 4]
            parts += [
                pytest.param(name, kind, share, marks=() if share == fast else pytest.mark.slow) for share in SHARES
            ]
    return parts


@pytest.mark.parametrize(("name", "kind", "share"), list_parts())
@pytest.mark.filterwarnings("ignore")
def test_a_part_of_each_head_rotates_as_in_the_running_layer(name: str, kind: str, share: float) -> None:
    """At any offset: queries and keys at positions 0, 1, 2 …, and the factor of what rotates."""
    pairs = round(4 * share)
    scaling: dict[str, Any] = {
        "default": {},
        "linear": {"factor": 4.0},
        "yarn": {"factor": 4.0, "original_max_position_embeddings": 10},
        "longrope": {"short_factor": [1.0, 1.5, 2.0, 3.0][:pairs], "long_factor": [4.0] * pairs, "factor": 4.0,
                     "original_max_position_embeddings": 10},
    }[kind]  # fmt: skip
    rope = {"rope_type": kind, "rope_theta": 50.0, "partial_rotary_factor": share, **scaling}
    own = {"num_hidden_layers": 1} if name != "moonshine" else {}
    tiny = TinyModel(
        PART[name].model_type, PART[name].architecture, {**PART[name].config, **own, "rope_parameters": rope},
        PART[name].inputs,
    )  # fmt: skip
    model = build(tiny)
    ran = record_tiny(tiny, model, position=None)
    for offset in (0, 1, -2):
        for site, wq, wk in attngeo.attention_sites(model, with_bias=True, rope_offset=offset):
            if not site.is_cross:
                assert_same_logits(site, wq, wk, *inputs_of(site, ran[site.module]), ran[site.module], offset)


@pytest.mark.filterwarnings("ignore")
def test_the_factor_of_latent_attention_is_that_of_the_key_that_heads_share() -> None:
    rope = {"rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "original_max_position_embeddings": 10}
    tiny = TinyModel("deepseek_v3", "DeepseekV3ForCausalLM", {**MLA, "q_lora_rank": 7, "rope_parameters": rope})
    model = build(tiny)
    ran = record_tiny(tiny, model, position=None)
    for offset in (0, 1, -2):
        for site, wq, wk in attngeo.attention_sites(model, with_bias=True, rope_offset=offset):
            assert_same_logits(site, wq, wk, *inputs_of(site, ran[site.module]), ran[site.module], offset)


# As microsoft/Phi-4-mini-instruct states it: 0.75 of each head, scaled from 4,096 to 131,072 positions.
PHI_4_MINI = {
    "model_type": "phi3", "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1,
    "partial_rotary_factor": 0.75, "rope_theta": 10_000.0, "max_position_embeddings": 131_072,
    "original_max_position_embeddings": 4096,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 3, "long_factor": [2.0] * 3},
}  # fmt: skip
QKV = {"model.layers.0.self_attn.qkv_proj.weight": torch.randn(64, 32, generator=torch.Generator().manual_seed(0))}


@pytest.mark.parametrize(("share", "scaled"), [(0.75, True), (1.0, False)])
def test_the_factor_of_what_rotates_is_noted_where_a_part_does(share: float, scaled: bool, tmp_path: Path) -> None:
    config = PHI_4_MINI | {"partial_rotary_factor": share}
    got = attngeo.score(write_single(tmp_path / "scaled", QKV, config))
    plain = attngeo.score(write_single(tmp_path / "plain", QKV, config | {"rope_scaling": None}))
    assert ("rotary scaling: 6 of 8 dimensions of queries and keys multiplied by 1.19" in got["note"][0]) is scaled
    assert bool(got["symmetry"][0] != plain["symmetry"][0]) is scaled


@pytest.mark.parametrize("names", [("rope_type", "yarn"), ("type", "longrope"), ("type", "su")], ids=str)
def test_earlier_names_of_longrope_mean_it(names: tuple[str, str]) -> None:
    """Phi-3 called it "su", and then "yarn"."""
    scaling = {names[0]: names[1], "short_factor": [1.0] * 3, "long_factor": [2.0] * 3}
    factor, rotated = rotary_scaling(PHI_4_MINI | {"rope_scaling": scaling}, FAMILIES["phi3"], 8, 0)
    assert (factor, rotated) == (pytest.approx((1 + 5 / 12) ** 0.5), 6)


@pytest.mark.parametrize(
    ("scaling", "fact"),
    [
        ({"type": "yarn", "factor": "8"}, "'8' is not a number"),
        ({"type": "yarn", "factor": 8.0, "attention_factor": 0}, "expected a positive finite number"),
        ({"type": "yarn", "factor": 8.0, "attention_factor": float("nan")}, "expected a positive finite number"),
    ],
    ids=str,
)
def test_a_factor_that_makes_no_sense_is_refused(scaling: dict[str, Any], fact: str, tmp_path: Path) -> None:
    folder = write_single(tmp_path, QKV, PHI_4_MINI | {"rope_scaling": scaling})
    with refuses(CorruptCheckpointError, folder, "invalid rotary embedding", fact):
        attngeo.score(folder)


def family_of(model_type: str) -> Family:
    """The family of a model type that has no entry in the table, with what configurations leave out."""
    family = make_unlisted_family(model_type, {})
    return replace(family, defaults=load_defaults().get(model_type, {}))


@pytest.mark.parametrize(
    ("model_type", "section", "layers"),
    [
        # As published: which layers rotate, of the first eight.
        ("cohere2", {"sliding_window": 4096, "sliding_window_pattern": 4}, "11101110"),
        ("exaone4", {"sliding_window": 4096, "sliding_window_pattern": "LLLG"}, "11101110"),
        ("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 8}, "11111111"),
        ("smollm3", {"no_rope_layers": [1, 1, 0, 1, 0, 1, 1, 1]}, "11010111"),
        ("llama4_text", {"no_rope_layers": []}, "11101110"),
        ("beam", {"layer_types": ["sliding_attention", "full_attention"] * 4}, "10101010"),
        ("granitemoehybrid", {"position_embedding_type": "nope"}, "00000000"),
        ("granitemoehybrid", {"position_embedding_type": "rope"}, "11111111"),
        ("esm", {}, "00000000"),
        ("esm", {"position_embedding_type": "rotary"}, "11111111"),
        ("zamba2", {"use_mem_rope": False}, "00000000"),
        ("modernbert-decoder", {"position_embedding_type": "absolute"}, "11111111"),
        ("llama", {}, "11111111"),
    ],
    ids=str,
)
def test_some_layers_do_not_rotate(model_type: str, section: dict[str, Any], layers: str) -> None:
    family = family_of(model_type)
    assert [rotates(section, family, layer) for layer in range(8)] == [digit == "1" for digit in layers]


@pytest.mark.parametrize(
    ("model_type", "stated", "base"),
    [
        ("gemma3n_text", {"rope_theta": 5e5, "rope_local_base_freq": 2e4}, (2e4, 5e5)),
        ("olmo3", {"rope_theta": 5e5}, (5e5, 5e5)),
        ("mimo_v2_flash", {"rope_theta": 3e6, "swa_rope_theta": 2e4, "partial_rotary_factor": 0.5}, (2e4, 3e6)),
        ("dbrx", {"attn_config": {"rope_theta": 5e5}}, (5e5, 5e5)),
        ("smollm3", {}, (2e6, 2e6)),
        ("smollm3", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, (2e6, 2e6)),
        ("gemma4_text", {}, (1e4, 1e6)),
    ],
)
def test_the_base_of_earlier_and_shorter_configurations(
    model_type: str, stated: dict[str, Any], base: tuple[float, float]
) -> None:
    types = {"layer_types": ["sliding_attention", "full_attention"]}
    for layer, expected in enumerate(base):
        got = rotary_frequencies(types | stated, family_of(model_type), 64, layer)
        turning = got[got > 0]
        width = 64 if len(got) > len(turning) else 2 * len(turning)
        assert turning[1].item() == pytest.approx(expected ** (-2 / width))


def test_which_layers_slide_has_to_be_stated() -> None:
    with pytest.raises(ValueError, match="layer_types"):
        rotary_frequencies({"rope_theta": 1e6}, family_of("mimo_v2_flash"), 64, 0)


QK = {f"model.layers.0.self_attn.{name}_proj.weight": torch.randn(32, 32) for name in "qk"}


@pytest.mark.parametrize(
    ("model_type", "fact"),
    [
        ("pixtral", "axes of an image"),
        ("hunyuan_v1_dense", "QK-norm comes after"),
        ("kimi_linear", "order of its rotary"),
    ],
)
def test_a_rotation_without_a_relative_offset_is_refused_with_the_reason(
    model_type: str, fact: str, tmp_path: Path, inside: Callable[..., Any]
) -> None:
    config = {"model_type": model_type, "num_attention_heads": 4, "rope_theta": 1e4, "head_dim": 8}
    folder = write_single(tmp_path, QK, config)
    assert_fails(
        inside("score", folder, "--rope-offset", "2"),
        UnsupportedModelError,
        folder,
        model_type,
        fact,
        "--rope-offset",
        "--stack",
    )
    assert inside("score", folder, "--format", "csv").returncode == 0


@pytest.mark.parametrize("kind", ["linear", "yarn", "longrope", "llama3", "proportional"])
def test_a_scaling_of_rows_and_columns_is_refused(kind: str, tmp_path: Path, inside: Callable[..., Any]) -> None:
    """Only the base of it counts in transformers."""
    rope = {
        "rope_type": kind, "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 32,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0, **({"short_factor": [2.0, 3.0]} if kind == "longrope" else {}),
    }  # fmt: skip
    config = {"model_type": "llama4_vision_model", "num_attention_heads": 4, "rope_parameters": rope}
    folder = write_single(tmp_path, QK, config)
    assert_fails(
        inside("score", folder, "--rope-offset", "2"),
        UnsupportedModelError,
        folder,
        kind,
        "rows and columns",
        "--rope-offset",
    )
    assert inside("score", folder, "--format", "csv").returncode == 0
    write_single(tmp_path, QK, config | {"rope_parameters": rope | {"rope_type": "default"}})
    assert inside("score", folder, "--rope-offset", "2").returncode == 0


def test_the_offset_of_a_layer_that_does_not_rotate_is_noted(tmp_path: Path) -> None:
    tensors = QK | {name.replace(".0.", ".1."): tensor.clone() for name, tensor in QK.items()}
    config = {"model_type": "cohere2", "num_attention_heads": 4, "head_dim": 8, "rope_theta": 1e4}
    folder = write_single(tmp_path, tensors, config | {"layer_types": ["sliding_attention", "full_attention"]})
    plain, turned = attngeo.score(folder), attngeo.score(folder, rope_offset=2)
    assert (plain["symmetry"] == turned["symmetry"]).tolist() == [False, True]
    assert ["offset 2" in turned["note"][0], "no effect" in turned["note"][1]] == [True, True]
