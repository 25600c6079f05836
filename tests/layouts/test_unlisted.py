"""Models that the table does not list, and configurations as they were really published."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints import write_single
from support.running_model import assert_same_logits, inputs_of, record_tiny
from support.tiny_models import BERT, LLAMA, SEQ2SEQ, TEXT, TinyModel, build

import attngeo
from attngeo.errors import ShapeError, UnsupportedModelError

BY_RULE = {
    "starcoder2": TinyModel("starcoder2", "Starcoder2ForCausalLM", BERT | {"num_key_value_heads": 2}),
    "glm": TinyModel("glm", "GlmForCausalLM", LLAMA | {"head_dim": 8}),
    "olmoe": TinyModel(
        "olmoe", "OlmoeForCausalLM", BERT | {"num_key_value_heads": 2, "num_experts": 2, "num_experts_per_tok": 1}
    ),
    "marian": TinyModel("marian", "MarianMTModel", SEQ2SEQ | {"forced_eos_token_id": None}),
    "camembert": TinyModel("camembert", "CamembertModel", BERT),
    "xglm": TinyModel(
        "xglm", "XGLMModel", TEXT | {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 24}
    ),
    "ctrl": TinyModel("ctrl", "CTRLModel", {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "dff": 24}),
}


@pytest.mark.parametrize("name", BY_RULE)
@pytest.mark.filterwarnings("ignore")
def test_other_families_are_read_by_rule(name: str) -> None:
    """Compared with the running model like those of the table, and marked in the notes."""
    tiny = BY_RULE[name]
    model = build(tiny)
    ran = record_tiny(tiny, model)
    sites = list(attngeo.attention_sites(model, with_bias=True))
    assert len(sites) >= 2
    for site, wq, wk in sites:
        assert_same_logits(site, wq, wk, *inputs_of(site, ran[site.module]), ran[site.module])
        assert any(note.startswith(name) for note in site.notes)


@pytest.mark.filterwarnings("ignore")
def test_a_hybrid_scores_the_layers_that_attend(tmp_path: Path) -> None:
    config = BERT | {
        "num_hidden_layers": 4, "num_key_value_heads": 2, "attn_layer_period": 2, "attn_layer_offset": 1,
        "expert_layer_period": 8, "expert_layer_offset": 7, "num_experts": 2, "mamba_d_state": 4, "mamba_dt_rank": 4,
        "use_mamba_kernels": False,
    }  # fmt: skip
    build(TinyModel("jamba", "JambaForCausalLM", config)).save_pretrained(tmp_path)
    assert attngeo.score(tmp_path)["layer"].tolist() == [1, 3]


@pytest.mark.filterwarnings("ignore")
def test_a_model_without_attention_is_refused_by_name(tmp_path: Path) -> None:
    config = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "use_mambapy": False}
    build(TinyModel("mamba", "MambaForCausalLM", config)).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="'mamba'"):
        attngeo.score(tmp_path)


def filled(*shape: int) -> torch.Tensor:
    """A weight with seeded random values."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def projections(prefix: str, d: int, q: str = "q_proj", k: str = "k_proj") -> dict[str, Any]:
    return {f"{prefix}.{q}.weight": filled(d, d), f"{prefix}.{k}.weight": filled(d, d).flip(0)}


