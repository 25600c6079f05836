"""One tiny, randomly initialised transformers model per supported family, and inputs that run it.

If the family allows it, the width differs from the number of heads times head_dim, key heads are fewer than heads, and
there are biases: so a layout that is cut wrongly cannot agree with the running model by accident.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

TEXT = {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BERT = TEXT | {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
    "max_position_embeddings": 40,
}  # fmt: skip
LLAMA = BERT | {"num_key_value_heads": 2, "head_dim": 12}
GPT2 = TEXT | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 40, "n_inner": 24}
SEQ2SEQ = TEXT | {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 40,
    "decoder_start_token_id": 1,
}  # fmt: skip
VIT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
    "image_size": 16, "patch_size": 4, "num_channels": 3,
}  # fmt: skip
AUDIO = BERT | {
    "conv_dim": [8, 8], "conv_stride": [2, 2], "conv_kernel": [3, 3], "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0, "mask_feature_prob": 0.0,
    "num_codevectors_per_group": 8, "codevector_dim": 8, "proj_codevector_dim": 8, "feat_extract_norm": "layer",
}  # fmt: skip
MLA = BERT | {
    "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5, "n_routed_experts": 2,
    "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 2, "moe_intermediate_size": 8,
    "attention_bias": True, "num_key_value_heads": 4, "head_dim": 4,
}  # fmt: skip
SWIN = {"image_size": 16, "patch_size": 2, "embed_dim": 12, "depths": [1, 2], "num_heads": [2, 4], "window_size": 2}


@dataclass(frozen=True)
class TinyModel:
    """How to build one model: `config` for a `model_type`, `architecture` to make, the kind of `inputs` to run it."""

    model_type: str
    architecture: str
    config: Mapping[str, Any]
    inputs: str = "text"
    sub_configs: Mapping[str, tuple[str | None, Mapping[str, Any]]] = field(default_factory=dict)


def _text(model_type: str, architecture: str, config: Mapping[str, Any], **more: Any) -> TinyModel:
    return TinyModel(model_type, architecture, {**config, **more})


def _tower(model_type: str, architecture: str, inputs: str, config: Mapping[str, Any], **more: Any) -> TinyModel:
    return TinyModel(model_type, architecture, {**config, **more}, inputs)


CLIP_TEXT = BERT | {"projection_dim": 16}
TINY_MODELS: dict[str, TinyModel] = {
    # encoders of text
    "bert": _text("bert", "BertForMaskedLM", BERT),
    "roberta": _text("roberta", "RobertaModel", BERT),
    "xlm-roberta": _text("xlm-roberta", "XLMRobertaModel", BERT),
    "distilbert": _text(
        "distilbert",
        "DistilBertForMaskedLM",
        TEXT,
        dim=32,
        n_layers=2,
        n_heads=4,
        hidden_dim=24,
        max_position_embeddings=40,
    ),
    "albert": _text(
        "albert", "AlbertModel", BERT, embedding_size=8, num_hidden_layers=5, num_hidden_groups=2, inner_group_num=1
    ),
    "electra": _text("electra", "ElectraModel", BERT, embedding_size=8),
    "deberta": _text("deberta", "DebertaModel", BERT, relative_attention=True, pos_att_type=["c2p", "p2c"]),
    "deberta-v2": _text("deberta-v2", "DebertaV2Model", BERT, relative_attention=True, pos_att_type=["c2p", "p2c"]),
    "modernbert": _text(
        "modernbert", "ModernBertModel", BERT, attention_bias=True, num_hidden_layers=3, local_attention=8
    ),
    "mpnet": _text("mpnet", "MPNetModel", BERT),
    "roformer": _text("roformer", "RoFormerModel", BERT, embedding_size=32),
    "bert-decoder": _text("bert", "BertLMHeadModel", BERT, is_decoder=True),
    # encoder and decoder
    "bart": _text("bart", "BartForConditionalGeneration", SEQ2SEQ),
    "t5": _text(
        "t5",
        "T5ForConditionalGeneration",
        TEXT,
        d_model=32,
        d_kv=6,
        num_layers=2,
        num_decoder_layers=3,
        num_heads=4,
        d_ff=24,
        decoder_start_token_id=0,
    ),
    "mt5": _text(
        "mt5",
        "MT5ForConditionalGeneration",
        TEXT,
        d_model=32,
        d_kv=6,
        num_layers=2,
        num_decoder_layers=3,
        num_heads=4,
        d_ff=24,
        decoder_start_token_id=0,
    ),
    # decoders
    "openai-gpt": _text("openai-gpt", "OpenAIGPTLMHeadModel", GPT2),
    "gpt2": _text("gpt2", "GPT2LMHeadModel", GPT2),
    "gpt2-cross": _text("gpt2", "GPT2LMHeadModel", GPT2, add_cross_attention=True),
    "gpt_neo": _text(
        "gpt_neo",
        "GPTNeoForCausalLM",
        TEXT,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        max_position_embeddings=40,
    ),
    "gptj": _text("gptj", "GPTJForCausalLM", GPT2, rotary_dim=4),
    "gpt_neox": _text("gpt_neox", "GPTNeoXForCausalLM", BERT, rotary_pct=0.5),
    "codegen": _text("codegen", "CodeGenForCausalLM", GPT2, n_head=8, rotary_dim=2),
    "gpt_bigcode": _text("gpt_bigcode", "GPTBigCodeForCausalLM", GPT2, multi_query=True),
    "gpt_bigcode-mha": _text("gpt_bigcode", "GPTBigCodeForCausalLM", GPT2, multi_query=False),
    "bloom": _text("bloom", "BloomForCausalLM", TEXT, hidden_size=32, n_layer=2, n_head=4),
    "falcon-new": _text("falcon", "FalconForCausalLM", BERT, new_decoder_architecture=True, num_kv_heads=2, bias=True),
    "falcon-multi-query": _text(
        "falcon", "FalconForCausalLM", BERT, new_decoder_architecture=False, multi_query=True, bias=True
    ),
    "falcon-old": _text(
        "falcon",
        "FalconForCausalLM",
        BERT,
        new_decoder_architecture=False,
        multi_query=False,
        alibi=True,
        bias=True,
        parallel_attn=False,
    ),
    "mpt": _text("mpt", "MptForCausalLM", TEXT, d_model=32, n_heads=4, n_layers=2, expansion_ratio=2, max_seq_len=40),
    "opt": _text(
        "opt",
        "OPTForCausalLM",
        TEXT,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=24,
        max_position_embeddings=40,
        word_embed_proj_dim=16,
    ),
    "llama": _text("llama", "LlamaForCausalLM", LLAMA, attention_bias=True),
    "mistral": _text("mistral", "MistralForCausalLM", LLAMA),
    "mixtral": _text("mixtral", "MixtralForCausalLM", LLAMA, num_local_experts=2),
    "qwen2": _text("qwen2", "Qwen2ForCausalLM", {k: v for k, v in LLAMA.items() if k != "head_dim"}),
    "qwen3": _text("qwen3", "Qwen3ForCausalLM", LLAMA, attention_bias=True),
    "qwen3_moe": _text(
        "qwen3_moe", "Qwen3MoeForCausalLM", LLAMA, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=8
    ),
    "gemma": _text("gemma", "GemmaForCausalLM", LLAMA, attention_bias=True),
    "gemma2": _text("gemma2", "Gemma2ForCausalLM", LLAMA, query_pre_attn_scalar=9),
    "gemma3_text": _text(
        "gemma3_text", "Gemma3ForCausalLM", LLAMA, query_pre_attn_scalar=9, sliding_window=8, num_hidden_layers=6
    ),
    "gemma3": TinyModel(
        "gemma3",
        "Gemma3ForConditionalGeneration",
        {"mm_tokens_per_image": 4, "image_token_index": 5, "boi_token_index": 6, "eoi_token_index": 7},
        "image-text",
        {
            "text_config": ("gemma3_text", LLAMA | {"query_pre_attn_scalar": 9, "sliding_window": 8}),
            "vision_config": ("siglip_vision_model", VIT | {"vision_use_head": False}),
        },
    ),
    "olmo": _text("olmo", "OlmoForCausalLM", BERT, num_key_value_heads=2, attention_bias=True),
    "olmo2": _text("olmo2", "Olmo2ForCausalLM", BERT, num_key_value_heads=2, attention_bias=True),
    "phi": _text("phi", "PhiForCausalLM", BERT, num_key_value_heads=2, partial_rotary_factor=0.5),
    "phi-qk-norm": _text(
        "phi", "PhiForCausalLM", BERT, num_key_value_heads=2, partial_rotary_factor=0.5, qk_layernorm=True
    ),
    "phi3": _text("phi3", "Phi3ForCausalLM", BERT, num_key_value_heads=2),
    "stablelm": _text("stablelm", "StableLmForCausalLM", BERT, num_key_value_heads=2, use_qkv_bias=True),
    "stablelm-qk-norm": _text("stablelm", "StableLmForCausalLM", BERT, num_key_value_heads=2, qk_layernorm=True),
    "cohere": _text("cohere", "CohereForCausalLM", BERT, num_key_value_heads=2, attention_bias=True),
    "cohere-qk-norm": _text("cohere", "CohereForCausalLM", BERT, num_key_value_heads=2, use_qk_norm=True),
    "gpt_oss": _text(
        "gpt_oss", "GptOssForCausalLM", LLAMA, num_local_experts=2, num_experts_per_tok=1, sliding_window=8
    ),
    "deepseek_v2": _text("deepseek_v2", "DeepseekV2ForCausalLM", MLA, q_lora_rank=7),
    "deepseek_v2-lite": _text("deepseek_v2", "DeepseekV2ForCausalLM", MLA, q_lora_rank=None),
    "deepseek_v3": _text("deepseek_v3", "DeepseekV3ForCausalLM", MLA, q_lora_rank=7),
    # vision
    "vit": _tower("vit", "ViTForImageClassification", "image", VIT),
    "deit": _tower("deit", "DeiTModel", "image", VIT),
    "beit": _tower("beit", "BeitModel", "image", VIT),
    "dinov2": _tower("dinov2", "Dinov2Model", "image", VIT),
    "vit_mae": _tower(
        "vit_mae",
        "ViTMAEForPreTraining",
        "image",
        VIT,
        decoder_num_hidden_layers=1,
        decoder_hidden_size=24,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=16,
    ),
    "imagegpt": _tower("imagegpt", "ImageGPTForCausalImageModeling", "text", GPT2),
    "swin": _tower("swin", "SwinModel", "image", SWIN),
    "detr": TinyModel(
        "detr",
        "DetrForObjectDetection",
        {
            "use_timm_backbone": False,
            "use_pretrained_backbone": False,
            "backbone": None,
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 24,
            "decoder_ffn_dim": 24,
            "num_queries": 5,
        },
        "large-image",
        {
            "backbone_config": (
                "resnet",
                {"embedding_size": 4, "hidden_sizes": [4, 4, 4, 8], "depths": [1, 1, 1, 1], "out_features": ["stage4"]},
            )
        },
    ),
    "sam": TinyModel(
        "sam",
        "SamModel",
        {},
        "sam",
        {
            "vision_config": (
                "sam_vision_model",
                {
                    "hidden_size": 32,
                    "output_channels": 32,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 4,
                    "image_size": 64,
                    "patch_size": 16,
                    "mlp_dim": 24,
                    "global_attn_indexes": [1],
                    "window_size": 2,
                    "num_pos_feats": 16,
                },
            ),
            "prompt_encoder_config": (
                None,
                {"hidden_size": 32, "image_size": 64, "patch_size": 16, "mask_input_channels": 4},
            ),
            "mask_decoder_config": (
                None,
                {
                    "hidden_size": 32,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 4,
                    "mlp_dim": 24,
                    "iou_head_hidden_dim": 16,
                },
            ),
        },
    ),
    "mask2former": TinyModel(
        "mask2former",
        "Mask2FormerModel",
        {
            "feature_size": 32,
            "mask_feature_size": 32,
            "hidden_dim": 32,
            "encoder_feedforward_dim": 16,
            "encoder_layers": 1,
            "decoder_layers": 3,
            "num_attention_heads": 4,
            "dim_feedforward": 16,
            "num_queries": 5,
        },
        "large-image",
        {
            "backbone_config": (
                "swin",
                {
                    "image_size": 64,
                    "patch_size": 4,
                    "embed_dim": 12,
                    "depths": [1, 1, 1, 1],
                    "num_heads": [2, 2, 4, 4],
                    "window_size": 2,
                    "out_features": ["stage1", "stage2", "stage3", "stage4"],
                },
            )
        },
    ),
    # vision and text
    "clip": TinyModel(
        "clip",
        "CLIPModel",
        {"projection_dim": 16},
        "clip",
        {
            "text_config": ("clip_text_model", CLIP_TEXT),
            "vision_config": ("clip_vision_model", VIT | {"hidden_size": 24, "num_attention_heads": 2}),
        },
    ),
    "siglip": TinyModel(
        "siglip",
        "SiglipModel",
        {},
        "clip",
        {
            "text_config": ("siglip_text_model", BERT | {"projection_size": 32}),
            "vision_config": ("siglip_vision_model", VIT),
        },
    ),
    "git": TinyModel(
        "git",
        "GitForCausalLM",
        BERT,
        "git",
        {"vision_config": ("git_vision_model", VIT | {"hidden_size": 24, "num_attention_heads": 2})},
    ),
    "mllama": TinyModel(
        "mllama",
        "MllamaForConditionalGeneration",
        {"image_token_index": 5},
        "mllama",
        {
            "text_config": (
                "mllama_text_model",
                BERT
                | {
                    "num_key_value_heads": 2,
                    "num_hidden_layers": 4,
                    "cross_attention_layers": [1, 3],
                    "vocab_size": 64,
                },
            ),
            "vision_config": (
                "mllama_vision_model",
                {
                    "hidden_size": 32,
                    "num_hidden_layers": 2,
                    "num_global_layers": 2,
                    "attention_heads": 4,
                    "image_size": 16,
                    "patch_size": 8,
                    "intermediate_size": 24,
                    "intermediate_layers_indices": [0, 1],
                    "vision_output_dim": 96,
                    "max_num_tiles": 2,
                    "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
                },
            ),
        },
    ),
    # audio
    "wav2vec2": _tower("wav2vec2", "Wav2Vec2Model", "audio", AUDIO),
    "hubert": _tower("hubert", "HubertModel", "audio", AUDIO),
    "wavlm": _tower("wavlm", "WavLMModel", "audio", AUDIO),
    "unispeech": _tower("unispeech", "UniSpeechModel", "audio", AUDIO),
    "whisper": _tower(
        "whisper",
        "WhisperForConditionalGeneration",
        "features",
        SEQ2SEQ,
        num_mel_bins=8,
        max_source_positions=12,
        max_target_positions=40,
    ),
    "speech_to_text": _tower(
        "speech_to_text",
        "Speech2TextForConditionalGeneration",
        "frames",
        SEQ2SEQ,
        input_feat_per_channel=8,
        input_channels=1,
        conv_channels=16,
        max_source_positions=40,
        max_target_positions=40,
    ),
    "speecht5": _tower(
        "speecht5",
        "SpeechT5ForSpeechToText",
        "speech",
        AUDIO,
        encoder_layers=2,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        decoder_start_token_id=1,
        max_text_positions=40,
    ),
    "musicgen": TinyModel(
        "musicgen",
        "MusicgenForConditionalGeneration",
        {},
        "music",
        {
            "text_encoder": ("t5", TEXT | {"d_model": 32, "d_kv": 6, "num_layers": 2, "num_heads": 4, "d_ff": 24}),
            "audio_encoder": (
                "encodec",
                {
                    "hidden_size": 8,
                    "num_filters": 4,
                    "codebook_size": 16,
                    "num_lstm_layers": 1,
                    "upsampling_ratios": [2, 2],
                    "num_residual_layers": 1,
                    "codebook_dim": 8,
                },
            ),
            "decoder": (
                "musicgen_decoder",
                {
                    "vocab_size": 16,
                    "hidden_size": 24,
                    "num_hidden_layers": 3,
                    "num_attention_heads": 2,
                    "ffn_dim": 24,
                    "num_codebooks": 2,
                    "max_position_embeddings": 40,
                    "pad_token_id": 16,
                    "bos_token_id": 16,
                },
            ),
        },
    ),
}


# One model for each way in which queries and keys are laid out, are normed or meet an encoder's output.
KINDS = (
    "bert", "distilbert", "albert", "deberta", "deberta-v2", "modernbert", "bart", "t5", "gpt2-cross", "gpt_neox",
    "codegen", "gpt_bigcode", "gpt_bigcode-mha", "falcon-old", "falcon-new", "falcon-multi-query", "llama", "gemma2",
    "qwen3", "phi3", "stablelm-qk-norm", "deepseek_v3", "deepseek_v2-lite", "vit", "swin", "sam", "mask2former",
    "siglip", "mllama", "whisper",
)  # fmt: skip


def list_one_of_each_kind() -> list[Any]:
    """The names of all tiny models, for `parametrize`; those that are laid out as another one are slow."""
    return [name if name in KINDS else pytest.param(name, marks=pytest.mark.slow) for name in TINY_MODELS]


def build_config(tiny: TinyModel) -> Any:
    """The transformers config of `tiny`, sub-configs included."""
    from transformers import AutoConfig

    parts = {
        name: fields if kind is None else AutoConfig.for_model(kind, **fields)
        for name, (kind, fields) in tiny.sub_configs.items()
    }
    return AutoConfig.for_model(tiny.model_type, **tiny.config, **parts)


def build(tiny: TinyModel, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """The model of `tiny` with every weight, bias and gain drawn at random, to be run with eager attention."""
    import transformers

    torch.manual_seed(seed)
    config = build_config(tiny)
    config._attn_implementation = "eager"
    model = getattr(transformers, tiny.architecture)(config).eval()
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue  # a table of fixed angles
        with torch.no_grad():
            gain = "norm" in name.lower() and name.endswith("weight")
            parameter.copy_(torch.randn_like(parameter) * 0.3 + (1.0 if gain else 0.0))
            if name.endswith(("q_layernorm.bias", "k_layernorm.bias")):
                # Added after a division that no bilinear form has; the note on such rows says that it is left out.
                parameter.zero_()
    return model.to(dtype)
