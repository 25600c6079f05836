"""Weights in packed form are scored as the numbers that they stand for, and never as their codes."""

from __future__ import annotations

import copy
import inspect
import io
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import Command
from safetensors.torch import load_file, save_file
from support.checkpoints import assert_refused, refuses_checkpoint, write_config, write_index, write_single
from support.circuits import assert_same_outputs
from support.packing import PACKINGS, Packing, bitsandbytes, compressed, fp8, gptq, mlx, pack_state
from torch import Tensor

import attngeo
from attngeo.attention.survey import survey
from attngeo.checkpoints.opening import open_store
from attngeo.checkpoints.quantised.fields import SCHEME, WEIGHTS
from attngeo.checkpoints.quantised.store import METHODS, DecodingStore
from attngeo.checkpoints.store import DTYPE_NAMES, TensorInfo
from attngeo.errors import AttnGeoError, CorruptCheckpointError, UnsupportedModelError

CONFIG = {
    "model_type": "llama", "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "num_hidden_layers": 2,
}  # fmt: skip
ATTENTION = "model.layers.{}.self_attn.{}_proj"
Q0 = ATTENTION.format(0, "q")
SCORES = ["symmetry", "directionality", "frobenius_norm"]


def draw_state() -> dict[str, Tensor]:
    """Queries, keys and values of two layers, an embedding and a norm."""
    generator = torch.Generator().manual_seed(3)
    state = {"model.embed_tokens.weight": torch.randn(50, 128, generator=generator)}
    for layer in (0, 1):
        state[f"model.layers.{layer}.input_layernorm.weight"] = torch.rand(128, generator=generator) + 0.5
        for name, rows in (("q", 128), ("k", 64), ("v", 64)):
            state[f"{ATTENTION.format(layer, name)}.weight"] = torch.randn(rows, 128, generator=generator)
    return state


def is_projection(name: str, tensor: Tensor) -> bool:
    return tensor.ndim == 2 and "embed" not in name


Packed = Callable[[str], tuple[Path, Path]]


def write_packed(folder: Path, packing: Packing, state: dict[str, Tensor]) -> tuple[Path, Path]:
    """A packed checkpoint, and one of the decoded weights."""
    stored, decoded = pack_state(state, packing, is_projection)
    packed = write_single(folder / "packed", stored, CONFIG | packing.config)
    return packed, write_single(folder / "plain", decoded, CONFIG)


def read_scores(inside: Command, folder: Path) -> pd.DataFrame:
    run = inside("score", folder, "--format", "csv")
    assert run.returncode == 0, run.stderr
    return pd.read_csv(io.StringIO(run.stdout))


def assert_same(packed: pd.DataFrame, plain: pd.DataFrame) -> None:
    assert len(packed) == len(plain) > 0
    np.testing.assert_allclose(packed[SCORES[:2]], plain[SCORES[:2]], rtol=0, atol=1e-6)
    np.testing.assert_allclose(packed[SCORES[2]], plain[SCORES[2]], rtol=1e-6)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """What `write_packed` writes of a packing, with outputs, too; made once."""
    generator = torch.Generator().manual_seed(4)
    outputs = {f"{ATTENTION.format(layer, 'o')}.weight": torch.randn(128, 128, generator=generator) for layer in (0, 1)}

    @cache
    def write(case: str) -> tuple[Path, Path]:
        return write_packed(tmp_path_factory.mktemp("packed"), PACKINGS[case], draw_state() | outputs)

    return write


@pytest.mark.parametrize("case", PACKINGS)
def test_weights_are_those_that_were_packed(case: str, packed: Packed) -> None:
    """Scores, what is said of the tensors, values and outputs, and single rows."""
    folder, plain = packed(case)
    scores, expected = (attngeo.score(path, scores="symmetric_growth") for path in (folder, plain))
    assert_same(scores, expected)
    if "padded" not in case:  # there, words have unused bits
        assert scores["parameters"].tolist() == expected["parameters"].tolist()
    assert scores["symmetric_growth"].tolist() == pytest.approx(expected["symmetric_growth"].tolist(), rel=1e-6)
    assert set(scores["format"]) == {PACKINGS[case].format}
    assert set(expected["format"]) == {"F32"}
    (site, _) = survey(str(folder))["sites"]
    assert {tensor["dtype"] for tensor in site["tensors"].values()} == {PACKINGS[case].format}
    assert [tensor["shape"] for tensor in site["tensors"].values()] == [[128, 128], [64, 128]]
    assert_same_outputs(folder, plain)
    with closing(open_store(folder)) as store:
        whole = store.read(f"{Q0}.weight")
        for rows in (slice(0, 1), slice(7, 50), slice(96, None)):
            assert torch.equal(store.read(f"{Q0}.weight", rows), whole[rows])
            assert store.count_nbytes({f"{Q0}.weight": rows}) <= store.count_nbytes({f"{Q0}.weight": slice(None)})


@pytest.mark.parametrize("section", ["text_config", "decoder", "generator"])
def test_the_section_of_the_text_states_the_method_of_the_model(section: str, packed: Packed, tmp_path: Path) -> None:
    """As for transformers, which looks there if the model's own fields state none."""
    folder, plain = packed("gptq-4")
    config = json.loads((folder / "config.json").read_text())
    config[section] = {"quantization_config": config.pop("quantization_config")}
    write_single(tmp_path, load_file(folder / "model.safetensors"), config)
    assert_same(attngeo.score(tmp_path), attngeo.score(plain))
    (tmp_path / "config.json").write_text(json.dumps(config | {section: {}}))
    with refuses_checkpoint(tmp_path, UnsupportedModelError, ("qweight", "quantization_config")):
        attngeo.score(tmp_path)