# A configuration as a Hub repository has it, tensors with its names, and the expected sizes:
# stack → (layers, heads, key heads, head_dim).
PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, tuple[int, int, int, int]]]] = {
    # google/siglip-base-patch16-224 leaves every number to the defaults.
    "siglip": (
        {
            "model_type": "siglip",
            "text_config": {"model_type": "siglip_text_model"},
            "vision_config": {"model_type": "siglip_vision_model"},
        },
        projections("text_model.encoder.layers.0.self_attn", 768)
        | projections("vision_model.encoder.layers.0.self_attn", 768),
        {"text": (1, 12, 12, 64), "vision": (1, 12, 12, 64)},
    ),
    # google/gemma-3-4b-it states no text heads.
    "gemma3": (
        {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "hidden_size": 64}},
        {
            "language_model.model.layers.0.self_attn.q_proj.weight": filled(8 * 256, 64),
            "language_model.model.layers.0.self_attn.k_proj.weight": filled(4 * 256, 64),
        },
        {"text": (1, 8, 4, 256)},
    ),
    # llava-hf/llava-1.5-7b-hf: a LLaMA and a CLIP inside a family that is not in the table. Its LLaMA has the default
    # width, which is too large for a test, so that it is stated here.
    "llava": (
        {
            "model_type": "llava",
            "text_config": {"model_type": "llama", "hidden_size": 64},
            "vision_config": {"model_type": "clip_vision_model", "num_attention_heads": 16},
        },
        projections("language_model.model.layers.0.self_attn", 64)
        | projections("vision_tower.vision_model.encoder.layers.0.self_attn", 64),
        {"text": (1, 32, 32, 2), "vision": (1, 16, 16, 4)},
    ),
    # liuhaotian/llava-v1.6-vicuna-7b: no section describes the vision tower; its heads are those of the model it names.
    "llava, first layout": (
        {"model_type": "llava", "num_attention_heads": 32, "mm_vision_tower": "openai/clip-vit-large-patch14-336"},
        projections("model.layers.0.self_attn", 64)
        | projections("model.vision_tower.vision_tower.vision_model.encoder.layers.0.self_attn", 1024),
        {"decoder": (1, 32, 32, 2), "vision": (1, 16, 16, 64)},
    ),
    # Emu3-community/Emu3-Chat-hf: the heads of the image tokeniser are not those of the text.
    "emu3": (
        {
            "model_type": "emu3",
            "text_config": {"model_type": "emu3_text_model", "num_attention_heads": 4, "num_key_value_heads": 4},
            "vq_config": {"model_type": "emu3_vqgan"},
        },
        projections("text_model.model.layers.0.self_attn", 64)
        | projections("vqmodel.encoder.middle_block.attn_1", 64),
        {"text": (1, 4, 4, 16), "vq": (1, 1, 1, 64)},
    ),
    # facebook/sam-vit-base has sections whose model type is empty.
    "sam": (
        {"model_type": "sam", "vision_config": {"model_type": "", "num_attention_heads": 2}, "mask_decoder_config": {}},
        {"vision_encoder.layers.0.attn.qkv.weight": filled(96, 32)}
        | projections("mask_decoder.transformer.layers.0.self_attn", 256),
        {"vision": (1, 2, 2, 16), "decoder": (1, 8, 8, 32)},
    ),
    # Two BERTs in an encoder-decoder, the second with cross-attention.
    "encoder-decoder": (
        {
            "model_type": "encoder-decoder",
            "encoder": {"model_type": "bert", "num_attention_heads": 2},
            "decoder": {"model_type": "bert", "num_attention_heads": 4, "is_decoder": True},
        },
        projections("encoder.encoder.layer.0.attention.self", 16, q="query", k="key")
        | projections("decoder.bert.encoder.layer.0.attention.self", 16, q="query", k="key")
        | projections("decoder.bert.encoder.layer.0.crossattention.self", 16, q="query", k="key"),
        {"encoder": (1, 2, 2, 8), "decoder": (1, 4, 4, 4), "cross": (1, 4, 4, 4)},
    ),
    # The layer after the last one drafts further tokens; it is not part of the model's stack.
    "multi-token prediction": (
        {"model_type": "qwen2", "num_attention_heads": 4, "num_hidden_layers": 1, "num_nextn_predict_layers": 1,
         "num_key_value_heads": 4},
        projections("model.layers.0.self_attn", 16) | projections("model.layers.1.self_attn", 16),
        {"decoder": (1, 4, 4, 4)},
    ),
    # Salesforce/blip2-opt-2.7b: a section of its own for a part between the towers.
    "blip-2": (
        {
            "model_type": "blip-2",
            "text_config": {"model_type": "opt", "num_attention_heads": 8},
            "qformer_config": {"model_type": "blip_2_qformer", "num_attention_heads": 4},
        },
        projections("language_model.model.decoder.layers.0.self_attn", 32)
        | projections("qformer.encoder.layer.0.attention.attention", 32, q="query", k="key"),
        {"text": (1, 8, 8, 4), "qformer": (1, 4, 4, 8)},
    ),
    # Qwen/Qwen2.5-Omni-7B: a section inside a section describes the language model, which the names do not say.
    "qwen2_5_omni": (
        {
            "model_type": "qwen2_5_omni",
            "thinker_config": {
                "text_config": {"model_type": "qwen2_5_omni_text", "hidden_size": 32, "num_attention_heads": 4,
                                "num_key_value_heads": 4},
                "vision_config": {"model_type": "qwen2_5_omni_vision_encoder", "num_heads": 2},
            },
            "talker_config": {"model_type": "qwen2_5_omni_talker", "hidden_size": 48, "num_attention_heads": 12,
                              "head_dim": 4, "num_key_value_heads": 12},
        },
        projections("thinker.model.layers.0.self_attn", 32)
        | {"thinker.visual.blocks.0.attn.qkv.weight": filled(96, 32)}
        | projections("talker.model.layers.0.self_attn", 48),
        {"text": (1, 4, 4, 8), "vision": (1, 2, 2, 16), "talker": (1, 12, 12, 4)},
    ),
    # facebook/vjepa2-vitl-fpc64-256: the predictor has heads of its own, and its field has a short name.
    "vjepa2": (
        {"model_type": "vjepa2", "hidden_size": 32, "num_attention_heads": 4, "pred_hidden_size": 24,
         "pred_num_attention_heads": 6},
        projections("encoder.layer.0.attention", 32, q="query", k="key")
        | projections("predictor.layer.0.attention", 24, q="query", k="key"),
        {"encoder:encoder.layer.#.attention": (1, 4, 4, 8), "encoder:predictor.layer.#.attention": (1, 6, 6, 4)},
    ),
    # The keys of a decoder's cross-attention come from an encoder, but its heads are those of the decoder.
    "pp_formulanet_text": (
        {"model_type": "pp_formulanet_text", "d_model": 32, "decoder_attention_heads": 4, "encoder_attention_heads": 2},
        projections("layers.0.encoder_attn", 32),
        {"cross": (1, 4, 4, 8)},
    ),
    # google/pix2struct-base: the name of the cross-attention has no "cross".
    "pix2struct_text_model": (
        {"model_type": "pix2struct_text_model", "hidden_size": 32, "num_heads": 4, "d_kv": 8},
        projections("decoder.layer.0.self_attention.attention", 32, q="query", k="key")
        | projections("decoder.layer.0.encoder_decoder_attention.attention", 32, q="query", k="key"),
        {"decoder": (1, 4, 4, 8), "cross": (1, 4, 4, 8)},
    ),
    # CohereLabs/cohere-transcribe-03-2026: a layer numbers its parts; the second one attends to the encoder.
    "cohere_asr": (
        {"model_type": "cohere_asr", "hidden_size": 32, "num_attention_heads": 4},
        projections("decoder.layers.0.first_sub_layer", 32, q="query_net", k="key_net")
        | projections("decoder.layers.0.second_sub_layer", 32, q="query_net", k="key_net"),
        {"decoder": (1, 4, 4, 8), "cross": (1, 4, 4, 8)},
    ),
    # facebook/sam2-hiera-tiny: the heads of a block are those of its stage.
    "sam2_hiera_det_model": (
        {"model_type": "sam2_hiera_det_model", "blocks_per_stage": [2, 1], "embed_dim_per_stage": [16, 32],
         "num_attention_heads_per_stage": [1, 2], "num_attention_heads": 1},
        {"blocks.2.attn.qkv.weight": filled(96, 16)},
        {"encoder": (1, 2, 2, 16)},
    ),
    # xlnet/xlnet-base-cased: parameters [d_model, heads, head_dim].
    "xlnet": (
        {"model_type": "xlnet", "d_model": 32, "n_head": 4, "d_head": 8},
        {f"transformer.layer.0.rel_attn.{name}": filled(32, 4, 8) for name in ("q", "k")},
        {"encoder": (1, 4, 4, 8)},
    ),
    # T5 as PyTorch saved it before there were heads in its configuration.
    "t5": (
        {"model_type": "t5"},
        {
            f"encoder.block.0.layer.0.SelfAttention.{name}.weight": filled(512, 32) for name in ("q", "k")
        },
        {"encoder": (1, 8, 8, 64)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations(name: str, tmp_path: Path) -> None:
    config, tensors, expected = PUBLISHED[name]
    frame = attngeo.score(write_single(tmp_path, tensors, config), per_head=True)
    sizes = {}
    for stack, rows in frame.groupby("stack"):
        heads = rows[rows["head"].notna()]
        layers = rows["layer"].nunique()
        sizes[stack] = (layers, len(heads) // layers, heads["key_head"].nunique(), rows["head_dim"].iloc[0])
    assert sizes == expected


def test_the_heads_of_another_part_are_not_taken(tmp_path: Path) -> None:
    """The width tells: an encoder of images that no section describes does not get the heads of the language model."""
    config = {
        "model_type": "deepseek_ocr2",
        "text_config": {
            "model_type": "deepseek_ocr2_text", "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2,
            "max_position_embeddings": 24,
        },
    }  # fmt: skip
    tensors = projections("model.layers.0.self_attn", 16) | projections("qwen2_model.layers.0.self_attn", 24)
    frame = attngeo.score(write_single(tmp_path, tensors, config))
    assert frame["d_model"].tolist() == [16]
    assert "width of 24" in frame.attrs["skipped"]["qwen2_model.layers.#.self_attn"]


@pytest.mark.parametrize(
    ("fields", "width", "reason"),
    [
        # The tower has another width than the text that the configuration describes.
        ({"model_type": "llama", "hidden_size": 64}, 32, "input width of 32"),
        ({"model_type": "llama", "mm_vision_tower": "./eva-clip"}, 64, "no number of attention heads"),
        ({"model_type": "llava", "mm_vision_tower": "./eva-clip"}, 64, "no number of attention heads"),
        # The tower was replaced by one of another width than that of the public one with this name.
        ({"model_type": "llava", "mm_vision_tower": "./clip-vit-base-patch16/"}, 96, "heads for a width of 768"),
    ],
    ids=str,
)
def test_a_vision_tower_that_nothing_describes_is_left_out(
    fields: dict[str, Any], width: int, reason: str, tmp_path: Path
) -> None:
    tower = "model.vision_tower.vision_tower.vision_model.encoder.layers"
    tensors = projections("model.layers.0.self_attn", 64) | projections(f"{tower}.0.self_attn", width)
    frame = attngeo.score(write_single(tmp_path, tensors, {"num_attention_heads": 32, **fields}))
    assert frame["stack"].tolist() == ["decoder"]
    assert reason in frame.attrs["skipped"][f"{tower}.#.self_attn"]


@pytest.mark.parametrize(
    ("fields", "tower", "name"),
    [
        ({"mm_vision_tower": "openai/clip-vit-base-patch16"}, "model.vision_tower", "clip-vit-base-patch16"),
        ({"mm_vision_tower": "./siglip-base-patch16-224/"}, "model.vision_tower", "siglip-base-patch16-224"),
        ({"img_processor": {"model_name": "openai/clip-vit-base-patch32"}}, "img_processor", "clip-vit-base-patch32"),
    ],
    ids=str,
)
def test_a_tower_that_is_only_named_has_the_heads_of_the_public_one(
    fields: dict[str, Any], tower: str, name: str, tmp_path: Path, inside: Callable[..., Any]
) -> None:
    """Not those of the text: 12 heads of 64, although 8 divide the width too. The note says where they are from."""
    config = {"model_type": "llava", "num_attention_heads": 8, "hidden_size": 64, **fields}
    tensors = projections("model.layers.0.self_attn", 64)
    tensors |= projections(f"{tower}.vision_model.encoder.layers.0.self_attn", 768)
    run = inside("score", write_single(tmp_path, tensors, config), "--format", "json", "--stack", "vision")
    (row,) = json.loads(run.stdout)
    assert (row["d_model"], row["head_dim"]) == (768, 64)
    assert name in row["note"]


def test_the_norm_of_the_first_code_of_sam_is_folded(tmp_path: Path) -> None:
    """Named norm1 there, as in DeepSeek-OCR, and layer_norm1 in transformers."""
    gain = torch.rand(768, generator=torch.Generator().manual_seed(1)) + 0.5
    block = "model.sam_model.blocks.0"
    tensors = {f"{block}.attn.qkv.weight": filled(2304, 768), f"{block}.norm1.weight": gain}
    config = {"architectures": ["DeepseekOCRForCausalLM"], "model_type": "deepseek_vl_v2", "num_attention_heads": 10}
    folder = write_single(tmp_path, tensors, config)
    ((site, plain, _),) = attngeo.attention_sites(folder)
    ((_, folded, _),) = attngeo.attention_sites(folder, fold_norm=True)
    assert (site.stack, site.heads) == ("vision_sam", 12)
    torch.testing.assert_close(folded, plain * gain[:, None])


def test_a_factor_of_queries_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    tensors = projections("layers.0.self_attn", 16) | {"layers.0.self_attn.scaling": filled(3)}
    folder = write_single(tmp_path, tensors, {"model_type": "timesfm2_5", "num_attention_heads": 4, "head_dim": 4})
    with pytest.raises(ShapeError, match=r"layers\.0\.self_attn\.scaling is \[3\]"):
        attngeo.score(folder)


@pytest.mark.parametrize("norms", ["attn", "attention"])
def test_the_gains_of_all_heads_together_are_folded_into_fused_weights(norms: str, tmp_path: Path) -> None:
    """InternViT-6B has `attn.q_norm` beside `attn.qkv`; transformers saves Qianfan-OCR with `attention.q_norm`."""
    config = {"model_type": "intern_vit_6b", "num_attention_heads": 4, "hidden_size": 16}
    qkv, gains = filled(48, 16), {"q": filled(16) + 2, "k": filled(16).flip(0) + 2}
    tensors = {f"encoder.layers.0.{norms}.{name}_norm.weight": gain for name, gain in gains.items()}
    got = attngeo.score(write_single(tmp_path / "gains", {"encoder.layers.0.attn.qkv.weight": qkv} | tensors, config))
    folded = qkv * torch.cat([gains["q"], gains["k"], torch.ones(16)])[:, None]
    want = attngeo.score(write_single(tmp_path / "folded", {"encoder.layers.0.attn.qkv.weight": folded}, config))
    assert got["symmetry"][0] == pytest.approx(want["symmetry"][0], abs=1e-6)
    assert "QK-norm" in got["note"][0]


def test_the_gain_of_an_input_of_cross_attention_is_folded_if_asked(tmp_path: Path) -> None:
    """The norm of keys is another one, of another stack."""
    config = {"model_type": "blt_local_decoder", "num_attention_heads": 4, "hidden_size": 16}
    tensors, gain = projections("cross_attn_layers.0", 16), filled(16) + 2
    norms = {f"cross_attn_layers.0.{name}_norm.weight": gain.clone() for name in "qk"}
    folder = write_single(tmp_path / "gains", tensors | norms, config)
    tensors["cross_attn_layers.0.q_proj.weight"] = tensors["cross_attn_layers.0.q_proj.weight"] * gain
    want = attngeo.score(write_single(tmp_path / "folded", tensors, config))
    got = attngeo.score(folder, fold_norm=True)
    assert got["symmetry"][0] == pytest.approx(want["symmetry"][0], abs=1e-6)
    assert "gain folded into queries only" in got["note"][0]


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        ("k_conv1d.weight", "linear recurrence"),
        ("k_sconv.weight", "pass through a convolution"),
        ("compressor.wkv.weight", "compressed"),
    ],
)
def test_a_layer_whose_keys_are_changed_is_left_out_with_the_reason(tensor: str, reason: str, tmp_path: Path) -> None:
    """The other layers are scored."""
    tensors = projections("layers.0.self_attn", 16) | projections("layers.1.mixer", 16)
    tensors[f"layers.1.mixer.{tensor}"] = filled(16, 16)
    folder = write_single(tmp_path, tensors, {"model_type": "mystery", "num_attention_heads": 4})
    frame = attngeo.score(folder)
    assert frame["layer"].tolist() == [0]
    assert reason in frame.attrs["skipped"]["layers.#.mixer"]


def test_a_tower_of_unknown_form_is_reported(tmp_path: Path, inside: Callable[..., Any]) -> None:
    tensors = projections("model.layers.0.self_attn", 16) | {"visual.blocks.0.attn.qkv.weight": filled(48, 16)}
    folder = write_single(tmp_path, tensors, {"model_type": "qwen2_vl", "num_attention_heads": 4})
    run = inside("score", folder, "--format", "csv")
    assert run.returncode == 0
    assert run.stderr.startswith(f"attngeo: note: {folder}: ")
    assert "visual.blocks.#.attn.qkv.weight" in run.stderr
    assert inside("score", folder, "--quiet", "--format", "csv").stderr == ""


def test_groups_that_make_no_sense_are_no_note(saved: Callable[[str], Path], tmp_path: Path) -> None:
    """More groups than layers: how often each is applied is not known."""
    folder = shutil.copytree(saved("albert"), tmp_path / "albert")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1, "num_hidden_groups": 2}))
    assert not attngeo.score(folder)["note"].str.contains("applied").any()


