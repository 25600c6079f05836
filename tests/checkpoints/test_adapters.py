"""A folder with an adapter is scored as the model that PEFT merges it into."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from conftest import Command
from safetensors.torch import load_file, save_file
from support.checkpoints import assert_refused, write_single
from support.packing import PACKINGS, pack_state
from support.tiny_models import TINY_MODELS, build

import attngeo
from attngeo.errors import AttnGeoError, CorruptCheckpointError, ModelNotFoundError, UnsupportedModelError

# PEFT asks transformers for an attribute by its former name.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
SCORES = ["symmetry", "directionality", "frobenius_norm"]
LINEAR = ["q_proj", "k_proj"]


def adapt(folder: Path, name: str, **options: Any) -> tuple[Path, Path]:
    """An adapter of a tiny model, beside its base, with random updates; and the model that PEFT merges them into."""
    torch.manual_seed(0)
    build(TINY_MODELS[name]).save_pretrained(folder / "base")
    model = peft.get_peft_model(build(TINY_MODELS[name]), peft.LoraConfig(**{"r": 3, "lora_alpha": 5} | options))
    for parameter_name, parameter in model.named_parameters():
        if "lora_" in parameter_name and "magnitude" not in parameter_name:
            with torch.no_grad():
                parameter.copy_(torch.randn_like(parameter) * 0.3)
        elif "magnitude" in parameter_name:
            with torch.no_grad():
                parameter.mul_(torch.rand_like(parameter) + 0.5)
    model.save_pretrained(folder / "adapter")
    settings = json.loads((folder / "adapter/adapter_config.json").read_text())
    settings["base_model_name_or_path"] = str(folder / "base")
    (folder / "adapter/adapter_config.json").write_text(json.dumps(settings))
    model.merge_and_unload().save_pretrained(folder / "merged")
    return folder / "adapter", folder / "merged"


def assert_same(adapter: Path, merged: Path, **options: Any) -> None:
    scores, expected = (attngeo.score(folder, per_head=True, **options) for folder in (adapter, merged))
    assert len(scores) == len(expected) > 2
    assert scores["parameters"].tolist() == expected["parameters"].tolist()
    np.testing.assert_allclose(scores[SCORES[:2]], expected[SCORES[:2]], rtol=0, atol=2e-5)
    np.testing.assert_allclose(scores[SCORES[2]], expected[SCORES[2]], rtol=1e-5)
    base = attngeo.score(adapter.parent / "base", per_head=True, **options)
    assert (scores["symmetry"] - base["symmetry"]).abs().max() > 0.01


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "lora": ("llama", {"target_modules": LINEAR}),
    "rank-stabilised": ("llama", {"target_modules": LINEAR, "use_rslora": True}),
    "patterns": (
        "llama",
        {
            "target_modules": LINEAR, "rank_pattern": {r"layers\.0\..*q_proj": 2, "k_proj": 4},
            "alpha_pattern": {"k_proj": 7},
        },
    ),
    "queries only": ("qwen3", {"target_modules": ["q_proj"]}),
    "dora": ("llama", {"target_modules": LINEAR, "use_dora": True}),
    "fused": ("gpt_neox", {"target_modules": ["query_key_value"]}),
    "conv1d": ("gpt2", {"target_modules": ["c_attn"], "fan_in_fan_out": True}),
    "conv1d-dora": ("gpt2", {"target_modules": ["c_attn"], "fan_in_fan_out": True, "use_dora": True}),
    "encoder": ("bert", {"target_modules": ["query", "key"]}),
    "whole modules": ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["k_proj"]}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_the_merged_model(case: str, tmp_path: Path) -> None:
    name, options = CASES[case]
    assert_same(*adapt(tmp_path, name, **options))


def test_variants_and_the_base_s_own_format(tmp_path: Path, inside: Command) -> None:
    adapter, merged = adapt(tmp_path, "llama", target_modules=LINEAR)
    assert_same(adapter, merged, with_bias=True, fold_norm=True, rope_offset=2)
    assert set(attngeo.score(adapter)["format"]) == {"F32+lora"}
    assert inside("inspect", adapter).returncode == 0
    assert "F32+lora" in inside("inspect", adapter, "--format", "json").stdout


def test_the_base_may_be_quantised(tmp_path: Path) -> None:
    adapter, _ = adapt(tmp_path, "llama", target_modules=LINEAR)
    packing = PACKINGS["fp8-block"]
    state = load_file(tmp_path / "base/model.safetensors")
    stored, decoded = pack_state(state, packing, lambda name, tensor: "_proj" in name and tensor.ndim == 2)
    config = json.loads((tmp_path / "base/config.json").read_text())
    write_single(tmp_path / "base", decoded, config)
    expected = attngeo.score(adapter)
    write_single(tmp_path / "base", stored, config | packing.config)
    scores = attngeo.score(adapter)
    assert set(scores["format"]) == {"fp8+lora"}
    np.testing.assert_allclose(scores[SCORES], expected[SCORES], rtol=1e-5, atol=1e-6)


def test_another_base_gives_other_scores_at_once(tmp_path: Path) -> None:
    """Nothing is kept under the adapter alone."""
    adapter, _ = adapt(tmp_path, "llama", target_modules=LINEAR)
    before = attngeo.score(adapter)
    build(TINY_MODELS["llama"], seed=5).save_pretrained(tmp_path / "base")
    assert (attngeo.score(adapter)["symmetry"] - before["symmetry"]).abs().max() > 0.001


def change_settings(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def change_tensors(function: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        tensors = load_file(folder / "adapter_model.safetensors")
        function(tensors)
        save_file(tensors, folder / "adapter_model.safetensors")

    return change


def use_other_base(folder: Path) -> None:
    shutil.rmtree(folder.parent / "base")
    build(TINY_MODELS["bert"]).save_pretrained(folder.parent / "base")


Q0 = "base_model.model.model.layers.0.self_attn.q_proj"
REFUSED: dict[str, tuple[Callable[[Path], None], type[AttnGeoError], tuple[str, ...]]] = {
    "another method": (change_settings(peft_type="LOHA"), UnsupportedModelError, ("LOHA", "merge_and_unload")),
    "no base": (change_settings(base_model_name_or_path=None), CorruptCheckpointError, ("base", "None")),
    "no weights": (
        lambda folder: (folder / "adapter_model.safetensors").unlink(), CorruptCheckpointError, ("adapter_model.bin",)
    ),
    "no settings": (
        lambda folder: (folder / "adapter_config.json").write_text("{"), CorruptCheckpointError, ("JSON",)
    ),  # type: ignore[dict-item]
    "another base": (use_other_base, CorruptCheckpointError, ("_proj", "own base")),
    "another rank": (change_settings(r=4), CorruptCheckpointError, ("rank 3", "r = 4")),
    "no alpha": (change_settings(lora_alpha="x"), CorruptCheckpointError, ("lora_alpha = 'x'",)),
    "half of an update": (
        change_tensors(lambda tensors: tensors.pop(f"{Q0}.lora_A.weight")), CorruptCheckpointError, (Q0, "expected")
    ),
    "an update of another shape": (
        change_tensors(lambda tensors: tensors.update({f"{Q0}.lora_A.weight": torch.ones(3, 5)})),
        CorruptCheckpointError, (Q0, "[3, 5]"),
    ),
    "no magnitudes": (change_settings(use_dora=True), CorruptCheckpointError, ("magnitudes",)),
    "something else": (
        change_tensors(lambda tensors: tensors.update({f"{Q0}.lora_E": torch.ones(3)})),
        UnsupportedModelError, ("lora_E",),
    ),
    "a pattern without an end": (
        change_settings(rank_pattern={"(a+)+q_proj": 3}), CorruptCheckpointError, ("(a+)+q_proj",)
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_fits_no_base_is_refused(case: str, tmp_path: Path, inside: Command) -> None:
    damage, error, facts = REFUSED[case]
    adapter, _ = adapt(tmp_path, "llama", target_modules=LINEAR)
    damage(adapter)
    assert_refused(inside("score", adapter), adapter, error, facts)


def test_a_base_that_is_missing_is_named(tmp_path: Path, inside: Command) -> None:
    adapter, _ = adapt(tmp_path, "llama", target_modules=LINEAR)
    shutil.rmtree(tmp_path / "base")
    run = inside("score", adapter)
    assert run.returncode == ModelNotFoundError.exit_code
    assert str(tmp_path / "base") in run.stderr
