"""Files of word vectors that would take hours or all memory are refused soon; nothing is left out in silence."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.damage import run_bounded
from support.messages import refuses
from support.vectors import keyed, words, write_text

from attngeo.bounds import machine
from attngeo.embeddings import vectors
from attngeo.embeddings.opening import open_embedding
from attngeo.errors import CorruptCheckpointError, NotEnoughMemoryError

OPEN = "from attngeo.embeddings.opening import open_embedding\nreturn len(open_embedding(place).labels)"
LINE = b"word 0.5 1.5\n"


def write_rows(count: int) -> bytes:
    """Lines of different words."""
    return b"".join(b"w%d 0.5 1.5\n" % number for number in range(count))


# What is written → the vectors that are read, or 0 for a file that is refused.
FILES: dict[str, tuple[Callable[[], bytes], int]] = {
    "empty lines": (lambda: LINE + b"\n" * 90_000 + b"other 1 2\n", 2),
    "a .gz of empty lines": (lambda: gzip.compress(LINE + b"\n" * 100_000_000, 1), 0),
    "lines of spaces": (lambda: LINE + b"  \n" * 2_000_000 + b"other 1 2\n", 0),
    "one word again and again": (lambda: LINE * 2_000_000, 0),
    "words without numbers": (lambda: LINE + b"a\n" * 4_000_000, 0),
    "text in place of numbers": (lambda: LINE + b"a b c\n" * 1_000_000, 0),
    "every second line broken": (lambda: b"".join(b"w%d 1 2\nw%d x 2\n" % (n, n) for n in range(60_000)), 0),
    "every second line short": (lambda: write_rows(60_001) + (b"%s\n" % LINE) * 59_999, 60_002),
    "one long line": (lambda: b"a" + b" 1" * 9_000_000, 0),
}


@pytest.mark.slow
def test_millions_of_lines_take_seconds(tmp_path: Path) -> None:
    for number, (write, _) in enumerate(FILES.values()):
        (tmp_path / f"{number}.txt").write_bytes(write())
    places = [tmp_path / f"{number}.txt" for number in range(len(FILES))]
    outcomes = run_bounded(OPEN, *places, seconds=60, memory=3 * 2**29)
    for (case, (_, expected)), outcome in zip(FILES.items(), outcomes, strict=True):
        refused = outcome.kind == "CorruptCheckpointError"
        assert outcome == ("done", str(expected)) if expected else refused, (case, outcome)


@pytest.fixture
def few_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundredth of the lines that a file may have for nothing."""
    monkeypatch.setattr(vectors, "MOST_LINES_LEFT_OUT", vectors.MOST_LINES_LEFT_OUT // 100)


@pytest.mark.usefixtures("few_left_out")
def test_a_file_of_bad_lines_is_refused_before_its_end(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_bytes(LINE + b"a b c\n" * 1500)
    with refuses(CorruptCheckpointError, path, "1,001", "1 kept"):
        open_embedding(path)


@pytest.mark.usefixtures("few_left_out")
@pytest.mark.parametrize("line", [b"\n", b" \r\n"], ids=["empty", "spaces"])
def test_a_compressed_file_of_empty_lines_is_refused_before_its_end(line: bytes, tmp_path: Path) -> None:
    """Ten megabytes of a .gz may be hours of them."""
    path = tmp_path / "v.txt.gz"
    path.write_bytes(gzip.compress(LINE + line * 1500 + b"other 1 x\n", 1))
    with refuses(CorruptCheckpointError, path, "1,001 empty lines", "1 kept"):
        open_embedding(path)


@pytest.mark.usefixtures("few_left_out")
def test_empty_lines_between_vectors_are_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_bytes(b"".join(b"w%d 0.5 1.5\n\n\n" % number for number in range(600)))
    embedding = open_embedding(path)
    assert (len(embedding.labels), embedding.notes) == (600, ())


@pytest.mark.usefixtures("few_left_out")
def test_a_file_with_more_good_lines_than_bad_ones_is_read(tmp_path: Path) -> None:
    """Also if it has very many bad ones, or starts with them."""
    path = tmp_path / "v.txt"
    for content, expected in (
        (write_rows(1003) + LINE * 1002, 1004),
        (b"a x 2\na x 2\n" + write_rows(10), 10),
    ):
        path.write_bytes(content)
        embedding = open_embedding(path)
        assert len(embedding.labels) == expected
        assert len(embedding.notes) == 1


def test_a_note_lists_the_first_of_many_lines_only(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_bytes(write_rows(200) + b"a b c\n" * 150)
    (note,) = open_embedding(path).notes
    assert re.findall(r"\d+", note) == ["150", "150", *map(str, range(201, 221))]


def test_a_table_larger_than_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_text(tmp_path / "v.txt", words(50), np.ones((50, 4)))
    monkeypatch.setattr(machine, "UNCHECKED", 100)
    monkeypatch.setattr(machine, "available_memory", lambda: 100)
    with refuses(NotEnoughMemoryError, path):
        open_embedding(path)


def test_binary_vectors_beyond_those_announced_are_noted(tmp_path: Path) -> None:
    path = tmp_path / "vectors.bin"
    labels = words(50)
    keyed(labels, np.random.default_rng(0).standard_normal((50, 4))).save_word2vec_format(str(path), binary=True)
    assert open_embedding(path).notes == ()
    content = path.read_bytes()
    path.write_bytes(content.replace(b"50 4", b"20 4", 1))
    embedding = open_embedding(path)
    assert list(embedding.labels) == labels[:20]
    (note,) = embedding.notes
    assert "20" in note
    path.write_bytes(content + b"\n")
    assert open_embedding(path).notes == ()


def test_a_plain_text_is_read_in_blocks(tmp_path: Path) -> None:
    """As before: lines that stand together are parsed at once, and one bad line among them is left out."""
    labels = words(3000)
    path = write_text(tmp_path / "v.txt", labels, np.arange(6000.0).reshape(3000, 2))
    path.write_text(path.read_text().replace("aah 14", "aah x"))
    embedding = open_embedding(path)
    assert len(embedding.labels) == 2999
    assert "1 line left out" in embedding.notes[0]
    assert embedding.matrix[-1].tolist() == [5998.0, 5999.0]
