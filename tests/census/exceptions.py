"""What single model types need beyond the rules: fields, inputs, classes. Data only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers

from census.shrink import Plan


@dataclass(frozen=True)
class Exceptional:
    """What is special about one model type.

    cannot: why it cannot be built. fields: "sub_config.field" → value. given: path → inputs. parts: submodules to run
    besides the whole model. class_names: classes to build, instead of those of the rules. default: makes the
    configuration to shrink. plans: how far to shrink. attention: the implementation, if eager is missing.
    """

    cannot: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    default: Callable[[], Any] | None = None
    plans: tuple[Any, ...] = ()
    attention: str = "eager"

    def classes(self) -> list[Any]:
        """Return the named classes."""
        return [getattr(transformers, name) for name in self.class_names]

    def inputs(self, model: Any) -> dict[str, dict[str, Any]]:
        """Return the special inputs by path. A value that is a function is called with the model's configuration."""
        return {
            path: {name: value(model.config) if callable(value) else value for name, value in values.items()}
            for path, values in self.given.items()
        }


# Left out of a configuration by its class, though the model reads it.
COMPASS_ROPE = {"full_attention": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 4, 4]}}
PADDLE_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]}
ALL_SHARED = "transformers refuses its own configuration: all layers share keys and values, and none stores them"
QWEN4_INDEXER = {
    "indexer_n_heads": 3, "indexer_kv_heads": 1, "indexer_head_dim": 32, "indexer_budget": 4,
    "indexer_compress_ratio": 2,
}  # fmt: skip


def _noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


INKLING2_IMAGE = {"pixel_values": _noise(64, 192), "image_grid_thw": torch.tensor([[1, 8, 8]])}
# Seven tokens that attend to the seven before them and to themselves.
DRAFT = {
    "hidden_states": _noise(1, 7, 96),
    "context_hidden_states": _noise(1, 7, 96),
    "position_embeddings": (torch.ones(1, 14, 32), torch.zeros(1, 14, 32)),
}

