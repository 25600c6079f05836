"""What a reference to a text names: data sets by name, files and folders, and files at addresses."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from support.data import DATA, needs
from support.hub_server import Hub
from support.messages import assert_states, refuses
from support.text_files import read_documents, write_file

from attngeo.errors import DataError, DataUnavailableError, UsageError
from attngeo.pretrain import sources, text_source
from attngeo.pretrain.sources import open_text
from attngeo.pretrain.text_formats import read_rows

ROOT = Path(__file__).parents[2]


def test_the_embedded_novels() -> None:
    text = open_text("austen")
    documents = read_documents("austen")
    packed = ROOT / "attngeo" / "pretrain" / "corpora" / "austen.txt.xz"
    assert documents == [line for line in lzma.decompress(packed.read_bytes()).decode().split("\n") if line.strip()]
    assert sum(map(len, documents)) > 1_340_000
    assert documents[0] == "SENSE AND SENSIBILITY"
    assert any(document.startswith("It is a truth universally acknowledged") for document in documents)
    assert (text.name, text.streaming, text.tokenizer) == ("austen", False, "train")


@pytest.mark.slow
def test_the_embedded_novels_are_in_the_wheel(tmp_path: Path) -> None:
    """They are read even if the wheel is imported without being unpacked."""
    for name in ("attngeo", "commands"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    build = "from setuptools.build_meta import build_wheel; build_wheel('dist')"
    subprocess.run([sys.executable, "-c", build], cwd=tmp_path, capture_output=True, check=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    code = (
        f"import sys; sys.path.insert(0, {str(wheel)!r}); from attngeo.pretrain import sources; "
        "print(sources.__file__, sum(map(len, next(sources.open_text('austen').read_batches()))))"
    )
    found = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, cwd="/")
    file, characters = found.stdout.split()
    assert file.startswith(str(wheel))
    assert int(characters) >= 1_000_000


def test_jigsaw(tmp_path: Path) -> None:
    row = '0001,"Hey, that\'s\n""mine""",0,1'
    path = write_file(tmp_path / "train.csv", f"id,comment_text,toxic,insult\n{row}\n")
    assert read_documents(f"jigsaw:{path}") == ['Hey, that\'s\n"mine"']
    assert read_documents(f"jigsaw:{path}", column="id") == ["0001"]
    assert open_text(f"jigsaw:{path}").tokenizer == "google-bert/bert-base-uncased"
    assert open_text(str(path)).tokenizer == "train"
    other = write_file(tmp_path / "other.csv", "id,body\n1,one\n")
    with refuses(DataError, other, "'comment_text'", "id, body"):
        open_text(f"jigsaw:{other}")
    with refuses(DataUnavailableError, "none.csv", "no such file"):
        open_text("jigsaw:./none.csv")


@pytest.mark.parametrize("reference", ["jigsaw", "jigsaw:", "wikipedia:20220301.de", "redpajama:sample", "austen:emma"])
def test_names_with_and_without_a_path(reference: str) -> None:
    with refuses(UsageError, f"'{reference}'", f"expected {reference.split(':')[0]}"):
        open_text(reference)


@needs("wikitext-2/valid.txt.gz")
def test_a_real_text() -> None:
    documents = read_documents(DATA / "wikitext-2" / "valid.txt.gz")
    assert sum(len(document.split()) for document in documents) > 200_000
    assert documents[0] == " = Homarus gammarus = "


def test_batches_hold_about_the_same_number_of_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_source, "BATCH_CHARACTERS", 10)
    path = write_file(tmp_path / "a.txt", "\n".join(["four"] * 5 + ["and " * 9, " ", "end"]))
    batches = list(open_text(str(path)).read_batches())
    assert batches == [["four"] * 3, ["four", "four", "and " * 9], ["end"]]


