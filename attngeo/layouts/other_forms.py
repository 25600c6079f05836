"""Projections of queries that are stored in another form than plain weights, told by the names of their tensors."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from attngeo.layouts.names import Reasons, is_in

# The name of a projection that holds queries, in the name of a tensor.
QUERY = r"(\w*(?:qkv|kqv|query|queries)\w*|(?:\w+_)?(?:q|wq|qcontent|qpos)(?:_\w+)?)(?:\.linear)?"
PLAIN = "give the model without quantisation"
UNDECODED = f"which is not decoded; {PLAIN}"
UNSTATED = f"and config.json has no quantization_config; add that of the model, or {PLAIN}"
MERGE = "merge it into its base with the program that wrote it, and give that checkpoint"
# The end of the name of a tensor of a projection → in what form it is stored, and what helps.
FORMS = (
    (r"base_layer\.weight", "an adapter of PEFT is beside it; save the model again after merge_and_unload"),
    (r"lora_[AB](?:\.\w+)?\.weight|lora_embedding_[AB].*",
     "it is of an adapter of PEFT, expected a model; give the folder that has its adapter_config.json"),
    (r"lora_[ab]", "it is of an adapter in the form of MLX, expected a model; merge it with mlx_lm.fuse, and give that "
     "checkpoint"),
    (r"(?:lora_(?:down|up)|lora\.(?:down|up)|lora_linear_layer\.(?:down|up))\.weight",
     f"it is of an adapter in the form of kohya and of diffusers, expected a model; {MERGE}"),
    (r"(?:hada|lokr|oft)_\w+", f"it is of an adapter in the form of LyCORIS, expected a model; {MERGE}"),
    (r"(?:qweight|qzeros)",
     "it is packed as GPTQ and AWQ do, and config.json has no quantization_config; add what quantize_config.json or "
     f"quant_config.json states, with its quant_method (gptq or awq), or {PLAIN}"),
    (r"weight_packed", f"it is packed as compressed-tensors does, {UNSTATED}"),
    (r"_?weight[._]qdata|weight[._]tensor_impl.*", f"it is packed as torchao does, {UNSTATED}"),
    (r"trellis", f"it is packed as ExLlamaV3 does, {UNDECODED}"),
    (r"q_weight", f"it is packed as ExLlamaV2 does, {UNDECODED}"),
    (r"B(?:_24)?", f"it is packed for the kernel Marlin, {UNDECODED}"),
    (r"W_q", f"it is packed as HQQ does, {UNSTATED}"),
    (r"codes|codebooks", f"it is packed as AQLM does, {UNDECODED}"),
    (r"Qidxs", f"it is packed as QuIP# does, {UNDECODED}"),
    (r"weight\._(?:data|packed)", f"it is packed as quanto does, {UNSTATED}"),
    (r"weight_[gv]|parametrizations\.weight\.original[01]",
     "weight_norm stores it as a length and a direction; multiply them with torch.nn.utils.remove_weight_norm or "
     "parametrize.remove_parametrizations, and save the model again"),
    (r"weight_orig|parametrizations\.weight\.original",
     "a parametrisation, such as spectral_norm, changes it before it is used; remove that with torch.nn.utils, and "
     "save the model again"),
)  # fmt: skip
OF_QUERIES = tuple((re.compile(rf"(.*?)(?:^|\.){QUERY}\.(?:{end})"), reason) for end, reason in FORMS)
# FSDP's parameters of a module in one row, and those of fairseq.
FLAT = re.compile(r"(?:.*\.)?_?flat_param(?:_\d+|_#)?")
FLATTENED = (
    "FSDP stores all parameters of a module in one row, and each process has a part of it; save the model again with "
    "the state dict type FULL_STATE_DICT, or join a folder of shards with accelerate merge-weights"
)


def find_other_forms(patterns: Iterable[str], modules: Collection[str]) -> Reasons:
    """The tensors of queries that are stored in another form: name pattern → in what form, and what helps.

    patterns: of all names. modules: patterns of the names of those that are read.
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
