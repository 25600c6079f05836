"""GGUF files are scored as the checkpoints that they were made from."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pandas as pd
import pytest
import torch
from conftest import Command
from support.checkpoints import assert_refused, refuses_checkpoint, write_single
from support.circuits import assert_same_outputs
from support.gguf_files import (
    CONFIG,
    DECODED_ONLY,
    HEAD,
    HEADS,
    KEY_HEADS,
    Q4_0,
    Q8_0,
    SCORES,
    WIDTH,
    draw_state,
    write_gguf,
    write_merged,
    write_splits,
)
from support.hub_server import Hub
from torch import Tensor

import attngeo
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.gguf import GGML_TYPES
from attngeo.checkpoints.opening import open_store
from attngeo.errors import CorruptCheckpointError, UnsupportedModelError


def assert_same(folder: Path, path: Path, decoded: Mapping[str, Tensor], model_type: str, **options: Any) -> None:
    plain = write_single(folder / "plain", dict(decoded), CONFIG | {"model_type": model_type})
    scores = attngeo.score(path, per_head=True, **options)
    expected = attngeo.score(plain, per_head=True, **options)
    assert len(scores) == len(expected) == 2 * (HEADS + 1)
    assert scores["parameters"].tolist() == expected["parameters"].tolist()
    np.testing.assert_allclose(scores[SCORES[:2]], expected[SCORES[:2]], rtol=0, atol=1e-6)
    np.testing.assert_allclose(scores[SCORES[2]], expected[SCORES[2]], rtol=1e-6)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_a_llama_is_scored_as_its_checkpoint(name: str, tmp_path: Path) -> None:
    """Also with rotary embeddings, whose pairs llama.cpp makes neighbours."""
    kind = gguf.GGMLQuantizationType[name]
    decoded = write_gguf(tmp_path / "model.gguf", draw_state(biases=True), kind)
    for options in ({}, {"rope_offset": 3}, {"with_bias": True, "fold_norm": True}):
        assert_same(tmp_path, tmp_path / "model.gguf", decoded, "llama", **options)


@pytest.mark.parametrize("name", ["F32", "F16", "Q4_0", "Q8_0"])
def test_values_and_outputs_of_a_llama_are_not_permuted(name: str, tmp_path: Path) -> None:
    """Unlike its queries and keys."""
    generator = torch.Generator().manual_seed(2)
    outputs = {
        f"model.layers.{layer}.self_attn.o_proj.weight": torch.randn(WIDTH, HEADS * HEAD, generator=generator)
        for layer in (0, 1)
    }
    state = draw_state(biases=True) | outputs
    decoded = write_gguf(tmp_path / "model.gguf", state, gguf.GGMLQuantizationType[name])
    plain = write_single(tmp_path / "plain", decoded, CONFIG | {"model_type": "llama"})
    assert_same_outputs(tmp_path / "model.gguf", plain)


@pytest.mark.parametrize("kind", DECODED_ONLY, ids=lambda kind: kind.name)
def test_all_types_that_the_package_decodes(kind: Any, tmp_path: Path) -> None:
    decoded = write_gguf(tmp_path / "model.gguf", draw_state(), kind)
    assert_same(tmp_path, tmp_path / "model.gguf", decoded, "llama")


def test_types_have_the_numbers_and_blocks_of_the_package() -> None:
    for number, (name, values, nbytes) in GGML_TYPES.items():
        kind = gguf.GGMLQuantizationType[name]
        assert number == kind
        assert (values, nbytes) == gguf.GGML_QUANT_SIZES[kind]


def test_norms_of_queries_and_keys(tmp_path: Path) -> None:
    state = draw_state(head_norms=True)
    decoded = write_gguf(tmp_path / "model.gguf", state, Q8_0, architecture="qwen3", permuted=False)
    assert_same(tmp_path, tmp_path / "model.gguf", decoded, "qwen3", rope_offset=2)


def test_norms_after_attention(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(2)
    state = draw_state()
    for layer in (0, 1):
        prefix = f"model.layers.{layer}"
        state[f"{prefix}.self_attn.o_proj.weight"] = torch.randn(WIDTH, HEADS * HEAD, generator=generator)
        state[f"{prefix}.post_attention_layernorm.weight"] = torch.rand(WIDTH, generator=generator)
    stored = {"architecture": "gemma2", "permuted": False, "gain_offset": 1.0}
    decoded = write_gguf(tmp_path / "model.gguf", state, Q8_0, **stored)
    plain = write_single(tmp_path / "plain", decoded, CONFIG | {"model_type": "gemma2"})
    assert_same_outputs(tmp_path / "model.gguf", plain, fold_norm=True)
    (first, _) = attngeo.attention_sites(plain, circuit="ov", fold_norm=True)
    assert "o_norm" in first.site.tensors


def test_gains_that_are_stored_plus_one(tmp_path: Path) -> None:
    state = draw_state()
    decoded = write_gguf(tmp_path / "model.gguf", state, Q8_0, architecture="gemma2", permuted=False, gain_offset=1.0)
    assert_same(tmp_path, tmp_path / "model.gguf", decoded, "gemma2", fold_norm=True)


@pytest.mark.parametrize("small_first_shard", [False, True])
def test_a_model_in_several_files(small_first_shard: bool, tmp_path: Path, inside: Command) -> None:
    first = write_splits(tmp_path, small_first_shard=small_first_shard)
    parts = sorted(tmp_path.glob("m-*.gguf"))
    assert len(parts) == (4 if small_first_shard else 3)
    assert "general.architecture" not in gguf.GGUFReader(parts[1]).fields
    expected = attngeo.score(tmp_path / "whole.gguf", rope_offset=3)
    (tmp_path / "whole.gguf").unlink()
    compared = [*SCORES, "parameters"]
    for path in (first, tmp_path):
        scores = attngeo.score(path, rope_offset=3)
        pd.testing.assert_frame_equal(scores[compared], expected[compared], check_exact=True)
    assert_refused(inside("score", parts[1]), parts[1], CorruptCheckpointError, (f"give {first.name}",))
    with refuses_checkpoint(parts[1], CorruptCheckpointError, (f"give {first.name}",)):
        attngeo.score(parts[1])
    parts[2].unlink()
    with refuses_checkpoint(parts[2], CorruptCheckpointError, ("no such file",)):
        attngeo.score(first)
    first.rename(tmp_path / "renamed.gguf")
    path = tmp_path / "renamed.gguf"
    with refuses_checkpoint(path, CorruptCheckpointError, (f"{len(parts)} parts", "00001-of")):
        attngeo.score(path)


@pytest.mark.parametrize("name", ["merged.gguf", "m-00001-of-00003.gguf"])
@pytest.mark.parametrize("count", [0, 1])
def test_a_merged_file_is_whole_whatever_its_name(count: int, name: str, tmp_path: Path) -> None:
    """gguf-split --merge of llama.cpp states 0 parts and all tensors; the file may keep the name of the first part."""
    write_gguf(tmp_path / "whole.gguf", draw_state())
    expected = attngeo.score(tmp_path / "whole.gguf")
    write_merged(tmp_path / "merged" / name, tmp_path / "whole.gguf", count)
    for path in (tmp_path / "merged" / name, tmp_path / "merged"):
        pd.testing.assert_frame_equal(attngeo.score(path)[SCORES], expected[SCORES], check_exact=True)


def test_several_files_on_the_hub(here: Hub, tmp_path: Path) -> None:
    """Read by ranges, downloaded, and downloaded after they were open."""
    folder = here.repositories["org/name"] = tmp_path / "remote"
    first = write_splits(folder)
    (folder / ".gitattributes").write_text("*.gguf filter=lfs")
    expected = attngeo.score(folder / "whole.gguf", rope_offset=3)
    for hub in (HubAccess(), HubAccess(download=True)):
        scores = attngeo.score(f"org/name/{first.name}", rope_offset=3, hub=hub, fresh=True)
        pd.testing.assert_frame_equal(scores[SCORES], expected[SCORES], check_exact=True)
    with closing(open_store(f"org/name/{first.name}")) as store:
        store.download(lambda _: None)
        for name, tensor in draw_state().items():
            assert torch.equal(store.read(name), tensor), name


def test_a_folder_and_what_inspect_says(tmp_path: Path, inside: Command) -> None:
    write_gguf(tmp_path / "model.gguf", draw_state(), Q4_0)
    shown = inside("inspect", tmp_path)
    assert shown.returncode == 0, shown.stderr
    run = inside("inspect", tmp_path, "--format", "json")
    assert '"Q4_0"' in run.stdout
    layers = 2 * (HEADS + KEY_HEADS) * HEAD * WIDTH // 32 * 18
    assert f'"bytes_to_read": {layers}' in run.stdout


def test_a_file_on_the_hub_is_read_by_ranges(here: Hub, tmp_path: Path) -> None:
    """The header, and the blocks of queries and keys; the repository has no config.json."""
    folder = here.repositories["org/name"] = tmp_path / "remote"
    folder.mkdir()
    (folder / ".gitattributes").write_text("*.gguf filter=lfs")
    generator = torch.Generator().manual_seed(0)
    unread = {f"model.layers.{i}.unread.weight": torch.randn(4096, WIDTH, generator=generator) for i in range(2)}
    state = dict(sorted((draw_state() | unread).items()))
    write_gguf(folder / "model.gguf", state, Q8_0)
    scores = attngeo.score("org/name/model.gguf")
    pd.testing.assert_frame_equal(scores[SCORES], attngeo.score(folder / "model.gguf")[SCORES])
    header = 1 << 16  # is read in parts of this size at first
    needed = 2 * (HEADS + KEY_HEADS) * HEAD * WIDTH // 32 * 34
    assert needed < here.sent.total() < header + needed + 10_000


def test_a_scaling_that_is_not_read_is_refused_for_offsets_only(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", draw_state(), Q8_0, rope__scaling__type="yarn")
    assert len(attngeo.score(tmp_path / "model.gguf")) == 2
    with pytest.raises(UnsupportedModelError, match="yarn"):
        attngeo.score(tmp_path / "model.gguf", rope_offset=1)