def test_the_commands_take_packed_weights(packed: Packed, inside: Command) -> None:
    folder, plain = packed("gptq-4")
    assert_same(read_scores(inside, folder), read_scores(inside, plain))
    (site, _) = json.loads(inside("inspect", folder, "--format", "json").stdout)["sites"]
    assert {tensor["dtype"] for tensor in site["tensors"].values()} == {PACKINGS["gptq-4"].format}


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt_neox", "deepseek_v3"])
@pytest.mark.parametrize("case", ["fp8-block", "nf4-double", "int4"])
def test_families_are_read_as_without_quantisation(
    name: str, case: str, built: Callable[[str], Any], tmp_path: Path
) -> None:
    """Key heads, fused rows in blocks, gains of norms, and latent attention with blocks that its widths do not fill."""
    packing = compressed(4, group=-1) if case == "int4" else PACKINGS[case]
    model = built(name)

    def is_linear(tensor_name: str, tensor: Tensor) -> bool:
        return tensor.ndim == 2 and tensor_name.endswith(".weight") and "embed" not in tensor_name

    stored, decoded = pack_state(model.state_dict(), packing, is_linear)
    config = model.config.to_dict()
    packed = write_single(tmp_path / "packed", stored, config | packing.config)
    plain = write_single(tmp_path / "plain", decoded, config)
    for options in ({}, {"with_bias": True, "fold_norm": True}):
        assert_same(attngeo.score(packed, **options), attngeo.score(plain, **options))
    assert_same_outputs(packed, plain)


def test_scales_may_be_in_another_file(tmp_path: Path) -> None:
    packing = fp8("block")
    stored, decoded = pack_state(draw_state(), packing, is_projection)
    folder = write_config(tmp_path / "shards", CONFIG | packing.config)
    files = {name: f"model-0000{1 + ('scale' in name)}-of-00002.safetensors" for name in stored}
    for file in set(files.values()):
        save_file({name: tensor for name, tensor in stored.items() if files[name] == file}, folder / file)
    write_index(folder, files)
    assert_same(attngeo.score(folder), attngeo.score(write_single(tmp_path / "plain", decoded, CONFIG)))


def test_what_is_left_plain_is_read_as_it_is(tmp_path: Path) -> None:
    for packing in (PACKINGS["gptq-4"], bitsandbytes("nf4"), PACKINGS["fp8-block"], PACKINGS["mlx-4"]):
        stored, decoded = pack_state(
            draw_state(), packing, lambda name, tensor: is_projection(name, tensor) and ".layers.1." in name
        )
        packed = write_single(tmp_path / packing.format / "packed", stored, CONFIG | packing.config)
        assert_same(
            attngeo.score(packed), attngeo.score(write_single(tmp_path / packing.format / "plain", decoded, CONFIG))
        )


def test_layers_of_mlx_may_have_other_bits(tmp_path: Path) -> None:
    low, high = PACKINGS["mlx-2"], PACKINGS["mlx-8"]
    first, decoded = pack_state(draw_state(), low, is_projection)
    only = {name: tensor for name, tensor in draw_state().items() if name == f"{Q0}.weight"}
    special, numbers = pack_state(only, high, is_projection)
    table = low.config["quantization"] | {Q0: {"bits": 8, "group_size": 32}}
    packed = write_single(tmp_path / "packed", first | special, CONFIG | {"quantization": table})
    assert_same(attngeo.score(packed), attngeo.score(write_single(tmp_path / "plain", decoded | numbers, CONFIG)))


def test_an_entry_of_mlx_replaces_the_default_with_its_mode(tmp_path: Path) -> None:
    """As in gpt-oss-20b-MXFP4-Q8: all is mxfp4, but attention, whose entries state no mode."""
    count = sum(tensor.numel() for tensor in draw_state().values())
    stored, decoded = pack_state(draw_state(), mlx(8, 64), is_projection)
    entries = {ATTENTION.format(layer, letter): {"group_size": 64, "bits": 8} for layer in (0, 1) for letter in "qkv"}
    plain = attngeo.score(write_single(tmp_path / "plain", decoded, CONFIG))
    for entry in ({}, {"mode": "affine"}):
        table = {"group_size": 32, "bits": 4, "mode": "mxfp4"} | {name: own | entry for name, own in entries.items()}
        packed = write_single(tmp_path / f"packed{len(entry)}", stored, CONFIG | {"quantization": table})
        assert_same(attngeo.score(packed), plain)
        assert set(attngeo.score(packed)["parameters"]) == {count}
    four, numbers = pack_state(draw_state(), mlx(4, 64), is_projection)
    empty = {"group_size": 32, "bits": 8, **{name: {} for name in entries}}  # MLX takes 64 and 4 then
    packed = write_single(tmp_path / "empty", four, CONFIG | {"quantization": empty})
    assert_same(attngeo.score(packed), attngeo.score(write_single(tmp_path / "four", numbers, CONFIG)))


