"""A tiny model, and what is made of it: copies that compute the same in other coordinates, and descendants."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from support.checkpoints import write_single

Tensors = dict[str, Tensor]


# How the names of queries and keys end, in a LLaMA and, fused with values, in a GPT-2, which stores them transposed.
READING = ("q_proj.weight", "k_proj.weight", "c_attn.weight")
NORMS = {"q_proj": "input_layernorm", "k_proj": "input_layernorm", "c_attn": "ln_1"}


def change_queries_and_keys(tensors: Tensors, change: Callable[[Tensor], Tensor]) -> Tensors:
    """The tensors with another weight in place of that of each query and key projection."""
    return {name: change(tensor) if name.endswith(READING) else tensor for name, tensor in tensors.items()}


def add_noise(tensors: Tensors, share: float, seed: int) -> Tensors:
    """Queries and keys with noise of this share of their standard deviation."""
    generator = torch.Generator().manual_seed(seed)
    return change_queries_and_keys(tensors, lambda w: w + share * w.std() * torch.randn(w.shape, generator=generator))


def prune(tensors: Tensors, share: float) -> Tensors:
    """Queries and keys without this share of their entries, the smallest ones."""
    return change_queries_and_keys(tensors, lambda w: w.where(w.abs() > w.abs().flatten().quantile(share), 0))


def round_to(tensors: Tensors, bits: int) -> Tensors:
    """Queries and keys as integers of so many bits with a scale for each row would give them."""
    largest = 2 ** (bits - 1) - 1

    def round_rows(w: Tensor) -> Tensor:
        scale = w.abs().amax(1, keepdim=True) / largest
        return (w / scale).round() * scale

    return change_queries_and_keys(tensors, round_rows)


def reorder_heads(tensors: Tensors, heads: int, key_heads: int, seed: int) -> Tensors:
    """The heads in another order with their keys, turned inside rotary pairs (halves of a head) and rescaled."""
    generator = torch.Generator().manual_seed(seed)
    changed = dict(tensors)
    for name in [name for name in tensors if name.endswith("q_proj.weight")]:
        group = heads // key_heads
        keys = torch.randperm(key_heads, generator=generator)
        order = (keys[:, None] * group + torch.randperm(group, generator=generator)).flatten()
        key_name = name.replace("q_proj", "k_proj")
        width = tensors[name].shape[1]
        q = tensors[name].reshape(heads, 2, -1, width)[order]
        k = tensors[key_name].reshape(key_heads, 2, -1, width)[keys]
        angles = torch.rand(q.shape[2], 1, generator=generator)
        turned = [
            torch.stack(
                [x[:, 0] * angles.cos() - x[:, 1] * angles.sin(), x[:, 1] * angles.cos() + x[:, 0] * angles.sin()], 1
            )
            for x in (3 * q, k / 2)
        ]
        changed[name] = turned[0].reshape(-1, width)
        changed[key_name] = turned[1].reshape(-1, width)
    return changed


def turn_stream(tensors: Tensors, matrix: Tensor) -> Tensors:
    """Queries, keys and embeddings in other coordinates of the stream, with gains folded: inputs times a matrix.

    matrix: orthogonal. Other weights stay, as nothing reads them.
    """
    turned = dict(tensors)
    for name, tensor in tensors.items():
        if name.endswith(READING):
            module, projection, _ = name.rsplit(".", 2)
            gain_name = f"{module.rpartition('.')[0]}.{NORMS[projection]}.weight"
            gain = tensors.get(gain_name, torch.ones(len(matrix)))
            is_transposed = projection == "c_attn"
            turned[name] = matrix.T @ (tensor * gain[:, None]) if is_transposed else (tensor * gain) @ matrix
            if gain_name in tensors:
                turned[gain_name] = torch.ones_like(gain)
        elif name.endswith(("embed_tokens.weight", "wte.weight", "wpe.weight", "lm_head.weight")):
            turned[name] = tensor @ matrix
    return turned


def permutation(width: int, seed: int) -> Tensor:
    """A random matrix of a permutation."""
    return torch.eye(width)[torch.randperm(width, generator=torch.Generator().manual_seed(seed))]


def rotation(width: int, seed: int) -> Tensor:
    """A random orthogonal matrix."""
    drawn = torch.randn(width, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.linalg.qr(drawn).Q.float()


def read_model(folder: Path) -> tuple[Tensors, Mapping[str, Any]]:
    """The tensors and the configuration of a folder with one file of weights."""
    return load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())


def write_model(folder: Path, tensors: Tensors, config: Mapping[str, Any]) -> Path:
    """A folder with these tensors."""
    return write_single(folder, {name: tensor.contiguous() for name, tensor in tensors.items()}, config)
