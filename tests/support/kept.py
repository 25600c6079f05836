"""Checkpoints and folders for tests of scores that are kept."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file

from support.checkpoints import CONFIG, weights, write_config, write_index

LAYERS = 6


def write_layers(folder: Path) -> Path:
    """A checkpoint with a file for each of its layers."""
    write_config(folder, CONFIG | {"num_hidden_layers": LAYERS})
    shards: dict[str, str] = {}
    for layer in range(LAYERS):
        tensors = {name: tensor for name, tensor in weights(LAYERS).items() if f".{layer}." in name}
        save_file(tensors, folder / file_of(layer))
        shards |= dict.fromkeys(tensors, file_of(layer))
    write_index(folder, shards)
    return folder


def file_of(layer: int) -> str:
    """The file of a layer."""
    return f"model-{layer + 1:05}-of-{LAYERS:05}.safetensors"
