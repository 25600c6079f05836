"""Each file format: the documents that are read, the facts in the errors, and the column that holds the text."""

from __future__ import annotations

import bz2
import errno
import gzip
import json
import lzma
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.messages import assert_states, refuses
from support.text_files import read_documents, write_file

from attngeo.errors import DataError, DataUnavailableError
from attngeo.pretrain.sources import open_text
from attngeo.pretrain.text_formats import choose_text_column


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", "one\n\n two \r\n  \nthree", ["one", " two ", "three"]),
        ("a.txt", b"\xef\xbb\xbfone\n", ["one"]),
        ("a.txt", "a\x0bb\u2028c\x85d\x0ce\n", ["a\x0bb\u2028c\x85d\x0ce"]),  # only a line break breaks a line
        ("a.txt", "1\n2\n", ["1", "2"]),
        ("a.MD", "one\n# two\n", ["one", "# two"]),
        ("a.txt.gz", gzip.compress(b"one\ntwo", mtime=0), ["one", "two"]),
        ("a.txt.xz", lzma.compress(b"one\ntwo"), ["one", "two"]),
        ("a.txt.bz2", bz2.compress(b"one\ntwo"), ["one", "two"]),
        ("a.txt.zst", pa.compress(b"one\ntwo", codec="zstd", asbytes=True), ["one", "two"]),
        ("a.jsonl", '{"n": 1, "text": "one"}\n\n{"text": null}\n{"text": "two"}', ["one", "two"]),
        ("a.jsonl", '{"n": 1, "text": "one"}\n{"n": "x", "text": "two"}\n{"n": [2], "text": ""}', ["one", "two"]),
        ("a.jsonl", '"one"\n"two"\n', ["one", "two"]),
        ("a.jsonl", '{"text": "half \\ud83d of it"}', ["half ? of it"]),
        ("a.jsonl.gz", gzip.compress(b'{"body": "one"}\n', mtime=0), ["one"]),
        ("a.json", b'\xef\xbb\xbf \n[{"id": "17", "body": "one"},\n {"body": "two"}]', ["one", "two"]),
        ("a.json", '["one", "two"]', ["one", "two"]),
        ("a.csv", 'id,body,n\n7,"one, and\n""more""",0.5\n8,two,1\n\n', ['one, and\n"more"', "two"]),
        ("a.csv", f"id,body\n1,{'long ' * 40_000}\n", ["long " * 40_000]),
        # Text of Windows: cp1252 that begins as UTF-8 does, and UTF-16.
        ("a.txt", b"one\n" * 5000 + b"caf\xe9 \x80\n", ["one"] * 5000 + ["caf\xe9 \u20ac"]),
        ("a.txt", "caf\xe9\n\u0436\n".encode("utf-16"), ["caf\xe9", "\u0436"]),
        ("a.txt.gz", gzip.compress("caf\xe9\n".encode("utf-16-be"), mtime=0), ["caf\xe9"]),
        ("a.jsonl", b'{"text": "one"}\n{"text": "caf\xe9"}', ["one", "caf\xe9"]),
        ("a.json", '["one", "caf\xe9"]'.encode("utf-16"), ["one", "caf\xe9"]),
        ("a.csv", b"a,b\n1,one\n2,caf\xe9\n", ["one", "caf\xe9"]),
        ("a.tsv", "a\tb\n1\tcaf\xe9\n".encode("utf-16"), ["caf\xe9"]),
        ("a.csv", "id,body,empty\n1,NA,\n2,12,\n3,null,\n", ["NA", "12", "null"]),
        ("a.tsv", "id\tbody\n1\tone, two\n", ["one, two"]),
        ("a.tsv.gz", gzip.compress(b"id\tbody\n1\tone\n", mtime=0), ["one"]),
        ("a.parquet", {"n": [1, 2, 3], "body": ["one", None, "two"]}, ["one", "two"]),
        ("a.parquet", {"title": ["x"], "text": ["one"]}, ["one"]),
    ],
)
def test_every_kind_of_file(name: str, content: Any, expected: list[str], tmp_path: Path) -> None:
    path = write_file(tmp_path / name, content)
    assert read_documents(path) == expected
    assert list(tmp_path.iterdir()) == [path]
    assert not open_text(str(path)).streaming