# Who writes → packing, and what is stated beside it.
WRITTEN: dict[str, tuple[str, dict[str, Any]]] = {
    "AutoGPTQ": (
        "gptq-act-order",
        {"damp_percent": 0.01, "true_sequential": True, "model_name_or_path": None, "model_file_base_name": "model",
         "static_groups": False, "is_marlin_format": False},
    ),
    "Optimum": (
        "gptq-4",
        {"batch_size": 1, "block_name_to_quantize": None, "cache_block_outputs": True, "damp_percent": 0.1,
         "dataset": "c4", "exllama_config": {"version": 1}, "max_input_length": None, "model_seqlen": None,
         "module_name_preceding_first_block": None, "modules_in_block_to_quantize": None, "pad_token_id": None,
         "tokenizer": None, "true_sequential": True, "use_cuda_fp16": False, "use_exllama": True},
    ),
    "GPTQModel": (
        "gptq-v2",
        {"format": "gptq_v2", "lm_head": False, "pack_dtype": "int32", "method": "gptq",
         "meta": {"quantizer": ["gptqmodel:5.0.0"], "act_group_aware": True, "damp_percent": 0.05}},
    ),
    "AutoRound": (
        "gptq-4",
        {"autoround_version": "0.5.1", "data_type": "int", "iters": 200, "lr": 0.005, "minmax_lr": 0.005,
         "nsamples": 128, "seqlen": 2048, "enable_quanted_input": True, "enable_minmax_tuning": True,
         "provider": "auto-round",
         "low_gpu_mem_usage": True, "damp_percent": 0.01, "true_sequential": False},
    ),
    "AutoAWQ": ("awq-gemm", {"modules_to_not_convert": ["lm_head"], "do_fuse": False, "backend": "autoawq"}),
    "AutoAWQ, of vectors": ("awq-gemv", {"modules_to_not_convert": None}),
    "bitsandbytes": (
        "nf4-double",
        {"_load_in_4bit": True, "_load_in_8bit": False, "bnb_4bit_compute_dtype": "bfloat16",
         "bnb_4bit_quant_storage": "uint8", "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True,
         "llm_int8_enable_fp32_cpu_offload": False, "llm_int8_has_fp16_weight": False, "llm_int8_threshold": 6.0,
         "llm_int8_skip_modules": ["lm_head", "multi_modal_projector", "model.layers.1.mlp"]},
    ),
    "DeepSeek": ("fp8-block", {"activation_scheme": "dynamic", "fmt": "e4m3", "scale_fmt": "ue8m0"}),
    "Qwen": (
        "fp8-block", {"activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"]}
    ),
    "llm-compressor": ("int4-asymmetric", {"sparsity_config": {}, "transform_config": {}, "version": "0.12.2"}),
    "llm-compressor, ignoring experts": (
        "int4", {"ignore": ["lm_head", "re:.*mlp.*", "re:.*(?=x)", "model.layers.1.self_attn.q_proj"]}
    ),
    "modelopt": (
        "nvfp4-modelopt",
        {"producer": {"name": "modelopt", "version": "0.29.0"}, "quant_algo": "W4A16_NVFP4", "group_size": 16,
         "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"}, "config_groups": {"group_0": {}}},
    ),
    "modelopt, mixed": (
        "nvfp4-modelopt", {"quant_algo": "MIXED_PRECISION", "quantized_layers": {Q0: {"quant_algo": "NVFP4"}}}
    ),
    "mlx-lm": ("mlx-4", {"mode": "affine", "model.embed_tokens": True, "lm_head": {"bits": 8, "group_size": 64}}),
}  # fmt: skip


@pytest.mark.parametrize("case", WRITTEN)
def test_configurations_are_read_as_programs_write_them(case: str) -> None:
    packing, more = WRITTEN[case]
    weight = {f"{Q0}.weight": draw_state()[f"{Q0}.weight"][:64]}
    stored, decoded = pack_state(weight, PACKINGS[packing], is_projection)
    (name, stated), *_ = PACKINGS[packing].config.items()
    torch.testing.assert_close(read_packed(stored, {name: stated | more}), decoded[f"{Q0}.weight"])


# The entries of GPTQModel's `dynamic` → the bits and the group size of queries of layer 0; None: as for the model.
DYNAMIC: dict[str, tuple[dict[str, Any], tuple[int, int] | None]] = {
    "a name": ({r"^model\.layers\.0\.self_attn\.q_proj$": {"bits": 8}}, (8, 32)),
    "a sign": ({r"+:.*\.0\..*q_proj": {"bits": 8, "group_size": 64}}, (8, 64)),
    "the beginning of a name": ({r"model\.layers\.0\.self_attn\.q": {"group_size": 64}}, (4, 64)),
    "only a part of it": ({r"layers\.0\.self_attn\.q_proj": {"bits": 8}}, None),
    "the first that matches": ({r".*\.(?:q|r)_proj": {"bits": 8}, r".*_proj": {"bits": 2}}, (8, 32)),
    "another module is left plain": ({r".*": {"bits": 8}, r"-:.*\.[1-9]\..*": {}}, (8, 32)),
    "a class and a number": ({r".*\.layers\.[0-3]\..*\.q_proj": {"bits": 2, "sym": False}}, (2, 32)),
    "none": ({}, None),
}


@pytest.mark.parametrize("case", DYNAMIC)
def test_layers_of_gptqmodel_may_have_other_settings(case: str) -> None:
    entries, expected = DYNAMIC[case]
    bits, size = expected or (4, 32)
    weight = {f"{Q0}.weight": draw_state()[f"{Q0}.weight"]}
    stored, decoded = pack_state(weight, gptq(bits, size=size), is_projection)
    config = settings("gptq-4", dynamic=entries)
    torch.testing.assert_close(read_packed(stored, config), decoded[f"{Q0}.weight"])


