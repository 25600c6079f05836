"""Files and folders that are whole, and of another format than their names say: what they are, and what helps."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pandas as pd
import pytest
import torch
from conftest import Command
from safetensors.torch import save, save_file
from support.checkpoints import CONFIG, assert_refused, refuses_checkpoint, weights, write_config, write_single
from support.gguf_files import KEYS, NAMES, draw_state, rename, write_tensors
from torch import Tensor

import attngeo
from attngeo.attention.finding import sites_of
from attngeo.checkpoints.first_bytes import LOOKED_AT, MARKS, OTHER_ANSWERS, recognise
from attngeo.checkpoints.opening import open_store
from attngeo.errors import AttnGeoError, CorruptCheckpointError, UnsupportedModelError

# The names that files have, and what messages call the formats that these say.
EXPECTED = {
    "model.safetensors": "a safetensors file", "pytorch_model.bin": "a PyTorch file", "model.gguf": "a GGUF file",
}  # fmt: skip


def save_torch(**options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(weights(), file, **options)
    return file.getvalue()


def save_numpy() -> bytes:
    file = io.BytesIO()
    np.savez(file, first=np.ones(3))
    return file.getvalue()


def save_tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("model_config.yaml"))
    return file.getvalue()


# The content of a file → what writes it, the error, and the facts that its message must state.
Content = tuple[Callable[[], bytes], type[AttnGeoError], tuple[str, ...]]
CONTENTS: dict[str, Content] = {
    "PyTorch": (save_torch, UnsupportedModelError, ("a PyTorch file", "rename", ".bin")),
    "PyTorch before 1.6": (
        lambda: save_torch(_use_new_zipfile_serialization=False), UnsupportedModelError, ("a PyTorch file", ".bin")
    ),
    "safetensors": (lambda: save(weights()), UnsupportedModelError, ("a safetensors file", ".safetensors")),
    "NumPy": (save_numpy, UnsupportedModelError, ("NumPy",)),
    "GGUF": (lambda: b"GGUF" + bytes(400), UnsupportedModelError, ("a GGUF file", ".gguf")),
    "GGJT": (lambda: b"tjgg\x03" + bytes(400), UnsupportedModelError, ("GGML", "whisper.cpp")),
    "ONNX": (
        lambda: b"\x08\x07\x12\x07pytorch\x1a\x052.1.0:\xf8\x01" + bytes(300), UnsupportedModelError,
        ("ONNX", "checkpoint that it was made from"),
    ),
    "CTranslate2": (
        lambda: b"\x06\0\0\0\x10\0TransformerSpec\0" + bytes(300), UnsupportedModelError, ("CTranslate2",)
    ),
    "HDF5": (lambda: b"\x89HDF\r\n\x1a\n" + bytes(300), UnsupportedModelError, ("HDF5",)),
    "gzip": (lambda: gzip.compress(save(weights())), UnsupportedModelError, ("gzip", "unpack")),
    "tar": (save_tar, UnsupportedModelError, ("tar", "unpack")),
    "HTML": (
        lambda: b"<!DOCTYPE html>\n<html><head><meta charset='utf-8'/><title>Log in</title></head></html>" * 9,
        CorruptCheckpointError, ("HTML", "/resolve/"),
    ),
    "XML": (
        lambda: b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>' * 9, CorruptCheckpointError, ("XML",)
    ),
    "JSON": (lambda: b'{"error": "Repository not found"}' * 9, CorruptCheckpointError, ("JSON",)),
}  # fmt: skip


@pytest.mark.parametrize("case", CONTENTS)
def test_a_file_of_another_format_is_named(case: str, tmp_path: Path) -> None:
    """And nobody is told to download it again, unless it is no file of weights."""
    write, error, facts = CONTENTS[case]
    content = write()
    for name, expected in EXPECTED.items():
        if expected in facts:
            continue
        path = write_config(tmp_path / name) / name
        path.write_bytes(content)
        with refuses_checkpoint(path, error, (*facts, "first bytes", f"expected {expected}")) as caught:
            attngeo.score(path)
        assert ("download it again" in str(caught.value)) == (error is CorruptCheckpointError)


@pytest.mark.parametrize("name", EXPECTED)
def test_damaged_files_are_not_taken_for_others(name: str, tmp_path: Path) -> None:
    content = {"model.safetensors": save(weights())[:300], "pytorch_model.bin": save_torch()[:-100]}.get(name)
    for damaged in (content or bytes(4000), bytes(4000)):
        path = write_config(tmp_path) / name
        path.write_bytes(damaged)
        with refuses_checkpoint(path, CorruptCheckpointError, ("again",)) as caught:
            attngeo.score(path)
        assert "first bytes" not in str(caught.value)


def test_marks_are_in_the_bytes_that_are_looked_at() -> None:
    for case, (write, _, facts) in CONTENTS.items():
        mark = recognise(write()[:LOOKED_AT])
        assert mark is not None, case
        assert mark in (*MARKS, *OTHER_ANSWERS)
        assert facts[0] in mark.kind
    for length in (ord("{"), ord("["), ord("<")):  # the first byte of a header of safetensors is any
        assert getattr(recognise(length.to_bytes(8, "little") + b'{"a": {'), "kind", "") == "a safetensors file"


def test_an_unknown_suffix(tmp_path: Path, inside: Command) -> None:
    path = write_config(tmp_path) / "model.nemo"
    path.write_bytes(save_tar())
    with refuses_checkpoint(path, UnsupportedModelError, ("tar", "unpack", "suffix")):
        attngeo.score(path)
    assert_refused(inside("score", path), path, UnsupportedModelError, ("tar", "unpack"))


@pytest.mark.parametrize("suffix", [".ckpt", ".th"])
def test_further_suffixes_of_pytorch(suffix: str, tmp_path: Path) -> None:
    path = write_config(tmp_path / "torch") / f"model{suffix}"
    path.write_bytes(save_torch())
    single = write_single(tmp_path / "single")
    columns = ["symmetry", "directionality"]
    assert attngeo.score(path)[columns].equals(attngeo.score(single)[columns])
    path.write_bytes(save(weights()))
    with refuses_checkpoint(path, UnsupportedModelError, ("a safetensors file", "expected a PyTorch file")):
        attngeo.score(path)


# GGUF

# What is unusual about a GGUF file → how the header is changed, and facts of the message.
HEADERS: dict[str, tuple[Callable[[bytes], bytes], tuple[str, ...]]] = {
    "version 1": (lambda raw: raw[:4] + b"\x01\0\0\0" + raw[8:], ("version 1", "checkpoint that it was made from")),
    "version 4": (lambda raw: raw[:4] + b"\x04\0\0\0" + raw[8:], ("version 4", "update attngeo")),
}  # fmt: skip


@pytest.mark.parametrize("case", HEADERS)
def test_other_versions_of_gguf(case: str, tmp_path: Path) -> None:
    change, facts = HEADERS[case]
    path = tmp_path / "model.gguf"
    write_tensors(path, "llama", KEYS, rename(draw_state(), NAMES))
    path.write_bytes(change(path.read_bytes()))
    with refuses_checkpoint(path, UnsupportedModelError, facts):
        attngeo.score(path)


def test_a_big_endian_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_tensors(path, "llama", KEYS, rename(draw_state(), NAMES), endianess=gguf.GGUFEndian.BIG)
    with refuses_checkpoint(path, UnsupportedModelError, ("big-endian", "version 3", "gguf-convert-endian")):
        attngeo.score(path)


@pytest.mark.parametrize(
    ("kind", "fact"), [("adapter", "llama-export-lora"), ("imatrix", "no weights"), ("vocab", "vocabulary")]
)
def test_gguf_files_that_hold_no_model(kind: str, fact: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type(kind)
    writer.add_tensor("blk.0.attn_q.weight.lora_a", np.ones((2, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with refuses_checkpoint(path, UnsupportedModelError, (kind, fact)):
        attngeo.score(path)


# Adapters

Q0 = "model.layers.0.self_attn.q_proj"
# Whose form a file of an adapter has → names of its two factors, and the fact of the message.
ADAPTERS: dict[str, tuple[tuple[str, str], str]] = {
    "kohya": (
        ("lora_te_text_model_encoder_layers_0_self_attn_q_proj.lora_down.weight",
         "lora_te_text_model_encoder_layers_0_self_attn_q_proj.lora_up.weight"), "kohya",
    ),
    "diffusers": (
        ("unet.mid_block.attn1.to_q.lora.down.weight", "unet.mid_block.attn1.to_q.lora.up.weight"), "diffusers"
    ),
    "LyCORIS": (("lora_te_0_self_attn_q_proj.hada_w1_a", "lora_te_0_self_attn_q_proj.hada_w1_b"), "LyCORIS"),
    "MLX": ((f"{Q0}.lora_a", f"{Q0}.lora_b"), "MLX"),
    "PEFT": ((f"base_model.model.{Q0}.lora_A.weight", f"base_model.model.{Q0}.lora_B.weight"), "adapter_config.json"),
}  # fmt: skip


@pytest.mark.parametrize("case", ADAPTERS)
def test_a_file_of_an_adapter_is_named(case: str, tmp_path: Path) -> None:
    """Without a config.json, and with that of a model."""
    names, fact = ADAPTERS[case]
    path = tmp_path / "adapters.safetensors"
    save_file({names[0]: torch.ones(2, 24), names[1]: torch.ones(24, 2)}, path)
    with refuses_checkpoint(path, UnsupportedModelError, ("adapter", fact, "expected a model")):
        attngeo.score(path)
    config = write_config(tmp_path / "base")
    with refuses_checkpoint(path, UnsupportedModelError, ("adapter", fact, "expected a model")):
        attngeo.score(path, config=config)


def test_the_weights_of_an_adapter_of_peft_without_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "adapter_model.safetensors"
    save_file({f"base_model.model.{Q0}.lora_A.weight": torch.ones(2, 24)}, path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with refuses_checkpoint(path, UnsupportedModelError, ("adapter_config.json", f"{tmp_path}")) as caught:
        attngeo.score(path)
    assert "download" not in str(caught.value)


# Forms of weights

Form = tuple[Mapping[str, torch.dtype], tuple[str, ...]]
INT, HALF = torch.int32, torch.float16
# How a program packs a projection, whose method config.json does not state → ends of names, and facts of the message.
FORMS: dict[str, Form] = {
    "GPTQ": ({"qweight": INT, "qzeros": INT, "scales": HALF, "g_idx": INT}, ("GPTQ", "quantize_config.json")),
    "AWQ": ({"qweight": INT, "qzeros": INT, "scales": HALF}, ("AWQ", "quant_config.json", "quant_method")),
    "compressed-tensors": (
        {"weight_packed": INT, "weight_scale": HALF, "weight_shape": INT},
        ("compressed-tensors", "quantization_config"),
    ),
    "torchao": ({"_weight_qdata": torch.int8, "_weight_scale": HALF}, ("torchao", "without quantisation")),
    "exl2": ({"q_weight": INT, "q_scale": INT, "q_groups": torch.int16}, ("ExLlamaV2",)),
    "exl3": ({"trellis": torch.int16, "suh": HALF, "svh": HALF}, ("ExLlamaV3", "without quantisation")),
    "Marlin": ({"B": INT, "s": HALF, "workspace": INT}, ("Marlin", "without quantisation")),
    "weight_norm": ({"weight_g": HALF, "weight_v": HALF}, ("weight_norm", "remove_weight_norm")),
    "parametrizations": (
        {"parametrizations.weight.original0": HALF, "parametrizations.weight.original1": HALF},
        ("weight_norm", "remove_parametrizations"),
    ),
    "spectral_norm": ({"weight_orig": HALF, "weight_u": HALF, "weight_v": HALF}, ("spectral_norm",)),
    "an adapter beside its base": ({"base_layer.weight": HALF, "lora_A.default.weight": HALF}, ("merge_and_unload",)),
}


def pack(form: Form) -> dict[str, torch.Tensor]:
    """The queries and keys of two layers in a form."""
    ends, _ = form
    return {
        f"model.layers.{layer}.self_attn.{letter}_proj.{end}": torch.ones(4, 4, dtype=dtype)
        for layer in (0, 1)
        for letter in "qk"
        for end, dtype in ends.items()
    }


@pytest.mark.parametrize("case", FORMS)
def test_weights_in_another_form_are_named(case: str, tmp_path: Path) -> None:
    write_single(tmp_path, pack(FORMS[case]))
    with refuses_checkpoint(tmp_path, UnsupportedModelError, FORMS[case][1]) as caught:
        attngeo.score(tmp_path)
    assert ".py" not in str(caught.value)


def test_they_are_left_out_of_a_model_with_other_attention(tmp_path: Path) -> None:
    """Not without a word."""
    packed = {f"language_model.{name}": tensor for name, tensor in pack(FORMS["GPTQ"]).items()}
    tower = {name.replace("model.", "vision_tower."): tensor for name, tensor in weights().items()}
    write_single(tmp_path, packed | tower)
    with closing(open_store(tmp_path)) as store:
        _, skipped = sites_of(store)
    assert any("qweight" in name and "GPTQ" in reason for name, reason in skipped.items()), skipped


def test_parameters_of_one_process(tmp_path: Path) -> None:
    """Of stage 3 of ZeRO, which leaves empty tensors, and of FSDP, which flattens."""
    write_single(tmp_path / "zero", {name: torch.ones(0) for name in weights()})
    with refuses_checkpoint(tmp_path / "zero", CorruptCheckpointError, ("[0]", "zero_to_fp32.py")):
        attngeo.score(tmp_path / "zero")
    flat = {f"_fsdp_wrapped_module.model.layers.{i}._fsdp_wrapped_module._flat_param": torch.ones(9) for i in (0, 1)}
    write_single(tmp_path / "flat", flat)
    with refuses_checkpoint(tmp_path / "flat", UnsupportedModelError, ("_flat_param", "FULL_STATE_DICT")):
        attngeo.score(tmp_path / "flat")


# What a folder holds that has a configuration and no model → its files, and facts of the message.
FOLDERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "stage 3 of ZeRO": (
        ("global_step9/zero_pp_rank_0_mp_rank_00_model_states.pt", "zero_to_fp32.py", "training_args.bin"),
        ("DeepSpeed", "zero_to_fp32.py"),
    ),
    "stage 3 of ZeRO in BF16": (
        ("bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "training_args.bin"), ("DeepSpeed", "zero_to_fp32.py")
    ),
    "FSDP": (
        ("pytorch_model_fsdp_rank0.bin", "pytorch_model_fsdp_rank1.bin", "optimizer.bin"), ("FSDP", "FULL_STATE_DICT")
    ),
    "shards of FSDP": (("pytorch_model_fsdp_0/__0_0.distcp",), ("dcp_to_torch",)),
    "OpenVINO": (
        ("openvino_model.bin", "openvino_model.xml", "openvino_tokenizer.bin"), ("OpenVINO", "exported from")
    ),
    "ONNX": (("model.onnx",), ("ONNX", "exported from")),
}  # fmt: skip


@pytest.mark.parametrize("case", FOLDERS)
def test_folders_of_other_programs_are_named(case: str, tmp_path: Path) -> None:
    files, facts = FOLDERS[case]
    write_config(tmp_path, CONFIG)
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(b"0")
    with refuses_checkpoint(tmp_path, UnsupportedModelError, facts):
        attngeo.score(tmp_path)


@pytest.mark.parametrize("name", ["openvino_model.bin", "pytorch_model_fsdp_rank0.bin", "training_args.bin"])
def test_files_that_are_named_as_no_model(name: str, tmp_path: Path) -> None:
    path = write_config(tmp_path) / name
    path.write_bytes(b"0")
    with refuses_checkpoint(path, UnsupportedModelError, ("holds", "again" if "fsdp" in name else "give")):
        attngeo.score(path)


META = {"dim": 24, "n_heads": 4, "n_kv_heads": 2}


def by_meta(draw: torch.Generator, *, vocabulary: int = 10) -> dict[str, Tensor]:
    """A model of two layers under Meta's names: heads of 6, two of keys."""
    shapes = {"tok_embeddings.weight": (vocabulary, 24), "norm.weight": (24,), "output.weight": (vocabulary, 24)}
    shapes["rope.freqs"] = (3,)
    for layer in range(2):
        at = f"layers.{layer}"
        shapes |= {f"{at}.attention.{name}.weight": (rows, 24) for name, rows in (("wq", 24), ("wk", 12), ("wv", 12))}
        shapes |= {f"{at}.attention.wo.weight": (24, 24), f"{at}.feed_forward.w2.weight": (24, 16)}
        shapes |= {f"{at}.feed_forward.{name}.weight": (16, 24) for name in ("w1", "w3")}
        shapes |= {f"{at}.{name}_norm.weight": (24,) for name in ("attention", "ffn")}
    return {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}


