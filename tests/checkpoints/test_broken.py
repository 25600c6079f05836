"""Broken and unsafe files are refused: the documented exit code, and one line with the file and the numbers."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Command
from support.checkpoints import (
    CONFIG,
    assert_refused,
    refuses_checkpoint,
    weights,
    write_config,
    write_header,
    write_index,
    write_sharded,
    write_single,
)

import attngeo
from attngeo.errors import (
    AttnGeoError,
    CorruptCheckpointError,
    UnsafeCheckpointError,
    UnsupportedModelError,
)

Q0 = "model.layers.0.self_attn.q_proj.weight"


def corrupt_header(folder: Path, **entry: Any) -> None:
    good = {"dtype": "F32", "shape": [24, 24], "data_offsets": [0, 2304]}
    write_header(write_config(folder) / "model.safetensors", {Q0: good | entry}, b"\0" * 2304)


def redirect_index(folder: Path, target: str) -> None:
    write_sharded(folder)
    write_index(folder, dict.fromkeys(weights(), target))


def truncate(path: Path, keep: int) -> None:
    os.truncate(path, keep)


# What is broken → how to write it, the error, and the facts that its message must state.
BROKEN: dict[str, tuple[Callable[[Path], object], type[AttnGeoError], tuple[str, ...]]] = {
    "no config": (
        lambda f: (f / "model.safetensors").write_bytes(b""),
        CorruptCheckpointError,
        ("config.json",),
    ),
    "a config one folder below": (
        lambda f: write_single(f / "model"),
        CorruptCheckpointError,
        ("config.json", "/model"),
    ),
    "configs in two folders below": (
        lambda f: [write_single(f / part) for part in ("values", "items")],
        CorruptCheckpointError,
        ("config.json", "/items or /values"),
    ),
    "config not JSON": (
        lambda f: (f / "config.json").write_text("{"),
        CorruptCheckpointError,
        ("config.json", "JSON"),
    ),
    "config a list": (
        lambda f: (f / "config.json").write_text("[]"),
        CorruptCheckpointError,
        ("config.json", "list"),
    ),
    "no weights": (
        write_config,
        CorruptCheckpointError,
        ("model.safetensors, model.safetensors.index.json, pytorch_model.bin", "*.safetensors or *.bin"),
    ),
    "two weight files": (
        lambda f: [write_header(write_config(f) / name, {}) for name in ("a.safetensors", "b.safetensors")],
        CorruptCheckpointError,
        ("2 weight files", "a.safetensors, b.safetensors"),
    ),
    "a shard without an index": (
        lambda f: write_header(write_config(f) / "model-00001-of-00003.safetensors", {}),
        CorruptCheckpointError,
        ("model-00001-of-00003.safetensors", "3 shards", "index"),
    ),
    "a missing shard": (
        lambda f: (write_sharded(f) / "model-00002-of-00003.safetensors").unlink(),
        CorruptCheckpointError,
        ("model-00002-of-00003.safetensors", "no such file"),
    ),
    "a shard that is a folder": (
        lambda f: [
            (write_sharded(f) / "model-00002-of-00003.safetensors").unlink(),
            (f / "model-00002-of-00003.safetensors").mkdir(),
        ],
        CorruptCheckpointError,
        ("model-00002-of-00003.safetensors", "no such file"),
    ),
    "a folder for a file": (
        lambda f: (write_config(f) / "model.safetensors").mkdir(),
        CorruptCheckpointError,
        ("no weights", "model.safetensors"),
    ),
    "a truncated shard": (
        lambda f: truncate(write_sharded(f) / "model-00003-of-00003.safetensors", 2000),
        CorruptCheckpointError,
        ("model-00003-of-00003.safetensors", "4,608 bytes"),
    ),
    "truncated inside the header": (
        lambda f: truncate(write_single(f) / "model.safetensors", 40),
        CorruptCheckpointError,
        ("model.safetensors", "header", "40"),
    ),
    "empty": (
        lambda f: truncate(write_single(f) / "model.safetensors", 0),
        CorruptCheckpointError,
        ("model.safetensors", "header", "0"),
    ),
    "an absurd header length": (
        lambda f: write_header(write_config(f) / "model.safetensors", {}, length=2**62),
        CorruptCheckpointError,
        ("model.safetensors", "4,611,686,018,427,387,904 bytes"),
    ),
    "a header longer than any": (
        lambda f: truncate(write_header(write_config(f) / "model.safetensors", {}, length=100_000_001), 200_000_000),
        CorruptCheckpointError,
        ("model.safetensors", "100,000,001 bytes"),
    ),
    "a header that is not JSON": (
        lambda f: write_header(write_config(f) / "model.safetensors", b"\xff\xfe{"),
        CorruptCheckpointError,
        ("model.safetensors", "header", "JSON"),
    ),
    "a header that is a list": (
        lambda f: write_header(write_config(f) / "model.safetensors", []),
        CorruptCheckpointError,
        ("model.safetensors", "header", "list"),
    ),
    "a header with a name twice": (
        lambda f: write_header(write_config(f) / "model.safetensors", b'{"a": 1, "a": 2}'),
        CorruptCheckpointError,
        ("model.safetensors", "header", "twice"),
    ),
    "offsets past the end": (
        lambda f: corrupt_header(f, data_offsets=[0, 99999]),
        CorruptCheckpointError,
        (Q0, "[0, 99999]", "2304"),
    ),
    "offsets that leave a hole": (
        lambda f: corrupt_header(f, data_offsets=[4, 2308]),
        CorruptCheckpointError,
        (Q0, "byte 4", "expected 0"),
    ),
    "negative offsets": (
        lambda f: corrupt_header(f, data_offsets=[-2304, 0]),
        CorruptCheckpointError,
        (Q0, "[-2304, 0]"),
    ),
    "a shape that does not fit": (
        lambda f: corrupt_header(f, shape=[24, 25]),
        CorruptCheckpointError,
        (Q0, "[24, 25]", "2304", "2400"),
    ),
    "a negative shape": (
        lambda f: corrupt_header(f, shape=[-24, -24]),
        CorruptCheckpointError,
        (Q0, "[-24, -24]", "expected only dtype, shape"),
    ),
    "an entry that is no entry": (
        lambda f: write_header(write_config(f) / "model.safetensors", {Q0: 5}),
        CorruptCheckpointError,
        (Q0, "'5'", "expected only dtype, shape"),
    ),
    "an index outside its folder": (
        lambda f: redirect_index(f, "../secret.safetensors"),
        CorruptCheckpointError,
        ("model.safetensors.index.json", "'../secret.safetensors'"),
    ),
    "an index with an absolute path": (
        lambda f: redirect_index(f, "/etc/x.safetensors"),
        CorruptCheckpointError,
        ("model.safetensors.index.json", "'/etc/x.safetensors'"),
    ),
    "an index to another format": (
        lambda f: redirect_index(f, "weights.npz"),
        UnsupportedModelError,
        ("model.safetensors.index.json", "weights.npz", "NumPy"),
    ),
    "an index to the wrong shard": (
        lambda f: redirect_index(f, "model-00001-of-00003.safetensors"),
        CorruptCheckpointError,
        ("self_attn", "model-00001-of-00003.safetensors"),
    ),
    "an index without a map": (
        lambda f: (write_config(f) / "model.safetensors.index.json").write_text("{}"),
        CorruptCheckpointError,
        ("model.safetensors.index.json", "weight_map"),
    ),
    "a bin that is no zip": (
        lambda f: (write_config(f) / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00."),
        CorruptCheckpointError,
        ("pytorch_model.bin", "PyTorch", "safetensors"),
    ),
    "a bin without tensors": (
        lambda f: torch.save({"a": 1}, write_config(f) / "pytorch_model.bin"),
        CorruptCheckpointError,
        ("pytorch_model.bin", "tensor"),
    ),
    "a bin that is a list": (
        lambda f: torch.save([torch.ones(2)], write_config(f) / "pytorch_model.bin"),
        CorruptCheckpointError,
        ("pytorch_model.bin", "list"),
    ),
    "a forged pickle": (
        lambda f: torch.save({5: 6}, write_config(f) / "pytorch_model.bin"),
        CorruptCheckpointError,
        ("pytorch_model.bin", "tensor"),
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_checkpoints_are_refused(case: str, tmp_path: Path) -> None:
    prepare, error, facts = BROKEN[case]
    prepare(tmp_path)
    with refuses_checkpoint(tmp_path, error, facts):
        attngeo.score(tmp_path)


def test_the_command_refuses_a_broken_checkpoint_in_one_line(tmp_path: Path, inside: Command) -> None:
    prepare, error, facts = BROKEN["an index to another format"]
    prepare(tmp_path)
    assert_refused(inside("score", tmp_path), tmp_path, error, facts)


def test_an_unsafe_pickle_is_refused_and_not_run(tmp_path: Path, inside: Command) -> None:
    marker = tmp_path / "it ran"

    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(marker),)

    path = write_config(tmp_path) / "pytorch_model.bin"
    torch.save({Q0: Attack()}, path)
    assert_refused(inside("score", tmp_path), tmp_path, UnsafeCheckpointError, ("pytorch_model.bin", "safetensors"))
    with refuses_checkpoint(tmp_path, UnsafeCheckpointError, ("pytorch_model.bin", "safetensors")):
        attngeo.score(tmp_path)
    path.write_bytes(pickle.dumps(Attack()))
    with refuses_checkpoint(tmp_path, CorruptCheckpointError, ("pytorch_model.bin",)):
        attngeo.score(tmp_path)
    assert not marker.exists()


def test_remote_code_is_never_run(tmp_path: Path) -> None:
    """A checkpoint may name Python files of its own; they are never loaded."""
    marker = tmp_path / "it ran"
    config = CONFIG | {
        "model_type": "custom",
        "auto_map": {"AutoModel": "modeling.Model", "AutoConfig": "modeling.Config"},
    }
    folder = write_single(tmp_path / "model", config=config)
    (folder / "modeling.py").write_text(f"import os; os.mkdir({str(marker)!r})")
    assert "custom" in attngeo.score(folder)["note"].iloc[0]
    assert not marker.exists()
