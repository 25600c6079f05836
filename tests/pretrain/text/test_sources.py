"""Text to train on, in every form in which it can be named, and what is said where it cannot be read."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import termios
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import huggingface_hub
import pyarrow as pa
import pytest
from pyarrow import parquet
from support.data import DATA, needs
from support.hub_server import COMMIT, V1_COMMIT, Hub, serve

from attngeo.errors import DataError, DataUnavailableError, UsageError
from attngeo.pretrain.text import files as text_files
from attngeo.pretrain.text import sources as texts
from attngeo.pretrain.text.sources import open_text

ROOT = Path(__file__).parents[3]


def write(path: Path, content: bytes | str | dict[str, list[Any]]) -> Path:
    """A file with these bytes, this text, or as Parquet these columns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, dict):
        parquet.write_table(pa.table(content), path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(reference: object, **options: Any) -> list[str]:
    return [document for batch in open_text(str(reference), **options).batches() for document in batch]


# Files


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
        ("a.jsonl", '{"n": 1, "text": "one"}\n\n{"text": null}\n{"n": 2}\n{"text": "two"}', ["one", "two"]),
        ("a.jsonl", '{"n": 1, "text": "one"}\n{"n": "x", "text": "two"}\n{"n": [2], "text": 3}', ["one", "two"]),
        ("a.jsonl", '"one"\n"two"\n', ["one", "two"]),
        ("a.jsonl", '{"text": "half \\ud83d of it"}', ["half ? of it"]),
        ("a.jsonl.gz", gzip.compress(b'{"body": "one"}\n', mtime=0), ["one"]),
        ("a.json", b'\xef\xbb\xbf \n[{"id": "17", "body": "one"},\n {"body": "two"}]', ["one", "two"]),
        ("a.json", '["one", "two"]', ["one", "two"]),
        ("a.csv", 'id,body,n\n7,"one, and\n""more""",0.5\n8,two,1\n\n', ['one, and\n"more"', "two"]),
        ("a.csv", f"id,body\n1,{'long ' * 40_000}\n", ["long " * 40_000]),
        ("a.csv", "id,body,empty\n1,NA,\n2,12,\n3,null,\n", ["NA", "12", "null"]),
        ("a.tsv", "id\tbody\n1\tone, two\n", ["one, two"]),
        ("a.tsv.gz", gzip.compress(b"id\tbody\n1\tone\n", mtime=0), ["one"]),
        ("a.parquet", {"n": [1, 2, 3], "body": ["one", None, "two"]}, ["one", "two"]),
        ("a.parquet", {"title": ["x"], "text": ["one"]}, ["one"]),
    ],
)
def test_every_kind_of_file(name: str, content: Any, expected: list[str], tmp_path: Path) -> None:
    path = write(tmp_path / name, content)
    assert read(path) == expected
    assert list(tmp_path.iterdir()) == [path]
    assert not open_text(str(path)).streaming


def test_a_column_by_its_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "title,body,year\nOne,the first,1811\nTwo,the second,1813\n")
    assert read(path, column="title") == ["One", "Two"]
    assert read(path, column="year") == ["1811", "1813"]
    several = r"a\.csv: which column holds the text is not clear, its columns are title, body, year; choose with --text"
    with pytest.raises(DataError, match=several):
        open_text(str(path))
    with pytest.raises(DataError, match="there is no column 'tetx', its columns are title, body, year"):
        open_text(str(path), column="tetx")