EXCEPTIONS: dict[str, Exceptional] = {
    "cohere_compass": Exceptional(fields={"text_config.rope_parameters": COMPASS_ROPE}),
    "cohere_compass_text": Exceptional(fields={"rope_parameters": COMPASS_ROPE}),
    "time_series_transformer": Exceptional(fields={"prediction_length": 4}),
    "informer": Exceptional(fields={"prediction_length": 4}),
    "autoformer": Exceptional(fields={"prediction_length": 4}),
    "t5gemma2_text": Exceptional(fields={"dropout_rate": 0.0}),
    "t5gemma2_encoder": Exceptional(fields={"text_config.dropout_rate": 0.0}),
    "t5gemma2_decoder": Exceptional(fields={"dropout_rate": 0.0}),
    "qwen3_omni_moe_talker_text": Exceptional(fields={"shared_expert_intermediate_size": 24}),
    "bros": Exceptional(fields={"hidden_size": 128}),
    "esm": Exceptional(
        fields={"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32, "position_embedding_type": "rotary"}
    ),
    "zamba2": Exceptional(fields={"use_mem_rope": True}),
    "esmfold2": Exceptional(
        fields={
            f"{part}.{field}": count
            for part in ("atom_encoder", "structure_head.diffusion_module.atom_encoder")
            for field, count in (("num_spatial_rope_pairs_per_axis", 1), ("num_uid_rope_pairs", 3))
        }
        | {"atom_encoder.output_dim": 384},
        plans=(Plan(grouped=False, free_head_dim=False),),
    ),
    "nougat": Exceptional(cannot="only a configuration and processors: its models are of type vision-encoder-decoder"),
    "layoutxlm": Exceptional(cannot="only a configuration and a tokenizer: its models are of type layoutlmv2"),
    **{
        name: Exceptional(
            cannot="transformers cannot build its default configuration, which has no intraclass_block_config"
        )
        for name in ("pp_ocrv5_server_det", "pp_ocrv6_medium_det")
    },
    "mra": Exceptional(cannot="its attention runs on a GPU only, in a kernel that transformers downloads"),
    "gemma4_assistant": Exceptional(cannot=ALL_SHARED),
    "gemma4_unified_assistant": Exceptional(cannot=ALL_SHARED),
    # Its mask has the tokens that are not there.
    "gemma3n_audio": Exceptional(given={"": {"audio_mel_mask": torch.zeros(1, 64, dtype=torch.bool)}}),
    # Saving it takes queries, keys and values to be equally wide.
    "gradium_phonon_tts": Exceptional(plans=(Plan(grouped=False),)),
    "gpt_neo": Exceptional(fields={"attention_types": [[["global", "local"], 1]]}),
    "granite4_vision": Exceptional(
        fields={"deepstack_layer_map": [[1, 0]], "spatial_target_layers": [1, 1, 1, 1], "downsample_rate": "2/4"}
    ),
    "llama4_vision_model": Exceptional(fields={"intermediate_size": 384}),
    "llama4": Exceptional(fields={"vision_config.intermediate_size": 384}),
    "emu3": Exceptional(fields={"vocabulary_map": {"<image>": 120}}),
    "lw_detr": Exceptional(fields={"backbone_config.image_size": 64, "projector_scale_factors": [1.0]}),
    "lw_detr_vit": Exceptional(fields={"image_size": 64}),
    "fun_asr_nano": Exceptional(fields={"adaptor_config.intermediate_size": 24}),
    "paddleocr_vl": Exceptional(fields={"text_config.rope_parameters": PADDLE_ROPE}),
    "paddleocr_vl_text": Exceptional(fields={"rope_parameters": PADDLE_ROPE}),
    "qwen3_omni_moe": Exceptional(
        fields={"talker_config.spatial_merge_size": 2, "talker_config.text_config.shared_expert_intermediate_size": 24}
    ),
    "pix2struct_text_model": Exceptional(fields={"initializer_range": 0.02}),
    "zamba": Exceptional(
        fields={
            "num_hidden_layers": 4,
            "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        }
    ),
    # The encoder of sounds doubles its width at every stage.
    "xcodec2": Exceptional(fields={"encoder_hidden_size": 8}),
    "neucodec": Exceptional(fields={"encoder_hidden_size": 8}),
    "dots3_note": Exceptional(fields={"text_config.head_dim": 20}),
    "dots3_note_text": Exceptional(fields={"head_dim": 20}),
    # The width that the convolutions give at the smallest scale.
    "efficientnet": Exceptional(fields={"hidden_dim": 1280}),
    "align": Exceptional(fields={"vision_config.hidden_dim": 1280}),
    "align_vision_model": Exceptional(fields={"hidden_dim": 1280}),
    "efficientloftr": Exceptional(fields={"hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 8}),
    **{name: Exceptional(attention="sdpa") for name in ("qwen2_5_omni", "qwen2_5_omni_token2wav", "qwen2_5_omni_dit")},
    "prophetnet": Exceptional(fields={"num_decoder_layers": 2}),  # its cache has as many layers as the encoder
    "inkling2": Exceptional(given={"vision_tower": INKLING2_IMAGE}),
    "inkling2_vision": Exceptional(given={"": INKLING2_IMAGE}),
    "muse_glimmer_assistant": Exceptional(given={f"layers.{layer}.self_attn": DRAFT for layer in (0, 1)}),
    "mistral4": Exceptional(fields={"qk_nope_head_dim": 8}),  # half of a head is rotated
    "step3p5": Exceptional(fields={"sliding_window": 4}),
    "step3p7": Exceptional(fields={"text_config.sliding_window": 4}),
    "xmod": Exceptional(fields={"default_language": "en_XX"}),
    "sam3_tracker_video": Exceptional(fields={"image_size": 16}, plans=(Plan(own_widths=False),)),
    "sam3_video": Exceptional(fields={"tracker_config.image_size": 16}, plans=(Plan(own_widths=False),)),
    "lfm2_moe": Exceptional(fields={"layer_types": ["conv", "full_attention"]}),
    "molmo2": Exceptional(fields={"adapter_config.vision_feature_layer": [-1, 0]}),
    "moonshine_streaming": Exceptional(fields={"num_attention_heads": 4, "num_key_value_heads": 4}),
    "layoutlmv3": Exceptional(fields={"coordinate_size": 16, "shape_size": 16}),
    # By default, they have no layer that attends.
    "bamba": Exceptional(fields={"attn_layer_indices": [1]}),
    "granitemoehybrid": Exceptional(
        fields={"layer_types": ["linear_attention", "full_attention"], "position_embedding_type": "rope"}
    ),
    "recurrent_gemma": Exceptional(fields={"num_hidden_layers": 3}),
    "qwen4_exp": Exceptional(fields={f"text_config.{name}": value for name, value in QWEN4_INDEXER.items()}),
    "qwen4_exp_text": Exceptional(fields=QWEN4_INDEXER),
    "dbrx": Exceptional(fields={"attn_config.rope_theta": 20000.0, "attn_config.clip_qkv": 8.0}),
    "cvt": Exceptional(fields={"depth": [1, 2, 3]}),
    "chameleon": Exceptional(fields={"vocabulary_map": {"<image>": 120}}),
    "deepseek_ocr2_text": Exceptional(fields={"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2}),
    "deepseek_ocr2": Exceptional(
        fields={"text_config.mlp_layer_types": ["dense", "sparse"], "text_config.num_experts_per_tok": 2}
    ),
    "big_bird": Exceptional(fields={"attention_type": "original_full"}),
    "bigbird_pegasus": Exceptional(fields={"attention_type": "original_full"}),
}
