"""AutoRound, torchao, HQQ, BitNet, quanto and Quark: what is not decoded, or contradicts itself, is refused by name."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints.test_quantised import (
    CONFIG,
    Q0,
    SCORES,
    assert_same,
    draw_state,
    is_projection,
    pack_case,
    read_packed,
    settings,
)
from safetensors.torch import save_file
from support.checkpoints import refuses_checkpoint, write_config, write_index, write_single
from support.packing import PACKINGS, autoround, pack_state
from torch import Tensor

import attngeo
from attngeo.checkpoints.opening import open_store
from attngeo.checkpoints.quantised.refused import OTHERS
from attngeo.checkpoints.quantised.store import DecodingStore
from attngeo.errors import AttnGeoError, CorruptCheckpointError, UnsupportedModelError


def quant_type(name: str, **fields: Any) -> dict[str, Any]:
    """What torchao states."""
    return {"default": {"_type": name, "_version": 2, "_data": fields}}


def quark_weight(**changes: Any) -> dict[str, Any]:
    """What Quark states of all layers, with changes of their weights."""
    layer = copy.deepcopy(PACKINGS["quark-tensor"].config["quantization_config"]["global_quant_config"])
    layer["weight"].update(changes)
    return layer


def text(letters: str) -> Tensor:
    """A text as HQQ stores it."""
    return torch.tensor([*letters.encode()], dtype=torch.uint8)


def number(value: int) -> Tensor:
    return torch.tensor(value, dtype=torch.int32)


CORRUPT, UNSUPPORTED = CorruptCheckpointError, UnsupportedModelError
# What is wrong → packing, changes of the stored tensors, configuration, error, facts of its message.
REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], type[AttnGeoError], tuple[str, ...]]] = {
    "an unknown packing of AutoRound": (
        "auto-round-4", {}, settings("auto-round-4", packing_format="auto_round:new"), UNSUPPORTED,
        (Q0, "'auto_round:new'"),
    ),
    "numbers of AutoRound that are no integers": (
        "auto-round-4", {}, settings("auto-round-4", data_type="mx_fp"), UNSUPPORTED, (Q0, "data_type = 'mx_fp'"),
    ),
    "bits that AutoRound does not have": (
        "auto-round-4", {}, settings("auto-round-4", bits=1), UNSUPPORTED, (Q0, "1 bits"),
    ),
    "other bits of AutoRound": ("auto-round-4", {}, settings("auto-round-4", bits=8), CORRUPT, (Q0, "[4, 128]")),
    "another group size of AutoRound": (
        "auto-round-4", {}, settings("auto-round-4", group_size=64), CORRUPT, (Q0, "[4, 128]", "[2, 128]"),
    ),
    "symmetric zeros of the other packing": (
        "auto-round-symmetric", {}, settings("auto-round-symmetric", packing_format="auto_round"), CORRUPT,
        (Q0, "sym = true", "7 to 7", "expected 8"),
    ),
    "zeros that are said to be symmetric": (
        "auto-round-4", {}, settings("auto-round-4", sym=True), CORRUPT, (Q0, "sym = true", "expected 7"),
    ),
    "a zero point that kernels read in two ways": (
        "auto-round-4", {f"{Q0}.qzeros": torch.full((4, 16), -1, dtype=torch.int32)}, settings("auto-round-4"),
        UNSUPPORTED, (Q0, "15", "16"),
    ),
    "AWQ's packing with 8 bits": (
        "auto-round-awq", {}, settings("auto-round-awq", bits=8), UNSUPPORTED, (Q0, "AWQ", "8 bits"),
    ),
    "numbers of AutoRound that are rounded as they run": (
        "auto-round-4", {}, settings("auto-round-4", act_bits=8), UNSUPPORTED, ("act_bits", "8"),
    ),
    "rotations of AutoRound": (
        "auto-round-4", {}, settings("auto-round-4", rotation_config={"hadamard": True}), UNSUPPORTED,
        ("rotation_config",),
    ),
    "a packed layer that AutoRound leaves plain": (
        "auto-round-4", {}, settings("auto-round-4", extra_config={r".*q_proj": {"bits": 16}}), CORRUPT,
        (Q0, "extra_config"),
    ),
    "an entry of AutoRound that is no table": (
        "auto-round-4", {}, settings("auto-round-4", extra_config={Q0: 4}), CORRUPT, (Q0, "extra_config", "table"),
    ),
    "float8 of AutoRound": (
        "fp8-channel", {}, settings("auto-round-4"), UNSUPPORTED, (Q0, "AutoRound", "non-integer"),
    ),
    "no zeros of AutoRound": (
        "auto-round-4", {f"{Q0}.qzeros": None}, settings("auto-round-4"), CORRUPT, (Q0, ".qzeros", "missing"),
    ),
    "no scale of BitNet": (
        "bitnet-divided", {f"{Q0}.weight_scale": None}, settings("bitnet-divided"), CORRUPT,
        (Q0, ".weight_scale", "missing"),
    ),
    "a code of BitNet for no number": (
        "bitnet-divided", {f"{Q0}.weight": torch.full((32, 128), 255, dtype=torch.uint8)}, settings("bitnet-divided"),
        CORRUPT, (Q0, "code is 3"),
    ),
    "a scale of BitNet for each row": (
        "bitnet-divided", {f"{Q0}.weight_scale": torch.ones(128)}, settings("bitnet-divided"), CORRUPT,
        (Q0, "weight_scale", "[128]", "[1]"),
    ),
    "a scale of BitNet that is zero": (
        "bitnet-divided", {f"{Q0}.weight_scale": torch.zeros(1)}, settings("bitnet-divided"), CORRUPT,
        (Q0, "scale", "finite"),
    ),
    "another class of BitNet": (
        "bitnet-divided", {}, settings("bitnet-divided", linear_class="new"), UNSUPPORTED, (Q0, "'new'"),
    ),
    "norms of BitNet inside of a layer": (
        "bitnet-divided", {}, settings("bitnet-divided", use_rms_norm=True), UNSUPPORTED, ("use_rms_norm",),
    ),
    "a scale of weights that are rounded as they run": (
        "bitnet-multiplied", {}, settings("bitnet-multiplied", quantization_mode="online"), CORRUPT, (Q0, "scale"),
    ),
    "plain numbers of BitLinear with a scale": (
        "bitnet-divided", {f"{Q0}.weight": torch.ones(128, 128)}, settings("bitnet-divided"), CORRUPT,
        (Q0, "F32", "U8"),
    ),
    "bits that HQQ does not have": (
        "hqq-4", {f"{Q0}.nbits": number(7)}, settings("hqq-4"), UNSUPPORTED, (Q0, "HQQ", "7 bits"),
    ),
    "another packing of HQQ": (
        "hqq-4", {f"{Q0}.packing": text("2bit_u8")}, settings("hqq-4"), CORRUPT, (Q0, "'2bit_u8'", "'4bit_u8'"),
    ),
    "an axis that a matrix does not have": (
        "hqq-4", {f"{Q0}.axis": number(2)}, settings("hqq-4"), CORRUPT, (Q0, "axis 2"),
    ),
    "the other axis of HQQ": ("hqq-4", {f"{Q0}.axis": number(0)}, settings("hqq-4"), CORRUPT, (Q0, "W_q", "[128, 64]")),
    "another group size of HQQ": (
        "hqq-4", {f"{Q0}.group_size": number(32)}, settings("hqq-4"), CORRUPT, (Q0, "groups of 32"),
    ),
    "a group size of HQQ that divides nothing": (
        "hqq-4", {f"{Q0}.group_size": number(100)}, settings("hqq-4"), CORRUPT, (Q0, "groups of 100"),
    ),
    "another shape of HQQ": (
        "hqq-4", {f"{Q0}.shape": torch.tensor([64, 128])}, settings("hqq-4"), CORRUPT, (Q0, "[128, 64]"),
    ),
    "a shape of HQQ with three sides": (
        "hqq-4", {f"{Q0}.shape": torch.tensor([2, 64, 128])}, settings("hqq-4"), CORRUPT, (Q0, "[2, 64, 128]"),
    ),
    "packed zeros of HQQ": (
        "hqq-4", {f"{Q0}.quant_zero": torch.tensor(1, dtype=torch.uint8)}, settings("hqq-4"), UNSUPPORTED,
        (Q0, "zeros", "packed"),
    ),
    "numbers of HQQ that are said to be words": (
        "hqq-4-as-float", {f"{Q0}.view_as_float": torch.tensor(0, dtype=torch.uint8)}, settings("hqq-4"), CORRUPT,
        (Q0, "F16", "U8"),
    ),
    "two numbers for one of HQQ": (
        "hqq-4", {f"{Q0}.axis": torch.tensor([1, 1])}, settings("hqq-4"), CORRUPT, (Q0, f"{Q0}.axis", "[1, 1]"),
    ),
    "no zeros of HQQ": ("hqq-4", {f"{Q0}.zero": None}, settings("hqq-4"), CORRUPT, (Q0, ".zero", "missing")),
    "a packed layer that HQQ skips": (
        "hqq-4", {}, settings("hqq-4", skip_modules=["self_attn.q_proj"]), CORRUPT, (Q0, "skip_modules"),
    ),
    "codes of 8 bits that are said to have 4": (
        "torchao-int8", {}, settings("torchao-int8", quant_type=quant_type("Int4WeightOnlyConfig")), CORRUPT,
        (Q0, "Int4WeightOnlyConfig", "int8"),
    ),
    "codes of 4 bits that are said to have 8": (
        "torchao-int4", {}, settings("torchao-int4", quant_type=quant_type("IntxWeightOnlyConfig")), CORRUPT,
        (Q0, "IntxWeightOnlyConfig", "int4"),
    ),
    "a configuration of torchao that is unknown": (
        "torchao-int8", {}, settings("torchao-int8", quant_type=quant_type("NewConfig")), UNSUPPORTED,
        (Q0, "'NewConfig'"),
    ),
    "another group size of torchao": (
        "torchao-int4", {}, settings("torchao-int4", quant_type=quant_type("Int4WeightOnlyConfig", group_size=64)),
        CORRUPT, (Q0, "[4, 128]", "[2, 128]"),
    ),
    "scales of torchao that divide nothing": (
        "torchao-int8", {f"{Q0}._weight_scale": torch.ones(5, 1)}, settings("torchao-int8"), CORRUPT,
        (Q0, "[5, 1]", "[128, 128]"),
    ),
    "zeros of torchao for other blocks": (
        "torchao-int8", {f"{Q0}._weight_zero_point": torch.zeros(64, 1, dtype=torch.int8)}, settings("torchao-int8"),
        CORRUPT, (Q0, "[64, 1]", "[128, 1]"),
    ),
    "offsets of torchao that are no numbers": (
        "torchao-int4", {f"{Q0}._weight_zero_point": torch.full((4, 128), torch.inf)}, settings("torchao-int4"),
        CORRUPT, (Q0, "offset", "finite"),
    ),
    "inputs that torchao scales": (
        "torchao-int4", {f"{Q0}._weight_act_pre_scale": torch.ones(128)}, settings("torchao-int4"), UNSUPPORTED,
        (Q0, "inputs", "_weight_act_pre_scale"),
    ),
    "words of a kernel of torchao": (
        "torchao-int4", {f"{Q0}._weight_qdata": torch.zeros(16, 2, 32, 4, dtype=torch.int32)},
        settings("torchao-int4"), UNSUPPORTED, (Q0, "torchao", "kernel"),
    ),
    "MX numbers of torchao": (
        "torchao-fp8", {f"{Q0}._weight_scale": torch.ones(128, 4).to(torch.float8_e8m0fnu)}, settings("torchao-fp8"),
        UNSUPPORTED, (Q0, "torchao", "MX"),
    ),
    "no scales of torchao": (
        "torchao-int8", {f"{Q0}._weight_scale": None}, settings("torchao-int8"), UNSUPPORTED, (Q0, "torchao"),
    ),
    "quanto with 4 bits": (
        "quanto-int8",
        {f"{Q0}.weight._data": None, f"{Q0}.weight._data._data": torch.zeros(64, 128, dtype=torch.uint8),
         f"{Q0}.weight._shift": torch.zeros(128, 1)},
        settings("quanto-int8", weights="int4"), UNSUPPORTED, (Q0, "quanto", "shape"),
    ),
    "other numbers of quanto": (
        "quanto-int8", {}, settings("quanto-int8", weights="float8"), CORRUPT, (Q0, "I8", "F8_E4M3"),
    ),
    "bits of quanto that the file does not have": (
        "quanto-int8", {}, settings("quanto-int8", weights="int4"), CORRUPT, (Q0, "'int4'"),
    ),
    "a scale of quanto for each input": (
        "quanto-int8", {f"{Q0}.weight._scale": torch.ones(1, 128)}, settings("quanto-int8"), CORRUPT,
        (Q0, "[1, 128]", "[128, 1]"),
    ),
    "no scales of quanto": (
        "quanto-int8", {f"{Q0}.weight._scale": None}, settings("quanto-int8"), CORRUPT, (Q0, "_scale", "missing"),
    ),
    "other numbers of Quark": (
        "quark-tensor", {}, settings("quark-tensor", global_quant_config=quark_weight(dtype="fp8_e5m2")), CORRUPT,
        (Q0, "F8_E4M3", "F8_E5M2"),
    ),
    "whole numbers of Quark": (
        "quark-tensor", {f"{Q0}.weight": torch.ones(128, 128, dtype=torch.int8)}, settings("quark-tensor"),
        UNSUPPORTED, (Q0, "Quark", "float8"),
    ),
    "groups of Quark": (
        "quark-tensor", {}, settings("quark-tensor", global_quant_config=quark_weight(qscheme="per_group")),
        UNSUPPORTED, (Q0, "'per_group'"),
    ),
    "a scale of Quark for each input": (
        "quark-channel", {},
        settings("quark-channel", global_quant_config=quark_weight(qscheme="per_channel", ch_axis=1)), UNSUPPORTED,
        (Q0, "ch_axis = 1"),
    ),
    "scales of another scheme of Quark": (
        "quark-channel", {}, settings("quark-tensor"), CORRUPT, (Q0, "[128]", "[1]"),
    ),
    "a rotation of Quark": (
        "quark-tensor", {}, settings("quark-tensor", algo_config=[{"name": "rotation"}]), UNSUPPORTED, ("'rotation'",),
    ),
    "a packed layer that Quark excludes": (
        "quark-tensor", {}, settings("quark-tensor", exclude=["*.q_proj"]), CORRUPT, (Q0, "exclude"),
    ),
    "two quantisations of Quark": (
        "quark-tensor", {}, settings("quark-tensor", global_quant_config={"weight": [{}, {}]}), UNSUPPORTED,
        ("2 successive quantisations",),
    ),
    "an unknown field of Quark's weights": (
        "quark-tensor", {}, settings("quark-tensor", global_quant_config=quark_weight(turn=1)), UNSUPPORTED,
        ("'turn' = 1",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_decoded_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    packing, changes, config, error, facts = REFUSED[case]
    kept = {name: tensor for name, tensor in (pack_case(packing) | changes).items() if tensor is not None}
    folder = write_single(tmp_path, kept, config)
    with refuses_checkpoint(folder, error, facts):
        attngeo.score(folder)


@pytest.mark.parametrize("method", OTHERS)
def test_methods_that_are_not_decoded_are_named(method: str, tmp_path: Path) -> None:
    """Their codes have names of their own, or those of weights and another dtype."""
    other = OTHERS[method]
    stored = draw_state()
    for name, tensor in draw_state().items():
        if is_projection(name, tensor):
            del stored[name]
            stored[name.removesuffix(".weight") + other.codes[0]] = torch.zeros(4, 4, dtype=torch.int16)
    folder = write_single(tmp_path, stored, CONFIG | {"quantization_config": {"quant_method": method}})
    with refuses_checkpoint(folder, UnsupportedModelError, (Q0 + other.codes[0], other.title, method)):
        attngeo.score(folder)


def test_a_plain_model_whose_method_is_not_decoded_is_read(tmp_path: Path) -> None:
    folder = write_single(tmp_path, draw_state(), CONFIG | {"quantization_config": {"quant_method": "aqlm"}})
    assert attngeo.score(folder)[SCORES].notna().all(axis=None)


# The entries of AutoRound's `extra_config` → the bits and the group size of queries of layer 0; None: as for the model.
EXTRA: dict[str, tuple[dict[str, Any], tuple[int, int] | None]] = {
    "a name": ({Q0: {"bits": 8}}, (8, 32)),
    "a name before a pattern": ({r".*q_proj.*": {"bits": 2}, Q0: {"bits": 8, "group_size": 64}}, (8, 64)),
    "the first pattern": ({r"layers\.0\..*q_proj": {"bits": 5}, r".*proj": {"bits": 2}}, (5, 32)),
    "a part of the name": ({"self_attn.q": {"bits": 3, "sym": False, "data_type": "int"}}, (3, 32)),
    "an empty entry": ({r".*q_proj": {}, r".*_proj": {"group_size": 64}}, (4, 64)),
    "another layer": ({Q0.replace("0", "1"): {"bits": 8}, "lm_head": {"bits": 16}}, None),
    "a value that is missing": ({Q0: {"bits": 8, "group_size": None}}, (8, 32)),
}


@pytest.mark.parametrize("case", EXTRA)
def test_layers_of_autoround_may_have_other_settings(case: str) -> None:
    entries, expected = EXTRA[case]
    bits, size = expected or (4, 32)
    weight = {f"{Q0}.weight": draw_state()[f"{Q0}.weight"]}
    packing = autoround(bits, "auto_round:auto_gptq", size=size)
    stored, decoded = pack_state(weight, packing, is_projection)
    config = settings("auto-round-4", extra_config=entries)
    torch.testing.assert_close(read_packed(stored, config), decoded[f"{Q0}.weight"])


@pytest.mark.parametrize(
    ("case", "changes"),
    [
        ("auto-round-4", {"packing_format": None}),  # AutoRound takes GPTQ's then
        ("auto-round-4", {"packing_format": None, "backend": "auto_round:gptq:exllamav2"}),
        ("auto-round-4", {"packing_format": "auto_round:gptq", "quant_method": "intel/auto-round"}),
        ("auto-round-raw-4", {"packing_format": "auto_round:gptqmodel", "backend": "auto_round:gptq"}),
        ("auto-round-raw-4", {"packing_format": None, "backend": "auto_round"}),
        ("auto-round-awq", {"packing_format": None, "backend": "auto_round:awq:gemm"}),
        ("auto-round-awq", {"packing_format": "auto_round:awq"}),
    ],
)
def test_the_packing_of_autoround_decides_what_zero_points_are(case: str, changes: dict[str, Any]) -> None:
    weight = {f"{Q0}.weight": draw_state()[f"{Q0}.weight"]}
    stored, decoded = pack_state(weight, PACKINGS[case], is_projection)
    torch.testing.assert_close(read_packed(stored, settings(case, **changes)), decoded[f"{Q0}.weight"])


def test_a_layer_of_quark_is_that_of_the_first_pattern() -> None:
    """As `get_layer_quant_config` has it."""
    weight = {f"{Q0}.weight": draw_state()[f"{Q0}.weight"]}
    stored, decoded = pack_state(weight, PACKINGS["quark-channel"], is_projection)
    channel = quark_weight(qscheme="per_channel", ch_axis=0)
    for layers in ({"*q_proj": channel, "*": quark_weight()}, {"*.k_proj": quark_weight(), "model.*q_proj": channel}):
        config = settings("quark-tensor", layer_quant_config=layers)
        torch.testing.assert_close(read_packed(stored, config), decoded[f"{Q0}.weight"])
    config = settings("quark-tensor", layer_quant_config={"*": quark_weight(), "*q_proj": channel})
    with pytest.raises(CorruptCheckpointError, match="weight_scale"):
        read_packed(stored, config)


def test_numbers_of_autobitlinear_are_multiplied_by_their_scale() -> None:
    """Its layer may hold numbers of 16 or 32 bits instead of codes."""
    numbers = torch.randn(128, 128, generator=torch.Generator().manual_seed(5)).bfloat16()
    stored = {f"{Q0}.weight": numbers, f"{Q0}.weight_scale": torch.tensor([0.25])}
    torch.testing.assert_close(read_packed(stored, settings("bitnet-multiplied")), numbers.float() * 0.25)


@pytest.mark.parametrize("case", ["quanto-int8", "quanto-fp8"])
def test_folders_that_quanto_itself_writes_state_no_method(case: str, tmp_path: Path) -> None:
    """Their config.json has no quantization_config; the names of tensors tell, in one file and in several."""
    stored, decoded = pack_state(draw_state(), PACKINGS[case], is_projection)
    expected = attngeo.score(write_single(tmp_path / "plain", decoded, CONFIG))
    single = write_single(tmp_path / "single", stored, CONFIG)
    shards = write_config(tmp_path / "shards", CONFIG)
    files = {name: f"model-0000{1 + ('scale' in name)}-of-00002.safetensors" for name in stored}
    for file in set(files.values()):
        save_file({name: tensor for name, tensor in stored.items() if files[name] == file}, shards / file)
    write_index(shards, files)
    for folder in (single, shards):
        scores = attngeo.score(folder)
        assert_same(scores, expected)
        assert set(scores["format"]) == {PACKINGS[case].format}


def test_few_bits_of_folders_that_quanto_itself_writes_are_refused_by_name(tmp_path: Path) -> None:
    stored = {name: tensor for name, tensor in draw_state().items() if not is_projection(name, tensor)}
    for name in draw_state().keys() - stored.keys():
        stored[f"{name}._data._data"] = torch.zeros(32, 128, dtype=torch.uint8)
        stored[f"{name}._scale"] = stored[f"{name}._shift"] = torch.ones(64, 1)
    folder = write_single(tmp_path, {name: tensor.clone() for name, tensor in stored.items()}, CONFIG)
    with refuses_checkpoint(folder, UnsupportedModelError, (Q0, "quanto", "4 or 2 bits")):
        attngeo.score(folder)


@pytest.mark.parametrize("case", ["torchao-fp8", "torchao-fp8-tensor", "torchao-int4", "torchao-intx"])
def test_the_first_names_of_torchao_have_a_colon(case: str, tmp_path: Path) -> None:
    """As version 0.14 flattens tensors: `weight:qdata` of a subclass, and `weight:_data` of plain numbers."""
    stored, decoded = pack_state(draw_state(), PACKINGS[case], is_projection)
    renamed = {}
    for name, tensor in stored.items():
        is_part = "._weight_" in name
        renamed[name.replace("._weight_", ".weight:") if is_part else f"{name}:_data"] = tensor
    packed = write_single(tmp_path / "packed", renamed, CONFIG | dict(PACKINGS[case].config))
    plain = write_single(tmp_path / "plain", decoded, CONFIG)
    for options in ({}, {"fold_norm": True}):
        scores = attngeo.score(packed, **options)
        expected = attngeo.score(plain, **options)
        assert_same(scores, expected)
        assert set(scores["format"]) == {PACKINGS[case].format}
        assert scores["parameters"].tolist() == expected["parameters"].tolist()


ONLINE = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"}


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is:DeprecationWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_that_bitnet_rounds_when_it_runs_are_read_as_it_rounds_them(dtype: torch.dtype, tmp_path: Path) -> None:
    from transformers.integrations.bitnet import WeightQuant

    state = {name: tensor.to(dtype) for name, tensor in draw_state().items()}
    rounded = dict(state)
    round_weight = inspect.unwrap(WeightQuant.forward)  # without compilation
    for name, tensor in state.items():
        if is_projection(name, tensor):
            rounded[name] = round_weight(None, tensor)
    folder = write_single(tmp_path / "online", state, CONFIG | {"quantization_config": ONLINE})
    plain = write_single(tmp_path / "plain", rounded, CONFIG)
    scores = attngeo.score(folder)
    expected = attngeo.score(plain)
    assert_same(scores, expected)
    assert set(scores["format"]) == {"bitnet"}
    assert scores["parameters"].tolist() == expected["parameters"].tolist()
    with closing(open_store(folder)) as store, closing(open_store(plain)) as other:
        for name in state:
            store.open([name])
            assert torch.equal(store.read(name).float(), other.read(name).float())
        assert torch.equal(store.read(f"{Q0}.weight", slice(3, 9)), store.read(f"{Q0}.weight")[3:9])
        assert not store.list_notes([f"{Q0}.weight"])


@pytest.mark.parametrize(
    "skipped",
    [
        [],
        ["model.layers.1", "k_proj"],
        ["layers.1"],
        [r"model\.layers\.[0-9]"],
        ["model.layers.1.self_attn.q"],
        [".*q|v"],
    ],
)
def test_layers_that_bitnet_does_not_round_are_read_as_they_are(skipped: list[str], tmp_path: Path) -> None:
    """As transformers finds them: by their beginning up to a point, or by their end."""
    from transformers.quantizers.quantizers_utils import should_convert_module

    stated = ONLINE | {"modules_to_not_convert": skipped}
    folder = write_single(tmp_path, draw_state(), CONFIG | {"quantization_config": stated})
    with closing(open_store(folder)) as store:
        names = [name for name in draw_state() if is_projection(name, draw_state()[name])]
        store.open(names)
        for name in names:
            is_rounded = should_convert_module(name.removesuffix(".weight"), skipped)
            assert torch.equal(store.read(name), draw_state()[name]) != is_rounded


def test_a_pattern_of_layers_that_is_none_is_refused(tmp_path: Path) -> None:
    stated = ONLINE | {"modules_to_not_convert": ["("]}
    folder = write_single(tmp_path, draw_state(), CONFIG | {"quantization_config": stated})
    with refuses_checkpoint(folder, UnsupportedModelError, ("'('", "not a Python regular expression")):
        attngeo.score(folder)


def test_weights_that_are_no_numbers_are_not_rounded(tmp_path: Path) -> None:
    state = draw_state() | {f"{Q0}.weight": torch.full((128, 128), torch.nan)}
    folder = write_single(tmp_path, state, CONFIG | {"quantization_config": ONLINE})
    with refuses_checkpoint(folder, CorruptCheckpointError, (Q0, "finite")):
        attngeo.score(folder)


@pytest.mark.parametrize(
    ("case", "rows", "share"),
    [
        ("bitnet-divided", slice(0, 32), 4), ("hqq-4", slice(0, 64), 2), ("hqq-2", slice(32, 64), 4),
        ("hqq-4-columns", slice(0, 64), 2), ("torchao-fp8", slice(0, 32), 1), ("quanto-int8", slice(0, 32), 1),
    ],
)  # fmt: skip
def test_of_some_rows_only_the_words_that_hold_them_are_read(
    case: str, rows: slice, share: int, stores: Callable[[str], DecodingStore]
) -> None:
    """share: how many blocks of rows are packed together, so that their words hold other rows, too."""
    store = stores(case)
    name = f"{Q0}.weight"
    whole = store.count_nbytes({name: slice(None)})
    part = store.count_nbytes({name: rows})
    count = len(range(128)[rows])
    assert part <= whole * count * share / 128 + 1024  # scales of columns are read whole


@pytest.fixture
def stores(tmp_path: Path) -> Callable[[str], DecodingStore]:
    def open_case(case: str) -> DecodingStore:
        folder = write_single(tmp_path / case, pack_case(case), CONFIG | dict(PACKINGS[case].config))
        store = open_store(folder)
        assert isinstance(store, DecodingStore)
        store.open([f"{Q0}.weight"])
        return store

    return open_case
