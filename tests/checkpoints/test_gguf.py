"""GGUF files are scored as the checkpoints that they were made from, and broken ones are refused."""

from __future__ import annotations

import json
import random
import re
import shutil
import struct
import tracemalloc
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pandas as pd
import pytest
import torch
from conftest import Command
from support.checkpoints import assert_refused, write_single
from support.circuits import assert_same_outputs
from support.hub_server import Hub
from support.tiny_models import TINY_MODELS, build
from support.vectors import TEXT, byte_level, checkpoint, random_vectors, sentence_piece, word_piece, write_questions
from torch import Tensor

import attngeo
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.gguf import GgufFile
from attngeo.checkpoints.gguf_header import HeaderReader, Unread, read_vocabulary
from attngeo.checkpoints.opening import open_store
from attngeo.checkpoints.tensor_file import RegularFile
from attngeo.embeddings.opening import open_embedding
from attngeo.errors import AttnGeoError, CorruptCheckpointError, ShapeError, UnsupportedModelError

WIDTH, HEADS, KEY_HEADS, HEAD = 256, 4, 2, 64
CONFIG = {
    "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS, "head_dim": HEAD,
    "num_hidden_layers": 2, "rope_theta": 5000.0,
}  # fmt: skip
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
}  # fmt: skip
KEYS = {
    "embedding_length": WIDTH, "block_count": 2, "attention.head_count": HEADS, "attention.head_count_kv": KEY_HEADS,
    "attention.key_length": HEAD,
}  # fmt: skip
SCORES = ["symmetry", "directionality", "frobenius_norm"]
Q4_0, Q8_0 = gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q8_0
# The types that the package does not write: blocks of any codes, with scales that are small numbers of float16.
DECODED_ONLY = [
    kind for kind in gguf.GGMLQuantizationType
    if kind.name.startswith(("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ")) or kind.name in ("TQ1_0", "TQ2_0")
]  # fmt: skip


def draw_state(*, biases: bool = False, head_norms: bool = False) -> dict[str, Tensor]:
    """The tensors of a small LLaMA, under the names of transformers."""
    generator = torch.Generator().manual_seed(1)
    state = {"model.embed_tokens.weight": torch.randn(20, WIDTH, generator=generator)}
    for layer in (0, 1):
        prefix = f"model.layers.{layer}"
        state[f"{prefix}.input_layernorm.weight"] = torch.rand(WIDTH, generator=generator) + 0.5
        for letter, heads in (("q", HEADS), ("k", KEY_HEADS), ("v", KEY_HEADS)):
            name = f"{prefix}.self_attn.{letter}_proj"
            state[f"{name}.weight"] = torch.randn(heads * HEAD, WIDTH, generator=generator)
            if biases:
                state[f"{name}.bias"] = torch.randn(heads * HEAD, generator=generator)
            if head_norms and letter != "v":
                state[f"{prefix}.self_attn.{letter}_norm.weight"] = torch.rand(HEAD, generator=generator) + 0.5
    return state


def permute(tensor: np.ndarray, heads: int) -> np.ndarray:
    """The rows as llama.cpp's converter orders them for LLaMA: halves of a head become neighbours."""
    rows = [
        head * HEAD + half * HEAD // 2 + place for head in range(heads) for place in range(HEAD // 2) for half in (0, 1)
    ]
    return tensor[rows]


def write_gguf(
    path: Path,
    state: Mapping[str, Tensor],
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    *,
    architecture: str = "llama",
    permuted: bool = True,
    gain_offset: float = 0.0,
    **values: Any,
) -> dict[str, Tensor]:
    """Write a model as llama.cpp does. Returns the numbers that the file holds, under the names of transformers."""
    writer, decoded = gguf.GGUFWriter(path, architecture), dict(state)
    for key, value in KEYS.items():
        writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_float32(f"{architecture}.rope.freq_base", 5000.0)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b c", "é"] * 300)
    writer.add_array("tokenizer.ggml.scores", [0.5] * 900)
    for key, value in values.items():
        writer.add_string(f"{architecture}.{key.replace('__', '.')}", value)
    for name, tensor in state.items():
        stem, _, ending = name.rpartition(".")
        _, _, layer, inner = stem.split(".", 3) if "layers" in stem else ("", "", "", "")
        stored = f"blk.{layer}.{NAMES.get(inner, inner)}.{ending}" if inner else f"token_embd.{ending}"
        numbers = tensor.float().numpy()
        if inner.endswith(("q_proj", "k_proj")) and permuted:
            numbers = permute(numbers, HEADS if inner.endswith("q_proj") else KEY_HEADS)
        if "norm" in name:
            numbers = numbers + np.float32(gain_offset)
        if numbers.ndim == 1 or not inner:
            writer.add_tensor(stored, numbers)
            continue
        packed = draw_blocks(kind, numbers.shape) if kind in DECODED_ONLY else gguf.quantize(numbers, kind)
        plain = np.array(gguf.dequantize(packed, kind))
        writer.add_tensor(stored, packed, raw_dtype=kind)
        if inner.endswith(("q_proj", "k_proj")) and permuted:
            heads = HEADS if inner.endswith("q_proj") else KEY_HEADS
            places = permute(np.arange(len(plain)), heads)
            plain[places] = plain.copy()
        decoded[name] = torch.from_numpy(plain)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return decoded