def test_albert_reports_its_shared_layer_once(saved: Callable[[str], Path]) -> None:
    frame = attngeo.score(saved("albert"))
    assert frame["layer"].tolist() == [0, 1]
    assert ["applied 3 times" in frame["note"][0], "applied 2 times" in frame["note"][1]] == [True, True]


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("deepseek_v3", "latent attention"),
        ("qwen3", "QK-norm"),
        ("olmo2", "QK-norm"),
        ("llama", "rotary"),
        ("gpt_oss", "attention sink"),
        ("deberta-v2", "relative-position"),
    ],
)
def test_caveats_are_noted(name: str, fact: str, saved: Callable[[str], Path]) -> None:
    assert any(fact in note for note in attngeo.score(saved(name))["note"][0].split("; "))


def test_families_without_caveats_have_no_note(saved: Callable[[str], Path]) -> None:
    assert attngeo.score(saved("bert"))["note"].tolist() == ["", ""]


def test_what_is_not_known_about_a_family_is_refused_or_noted(tmp_path: Path) -> None:
    """Names do not tell rotary pairing and input norm: a variant is neither guessed nor ignored without a note."""
    config = {"model_type": "mystery", "num_attention_heads": 4, "rope_theta": 10_000.0}
    folder = write_single(tmp_path, projections("model.layers.0.self_attn", 16), config)
    with pytest.raises(UnsupportedModelError, match=r"'mystery'.*without rope_offset"):
        attngeo.score(folder, rope_offset=1)
    assert "input norm" in attngeo.score(folder, fold_norm=True)["note"][0]


def test_variants_that_change_nothing_are_noted(saved: Callable[[str], Path]) -> None:
    plain = attngeo.score(saved("t5"))
    asked = attngeo.score(saved("t5"), with_bias=True, rope_offset=3)
    assert asked["symmetry"].tolist() == plain["symmetry"].tolist()
    assert ["rotary" in asked["note"][0], "biases" in asked["note"][0]] == [True, True]
    assert "gain" in attngeo.score(saved("bert"), fold_norm=True)["note"][0]