@pytest.mark.parametrize(
    ("targets", "other"),
    [(["re:.*q_proj"], ["Linear"]), ([Q0], ["re:.*q_proj", "Linear"]), (["Linear"], [Q0.replace("0", "1")])],
)
def test_a_group_of_compressed_tensors_is_that_of_the_best_target(targets: list[str], other: list[str]) -> None:
    """By name before by pattern before by class, in whichever order; as `apply_quantization_config` has it."""
    weight = {f"{Q0}.weight": draw_state()[f"{Q0}.weight"]}
    asymmetric, plain = PACKINGS["int4-asymmetric"], PACKINGS["int4"]
    stored, decoded = pack_state(weight, asymmetric, is_projection)
    first = asymmetric.config["quantization_config"]["config_groups"]["group_0"] | {"targets": targets}
    second = plain.config["quantization_config"]["config_groups"]["group_0"] | {"targets": other}
    for groups in ({"a": first, "b": second}, {"a": second, "b": first}):
        config = settings("int4", config_groups=groups)
        torch.testing.assert_close(read_packed(stored, config), decoded[f"{Q0}.weight"])
        without = {name: tensor for name, tensor in stored.items() if "zero_point" not in name}
        with pytest.raises(CorruptCheckpointError, match=r"zero points, but the tensor \.weight_zero_point is missing"):
            read_packed(without, config)


def test_only_what_queries_and_keys_need_is_fetched(tmp_path: Path) -> None:
    """Four bits a weight and a scale of 16 bits for 32 of them, of queries and keys alone."""
    packed, _ = write_packed(tmp_path, PACKINGS["int4"], draw_state())
    weights = 2 * (128 + 64) * 128
    assert survey(str(packed))["bytes_to_read"] == weights // 2 + weights // 32 * 2 + 4 * 16  # and stated shapes


def test_a_model_with_plain_attention_is_read_although_the_rest_is_packed(tmp_path: Path) -> None:
    folder = write_single(tmp_path, draw_state(), CONFIG | {"quantization_config": {"quant_method": "mxfp4"}})
    assert len(attngeo.score(folder)) == 2


def settings(case: str, **changes: Any) -> dict[str, Any]:
    stated = PACKINGS[case].config["quantization_config"]
    return CONFIG | {"quantization_config": stated | changes}


def group(case: str, **changes: Any) -> dict[str, Any]:
    """The configuration of compressed-tensors with changes of the one group's weights."""
    stated = copy.deepcopy(PACKINGS[case].config["quantization_config"])
    stated["config_groups"]["group_0"]["weights"].update(changes)
    return CONFIG | {"quantization_config": stated}


def describe(**changes: Any) -> Tensor:
    """What bitsandbytes states about a matrix with packed scales, with changes; "" removes a field."""
    stated = {
        "quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [128, 128], "nested_blocksize": 256,
        "nested_dtype": "float32", "nested_offset": 0.5,
    }  # fmt: skip
    kept = {name: value for name, value in (stated | changes).items() if value != ""}
    return torch.tensor([*json.dumps(kept).encode()], dtype=torch.uint8)