def draw_blocks(kind: gguf.GGMLQuantizationType, shape: tuple[int, ...]) -> np.ndarray:
    """Rows of blocks with any codes, of which all numbers are finite."""
    numbers, nbytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(int(kind)).integers(0, 256, (shape[0] * shape[1] // numbers * 4, nbytes), np.uint8)
    with np.errstate(all="ignore"):
        numbers_of = gguf.dequantize(blocks, kind)
    kept = blocks[np.isfinite(numbers_of).all(1) & (np.abs(numbers_of).max(1) < 1e6)]
    count = shape[0] * shape[1] // numbers
    return np.resize(kept, (count, nbytes)).reshape(shape[0], -1)


def assert_same(folder: Path, path: Path, decoded: Mapping[str, Tensor], model_type: str, **options: Any) -> None:
    plain = write_single(folder / "plain", dict(decoded), CONFIG | {"model_type": model_type})
    scores = attngeo.score(path, per_head=True, **options)
    expected = attngeo.score(plain, per_head=True, **options)
    assert len(scores) == len(expected) == 2 * (HEADS + 1)
    assert scores["parameters"].tolist() == expected["parameters"].tolist()
    np.testing.assert_allclose(scores[SCORES[:2]], expected[SCORES[:2]], rtol=0, atol=1e-6)
    np.testing.assert_allclose(scores[SCORES[2]], expected[SCORES[2]], rtol=1e-6)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
@pytest.mark.parametrize("options", [{}, {"rope_offset": 3}, {"with_bias": True, "fold_norm": True}], ids=str)
def test_a_llama_is_scored_as_its_checkpoint(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Also with rotary embeddings, whose pairs llama.cpp makes neighbours."""
    kind = gguf.GGMLQuantizationType[name]
    decoded = write_gguf(tmp_path / "model.gguf", draw_state(biases=True), kind)
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


def test_norms_of_queries_and_keys(tmp_path: Path) -> None:
    state = draw_state(head_norms=True)
    decoded = write_gguf(tmp_path / "model.gguf", state, Q8_0, architecture="qwen3", permuted=False)
    assert_same(tmp_path, tmp_path / "model.gguf", decoded, "qwen3", rope_offset=2)


def test_gains_that_are_stored_plus_one(tmp_path: Path) -> None:
    state = draw_state()
    decoded = write_gguf(tmp_path / "model.gguf", state, Q8_0, architecture="gemma2", permuted=False, gain_offset=1.0)
    assert_same(tmp_path, tmp_path / "model.gguf", decoded, "gemma2", fold_norm=True)


def write_splits(folder: Path, **options: Any) -> Path:
    """whole.gguf, and the same in files of four tensors, of which only the first has metadata. Returns the first."""
    folder.mkdir(exist_ok=True)
    write_gguf(folder / "whole.gguf", draw_state())
    writer = gguf.GGUFWriter(folder / "m.gguf", "llama", split_max_tensors=4, **options)
    for key, value in KEYS.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.rope.freq_base", 5000.0)
    for tensor in gguf.GGUFReader(folder / "whole.gguf").tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return min(folder.glob("m-00001-of-0000?.gguf"))


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
    parts[2].unlink()
    assert_refused(inside("score", first), parts[2], CorruptCheckpointError, ("no such file",))
    first.rename(tmp_path / "renamed.gguf")
    path = tmp_path / "renamed.gguf"
    assert_refused(inside("score", path), path, CorruptCheckpointError, (f"{len(parts)} parts", "00001-of"))


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
        lambda raw: raw[:4] + struct.pack("<I", 1) + raw[8:], CorruptCheckpointError, ("version 1",)
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


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_refused(case: str, tmp_path: Path, inside: Command) -> None:
    damage, error, facts = BROKEN[case]
    path = tmp_path / "model.gguf"
    state = {name: tensor for name, tensor in draw_state().items() if "v_proj" not in name}
    write_gguf(path, state, Q8_0)
    path.write_bytes(damage(path.read_bytes()))
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
    "more texts than bytes": ([("t", 9, struct.pack("<IQ", 8, 1 << 20))], "1,048,576 texts"),
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
        patch.setattr("attngeo.checkpoints.gguf_header.MOST_SKIPPED", 19)
        with pytest.raises(CorruptCheckpointError, match="a list of 4 texts"):
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
    with pytest.raises(CorruptCheckpointError, match=f"{dimensions} dimensions of a head's 64"):
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
def test_a_part_is_the_one_that_its_name_says(case: str, tmp_path: Path, inside: Command) -> None:
    change, place, facts = SPLITS[case]
    first = write_splits(tmp_path)
    parts = sorted(tmp_path.glob("m-*.gguf"))
    change(parts)
    assert_refused(inside("score", first), parts[place], CorruptCheckpointError, facts)


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


def test_other_formats_are_refused_with_the_conversion(tmp_path: Path, inside: Command) -> None:
    for file, fact in {
        "a.npz": "safetensors", "flax_model.msgpack": "from_flax", "tf_model.h5": "from_tf", "x.distcp": "dcp_to_torch",
    }.items():  # fmt: skip
        path = tmp_path / file
        path.write_bytes(b"0")
        assert_refused(inside("score", path), path, UnsupportedModelError, (fact,))


def sort_heads(tensor: Tensor, heads: int, key_heads: int) -> Tensor:
    """Groups of queries, a key and a value as llama.cpp's converter writes them: all queries, all keys, all values."""
    groups = tensor.reshape(key_heads, heads // key_heads + 2, -1, *tensor.shape[1:])
    return torch.cat([groups[:, part].flatten(0, -tensor.ndim) for part in (slice(-2), slice(-2, -1), slice(-1, None))])


FUSED_NAMES = {"self_attention.query_key_value": "attn_qkv", "self_attention.dense": "attn_output"}
# Tiny model → architecture, its names in the file by their names in the checkpoint, query heads and key heads.
FUSED: dict[str, tuple[str, dict[str, str], int, int]] = {
    "gpt2": ("gpt2", {"attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_1": "attn_norm"}, 4, 4),
    "gpt_neox": (
        "gptneox",
        {
            "attention.query_key_value": "attn_qkv", "attention.dense": "attn_output", "input_layernorm": "attn_norm",
        }, 4, 4,
    ),
    "bloom": ("bloom", FUSED_NAMES | {"input_layernorm": "attn_norm"}, 4, 4),
    "falcon-new": ("falcon", FUSED_NAMES | {"ln_attn": "attn_norm_2", "ln_mlp": "attn_norm"}, 4, 2),
    "falcon-multi-query": ("falcon", FUSED_NAMES | {"input_layernorm": "attn_norm"}, 4, 1),
    "mpt": ("mpt", {"attn.Wqkv": "attn_qkv", "attn.out_proj": "attn_output", "norm_1": "attn_norm"}, 4, 4),
}  # fmt: skip


def write_tensors(
    path: Path, architecture: str, values: Mapping[str, Any], tensors: Mapping[str, Tensor], **options: Any
) -> None:
    writer = gguf.GGUFWriter(path, architecture, **options)
    for key, value in values.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(f"{architecture}.{key}", value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor.float().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def rename(state: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """Tensors of layers by their names in a file; names: those inside a layer, without the ending."""
    matches = {name: re.fullmatch(r".*?\.(\d+)\.(.+)\.(weight|bias)", name) for name in state}
    return {
        f"blk.{match[1]}.{names[match[2]]}.{match[3]}": state[name]
        for name, match in matches.items()
        if match is not None and match[2] in names
    }


def assert_equal_scores(folder: Path, count: int, offset: int = 0, *, outputs: bool = True) -> None:
    """model.gguf has the scores of the checkpoint `plain`, as they are and with biases, norms and an offset.

    outputs: it has the same values and outputs, too.
    """
    for options in ({}, {"with_bias": True, "fold_norm": True}, *([{"rope_offset": offset}] if offset else [])):
        scores, expected = (
            attngeo.score(path, per_head=True, **options) for path in (folder / "model.gguf", folder / "plain")
        )
        assert len(scores) == len(expected) == count
        assert scores["stack"].tolist() == expected["stack"].tolist()
        assert scores["key_head"].equals(expected["key_head"])
        np.testing.assert_allclose(scores[SCORES[:2]], expected[SCORES[:2]], rtol=0, atol=2e-5)
        np.testing.assert_allclose(scores[SCORES[2]], expected[SCORES[2]], rtol=1e-5)
    if outputs:
        assert_same_outputs(folder / "model.gguf", folder / "plain")


@pytest.mark.parametrize("case", FUSED)
def test_fused_tensors_are_read_in_the_order_of_the_file(case: str, tmp_path: Path) -> None:
    model = randomise(build(TINY_MODELS[case]))
    model.save_pretrained(tmp_path / "plain")
    architecture, names, heads, key_heads = FUSED[case]
    width = model.config.hidden_size
    rotated = {"gpt_neox": width // 8, "falcon-new": width // 4, "falcon-multi-query": width // 4}.get(case)
    values = {"embedding_length": width, "block_count": 2, "attention.head_count": heads}
    values |= {} if key_heads == heads else {"attention.head_count_kv": key_heads}
    values |= {"rope.dimension_count": rotated} if rotated else {}
    tensors = rename(model.state_dict(), names)
    for name in tensors:
        if "attn_qkv" in name and case not in ("gpt2", "mpt"):
            tensors[name] = sort_heads(tensors[name], heads, key_heads)
        elif name.endswith(("attn_qkv.weight", "attn_output.weight")) and case == "gpt2":
            tensors[name] = tensors[name].T
    write_tensors(tmp_path / "model.gguf", architecture, values, tensors)
    assert_equal_scores(tmp_path, 10, offset=3 if rotated else 0)
    # No other kind of file has this order, even if a tensor is called so.
    module = next(inner for inner, stored in FUSED[case][1].items() if stored == "attn_qkv")
    named = {name.replace(module, f"{module.rpartition('.')[0]}.attn_qkv"): x for name, x in model.state_dict().items()}
    foreign = write_single(tmp_path / "foreign", {name: x.clone() for name, x in named.items()}, model.config.to_dict())
    with pytest.raises(UnsupportedModelError):
        attngeo.score(foreign)


def randomise(model: Any) -> Any:
    """Norms and biases are no ones and zeros any more."""
    torch.manual_seed(3)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.3 * torch.randn_like(parameter)
    return model


def test_both_stacks_and_cross_attention_of_t5(tmp_path: Path) -> None:
    model = randomise(build(TINY_MODELS["t5"]))
    model.save_pretrained(tmp_path / "plain")
    config = model.config
    values = {
        "embedding_length": config.d_model, "block_count": config.num_layers, "attention.head_count": config.num_heads,
        "attention.key_length": config.d_kv, "decoder_block_count": config.num_decoder_layers,
    }  # fmt: skip
    names = {"layer.0.layer_norm": "attn_norm", "layer.1.layer_norm": "cross_attn_norm"} | {
        f"layer.{place}.{module}.{letter}": f"{cross}attn_{letter}"
        for cross, place, module in (("", 0, "SelfAttention"), ("cross_", 1, "EncDecAttention")) for letter in "qkvo"
    }  # fmt: skip
    tensors = {
        f"{stack}.{name}": tensor
        for stack in ("enc", "dec")
        for name, tensor in rename(
            {name: tensor for name, tensor in model.state_dict().items() if name.startswith(f"{stack}oder")}, names
        ).items()
        if stack == "dec" or "cross" not in name
    }
    write_tensors(tmp_path / "model.gguf", "t5", values, tensors)
    assert_equal_scores(tmp_path, 5 * (config.num_layers + 2 * config.num_decoder_layers))


SEPARATE = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
}  # fmt: skip
COMMON = {"embedding_length": 32, "block_count": 2, "attention.head_count": 4}
GROUPED = COMMON | {"attention.head_count_kv": 2}
# Tiny model → architecture, its names in the file by their names in the checkpoint, and the header.
OTHERS: dict[str, tuple[str, dict[str, str], dict[str, Any]]] = {
    "stablelm": ("stablelm", SEPARATE, GROUPED | {"rope.dimension_count": 2}),
    "cohere": ("command-r", SEPARATE, GROUPED | {"rope.freq_base": 500_000.0, "rope.scaling.type": "none"}),
    "cohere-qk-norm": (
        "command-r", SEPARATE | {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"},
        GROUPED | {"rope.freq_base": 500_000.0},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_separate_tensors_of_other_families(case: str, tmp_path: Path) -> None:
    architecture, names, values = OTHERS[case]
    model = randomise(build(TINY_MODELS[case]))
    model.save_pretrained(tmp_path / "plain")
    write_tensors(tmp_path / "model.gguf", architecture, values, rename(model.state_dict(), names))
    assert_equal_scores(tmp_path, 10, offset=3)


def test_norms_of_heads_in_one_tensor(tmp_path: Path) -> None:
    """llama.cpp stacks those of StableLM, which has one norm for each head."""
    model = randomise(build(TINY_MODELS["stablelm-qk-norm"]))
    model.save_pretrained(tmp_path / "plain")
    state = model.state_dict()
    tensors = rename(state, SEPARATE)
    for layer in range(2):
        for letter, heads in (("q", 4), ("k", 2)):
            norms = f"model.layers.{layer}.self_attn.{letter}_layernorm.norms"
            gains = torch.stack([state[f"{norms}.{head}.weight"] for head in range(heads)])
            tensors[f"blk.{layer}.attn_{letter}_norm.weight"] = gains
    write_tensors(tmp_path / "model.gguf", "stablelm", GROUPED | {"rope.dimension_count": 2}, tensors)
    assert_equal_scores(tmp_path, 10, offset=3)


def test_nomic_bert(tmp_path: Path) -> None:
    from transformers import NomicBertConfig, NomicBertModel

    torch.manual_seed(0)
    model = randomise(NomicBertModel(NomicBertConfig(**TINY_MODELS["bert"].config)))
    model.save_pretrained(tmp_path / "plain")
    tensors = {
        f"blk.{layer}.attn_qkv.weight": torch.cat(
            [model.state_dict()[f"layers.{layer}.self_attn.{letter}_proj.weight"] for letter in "qkv"]
        )
        for layer in range(2)
    } | {
        f"blk.{layer}.attn_output.weight": model.state_dict()[f"layers.{layer}.self_attn.o_proj.weight"]
        for layer in range(2)
    }
    write_tensors(tmp_path / "model.gguf", "nomic-bert", COMMON | {"rope.freq_base": 1000.0}, tensors)
    assert_equal_scores(tmp_path, 10, offset=3)


LATENT = SEPARATE | {
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_b_proj": "attn_q_b", "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
}  # fmt: skip


@pytest.mark.parametrize("form", ["earlier", "absorbed"])
@pytest.mark.parametrize("case", ["deepseek_v2", "deepseek_v2-lite", "deepseek_v3"])
def test_latent_attention(case: str, form: str, tmp_path: Path) -> None:
    """Keys of heads and values in one tensor, or apart, the keys transposed."""
    model = randomise(build(TINY_MODELS[case]))
    model.save_pretrained(tmp_path / "plain")
    tensors, config = rename(model.state_dict(), LATENT), model.config
    nope, rope, value = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim
    sizes = {"attention.key_length": nope + rope, "attention.value_length": value, "rope.dimension_count": rope}
    sizes |= {"attention.head_count_kv": 4}
    if form == "absorbed":
        sizes = {f"{name}_mla" if "length" in name else name: size for name, size in sizes.items()} | {
            "attention.key_length": config.kv_lora_rank + rope, "attention.value_length": config.kv_lora_rank,
            "attention.head_count_kv": 1,
        }  # fmt: skip
        for layer in range(2):
            both = tensors.pop(f"blk.{layer}.attn_kv_b.weight").view(4, nope + value, -1)
            tensors[f"blk.{layer}.attn_k_b.weight"] = both[:, :nope].mT
            tensors[f"blk.{layer}.attn_v_b.weight"] = both[:, nope:]
    write_tensors(tmp_path / "model.gguf", "deepseek2", COMMON | sizes, tensors)
    assert_equal_scores(tmp_path, 10, offset=3)


# What config.json states of a LLaMA with heads of 64 → what the header states, and tensors.
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
SHORT = [1.0 + place / 8 for place in range(HEAD // 2)]


def divide_llama3() -> Tensor:
    """By what LLaMA 3 divides its frequencies, as transformers computes them."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    fields = {name: value for name, value in CONFIG.items() if name != "rope_theta"}
    turning = [
        LlamaRotaryEmbedding(LlamaConfig(**fields, rope_parameters={"rope_theta": 5000.0, **rope})).inv_freq
        for rope in ({"rope_type": "default"}, LLAMA3)
    ]
    return turning[0] / turning[1]


SCALED: dict[str, tuple[dict[str, Any], dict[str, Any], Callable[[], dict[str, Tensor]]]] = {
    "linear": ({"rope_type": "linear", "factor": 4.0}, {"type": "linear", "factor": 4.0}, dict),
    "yarn": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 16},
        {"type": "yarn", "factor": 4.0, "original_context_length": 64, "yarn_beta_fast": 16.0}, dict,
    ),
    "llama3": (LLAMA3, {}, lambda: {"rope_freqs.weight": divide_llama3()}),
    "longrope": (
        {
            "rope_type": "longrope", "short_factor": SHORT, "long_factor": SHORT, "attention_factor": 1.5,
            "original_max_position_embeddings": 64,
        },
        {"attn_factor": 1.5},
        lambda: {"rope_factors_long.weight": torch.ones(HEAD // 2), "rope_factors_short.weight": torch.tensor(SHORT)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", SCALED)
def test_the_scaling_of_rotary_embeddings(kind: str, tmp_path: Path) -> None:
    stated, header, factors = SCALED[kind]
    state = draw_state()
    write_single(tmp_path / "plain", state, CONFIG | {"model_type": "qwen2", "rope_scaling": stated})
    values = KEYS | {"rope.freq_base": 5000.0} | {f"rope.scaling.{name}": value for name, value in header.items()}
    tensors = rename(state, NAMES) | factors()
    write_tensors(tmp_path / "model.gguf", "qwen2", values, tensors)
    assert_equal_scores(tmp_path, 10, offset=3, outputs=False)
    if factors is not dict:  # they may be in another file than the metadata
        write_tensors(tmp_path / "split.gguf", "qwen2", values, tensors, split_max_tensors=7)
        parts = [gguf.GGUFReader(path) for path in sorted(tmp_path.glob("split-*.gguf"))]
        assert [any("rope_" in tensor.name for tensor in part.tensors) for part in parts] == [False, True]
        scores = attngeo.score(tmp_path / "split-00001-of-00002.gguf", rope_offset=3)
        expected = attngeo.score(tmp_path / "model.gguf", rope_offset=3)
        pd.testing.assert_frame_equal(scores[SCORES], expected[SCORES], check_exact=True)


def test_a_scaling_of_some_dimensions_counts_without_an_offset(tmp_path: Path) -> None:
    """Phi-4-mini's: the rotating dimensions of queries and keys are multiplied."""
    state = draw_state()
    stated = SCALED["longrope"][0] | {"short_factor": SHORT[: HEAD // 4], "long_factor": SHORT[: HEAD // 4]}
    plain = CONFIG | {"model_type": "qwen2", "rope_scaling": stated, "partial_rotary_factor": 0.5}
    write_single(tmp_path / "plain", state, plain)
    values = KEYS | {"rope.freq_base": 5000.0, "rope.scaling.attn_factor": 1.5, "rope.dimension_count": HEAD // 2}
    tensors = {"rope_factors_short.weight": torch.tensor(SHORT[: HEAD // 4])} | rename(state, NAMES)
    write_tensors(tmp_path / "model.gguf", "qwen2", values, tensors)
    assert_equal_scores(tmp_path, 10, offset=3)


def write_vocabulary(
    path: Path,
    model: str,
    tokens: list[str] | None,
    rows: int,
    architecture: str = "llama",
    stated: Mapping[str, Any] = {},
    **lists: list[Any],
) -> Path:
    """A file with a table of embeddings and a vocabulary; lists: `scores`, `types` or `merges`.

    stated: other keys about the vocabulary, with flags, numbers or lists.
    """
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_embedding_length(8)
    writer.add_head_count(2)
    writer.add_tokenizer_model(model)
    if tokens is not None:
        writer.add_token_list(tokens)
    for name, values in lists.items():
        getattr(writer, f"add_token_{name}")(values)
    for key, value in stated.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, list: writer.add_array}[type(value)]
        add(f"tokenizer.ggml.{key}", value)
    writer.add_tensor("token_embd.weight", random_vectors(rows, 8).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_byte_level(path: Path, original: Path) -> None:
    """A byte-level vocabulary in a file, and the checkpoint with it."""
    original.mkdir()
    library = byte_level(original / "tokenizer.json")
    tokens = [library.id_to_token(number) for number in range(library.get_vocab_size())]
    checkpoint(original, len(tokens))
    merges = [" ".join(pair) for pair in json.loads((original / "tokenizer.json").read_text())["model"]["merges"]]
    types = [gguf.TokenType.CONTROL if token.startswith("<|") else gguf.TokenType.NORMAL for token in tokens]
    write_vocabulary(path, "gpt2", tokens, len(tokens), merges=merges, types=types)


# Kind of WordPiece → architecture, what its normaliser does, words that only it has, and what the file states.
UNKNOWN: dict[str, Any] = {"unknown_token_id": 1, "cls_token_id": 2, "seperator_token_id": 3}
WORD_PIECE: dict[str, tuple[str, dict[str, bool], list[str], dict[str, Any]]] = {
    "uncased": ("bert", {}, ["ete", "athens"], UNKNOWN),
    "cased": ("bert", {"lowercase": False}, ["King", "Été", "Athens"], UNKNOWN),
    "with accents": (
        "nomic-bert", {"strip_accents": False}, ["été", "athens"], {"unknown_token_id": 1, "normalizer.lowercase": True}
    ),
    "earlier": ("nomic-bert", {}, ["ete", "athens", "[unused1]"], {}),
    "stated": (
        "bert", {"lowercase": False, "strip_accents": True}, ["ete", "athens"],
        {"normalizer.lowercase": False, "normalizer.strip_accents": True},
    ),
}  # fmt: skip


def write_word_pieces(path: Path, original: Path, kind: str) -> None:
    """The same for WordPiece, as llama.cpp's converter writes it, or as it did before it heeded types."""
    original.mkdir()
    architecture, rules, own, stated = WORD_PIECE[kind]
    small = sorted({word for word in TEXT.split() if word.islower()} - {"kings", "queens", "whitest"})
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *own, *small, "white", "##s", "##r", "##st", ".", "▁", "##"]
    word_piece(original / "tokenizer.json", tokens, **rules)
    rows = len(tokens) + 2
    checkpoint(original, rows, model_type="bert")
    special = [token.startswith("[") and token.isupper() for token in tokens]
    stored = [
        f"▁{token}".removeprefix("▁##") if not (kept or (kind == "earlier" and token.startswith("["))) else token
        for token, kept in zip(tokens, special, strict=True)
    ]
    padding = [f"[PAD{number}]" for number in (rows - 2, rows - 1)]
    stored += padding if kind == "earlier" else [f"▁{token}" for token in padding]
    types = [gguf.TokenType.CONTROL if kept else gguf.TokenType.NORMAL for kept in special]
    types += 2 * [gguf.TokenType.USER_DEFINED if kind == "earlier" else gguf.TokenType.UNUSED]
    write_vocabulary(path, "bert", stored, rows, architecture, stated, types=types)


def write_pieces(path: Path, original: Path, kind: str) -> None:
    """The same for SentencePiece's."""
    from sentencepiece import SentencePieceProcessor

    pieces = sentence_piece(path.parent, kind)
    library = SentencePieceProcessor(model_file=str(pieces))
    count = library.get_piece_size()
    flags = {"is_unknown": gguf.TokenType.UNKNOWN, "is_control": gguf.TokenType.CONTROL, "is_byte": gguf.TokenType.BYTE}
    types = [
        next((kind for flag, kind in flags.items() if getattr(library, flag)(number)), gguf.TokenType.NORMAL)
        for number in range(count)
    ]
    checkpoint(original, count, model_type="llama" if kind == "bpe" else "t5")
    shutil.copy(pieces, original / ("tokenizer.model" if kind == "bpe" else "spiece.model"))
    tokens, scores = (list(map(read, range(count))) for read in (library.id_to_piece, library.get_score))
    name = "llama" if kind == "bpe" else "t5"  # of the vocabulary, and of the architecture
    write_vocabulary(path, name, tokens, count, name, scores=scores, types=types)


@pytest.mark.parametrize("kind", ["byte level", "bpe", "unigram", *WORD_PIECE])
def test_the_vocabulary_in_a_file_is_that_of_its_checkpoint(kind: str, tmp_path: Path, inside: Command) -> None:
    path, original = tmp_path / "model.gguf", tmp_path / "original"
    if kind == "byte level":
        write_byte_level(path, original)
    else:
        (write_word_pieces if kind in WORD_PIECE else write_pieces)(path, original, kind)
    stored, expected = open_embedding(path), open_embedding(original)
    assert list(stored.labels) == list(expected.labels)
    assert torch.equal(stored.is_word, expected.is_word)
    assert stored.is_word.sum() >= 10
    assert stored.pieces is not None
    assert expected.pieces is not None
    for word in (*TEXT.split(), "whiter", "été", "Été", "King", "QUEEN", "日", "kings."):
        assert stored.pieces(word) == expected.pieces(word), word
    questions = write_questions(tmp_path / "q.txt", {"own": ["king queen old city", "the of and old"]})
    for command, *options in (["analogy", "--questions", questions], ["nearest", "king - the + of"]):
        rows = []
        for model in (path, original):
            run = inside(command, model, *options, "--compose", "mean", "--format", "csv")
            assert run.returncode == 0, run.stderr
            rows.append(run.stdout.replace(str(model), "").splitlines())
        assert rows[0] == rows[1]
        assert len(rows[0]) > 1


def test_a_vocabulary_that_cannot_be_read_is_refused(tmp_path: Path, inside: Command) -> None:
    path, tokens = tmp_path / "model.gguf", ["<unk>", "▁king", "▁queen", "s"]
    for model, given, error, fact in (
        ("llama", None, UnsupportedModelError, "tokens"),
        ("bert", None, UnsupportedModelError, "tokens"),
        ("bert", tokens, UnsupportedModelError, "none of 4 tokens is [UNK]"),
        ("llama", tokens, UnsupportedModelError, "scores"),
        ("gpt2", tokens, UnsupportedModelError, "scores"),
    ):
        write_vocabulary(path, model, given, 4)
        assert_refused(inside("nearest", path, "king"), path, error, (fact, "tokenizer.json"))
    for model in ("llama", "bert"):
        for rows, fact in ((3, "3 rows"), (40, "40 rows")):
            given = {"stated": {"unknown_token_id": 0}} if model == "bert" else {"scores": [0.0, -1.0, -2.0, -3.0]}
            write_vocabulary(path, model, tokens, rows, **given)
            assert_refused(inside("nearest", path, "king"), path, ShapeError, (fact,))
    for stated, error, fact in (
        ({"unknown_token_id": 700}, UnsupportedModelError, "none of 4 tokens is number 700"),
        ({"unknown_token_id": [1, 2], "cls_token_id": [3]}, UnsupportedModelError, "none of 4 tokens is [UNK]"),
    ):
        write_vocabulary(path, "bert", tokens, 4, "bert", stated)
        assert_refused(inside("nearest", path, "king"), path, error, (fact,))
    write_vocabulary(path, "bert", None, 4, "bert", {"tokens": [1, 2, 3, 4]})
    assert_refused(inside("nearest", path, "king"), path, UnsupportedModelError, ("tokens",))


@pytest.mark.slow
def test_mutated_vocabularies_end_in_a_table_or_in_one_error(tmp_path: Path) -> None:
    """500 files with a few changed bytes in the header: never another exception."""
    path, changed = tmp_path / "model.gguf", tmp_path / "changed.gguf"
    write_word_pieces(path, tmp_path / "original", "with accents")
    raw, generator = path.read_bytes(), np.random.default_rng(random.getrandbits(32))
    header = raw.index(b"token_embd") + 60
    for _ in range(500):
        damaged = bytearray(raw)
        for at in generator.integers(0, header, generator.integers(1, 6)):
            damaged[at] = generator.integers(0, 256)
        changed.write_bytes(damaged)
        with suppress(AttnGeoError):
            embedding = open_embedding(changed)
            assert embedding.pieces is not None
            assert embedding.pieces("[UNK]") is None


def test_a_list_of_too_many_tokens_is_not_read(tmp_path: Path) -> None:
    path, key, count = tmp_path / "model.gguf", b"tokenizer.ggml.tokens", (1 << 20) + 1
    header = [struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, len(key)), key, struct.pack("<IIQ", 9, 8, count)]
    path.write_bytes(b"".join(header) + bytes(8 * count))
    with closing(RegularFile(path)) as source, pytest.raises(CorruptCheckpointError, match="1,048,577 texts"):
        read_vocabulary(source)


def test_a_vocabulary_on_the_hub_needs_the_file(here: Hub, tmp_path: Path) -> None:
    folder = here.repositories["org/name"] = tmp_path / "remote"
    folder.mkdir()
    (folder / ".gitattributes").write_text("*.gguf filter=lfs")
    write_byte_level(folder / "model.gguf", tmp_path / "original")
    with pytest.raises(UnsupportedModelError, match="set download"):
        open_embedding("org/name/model.gguf")
    stored = open_embedding("org/name/model.gguf", hub=HubAccess(download=True))
    assert list(stored.labels) == list(open_embedding(tmp_path / "original").labels)
