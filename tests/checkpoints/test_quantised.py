"""Weights in packed form are scored as the numbers that they stand for, and never as their codes."""

from __future__ import annotations

import copy
import io
import json
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import Command
from safetensors.torch import save_file
from support.checkpoints import assert_refused, write_config, write_index, write_single
from support.packing import PACKINGS, Packing, bitsandbytes, compressed, fp8, pack_state
from torch import Tensor

import attngeo
from attngeo.checkpoints.opening import open_store
from attngeo.errors import AttnGeoError, CorruptCheckpointError, UnsupportedModelError
from attngeo.scores.weights import survey

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


def write_packed(folder: Path, packing: Packing, **changes: Any) -> tuple[Path, Path]:
    """A packed checkpoint, and one of the decoded weights. changes: of what is stored; None removes a tensor."""
    stored, decoded = pack_state(draw_state(), packing, is_projection)
    kept = {name: tensor for name, tensor in (stored | changes).items() if tensor is not None}
    return write_single(folder / "packed", kept, CONFIG | packing.config), write_single(
        folder / "plain", decoded, CONFIG
    )


def read_scores(inside: Command, folder: Path, *options: str) -> pd.DataFrame:
    run = inside("score", folder, "--format", "csv", *options)
    assert run.returncode == 0, run.stderr
    return pd.read_csv(io.StringIO(run.stdout))


def assert_same(packed: pd.DataFrame, plain: pd.DataFrame) -> None:
    assert len(packed) == len(plain) > 0
    np.testing.assert_allclose(packed[SCORES[:2]], plain[SCORES[:2]], rtol=0, atol=1e-6)
    np.testing.assert_allclose(packed[SCORES[2]], plain[SCORES[2]], rtol=1e-6)


@pytest.mark.parametrize("case", PACKINGS)
def test_scores_are_those_of_the_decoded_weights(case: str, tmp_path: Path, inside: Command) -> None:
    packed, plain = write_packed(tmp_path, PACKINGS[case])
    scores, expected = read_scores(inside, packed), read_scores(inside, plain)
    assert_same(scores, expected)
    if "padded" not in case:  # there, words have unused bits
        assert scores["parameters"].tolist() == expected["parameters"].tolist()
    assert set(scores["format"]) == {PACKINGS[case].format}
    assert set(expected["format"]) == {"F32"}
    (site, _) = json.loads(inside("inspect", packed, "--format", "json").stdout)["sites"]
    assert {tensor["dtype"] for tensor in site["tensors"].values()} == {PACKINGS[case].format}
    assert [tensor["shape"] for tensor in site["tensors"].values()] == [[128, 128], [64, 128]]


@pytest.mark.parametrize("case", PACKINGS)
def test_rows_are_those_of_the_whole_weight(case: str, tmp_path: Path) -> None:
    store = open_store(str(write_packed(tmp_path, PACKINGS[case])[0]))
    whole = store.read(f"{Q0}.weight")
    for rows in (slice(0, 1), slice(7, 50), slice(96, None)):
        assert torch.equal(store.read(f"{Q0}.weight", rows), whole[rows])
        assert store.fetched({f"{Q0}.weight": rows}) <= store.fetched({f"{Q0}.weight": slice(None)})


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt_neox", "deepseek_v3"])
@pytest.mark.parametrize("case", ["fp8-block", "nf4-double", "int4"])
def test_families_are_read_as_without_quantisation(
    name: str, case: str, built: Callable[[str], Any], tmp_path: Path, inside: Command
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
    for options in ([], ["--with-bias", "--fold-norm"]):
        assert_same(read_scores(inside, packed, *options), read_scores(inside, plain, *options))


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


def test_only_what_queries_and_keys_need_is_fetched(tmp_path: Path) -> None:
    """Four bits a weight and a scale of 16 bits for 32 of them, of queries and keys alone."""
    packed, _ = write_packed(tmp_path, PACKINGS["int4"])
    weights = 2 * (128 + 64) * 128
    assert survey(str(packed))["bytes_to_read"] == weights // 2 + weights // 32 * 2 + 4 * 16  # and stated shapes


def test_a_model_with_plain_attention_is_read_although_the_rest_is_packed(tmp_path: Path) -> None:
    folder = write_single(tmp_path, draw_state(), CONFIG | {"quantization_config": {"quant_method": "mxfp4"}})
    assert len(attngeo.score(folder)) == 2


def settings(case: str, **changes: Any) -> dict[str, Any]:
    stated = PACKINGS[case].config["quantization_config"]
    return CONFIG | {"quantization_config": stated | changes}


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
        CorruptCheckpointError, (Q0, "g_idx", "desc_act"),
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
        CorruptCheckpointError, (Q0, "quant_state", "no description"),
    ),
    "blocks of no numbers": (
        "nf4", {
            f"{Q0}.weight.quant_state.bitsandbytes__nf4":
            torch.tensor([*b'{"blocksize": 0, "shape": [128, 128]}'], dtype=torch.uint8),
        }, settings("nf4"), CorruptCheckpointError, (Q0, "no description"),
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
        "gptq-4", {}, settings("gptq-4", quant_method="hqq"), UnsupportedModelError, (f"{Q0}.qweight", "hqq", "gptq"),
    ),
    "a method that has no name": (
        "gptq-4", {}, CONFIG | {"quantization_config": []}, UnsupportedModelError, (f"{Q0}.qweight", "quantised"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_codes_are_never_taken_for_weights(case: str, tmp_path: Path, inside: Command) -> None:
    packing, changes, config, error, facts = REFUSED[case]
    folder, _ = write_packed(tmp_path, PACKINGS[packing], **changes)
    write_config(folder, config)
    assert_refused(inside("score", folder), folder, error, facts)


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
    whole, _ = pack_state(draw_state(), PACKINGS[case], is_projection)
    for number in range(20):
        state, config = dict(whole), copy.deepcopy(CONFIG | dict(PACKINGS[case].config))
        damage(state, config, draw)
        with suppress(AttnGeoError):
            attngeo.score(write_single(tmp_path / str(number), state, config), fresh=True)
