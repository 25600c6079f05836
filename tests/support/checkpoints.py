"""Small checkpoints written by hand, and the pieces to write broken ones."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import attngeo
from attngeo.errors import AttnGeoError
from support.messages import assert_fails, assert_states, refuses

Refused = pytest.ExceptionInfo[AttnGeoError]
CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
    "num_hidden_layers": 2,
}  # fmt: skip
LAYER = re.compile(r"model\.layers\.(\d+)\.")


def weights(layers: int = 2, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> dict[str, Tensor]:
    """The tensors of a LLaMA with 4 heads and 2 key heads of 6, d_model 24, and an embedding that is never read."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {"model.embed_tokens.weight": torch.randn(50, 24, generator=generator)}
    for layer in range(layers):
        for name, width in (("q", 24), ("k", 12), ("v", 12)):
            weight = torch.randn(width, 24, generator=generator)
            tensors[f"model.layers.{layer}.self_attn.{name}_proj.weight"] = weight
    return {name: tensor.to(dtype) for name, tensor in tensors.items()}


def with_outputs(tensors: dict[str, Tensor], *, seed: int = 1) -> dict[str, Tensor]:
    """The tensors of `weights` and an output projection [24, 24] in each layer."""
    generator = torch.Generator().manual_seed(seed)
    queries = [name for name in tensors if name.endswith("q_proj.weight")]
    outputs = {name.replace("q_proj", "o_proj"): torch.randn(24, 24, generator=generator) for name in queries}
    return tensors | outputs


def write_config(folder: Path, config: Mapping[str, Any] = CONFIG) -> Path:
    """`folder` with a config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_single(
    folder: Path, tensors: Mapping[str, Tensor] | None = None, config: Mapping[str, Any] | None = None
) -> Path:
    """A folder with config.json and model.safetensors. config: by default `CONFIG`, with all layers that there are."""
    stored = dict(weights() if tensors is None else tensors)
    if config is None:
        numbers = [int(match[1]) for match in map(LAYER.match, stored) if match is not None]
        config = CONFIG | {"num_hidden_layers": max([CONFIG["num_hidden_layers"], *(number + 1 for number in numbers)])}
    save_file(stored, write_config(folder, config) / "model.safetensors")
    return folder


def write_heads(folder: Path, queries: Tensor, keys: Tensor) -> Path:
    """A checkpoint of one layer, of queries and keys [heads, head_dim, width]."""
    heads, head_dim, width = queries.shape
    config = CONFIG | {
        "hidden_size": width, "num_attention_heads": heads, "num_key_value_heads": len(keys), "head_dim": head_dim,
        "num_hidden_layers": 1,
    }  # fmt: skip
    name = "model.layers.0.self_attn.{}_proj.weight"
    return write_single(folder, {name.format("q"): queries.flatten(0, 1), name.format("k"): keys.flatten(0, 1)}, config)


def write_sharded(folder: Path, *, suffix: str = "safetensors", norms: bool = False, seed: int = 0) -> Path:
    """A folder with three shards and their index: the embedding (and, with `norms`, the input gains) and each layer."""
    write_config(folder)
    stem = {"safetensors": "model", "bin": "pytorch_model"}[suffix]
    shards: dict[str, dict[str, Tensor]] = {}
    gains = (
        {f"model.layers.{layer}.input_layernorm.weight": torch.full((24,), 1.5) for layer in (0, 1)} if norms else {}
    )
    for name, tensor in (weights(seed=seed) | gains).items():
        number = 1 if "embed" in name or "norm" in name else 2 if ".0." in name else 3
        shards.setdefault(f"{stem}-{number:05}-of-00003.{suffix}", {})[name] = tensor
    for file, tensors in shards.items():
        save_file(tensors, folder / file) if suffix == "safetensors" else torch.save(tensors, folder / file)
    write_index(folder, {name: file for file, tensors in shards.items() for name in tensors}, stem, suffix)
    return folder


def write_index(folder: Path, weight_map: Mapping[str, str], stem: str = "model", suffix: str = "safetensors") -> None:
    """The index of a sharded checkpoint."""
    index = {"metadata": {"total_size": 12345}, "weight_map": dict(weight_map)}
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))


def write_header(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    """A .safetensors file with any header, and any stated length of it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


@contextmanager
def refuses_checkpoint(where: Path, error: type[AttnGeoError], facts: Iterable[object]) -> Iterator[Refused]:
    """The block raises an error of exactly this class, which begins with the path `where` and states all `facts`.

    A fact is not stated by the name of a folder: the path is none of the words that are looked through.
    """
    with refuses(error) as caught:
        yield caught
    message = str(caught.value)
    assert message.startswith(str(where)), message
    assert_states(message.replace(str(where), ""), *facts)


def assert_refused(
    run: subprocess.CompletedProcess[str], where: Path, error: type[AttnGeoError], facts: Iterable[object]
) -> None:
    """The same of a command of the fixture `inside`: it failed with the exit code of `error`, and with one line."""
    assert_fails(run, error)
    assert run.stderr.startswith(f"attngeo: {where}")
    assert_states(run.stderr.replace(str(where), ""), *facts)


def link_many(folder: Path, count: int = 2000) -> list[Path]:
    """So many names of one small model, in a folder that is made: work that does not end soon."""
    folder.mkdir()
    names = [folder / f"model-{number}" for number in range(count)]
    for name in names:
        name.symlink_to(Path(attngeo.__file__).parent / "demos/encoder")
    return names
