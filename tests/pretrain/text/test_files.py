"""Local files and folders."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
from support.messages import assert_states, refuses
from support.text_files import read_documents, write_file

from attngeo.errors import DataError, DataUnavailableError
from attngeo.pretrain.text import files
from attngeo.pretrain.text.sources import open_text


@pytest.mark.parametrize(
    "reference",
    [
        "corpus.txt",
        "data/corpus.jsonl.gz",
        "./corpus",
        "~nosuchuser/corpus",
        "a/b/c",
        "corpus",
        "a file/b",
        "",
        "x" * 3000,
    ],
)
def test_a_path_that_does_not_exist(reference: str) -> None:
    names = ("austen", "wikipedia", "redpajama", "jigsaw:PATH/train.csv")
    with pytest.raises(DataUnavailableError) as raised:
        open_text(reference)
    assert_states(str(raised.value), "no such file", "folder", "org/name", *names)
    assert str(raised.value).startswith(reference[:80] or "''")
    assert len(str(raised.value)) < 250


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", "a/b/c.md", "c.txt.gz"):
        write_file(tmp_path / name, gzip.compress(b"c.txt.gz", mtime=0) if name.endswith(".gz") else name)
    for name in ("README.md", ".cache/x.txt", "a/.hidden.csv", "__pycache__/x.txt", "picture.png", "a/empty.txt"):
        write_file(tmp_path / name, "" if "empty" in name else name)
    assert read_documents(tmp_path) == ["a/b/c.md", "a/z.txt", "b.txt", "c.txt.gz"]


def test_a_folder_of_tables(tmp_path: Path) -> None:
    write_file(tmp_path / "1.parquet", {"text": ["one"], "n": [1]})
    write_file(tmp_path / "2.parquet", {"n": ["x"], "text": ["two"]})
    assert read_documents(tmp_path) == ["one", "two"]
    write_file(tmp_path / "3.parquet", {"body": ["three"]})
    with refuses(DataError, tmp_path / "3.parquet", "'text'"):
        read_documents(tmp_path)


def test_folders_without_text_and_with_several_formats(tmp_path: Path) -> None:
    with refuses(DataError, tmp_path, ".txt", ".csv", "none"):
        open_text(str(tmp_path))
    write_file(tmp_path / "a.txt", "")
    with refuses(DataError, tmp_path, "empty"):
        open_text(str(tmp_path))
    write_file(tmp_path / "b.csv", "a\none\n")
    with refuses(DataError, tmp_path, "got .csv .txt"):
        open_text(str(tmp_path))


def test_an_error_names_the_file(tmp_path: Path) -> None:
    write_file(tmp_path / "a.jsonl", '{"text": "one"}')
    write_file(tmp_path / "b.jsonl", "{")
    with refuses(DataError, tmp_path / "b.jsonl", "line 1"):
        read_documents(tmp_path)
    (tmp_path / "b.jsonl").rename(tmp_path / "0.jsonl")
    with refuses(DataError, tmp_path / "0.jsonl", "line 1"):
        read_documents(tmp_path)


def test_files_are_opened_in_their_turn(tmp_path: Path) -> None:
    for n in (1, 2):
        write_file(tmp_path / f"{n}.txt", f"{n}\n")
    documents = open_text(str(tmp_path)).read_documents()
    (tmp_path / "2.txt").unlink()
    assert next(documents) == "1"
    with refuses(DataUnavailableError, tmp_path / "2.txt"):
        next(documents)


def test_an_edited_file_is_read_again(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.txt", "one")
    before, times = open_text(str(path)), path.stat()
    assert read_documents(path) == ["one"]
    write_file(path, "two")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # the same time and size
    assert read_documents(path) == ["two"]
    assert list(before.read_batches()) == [["two"]]


def test_files_too_large_for_the_memory_are_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LARGEST_IN_MEMORY", 10)
    for n in (1, 2):
        write_file(tmp_path / f"{n}.txt", "six   ")
    assert open_text(str(tmp_path)).streaming
    assert not open_text(str(tmp_path / "1.txt")).streaming


@pytest.mark.parametrize("name", ["a[1].txt", "a*.txt", "x::y.txt", "50%.txt", "ä b.txt"])
def test_a_name_is_no_pattern(name: str, tmp_path: Path) -> None:
    write_file(tmp_path / "a1.txt", "another\n")
    assert read_documents(write_file(tmp_path / name, "this one\n")) == ["this one"]
