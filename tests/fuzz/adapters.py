"""Mutated adapters: the weights of those that are accepted are those that PEFT loads."""

from __future__ import annotations

import json
import shutil
import tempfile
import warnings
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from fuzz.outcome import Wrong
from safetensors.torch import load_file, save_file
from support.mutate import mutate_json
from support.peft_adapters import TARGETS, are_equal, load_by_peft, read_weights, write_adapter, write_base
from torch import Tensor

from attngeo.checkpoints.adapter_settings import APPLIED

SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# Settings that an adapter may have, on top of those that PEFT writes for it.
USUAL: tuple[dict[str, Any], ...] = (
    {}, {"alpha_pattern": {"^model.layers.0.self_attn.q_proj": 2, r".*\.k_proj": 7}}, {"use_rslora": True},
    {"rank_pattern": {"q_proj": 3}}, {"target_modules": r".*self_attn\.(q|k)_proj"}, {"fan_in_fan_out": True},
    {"layers_to_transform": [0, 1], "layers_pattern": "layers"}, {"exclude_modules": ["v_proj"]},
    {"init_lora_weights": "gaussian"}, {"lora_alpha": 2.5, "enable_lora": None},
)  # fmt: skip
# Values for one setting that are near to the usual ones.
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, 3, 4, -1, 2.5, "true", "false", "", "all-linear", "q_proj", [], ["q_proj"],
    [*TARGETS, "v_proj"],
    [0], [1], [[0, 2], [0, 1]], {}, {"q_proj": 2}, {"k_proj": 3, "q_proj": 3}, {".*": 3}, {"x": 1}, {"(": 1}, "pissa",
    "olora", "OLoRA", "Gaussian", "eva", "loftq", "main", 10**400,
)  # fmt: skip
FIELDS = (
    "r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "target_modules", "exclude_modules",
    "layers_to_transform", "layers_pattern", "modules_to_save", "fan_in_fan_out", "bias", "init_lora_weights",
    "revision", "lora_bias", "layer_replication", "use_qalora", "alora_invocation_tokens", "target_parameters",
    "megatron_config", "task_type", "lora_dropout", "inference_mode", "ensure_weight_tying", "use_bdlora", "x",
)  # fmt: skip


@cache
def make_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder with the base, and with an adapter as PEFT writes it; it is kept as long as the process."""
    folder = tempfile.TemporaryDirectory()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write_adapter(Path(folder.name, "adapter"), write_base(Path(folder.name, "base")))
    return folder


def find_base() -> Path:
    return Path(make_folder().name, "base")


def write_mutated(rng: Random, folder: Path) -> None:
    """An adapter with other settings, sometimes with damaged JSON, or with tensors of other names, shapes or types."""
    written = Path(make_folder().name, "adapter")
    settings = json.loads((written / SETTINGS).read_text()) | rng.choice(USUAL)
    settings["base_model_name_or_path"] = "base"
    tensors = load_file(written / WEIGHTS)
    kind = rng.random()
    if kind < 0.6:
        for name in rng.sample(FIELDS, rng.choice((1, 1, 1, 2, 3))):
            settings[name] = rng.choice(VALUES)
    elif kind < 0.8:
        tensors = mutate_tensors(rng, tensors)
    text = mutate_json(rng, settings) if kind > 0.8 else json.dumps(settings).encode()
    (folder / SETTINGS).write_bytes(text)
    save_file(tensors, folder / WEIGHTS)


def mutate_tensors(rng: Random, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """One tensor is removed, renamed, doubled under another name, cut or stored as other numbers."""
    name = rng.choice(sorted(tensors))
    tensor = tensors[name]
    layers = "base_model.model.model.layers.1"
    other = rng.choice((
        name.replace(".weight", ".default.weight"), name.replace("layers.0", "layers.5"),
        name.replace("lora_A", "lora_B"), name.replace("lora_", "lora_embedding_"),
        name.replace("base_model.model.", ""), name.replace("q_proj", "v_proj"),
        name.replace(".lora_A.weight", ".lora_magnitude_vector"), name.replace(".lora_A", ""),
        name.replace(".lora_A", ".base_layer"), "base_model.model.score.weight", f"{layers}.self_attn.k_proj.bias",
        f"{layers}.self_attn.v_proj.weight", "base_model.model.model.embed_tokens.base_layer.weight",
    ))  # fmt: skip
    kind = rng.randrange(5)
    if kind < 2:
        del tensors[name]
    if kind in (1, 2):
        tensors[other] = tensor.clone()
    if kind == 3:
        tensors[name] = tensor[: rng.choice((0, 1, len(tensor) - 1))].clone()
    if kind == 4:
        tensors[name] = rng.choice(
            (tensor.int(), tensor.double(), tensor.half(), tensor.flatten(), tensor[0, 0].clone())
        )
    return tensors


def read_mutated(folder: Path) -> list[Tensor]:
    """The weights of queries and keys, of the base with the adapter."""
    return read_weights(find_base(), adapter=str(folder))


def check_mutated(folder: Path, weights: list[Tensor]) -> None:
    """Raise Wrong unless PEFT has these weights, or has them without the settings and tensors of others."""
    refusal = ""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(shutil.copytree(folder, Path(place, "adapter")))
        try:
            expected = read_weights(load_by_peft(find_base(), copy))
        except Exception as error:
            refusal = f" ({type(error).__name__}: {error!s:.200})"
            settings = json.loads((copy / SETTINGS).read_bytes())
            kept = {name: value for name, value in settings.items() if name in APPLIED and value is not None}
            (copy / SETTINGS).write_text(json.dumps(kept))
            tensors = load_file(copy / WEIGHTS)
            save_file({name: tensors[name] for name in tensors if "q_proj" in name or "k_proj" in name}, copy / WEIGHTS)
            expected = read_weights(load_by_peft(find_base(), copy))
    if not are_equal(weights, expected):
        raise Wrong(f"other weights than those of PEFT{refusal}")
