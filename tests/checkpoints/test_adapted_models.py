"""Adapters that store more than updates of queries and keys, or under other names, are read as PEFT reads them."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from conftest import Command
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from support.hub_server import Hub
from support.peft_adapters import (
    CONFIG,
    TARGETS,
    are_equal,
    draw_updates,
    edit_settings,
    load_by_peft,
    make_llama,
    read_weights,
    spread,
    train,
    write_adapter,
    write_base,
)

import attngeo
from attngeo.checkpoints.opening import open_store
from attngeo.errors import CorruptCheckpointError, NetworkError, UnsupportedModelError, UsageError

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
VISION = {
    "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8,
    "patch_size": 4,
}  # fmt: skip
LANGUAGE = r".*language_model.*\.(q_proj|k_proj)"


def make_bert() -> Any:
    fields = {name: value for name, value in CONFIG.items() if name not in ("num_key_value_heads", "attention_bias")}
    return spread(transformers.BertForMaskedLM(transformers.BertConfig(**fields)))


def make_llava() -> Any:
    text, vision = transformers.LlamaConfig(**CONFIG), transformers.CLIPVisionConfig(**VISION)
    return spread(
        transformers.LlavaForConditionalGeneration(transformers.LlavaConfig(text_config=text, vision_config=vision))
    )


def make_qwen() -> Any:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 8, "num_heads": 2, "out_hidden_size": 16}
    config = transformers.Qwen2_5_VLConfig(
        text_config=CONFIG | ends | {"rope_parameters": rope}, vision_config=vision | {"fullatt_block_indexes": [0]}
    )
    return spread(transformers.Qwen2_5_VLForConditionalGeneration(config))


def make_gpt2() -> Any:
    config = transformers.GPT2Config(
        vocab_size=20, n_embd=16, n_layer=2, n_head=2, n_positions=8, add_cross_attention=True, bos_token_id=1,
        eos_token_id=2,
    )  # fmt: skip
    return spread(transformers.GPT2LMHeadModel(config))


class Case(NamedTuple):
    """make: the base. model_class: that is trained. options: of the adapter. stored: a part of a name that it stores.

    layout: fan_in_fan_out in the file.
    """

    make: Callable[[], Any]
    model_class: Any
    options: dict[str, Any]
    stored: str
    layout: bool = False


CASES = {
    "a head of classes": Case(
        make_bert, transformers.BertForSequenceClassification,
        {"task_type": "SEQ_CLS", "target_modules": ["query", "key"]}, "classifier.weight",
    ),
    "scores of classes": Case(
        make_llama, transformers.LlamaForSequenceClassification, {"task_type": "SEQ_CLS"}, "score.weight"
    ),
    "a tied head": Case(
        lambda: make_llama(tie_word_embeddings=True), transformers.LlamaForCausalLM,
        {"modules_to_save": ["embed_tokens", "lm_head"]}, "lm_head.weight",
    ),
    "rows of embeddings": Case(
        make_llama, transformers.LlamaForCausalLM, {"trainable_token_indices": [1, 2]}, "trainable_tokens_delta"
    ),
    "embeddings": Case(
        make_llama, transformers.LlamaForCausalLM, {"target_modules": [*TARGETS, "embed_tokens"]}, "lora_embedding_A"
    ),
    "biases": Case(make_llama, transformers.LlamaForCausalLM, {"bias": "all"}, "q_proj.base_layer.bias"),
    "biases of the targets": Case(
        make_llama, transformers.LlamaForCausalLM, {"bias": "lora_only"}, "q_proj.base_layer.bias"
    ),
    "queries as they were trained": Case(
        make_llama, transformers.LlamaForCausalLM, {"target_modules": ["k_proj"], "modules_to_save": ["q_proj"]},
        "q_proj.weight",
    ),
    "conv1d and square": Case(
        make_gpt2, transformers.GPT2LMHeadModel, {"target_modules": ["c_attn", "q_attn"]}, "q_attn.lora_A",
    ),
    "Linear, said to be conv1d": Case(
        make_llama, transformers.LlamaForCausalLM, {}, "lora_A", layout=True
    ),
    "LLaVA": Case(make_llava, transformers.LlavaForConditionalGeneration, {"target_modules": LANGUAGE}, "lora_A"),
    "Qwen2.5-VL": Case(
        make_qwen, transformers.Qwen2_5_VLForConditionalGeneration, {"target_modules": LANGUAGE}, "lora_A"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_only_what_queries_and_keys_need_is_required_of_the_base(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    base = write_base(tmp_path / "base", case.make)
    adapter = write_adapter(tmp_path / "adapter", base, case.model_class, **case.options)
    edit_settings(adapter, fan_in_fan_out=case.layout)
    assert any(case.stored in stored for stored in load_file(adapter / "adapter_model.safetensors"))
    merged = load_by_peft(base, adapter, case.model_class)
    for options in ({}, {"with_bias": True}):
        expected = read_weights(merged, **options)
        assert are_equal(read_weights(adapter, **options), expected)
        assert are_equal(read_weights(base, adapter=str(adapter), **options), expected)


def test_embeddings_that_an_adapter_changes_are_not_those_of_the_base(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base")
    for options in ({"trainable_token_indices": [1]}, {"target_modules": [*TARGETS, "embed_tokens"]}):
        adapter = write_adapter(tmp_path / f"adapter {len(options)}", base, **options)
        with closing(open_store(adapter)) as store, pytest.raises(UnsupportedModelError, match="embed_tokens"):
            store.read("model.embed_tokens.weight")


@pytest.mark.parametrize("layout", ["names of an adapter", "a whole state_dict", "a changed base"])
def test_what_torch_saves_of_a_model_with_an_adapter(layout: str, tmp_path: Path) -> None:
    """Its names have that of the adapter, and the whole state has the weights of the base."""
    base = write_base(tmp_path / "base")
    model = train(transformers.LlamaForCausalLM.from_pretrained(base))
    model.save_pretrained(tmp_path / "adapter")
    (tmp_path / "adapter/adapter_model.safetensors").unlink()
    edit_settings(tmp_path / "adapter", base_model_name_or_path=str(base))
    state = model.state_dict()
    if layout == "names of an adapter":
        state = {name: tensor for name, tensor in state.items() if "lora_" in name}
    if layout == "a changed base":
        name = "base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight"
        state[name] = state[name] + 1
        model.load_state_dict(state)
    torch.save(state, tmp_path / "adapter/adapter_model.bin")
    expected = read_weights(copy.deepcopy(model).merge_and_unload())
    assert are_equal(read_weights(tmp_path / "adapter"), expected)
    assert are_equal(read_weights(load_by_peft(base, tmp_path / "adapter")), expected)


def test_one_adapter_does_not_replace_what_another_one_changes(tmp_path: Path, inside: Command) -> None:
    base = write_base(tmp_path / "base")
    first = write_adapter(tmp_path / "first", base)
    second = write_adapter(tmp_path / "second", base, target_modules=["q_proj"], modules_to_save=["k_proj"])
    for adapters in ([first, second], [second, first], [second, second]):
        flags = [part for adapter in adapters for part in ("--adapter", adapter)]
        run = inside("score", base, *flags)
        assert run.returncode == UsageError.exit_code
        assert "k_proj.weight" in run.stderr
        assert len(run.stderr.splitlines()) == 1
    classes = write_adapter(
        tmp_path / "classes", base, transformers.LlamaForSequenceClassification, task_type="SEQ_CLS", r=2
    )
    assert len(read_weights(base, adapter=[f"{classes}=0.5", f"{first}=2"])) == 4


def noisy(**options: Any) -> Any:
    return train(make_llama(), **options)


def with_two(active: list[str]) -> Any:
    import peft

    model = peft.get_peft_model(make_llama(), peft.LoraConfig(r=3, target_modules=TARGETS), adapter_name="one")
    model.add_adapter("two", peft.LoraConfig(r=2, lora_alpha=4, use_rslora=True, target_modules=["k_proj"]))
    model.add_weighted_adapter(["one", "two"], [0.5, 2.0], "mixed", combination_type="cat")
    draw_updates(model)
    model.base_model.set_adapter(active)
    return model


def with_lines() -> Any:
    """Of the method of transformers itself, which has no other names than the model."""
    import peft

    model = make_llama()
    model.add_adapter(peft.LoraConfig(r=3, target_modules=TARGETS))
    draw_updates(model)
    return model


def merged_into(model: Any) -> Any:
    model.merge_adapter()
    return model


def disabled(model: Any) -> Any:
    model.base_model.disable_adapter_layers()
    return model


IN_MEMORY: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "LoRA": (noisy, lambda model: model.merge_and_unload()),
    "DoRA": (lambda: noisy(use_dora=True), lambda model: model.merge_and_unload()),
    "values only": (lambda: noisy(target_modules=["v_proj"]), lambda _: make_llama()),
    "whole keys": (
        lambda: noisy(target_modules=["q_proj"], modules_to_save=["k_proj"]), lambda model: model.merge_and_unload()
    ),
    "a changed base": (lambda: noisy(init_lora_weights="pissa"), lambda model: model.merge_and_unload()),
    "merged": (lambda: merged_into(noisy()), lambda _: noisy().merge_and_unload()),
    "disabled": (lambda: disabled(noisy()), lambda _: make_llama()),
    "the first of two": (lambda: with_two(["one"]), lambda model: model.merge_and_unload()),
    "both": (lambda: with_two(["one", "two"]), lambda model: model.merge_and_unload()),
    "mixed": (lambda: with_two(["mixed"]), lambda model: model.merge_and_unload()),
    "conv1d": (
        lambda: train(make_gpt2(), target_modules=["c_attn", "q_attn"], use_dora=True, fan_in_fan_out=True),
        lambda model: model.merge_and_unload(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", IN_MEMORY)
def test_a_model_in_memory_is_scored_as_it_runs(case: str) -> None:
    make, expect = IN_MEMORY[case]
    model = make()
    found = read_weights(model)
    assert are_equal(found, read_weights(expect(model)))


def test_a_model_with_layers_that_are_repeated() -> None:
    model = noisy(layer_replication=[[0, 2], [0, 1]])
    layers = model.base_model.model.model.layers
    expected = []
    for layer in layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            weight = projection.base_layer.weight + projection.get_delta_weight("default")
            expected.append(weight.detach().reshape(2, 8, 16).mT)
    assert len(layers) == 3
    assert are_equal(read_weights(model), expected)


def test_adapters_of_transformers_itself() -> None:
    model = with_lines()
    expected = []
    for layer in model.model.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            weight = projection.base_layer.weight + projection.get_delta_weight("default")
            expected.append(weight.detach().reshape(2, 8, 16).mT)
    assert are_equal(read_weights(model), expected)


def test_what_a_model_in_memory_may_not_have() -> None:
    import peft

    model = peft.get_peft_model(make_llama(), peft.IA3Config(target_modules=["k_proj"], feedforward_modules=[]))
    with pytest.raises(UnsupportedModelError, match="IA3"):
        read_weights(model)
    model = noisy()
    model.base_model.model.model.layers[1].self_attn.k_proj.set_scale("default", 3.0)
    with pytest.raises(UnsupportedModelError, match=r"layers\.1\.self_attn\.k_proj has the scale"):
        read_weights(model)


def test_the_revision_of_the_base_is_the_stated_one(here: Hub, tmp_path: Path) -> None:
    write_base(tmp_path / "main")
    base = write_base(tmp_path / "trained", lambda: spread(make_llama(), seed=5))
    adapter = write_adapter(tmp_path / "adapter", base)
    here.repositories |= {"org/base": tmp_path / "main", "org/base@v1": base}
    here.branches["v1"] = "1" * 40
    edit_settings(adapter, base_model_name_or_path="org/base", revision="v1")
    assert are_equal(read_weights(adapter), read_weights(load_by_peft(base, adapter)))
    for fields in ({"revision": "a b"}, {"base_model_name_or_path": "a b/c"}):
        edit_settings(adapter, **fields)
        with pytest.raises(CorruptCheckpointError, match="a b"):
            read_weights(adapter)
    edit_settings(adapter, base_model_name_or_path="org/base", revision=1)
    with pytest.raises(CorruptCheckpointError, match="revision = 1"):
        read_weights(adapter)


def test_an_adapter_beside_a_configuration_and_beside_a_model(here: Hub, tmp_path: Path) -> None:
    """A training may write config.json beside an adapter; a model beside it is the one that transformers adds it to."""
    base = write_base(tmp_path / "base")
    adapter = write_adapter(tmp_path / "adapter", base)
    expected = read_weights(load_by_peft(base, adapter))
    shutil.copy(base / "config.json", adapter)
    here.repositories |= {"org/adapter": adapter, "org/base": base}
    assert are_equal(read_weights(adapter), expected)
    edit_settings(adapter, base_model_name_or_path="org/base")
    assert are_equal(read_weights("org/adapter"), expected)
    edit_settings(adapter, base_model_name_or_path="org/gone")
    shutil.copy(base / "model.safetensors", adapter)
    running = transformers.AutoModelForCausalLM.from_pretrained(adapter)
    assert are_equal(read_weights(running), expected)
    assert are_equal(read_weights(adapter), expected)
    assert set(attngeo.score(adapter)["format"]) == {"F32+lora"}
    (adapter / "model.safetensors").rename(adapter / "other.safetensors")
    settings = json.loads((adapter / "config.json").read_text())
    (adapter / "config.json").write_text(json.dumps(settings | {"transformers_weights": "other.safetensors"}))
    assert are_equal(read_weights(adapter), expected)
    with pytest.raises(UnsupportedModelError, match="adapter from the same folder"):
        attngeo.verify(adapter / "other.safetensors")


def test_an_adapter_in_a_repository_is_added_to_the_base_that_it_names(here: Hub, tmp_path: Path) -> None:
    """As transformers does, whatever weights the repository has besides."""
    base = write_base(tmp_path / "base", lambda: spread(make_llama(), seed=5))
    adapter = write_adapter(tmp_path / "adapter", base)
    edit_settings(adapter, base_model_name_or_path="org/base")
    shutil.copytree(write_base(tmp_path / "other"), adapter, dirs_exist_ok=True)
    here.repositories |= {"org/adapter": adapter, "org/base": base}
    running = transformers.AutoModelForCausalLM.from_pretrained("org/adapter")
    assert are_equal(read_weights("org/adapter"), read_weights(running))


def test_an_adapter_that_is_its_own_base_is_asked_for_once(here: Hub, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "adapter", write_base(tmp_path / "base"))
    edit_settings(adapter, base_model_name_or_path="org/adapter")
    here.repositories["org/adapter"] = adapter
    with pytest.raises(CorruptCheckpointError, match="itself an adapter"):
        attngeo.score("org/adapter")
    assert len(here.requests) < 20


def test_an_adapter_that_is_not_in_the_cache(here: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NetworkError, match="offline mode is on; run once online with download"):
        attngeo.score("demo:encoder", adapter="org/none", offline=True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(NetworkError, match="HF_HUB_OFFLINE is set; run once online with download"):
        attngeo.score("demo:encoder", adapter="org/none")
    assert not here.requests


def test_a_long_name_of_a_base(tmp_path: Path, inside: Command) -> None:
    adapter = write_adapter(tmp_path / "adapter", write_base(tmp_path / "base"))
    for name in ("x/" * 2500, "x" * 5000):
        edit_settings(adapter, base_model_name_or_path=name)
        run = inside("score", adapter, "--offline")
        assert run.returncode == 3
        assert len(run.stderr) < 500
        assert len(run.stderr.splitlines()) == 1


def test_the_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    """Its own layers are missing, or all of its tensors."""
    adapter = write_adapter(tmp_path / "adapter", write_base(tmp_path / "base"))
    shallow = write_base(tmp_path / "shallow", lambda: make_llama(num_hidden_layers=1))
    with pytest.raises(CorruptCheckpointError, match=r"layers\.1.* give the base that the adapter was trained on"):
        read_weights(shallow, adapter=str(adapter))
    tensors = load_file(adapter / "adapter_model.safetensors")
    renamed = {name.replace("layers", "blocks"): tensor for name, tensor in tensors.items()}
    save_file(renamed, adapter / "adapter_model.safetensors")
    with pytest.raises(CorruptCheckpointError, match="give the base that the adapter was trained on"):
        read_weights(adapter)


@pytest.mark.parametrize("change", [copy.copy, merged_into], ids=["active", "merged"])
def test_a_model_with_adapters_in_memory_is_not_run(change: Callable[[Any], Any]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"merge_and_unload.*verify the result"):
        attngeo.verify(change(noisy()))
