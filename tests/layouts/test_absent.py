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
from attngeo.checkpoints.opening import open_store
from attngeo.errors import UnsupportedModelError
from attngeo.layouts.names import MOST_LAYERS
from attngeo.scores.weights import sites_of

ABSENT = "the checkpoint has no tensor of it"


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
    assert frame.attrs["skipped"] == {"model.layers.1": f"{ABSENT}, but config.json announces 2 layers"}
    write_index(folder, {name: file for name, file in weight_map.items() if ".0." not in name})
    assert list(attngeo.score(folder).attrs["skipped"]) == ["model.layers.0"]


def test_a_gap_is_listed_whatever_the_configuration_announces(tmp_path: Path) -> None:
    tensors = {name: tensor for name, tensor in weights(5).items() if ".2." not in name}
    folder = write_single(tmp_path, tensors, {name: value for name, value in CONFIG.items() if "layers" not in name})
    assert attngeo.score(folder).attrs["skipped"] == {"model.layers.2": f"{ABSENT}, but layer 4 comes after it"}


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
    ("stated", "more", "read"), [(3, 1, [0, 1, 2]), (1, 1, [0, 2, 3]), (1, 0, [0, 1, 2, 3]), (1, True, [0, 1, 2, 3])]
)
def test_no_layer_beyond_the_last_one_is_lost(stated: int, more: int, read: list[int], tmp_path: Path) -> None:
    """Layers that draft further tokens are listed with the reason; no other layer is taken for one."""
    fields = {"num_hidden_layers": stated, "num_nextn_predict_layers": more}
    frame = attngeo.score(write_single(tmp_path, weights(4), CONFIG | fields))
    assert frame["layer"].tolist() == read
    drafting = sorted({0, 1, 2, 3} - set(read))
    assert frame.attrs["skipped"] == {
        f"model.layers.{layer}.self_attn": "it drafts further tokens" for layer in drafting
    }


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
