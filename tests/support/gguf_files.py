"""Small models in GGUF files, and the same as checkpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

WIDTH, HEADS, KEY_HEADS, HEAD = 256, 4, 2, 64
CONFIG = {
    "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS, "head_dim": HEAD,
    "num_hidden_layers": 2, "rope_theta": 5000.0,
}  # fmt: skip
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm",
}  # fmt: skip
KEYS = {
    "embedding_length": WIDTH, "block_count": 2, "attention.head_count": HEADS, "attention.head_count_kv": KEY_HEADS,
    "attention.key_length": HEAD,
}  # fmt: skip
SCORES = ["symmetry", "directionality", "frobenius_norm"]
Q4_0, Q8_0 = gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q8_0
# The types that the package does not write: blocks of any codes, with scales that are small numbers of float16.
DECODED_ONLY = [
    kind for kind in gguf.GGMLQuantizationType
    if kind.name.startswith(("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ")) or kind.name in ("TQ1_0", "TQ2_0")
]  # fmt: skip


def draw_state(*, biases: bool = False, head_norms: bool = False) -> dict[str, Tensor]:
    """The tensors of a small LLaMA, under the names of transformers."""
    generator = torch.Generator().manual_seed(1)
    state = {"model.embed_tokens.weight": torch.randn(20, WIDTH, generator=generator)}
    for layer in (0, 1):
        prefix = f"model.layers.{layer}"
        state[f"{prefix}.input_layernorm.weight"] = torch.rand(WIDTH, generator=generator) + 0.5
        for letter, heads in (("q", HEADS), ("k", KEY_HEADS), ("v", KEY_HEADS)):
            name = f"{prefix}.self_attn.{letter}_proj"
            state[f"{name}.weight"] = torch.randn(heads * HEAD, WIDTH, generator=generator)
            if biases:
                state[f"{name}.bias"] = torch.randn(heads * HEAD, generator=generator)
            if head_norms and letter != "v":
                state[f"{prefix}.self_attn.{letter}_norm.weight"] = torch.rand(HEAD, generator=generator) + 0.5
    return state


def permute(tensor: np.ndarray, heads: int) -> np.ndarray:
    """The rows as llama.cpp's converter orders them for LLaMA: halves of a head become neighbours."""
    rows = [
        head * HEAD + half * HEAD // 2 + place for head in range(heads) for place in range(HEAD // 2) for half in (0, 1)
    ]
    return tensor[rows]


def write_gguf(
    path: Path,
    state: Mapping[str, Tensor],
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    *,
    architecture: str = "llama",
    permuted: bool = True,
    gain_offset: float = 0.0,
    **values: Any,
) -> dict[str, Tensor]:
    """Write a model as llama.cpp does. Returns the numbers that the file holds, under the names of transformers."""
    writer, decoded = gguf.GGUFWriter(path, architecture), dict(state)
    for key, value in KEYS.items():
        writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_float32(f"{architecture}.rope.freq_base", 5000.0)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b c", "é"] * 300)
    writer.add_array("tokenizer.ggml.scores", [0.5] * 900)
    for key, value in values.items():
        writer.add_string(f"{architecture}.{key.replace('__', '.')}", value)
    for name, tensor in state.items():
        stem, _, ending = name.rpartition(".")
        _, _, layer, inner = stem.split(".", 3) if "layers" in stem else ("", "", "", "")
        stored = f"blk.{layer}.{NAMES.get(inner, inner)}.{ending}" if inner else f"token_embd.{ending}"
        numbers = tensor.float().numpy()
        if inner.endswith(("q_proj", "k_proj")) and permuted:
            numbers = permute(numbers, HEADS if inner.endswith("q_proj") else KEY_HEADS)
        if "norm" in name:
            numbers = numbers + np.float32(gain_offset)
        if numbers.ndim == 1 or not inner:
            writer.add_tensor(stored, numbers)
            continue
        packed = draw_blocks(kind, numbers.shape) if kind in DECODED_ONLY else gguf.quantize(numbers, kind)
        plain = np.array(gguf.dequantize(packed, kind))
        writer.add_tensor(stored, packed, raw_dtype=kind)
        if inner.endswith(("q_proj", "k_proj")) and permuted:
            heads = HEADS if inner.endswith("q_proj") else KEY_HEADS
            places = permute(np.arange(len(plain)), heads)
            plain[places] = plain.copy()
        decoded[name] = torch.from_numpy(plain)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return decoded


def draw_blocks(kind: gguf.GGMLQuantizationType, shape: tuple[int, ...]) -> np.ndarray:
    """Rows of blocks with any codes, of which all numbers are finite."""
    numbers, nbytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(int(kind)).integers(0, 256, (shape[0] * shape[1] // numbers * 4, nbytes), np.uint8)
    with np.errstate(all="ignore"):
        numbers_of = gguf.dequantize(blocks, kind)
    kept = blocks[np.isfinite(numbers_of).all(1) & (np.abs(numbers_of).max(1) < 1e6)]
    count = shape[0] * shape[1] // numbers
    return np.resize(kept, (count, nbytes)).reshape(shape[0], -1)


def write_merged(path: Path, whole: Path, count: int) -> None:
    """A file with the values that llama.cpp leaves in one that it has merged. count: of the parts that it states."""
    path.parent.mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint16("split.no", 0)
    writer.add_uint16("split.count", count)
    writer.add_int32("split.tensors.count", len(gguf.GGUFReader(whole).tensors))
    add_model(writer, whole)


def write_splits(folder: Path, **options: Any) -> Path:
    """whole.gguf, and the same in files of four tensors, of which only the first has metadata. Returns the first."""
    folder.mkdir(exist_ok=True)
    write_gguf(folder / "whole.gguf", draw_state())
    writer = gguf.GGUFWriter(folder / "m.gguf", "llama", split_max_tensors=4, **options)
    add_model(writer, folder / "whole.gguf")
    return min(folder.glob("m-00001-of-0000?.gguf"))


def add_model(writer: gguf.GGUFWriter, whole: Path) -> None:
    """Write the values and the tensors of another file, and close the new one."""
    for key, value in KEYS.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.rope.freq_base", 5000.0)
    for tensor in gguf.GGUFReader(whole).tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_tensors(
    path: Path, architecture: str, values: Mapping[str, Any], tensors: Mapping[str, Tensor], **options: Any
) -> None:
    writer = gguf.GGUFWriter(path, architecture, **options)
    for key, value in values.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(f"{architecture}.{key}", value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor.float().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def rename(state: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """Tensors of layers by their names in a file; names: those inside a layer, without the ending."""
    matches = {name: re.fullmatch(r".*?\.(\d+)\.(.+)\.(weight|bias)", name) for name in state}
    return {
        f"blk.{match[1]}.{names[match[2]]}.{match[3]}": state[name]
        for name, match in matches.items()
        if match is not None and match[2] in names
    }
