"""State dicts saved by PyTorch before 1.6: read as torch.load reads them, in part if they are remote, or refused."""

from __future__ import annotations

import io
import pickle
import random
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pytest
import torch
from support.checkpoints import weights, write_config
from support.damage import Rebuilt, Storage, pickle_state, run_bounded, write_torch
from support.hub_server import Hub
from support.messages import refuses
from support.mutate import mutate_bytes

import attngeo
from attngeo.checkpoints import torch_legacy
from attngeo.checkpoints.tensor_file import RegularFile
from attngeo.checkpoints.torch_file import TorchFile
from attngeo.checkpoints.torch_legacy import MARKS
from attngeo.errors import CheckpointError, CorruptCheckpointError, UnsafeCheckpointError

from .test_torch_files import BOMBS

VERSION = pickle.dumps(1001, 2)
SYSTEM = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
FOUR = {"a": Rebuilt(Storage("0", 4), (2, 2), (2, 1))}


def pickle_old(state: dict[str, Any]) -> bytes:
    """The pickle of a state dict; behind the numbers of a storage is the view that it is, None."""
    return re.sub(rb"K(.)t", rb"K\1Nt", pickle_state(state))


def write_old(path: Path, tensors: Any) -> Path:
    """A file as PyTorch wrote it before 1.6, beside a config.json."""
    write_config(path.parent)
    torch.save(dict(tensors), path, _use_new_zipfile_serialization=False)
    return path


def assemble(
    state: bytes = pickle_old(FOUR),
    keys: Any = ("0",),
    *,
    version: bytes = VERSION,
    system: Any = SYSTEM,
    content: bytes = struct.pack("<q4f", 4, 1, 2, 3, 4),
) -> bytes:
    """The bytes of a file, from its parts."""
    listed = list(keys) if isinstance(keys, tuple) else keys
    return MARKS[0] + version + pickle.dumps(system, 2) + state + pickle.dumps(listed, 2) + content


def read_file(path: Path, content: bytes) -> dict[str, torch.Tensor]:
    """All tensors of a file with this content."""
    path.write_bytes(content)
    file = TorchFile(RegularFile(path))
    return {name: file.read(name) for name in file.tensors}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pytorch_model.bin"


def test_scores_are_those_of_a_newer_file(tmp_path: Path) -> None:
    old = write_old(tmp_path / "old" / "pytorch_model.bin", weights())
    new = write_torch(tmp_path / "new" / "pytorch_model.bin", weights())
    frames = [attngeo.score(path.parent, per_head=True).drop(columns="model") for path in (old, new)]
    pd.testing.assert_frame_equal(*frames)


def test_a_remote_file_is_read(here: Hub, tmp_path: Path) -> None:
    folder = here.repositories["org/name"] = write_old(tmp_path / "remote" / "pytorch_model.bin", weights()).parent
    expected = attngeo.score(folder).drop(columns=["model", "revision"])
    pd.testing.assert_frame_equal(attngeo.score("org/name").drop(columns=["model", "revision"]), expected)


@pytest.mark.parametrize("protocol", [2, 3])
def test_protocols_are_those_of_torch(protocol: int, path: Path) -> None:
    torch.save(weights(), path, _use_new_zipfile_serialization=False, pickle_protocol=protocol)
    read = read_file(path, path.read_bytes())
    assert all(torch.equal(read[name], tensor) for name, tensor in weights().items())


def test_what_is_assembled_here_is_as_torch_reads_it(path: Path) -> None:
    (read,) = read_file(path, assemble()).values()
    assert torch.equal(read, torch.load(io.BytesIO(assemble()), weights_only=True)["a"])
    assert read.tolist() == [[1, 2], [3, 4]]


def shared(first: int, second: int) -> bytes:
    return pickle_old({"a": Rebuilt(Storage("0", first), (2,), (1,)), "b": Rebuilt(Storage("0", second), (2,), (1,))})


