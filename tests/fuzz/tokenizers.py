"""Mutated tokenisers: each that is accepted cuts words as the library does, and the others are errors of the file."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from fuzz.outcome import Wrong, check_equal
from support.mutate import mutate_bytes, mutate_value
from tokenizers import Tokenizer, models

from attngeo.embeddings.isolated import FastTokens, IsolatedTokenizer
from attngeo.errors import is_panic

FILE = "tokenizer.json"
WORDS = ("ab", "a b", "Abba", "é", "cab.")
LETTERS = {"[UNK]": 0, "a": 1, "b": 2, "ab": 3, "▁a": 4, "##b": 5}
MODELS = (
    models.WordLevel(LETTERS, unk_token="[UNK]"),
    models.WordPiece(LETTERS, unk_token="[UNK]"),
    models.BPE(LETTERS, [("a", "b")], unk_token="[UNK]"),
    models.Unigram([(token, -1.0) for token in LETTERS], unk_id=0),
)
NORMALISERS: tuple[dict[str, Any] | None, ...] = (
    None,
    {"type": "Lowercase"},
    {"type": "NFKD"},
    {"type": "Prepend", "prepend": "▁"},
    {"type": "Replace", "pattern": {"String": "b"}, "content": "ab"},
    {"type": "Replace", "pattern": {"Regex": "(a|b)+"}, "content": "ab"},
)
CUTS: tuple[dict[str, Any] | None, ...] = (
    None,
    {"type": "Whitespace"},
    {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
    {"type": "Split", "pattern": {"Regex": "a+"}, "behavior": "Isolated", "invert": False},
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
)


def write_tokenizer(rng: Random, folder: Path) -> None:
    """A tokeniser of one of four kinds, with a normaliser and a rule to cut; often with changed values or bytes."""
    parts = json.loads(Tokenizer(rng.choice(MODELS)).to_str())
    parts |= {"normalizer": rng.choice(NORMALISERS), "pre_tokenizer": rng.choice(CUTS)}
    if rng.random() < 0.6:
        parts = mutate_value(rng, parts)
    content = json.dumps(parts).encode(errors="replace")
    (folder / FILE).write_bytes(mutate_bytes(rng, content) if rng.random() < 0.3 else content)


def read_tokenizer(folder: Path) -> list[list[int]]:
    """The ids of `WORDS`, from a process with limits."""
    tokenizer = IsolatedTokenizer((folder / FILE).read_bytes().decode(errors="replace"), FILE, "model")
    return [tokenizer.encode(word) for word in WORDS]


def check_tokenizer(folder: Path, found: list[list[int]]) -> None:
    """Raise Wrong unless the library gives the same ids in this process."""
    try:
        tokens = FastTokens(Tokenizer.from_str((folder / FILE).read_bytes().decode(errors="replace")))
        expected = [tokens.encode(word) for word in WORDS]
    except BaseException as error:
        if isinstance(error, Exception) or is_panic(error):
            raise Wrong(f"it was read, and the library says: {error!s:.80}") from None
        raise
    check_equal("ids", found, expected)
