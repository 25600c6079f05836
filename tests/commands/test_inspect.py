"""`attngeo inspect`: what is read and what is left out, module by module."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import Command
from rich.filesize import decimal
from support.checkpoints import weights, write_config, write_sharded, write_single
from support.kept import file_of, write_layers
from support.messages import assert_states

from attngeo.errors import CheckpointError, UsageError

Save = Callable[[str], Path]


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A LLaMA of two layers, with three more modules that look like attention and that no layout reads."""
    others = {f"tower.{layer}.att.qkv.weight": torch.ones(4, 4) for layer in (0, 1, 4)}
    return write_single(tmp_path / "mixed", weights() | others)


def test_each_pattern_is_listed_once_with_its_layers_heads_and_tensors(inside: Command, saved: Save) -> None:
    run = inside("inspect", saved("whisper"))
    assert (run.returncode, run.stderr) == (0, "")
    lines = [line.strip() for line in run.stdout.splitlines()]
    for pattern, layers in (
        ("model.encoder.layers.#.self_attn", "layers 0-1"),
        ("model.decoder.layers.#.self_attn", "layers 0-2"),
        ("model.decoder.layers.#.encoder_attn", "layers 0-2"),
    ):
        (at,) = (number for number, line in enumerate(lines) if line.startswith(f"{pattern} · {layers} · "))
        assert "q_proj.weight F32 [32, 32], k_proj.weight F32 [32, 32]" in lines[at + 1]
        assert "family whisper" in lines[at + 1]
    assert not any("layers.0." in line for line in lines)
    assert max(map(len, run.stdout.splitlines()[:8])) <= 80


def test_what_is_left_out_is_listed_with_its_layers_and_its_reason(inside: Command, mixed: Path) -> None:
    run = inside("inspect", mixed)
    lines = [line.strip() for line in run.stdout.splitlines()]
    place = lines.index("left out")
    assert lines[place + 1] == "tower.#.att.qkv.weight · layers 0-1, 4"
    assert "no known layout" in lines[place + 2]
    found = json.loads(inside("inspect", mixed, "--format", "json").stdout)
    assert found["left_out"].keys() == {"tower.#.att.qkv.weight"}
    assert [site["module"] for site in found["sites"]] == [f"model.layers.{layer}.self_attn" for layer in (0, 1)]


def test_the_cost_is_stated_for_a_model_on_this_machine(inside: Command, mixed: Path) -> None:
    """Queries and keys of two layers, without values and the rest."""
    found = json.loads(inside("inspect", mixed, "--format", "json").stdout)
    read, total = 2 * 4 * (24 * 24 + 12 * 24), sum(tensor.nbytes for tensor in weights().values()) + 3 * 4 * 16
    assert (found["bytes_to_read"], found["bytes_total"]) == (read, total)
    assert found["share_to_read"] == read / total
    assert f"to read: 6.9 kB of 14.2 kB ({read / total:.1%})" in inside("inspect", mixed).stdout.splitlines()


def test_no_share_of_a_total_that_is_too_small(inside: Command, tmp_path: Path) -> None:
    """An index may state any number of bytes."""
    index = write_sharded(tmp_path) / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("12345", "123"))
    assert json.loads(inside("inspect", tmp_path, "--format", "json").stdout)["share_to_read"] is None
    assert "to read: 6.9 kB of 123 bytes" in inside("inspect", tmp_path).stdout.splitlines()


def test_verbose_lists_every_module(inside: Command, mixed: Path) -> None:
    plain, verbose = (inside("inspect", mixed, *options).stdout for options in ((), ("-v",)))
    for name in ("model.layers.1.self_attn", "tower.4.att.qkv.weight"):
        assert name not in plain
        assert name in verbose


def test_the_cost_of_a_study_is_that_of_its_models(inside: Command, mixed: Path, saved: Save, tmp_path: Path) -> None:
    (tmp_path / "models.txt").write_text(f"{mixed}  # has other modules\ndemo:encoder\n{saved('whisper')}\n")
    run = inside("inspect", "--models", tmp_path / "models.txt", "--format", "json")
    models = [mixed, "demo:encoder", saved("whisper")]
    alone = [json.loads(inside("inspect", model, "--format", "json").stdout) for model in models]
    assert json.loads(run.stdout) == alone
    table = inside("inspect", "--models", tmp_path / "models.txt", COLUMNS="200")
    lines = [line.split() for line in table.stdout.splitlines() if line.strip()]
    assert [line[0] for line in lines[2:5]] == [str(mixed), "demo:encoder", str(saved("whisper"))]
    layers, read, total = (
        sum(count(found) for found in alone)
        for count in (lambda f: len(f["sites"]), lambda f: f["bytes_to_read"], lambda f: f["bytes_total"])
    )
    sizes = [*decimal(read).split(), *decimal(total).split()]
    assert lines[5] == ["3", "models", str(layers), *sizes, f"{read / total:.1%}"]


def test_a_model_that_fails_does_not_stop_the_others(inside: Command, mixed: Path) -> None:
    run = inside("inspect", "demo:encoder", "demo:nothing", mixed, "--format", "json")
    assert [found["model"] for found in json.loads(run.stdout)] == ["demo:encoder", str(mixed)]
    assert run.returncode == CheckpointError.exit_code
    assert_states(run.stderr, "demo:nothing")
    nothing = inside("inspect")
    assert (nothing.returncode, nothing.stdout) == (UsageError.exit_code, "")
    assert_states(nothing.stderr, "--models")


def test_a_shard_that_is_missing_leaves_out_its_layer(inside: Command, tmp_path: Path) -> None:
    """If a rule found the modules: the rest of the model may be what it seems."""
    folder = write_layers(tmp_path / "model")
    write_config(folder, json.loads((folder / "config.json").read_text()) | {"model_type": "unknown"})
    (folder / file_of(3)).unlink()
    found = json.loads(inside("inspect", folder, "--format", "json").stdout)
    assert [site["layer"] for site in found["sites"]] == [0, 1, 2, 4, 5]
    (reason,) = found["left_out"].values()
    assert_states(reason, file_of(3))