def test_characters_are_joined_with_spaces(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.txt", "one two\n\nx\n")
    assert read_documents(path, space_characters=True) == [" ".join("one two"), "x"] == ["o n e   t w o", "x"]


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
    assert (reference[-80:] or "''") in str(raised.value)
    assert len(str(raised.value)) < 250


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", "a/b/c.md", "c.txt.gz"):
        write_file(tmp_path / name, gzip.compress(b"c.txt.gz", mtime=0) if name.endswith(".gz") else name)
    for name in ("README.md", ".cache/x.txt", "a/.hidden.csv", "__pycache__/x.txt", "picture.png", "a/empty.txt"):
        write_file(tmp_path / name, "" if "empty" in name else name)
    assert read_documents(tmp_path) == ["a/b/c.md", "a/z.txt", "b.txt", "c.txt.gz"]


def test_a_file_that_a_folder_has_under_two_names_is_read_once(tmp_path: Path) -> None:
    file = write_file(tmp_path / "text" / "b.txt", "one")
    (tmp_path / "text" / "a.txt").symlink_to(file)
    (tmp_path / "text" / "c.txt").hardlink_to(file)
    write_file(tmp_path / "text" / "d.txt", "one")
    (tmp_path / "text" / "e.txt").symlink_to(write_file(tmp_path / "elsewhere.txt", "two"))
    assert read_documents(tmp_path / "text") == ["one", "one", "two"]


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
    monkeypatch.setattr(sources, "LARGEST_IN_MEMORY", 10)
    for n in (1, 2):
        write_file(tmp_path / f"{n}.txt", "six   ")
    assert open_text(str(tmp_path)).streaming
    assert not open_text(str(tmp_path / "1.txt")).streaming


@pytest.mark.parametrize("name", ["a[1].txt", "a*.txt", "x::y.txt", "50%.txt", "ä b.txt"])
def test_a_name_is_no_pattern(name: str, tmp_path: Path) -> None:
    write_file(tmp_path / "a1.txt", "another\n")
    assert read_documents(write_file(tmp_path / name, "this one\n")) == ["this one"]


@pytest.fixture
def redpajama(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """Three documents in two shards, at an address that stands for RedPajama's."""
    hub.repositories["datasets/org/redpajama"] = tmp_path
    write_file(tmp_path / "listings" / "en-2023-14-head_middle.txt", "2023-14/0000/en_head\n2023-14/0000/en_middle\n")
    for name, rows in (("en_head", ["one", "two"]), ("en_middle", ["three"])):
        lines = "".join(json.dumps({"url": "u", "raw_content": row}) + "\n" for row in rows)
        write_file(
            tmp_path / "documents" / "2023-14" / "0000" / f"{name}.json.gz", gzip.compress(lines.encode(), mtime=0)
        )
    monkeypatch.setattr(sources, "REDPAJAMA", f"{hub.url}/datasets/org/redpajama/resolve/main")
    monkeypatch.setattr(sources, "WAITS", (0, 0, 0))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    return hub


def test_redpajama_is_read_shard_by_shard(redpajama: Hub) -> None:
    text = open_text("redpajama")
    assert (text.streaming, text.tokenizer) == (True, "google-bert/bert-base-uncased")
    assert redpajama.downloaded == ["listings/en-2023-14-head_middle.txt"]
    documents = text.read_documents()
    assert list(islice(documents, 2)) == ["one", "two"]
    assert redpajama.downloaded[1:] == ["documents/2023-14/0000/en_head.json.gz"]
    assert list(documents) == ["three"]
    assert redpajama.downloaded[2:] == ["documents/2023-14/0000/en_middle.json.gz"]


@pytest.mark.usefixtures("redpajama")
def test_nothing_is_lost_or_repeated_if_the_connection_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    left = 3

    def break_connection(file: Any, name: str, column: str) -> Iterator[Any]:
        nonlocal left
        with closing(read_rows(file, name, column)) as rows:
            yield next(rows)
            if left:
                left -= 1
                raise ConnectionResetError(104, "Connection reset by peer")
            yield from rows

    monkeypatch.setattr(sources, "read_rows", break_connection)
    assert read_documents("redpajama") == ["one", "two", "three"]
    left = 4
    with refuses(DataUnavailableError, "en_head.json.gz", "Connection reset"):
        read_documents("redpajama")


def test_addresses_that_cannot_be_reached(redpajama: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "documents" / "2023-14" / "0000" / "en_middle.json.gz").unlink()
    with refuses(DataUnavailableError, "en_middle.json.gz", 404):
        read_documents("redpajama")
    assert redpajama.downloaded.count("documents/2023-14/0000/en_middle.json.gz") == 1
    monkeypatch.setattr(sources, "REDPAJAMA", "http://127.0.0.1:9")
    with refuses(DataUnavailableError, "http://127.0.0.1:9/listings", "refused", "connection"):
        open_text("redpajama")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with refuses(DataUnavailableError, "http://127.0.0.1:9/listings", "offline"):
        open_text("redpajama")


@pytest.mark.slow
def test_local_texts_require_no_library_of_an_extra(tmp_path: Path) -> None:
    """The base installation trains on them."""
    path = write_file(tmp_path / "a.jsonl", '{"text": "one"}')
    code = f"""if True:
        import sys
        sys.modules |= dict.fromkeys(["datasets", "PIL", "sklearn", "scipy"])
        import attngeo.pretrain.runs, attngeo.pretrain.text
        from attngeo.errors import MissingPackageError, require_extra
        from attngeo.pretrain.sources import open_text
        print(sum(len(list(open_text(name).read_documents())) for name in ("austen", {str(path)!r})))
        try:
            with require_extra():
                open_text("org/name")
        except MissingPackageError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, missing = done.stdout.splitlines()
    assert int(count) > 1000
    assert "pip install 'attngeo[data]'" in missing
