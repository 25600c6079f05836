"""Every field of a quantisation's configuration: applied, without effect on queries and keys, or of one value only.

A field that is in no table is refused, because what it changes is unknown. The fields are those of the classes of
transformers (`transformers.utils.quantization_config`) and of compressed-tensors, and what other programs write:
GPTQModel, AutoGPTQ, Optimum, AutoRound, AutoAWQ, AutoFP8, llm-compressor, modelopt, mlx-lm, torchao, HQQ, quanto and
Quark.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from attngeo.errors import UnsupportedModelError


class Fields(NamedTuple):
    """The fields of a method's configuration.

    Attributes:
        applied: fields that decoding or its checks read.
        idle: fields without effect on queries and keys; comments give the reasons.
        fixed: field → its allowed values.
    """

    applied: Collection[str] = ()
    idle: Collection[str] = ()
    fixed: Mapping[str, tuple[Any, ...]] = {}

    def __or__(self, other: Fields) -> Fields:
        """The fields of both."""
        return Fields({*self.applied, *other.applied}, {*self.idle, *other.idle}, {**self.fixed, **other.fixed})


# Fields of every method.
EVERY = Fields(
    ("quant_method",),
    (
        "dequantize",  # not saved by transformers; if it is there, it concerns loading
        "quantizer", "meta", "producer", "provider",  # what made the file
    ),
)  # fmt: skip
SKIPPED = Fields(("modules_to_not_convert",))
GPTQ_IDLE = (
    # How codes were chosen: those in the file stand for the same numbers.
    "act_group_aware amp batch_size block_name_to_quantize cache_block_outputs damp_auto_increment damp_percent "
    "dataset enable_minmax_tuning enable_norm_bias_tuning enable_quanted_input fallback foem gptaq "
    "gradient_accumulate_steps hessian iters low_gpu_mem_usage lr lr_scheduler minmax_lr mock_quantization "
    "model_seqlen module_name_preceding_first_block modules_in_block_to_quantize mse n_samples nblocks "
    "not_use_best_mse nsamples pad_token_id parallel_packing quant_block_list scale_dtype seqlen static_groups "
    "to_quant_block_names tokenizer train_bs true_sequential v2 v2_alpha v2_memory_device "
    # How a library loads or runs the weights, not which numbers they are.
    "device disable_exllama exllama_config gc_mode max_input_length model_file_base_name offload_to_disk "
    "offload_to_disk_path pack_impl use_cuda_fp16 use_exllama use_triton "
    # What made the file; the numbers that enter or leave a layer; other weights than those of queries and keys.
    "autoround_version model_name_or_path "
    "act_bits act_data_type act_dynamic act_group_size act_sym "
    "lm_head"
)
GPTQ = Fields(
    ("bits", "group_size", "desc_act", "sym", "format", "checkpoint_format", "dynamic"),
    (*GPTQ_IDLE.split(), "backend"),
    {
        "method": ("gptq",), "pack_dtype": ("int32", "torch.int32"), "data_type": ("int",),
        "is_marlin_format": (False,), "act_order": (False,), "rotation": (), "adapter": (), "extra_config": (),
        "packing_format": ("auto_round:auto_gptq", "auto_gptq"), "super_bits": (), "super_group_size": (),
    },
)  # fmt: skip
AWQ = Fields(
    ("bits", "group_size", "zero_point", "version", "format", "backend"),
    (
        *GPTQ_IDLE.split(),
        "do_fuse", "fuse_max_seq_len", "fuse_max_batch_size", "modules_to_fuse",  # how a library runs the weights
        "sym", "ignore",  # the file states it for each weight
        "desc_act",  # codes of AWQ have no order of their own
    ),
    {
        **GPTQ.fixed, "method": ("awq",), "checkpoint_format": ("gemm",), "w_bit": (4,), "dynamic": ({},),
        "q_group_size": (), "packing_format": ("auto_round:auto_awq", "auto_awq"),
    },
)  # fmt: skip
BITSANDBYTES = Fields(
    ("load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "llm_int8_skip_modules"),
    (
        "bnb_4bit_compute_dtype", "llm_int8_enable_fp32_cpu_offload",  # how a library loads or runs the weights
        "bnb_4bit_quant_storage", "bnb_4bit_use_double_quant",  # the file states it for each weight
        "_load_in_4bit", "_load_in_8bit",  # as load_in_4bit and load_in_8bit
        "llm_int8_threshold",  # the numbers that enter a layer
        "llm_int8_has_fp16_weight",  # weights of 16 bits are read as they are
    ),
)  # fmt: skip
# Of the methods whose codes are floats of 8 bits.
FLOAT8 = Fields(
    ("weight_block_size", "scale_fmt", "fmt", "ignored_layers"),
    (
        "activation_scheme", "activation_scale_ub", "kv_cache_scheme", "kv_cache_quant_algo",  # not weights
        "expert_dtype", "modules_to_convert",  # other weights than those of queries and keys
    ),
)  # fmt: skip
# Of a whole file, of a group of layers, and of the weights of a group.
COMPRESSED = Fields(
    ("config_groups", "format", "ignore", "sparsity_config"),
    (
        "kv_cache_scheme",  # not weights
        "global_compression_ratio", "version",  # what made the file
        "quantization_status",  # codes are stored in no other state
        "run_compressed", "use_optimized_inference",  # how a library runs the weights
        "moe_sparsity_config",  # other weights than those of queries and keys
    ),
    {"transform_config": ({}, {"config_groups": {}})},
)  # fmt: skip
SCHEME = Fields(("targets", "weights", "format"), ("input_activations", "output_activations"))
WEIGHTS = Fields(
    ("num_bits", "type", "symmetric", "group_size", "strategy", "block_structure", "actorder", "scale_dtype"),
    (
        "observer", "observer_kwargs",  # how codes were chosen
        "zp_dtype",  # the dtype of stored zero points is checked
    ),
    {"dynamic": (False,)},
)  # fmt: skip
MODELOPT = Fields(
    ("config_groups", "ignore", "exclude_modules", "quant_algo", "group_size", "quantized_layers"),
    (
        "kv_cache_scheme", "kv_cache_quant_algo", "input_activations",  # not weights
        "weights",  # the file states it for each weight
    ),
    {"has_zero_point": (False,), "pre_quant_scale": (False,)},
)  # fmt: skip
MLX = Fields(("bits", "group_size", "mode"))
GGUF = Fields(idle=("gguf_file",))
# What AutoRound states of a model, and of the layers that `extra_config` names.
AUTOROUND_LAYER = Fields(
    ("bits", "group_size", "sym", "data_type"),
    ("act_data_type", "act_dynamic", "act_group_size", "act_sym", "in_blocks", "fixed_by_user", "scale_dtype"),
    {"act_bits": (16, 32), "super_bits": (), "super_group_size": (), "rotation_config": (None, {})},
)
AUTOROUND = AUTOROUND_LAYER | Fields(
    ("packing_format", "backend", "extra_config"),
    (
        *(name for name in GPTQ_IDLE.split() if name != "act_bits"),
        "quant_lm_head", "supported_types",  # which modules are quantised
        # The numbers of the cache and of attention.
        "static_attention_dtype", "static_attention_granularity", "static_kv_dtype", "static_kv_granularity",
    ),
    {"desc_act": (False,), "rotation_configs": ([],), "spinquant_config": ()},
)  # fmt: skip
BITNET = Fields(
    ("linear_class", "quantization_mode"),
    ("rms_norm_eps",),
    {"use_rms_norm": (False,)},  # the gains of these norms would have to be read, too
)
HQQ = Fields(
    ("skip_modules",),
    ("quant_config",),  # the file states it for each weight
)
QUANTO = Fields(
    ("weights",),
    ("activations",),  # the numbers that enter or leave a layer
)
QUARK = Fields(
    ("algo_config", "exclude", "global_quant_config", "layer_quant_config", "layer_type_quant_config"),
    (
        "export", "kv_cache_group", "kv_cache_post_rope", "kv_cache_quant_config", "min_kv_scale",
        "softmax_quant_spec",  # not weights
        "log_severity_level", "quant_mode", "version",  # what made the file
    ),
)  # fmt: skip
TORCHAO = Fields(
    ("quant_type",),
    (
        "quant_type_kwargs",  # how codes were chosen: the file states it for each weight
        "include_input_output_embeddings", "untie_embedding_weights",  # other weights than those of queries and keys
    ),
)  # fmt: skip


def require_known(stated: Mapping[str, Any], fields: Fields, table: str) -> None:
    """Raise UnsupportedModelError for an unknown field, or a value that cannot be decoded.

    A null field counts as missing. table: name of the checked table, for errors.
    """
    for name, value in stated.items():
        if value is None or name in fields.applied or name in fields.idle:
            continue
        allowed = fields.fixed.get(name)
        if allowed is None:
            raise UnsupportedModelError(
                f"{table} states {name!r:.60} = {value!r:.40}, a field with unknown effect; give the model without "
                "quantisation, or remove the field if it does not change queries and keys"
            )
        if not any(type(value) is type(known) and value == known for known in allowed):
            expected = " or ".join([*map(repr, allowed), "null"])
            raise UnsupportedModelError(
                f"{table} states {name} = {value!r:.60}, expected {expected}; give the model without quantisation"
            )