# Why a file is refused → its content, and a fact of the error.
REFUSED = {
    "another version": (assemble(version=pickle.dumps(1002, 2)), "1001"),
    "a version that is none": (assemble(version=pickle.dumps("1001", 2)), "1001"),
    "other byte order": (assemble(system=SYSTEM | {"little_endian": False}), "little-endian"),
    "no system": (assemble(system=None), "little-endian"),
    "a storage that is not listed": (assemble(keys=()), "list of storages"),
    "a storage that no tensor uses": (assemble(keys=("0", "1"), content=b"\0" * 100), "list of storages"),
    "a storage that is listed twice": (assemble(keys=("0", "0"), content=b"\0" * 100), "list of storages"),
    "a list that is none": (assemble(keys="0"), "list of storages"),
    "keys that are no texts": (assemble(keys=(0,)), "list of storages"),
    "two sizes of one storage": (assemble(shared(4, 2)), "two sizes"),
    "another count": (assemble(content=struct.pack("<q4f", 5, 1, 2, 3, 4)), "5 numbers"),
    "fewer bytes": (assemble(content=struct.pack("<q3f", 4, 1, 2, 3)), "bytes"),
    "no storage": (assemble(content=b""), "bytes"),
    "no list of storages": (MARKS[0] + VERSION + pickle.dumps(SYSTEM, 2) + pickle_old(FOUR), "EOFError"),
    "nothing but the mark": (MARKS[0], "EOFError"),
    "no state dict": (assemble(pickle.dumps([1], 2), keys=(), content=b""), "list"),
    "no tensors": (assemble(pickle.dumps({"a": 1}, 2), keys=(), content=b""), "no tensors"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_is_not_as_torch_writes_it_is_refused(case: str, path: Path) -> None:
    content, fact = REFUSED[case]
    with refuses(CorruptCheckpointError, path.name, fact):
        read_file(path, content)


def test_a_view_of_another_storage_is_refused(path: Path) -> None:
    """Files from before PyTorch 0.4 may have them."""
    with_view = assemble().replace(b"K\x04Nt", b"K\x04(K\x00K\x00K\x04tt")
    assert with_view != assemble()
    with refuses(CorruptCheckpointError, path.name, "storage"):
        read_file(path, with_view)


def test_a_pickle_longer_than_any_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_old(path, {"x" * 500: torch.zeros(2)})
    monkeypatch.setattr(torch_legacy, "LONGEST", 400)
    with refuses(CorruptCheckpointError, path.name):
        TorchFile(RegularFile(path))


def test_code_is_never_called(path: Path, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "called",)

    with refuses(UnsafeCheckpointError, path.name, "getattr"):
        read_file(path, assemble(pickle.dumps({"a": Evil()}, 2)))
    assert not (tmp_path / "called").exists()


@pytest.mark.slow
def test_small_pickles_take_little_memory(tmp_path: Path) -> None:
    write_config(tmp_path)
    places = [tmp_path / f"{number}.bin" for number in range(len(BOMBS))]
    for place, data in zip(places, BOMBS.values(), strict=True):
        place.write_bytes(assemble(data))
    for case, outcome in zip(BOMBS, run_bounded("attngeo.score(place)", *places), strict=True):
        assert outcome.kind in ("CorruptCheckpointError", "UnsafeCheckpointError"), (case, outcome)


def mutants() -> Iterator[bytes]:
    rng, buffer = Random(random.getrandbits(64)), io.BytesIO()
    torch.save(dict(weights(1)), buffer, _use_new_zipfile_serialization=False)
    for _ in range(400):
        yield mutate_bytes(rng, buffer.getvalue()[: rng.choice((2000, 10**6))])


def test_mutants_are_read_or_refused(path: Path) -> None:
    refused = 0
    for content in mutants():
        with suppress(CheckpointError):
            read_file(path, content)
            continue
        refused += 1
    assert 50 < refused < 400
