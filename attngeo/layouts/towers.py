"""Vision towers whose sizes are not in config.json, because it only names them or they are in the code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from attngeo.layouts.names import Fields
from attngeo.layouts.sections import ConfigSection, TowerSection, first_architecture

# Field of a section from the tables below: the model whose sizes these are.
SIZES_OF = "sizes_of"


def _sizes(model_type: str, width: int, heads: int, **more: Any) -> dict[str, Any]:
    """A section with the sizes of a tower that config.json does not describe."""
    return {"model_type": model_type, "hidden_size": width, "num_attention_heads": heads, **more}


CLIP_LARGE = _sizes("clip_vision_model", 1024, 16)
# The first LLaVA, MiniCPM-V 2 and Phi-3-vision only name the model of their vision tower. Start of the last part of the
# name, in lower case → the sizes in that model's own configuration, or in the code of timm.
NAMED_TOWERS: dict[str, Fields] = {
    "clip-vit-base": _sizes("clip_vision_model", 768, 12),
    "clip-vit-large": CLIP_LARGE,
    "clip-vit-h-14": _sizes("clip_vision_model", 1280, 16),
    "siglip-base": _sizes("siglip_vision_model", 768, 12),
    "siglip-large": _sizes("siglip_vision_model", 1024, 16),
    "siglip-so400m": _sizes("siglip_vision_model", 1152, 16),
    "siglip2-so400m": _sizes("siglip_vision_model", 1152, 16),
    "vit_so400m_patch14_siglip": _sizes("timm_vit", 1152, 16),
}


class CodedTower(NamedTuple):
    """A tower whose sizes are stated only in a model's code.

    Attributes:
        modules: start of the names of its modules.
        tower: name of the tower.
        sizes_of: the model with the same sizes.
        fields: these sizes, as the fields of a section of config.json.
    """

    modules: str
    tower: str
    sizes_of: str
    fields: Fields


# Architecture → towers that config.json does not describe, or describes in fields that the code does not read.
# https://huggingface.co/deepseek-ai/DeepSeek-OCR/blob/main/deepencoder.py
# https://huggingface.co/internlm/internlm-xcomposer2-vl-7b/blob/main/build_mlp.py
# https://huggingface.co/allenai/Molmo-7B-D-0924/blob/main/config_molmo.py
# https://huggingface.co/Qwen/Qwen-VL/blob/main/visual.py
# https://github.com/dvlab-research/LISA/blob/main/model/segment_anything/build_sam.py
CODED_TOWERS: dict[str, tuple[CodedTower, ...]] = {
    "DeepseekOCRForCausalLM": (
        CodedTower("model.sam_model.", "vision_sam", "SAM ViT-B", _sizes("sam_vision_model", 768, 12)),
        CodedTower("model.vision_model.", "vision", "CLIP ViT-L", _sizes("deepseek_ocr_clip", 1024, 16)),
    ),
    "InternLMXComposer2ForCausalLM": (CodedTower("vit.vision_tower.", "vision", "CLIP ViT-L", CLIP_LARGE),),
    "LISAForCausalLM": (
        CodedTower("model.visual_model.image_encoder.", "vision", "SAM ViT-H", _sizes("sam_vision_model", 1280, 16)),
        CodedTower("model.visual_model.mask_decoder.", "mask_decoder", "SAM", _sizes("sam_mask_decoder", 256, 8)),
    ),
    "MolmoForCausalLM": (
        CodedTower(
            "model.vision_backbone.", "vision", "CLIP ViT-L", _sizes("molmo_vision", 1024, 16, head_dim=64)
        ),
    ),
    "QWenLMHeadModel": (
        CodedTower("transformer.visual.transformer.", "vision", "CLIP ViT-bigG", _sizes("qwen_visual", 1664, 16)),
        CodedTower("transformer.visual.attn_pool.", "vision_pooling", "Qwen-VL", _sizes("qwen_visual", 4096, 32)),
    ),
}  # fmt: skip


def describe_named_tower(config: Fields) -> Fields:
    """The configuration, with a section for a vision tower that it only names.

    The section is empty if LLaVA's field names an unknown tower.
    """
    if "vision_config" in config:
        return config
    processor = config.get("img_processor")
    processor_fields = processor if isinstance(processor, Mapping) else {}
    names = (config.get("mm_vision_tower"), config.get("vision_encoder"), processor_fields.get("model_name"))
    name = next((name for name in names if isinstance(name, str)), None)
    if name is None:
        return config
    model = name.rstrip("/").rpartition("/")[2]
    for start, fields in NAMED_TOWERS.items():
        if model.lower().startswith(start):
            return {**config, "vision_config": {**fields, SIZES_OF: model}}
    if "mm_vision_tower" in config:
        return {**config, "vision_config": {}}
    return config


def find_coded_tower(module: str, config: Fields) -> TowerSection | None:
    """The tower of `CODED_TOWERS` that a module belongs to."""
    for tower in CODED_TOWERS.get(first_architecture(config), ()):
        if module.startswith(tower.modules):
            section = ConfigSection((tower.modules,), {**tower.fields, SIZES_OF: tower.sizes_of})
            return TowerSection(tower.tower, section, certain=False)
    return None
