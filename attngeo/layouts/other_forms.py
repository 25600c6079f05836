"""Query projections that are not stored as plain weights, recognised by tensor names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from attngeo.layouts.names import Reasons, is_in

# The name of a projection that holds queries, in the name of a tensor.
QUERY = r"(\w*(?:qkv|kqv|query|queries)\w*|(?:\w+_)?(?:q|wq|qcontent|qpos)(?:_\w+)?)(?:\.linear)?"
PLAIN = "give the model without quantisation"
UNDECODED = f"which attngeo does not decode; {PLAIN}"
UNSTATED = f"but config.json has no quantization_config; add the one that the model was saved with, or {PLAIN}"
MERGE = "merge it into its base with the program that wrote it, and give the merged model"
# End of a tensor name in a projection → the form in which it is stored, and what to do.
FORMS = (
    (r"base_layer\.weight", "a PEFT adapter is stored beside it; call merge_and_unload, and save the model again"),
    (r"lora_[AB](?:\.\w+)?\.weight|lora_embedding_[AB].*",
     "it belongs to a PEFT adapter, expected a model; give the folder with its adapter_config.json"),
    (r"lora_[ab]",
     "it belongs to an adapter in MLX format, expected a model; merge it with mlx_lm.fuse, and give the merged model"),
    (r"(?:lora_(?:down|up)|lora\.(?:down|up)|lora_linear_layer\.(?:down|up))\.weight",
     f"it belongs to an adapter in kohya or diffusers format, expected a model; {MERGE}"),
    (r"(?:hada|lokr|oft)_\w+", f"it belongs to an adapter in LyCORIS format, expected a model; {MERGE}"),
    (r"(?:qweight|qzeros)",
     "it is packed in GPTQ or AWQ format, but config.json has no quantization_config; add the fields of "
     f"quantize_config.json or quant_config.json, with quant_method (gptq or awq), or {PLAIN}"),
    (r"weight_packed", f"it is packed in compressed-tensors format, {UNSTATED}"),
    (r"_?weight[._]qdata|weight[._]tensor_impl.*", f"it is packed in torchao format, {UNSTATED}"),
    (r"trellis", f"it is packed in ExLlamaV3 format, {UNDECODED}"),
    (r"q_weight", f"it is packed in ExLlamaV2 format, {UNDECODED}"),
    (r"B(?:_24)?", f"it is packed for the Marlin kernel, {UNDECODED}"),
    (r"W_q", f"it is packed in HQQ format, {UNSTATED}"),
    (r"codes|codebooks", f"it is packed in AQLM format, {UNDECODED}"),
    (r"Qidxs", f"it is packed in QuIP# format, {UNDECODED}"),
    (r"weight\._(?:data|packed)", f"it is packed in quanto format, {UNSTATED}"),
    (r"weight_[gv]|parametrizations\.weight\.original[01]",
     "weight_norm stores it as a length and a direction; join them with torch.nn.utils.remove_weight_norm or "
     "parametrize.remove_parametrizations, and save the model again"),
    (r"weight_orig|parametrizations\.weight\.original",
     "a parametrisation, such as spectral_norm, changes it before use; remove the parametrisation with "
     "torch.nn.utils, and save the model again"),
)  # fmt: skip
OF_QUERIES = tuple((re.compile(rf"(.*?)(?:^|\.){QUERY}\.(?:{end})"), reason) for end, reason in FORMS)
# Parameters of a module in one row, from FSDP or fairseq.
FLAT = re.compile(r"(?:.*\.)?_?flat_param(?:_\d+|_#)?")
FLATTENED = (
    "FSDP stores all parameters of a module in one row, split between processes; save the model again with the state "
    "dict type FULL_STATE_DICT, or merge a folder of shards with accelerate merge-weights"
)


def find_other_forms(patterns: Iterable[str], modules: Collection[str]) -> Reasons:
    """Query tensors that are not stored as plain weights: name pattern → their form, and what to do.

    patterns: of all tensor names. modules: name patterns of the modules that are read.
    """
    reasons: Reasons = {}
    for pattern in patterns:
        if FLAT.fullmatch(pattern):
            reasons[pattern] = FLATTENED
            continue
        for form, reason in OF_QUERIES:
            match = form.fullmatch(pattern)
            if match is None:
                continue
            if not any(is_in(pattern, module) for module in modules):
                reasons[pattern] = reason
            break
    return reasons