STATE = f"{Q0}.weight.quant_state.bitsandbytes__nf4"
MLX = PACKINGS["mlx-4"].config["quantization"]
# What is wrong → packing, changes of the stored tensors, configuration, error, facts of its message.
REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], type[AttnGeoError], tuple[str, ...]]] = {
    "a scale that is no number": (
        "fp8-block", {f"{Q0}.weight_scale_inv": torch.full((3, 4), torch.nan)}, settings("fp8-block"),
        CorruptCheckpointError, (Q0, "scale", "finite"),
    ),
    "an exponent that is no number": (
        "fp8-block-u8", {f"{Q0}.weight_scale_inv": torch.full((3, 4), 255, dtype=torch.uint8)}, settings("fp8-block"),
        CorruptCheckpointError, (Q0, "scale", "finite"),
    ),
    "float8 without its scale": (
        "fp8-block", {f"{Q0}.weight_scale_inv": None}, settings("fp8-block"),
        CorruptCheckpointError, (Q0, "F8_E4M3", "fp8", ".weight_scale_inv", "missing"),
    ),
    "scales of other blocks": (
        "fp8-block", {}, settings("fp8-block", weight_block_size=[64, 64]),
        CorruptCheckpointError, (Q0, "weight_scale_inv", "[3, 4]", "[2, 2]"),
    ),
    "blocks without a side": (
        "fp8-block", {}, settings("fp8-block", weight_block_size=[0, 64]),
        CorruptCheckpointError, (Q0, "weight_block_size", "[0, 64]"),
    ),
    "no groups of an order": (
        "gptq-act-order", {f"{Q0}.g_idx": None}, settings("gptq-act-order"),
        CorruptCheckpointError, (Q0, "g_idx", "order of inputs", "missing"),
    ),
    "groups that do not exist": (
        "gptq-act-order", {f"{Q0}.g_idx": torch.full((128,), 4, dtype=torch.int32)}, settings("gptq-act-order"),
        CorruptCheckpointError, (Q0, "groups", "0 to 3"),
    ),
    "another group size": (
        "gptq-4", {}, settings("gptq-4", group_size=64), CorruptCheckpointError, (Q0, "scales", "[4, 128]", "[2, 128]"),
    ),
    "a group size of zero": (
        "gptq-4", {}, settings("gptq-4", group_size=0), CorruptCheckpointError, (Q0, "group_size = 0"),
    ),
    "other bits": ("gptq-4", {}, settings("gptq-4", bits=3), CorruptCheckpointError, (Q0,)),
    "bits that are no number": ("gptq-4", {}, settings("gptq-4", bits="four"), CorruptCheckpointError, (Q0, "'four'")),
    "bits that GPTQ does not have": ("gptq-4", {}, settings("gptq-4", bits=5), UnsupportedModelError, (Q0, "5 bits")),
    "another format of GPTQ": (
        "gptq-4", {}, settings("gptq-4", checkpoint_format="marlin"), UnsupportedModelError, (Q0, "marlin"),
    ),
    "codes without scales": (
        "gptq-4", {f"{Q0}.scales": None}, settings("gptq-4"),
        CorruptCheckpointError, (Q0, "gptq", ".scales", "missing"),
    ),
    "another format of AWQ": (
        "awq-gemm", {}, settings("awq-gemm", version="marlin"), UnsupportedModelError, (Q0, "marlin"),
    ),
    "a description that is no JSON": (
        "nf4", {f"{Q0}.weight.quant_state.bitsandbytes__nf4": torch.zeros(20, dtype=torch.uint8)}, settings("nf4"),
        CorruptCheckpointError, (Q0, "quant_state", "does not describe"),
    ),
    "blocks of no numbers": (
        "nf4", {
            f"{Q0}.weight.quant_state.bitsandbytes__nf4":
            torch.tensor([*b'{"blocksize": 0, "shape": [128, 128]}'], dtype=torch.uint8),
        }, settings("nf4"), CorruptCheckpointError, (Q0, "does not describe"),
    ),
    "a block that is cut off": (
        "nf4", {f"{Q0}.weight": torch.zeros(100, 1, dtype=torch.uint8)}, settings("nf4"),
        CorruptCheckpointError, (Q0, "100 bytes", "16384"),
    ),
    "packed scales without their table": (
        "nf4-double", {f"{Q0}.weight.nested_quant_map": None}, settings("nf4"), CorruptCheckpointError, (Q0, "packed"),
    ),
    "a shape that was not stored": (
        "int4", {f"{Q0}.weight_shape": torch.tensor([128, 2**40])}, settings("int4"),
        CorruptCheckpointError, (Q0, "1099511627776"),
    ),
    "a method that is not decoded": (
        "gptq-4", {}, settings("gptq-4", quant_method="sinq"), UnsupportedModelError,
        (f"{Q0}.qweight", "sinq", "gptq"),
    ),
    "codes of another method than stated": (
        "gptq-4", {}, settings("gptq-4", quant_method="hqq"), CorruptCheckpointError, (f"{Q0}.qweight", "I32", "hqq"),
    ),
    "zero points that are stated": (
        "int4", {}, group("int4", symmetric=False), CorruptCheckpointError, (Q0, "zero points", ".weight_zero_point"),
    ),
    "zero points of codes of 8 bits that are stated": (
        "int8-plain", {}, group("int8-plain", symmetric=False),
        CorruptCheckpointError, (Q0, "zero points", ".weight_zero_point"),
    ),
    "zero points that are not stated": (
        "int4-asymmetric", {}, group("int4-asymmetric", symmetric=True), CorruptCheckpointError, (Q0, "no zero points"),
    ),
    "an order that is stated": (
        "int4", {}, group("int4", actorder="group"), CorruptCheckpointError, (Q0, "order of inputs", ".weight_g_idx"),
    ),
    "codes of another kind than stated": (
        "int8-plain", {}, group("int8-plain", type="float"), CorruptCheckpointError, (Q0, "'float'", "int"),
    ),
    "another format of compressed-tensors": (
        "int8-plain", {}, settings("int8-plain", format="float-quantized"),
        CorruptCheckpointError, (Q0, "'float-quantized'", "int-quantized"),
    ),
    "integers as float8": (
        "fp8-block", {f"{Q0}.weight": torch.ones(128, 128, dtype=torch.int8)}, settings("fp8-block"),
        CorruptCheckpointError, (Q0, "I8", "F8_E4M3"),
    ),
    "another float8 than stated": (
        "fp8-block", {}, settings("fp8-block", fmt="e5m2"), CorruptCheckpointError, (Q0, "F8_E4M3", "F8_E5M2"),
    ),
    "plain numbers with scales": (
        "fp8-block", {f"{Q0}.weight": torch.ones(128, 128)}, settings("fp8-block"), CorruptCheckpointError, (Q0, "F32"),
    ),
    "groups that do not divide the inputs": (
        "gptq-4", {f"{Q0}.g_idx": None}, settings("gptq-4", group_size=40),
        CorruptCheckpointError, (Q0, "groups of 40", "128 inputs"),
    ),
    "groups that do not divide the inputs of AWQ's other format": (
        "awq-gemm", {}, settings("awq-gemm", group_size=40), CorruptCheckpointError, (Q0, "groups of 40", "128 inputs"),
    ),
    "groups that AWQ does not have": (
        "awq-gemv", {}, settings("awq-gemv", group_size=31), UnsupportedModelError, (Q0, "groups of 31"),
    ),
    "larger groups, of which the padded file has enough": (
        "awq-gemv", {}, settings("awq-gemv", group_size=64), CorruptCheckpointError, (Q0, "[128, 4]", "[128, 2]"),
    ),
    "a group size that no file has": (
        "gptq-4", {}, settings("gptq-4", group_size=10**400),
        CorruptCheckpointError, (Q0, "group_size", "whole number"),
    ),
    "zero points in the middle that are not": (
        "gptq-4", {}, settings("gptq-4", sym=True), CorruptCheckpointError, (Q0, "sym = true", "zero points"),
    ),
    "a text for a boolean": (
        "gptq-4", {}, settings("gptq-4", sym="false"), CorruptCheckpointError, (Q0, "sym", "'false'", "true or false"),
    ),
    "two formats": (
        "gptq-4", {}, settings("gptq-4", format="gptq_v2", checkpoint_format="gptq"),
        CorruptCheckpointError, (Q0, "gptq and gptq_v2"),
    ),
    "an offset that is a text": (
        "nf4-double", {STATE: describe(nested_offset="1")}, settings("nf4"),
        CorruptCheckpointError, (Q0, "does not describe"),
    ),
    "an offset that is a boolean": (
        "nf4-double", {STATE: describe(nested_offset=True)}, settings("nf4"),
        CorruptCheckpointError, (Q0, "does not describe"),
    ),
    "an offset that is no number": (
        "nf4-double", {STATE: describe(nested_offset=float("nan"))}, settings("nf4"),
        CorruptCheckpointError, (Q0, "does not describe"),
    ),
    "an offset of 400 digits": (
        "nf4-double", {STATE: describe(nested_offset=10**400)}, settings("nf4"),
        CorruptCheckpointError, (Q0, "does not describe"),
    ),
    "no offset": (
        "nf4-double", {STATE: describe(nested_offset="")}, settings("nf4"),
        CorruptCheckpointError, (Q0, "does not describe"),
    ),
    "packed scales that are not described": (
        "nf4-double", {STATE: describe(nested_offset="", nested_blocksize="")}, settings("nf4"),
        CorruptCheckpointError, (Q0, "packed"),
    ),
    "another type of bitsandbytes": (
        "nf4", {}, settings("nf4", bnb_4bit_quant_type="fp4"), CorruptCheckpointError, (Q0, "'fp4'", "nf4"),
    ),
    "other bits of bitsandbytes": (
        "bnb-int8", {}, settings("nf4"), CorruptCheckpointError, (Q0, "4-bit", "8-bit"),
    ),
    "another algorithm of modelopt": (
        "nvfp4-modelopt", {}, settings("nvfp4-modelopt", quant_algo="FP8"),
        CorruptCheckpointError, (Q0, "'FP8'", "NVFP4"),
    ),
    "two tensors of one role": (
        "fp8-block", {f"{Q0}.weight_scale": torch.ones(1)}, settings("fp8-block"),
        CorruptCheckpointError, (f"{Q0}.weight_scale_inv", "scale of one weight"),
    ),
    "a packed module that is stated as plain": (
        "fp8-block", {}, settings("fp8-block", modules_to_not_convert=["lm_head", "model.layers.0"]),
        CorruptCheckpointError, (Q0, "modules_to_not_convert"),
    ),
    "a packed module that MLX leaves plain": (
        "mlx-4", {}, CONFIG | {"quantization": {**MLX, Q0: False}}, CorruptCheckpointError, (Q0, "packed"),
    ),
    "a packed module that GPTQModel leaves plain": (
        "gptq-4", {}, settings("gptq-4", dynamic={r".*": {"bits": 4}, r"-:.*q_proj": {}}),
        CorruptCheckpointError, (Q0, "dynamic"),
    ),
    "a pattern that may take forever elsewhere": (
        "gptq-4", {}, settings("gptq-4", dynamic={r"(.|.)*!": {"bits": 8}, r"x{99999999999}": {}}),
        UnsupportedModelError, ("dynamic", "x{99999999999}"),
    ),
    "a field that is not known": (
        "gptq-4", {}, settings("gptq-4", turn=True), UnsupportedModelError, ("gptq", "'turn' = True", "unknown"),
    ),
    "weights that are rotated": (
        "gptq-4", {}, settings("gptq-4", rotation="hadamard"), UnsupportedModelError, ("rotation", "'hadamard'"),
    ),
    "weights that are transformed": (
        "int4", {}, settings("int4", transform_config={"config_groups": {"R1": {}}}),
        UnsupportedModelError, ("transform_config",),
    ),
    "sparse weights": (
        "int4", {}, settings("int4", sparsity_config={"format": "sparse-bitmask"}),
        UnsupportedModelError, ("sparse-bitmask",),
    ),
    "scaled inputs": (
        "nvfp4-modelopt", {}, settings("nvfp4-modelopt", pre_quant_scale=True),
        UnsupportedModelError, ("pre_quant_scale",),
    ),
    "a method that has no name": (
        "gptq-4", {}, CONFIG | {"quantization_config": []}, UnsupportedModelError, (f"{Q0}.qweight", "quantised"),
    ),
}  # fmt: skip


