"""Each setting of an adapter means what it means to PEFT, or it is refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from conftest import Command
from safetensors.torch import load_file, save_file
from support.checkpoints import assert_refused, refuses_checkpoint
from support.peft_adapters import are_equal, edit_settings, load_by_peft, read_weights, write_adapter, write_base

import attngeo
from attngeo.checkpoints.adapter_settings import (
    APPLIED,
    NOT_MERGEABLE,
    REFUSED,
    WITHOUT_EFFECT,
    WITHOUT_WEIGHTS,
    LoraSettings,
)
from attngeo.errors import AttnGeoError, CheckpointError, CorruptCheckpointError, UnsupportedModelError

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
Q0 = "base_model.model.model.layers.0.self_attn.q_proj"


def test_every_setting_of_peft_is_in_one_table() -> None:
    import peft  # here and below, as it takes two seconds, and not every worker needs it

    fields = {field.name for field in dataclasses.fields(peft.LoraConfig)}
    tables = [*APPLIED, *WITHOUT_EFFECT, *REFUSED]
    assert len(tables) == len(set(tables))
    assert fields <= set(tables)
    # Two that PEFT had in 2023.
    assert set(tables) - fields == {"enable_lora", "merge_weights"}


def test_methods_without_weights_are_those_of_peft() -> None:
    """Those that learn prompts, and those that have nothing to merge."""
    import peft
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING, PEFT_TYPE_TO_TUNER_MAPPING

    without = set()
    for method, config in PEFT_TYPE_TO_CONFIG_MAPPING.items():
        tuner = PEFT_TYPE_TO_TUNER_MAPPING.get(method)
        learns_prompts = issubclass(config, peft.PromptLearningConfig) or tuner is None
        if learns_prompts or not hasattr(tuner, "merge_and_unload"):
            without.add(method.value)
    assert without == {*WITHOUT_WEIGHTS}
    assert {*NOT_MERGEABLE} <= {method.value for method in PEFT_TYPE_TO_CONFIG_MAPPING} - without


# The adapter_config.json of an adapter that has no weights to add → facts of the message.
WITHOUT = {method: {"peft_type": method} for method in (*WITHOUT_WEIGHTS, *NOT_MERGEABLE)} | {
    "MLX": {"fine_tune_type": "lora", "lora_parameters": {"rank": 8}, "model": "org/base", "num_layers": 16},
    "AdapterHub": {"config": {"reduction_factor": 16}, "model_class": "BertModel", "name": "sst-2"},
    "another program": {"rank": 8},
}


@pytest.mark.parametrize("case", WITHOUT)
@pytest.mark.parametrize("has_weights", [True, False])
def test_what_is_not_merged_is_said(case: str, has_weights: bool, tmp_path: Path, inside: Command) -> None:
    """Whatever its files of weights are called, and for a model as for $adapter."""
    fields = {"base_model_name_or_path": "org/base", **WITHOUT[case]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(fields))
    save_file(
        {"prompt_embeddings": torch.ones(8, 16)}, tmp_path / ("adapter_model.safetensors" if has_weights else "x")
    )
    facts = (case, "org/base", "peft_type" if "peft_type" not in fields else "score")
    with refuses_checkpoint(tmp_path, UnsupportedModelError, facts) as caught:
        attngeo.score(tmp_path)
    assert ("merge_and_unload" in str(caught.value)) is False
    assert ("those of its base" in str(caught.value)) == (case in WITHOUT_WEIGHTS)
    with refuses_checkpoint(tmp_path, UnsupportedModelError, facts):
        attngeo.score("demo:encoder", adapter=str(tmp_path))
    if case == "PROMPT_TUNING":
        assert_refused(inside("score", tmp_path), tmp_path, UnsupportedModelError, facts)


def test_a_prompt_that_peft_has_saved(written: Path, tmp_path: Path) -> None:
    import peft

    model = transformers.LlamaForCausalLM.from_pretrained(written / "base")
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    peft.get_peft_model(model, config).save_pretrained(tmp_path)
    with refuses_checkpoint(tmp_path, UnsupportedModelError, ("PROMPT_TUNING", "no weights to merge", "base")):
        attngeo.score(tmp_path)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a base and an adapter of it."""
    folder = tmp_path_factory.mktemp("written")
    write_adapter(folder / "adapter", write_base(folder / "base"))
    return folder


@pytest.fixture
def adapter(written: Path, tmp_path: Path) -> Path:
    """A copy of the adapter."""
    return Path(shutil.copytree(written / "adapter", tmp_path / "adapter"))


