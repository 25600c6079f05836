"""Broken GGUF files are refused, each in one line."""

from __future__ import annotations

import random
import shutil
import struct
import tracemalloc
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Command
from support.checkpoints import assert_refused, refuses_checkpoint
from support.gguf_files import (
    HEAD,
    KEYS,
    NAMES,
    Q4_0,
    Q8_0,
    draw_state,
    rename,
    write_gguf,
    write_splits,
    write_tensors,
)

import attngeo
from attngeo.checkpoints.gguf import GgufFile
from attngeo.checkpoints.gguf_header import HeaderReader, Unread
from attngeo.checkpoints.tensor_file import RegularFile
from attngeo.errors import AttnGeoError, CorruptCheckpointError, UnsupportedModelError


def change_entry(
    raw: bytes, name: bytes, *, shift: int = 0, kind: int | None = None, called: bytes | None = None
) -> bytes:
    """The header's entry of a matrix with another offset in bytes, type or name of the same length."""
    at = raw.index(name)
    place = at + len(name) + 4 + 2 * 8
    stated, offset = struct.unpack_from("<IQ", raw, place)
    changed = struct.pack("<IQ", stated if kind is None else kind, offset + shift)
    return raw[:at] + (called or name) + raw[at + len(name) : place] + changed + raw[place + len(changed) :]


def change_value(raw: bytes, key: bytes, value: int) -> bytes:
    """Another number of 32 bits for a key of the header."""
    at = raw.index(key) + len(key) + 4
    return raw[:at] + struct.pack("<I", value) + raw[at + 4 :]


