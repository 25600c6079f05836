"""The vocabulary in a GGUF file is that of its checkpoint."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from conftest import Command
from support.checkpoints import assert_refused, refuses_checkpoint
from support.hub_server import Hub
from support.vectors import TEXT, byte_level, checkpoint, random_vectors, sentence_piece, word_piece, write_questions

from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.gguf_header import read_vocabulary
from attngeo.checkpoints.tensor_file import RegularFile
from attngeo.embeddings.opening import open_embedding
from attngeo.errors import AttnGeoError, CorruptCheckpointError, ShapeError, UnsupportedModelError


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
            run = inside(command, model, *options, "--subwords", "mean", "--format", "csv")
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
        with refuses_checkpoint(path, error, (fact, "tokenizer.json")):
            open_embedding(path)
    for model in ("llama", "bert"):
        for rows, fact in ((3, "3 rows"), (40, "40 rows")):
            given = {"stated": {"unknown_token_id": 0}} if model == "bert" else {"scores": [0.0, -1.0, -2.0, -3.0]}
            write_vocabulary(path, model, tokens, rows, **given)
            with refuses_checkpoint(path, ShapeError, (fact,)):
                open_embedding(path)
    for stated, error, fact in (
        ({"unknown_token_id": 700}, UnsupportedModelError, "none of 4 tokens is number 700"),
        ({"unknown_token_id": [1, 2], "cls_token_id": [3]}, UnsupportedModelError, "none of 4 tokens is [UNK]"),
    ):
        write_vocabulary(path, "bert", tokens, 4, "bert", stated)
        with refuses_checkpoint(path, error, (fact,)):
            open_embedding(path)
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
    with closing(RegularFile(path)) as source, pytest.raises(CorruptCheckpointError, match="1,048,577 strings"):
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


@pytest.mark.parametrize(
    ("stated", "frame"),
    [
        ({}, ([], [])),
        ({"add_bos_token": True}, (["<|endoftext|>"], [])),
        ({"add_bos_token": False, "add_eos_token": True}, ([], ["<|endoftext|>"])),
    ],
)
def test_special_tokens_around_a_text_are_those_that_the_file_states(
    stated: dict[str, Any], frame: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    library = byte_level(tmp_path / "tokenizer.json")
    tokens = [library.id_to_token(number) for number in range(library.get_vocab_size())]
    merges = [" ".join(pair) for pair in json.loads((tmp_path / "tokenizer.json").read_text())["model"]["merges"]]
    ids = {"bos_token_id": 0, "eos_token_id": 0}
    (tmp_path / "alone").mkdir()
    path = write_vocabulary(tmp_path / "alone/m.gguf", "gpt2", tokens, len(tokens), stated=ids | stated, merges=merges)
    embedding = open_embedding(path)
    assert embedding.find_frame is not None
    assert tuple([tokens[row] for row in rows] for rows in embedding.find_frame()) == frame
