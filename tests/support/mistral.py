"""A checkpoint with the attention of Mistral-7B, in its full width.

https://huggingface.co/mistralai/Mistral-7B-v0.1/blob/main/config.json
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from support.checkpoints import write_config

D, H, K, DH = 4096, 32, 8, 128


def write_mistral(folder: Path, layers: int, *, width: int = D, outputs: bool = False) -> Path:
    """A folder with random weights in bfloat16 in one file; the tensors that are not read are left out.

    width: d_model, with width / head_dim heads. outputs: whether values and output projections are there, too.
    """
    config = {
        "model_type": "mistral", "hidden_size": width, "num_attention_heads": width // DH, "num_key_value_heads": K,
        "head_dim": DH,
    }  # fmt: skip
    generator, tensors = torch.Generator().manual_seed(0), {}
    for layer in range(layers):
        rows_of = {"q": width, "k": K * DH} | ({"v": K * DH, "o": width} if outputs else {})
        for name, rows in rows_of.items():
            weight = torch.randn(rows, width, generator=generator) / 64
            tensors[f"model.layers.{layer}.self_attn.{name}_proj.weight"] = weight.bfloat16()
    save_file(tensors, write_config(folder, config) / "model.safetensors")
    return folder
