"""What a reference names."""

from __future__ import annotations

import lzma
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.data import DATA, needs
from support.messages import refuses
from support.text_files import read_documents, write_file

from attngeo.errors import DataError, DataUnavailableError, UsageError
from attngeo.pretrain.presets import TEXT_DATA
from attngeo.pretrain.text.sources import NAMED, open_text

ROOT = Path(__file__).parents[3]


def test_the_embedded_novels() -> None:
    text = open_text("austen")
    documents = read_documents("austen")
    packed = ROOT / "attngeo" / "pretrain" / "text" / "corpora" / "austen.txt.xz"
    assert documents == [line for line in lzma.decompress(packed.read_bytes()).decode().split("\n") if line.strip()]
    assert sum(map(len, documents)) > 1_340_000
    assert documents[0] == "SENSE AND SENSIBILITY"
    assert any(document.startswith("It is a truth universally acknowledged") for document in documents)
    assert (text.name, text.streaming, text.tokenizer) == ("austen", False, "train")


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
        f"import sys; sys.path.insert(0, {str(wheel)!r}); from attngeo.pretrain.text import sources; "
        "print(sources.__file__, sum(map(len, next(sources.open_text('austen').read_batches()))))"
    )
    found = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, cwd="/")
    file, characters = found.stdout.split()
    assert file.startswith(str(wheel))
    assert int(characters) >= 1_000_000


def test_the_names_of_texts_are_those_that_options_know() -> None:
    assert {name for name, source in NAMED.items() if source.usage == name} == set(TEXT_DATA)


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