def cut(tensors: Mapping[str, Tensor], parts: int, *, tokens_by: int) -> list[dict[str, Tensor]]:
    """The parts that devices have of a model, as layers of fairscale cut it. tokens_by: the axis of the embeddings."""
    cuts: list[dict[str, Tensor]] = [{} for _ in range(parts)]
    for name, tensor in tensors.items():
        axis = 1 if name.endswith(("wo.weight", "w2.weight")) else 0
        if name.startswith("tok_embeddings"):
            axis = tokens_by
        pieces = [tensor] * parts if tensor.ndim == 1 else tensor.chunk(parts, axis)
        for part, piece in zip(cuts, pieces, strict=True):
            part[name] = piece.clone()
    return cuts


def write_parts(folder: Path, parts: Iterable[Mapping[str, Tensor]], params: Mapping[str, int] | None) -> Path:
    write_config(folder)
    for number, part in enumerate(parts):
        torch.save(dict(part), folder / f"consolidated.{number:02d}.pth")
    if params is not None:
        (folder / "params.json").write_text(json.dumps(params))
    return folder


@pytest.mark.parametrize("tokens_by", [0, 1])
@pytest.mark.parametrize("params", [META, None])
def test_parts_of_a_model_by_meta_are_joined(params: Mapping[str, int] | None, tokens_by: int, tmp_path: Path) -> None:
    """As the one file of the same weights, to the last bit."""
    tensors = by_meta(torch.Generator().manual_seed(0))
    whole = write_parts(tmp_path / "whole", [tensors], params)
    folder = write_parts(tmp_path / "parts", cut(tensors, 2, tokens_by=tokens_by), params)
    for path in (folder, folder / "consolidated.00.pth"):
        with closing(open_store(path)) as store:
            assert {*store.names} == {*tensors}
            assert store.parameters == sum(map(torch.numel, tensors.values()))
            for name, tensor in tensors.items():
                assert store.info(name).shape == tuple(tensor.shape)
                assert store.info(name).nbytes == tensor.nbytes
                for rows in (slice(None), slice(1, 2), slice(4, 8), slice(5, 5)):
                    assert torch.equal(store.read(name, rows), tensor[rows]), (name, rows)
    for options in ({"per_head": True}, {"circuit": "ov"}):
        scores = [attngeo.score(path, **options).drop(columns="model") for path in (whole, folder)]
        pd.testing.assert_frame_equal(*scores)
    with refuses_checkpoint(folder, UnsupportedModelError, ("part 2", "consolidated.00.pth")):
        attngeo.score(folder / "consolidated.01.pth")


