"""Mutated GGUF files and quantised checkpoints: what is accepted has the scores of the file as it was made.

Other scores are right only if the running library gives the same numbers for the mutated file: `gguf.GGUFReader` with
its `dequantize`, and what GPTQModel, transformers and bitsandbytes take from a configuration without a check.
"""

from __future__ import annotations

import json
import struct
import tempfile
from functools import cache
from pathlib import Path
from random import Random

import gguf
import numpy as np
import pandas as pd
import torch
from fuzz.checkpoints import score
from fuzz.outcome import Wrong
from safetensors.torch import load_file, save_file
from support.checkpoints import write_single
from support.mutate import mutate_bytes, mutate_json
from support.packing import PACKINGS, pack_state
from torch import Tensor

HEADS, KEY_HEADS, HEAD, WIDTH, LAYERS = 4, 2, 16, 64, 2
SIZES = {
    "embedding_length": WIDTH, "block_count": LAYERS, "attention.head_count": HEADS,
    "attention.head_count_kv": KEY_HEADS, "attention.key_length": HEAD, "rope.dimension_count": HEAD,
}  # fmt: skip
FIELDS = {
    "hidden_size": "embedding_length", "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv", "head_dim": "attention.key_length",
    "num_hidden_layers": "block_count", "rope_theta": "rope.freq_base",
}  # fmt: skip
GGUF = "model.gguf"


@cache
def draw_weights() -> dict[str, Tensor]:
    """The queries and keys of two layers, by their names in GGUF."""
    generator = torch.Generator().manual_seed(5)
    tensors = {"token_embd.weight": torch.randn(8, WIDTH, generator=generator)}
    for layer in range(LAYERS):
        for letter, heads in (("q", HEADS), ("k", KEY_HEADS)):
            weight = torch.randn(heads * HEAD, WIDTH, generator=generator)
            tensors[f"blk.{layer}.attn_{letter}.weight"] = weight
    return tensors