# Settings that give other numbers than without them, or the same ones, as they do for PEFT.
FOLLOWED: dict[str, dict[str, Any]] = {
    "alpha": {"lora_alpha": 7.5},
    "no alpha": {"lora_alpha": 0},
    "rank-stabilised": {"use_rslora": True},
    "nothing": {"use_rslora": None, "use_dora": None},
    "alphas": {"alpha_pattern": {r"layers\.1\..*q_proj": 2, "k_proj": 7, "q_proj": 1}},
    "anchored": {"alpha_pattern": {"^model.layers.0.self_attn.k_proj": 2, "^layers.1.self_attn.k_proj": 9}},
    "alternatives": {"alpha_pattern": {"a|.*q_proj|b": 2, "(k|q)_proj": 3}},
    "a repetition of a repetition": {"alpha_pattern": {r"(\w+\.)*self_attn\.[kv]_pro{1,3}j": 2}},
    "looks ahead": {"alpha_pattern": {r"(?!.*layers\.0).*(?:q|k)_proj": 2}},
    "Linear that is said to be Conv1D": {"fan_in_fan_out": True},
    "lower case": {"init_lora_weights": "GAUSSIAN"},
    "no effect": {"lora_dropout": 0.5, "inference_mode": False, "task_type": "CAUSAL_LM", "peft_version": "0.1"},
    "configurations of initialisations": {"eva_config": {"rho": 2.0}, "loftq_config": {"loftq_bits": 4}},
    "off": {"alora_invocation_tokens": [], "use_qalora": False, "kasa_config": None, "layer_replication": None},
    "layers": {"layers_to_transform": [0, 1], "layers_pattern": "layers"},
    "a layer's names": {"target_modules": ["model.layers.0.self_attn.q_proj", "k_proj", "layers.1.self_attn.q_proj"]},
    "a pattern of targets": {"target_modules": r".*\.layers\.\d+\.self_attn\.(q_proj|k_proj)"},
    "all linear layers": {"target_modules": "all-linear"},
    "others are excluded": {"exclude_modules": ["v_proj", "x.q_proj"]},
    "parameters of experts": {"target_parameters": []},
    "runtime": {"runtime_config": {"ephemeral_gpu_offload": True}},
}  # fmt: skip


@pytest.mark.parametrize("case", FOLLOWED)
def test_a_setting_means_what_it_means_to_peft(case: str, written: Path, adapter: Path) -> None:
    edit_settings(adapter, **FOLLOWED[case])
    expected = read_weights(load_by_peft(written / "base", adapter))
    assert are_equal(read_weights(adapter), expected)