Damage = Callable[[bytes], bytes]
# What is wrong → how the bytes are changed, error, facts of its message.
BROKEN: dict[str, tuple[Damage, type[AttnGeoError], tuple[str, ...]]] = {
    "another kind of file": (lambda raw: b"GGML" + raw[4:], CorruptCheckpointError, ("GGML",)),
    "an unknown version": (
        lambda raw: raw[:4] + struct.pack("<I", 1) + raw[8:], UnsupportedModelError, ("version 1",)
    ),
    "too many tensors": (
        lambda raw: raw[:8] + struct.pack("<Q", 1 << 60) + raw[16:], CorruptCheckpointError, ("announces",)
    ),
    "too many values": (
        lambda raw: raw[:16] + struct.pack("<Q", 1 << 60) + raw[24:], CorruptCheckpointError, ("announces",)
    ),
    "a name of 2^60 bytes": (
        lambda raw: raw[:24] + struct.pack("<Q", 1 << 60) + raw[32:], CorruptCheckpointError, ("announces",)
    ),
    "a file that ends in its header": (lambda raw: raw[:300], CorruptCheckpointError, ("announces", "300")),
    "a file that ends in its data": (lambda raw: raw[:-40_000], CorruptCheckpointError, ("does not fit",)),
    "an empty file": (lambda _: b"", CorruptCheckpointError, ("announces",)),
    "an unknown architecture": (
        lambda raw: raw.replace(b"llama", b"mamba"), UnsupportedModelError, ("'mamba'", "llama", "qwen3")
    ),
    "tensors in one another": (
        lambda raw: change_entry(raw, b"blk.0.attn_k.weight", shift=-64), CorruptCheckpointError, ("attn_k", "places")
    ),
    "a gap between tensors": (
        lambda raw: change_entry(raw, b"blk.0.attn_k.weight", shift=64), CorruptCheckpointError, ("attn_k", "places")
    ),
    "two tensors at one place": (
        lambda raw: change_entry(raw, b"blk.0.attn_k.weight", shift=-256 * 256 // 32 * 34),
        CorruptCheckpointError, ("attn_k", "places"),
    ),
    "a type of fewer bytes": (
        lambda raw: change_entry(raw, b"blk.0.attn_q.weight", kind=Q4_0), CorruptCheckpointError, ("attn_k", "places")
    ),
    "a type of fewer bytes at the end": (
        lambda raw: change_entry(raw, b"blk.1.attn_k.weight", kind=Q4_0), CorruptCheckpointError, ("follow",)
    ),
    "a tensor that is there twice": (
        lambda raw: change_entry(raw, b"blk.0.attn_k.weight", called=b"blk.0.attn_q.weight"),
        CorruptCheckpointError, ("'blk.0.attn_q.weight' twice",),
    ),
    "more layers than are stated": (
        lambda raw: change_value(raw, b"llama.block_count", 1), CorruptCheckpointError, ("states 1 layers", "blk.1")
    ),
    "fewer layers than are stated": (
        lambda raw: change_value(raw, b"llama.block_count", 3), CorruptCheckpointError, ("states 3 layers", "2")
    ),
    "a scale that is no number": (
        lambda raw: raw[:-40_000] + b"\xff" * 40_000, CorruptCheckpointError, ("scale", "finite")
    ),
}  # fmt: skip


@cache
def write_whole() -> bytes:
    """A file that is not broken, of queries and keys."""
    state = {name: tensor for name, tensor in draw_state().items() if "v_proj" not in name}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_gguf(path, state, Q8_0)
        return path.read_bytes()


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_refused(case: str, tmp_path: Path) -> None:
    damage, error, facts = BROKEN[case]
    path = tmp_path / "model.gguf"
    path.write_bytes(damage(write_whole()))
    with refuses_checkpoint(path, error, facts):
        attngeo.score(path)


def test_the_command_refuses_a_broken_file_in_one_line(tmp_path: Path, inside: Command) -> None:
    damage, error, facts = BROKEN["an unknown architecture"]
    path = tmp_path / "model.gguf"
    path.write_bytes(damage(write_whole()))
    assert_refused(inside("score", path), path, error, facts)


def write_header(path: Path, values: Iterable[tuple[str, int, bytes]]) -> Path:
    """A file with a header only. values: key, the number of the type, and the bytes."""
    values = [("general.architecture", 8, struct.pack("<Q", 5) + b"llama"), *values]
    header = [struct.pack("<4sIQQ", b"GGUF", 3, 0, len(values))]
    for key, kind, raw in values:
        header += [struct.pack("<Q", len(key)), key.encode(), struct.pack("<I", kind), raw]
    path.write_bytes(b"".join(header))
    return path


# What is wrong → the values of a header, and a fact of the error.
HEADERS: dict[str, tuple[list[tuple[str, int, bytes]], str]] = {
    "an alignment that is no power of two": (
        [("general.alignment", 4, struct.pack("<I", 48))], "alignment 48, expected a power of 2"
    ),
    "no alignment": ([("general.alignment", 4, struct.pack("<I", 0))], "alignment 0"),
    "an alignment that is a text": ([("general.alignment", 8, struct.pack("<Q", 2) + b"32")], "alignment 32"),
    "a value twice": (
        [("llama.block_count", 4, struct.pack("<I", count)) for count in (1, 2)], "'llama.block_count' twice"
    ),
    "a list of too many numbers": ([("n", 9, struct.pack("<IQ", 10, (1 << 20) + 1))], "a list of 1,048,577 numbers"),
    "more texts than bytes": ([("t", 9, struct.pack("<IQ", 8, 1 << 20))], "1,048,576 strings"),
}  # fmt: skip


@pytest.mark.parametrize("case", HEADERS)
def test_headers_that_make_no_sense(case: str, tmp_path: Path) -> None:
    values, fact = HEADERS[case]
    source = RegularFile(write_header(tmp_path / "m.gguf", values))
    with pytest.raises(CorruptCheckpointError, match=fact):
        GgufFile(source)


def test_lists_of_too_many_texts_are_not_read(tmp_path: Path) -> None:
    values = [(f"t{number}", 9, struct.pack("<IQ", 8, 4) + bytes(32)) for number in range(5)]
    path = write_header(tmp_path / "m.gguf", values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attngeo.checkpoints.gguf_header.MOST_VALUES_SKIPPED", 19)
        with pytest.raises(CorruptCheckpointError, match="a list of 4 strings"):
            GgufFile(RegularFile(path))


def test_short_texts_are_read_over_many_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [("t", 9, struct.pack("<IQ", 8, 100_000) + (struct.pack("<Q", 2) + b"of") * 100_000)]
    taken: list[int] = []
    take = HeaderReader.take
    monkeypatch.setattr(HeaderReader, "take", lambda self, count: (taken.append(count), take(self, count))[1])
    with closing(RegularFile(write_header(tmp_path / "m.gguf", values))) as source:
        assert GgufFile(source).metadata["t"] == Unread(100_000)
    assert len(taken) < 1000


def test_lists_that_are_not_needed_are_read_over(tmp_path: Path) -> None:
    """Texts that cross the parts in which a file is read; and no more memory than such a part for numbers."""
    lengths = [0, 1, 5, 65_000, 70_000, 0, 1 << 20, 3]
    texts = b"".join(struct.pack("<Q", length) + bytes(length) for length in lengths * 3)
    values = [("t", 9, struct.pack("<IQ", 8, 3 * len(lengths)) + texts), ("after", 4, struct.pack("<I", 7))]
    values += [(f"n{n}", 9, struct.pack("<IQ", 0, 1 << 20) + bytes(1 << 20)) for n in range(8)]
    with closing(RegularFile(write_header(tmp_path / "m.gguf", values))) as source:
        tracemalloc.start()
        metadata = GgufFile(source).metadata
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert metadata["after"] == 7
    assert (metadata["t"], metadata["n0"]) == (Unread(24), Unread(1 << 20))
    assert most < 6 << 20


@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan"), [2.0, 4.0]], ids=str)
@pytest.mark.parametrize("key", ["rope.scaling.factor", "rope.scaling.attn_factor", "rope.freq_base"])
def test_numbers_of_rotary_embeddings_are_finite(key: str, value: Any, tmp_path: Path) -> None:
    raw = struct.pack("<f", value) if isinstance(value, float) else struct.pack("<IQ2f", 6, 2, *value)
    values = [(f"llama.{key}", 6 if isinstance(value, float) else 9, raw)]
    with pytest.raises((CorruptCheckpointError, UnsupportedModelError), match=key):
        GgufFile(RegularFile(write_header(tmp_path / "model.gguf", values)))


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_factors_of_rotary_embeddings_are_positive(value: float, tmp_path: Path) -> None:
    factors = torch.tensor([1.0, value, *[1.0] * (HEAD // 2 - 2)])
    tensors = rename(draw_state(), NAMES) | {"rope_freqs.weight": factors}
    write_tensors(tmp_path / "model.gguf", "qwen2", KEYS, tensors)
    with pytest.raises(CorruptCheckpointError, match=r"rope_freqs\.weight has the factor"):
        attngeo.score(tmp_path / "model.gguf", rope_offset=1)


@pytest.mark.parametrize(("architecture", "dimensions"), [("llama", 32), ("qwen2", 128), ("qwen2", 31), ("qwen2", 0)])
def test_dimensions_that_rotate_are_those_of_a_head(architecture: str, dimensions: int, tmp_path: Path) -> None:
    values = KEYS | {"rope.dimension_count": dimensions}
    write_tensors(tmp_path / "model.gguf", architecture, values, rename(draw_state(), NAMES))
    with pytest.raises(CorruptCheckpointError, match=f"{dimensions} of a head's 64 dimensions"):
        attngeo.score(tmp_path / "model.gguf", rope_offset=1)


@pytest.mark.parametrize(("architecture", "prefix"), [("t5", ""), ("llama", "enc.")])
def test_layers_of_stacks_that_an_architecture_does_not_have(architecture: str, prefix: str, tmp_path: Path) -> None:
    tensors = {f"{prefix}{name}": tensor for name, tensor in rename(draw_state(), NAMES).items()}
    write_tensors(tmp_path / "model.gguf", architecture, KEYS, tensors)
    with pytest.raises(UnsupportedModelError, match="blk"):
        attngeo.score(tmp_path / "model.gguf")


# What is wrong with part 2 of three: a function of all parts → where the error is, and its facts.
SPLITS: dict[str, tuple[Callable[[list[Path]], Any], int, tuple[str, ...]]] = {
    "it is part 3": (lambda parts: shutil.copy(parts[2], parts[1]), 1, ("split.no = 2, expected 1",)),
    "it is part 1": (lambda parts: shutil.copy(parts[0], parts[1]), 1, ("split.no = 0, expected 1",)),
    "it has another number": (lambda parts: rewrite(parts[1], b"split.no", 2), 1, ("split.no = 2, expected 1",)),
    "it is one of more parts": (lambda parts: rewrite(parts[1], b"split.count", 4), 1, ("split.count = 4",)),
    "it is of a model with more tensors": (
        lambda parts: rewrite(parts[1], b"split.tensors.count", 11), 1, ("split.tensors.count = 11, expected 9",)
    ),
    "its tensors are in another part": (
        lambda parts: parts[1].write_bytes(parts[1].read_bytes().replace(b"blk.1.", b"blk.0.")), 1, ("earlier part",)
    ),
    "its layer is called otherwise": (
        lambda parts: [part.write_bytes(part.read_bytes().replace(b"blk.1.", b"blk.7.")) for part in parts], 0,
        ("states 2 layers", "blk.7"),
    ),
}  # fmt: skip


def rewrite(path: Path, key: bytes, value: int) -> None:
    """Another number of 16 or 32 bits for a key of the header."""
    raw = path.read_bytes()
    at = raw.index(key) + len(key)
    form = {2: "<H", 5: "<i"}[raw[at]]
    path.write_bytes(raw[: at + 4] + struct.pack(form, value) + raw[at + 4 + struct.calcsize(form) :])


@pytest.mark.parametrize("case", SPLITS)
def test_a_part_is_the_one_that_its_name_says(case: str, tmp_path: Path) -> None:
    change, place, facts = SPLITS[case]
    first = write_splits(tmp_path)
    parts = sorted(tmp_path.glob("m-*.gguf"))
    change(parts)
    with refuses_checkpoint(parts[place], CorruptCheckpointError, facts):
        attngeo.score(first)


@pytest.mark.slow
def test_mutated_files_end_in_scores_or_in_one_error(tmp_path: Path) -> None:
    """2,000 files with a few changed bytes in the header or the data: never another exception."""
    path, changed = tmp_path / "model.gguf", tmp_path / "changed.gguf"
    write_gguf(path, draw_state(), Q8_0)
    raw, generator = path.read_bytes(), np.random.default_rng(random.getrandbits(32))
    header = raw.index(b"blk.1.attn_v") + 60
    for _ in range(2_000):
        damaged = bytearray(raw)
        for at in generator.integers(0, header if generator.random() < 0.9 else len(raw), generator.integers(1, 6)):
            damaged[at] = generator.integers(0, 256)
        changed.write_bytes(damaged)
        with suppress(AttnGeoError):
            assert len(attngeo.score(changed, fresh=True)) <= 2


def test_other_formats_are_refused_with_the_conversion(tmp_path: Path) -> None:
    for file, fact in {
        "a.npz": "safetensors", "flax_model.msgpack": "from_flax", "tf_model.h5": "from_tf", "x.distcp": "dcp_to_torch",
    }.items():  # fmt: skip
        path = tmp_path / file
        path.write_bytes(b"0")
        with refuses_checkpoint(path, UnsupportedModelError, (fact,)):
            attngeo.score(path)
