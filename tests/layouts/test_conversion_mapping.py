"""transformers renames and splits tensors while it loads: the names in the file and those of the module are both read.

Each mapping of transformers' conversion_mapping.py that touches queries or keys is applied by transformers itself: a
model is built without data, and its names are turned back into those of the file. A ghost with either names must give
the same attention.
"""

from __future__ import annotations

import importlib
import json
import re
import warnings
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from support.ghosts import write_ghost
from torch import Tensor
from transformers import conversion_mapping
from transformers.core_model_loading import revert_weight_conversion
from transformers.models.auto import modeling_auto

from attngeo.attention.finding import sites_of
from attngeo.checkpoints.opening import open_store
from attngeo.errors import AttnGeoError
from attngeo.layouts.layout import AttentionSite, Layout, assemble
from attngeo.layouts.names import pattern_of
from attngeo.scores.options import ScoreOptions

# Mappings by class or model type, as in transformers 5.23, whose names are both read.
READ = {
    "ASTModel", "BeitBackbone", "BeitModel", "DeiTModel", "Dinov2Backbone", "Dinov2Model",
    "Dinov2WithRegistersBackbone", "Dinov2WithRegistersModel", "IJepaModel", "Molmo2TextModel",
    "RfDetrForInstanceSegmentation", "RfDetrModel", "Tipsv2TextModel", "Tipsv2VisionBackbone", "Tipsv2VisionModel",
    "UnlimitedOcrVisionEncoder", "ViTMAEForPreTraining", "ViTMAEModel", "ViTMSNModel", "ViTModel", "VivitModel",
    "cohere_asr", "cosmos3_edge", "gradium_phonon_tts", "gte", "hrm_text", "jina_embeddings_v3", "kimi_k25",
    "lfm3_vl_vision", "lw_detr", "minimax_m3_vl", "mistral_large4", "mistral_large4_text", "nemo_speechlm",
    "nomic_bert", "pi0", "pixio", "qianfan_ocr", "radio", "sapiens2", "step3p5_vision", "swin", "videomae",
}  # fmt: skip
# Mappings whose names are not both read, and what happens instead. A fix moves the entry to READ.
NOT_READ_YET: dict[str, str] = {
    "ConditionalDetrForSegmentation": "file: bbox_attention.k_linear.weight and others are not read",
    "ConditionalDetrModel": "file: decoder.layers.#.ca_kcontent_proj.weight and others are not read",
    "DetrForSegmentation": "file: bbox_attention.k_linear.weight and others are not read",
    "SegformerModel": "both: keys pass through a convolution in some stages, which are left out",
    "axk2": "both: refused: queries are the sum of two latents",
    "bailing_hybrid": "both: the layers of linear attention are left out",
    "cosmos3_omni": "file: blocks.#.attn.qkv.weight and others are not read",
    "deepseek_v4": "both: refused: keys are compressed from several tokens",
    "inkling2_text": "both: refused: keys pass through a convolution",
    "inkling_mm_model": "both: refused: keys pass through a convolution",
    "molmo2": "module: the pooling of image tokens in the projector is left out",
}
# Mappings with names like those of queries and keys that concern no weights of attention.
NO_WEIGHTS_OF_ATTENTION = {
    "deepseek_ocr2": "learned queries of the vision tower, which are an input",
    "glm5_next": "short convolutions of linear attention",
    "glm5_next_text": "short convolutions of linear attention",
    "kimi_linear": "short convolutions of linear attention",
    "olmo_hybrid": "short convolutions of linear attention",
}

# Where transformers does not export the class.
ELSEWHERE = {
    "UnlimitedOcrVisionEncoder": "unlimited_ocr.modeling_unlimited_ocr.UnlimitedOcrVisionEncoder",
    "step3p5_vision": "step3p7.modeling_step3p7.Step3p7VisionModel",
}
# Fields without which a default configuration cannot be built, or only with a library that need not be installed.
RESNET = {
    "use_timm_backbone": False,
    "backbone_config": transformers.ResNetConfig(out_features=["stage1", "stage2", "stage3", "stage4"]),
}
FIELDS = dict.fromkeys(("ConditionalDetrForSegmentation", "ConditionalDetrModel", "DetrForSegmentation"), RESNET)
AUTO = (
    modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING,
    modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    modeling_auto.MODEL_MAPPING,
)
QUERY_OR_KEY = re.compile(
    r"(?<![a-z])([qk]|kv|key)(?![a-z])|query|qkv|wq|wk|in_proj|att_proj|[qk](pos|content)", re.IGNORECASE
)
# Names of the same kind that are no weights of attention: short convolutions, sparse indexers, relative positions …
OTHER = re.compile(
    r"conv|indexer|compressor|relative|input_(layer)?norm|mm_projector|action_in|mamba|query_(feat|\d)|latent_query"
)


def test_every_mapping_is_known() -> None:
    table = conversion_mapping._build_checkpoint_conversion_mapping()
    sides = {
        name: [side for transform in transforms for side in (*transform.source_patterns, *transform.target_patterns)]
        for name, transforms in table.items()
    }
    touching = {name for name, own in sides.items() if any(map(QUERY_OR_KEY.search, own))} - {"legacy"}
    assert touching == READ | NOT_READ_YET.keys() | NO_WEIGHTS_OF_ATTENTION.keys()


