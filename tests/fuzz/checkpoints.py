"""Mutated checkpoints: the scores of those that are accepted are those of their tensors, saved anew."""

from __future__ import annotations

import io
import json
import struct
import tempfile
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from random import Random

import pandas as pd
import torch
from fuzz.outcome import Wrong
from safetensors.torch import load_file, save
from support.checkpoints import CONFIG, weights, write_config, write_sharded, write_single
from support.mutate import mutate_bytes, mutate_json, mutate_zip
from torch import Tensor

import attngeo

CONTEXT = {
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                        "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    "rope_theta": 10000.0, "vocab_size": 50, "layer_types": ["full_attention", "full_attention"],
    "quantization_config": None, "id2label": {"0": "a"}, "architectures": ["LlamaForCausalLM"],
}  # fmt: skip
SAFETENSORS, TORCH, INDEX = "model.safetensors", "pytorch_model.bin", "model.safetensors.index.json"


def score(folder: Path) -> pd.DataFrame:
    """The scores of a folder without what depends on the files around them."""
    return attngeo.score(folder, rope_offset=3).drop(columns=["model", "parameters"])


@cache
def draw_tensors() -> dict[str, Tensor]:
    """The queries and keys of two layers."""
    return {name: tensor for name, tensor in weights(2).items() if "v_proj" not in name and "embed" not in name}


@cache
def save_tensors() -> tuple[bytes, bytes]:
    """Their bytes as safetensors, and as torch saves them."""
    buffer = io.BytesIO()
    torch.save(draw_tensors(), buffer)
    return save(draw_tensors()), buffer.getvalue()


def write_safetensors(rng: Random, folder: Path) -> None:
    """A file of safetensors with a changed header or changed bytes."""
    data, _ = save_tensors()
    (write_config(folder) / SAFETENSORS).write_bytes(mutate_safetensors(rng, data, header_share=0.6))


def mutate_safetensors(rng: Random, data: bytes, *, header_share: float) -> bytes:
    """The bytes of safetensors with changes in the header, in this share of all draws, or in any bytes."""
    if rng.random() >= header_share:
        return mutate_bytes(rng, data)
    length = int.from_bytes(data[:8], "little")
    header = mutate_json(rng, json.loads(data[8 : 8 + length]))
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def check_safetensors(folder: Path, scores: pd.DataFrame) -> None:
    try:
        tensors = load_file(folder / SAFETENSORS)
    except Exception as error:
        raise Wrong(f"accepted, but the library refuses it: {error}") from None
    check_scores(folder, scores, tensors)


def write_torch(rng: Random, folder: Path) -> None:
    """A file of torch with changed bytes or records."""
    _, data = save_tensors()
    (write_config(folder) / TORCH).write_bytes(mutate_zip(rng, data))


def check_torch(folder: Path, scores: pd.DataFrame) -> None:
    path = folder / TORCH
    try:  # it was accepted, so that its records are as long as torch.load believes
        state = torch.load(path, weights_only=True)
    except Exception:  # torch also reads what is not needed for tensors, such as a version
        try:
            # Where a tensor was, such as "cpu", changes none of its numbers.
            state = torch.load(copy_records(path), map_location="cpu", weights_only=True)
        except Exception:  # or its version is a number that torch does not know
            state = draw_tensors()
    tensors = {name: tensor for name, tensor in state.items() if isinstance(name, str) and isinstance(tensor, Tensor)}
    check_scores(folder, scores, tensors)


def copy_records(path: Path) -> io.BytesIO:
    """The records of a zip file as they are stored, in an archive without anything else."""
    content = path.read_bytes()
    copy = io.BytesIO()
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(copy, "w") as plain:
        for info in archive.infolist():
            if info.filename.endswith(("version", "byteorder")) or "/." in info.filename:
                continue  # not needed for tensors, wherever it is said to be
            names, extra = struct.unpack_from("<2H", content, info.header_offset + 26)
            start = info.header_offset + 30 + names + extra
            plain.writestr(info.filename, content[start : start + info.file_size])
        plain.writestr(f"{archive.namelist()[0].partition('/')[0]}/version", "3\n")
    copy.seek(0)
    return copy


def write_index(rng: Random, folder: Path) -> None:
    """Shards with a changed index."""
    path = write_sharded(folder) / INDEX
    path.write_bytes(mutate_json(rng, json.loads(path.read_text())))


def check_index(folder: Path, scores: pd.DataFrame) -> None:
    names = json.loads((folder / INDEX).read_text())["weight_map"]
    tensors = {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}
    check_scores(folder, scores, {name: tensors[name] for name in names if name in tensors})


def check_scores(folder: Path, scores: pd.DataFrame, tensors: Mapping[str, Tensor]) -> None:
    """Raise Wrong unless the scores of a folder are those of these tensors, saved anew."""
    plain = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    config = json.loads((folder / "config.json").read_text())
    with tempfile.TemporaryDirectory() as place:
        expected = score(write_single(Path(place), plain, config))
    if not scores.equals(expected):
        raise Wrong(f"wrong scores: {scores} instead of {expected}")


def write_configuration(rng: Random, folder: Path) -> None:
    """A checkpoint with any change of its configuration."""
    config = CONFIG | CONTEXT if rng.random() < 0.7 else CONFIG
    (write_single(folder, draw_tensors()) / "config.json").write_bytes(mutate_json(rng, config))


def check_configuration(folder: Path, scores: pd.DataFrame) -> None:
    """A new field that nothing reads changes nothing."""
    if list(scores["layer"]) != [0, 1]:
        raise Wrong(f"not the layers of the model: {scores}")
    config = json.loads((folder / "config.json").read_bytes())
    config.pop("x", None)
    if config not in (CONFIG, CONFIG | CONTEXT):
        return
    with tempfile.TemporaryDirectory() as place:
        expected = score(write_single(Path(place), load_file(folder / SAFETENSORS), config))
    if not scores.equals(expected):
        raise Wrong(f"other scores: {scores} instead of {expected}")