@cache
def save_gguf() -> tuple[bytes, int]:
    """The bytes of a file, and how many of them are its header."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, GGUF)
        writer = gguf.GGUFWriter(path, "llama")
        for key, value in SIZES.items():
            writer.add_uint32(f"llama.{key}", value)
        writer.add_float32("llama.rope.freq_base", 5000.0)
        writer.add_custom_alignment(64)
        writer.add_array("tokenizer.ggml.tokens", ["a", "b c", "é"] * 3)
        writer.add_array("tokenizer.ggml.scores", [0.5] * 9)
        for number, (name, tensor) in enumerate(draw_weights().items()):
            kind = (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.F16)[number % 2]
            writer.add_tensor(name, gguf.quantize(tensor.numpy(), kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        data = path.read_bytes()
    return data, data.index(b"blk.1.attn_k.weight") + 60


def write_gguf(rng: Random, folder: Path) -> None:
    """A file with changed bytes or a changed number of the header, or any changed bytes."""
    data, header = save_gguf()
    kind = rng.random()
    if kind < 0.2:
        data = mutate_bytes(rng, data)
    elif kind < 0.5:
        data = mutate_bytes(rng, data[:header]) + data[header:]
    else:
        places = [match for key in (*SIZES, "rope.freq_base", "alignment", ".weight") for match in find_all(data, key)]
        at = rng.choice(places) + rng.choice((0, 0, 4, 4, 8, 12, 16, 24, 28, 32))
        form = rng.choice(("<B", "<I", "<Q", "<f"))
        value = rng.choice((0, 1, 2, 3, 4, 8, 16, 24, 32, 64, 128, 256, 4096, 4160))
        value = value % 256 if form == "<B" else value
        data = data[:at] + struct.pack(form, value) + data[at + struct.calcsize(form) :]
    (folder / GGUF).write_bytes(data)


def find_all(data: bytes, key: str) -> list[int]:
    """Where a text ends in the header."""
    _, header = save_gguf()
    places = []
    at = data.find(key.encode(), 0, header)
    while at >= 0:
        places.append(at + len(key))
        at = data.find(key.encode(), at + 1, header)
    return places


def check_gguf(folder: Path, scores: pd.DataFrame) -> None:
    if have_same_scores(scores, score_as_made()):
        return
    try:
        expected = score_with_library(folder / GGUF)
    except Exception as error:
        raise Wrong(f"accepted with other scores, and the library refuses it: {error!r:.200}: {scores}") from None
    if not have_same_scores(scores, expected):
        raise Wrong(f"wrong scores: {scores} instead of {expected}")


@cache
def score_as_made() -> pd.DataFrame:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, GGUF)
        path.write_bytes(save_gguf()[0])
        scores = score(path.parent)
        if not have_same_scores(scores, score_with_library(path)):
            raise AssertionError("the file that is not mutated has other scores than the library's numbers")
    return scores


def score_with_library(path: Path) -> pd.DataFrame:
    """The scores of the numbers that the gguf package reads, as a checkpoint of transformers."""
    reader = gguf.GGUFReader(path)
    stated = {
        field: reader.fields[f"llama.{key}"].contents()
        for field, key in FIELDS.items()
        if f"llama.{key}" in reader.fields
    }
    state = {}
    for tensor in reader.tensors:
        numbers = torch.from_numpy(np.array(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32))
        _, layer, name = [*tensor.name.split("."), "", ""][:3]
        # What is not stated has the value that llama.cpp takes.
        heads = stated.get({"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(name, ""))
        if heads is not None:
            pairs = numbers.view(heads, len(numbers) // heads // 2, 2, -1)
            state[f"model.layers.{layer}.self_attn.{name[-1]}_proj.weight"] = pairs.transpose(1, 2).reshape_as(numbers)
    with tempfile.TemporaryDirectory() as place:
        kept = {name: tensor.contiguous() for name, tensor in state.items()}
        return score(write_single(Path(place), kept, {"model_type": "llama", **stated}))


def have_same_scores(scores: pd.DataFrame, expected: pd.DataFrame) -> bool:
    numbers = ["symmetry", "directionality", "frobenius_norm"]
    if list(scores["layer"]) != list(expected["layer"]):
        return False
    return np.allclose(scores[numbers], expected[numbers], rtol=1e-5, atol=1e-5, equal_nan=True)


CONFIG = {
    "model_type": "llama", "hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
    "num_hidden_layers": 1,
}  # fmt: skip
CASE = "case.txt"
# Kind of packing → fields that the file cannot contradict: zero points are less one or not, and ragged blocks are of
# 48 or 47 rows.
FREE = {"gptq": ("checkpoint_format", "format", "sym"), "fp8": ("weight_block_size",)}


@cache
def pack_weights(case: str) -> dict[str, Tensor]:
    """The stored tensors of one layer."""
    generator = torch.Generator().manual_seed(6)
    name = "model.layers.0.self_attn.{}_proj.weight"
    weights = {name.format(x): torch.randn(n, 128, generator=generator) for x, n in (("q", 64), ("k", 32))}
    stored, _ = pack_state(weights, PACKINGS[case], lambda *_: True)
    return stored


def write_packed(rng: Random, folder: Path) -> None:
    """A packed checkpoint with a changed configuration, a changed description of bitsandbytes, or without a tensor."""
    case = rng.choice(sorted(PACKINGS))
    (folder / CASE).write_text(case)
    stored = dict(pack_weights(case))
    name, table = next(iter(PACKINGS[case].config.items()))
    text = json.dumps(table).encode()
    states = [key for key in stored if "quant_state" in key]
    if rng.random() < 0.1:
        del stored[rng.choice(sorted(stored))]
    elif states and rng.random() < 0.6:
        key = rng.choice(states)
        changed = mutate_json(rng, json.loads(bytes(stored[key].tolist())))
        stored[key] = torch.tensor([*changed], dtype=torch.uint8)
    else:
        text = mutate_json(rng, table)
    save_file(stored, folder / "model.safetensors")
    (folder / "config.json").write_bytes(json.dumps(CONFIG).encode()[:-1] + f', "{name}": '.encode() + text + b"}")


def check_packed(folder: Path, scores: pd.DataFrame) -> None:
    case = (folder / CASE).read_text()
    if not have_same_scores(scores, score_packed(case)) and not is_read_so_by_library(folder, case):
        raise Wrong(f"wrong scores of {case}: {scores} instead of {score_packed(case)}")


def is_read_so_by_library(folder: Path, case: str) -> bool:
    """Whether what is changed fits the file, and the library of the method takes it as it is stated."""
    made = dict(PACKINGS[case].config)
    config = json.loads((folder / "config.json").read_bytes())
    for table, fields in made.items():
        free = FREE.get(case.partition("-")[0], ())
        if any(config[table].get(field) != fields.get(field) for field in free):
            return True
    stored = load_file(folder / "model.safetensors")
    for name in stored:
        if "quant_state" in name:
            state, other = (json.loads(bytes(tensors[name].tolist())) for tensors in (stored, pack_weights(case)))
            state = {field: value for field, value in state.items() if field in other}  # the library reads no others
            if state != other and {**state, "nested_offset": 0} == {**other, "nested_offset": 0}:
                return type(state.get("nested_offset")) in (int, float)
    return False


@cache
def score_packed(case: str) -> pd.DataFrame:
    with tempfile.TemporaryDirectory() as place:
        return score(write_single(Path(place), pack_weights(case), CONFIG | dict(PACKINGS[case].config)))
