"""Mutated word vectors: those that are accepted are in the file, each word once."""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
from fuzz.outcome import Wrong
from support.mutate import mutate_bytes
from support.vectors import words

from attngeo.embeddings.embedding import Embedding
from attngeo.embeddings.opening import open_embedding

PLAIN, PACKED, BINARY = "v.txt", "v.txt.gz", "v.bin"


def write_text(rng: Random, folder: Path) -> None:
    """Word vectors as text, with and without a header and compressed."""
    rows = [f"{word} {rng.random():.4f} {rng.random():.4f} {rng.random():.4f}" for word in words(30)]
    header = ["30 3"] if rng.random() < 0.5 else []
    text = mutate_bytes(rng, "\n".join([*header, *rows, ""]).encode())
    if rng.random() < 0.2:
        (folder / PACKED).write_bytes(gzip.compress(text, mtime=0))
    else:
        (folder / PLAIN).write_bytes(text)


def read_text(folder: Path) -> Embedding:
    (path,) = folder.iterdir()
    return open_embedding(path)


def check_text(folder: Path, embedding: Embedding) -> None:
    """Each row is a line of the file."""
    (path,) = folder.iterdir()
    content = path.read_bytes()
    text = gzip.decompress(content) if path.name == PACKED else content
    lines = {line.strip() for line in text.split(b"\n")}
    for label, vector in zip(embedding.labels, embedding.matrix.tolist(), strict=True):
        numbers = [
            [parse_number(part) for part in line.split()[-len(vector) :]] for line in lines if label.encode() in line
        ]
        if not any(len(row) == len(vector) and np.allclose(vector, row, rtol=1e-6) for row in numbers):
            raise Wrong(f"no line gives {label!r} {vector}")


def parse_number(text: bytes) -> float:
    """The number that a text is; NaN if it is none."""
    try:
        return float(text)
    except ValueError:
        return float("nan")


@cache
def save_vectors() -> bytes:
    """Word vectors in word2vec's binary format."""
    rows = np.random.default_rng(0).standard_normal((30, 4), np.float32)
    lines = [f"{word} ".encode() + row.tobytes() + b"\n" for word, row in zip(words(30), rows, strict=True)]
    return b"30 4\n" + b"".join(lines)


def write_binary(rng: Random, folder: Path) -> None:
    """Word vectors in word2vec's binary format."""
    (folder / BINARY).write_bytes(mutate_bytes(rng, save_vectors()))


def read_binary(folder: Path) -> Embedding:
    return open_embedding(folder / BINARY)


def check_binary(_: Path, embedding: Embedding) -> None:
    if len(set(embedding.labels)) != len(embedding.labels):
        raise Wrong("a word twice")
    if len(embedding.labels) != len(embedding.matrix):
        raise Wrong(f"{len(embedding.labels)} words and {len(embedding.matrix)} rows")
