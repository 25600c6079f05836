"""Layers whose heads differ: pruned ones, groups of their own in each layer, and lists in config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.checkpoints import CONFIG, refuses_checkpoint, write_single
from torch import Tensor

import attngeo
from attngeo.errors import AttnGeoError, CorruptCheckpointError, ShapeError

WIDTH, HEAD = 24, 6
SCORES = ["symmetry", "directionality", "frobenius_norm"]


def draw(heads: list[int], key_heads: list[int], name: str = "model.layers.{}.self_attn.{}_proj") -> dict[str, Tensor]:
    """Queries and keys of layers with these numbers of heads of 6."""
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for layer, counts in enumerate(zip(heads, key_heads, strict=True)):
        for letter, count in zip("qk", counts, strict=True):
            weight = torch.randn(count * HEAD, WIDTH, generator=generator)
            tensors[f"{name.format(layer, letter)}.weight"] = weight
    return tensors


def assert_heads_of(folder: Path, tensors: dict[str, Tensor], heads: list[int], key_heads: list[int]) -> None:
    """Each head is scored as M = Wq Wk^T of its rows, written out."""
    scores = attngeo.score(folder, per_head=True).dropna(subset="head")
    rows = []
    for layer, (count, keys) in enumerate(zip(heads, key_heads, strict=True)):
        (q,) = [tensor for name, tensor in tensors.items() if f".{layer}." in name and ".q" in name]
        (k,) = [tensor for name, tensor in tensors.items() if f".{layer}." in name and ".k" in name]
        for head in range(count):
            key_head = head // (count // keys)
            product = q.double()[head * HEAD :][:HEAD].T @ k.double()[key_head * HEAD :][:HEAD]
            rows.append((layer, head, float((product * product.T).sum() / product.square().sum()), product.norm()))
    assert [*zip(scores["layer"], scores["head"], strict=True)] == [(layer, head) for layer, head, *_ in rows]
    np.testing.assert_allclose(scores["symmetry"], [row[2] for row in rows], atol=1e-6)
    np.testing.assert_allclose(scores["frobenius_norm"], [row[3] for row in rows], rtol=1e-5)


BERT = {"model_type": "bert", "hidden_size": WIDTH, "num_attention_heads": 4, "num_hidden_layers": 2}
BERT_NAMES = "bert.encoder.layer.{}.attention.self.{}"


def draw_pruned(heads: list[int]) -> dict[str, Tensor]:
    tensors = draw(heads, heads, BERT_NAMES)
    return {name.replace(".q.", ".query.").replace(".k.", ".key."): tensor for name, tensor in tensors.items()}


def test_pruned_heads_are_missing_from_their_layers(tmp_path: Path) -> None:
    """As transformers 4 saves a model after prune_heads; the width of a head stays."""
    tensors = draw_pruned([2, 4])
    folder = write_single(tmp_path, tensors, BERT | {"pruned_heads": {"0": [1, 3]}})
    assert_heads_of(folder, tensors, [2, 4], [2, 4])
    notes = attngeo.score(folder)["note"]
    assert "2 pruned heads" in notes.iloc[0]
    assert "pruned" not in notes.iloc[1]


def test_groups_of_their_own_in_each_layer(tmp_path: Path) -> None:
    """As nemotron-nas states them; a layer may have no attention."""
    tensors = draw([4, 4, 4], [2, 1, 4])
    kept = {name: tensor for name, tensor in tensors.items() if ".1." not in name}
    blocks = [
        {"attention": {"n_heads_in_group": 2}},
        {"attention": {"no_op": True}},
        {"attention": {"n_heads_in_group": 1}},
    ]
    config = CONFIG | {"model_type": "nemotron-nas", "num_key_value_heads": None, "block_configs": blocks}
    folder = write_single(tmp_path, kept, config | {"num_hidden_layers": 3})
    scores = attngeo.score(folder, per_head=True)
    assert scores["layer"].unique().tolist() == [0, 2]
    blocks[1] = {"attention": {"n_heads_in_group": 4}}
    folder = write_single(tmp_path / "all", tensors, config | {"num_hidden_layers": 3})
    assert_heads_of(folder, tensors, [4, 4, 4], [2, 1, 4])


@pytest.mark.parametrize(
    ("heads", "key_heads", "stated"),
    [
        ([4, 4], [2, 4], {"num_key_value_heads_per_layer": [2, 4]}),
        ([2, 4], [2, 2], {"num_attention_heads_per_layer": [2, 4]}),
        ([2, 4], [1, 2], {"num_query_heads": [2, 4], "num_kv_heads": [1, 2]}),
        ([2, 4], [1, 2], {"per_layer_config": {"0": {"num_attention_heads": 2, "num_key_value_heads": 1}}}),
    ],
)
def test_lists_with_an_entry_for_each_layer(
    heads: list[int], key_heads: list[int], stated: dict[str, Any], tmp_path: Path
) -> None:
    tensors = draw(heads, key_heads)
    config = CONFIG | stated
    if "num_query_heads" in stated:
        config = {
            name: value for name, value in config.items() if name not in ("num_attention_heads", "num_key_value_heads")
        }
    assert_heads_of(write_single(tmp_path, tensors, config), tensors, heads, key_heads)


# What is wrong → what config.json states, the error, and the facts that its message must state.
UNFIT: dict[str, tuple[dict[str, Any], type[AttnGeoError], tuple[str, ...]]] = {
    "a group that does not divide": (
        {"block_configs": [{"attention": {"n_heads_in_group": 3}}] * 2}, CorruptCheckpointError,
        ("n_heads_in_group = 3", "layer 0", "4 heads"),
    ),
    "a group that is no number": (
        {"block_configs": [{"attention": {"n_heads_in_group": "2"}}] * 2}, CorruptCheckpointError, ("'2'", "divisor")
    ),
    "a pruned head that is none": (
        {"pruned_heads": {"0": [4]}}, CorruptCheckpointError, ("pruned_heads", "layer 0", "[4]", "0 to 3")
    ),
    "all heads pruned": ({"pruned_heads": {"0": [0, 1, 2, 3]}}, CorruptCheckpointError, ("pruned_heads", "layer 0")),
    "pruned heads that are no list": ({"pruned_heads": {"0": 1}}, CorruptCheckpointError, ("pruned_heads", "layer 0")),
    "heads in a form that is not read": (
        {"heads_of_layers": {"0": 2, "1": 4}}, ShapeError, ("q_proj.weight", "12", "heads_of_layers", "not read")
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", UNFIT)
def test_what_fits_no_layer_is_said(case: str, tmp_path: Path) -> None:
    stated, error, facts = UNFIT[case]
    write_single(tmp_path, draw([2, 4], [2, 4]), CONFIG | {"num_key_value_heads": 4} | stated)
    with refuses_checkpoint(tmp_path, error, facts):
        attngeo.score(tmp_path)