@pytest.mark.parametrize(
    ("name", "content", "facts"),
    [
        ("a.txt", "caf\xe9\n".encode("latin-1") + "caf\xe9\n".encode(), ["UTF-8", "0xe9"]),
        ("a.txt", b"caf\x81\n", ["UTF-8", "0x81"]),
        ("a.txt.gz", gzip.compress(b"caf\xe9\n", mtime=0), ["UTF-8", "0xe9"]),
        ("a.txt", b"text\nPK\x03\x04\0\0", ["NUL", "line 2"]),
        ("a.txt", b"", ["empty", "another file"]),
        ("a.txt.gz", gzip.compress(b"", mtime=0), ["empty"]),
        ("a.txt.gz", b"one", ["gzipped"]),
        ("a.txt.gz", gzip.compress(bytes(range(32, 126)), mtime=0)[:30], ["Compressed file ended"]),
        ("a.txt.xz", b"one", ["format"]),
        ("a.txt.zst", b"one", ["ZSTD"]),
        ("a.jsonl", "", ["empty"]),
        ("a.jsonl", '{"text": "one"}\n{"text": \n', ["line 2", "value", "object"]),
        ("a.json", '{\n "text": "one"\n}', ["line 1", "object"]),
        ("a.jsonl", '{"text": "one"}\n\n{"body": "two"}\n', ["row 3", "'text'", "body", "null"]),
        ("a.jsonl", '{"text": "one"}\n{"text": 3}\n', ["row 2", "'text'", "int", "null"]),
        ("a.json", "[1, 2]", ["item 1", "int", "object", "string"]),
        ("a.jsonl", '"one"\n3\n', ["line 2", "int", "object", "string"]),
        ("a.csv", "", ["empty"]),
        ("a.csv", "a,b\n", ["empty"]),
        ("a.csv", "a,b\n1,one\n2,two,too\n", ["line 3", "expected 2", "got 3"]),
        ("a.csv", "a,b\n1,one\n2\n", ["line 3", "expected 2", "got 1"]),
        ("a.csv", 'a,b\n1,"one\n', ["line 2", "end of data"]),
        ("a.csv", "a,b\n1,2\n3,4\n", ["a, b", "text_column"]),
        ("a.csv", "id;body\n1;one\n", ["separated by semicolons", "expected commas"]),
        ("a.tsv", "id,body\n1,one\n", ["separated by commas", "expected tabs"]),
        ("a.parquet", b"PAR1 and no more", ["Parquet"]),
        ("a.parquet", {"n": [1, 2]}, ["columns", "n", "text_column"]),
        ("a.docx", "one", [".txt", ".text", ".md", ".json", ".jsonl", ".csv", ".tsv", ".parquet", "got .docx"]),
        ("a.xz", lzma.compress(b"one"), [".txt", "none"]),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read(name: str, content: Any, facts: list[str], tmp_path: Path) -> None:
    path = write_file(tmp_path / name, content)
    with refuses(DataError, path, *facts):
        read_documents(path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_of_another_encoding_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = open_text(str(write_file(tmp_path / "a.txt", b"caf\xe9\n")))
    assert [*source.read_batches()] == [*source.read_batches()] == [["caf\xe9"]]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_errors_after_the_first_rows_are_raised_when_they_are_read(tmp_path: Path) -> None:
    lines = ['{"text": "one"}'] * 5000
    path = write_file(tmp_path / "a.jsonl", "\n".join([*lines, '{"text"']))
    text = open_text(str(path))
    with refuses(DataError, path, "line 5001", "delimiter"):
        list(text.read_batches())
    path.unlink()
    with refuses(DataUnavailableError, path, os.strerror(errno.ENOENT)):
        list(text.read_batches())


def test_fields_may_change_their_type_and_appear_late(tmp_path: Path) -> None:
    """The JSON builder of `datasets` fails here, and makes dates of texts that look like dates."""
    early = [json.dumps({"text": "x" * 1000, "n": 1, "meta": None})] * 11_000
    late = [json.dumps({"text": "y", "n": "a", "meta": {"a": 1}, "new": 1})]
    path = write_file(tmp_path / "a.jsonl", "\n".join([*early, *late]))
    documents = read_documents(path)
    assert (len(documents), documents[-1]) == (11_001, "y")
    dates = write_file(tmp_path / "dates.jsonl", '{"text": "2020-01-01"}\n{"text": "2021-01-01"}\n')
    assert read_documents(dates, column="text") == ["2020-01-01", "2021-01-01"]


def test_a_column_by_its_name(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.csv", "title,body,year\nOne,the first,1811\nTwo,the second,1813\n")
    assert read_documents(path, column="title") == ["One", "Two"]
    assert read_documents(path, column="year") == ["1811", "1813"]
    with refuses(DataError, path, "title, body, year", "text_column"):
        open_text(str(path))
    with refuses(DataError, path, "'tetx'", "title, body, year", "text_column"):
        open_text(str(path), column="tetx")


def test_many_columns_are_not_all_listed(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.jsonl", json.dumps({f"c{n}": "some text" for n in range(500)}))
    with pytest.raises(DataError) as raised:
        open_text(str(path))
    assert_states(str(raised.value), path, "c0", "c9", "490 others")
    assert "c10" not in str(raised.value)


@pytest.mark.parametrize(
    ("values", "facts"),
    [
        (["one", "2"], None),
        (["1", "one", 1], None),
        (["1", " -2.5e3 ", "1,000"], "numbers"),
        ([None, "3"], "numbers"),
        (["", None], "other"),
        ([1, 2.0], "other"),
        ([["one"]], "other"),
    ],
)
def test_a_column_of_text_has_strings_that_are_no_numbers(values: list[Any], facts: str | None) -> None:
    """Those of numbers are for whom asks for them."""
    for ordered in (values, values[::-1]):
        rows = [{"a": value} for value in ordered]
        if facts is None:
            assert choose_text_column("t", rows) == "a"
            continue
        with refuses(DataError, "no column holds text", "text_column"):
            choose_text_column("t", rows)
        if facts == "numbers":
            assert choose_text_column("t", rows, "a") == "a"
            continue
        with refuses(DataError, "'a'", "holds no text"):
            choose_text_column("t", rows, "a")


def test_the_choice_without_a_name() -> None:
    assert choose_text_column("t", [{"title": "one", "text": "two"}]) == "text"
    assert choose_text_column("t", [{"id": "1", "text": "2"}]) == "text"
    assert choose_text_column("t", [{"id": "1", "body": "two", "text": None}]) == "body"
    with refuses(DataError, "several", "id, n", "text_column"):
        choose_text_column("t", [{"id": "one", "n": "two"}])