class StoredTensors:
    """Tensors in memory, as a store of files has them."""

    ref, revision, offline, folder, main_file, format = "model", None, False, None, "model.safetensors", "safetensors"

    def __init__(self, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
        self.tensors, self.names, self.config = tensors, tensors.keys(), config

    def info(self, name: str) -> TensorInfo:
        tensor = self.tensors[name]
        return TensorInfo(name, DTYPE_NAMES[tensor.dtype], tuple(tensor.shape), tensor.nbytes)

    def open(self, names: Iterable[str], progress: Any = None) -> None:
        pass

    def read(self, name: str) -> Tensor:
        return self.tensors[name]

    def read_all(self, reads: Mapping[str, slice]) -> dict[str, Tensor]:
        return {
            name: self.tensors[name][rows] if self.tensors[name].ndim else self.tensors[name]
            for name, rows in reads.items()
        }


def read_packed(stored: Mapping[str, Tensor], config: Mapping[str, Any]) -> Tensor:
    """The weight of layer 0's queries."""
    store = DecodingStore(StoredTensors(stored, config))
    store.open([f"{Q0}.weight"])
    return store.read(f"{Q0}.weight")


@cache
def pack_case(case: str) -> dict[str, Tensor]:
    """What a packing stores of the model."""
    return pack_state(draw_state(), PACKINGS[case], is_projection)[0]


@pytest.mark.parametrize("case", REFUSED)
def test_codes_are_never_taken_for_weights(case: str, tmp_path: Path) -> None:
    packing, changes, config, error, facts = REFUSED[case]
    kept = {name: tensor for name, tensor in (pack_case(packing) | changes).items() if tensor is not None}
    folder = write_single(tmp_path, kept, config)
    with refuses_checkpoint(folder, error, facts):
        attngeo.score(folder)


def test_the_command_refuses_codes_in_one_line(tmp_path: Path, inside: Command) -> None:
    packing, _, config, error, facts = REFUSED["other bits"]
    folder = write_single(tmp_path, pack_case(packing), config)
    assert_refused(inside("score", folder), folder, error, facts)


# Values of fields; which of them a field may have, the test does not know.
VALUES: list[Any] = [
    None, 0, -1, 2, 4, 8, 31, 32, 40, 64, 128, 10**400, 1.5, True, False, "x", "group", "channel", "tensor", "float",
    "int", "e5m2", "fp4", "gemm", "naive-quantized", "FP8", [], {}, [64, 64], [1, 32],
]  # fmt: skip
# The tables of fields of all methods, and those of tables in them.
ALL_FIELDS = (*(method.fields for method in METHODS.values()), SCHEME, WEIGHTS)
# What is changed → packings for which another number is right, as GPTQModel computes it, AutoRound without a packing
# format, and transformers without a class of BitNet.
FREE = {
    "checkpoint_format": ("gptq-v2",), "format": ("gptq-v2",), "sym": ("gptq-v2-stated-as-v1",),
    "packing_format": ("auto-round-raw-4",), "linear_class": ("bitnet-multiplied",),
}  # fmt: skip


def list_fields(table: Mapping[str, Any], *place: str) -> Iterator[tuple[str, ...]]:
    """The places of all fields of a table, and of the tables in it, but those that are without effect."""
    without_effect = {name for fields in ALL_FIELDS for name in fields.idle}
    for name, value in table.items():
        if name not in {"quant_method", *without_effect}:
            yield (*place, name)
        if isinstance(value, Mapping):
            yield from list_fields(value, *place, name)


@pytest.mark.parametrize("case", ["gptq-v2", "gptq-act-order", "gptq-v2-stated-as-v1", "awq-gemm", "awq-gemv", "mlx-4",
                                  "fp8-block", "fp8-channel", "mxfp8", "nvfp4", "nvfp4-modelopt", "nf4-double", "int4",
                                  "int4-asymmetric", "int8-plain", "auto-round-raw-4", "bitnet-multiplied", "hqq-4",
                                  "torchao-int4", "torchao-int8", "quanto-int8", "quark-channel"])  # fmt: skip
def test_a_changed_setting_is_refused_or_changes_nothing(case: str) -> None:
    """The file has stayed as it is, so that any other numbers are wrong."""
    weight = {f"{Q0}.weight": draw_state()[f"{Q0}.weight"][:32]}
    stored, _ = pack_state(weight, PACKINGS[case], is_projection)
    name, stated = next(iter(PACKINGS[case].config.items()))
    expected = read_packed(stored, {name: stated})
    refused = 0
    for place in [*list_fields(stated), ("bits",), ("group_size",), ("format",), ("fmt",), ("scale_fmt",)]:
        for value in VALUES:
            changed = copy.deepcopy(stated)
            table = changed
            for inner in place[:-1]:
                table = table[inner]
            table[place[-1]] = value
            try:
                numbers = read_packed(stored, {name: changed})
            except AttnGeoError:
                refused += 1
            else:
                assert torch.equal(numbers, expected) or case in FREE.get(place[-1], ()), (place, value)
    assert refused > 50


# What is stated of the weights of a group, beside what a packing states.
SCHEMES: list[dict[str, Any]] = [
    {}, {"symmetric": False}, {"strategy": "tensor", "group_size": None}, {"strategy": "channel", "group_size": None},
    {"strategy": "group", "group_size": 32}, {"strategy": "group", "group_size": 64},
    {"strategy": "group", "group_size": 16},
    {"num_bits": 8}, {"num_bits": 4}, {"type": "float"}, {"type": "int"}, {"actorder": "weight"}, {"actorder": "group"},
    {"strategy": "block", "block_structure": [32, 32], "group_size": None},
]  # fmt: skip


@pytest.mark.parametrize(
    "case", ["int4", "int4-asymmetric", "int4-channel", "int8-plain", "fp8-channel", "fp8-tensor", "nvfp4"]
)
def test_what_compressed_tensors_decompresses_is_read_so_or_refused(case: str) -> None:
    """The library decompresses one layer with its own scheme; it, too, refuses some contradictions, but not all."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme

    weight = {f"{Q0}.weight": draw_state()[f"{Q0}.weight"][:64]}
    stored, decoded = pack_state(weight, PACKINGS[case], is_projection)
    layer = {name.removeprefix(f"{Q0}."): tensor for name, tensor in stored.items()}
    compressor = BaseCompressor.get_value_from_registry(PACKINGS[case].config["quantization_config"]["format"])
    accepted = 0
    for changes in SCHEMES:
        config = group(case, **changes)
        with suppress(AttnGeoError):
            numbers = read_packed(stored, config)
            scheme = config["quantization_config"]["config_groups"]["group_0"]
            expected = compressor.decompress(dict(layer), QuantizationScheme.model_validate(scheme))["weight"]
            torch.testing.assert_close(numbers, expected.float(), rtol=5e-3, atol=5e-3)  # it may have 16 bits
            torch.testing.assert_close(numbers, decoded[f"{Q0}.weight"])
            accepted += 1
    assert 1 <= accepted < len(SCHEMES)


def test_every_field_of_transformers_and_compressed_tensors_is_in_a_table() -> None:
    import transformers.utils.quantization_config as own
    from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme

    classes = {
        "auto-round": own.AutoRoundConfig, "awq": own.AwqConfig, "bitnet": own.BitNetQuantConfig,
        "bitsandbytes": own.BitsAndBytesConfig, "compressed-tensors": own.CompressedTensorsConfig,
        "fbgemm_fp8": own.FbgemmFp8Config, "fp8": own.FineGrainedFP8Config, "gguf": own.GgufConfig,
        "gptq": own.GPTQConfig, "mxfp4": own.Mxfp4Config, "mxfp8": own.FineGrainedFP8Config,
        "quanto": own.QuantoConfig, "quark": own.QuarkConfig, "torchao": own.TorchAoConfig,
    }  # fmt: skip
    methods = {method.value for method in own.QuantizationMethod}
    assert methods & METHODS.keys() <= classes.keys() | {"hqq"}  # which saves other fields than it has
    pairs = [
        (METHODS[method].fields, set(inspect.signature(made).parameters) - {"kwargs"})
        for method, made in classes.items()
    ]
    pairs += [
        (METHODS["compressed-tensors"].fields, QuantizationConfig.model_fields.keys()),
        (SCHEME, QuantizationScheme.model_fields.keys()), (WEIGHTS, QuantizationArgs.model_fields.keys()),
    ]  # fmt: skip
    for method in ("awq", "gptq"):  # what they save
        pairs.append((METHODS[method].fields, classes[method](bits=4).to_dict().keys()))
    for table, fields in pairs:
        assert not set(fields) - {*table.applied, *table.idle, *table.fixed}
    for table in ALL_FIELDS:
        assert not set(table.applied) & set(table.idle)
        assert not {*table.applied, *table.idle} & table.fixed.keys()


def damage(state: dict[str, Tensor], config: dict[str, Any], draw: random.Random) -> None:
    """Change one tensor of a query or key, or one value of what is stated about the packing."""
    name = draw.choice([name for name in state if ".0.self_attn.q" in name or ".0.self_attn.k" in name])
    tensor = state[name]
    match draw.randrange(6):
        case 0:
            del state[name]
        case 1:
            state[name] = torch.zeros(tensor.shape).to(
                draw.choice([torch.float32, torch.int32, torch.uint8, torch.int8])
            )
        case 2:
            state[name] = tensor[: len(tensor) // 2].clone() if tensor.ndim else tensor[None]
        case 3:
            state[name] = tensor.T.contiguous() if tensor.ndim == 2 else tensor[None]
        case 4:
            raw = tensor.reshape(-1).clone().view(torch.uint8)
            for _ in range(3):
                raw[draw.randrange(len(raw))] = draw.randrange(256)
            state[name] = raw.view(tensor.dtype).view(tensor.shape)
        case _:
            stated = config.get("quantization_config") or config["quantization"]
            key = draw.choice([*stated, "bits", "group_size", "sym", "config_groups", "weight_block_size", "version"])
            stated[key] = draw.choice([None, 0, -1, 3, 2**40, "x", [], {}, [0, 0], 1.5, True, "gptq", "fp8"])


@pytest.mark.slow
@pytest.mark.parametrize("case", PACKINGS)
def test_damaged_checkpoints_end_in_scores_or_in_one_error(case: str, tmp_path: Path) -> None:
    draw = random.Random(random.getrandbits(64))
    first_layer = {name: tensor for name, tensor in draw_state().items() if ".0." in name and "v_proj" not in name}
    whole, _ = pack_state(first_layer, PACKINGS[case], is_projection)
    for number in range(20):
        state, config = dict(whole), copy.deepcopy(CONFIG | {"num_hidden_layers": 1} | dict(PACKINGS[case].config))
        damage(state, config, draw)
        with suppress(AttnGeoError):
            attngeo.score(write_single(tmp_path / str(number), state, config), fresh=True)