# Settings → the class of the error, and a fact of its message.
REFUSALS: dict[str, tuple[dict[str, Any], type[AttnGeoError], str]] = {
    "text for a switch": ({"use_rslora": "false"}, CorruptCheckpointError, "use_rslora = 'false'"),
    "number for a switch": ({"use_dora": 1}, CorruptCheckpointError, "use_dora = 1"),
    "DoRA without magnitudes": ({"use_dora": True}, CorruptCheckpointError, "magnitudes"),
    "upper case": ({"init_lora_weights": "OLoRA"}, UnsupportedModelError, "OLoRA"),
    "pissa": ({"init_lora_weights": "pissa_niter_4"}, UnsupportedModelError, "pissa_niter_4"),
    "corda": ({"init_lora_weights": "corda"}, UnsupportedModelError, "corda"),
    "loftq": ({"init_lora_weights": "loftq"}, UnsupportedModelError, "loftq"),
    "gradients": ({"init_lora_weights": "lora_ga"}, UnsupportedModelError, "lora_ga"),
    "unknown initialisation": ({"init_lora_weights": "x"}, UnsupportedModelError, "'x'"),
    "unknown setting": ({"use\nfuture": 1, "peft_version": "9.1.0"}, UnsupportedModelError, "future"),
    "tokens": ({"alora_invocation_tokens": [1]}, UnsupportedModelError, "only to some tokens"),
    "blocks": ({"use_bdlora": {"nblocks": 2}}, UnsupportedModelError, "blocks"),
    "pooled": ({"use_qalora": "false"}, UnsupportedModelError, "pooled"),
    "layers again": ({"layer_replication": [[0, 2], [1, 2]]}, UnsupportedModelError, "repeats"),
    "bias of the update": ({"lora_bias": True}, UnsupportedModelError, "bias"),
    "another rank": ({"r": 4}, CorruptCheckpointError, "r = 4"),
    "rank of a pattern": ({"rank_pattern": {"q_proj": 2}}, CorruptCheckpointError, "r = 2"),
    "rank that is no number": ({"r": 3.0}, CorruptCheckpointError, "r = 3.0"),
    "a large alpha": ({"lora_alpha": 10**400}, CorruptCheckpointError, "lora_alpha = 1000"),
    "alpha that is true": ({"lora_alpha": True}, CorruptCheckpointError, "lora_alpha = True"),
    "patterns in a list": ({"alpha_pattern": ["q_proj"]}, CorruptCheckpointError, "alpha_pattern"),
    "too long": ({"alpha_pattern": {"[a]" + "a" * 3_000_000: 1}}, CorruptCheckpointError, "100,000 characters"),
    "too often": ({"rank_pattern": {"x{99999999999}": 1}}, CorruptCheckpointError, "regular expression"),
    "too deep": ({"rank_pattern": {"(" * 5000: 1}}, CorruptCheckpointError, "regular expression"),
    "invalid": ({"rank_pattern": {"[": 1}}, CorruptCheckpointError, "'[' in rank_pattern"),
    "ranks that are texts": ({"rank_pattern": {"q_proj": "3"}}, CorruptCheckpointError, "expected pattern: number"),
    "targets that are numbers": ({"target_modules": [1]}, CorruptCheckpointError, "expected a list of names"),
    "not a target": ({"target_modules": ["k_proj"]}, CorruptCheckpointError, "q_proj"),
    "no target": ({"target_modules": None}, CorruptCheckpointError, "None"),
    "targets of another name": ({"target_modules": ".*v_proj"}, CorruptCheckpointError, "v_proj"),
    "excluded": ({"exclude_modules": ".*layers.0.*"}, CorruptCheckpointError, "layers.0"),
    "saved whole": ({"modules_to_save": ["k_proj"]}, CorruptCheckpointError, "k_proj"),
    "a parameter": ({"target_parameters": ["q_proj.weight"]}, CorruptCheckpointError, "q_proj"),
    "another layer": ({"layers_to_transform": [1]}, CorruptCheckpointError, "layers.0"),
    "a pattern of layers": ({"layers_to_transform": 0, "layers_pattern": "(.*)*"}, CorruptCheckpointError, "(.*)*"),
    "no base": ({"base_model_name_or_path": ""}, CorruptCheckpointError, "base"),
    "its own base": ({"base_model_name_or_path": "ADAPTER"}, CorruptCheckpointError, "itself an adapter"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_a_setting_that_is_not_followed_is_refused(case: str, adapter: Path) -> None:
    changes, error, fact = REFUSALS[case]
    if "ADAPTER" in changes.values():
        changes = {"base_model_name_or_path": str(adapter)}
    edit_settings(adapter, **changes)
    with pytest.raises(error) as refused:
        read_weights(adapter)
    assert fact in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 600


MODULES = ["model.layers.1.self_attn.q_proj", "model.layers.12.self_attn.k_proj", "q_proj", "h.0.attn.c_attn"]
PATTERNS = [
    "q_proj",
    "layers.1.self_attn.q_proj",
    r"^model\.layers\.1\b.*",
    "[kq]_proj",
    "c_attn|k_proj",
    r".*\d\..*n",
    "",
]


def test_a_pattern_of_numbers_is_the_one_that_peft_takes() -> None:
    """The first that fits, of a few in each order."""
    from peft.utils.other import get_pattern_key

    for shift in range(len(PATTERNS)):
        patterns = {key: number for number, key in enumerate(PATTERNS[shift:] + PATTERNS[:shift], 1)}
        settings = LoraSettings({"peft_type": "LORA", "r": 2, "lora_alpha": 50, "alpha_pattern": patterns})
        for module in MODULES:
            assert settings.scale(module, 2) == patterns.get(get_pattern_key(list(patterns), module), 50) / 2


def test_a_pattern_that_python_never_ends_is_matched() -> None:
    patterns = {"(.|.)*!": 1, "(a+)+$": 2, "((((.*)*)*)*)*k_proj": 3}
    settings = LoraSettings({"peft_type": "LORA", "r": 2, "lora_alpha": 50, "alpha_pattern": patterns})
    assert settings.scale("model.layers.1.self_attn.k_proj", 2) == 3 / 2
    assert settings.scale("model.layers.1.self_attn.q_proj", 2) == 50 / 2


TARGETING: list[dict[str, Any]] = [
    {"target_modules": ["q_proj", "c_attn"]}, {"target_modules": ["attn.k_proj"]}, {"target_modules": "q_proj"},
    {"target_modules": r".*self_attn\.(q|k)_proj"}, {"target_modules": ["model.layers.1.self_attn.q_proj", "k_proj"]},
    {"target_modules": ["q_proj", "k_proj"], "layers_to_transform": [12]},
    {"target_modules": ["q_proj", "k_proj"], "layers_to_transform": 1, "layers_pattern": ["h", "layers"]},
    {"target_modules": ["q_proj", "k_proj", "c_attn"], "layers_to_transform": [0], "layers_pattern": "h"},
    {"target_modules": ["q_proj", "k_proj"], "exclude_modules": "model.*q_proj"},
    {"target_modules": ["q_proj", "k_proj"], "exclude_modules": ["layers.12.self_attn.k_proj"]},
    {"target_modules": ["q_proj", "k_proj"], "modules_to_save": ["layers.1", "x"]},
]  # fmt: skip


@pytest.mark.parametrize("fields", TARGETING, ids=str)
def test_the_targets_are_those_of_peft(fields: dict[str, Any]) -> None:
    import peft
    from peft.tuners.tuners_utils import check_target_module_exists

    settings, config = LoraSettings({"peft_type": "LORA"} | fields), peft.LoraConfig(**fields)
    for module in MODULES:
        try:
            settings.require_target(module)
        except CorruptCheckpointError:
            is_target = False
        else:
            is_target = True
        assert is_target == bool(check_target_module_exists(config, module)), module


Tensors = dict[str, torch.Tensor]
# What is wrong with the tensors → the change, and a fact of the message.
DAMAGES: dict[str, tuple[Callable[[Tensors], object], str]] = {
    "no B": (lambda tensors: tensors.pop(f"{Q0}.lora_B.weight"), "A and B have shapes [[3, 16]]"),
    "no A": (lambda tensors: tensors.pop(f"{Q0}.lora_A.weight"), "A and B have shapes [[16, 3]]"),
    "no dimensions": (lambda tensors: tensors.update({f"{Q0}.lora_A.weight": torch.tensor(1.0)}), "shapes [[],"),
    "no rows": (
        lambda tensors: tensors.update({
            f"{Q0}.lora_A.weight": torch.ones(0, 16), f"{Q0}.lora_B.weight": torch.ones(16, 0)
        }), "rank 0",
    ),
    "whole numbers": (
        lambda tensors: tensors.update({f"{Q0}.lora_A.weight": torch.ones(3, 16, dtype=torch.int8)}), "stored as I8"
    ),
    "magnitudes that nothing asks for": (
        lambda tensors: tensors.update({f"{Q0}.lora_magnitude_vector": torch.ones(16)}), "use_dora is False"
    ),
    "two names of one": (
        lambda tensors: tensors.update({f"{Q0}.lora_A.default.weight": tensors[f"{Q0}.lora_A.weight"] + 1}), "both"
    ),
    "a weight beside its update": (lambda tensors: tensors.update({f"{Q0}.weight": torch.ones(16, 16)}), "both"),
    "an unknown parameter": (lambda tensors: tensors.update({f"{Q0}.lora_E": torch.ones(3)}), "lora_E"),
    "another adapter's name": (
        lambda tensors: tensors.update({f"{Q0}.lora_A.mine.weight": torch.ones(3, 16)}), "lora_A.mine"
    ),
    "a layer that the base lacks": (
        lambda tensors: tensors.update({f"{Q0.replace('.0.', '.2.')}.lora_A.weight": torch.ones(3, 16)}), "trained on"
    ),
    "a long name of two lines": (
        lambda tensors: tensors.update({f"\n{'x' * 5000}.q_proj.lora_A.weight": torch.ones(3, 16)}), "lacks the prefix"
    ),
    "a long name of a layer": (
        lambda tensors: tensors.update({f"base_model.model.\n{'x' * 5000}.q_proj.lora_A.weight": torch.ones(3, 16)}),
        "was trained on",
    ),
    "a weight of another shape": (
        lambda tensors: tensors.update({f"{Q0}.base_layer.weight": torch.ones(16, 15)}), "was trained on"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGES)
def test_tensors_that_contradict_the_settings_are_refused(case: str, adapter: Path) -> None:
    damage, fact = DAMAGES[case]
    tensors = load_file(adapter / "adapter_model.safetensors")
    damage(tensors)
    save_file(tensors, adapter / "adapter_model.safetensors")
    with pytest.raises(CheckpointError) as refused:
        read_weights(adapter)
    assert fact in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 600


def test_magnitudes_are_numbers_of_floating_point(written: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "adapter", written / "base", use_dora=True)
    assert are_equal(read_weights(adapter), read_weights(load_by_peft(written / "base", adapter)))
    tensors = load_file(adapter / "adapter_model.safetensors")
    name = f"{Q0}.lora_magnitude_vector"
    save_file(tensors | {name: tensors[name].long()}, adapter / "adapter_model.safetensors")
    with pytest.raises(UnsupportedModelError, match="stored as I64"):
        read_weights(adapter)


def test_the_settings_of_a_file_of_2023(written: Path, adapter: Path) -> None:
    """What the first versions of PEFT wrote, and nothing else."""
    path = adapter / "adapter_config.json"
    kept = ("base_model_name_or_path", "lora_alpha", "peft_type", "r", "target_modules")
    old = {"bias": "none", "enable_lora": None, "fan_in_fan_out": True, "merge_weights": True, "modules_to_save": None}
    path.write_text(json.dumps({name: json.loads(path.read_text())[name] for name in kept} | old))
    expected = read_weights(load_by_peft(written / "base", adapter))
    assert are_equal(read_weights(adapter), expected)


# How trainers and people name the tensors of an adapter, made of the names of PEFT.
OTHER_NAMES: dict[str, Callable[[str], str]] = {
    "_orig_mod": lambda name: name.replace("base_model.model.", "base_model.model._orig_mod."),
    "module": lambda name: f"module.{name}",
    "_fsdp_wrapped_module": lambda name: name.replace("model.layers", "model._fsdp_wrapped_module.layers"),
    "_fsdp_wrapped_module of a layer": lambda name: name.replace(".self_attn", "._fsdp_wrapped_module.self_attn"),
    "_checkpoint_wrapped_module": lambda name: name.replace(".self_attn", "._checkpoint_wrapped_module.self_attn"),
    "twice": lambda name: f"base_model.model.{name}",
    "no prefix": lambda name: name.removeprefix("base_model.model."),
    "half a prefix": lambda name: name.replace("base_model.model.", "base_model.", 1),
    "without model": lambda name: name.replace("base_model.model.model.", "base_model.model."),
    "model twice": lambda name: name.replace("base_model.model.model.", "base_model.model.model.model."),
    "a part of another model": lambda name: name.replace("model.model.", "model.language_model.model."),
    "default": lambda name: name.replace(".weight", ".default.weight"),
}


@pytest.mark.parametrize("form", [*OTHER_NAMES, "under state_dict", "as PEFT writes them"])
def test_an_update_that_peft_would_leave_out_is_added_with_a_note(
    form: str, written: Path, adapter: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """PEFT warns of missing keys, and runs the base alone; both facts matter to a reader of scores."""
    import peft
    import transformers

    merged = read_weights(load_by_peft(written / "base", adapter))
    file = adapter / "adapter_model.safetensors"
    tensors = load_file(file)
    file.unlink()
    if form == "under state_dict":
        torch.save({"state_dict": tensors}, adapter / "adapter_model.bin")
    else:
        rename = OTHER_NAMES.get(form, str)
        save_file({rename(name): tensor for name, tensor in tensors.items()}, file)
    assert are_equal(read_weights(adapter), merged)
    notes = " ".join(attngeo.score(adapter)["note"])
    recwarn.clear()
    peft.PeftModel.from_pretrained(transformers.LlamaForCausalLM.from_pretrained(written / "base"), adapter)
    is_lost = any("missing" in str(warning.message) for warning in recwarn)
    assert ("would skip it with a warning" in notes) == is_lost
    assert is_lost == (form not in ("default", "as PEFT writes them"))


def test_a_setting_that_peft_ignores_is_noted(written: Path, adapter: Path) -> None:
    edit_settings(adapter, unsloth_fixed=True, lorap_lr_ratio=16.0, additional_trainable_parameters=[])
    assert are_equal(read_weights(adapter), read_weights(load_by_peft(written / "base", adapter)))
    (note,) = set(attngeo.score(adapter)["note"])
    assert "unsloth_fixed" in note
    assert "lorap_lr_ratio" in note
    assert "additional_trainable_parameters" not in note