def test_many_columns_are_not_all_listed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", json.dumps({f"c{n}": "some text" for n in range(500)}))
    with pytest.raises(DataError, match=r"its columns are c0, .*, c19 and 480 others; choose with --text-column$"):
        open_text(str(path))


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", "caf\xe9\n".encode("latin-1"), "is no UTF-8 text (byte 0xe9); convert it, for example with iconv"),
        ("a.txt", "one\n".encode("utf-16"), "is no UTF-8 text (byte 0xff)"),
        ("a.txt", b"PK\x03\x04\0\0", "cannot be read (it has NUL characters, which no text has)"),
        ("a.txt", b"", "is empty, expected text; give another with --data"),
        ("a.txt.gz", gzip.compress(b"", mtime=0), "is empty, expected text"),
        ("a.txt.gz", b"one", "cannot be read (Not a gzipped file"),
        ("a.txt.gz", gzip.compress(bytes(range(32, 126)), mtime=0)[:30], "cannot be read (Compressed file ended"),
        ("a.txt.zst", b"one", "cannot be read (ZSTD decompress failed"),
        ("a.jsonl", "", "is empty"),
        ("a.jsonl", '{"text": "one"}\n{"text": \n', "(line 2: Expecting value; expected an object on every line)"),
        ("a.json", '{\n "text": "one"\n}', "(line 1: Expecting property name enclosed in double quotes; expected"),
        ("a.json", "[1, 2]", "cannot be read (item 1 is a int, expected an object or a string)"),
        ("a.jsonl", '"one"\n3\n', "cannot be read (line 2 is a int, expected an object or a string)"),
        ("a.jsonl", b'{"text": "caf\xe9"}', "is no UTF-8 text (byte 0xe9)"),
        ("a.csv", "", "is empty"),
        ("a.csv", "a,b\n", "is empty"),
        ("a.csv", "a,b\n1,one\n2,two,too\n", "cannot be read (line 3: 3 fields, expected 2 as in the first line)"),
        ("a.csv", 'a,b\n1,"one\n', "cannot be read (line 2: unexpected end of data)"),
        ("a.csv", "a,b\n1,2\n3,4\n", "no column holds text, its columns are a, b; choose with --text-column"),
        ("a.csv", b"a,b\n1,caf\xe9\n", "is no UTF-8 text (byte 0xe9)"),
        ("a.parquet", b"PAR1 and no more", "cannot be read (Parquet magic bytes not found"),
        ("a.parquet", {"n": [1, 2]}, "no column holds text, its columns are n"),
        ("a.docx", "one", "ending in one of .txt .text .md .json .jsonl .csv .tsv .parquet; got .docx"),
        ("a.xz", lzma.compress(b"one"), "; got none"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_ends_in_one_line(name: str, content: Any, expected: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(DataError) as raised:
        read(path)
    assert str(raised.value).startswith(str(path))
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == [path]


def test_faults_beyond_the_first_rows_come_when_they_are_read(tmp_path: Path) -> None:
    lines = ['{"text": "one"}'] * 5000
    path = write(tmp_path / "a.jsonl", "\n".join([*lines, '{"text"']))
    text = open_text(str(path))
    with pytest.raises(DataError, match=r"a\.jsonl cannot be read \(line 5001: Expecting ':' delimiter"):
        list(text.batches())
    path.unlink()
    with pytest.raises(DataUnavailableError, match=r"a\.jsonl cannot be read \(No such file or directory\)"):
        list(text.batches())


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
def test_what_is_not_there(reference: str) -> None:
    expected = "no such file or folder; give a text file, a folder, org/name of the Hub"
    with pytest.raises(DataUnavailableError, match=expected) as raised:
        open_text(reference)
    assert "or one of austen, wikipedia, redpajama, jigsaw:PATH/train.csv" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 250


# Folders


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", "a/b/c.md", "c.txt.gz"):
        write(tmp_path / name, gzip.compress(b"c.txt.gz", mtime=0) if name.endswith(".gz") else name)
    for name in ("README.md", ".cache/x.txt", "a/.hidden.csv", "__pycache__/x.txt", "picture.png", "a/empty.txt"):
        write(tmp_path / name, "" if "empty" in name else name)
    assert read(tmp_path) == ["a/b/c.md", "a/z.txt", "b.txt", "c.txt.gz"]


def test_a_folder_of_tables(tmp_path: Path) -> None:
    write(tmp_path / "1.parquet", {"text": ["one"], "n": [1]})
    write(tmp_path / "2.parquet", {"n": ["x"], "text": ["two"]})
    assert read(tmp_path) == ["one", "two"]
    write(tmp_path / "3.parquet", {"body": ["three"]})
    with pytest.raises(DataError, match=r"3\.parquet has no column 'text'; its columns are"):
        read(tmp_path)


def test_folders_of_nothing_and_of_everything(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected files of one kind, ending in one of .*; got none$"):
        open_text(str(tmp_path))
    write(tmp_path / "a.txt", "")
    with pytest.raises(DataError, match="is empty"):
        open_text(str(tmp_path))
    write(tmp_path / "b.csv", "a\none\n")
    with pytest.raises(DataError, match=r"; got \.csv \.txt$"):
        open_text(str(tmp_path))


def test_the_file_that_is_at_fault_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", '{"text": "one"}')
    write(tmp_path / "b.jsonl", "{")
    with pytest.raises(DataError, match=r"b\.jsonl cannot be read \(line 1"):
        read(tmp_path)
    (tmp_path / "b.jsonl").rename(tmp_path / "0.jsonl")
    with pytest.raises(DataError, match=r"0\.jsonl cannot be read \(line 1"):
        read(tmp_path)


def test_files_are_opened_in_their_turn(tmp_path: Path) -> None:
    for n in (1, 2):
        write(tmp_path / f"{n}.txt", f"{n}\n")
    documents = open_text(str(tmp_path)).documents()
    (tmp_path / "2.txt").unlink()
    assert next(documents) == "1"
    with pytest.raises(DataUnavailableError, match=r"2\.txt cannot be read"):
        next(documents)


# What comes of documents


def test_a_file_that_was_edited_is_read_anew(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one")
    before, times = open_text(str(path)), path.stat()
    assert read(path) == ["one"]
    write(path, "two")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # the same time and size
    assert read(path) == ["two"]
    assert list(before.batches()) == [["two"]]


def test_batches_hold_about_so_many_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "BATCH", 10)
    path = write(tmp_path / "a.txt", "\n".join(["four"] * 5 + ["and " * 9, " ", "end"]))
    batches = list(open_text(str(path)).batches())
    assert batches == [["four"] * 3, ["four", "four", "and " * 9], ["end"]]


def test_files_too_large_to_be_held_are_read_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "LARGEST", 10)
    for n in (1, 2):
        write(tmp_path / f"{n}.txt", "six   ")
    assert open_text(str(tmp_path)).streaming
    assert not open_text(str(tmp_path / "1.txt")).streaming


def test_published_text_has_a_space_between_any_two_characters(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one two\n\nx\n")
    assert read(path, space_characters=True) == [" ".join("one two"), "x"] == ["o n e   t w o", "x"]


# By name


def test_the_embedded_novels() -> None:
    text = open_text("austen")
    documents = read("austen")
    packed = ROOT / "attngeo" / "pretrain" / "text" / "corpora" / "austen.txt.xz"
    assert documents == [line for line in lzma.decompress(packed.read_bytes()).decode().split("\n") if line.strip()]
    assert sum(map(len, documents)) > 1_340_000
    assert documents[0] == "SENSE AND SENSIBILITY"
    assert any(document.startswith("It is a truth universally acknowledged") for document in documents)
    assert (text.name, text.streaming, text.tokenizer) == ("austen", False, "train")


def test_the_embedded_novels_are_in_the_wheel(tmp_path: Path) -> None:
    """Also where it is imported without being unpacked."""
    for name in ("attngeo", "commands"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    build = "from setuptools.build_meta import build_wheel; build_wheel('dist')"
    subprocess.run([sys.executable, "-c", build], cwd=tmp_path, capture_output=True, check=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    code = (
        f"import sys; sys.path.insert(0, {str(wheel)!r}); from attngeo.pretrain.text import sources as texts; "
        "print(texts.__file__, sum(map(len, next(texts.open_text('austen').batches()))))"
    )
    found = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, cwd="/")
    file, characters = found.stdout.split()
    assert file.startswith(str(wheel))
    assert int(characters) >= 1_000_000


def test_jigsaw(tmp_path: Path) -> None:
    row = '0001,"Hey, that\'s\n""mine""",0,1'
    path = write(tmp_path / "train.csv", f"id,comment_text,toxic,insult\n{row}\n")
    assert read(f"jigsaw:{path}") == ['Hey, that\'s\n"mine"']
    assert read(f"jigsaw:{path}", column="id") == ["0001"]
    assert open_text(f"jigsaw:{path}").tokenizer == "google-bert/bert-base-uncased"
    assert open_text(str(path)).tokenizer == "train"
    other = write(tmp_path / "other.csv", "id,body\n1,one\n")
    with pytest.raises(DataError, match="there is no column 'comment_text', its columns are id, body"):
        open_text(f"jigsaw:{other}")
    with pytest.raises(DataUnavailableError, match=r"none\.csv: no such file"):
        open_text("jigsaw:./none.csv")


@pytest.mark.parametrize("reference", ["jigsaw", "jigsaw:", "wikipedia:20220301.de", "redpajama:sample", "austen:emma"])
def test_names_with_and_without_a_path(reference: str) -> None:
    with pytest.raises(UsageError, match=f"'{reference}' names no data set, expected {reference.split(':')[0]}"):
        open_text(reference)


@needs("wikitext-2/valid.txt.gz")
def test_a_real_text() -> None:
    documents = read(DATA / "wikitext-2" / "valid.txt.gz")
    assert sum(len(document.split()) for document in documents) > 200_000
    assert documents[0] == " = Homarus gammarus = "


# Over the network


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve() as running:
        yield running


@pytest.fixture
def redpajama(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """Three documents in two shards, in place of RedPajama's own address."""
    hub.repositories["datasets/org/redpajama"] = tmp_path
    write(tmp_path / "listings" / "en-2023-14-head_middle.txt", "2023-14/0000/en_head\n2023-14/0000/en_middle\n")
    for name, rows in (("en_head", ["one", "two"]), ("en_middle", ["three"])):
        lines = "".join(json.dumps({"url": "u", "raw_content": row}) + "\n" for row in rows)
        write(tmp_path / "documents" / "2023-14" / "0000" / f"{name}.json.gz", gzip.compress(lines.encode(), mtime=0))
    monkeypatch.setattr(texts, "REDPAJAMA", f"{hub.url}/datasets/org/redpajama/resolve/main")
    monkeypatch.setattr(text_files, "WAITS", (0, 0, 0))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    return hub


def test_redpajama_is_read_shard_by_shard(redpajama: Hub) -> None:
    text = open_text("redpajama")
    assert (text.streaming, text.tokenizer) == (True, "google-bert/bert-base-uncased")
    assert redpajama.downloaded == ["listings/en-2023-14-head_middle.txt"]
    documents = text.documents()
    assert list(islice(documents, 2)) == ["one", "two"]
    assert redpajama.downloaded[1:] == ["documents/2023-14/0000/en_head.json.gz"]
    assert list(documents) == ["three"]
    assert redpajama.downloaded[2:] == ["documents/2023-14/0000/en_middle.json.gz"]


@pytest.mark.usefixtures("redpajama")
def test_redpajama_goes_on_where_the_connection_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, left = text_files._rows, 3

    def breaking(place: Any, column: str) -> Iterator[Any]:
        nonlocal left
        yield next(rows := whole(place, column))
        if left:
            left -= 1
            raise ConnectionResetError(104, "Connection reset by peer")
        yield from rows

    monkeypatch.setattr(text_files, "_rows", breaking)
    assert read("redpajama") == ["one", "two", "three"]
    left = 4
    with pytest.raises(DataUnavailableError, match=r"en_head\.json\.gz cannot be read \(.*Connection reset"):
        read("redpajama")


def test_redpajama_that_cannot_be_had(redpajama: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "documents" / "2023-14" / "0000" / "en_middle.json.gz").unlink()
    with pytest.raises(DataUnavailableError, match=r"en_middle\.json\.gz cannot be read \(HTTP Error 404: Not Found\)"):
        read("redpajama")
    assert redpajama.downloaded.count("documents/2023-14/0000/en_middle.json.gz") == 1
    monkeypatch.setattr(texts, "REDPAJAMA", "http://127.0.0.1:9")
    with pytest.raises(DataUnavailableError, match=r"127\.0\.0\.1:9/listings/.* cannot be read \(.*refused.*\); check"):
        open_text("redpajama")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataUnavailableError, match=r"cannot be read \(offline mode is on\)"):
        open_text("redpajama")


CARD = """---
dataset_info:
  features: [{{name: text, dtype: string}}]
  splits: [{{name: train, num_bytes: {size}, num_examples: 2}}]
  download_size: {size}
  dataset_size: {size}
configs: [{{config_name: default, data_files: [{{split: train, path: "data/train-*"}}]}}]
---
"""
CONFIGS = """---
configs:
- {config_name: english, data_files: [{split: train, path: en.csv}, {split: test, path: test.csv}]}
- {config_name: french, data_files: [{split: train, path: fr.csv}]}
---
"""
# huggingface_hub waits between attempts, altogether 23 seconds.
CHILD = """
import json, sys, time
time.sleep = lambda _: None
from attngeo.errors import AttnGeoError
from attngeo.pretrain.text.sources import open_text
for reference in sys.argv[1:]:
    try:
        text = open_text(reference)
        answer = [text.streaming, [document for batch in text.batches() for document in batch]]
    except AttnGeoError as error:
        answer = [type(error).__name__, str(error)]
    print(json.dumps(answer))
"""


def ask(references: list[str], home: Path, code: str = CHILD, **environment: str) -> list[Any]:
    """What comes of each reference, in a process of its own, whose stdout and terminal stay empty besides."""
    terminal, stderr = os.openpty()
    termios.tcsetwinsize(stderr, (24, 80))  # or progress bars would have no room
    quick = {"HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0", "HF_UPDATE_DOWNLOAD_COUNTS": "0"}
    run = subprocess.run(
        [sys.executable, "-c", code, *references], stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=100,
        env={**os.environ, **quick, **environment}, check=False, cwd=home.parent,
    )  # fmt: skip
    os.write(stderr, b"\n")
    assert os.read(terminal, 10_000) == b"\r\n"
    os.close(stderr)
    os.close(terminal)
    assert run.returncode == 0
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.fixture
def remote(hub: Hub, tmp_path: Path) -> Hub:
    """Data sets of every kind."""

    def add(name: str, **contents: Any) -> None:
        hub.repositories[f"datasets/{name}"] = folder = tmp_path / "remote" / name
        for file, content in contents.items():
            write(folder / file, content)

    two, data = {"text": ["one", "two"]}, "data/train-00000-of-00001.parquet"
    add("org/small", **{"README.md": CARD.format(size=100), data: two})
    add("org/small@v1", **{"README.md": CARD.format(size=100), data: {"text": ["the first version"]}})
    add("org/large", **{"README.md": CARD.format(size=10**13), data: two})
    add("org/unknown", **{"train.parquet": {"n": [1, 2], "body": ["one", "two"]}})
    add("org/gated", **{"train.parquet": two})
    hub.gated["datasets/org/gated"] = "hf_secret"
    add("org/script", **{"script.py": "raise SystemExit", "README.md": ""})
    add("org/nothing", **{"README.md": "", "weights.bin": "x"})
    add("org/numbers", **{"train.parquet": {"n": [1, 2]}})
    add("org/broken", **{"README.md": CARD.format(size=100), data: b"PAR1, or is it?"})
    add("org/tables", **{"README.md": CONFIGS, "en.csv": "id,body\n1,one\n2,2\n", "fr.csv": "id,body\n1,un\n",
                         "test.csv": "id,body\n1,three\n"})  # fmt: skip
    for shard in range(2):
        rows = {"title": ["A"] * 150, "text": [f"article {150 * shard + n}" for n in range(150)]}
        add("legacy-datasets/wikipedia", **{f"data/20220301.en/train-0000{shard}-of-00002.parquet": rows})
    add("legacy-datasets/wikipedia", **{"wikipedia.py": "", "data/20220301.de/train.parquet": {"text": ["nein"]}})
    return hub


def test_data_sets_of_the_hub(remote: Hub, tmp_path: Path) -> None:
    expected: dict[str, Any] = {
        "org/small": [False, ["one", "two"]],
        "org/small#train[:50%]": [False, ["one"]],
        "org/small@v1": [False, ["the first version"]],
        f"org/small@{COMMIT}": [False, ["one", "two"]],
        "org/large": [True, ["one", "two"]],
        "org/unknown": [True, ["one", "two"]],
        "org/tables:english": [True, ["one", "2"]],
        "org/tables:french#train": [True, ["un"]],
        "org/tables:english@main#test": [True, ["three"]],
        "wikipedia": [True, [f"article {n}" for n in range(300)]],
    }
    write(tmp_path / "org" / "tables" / "here.txt", "not this folder, which is no configuration")
    assert dict(zip(expected, ask(list(expected), tmp_path / "home", HF_ENDPOINT=remote.url), strict=True)) == expected


@pytest.mark.parametrize(("revision", "commit", "other"), [("", COMMIT, "@v1"), ("@v1", V1_COMMIT, "")])
def test_what_was_downloaded_is_there_without_a_connection(
    revision: str, commit: str, other: str, remote: Hub, tmp_path: Path
) -> None:
    """And is never taken for another revision."""
    home, cached = tmp_path / "home", f"org/small{revision}"
    (before,) = ask([cached], home, HF_ENDPOINT=remote.url)
    remote.requests.clear()
    asked = [cached, f"org/small@{commit}", f"org/small{other}", f"{cached}#test"]
    only = f"only revision {commit} is in the cache, and the Hub is not reached; name that one, or run once with a "
    split = f"{cached}#test: expected a split that it has, org/small#SPLIT with one of train"
    for environment in ({"HF_ENDPOINT": remote.url, "HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}):
        same, by_commit, another, no_split = ask(asked, home, **environment)
        assert same == by_commit == before
        assert another == ["DataUnavailableError", f"org/small{other}: {only}connection"]
        assert no_split == ["DataUnavailableError", split]
    assert remote.requests == []


def test_wikipedia_is_read_shard_by_shard(remote: Hub, tmp_path: Path) -> None:
    code = (
        'from attngeo.pretrain.text.sources import open_text; print(f\'"{next(open_text("wikipedia").documents())}"\')'
    )
    assert ask([], tmp_path / "home", code, HF_ENDPOINT=remote.url) == ["article 0"]
    assert {file for _, file, *_ in remote.requests} == {"data/20220301.en/train-00000-of-00002.parquet"}


def test_data_sets_that_cannot_be_had(remote: Hub, tmp_path: Path) -> None:
    url, one_of = remote.url, "that it has, org/"
    unavailable = {
        "org/none": f"no such data set at {url}, and no such file or folder here; a private one needs HF_TOKEN",
        "org/small@v9": "the data set has no such revision",
        "org/gated": f"gated; accept its terms at {url}/datasets/org/gated and set HF_TOKEN to a token of that account",
        "org/small:other": f"expected a configuration {one_of}small:CONFIG with one of default",
        "org/tables": f"expected a configuration {one_of}tables:CONFIG with one of english, french",
        "org/small#test": f"expected a split {one_of}small#SPLIT with one of train",
        "org/tables:english#dev": f"expected a split {one_of}tables#SPLIT with one of train, test",
    }
    unreadable = {
        "org/nothing": " holds no files that can be read, expected text, JSON, CSV or Parquet",
        "org/script": " is read by a script of its own, which is not run; name a data set of plain files",
        "org/numbers": ": no column holds text, its columns are n; choose with --text-column",
        "org/broken": " cannot be read (ArrowInvalid: ",
    }
    answers = ask([*unavailable, *unreadable], tmp_path / "home", HF_ENDPOINT=url)
    for (reference, message), answer in zip(unavailable.items(), answers[: len(unavailable)], strict=True):
        assert answer == ["DataUnavailableError", f"{reference}: {message}"]
    for (reference, message), (kind, got) in zip(unreadable.items(), answers[len(unavailable) :], strict=True):
        assert (kind, got[: len(reference + message)]) == ("DataError", reference + message)
        assert "\n" not in got
    token = {"HF_ENDPOINT": url, "HF_TOKEN": "hf_secret"}
    assert ask(["org/gated"], tmp_path / "home", **token) == [[True, ["one", "two"]]]


def test_without_a_connection(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "id,body\n1,one\n")
    home = tmp_path / "home"
    local = [[False, ["one"]], [False, ["one"]]]
    assert ask([str(path), f"jigsaw:{path}"], home, CHILD.replace("(reference)", "(reference, column='body')")) == local
    assert not home.exists()  # files are not copied into a cache
    answers = ask(["org/name", "wikipedia"], home, HF_ENDPOINT="http://127.0.0.1:9")
    advice = "; check the connection, HF_ENDPOINT and proxies, or give a file"
    assert [kind for kind, _ in answers] == ["DataUnavailableError"] * 2
    assert answers[0][1] == f"org/name cannot be had from http://127.0.0.1:9{advice}"
    assert re.fullmatch(rf"wikipedia cannot be had from http://127.0.0.1:9 \(.*refused.*\){advice}", answers[1][1])
    answers = ask(["org/name", "wikipedia", "redpajama"], home, HF_HUB_OFFLINE="1")
    assert answers[:2] == [
        ["DataUnavailableError", f"{name}: not in the cache, and offline mode is on; run once without it"]
        for name in ("org/name", "wikipedia")
    ]
    assert answers[2][0] == "DataUnavailableError"
