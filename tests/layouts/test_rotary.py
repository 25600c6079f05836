"""Rotary frequencies from every kind of configuration, against transformers' own functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attngeo.errors import UnsupportedModelError
from attngeo.layouts.families import FAMILIES
from attngeo.layouts.rotary import rotary_frequencies

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
}


def of_transformers(config: dict[str, Any], rope: dict[str, Any]) -> torch.Tensor:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    built = LlamaConfig(**config, rope_parameters={"rope_theta": 50_000.0, **rope})
    return ROPE_INIT_FUNCTIONS[rope["rope_type"]](built, None)[0].double()


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
    got = rotary_frequencies(section, FAMILIES["llama"], 32, 0, "here")
    assert torch.allclose(got, of_transformers(LLAMA, rope), rtol=1e-5)
    assert not torch.allclose(got, 50_000.0 ** (-torch.arange(0, 32, 2).double() / 32), rtol=1e-3)


def test_missing_and_null_fields_mean_the_defaults() -> None:
    got = rotary_frequencies({**LLAMA, "rope_scaling": None}, FAMILIES["llama"], 32, 0, "here")
    assert torch.allclose(got, 10_000.0 ** (-torch.arange(0, 32, 2).double() / 32))
    assert len(rotary_frequencies({"rotary_dim": 8}, FAMILIES["gptj"], 32, 0, "here")) == 4
    assert len(rotary_frequencies({"rotary_pct": 0.25}, FAMILIES["gpt_neox"], 32, 0, "here")) == 4


def test_the_older_name_of_the_base_is_read() -> None:
    """GPT-NeoX called it rotary_emb_base; what a checkpoint states comes before what its family usually has."""
    got = rotary_frequencies({"rotary_pct": 1.0, "rotary_emb_base": 1e6}, FAMILIES["gpt_neox"], 8, 0, "here")
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
        got = rotary_frequencies(section, FAMILIES[family], 8, layer, "here")
        assert got[1].item() == pytest.approx(base**-0.25), layer


def test_gemma3_scales_only_its_global_layers() -> None:
    section = {"rope_theta": 1e6, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    local, full = (rotary_frequencies(section, FAMILIES["gemma3_text"], 8, layer, "here") for layer in (0, 5))
    assert (local[0].item(), full[0].item()) == (1.0, 0.125)


def test_unknown_scaling_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'wobbly'.*--rope-offset"):
        rotary_frequencies({"rope_scaling": {"rope_type": "wobbly"}}, FAMILIES["llama"], 32, 0, "here")


@pytest.mark.parametrize("nested", [{}, {"a": 1}, {"rope_theta": 1e9}], ids=str)
def test_something_nested_does_not_hide_what_is_stated(nested: dict[str, Any]) -> None:
    """It was taken for the parameters of a type of layer, and the stated theta and fraction were lost."""
    rope = {"rope_theta": 1e6, "partial_rotary_factor": 0.5, "rope_type": "default"}
    section = LLAMA | {"rope_parameters": {**rope, "scaling_of_others": nested}}
    got = rotary_frequencies(section, FAMILIES["llama"], 32, 0, "here")
    assert torch.allclose(got, 1e6 ** (-torch.arange(0, 16, 2).double() / 16))


def test_parameters_of_a_type_of_layer_come_before_those_of_all() -> None:
    types = {"layer_types": ["sliding_attention", "full_attention"]}
    rope = {"rope_theta": 1e6, "rope_type": "default", "sliding_attention": {"rope_theta": 1e4}}
    for layer, base in enumerate((1e4, 1e6)):
        got = rotary_frequencies(LLAMA | types | {"rope_parameters": rope}, FAMILIES["llama"], 8, layer, "here")
        assert got[1].item() == pytest.approx(base**-0.25)


def test_null_states_nothing_for_a_type_of_layer() -> None:
    rope = {"rope_theta": None, "full_attention": {"rope_theta": 1e6, "rope_type": "default"}}
    section = LLAMA | {"layer_types": ["sliding_attention"], "rope_parameters": rope}
    got = rotary_frequencies(section, FAMILIES["llama"], 8, 0, "here")
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
        *(("llama", {"rope_parameters": rope}, "rope_parameters.factor") for rope in SCALED.values()),
    ],
)
def test_only_numbers_count_as_numbers(family: str, section: dict[str, Any], field: str, value: object) -> None:
    *outer, name = field.split(".")
    inner = section[outer[0]] if outer else section
    changed = {**inner, name: value}
    with pytest.raises(TypeError):
        rotary_frequencies({**section, outer[0]: changed} if outer else changed, FAMILIES[family], 32, 0, "here")