def test_parts_by_meta_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    tensors = by_meta(torch.Generator().manual_seed(0))
    half, other = cut(tensors, 2, tokens_by=1)
    fourths = cut(tensors, 4, tokens_by=1)
    unknown = [part | {"layers.0.attention.inner_norms": torch.ones(6, 2)} for part in (half, other)]
    fewer = {name: tensor for name, tensor in other.items() if name != "norm.weight"}
    cases: dict[str, tuple[list[dict[str, Tensor]], type[AttnGeoError], tuple[str, ...]]] = {
        "a part is missing": (fourths[:3], CorruptCheckpointError, ("3 parts", "[18, 24]", "[24, 24]", "missing")),
        "of another model": ([half, fewer], CorruptCheckpointError, ("consolidated.01.pth", "'norm.weight'")),
        "of another size": ([half, fourths[0]], CorruptCheckpointError, ("'output.weight'", "(5, 24)", "(3, 24)")),
        "of unknown parts": (unknown, UnsupportedModelError, ("inner_norms", "convert_llama_weights_to_hf.py")),
    }
    for name, (parts, error, facts) in cases.items():
        folder = write_parts(tmp_path / name, parts, META)
        with refuses_checkpoint(folder, error, facts):
            attngeo.score(folder)
    folder = write_parts(tmp_path / "gap", [half, other], META)
    (folder / "consolidated.01.pth").rename(folder / "consolidated.02.pth")
    with refuses_checkpoint(folder, CorruptCheckpointError, ("consolidated.02.pth", "consolidated.01.pth is missing")):
        attngeo.score(folder)


def test_a_folder_of_unusual_names_says_what_it_has(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "other")
    (folder / "model.pth").write_bytes(save_torch())
    with refuses_checkpoint(folder, CorruptCheckpointError, ("model.pth", "give the file itself")):
        attngeo.score(folder)
    assert len(attngeo.score(folder / "model.pth")) == 2
