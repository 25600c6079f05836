"""Layers that a checkpoint lacks are listed; those that no model has there are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints import CONFIG, weights, write_config, write_index, write_sharded, write_single
from support.messages import refuses

import attngeo
from attngeo.attention.finding import sites_of
from attngeo.checkpoints.opening import open_store
from attngeo.errors import UnsupportedModelError
from attngeo.layouts.names import MOST_LAYERS

ABSENT = "the checkpoint has no tensors for this layer"


def list_absent(model: Any) -> list[str]:
    _, skipped = sites_of(open_store(model))
    return [name for name, reason in skipped.items() if ABSENT in reason]


def test_an_index_that_lacks_a_layer_is_scored_with_a_note(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path)
    assert attngeo.score(folder).attrs["skipped"] == {}
    index = folder / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    write_index(folder, {name: file for name, file in weight_map.items() if ".1." not in name})
    frame = attngeo.score(folder)
    assert list(frame["layer"]) == [0]
    assert frame.attrs["skipped"] == {"model.layers.1": f"{ABSENT}, although config.json states 2 layers"}
    write_index(folder, {name: file for name, file in weight_map.items() if ".0." not in name})
    assert list(attngeo.score(folder).attrs["skipped"]) == ["model.layers.0"]


def test_a_gap_is_listed_whatever_the_configuration_announces(tmp_path: Path) -> None:
    tensors = {name: tensor for name, tensor in weights(5).items() if ".2." not in name}
    folder = write_single(tmp_path, tensors, {name: value for name, value in CONFIG.items() if "layers" not in name})
    assert attngeo.score(folder).attrs["skipped"] == {"model.layers.2": f"{ABSENT}, although it has layer 4"}


@pytest.mark.parametrize("stack", ["encoder.stages", "backbone"])
def test_a_number_of_layers_is_not_that_of_stages(stack: str, tmp_path: Path) -> None:
    folder = write_single(
        tmp_path, {name.replace("model.layers", stack): tensor for name, tensor in weights(2).items()},
        CONFIG | {"model_type": "mystery", "num_hidden_layers": 6},
    )  # fmt: skip
    assert list_absent(folder) == []


@pytest.mark.parametrize("stated", [True, "2", 10**30, -1, 0, None, {}, [2], 1])
def test_a_number_of_layers_that_is_none_changes_nothing(stated: object, tmp_path: Path) -> None:
    folder = write_single(tmp_path)
    write_config(folder, CONFIG | {"num_hidden_layers": stated})
    assert list_absent(folder) == []


@pytest.mark.parametrize(
    ("stated", "more", "read", "drafting", "idle"),
    [
        (3, 1, [0, 1, 2], [3], ""),
        (1, 1, [0], [1], "layers 1-3 never run"),
        (1, 0, [0], [], "layers 1-3 never run"),
        (3, True, [0, 1, 2], [], "layer 3 never runs"),
        (4, 0, [0, 1, 2, 3], [], ""),
        (9, None, [0, 1, 2, 3], [], ""),
    ],
)
def test_layers_after_those_that_are_counted_are_listed(
    stated: int, more: object, read: list[int], drafting: list[int], idle: str, tmp_path: Path
) -> None:
    """Layers after those that config.json counts draft further tokens, or never run: transformers builds no more."""
    fields = {"num_hidden_layers": stated, "num_nextn_predict_layers": more}
    frame = attngeo.score(write_single(tmp_path, weights(4), CONFIG | fields))
    assert frame["layer"].tolist() == read
    skipped = dict(frame.attrs["skipped"])
    for layer in drafting:
        assert skipped.pop(f"model.layers.{layer}.self_attn") == "it only drafts further tokens"
    reason = skipped.pop("model.layers.#.self_attn", "")
    assert reason.startswith(idle)
    assert bool(reason) == bool(idle)
    assert all(ABSENT in reason for reason in skipped.values())


def write_stacks(folder: Path, config: dict[str, Any], *stacks: str, layers: int = 3) -> Path:
    """A model with these stacks, "#" for the number of a layer; cross-attention is beside the self-attention."""
    tensors = {}
    for stack in stacks:
        for layer in range(layers):
            for letter in ("q_proj", "k_proj"):
                tensors[f"{stack.replace('#', str(layer))}.{letter}.weight"] = torch.randn(24, 24)
    return write_single(folder, tensors, {"num_attention_heads": 4, "hidden_size": 24, "d_model": 24, **config})


ENCODER = "model.encoder.layers.#.self_attn"
DECODER = ("model.decoder.layers.#.self_attn", "model.decoder.layers.#.encoder_attn")
VISION = "vision_tower.blocks.#.attn"


@pytest.mark.parametrize(
    ("config", "stacks", "read"),
    [
        ({"model_type": "bart", "encoder_layers": 1, "decoder_layers": 2}, (ENCODER, *DECODER),
         {"encoder": 1, "decoder": 2, "cross": 2}),
        ({"model_type": "bart", "encoder_layers": 2, "num_hidden_layers": 1}, (ENCODER, *DECODER),
         {"encoder": 2, "decoder": 3, "cross": 3}),
        ({"model_type": "t5", "num_layers": 1, "num_decoder_layers": 2, "is_encoder_decoder": True},
         (ENCODER, *DECODER), {"encoder": 1, "decoder": 2, "cross": 2}),
        ({"model_type": "t5", "num_layers": 2, "num_decoder_layers": None, "is_encoder_decoder": True},
         (ENCODER, *DECODER), {"encoder": 2, "decoder": 2, "cross": 2}),
        ({"model_type": "gptj", "n_layer": 2}, ("h.#.attn",), {"decoder": 2}),
        ({"model_type": "gpt_neo", "attention_layers": ["global"], "num_layers": 2},
         ("transformer.h.#.attn.attention",), {"decoder": 2}),
        ({"model_type": "llava", "vision_config": {"depth": 1, "num_heads": 4},
          "text_config": {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4}},
         ("language_model.model.layers.#.self_attn", VISION), {"text": 2, "vision": 1}),
        # A number that may be meant for another stack, or for both together, says nothing.
        ({"model_type": "mystery", "num_hidden_layers": 2}, ("a.layers.#.self_attn", "b.layers.#.self_attn"),
         {"encoder": 6}),
        ({"model_type": "albert", "num_hidden_layers": 1, "num_hidden_groups": 1}, ("encoder.layers.#.attn",),
         {"encoder": 3}),
    ],
)  # fmt: skip
def test_the_number_of_layers_is_that_of_each_stack(
    config: dict[str, Any], stacks: tuple[str, ...], read: dict[str, int], tmp_path: Path
) -> None:
    sites, skipped = sites_of(open_store(write_stacks(tmp_path, config, *stacks)))
    counts: dict[str, int] = {}
    for site in sites:
        stack = site.stack.partition(":")[0]
        counts[stack] = counts.get(stack, 0) + 1
    assert counts == read
    listed = {pattern for pattern, reason in skipped.items() if "never run" in reason}
    assert len(listed) == sum(count < 3 for count in read.values())


def test_a_model_that_only_drafts_is_refused(tmp_path: Path) -> None:
    fields = {"num_hidden_layers": 0, "num_nextn_predict_layers": 9}
    with refuses(UnsupportedModelError, tmp_path, "model.layers.0.self_attn", "drafts further tokens"):
        attngeo.score(write_single(tmp_path, config=CONFIG | fields))


def test_a_layer_without_weights_of_its_own_is_counted_by_some_configurations(tmp_path: Path) -> None:
    """The decoder of Mask2Former has one layer less than its configuration states."""
    tensors = {
        f"model.transformer_module.decoder.layers.{layer}.self_attn.{name}_proj.weight": torch.randn(8, 8)
        for layer in (0, 1) for name in "qk"
    }  # fmt: skip
    for stated, absent in ((3, []), (4, ["model.transformer_module.decoder.layers.2"])):
        config = {"model_type": "mask2former", "hidden_dim": 8, "num_attention_heads": 2, "decoder_layers": stated}
        assert list_absent(write_single(tmp_path, tensors, config)) == absent


def test_the_number_in_a_name_does_not_make_a_list_endless(tmp_path: Path) -> None:
    tensors = {name.replace("layers.1", "layers.30000"): tensor for name, tensor in weights().items()}
    assert len(list_absent(write_single(tmp_path, tensors))) == MOST_LAYERS - 1