@pytest.mark.slow
@pytest.mark.parametrize("mapping", sorted(READ | NOT_READ_YET.keys()))
def test_the_names_before_and_after_loading_are_read(mapping: str, tmp_path: Path) -> None:
    wrong = describe_differences(mapping, tmp_path)
    if mapping in NOT_READ_YET:
        assert wrong, f"{mapping} is read now: move it to READ"
    else:
        assert not wrong, "\n".join(wrong)


def describe_differences(mapping: str, folder: Path) -> list[str]:
    """One line for each name of a query or a key that is not read, in the file or in the module.

    If all are read, the rows of the heads that are cut out of both are compared.
    """
    config, module, file, numbers = build_tensors(mapping)
    changed = {"file": file.keys() - module.keys(), "module": module.keys() - file.keys()}
    names = {kind: {name for name in own if is_query_or_key(name)} for kind, own in changed.items()}
    assert all(names.values()), f"{mapping} changes no weights of attention"
    wrong, heads = [], []
    for kind, tensors in (("file", file), ("module", module)):
        try:
            sites = read_ghost(folder / kind, config, tensors)
        except AttnGeoError as error:
            wrong.append(f"{kind}: {type(error).__name__}: {error}")
            continue
        read = {name for site in sites for name in site.tensors.values()}
        wrong += sorted({f"{kind}: {pattern_of(name)} is not read" for name in names[kind] - read})
        heads.append(Counter(cut_heads(site, numbers) for site in sites))
    if not wrong and heads[0] != heads[1]:
        wrong.append(f"{(heads[0] - heads[1]).total()} sites of the file are cut in another way than in the module")
    return wrong


def build_tensors(mapping: str) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """A model with this mapping: its configuration, its tensors by their names in the module and in the file, numbers.

    The tensors have no data. The numbers, by either name, are those of the rows of weights in attention, in one column.
    """
    model_class = find_class(mapping)
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        model = model_class(model_class.config_class(**FIELDS.get(mapping, {})))
    module = dict(model.state_dict())
    file = revert_weight_conversion(model, dict(module))
    numbers = number_rows(module)
    numbers |= revert_weight_conversion(model, dict(numbers))
    return json.loads(model.config.to_json_string(use_diff=False)), module, file, numbers


def number_rows(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of attention with the number of each row in place of its data, which no other row of the model has.

    The other tensors stay as they are.
    """
    attention = {name.rsplit(".", 2)[0] for name in tensors if is_query_or_key(name)}
    numbers, rows = dict(tensors), 0
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and name.endswith(".weight") and name.rsplit(".", 2)[0] in attention:
            numbers[name] = torch.arange(rows, rows + len(tensor), dtype=torch.float64).unsqueeze(1)
            rows += len(tensor)
    return numbers


def cut_heads(site: AttentionSite, numbers: Mapping[str, Tensor]) -> tuple[Any, ...]:
    """The sizes of a site, and the rows of each head of queries and of keys. Rows of a head may be in any order."""
    sizes = site.heads, site.key_heads, site.head_dim
    weights = [numbers[site.tensors[role]] for role in ("q", "k") if role in site.tensors]
    if not isinstance(site.layout, Layout) or any(weight.is_meta for weight in weights):
        return sizes
    own = {name: numbers[name] for name in site.tensors.values()}
    given = {name: torch.zeros(tensor.shape) if tensor.is_meta else tensor for name, tensor in own.items()}
    parts = assemble(site, {name: given[name][rows] for name, rows in site.reads.items()})
    weights = [parts[letter].weight for letter in "qk"]
    return (*sizes, *(tuple(frozenset(head.flatten().tolist()) for head in weight) for weight in weights))


def find_class(mapping: str) -> Any:
    """The class of models with this mapping."""
    if mapping in ELSEWHERE:
        module, name = ELSEWHERE[mapping].rsplit(".", 1)
        return getattr(importlib.import_module(f"transformers.models.{module}"), name)
    if hasattr(transformers, mapping) and isinstance(getattr(transformers, mapping), type):
        return getattr(transformers, mapping)
    config_class = transformers.CONFIG_MAPPING[mapping]
    return next(auto[config_class] for auto in AUTO if config_class in auto)


def is_query_or_key(name: str) -> bool:
    """Whether a tensor's name is that of a query or key projection, of its bias, or of the gain of a norm behind it."""
    leaf = re.sub(r"\.(weight|bias)$", "", name).rpartition(".")[2]
    shift = name.endswith("bias") and "norm" in leaf
    return bool(QUERY_OR_KEY.search(leaf)) and not OTHER.search(name) and not shift


def read_ghost(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> list[AttentionSite]:
    """The sites of a ghost with these tensors. Two experts of each layer stand for all."""
    few = {name: tensor for name, tensor in tensors.items() if not re.search(r"experts\.([2-9]|\d\d)", name)}
    write_ghost(folder, config, [(name, ("BF16", tuple(tensor.shape))) for name, tensor in few.items()])
    with closing(open_store(folder)) as store:
        return sites_of(store, ScoreOptions(with_bias=True))[0]
