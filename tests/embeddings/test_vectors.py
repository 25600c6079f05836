"""Files of word vectors, read as gensim reads them, and the errors for bad ones."""

from __future__ import annotations

import gzip
import pickle
import re
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from support.messages import refuses
from support.vectors import keyed, words, write_text

from attngeo.embeddings.opening import open_embedding
from attngeo.errors import (
    AttnGeoError,
    CorruptCheckpointError,
    ModelNotFoundError,
    UnsupportedModelError,
    UsageError,
)

LABELS = [*words(60), "New_York", "été", "日本"]
VECTORS = np.random.default_rng(0).standard_normal((len(LABELS), 7)).astype(np.float32)


def zipped(path: Path, inside: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(inside, inside.name)
    return path


def gzipped(path: Path, inside: Path) -> Path:
    path.write_bytes(gzip.compress(inside.read_bytes()))
    return path


def write_binary(path: Path) -> Path:
    keyed(LABELS, VECTORS).save_word2vec_format(str(path), binary=True)
    return path


FORMS: dict[str, Callable[[Path], Path]] = {
    "GloVe": lambda folder: write_text(folder / "v.txt", LABELS, VECTORS),
    "fastText": lambda folder: write_text(folder / "v.vec", LABELS, VECTORS, header=True),
    "gzip": lambda folder: gzipped(folder / "v.txt.gz", write_text(folder / "v.txt", LABELS, VECTORS)),
    "zip": lambda folder: zipped(folder / "v.zip", write_text(folder / "v.txt", LABELS, VECTORS)),
    "word2vec": lambda folder: write_binary(folder / "v.bin"),
    "word2vec zip": lambda folder: zipped(folder / "v.zip", write_binary(folder / "v.bin")) / "v.bin",
    "word2vec gzip": lambda folder: gzipped(folder / "v.bin.gz", write_binary(folder / "v.bin")),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_format_gives_the_same_table(form: str, tmp_path: Path) -> None:
    embedding = open_embedding(FORMS[form](tmp_path))
    assert list(embedding.labels) == LABELS
    assert embedding.notes == ()
    np.testing.assert_allclose(embedding.matrix.numpy(), VECTORS, atol=6e-7)
    assert [LABELS[row] for row in embedding.answer_rows("words").tolist()] == [*words(60), "été", "日本"]
    assert embedding.answer_rows("all").tolist() == list(range(len(LABELS)))


def test_text_is_read_to_the_last_bit(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_text(
        "".join(f"{label} {' '.join(map(repr, row.tolist()))}\n" for label, row in zip(LABELS, VECTORS, strict=True))
    )
    assert torch.equal(open_embedding(path).matrix, torch.from_numpy(VECTORS))


def test_text_in_forms_that_are_not_plain(tmp_path: Path) -> None:
    """Spaces at line ends (fastText), words with spaces in them (GloVe 840B), tabs, Windows line ends, no last one."""
    path = tmp_path / "v.txt"
    path.write_bytes(b"the 0.5 -1e-2 3 \n. . . 1 2 3\nof\t4\t5\t6\r\nand 7 8 9")
    embedding = open_embedding(path)
    assert list(embedding.labels) == ["the", ". . .", "of", "and"]
    assert embedding.matrix.tolist()[1:] == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert embedding.matrix[0].tolist() == pytest.approx([0.5, -0.01, 3])


def test_blocks_join_where_chunks_of_the_file_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from attngeo.embeddings import vectors

    monkeypatch.setattr(vectors, "CHUNK", 101)
    for form in ("GloVe", "word2vec", "word2vec gzip"):
        embedding = open_embedding(FORMS[form](tmp_path))
        assert list(embedding.labels) == LABELS
        np.testing.assert_allclose(embedding.matrix.numpy(), VECTORS, atol=6e-7)


def test_bad_lines_are_left_out_and_named(tmp_path: Path) -> None:
    path = write_text(tmp_path / "v.txt", LABELS[:20], VECTORS[:20])
    lines = path.read_text().splitlines()
    lines[3] = lines[3].rsplit(" ", 1)[0]
    lines[5] += " 1.0"
    lines[7] = lines[7].replace(lines[7].split()[2], "nan")
    lines[9] = lines[2]
    lines[11] = lines[11].replace(lines[11].split()[3], "x")
    lines[13] = lines[13].replace(lines[13].split()[3], "inf")
    path.write_text("\n".join(lines) + "\n")
    embedding = open_embedding(path)
    kept = [i for i in range(20) if i not in (3, 5, 7, 9, 11, 13)]
    assert [label for label in embedding.labels if " " not in label] == [LABELS[i] for i in kept]
    (note,) = embedding.notes
    assert re.findall(r"\d+", note)[0] == "5"
    for fact in (r"1 \D*repeated\D* 10\b", r"2 \D*NaN\D* 8, 14\b", r"1 \D*7 numbers\D* 4\b", r"1 \D*text\D* 12\b"):
        assert re.search(fact, note), fact
    # The first of eight numbers is a part of the word, as in GloVe's words with spaces.
    assert f"{LABELS[5]} {lines[5].split()[1]}" in embedding.labels


def test_the_first_of_several_vectors_of_a_word_is_kept(tmp_path: Path) -> None:
    embedding = open_embedding(write_text(tmp_path / "v.txt", ["a", "b", "a"], [[1, 2], [3, 4], [5, 6]]))
    assert embedding.matrix.tolist() == [[1, 2], [3, 4]]
    (note,) = embedding.notes
    assert re.search(r"1 line .*repeated.* 3\b", note)


def written(name: str, content: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return write


CORRUPT = CorruptCheckpointError
# The function that writes the file, the error, and a fact in its message.
BROKEN: dict[str, tuple[Callable[[Path], Path], type[AttnGeoError], str]] = {
    "empty": (written("v.txt", b""), CORRUPT, r"v\.txt"),
    "prose": (written("v.txt", b"It is a truth universally\nacknowledged, that\n"), CORRUPT, "It is a truth"),
    "few numbers": (written("v.txt", b"a 1 2\nb x y\nc z z\n"), CORRUPT, "2 lines .*1 kept"),
    "text ends early": (written("v.vec", b"3 2\na 1 2\nb 3 4\n"), CORRUPT, r"\b2 vectors.* 3\b"),
    "binary ends early": (written("v.bin", b"2 2\na " + struct.pack("<2f", 1, 2)), CORRUPT, r"\b1 vectors.* 2\b"),
    "binary without words": (written("v.bin", b"2 2\n" + b"\xff" * 9000), CORRUPT, "vector 1 "),
    "no width": (written("v.vec", b"3 0\na\nb\nc\n"), CORRUPT, "3 0"),
    "gzip cut off": (written("v.gz", gzip.compress(b"a 1 2\n" * 9999)[:-20]), CORRUPT, r"v\.gz"),
    "zip damaged": (written("v.zip", b"PK\x03\x04 no"), CORRUPT, r"\.zip"),
    "fastText binary": (written("v.bin", b"\xba\x16\x4f\x2f" * 9), UnsupportedModelError, r"fastText.*\.vec"),
    "a pickle": (written("v.kv", pickle.dumps({"a": 1})), UnsupportedModelError, "save_word2vec_format"),
    "a pickle as .bin": (written("v.bin", pickle.dumps({"a": 1})), UnsupportedModelError, "save_word2vec_format"),
    "missing": (lambda folder: folder / "v.txt", ModelNotFoundError, r"v\.txt"),
    "missing by name": (lambda _: Path("glove.6B.300d.txt"), ModelNotFoundError, r"glove\.6B\.300d\.txt"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_bad_files_are_refused(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write, error, fact = BROKEN[case]
    path = write(tmp_path)
    with pytest.raises(error, match=fact) as caught:
        open_embedding(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


SPACED = ["New York", "New York City", "a b", "a Yor", " lead", "trail ", "été de"]


@pytest.mark.parametrize("place", [0, 4, -1])
@pytest.mark.parametrize("word", SPACED)
def test_a_word_with_a_space_cannot_be_in_a_binary_file(word: str, place: int, tmp_path: Path) -> None:
    """What gensim writes for one, it reads back as an error or as other words. In its text format, the word is read."""
    labels = words(8)
    labels[place] = word
    vectors = keyed(labels, VECTORS[:8])
    path = tmp_path / "v.bin"
    vectors.save_word2vec_format(str(path), binary=True)
    try:
        again = type(vectors).load_word2vec_format(str(path), binary=True)
    except (UnicodeDecodeError, EOFError):
        pass
    else:
        assert again.index_to_key != labels
    with refuses(CorruptCheckpointError, path, f"vector {labels.index(word) + 1}", repr(word)):
        open_embedding(path)


def test_vectors_that_begin_like_the_rest_of_a_word_are_vectors(tmp_path: Path) -> None:
    values = np.frombuffer(b"ab =" * 2 + b"fg >" * 2, "<f4")
    assert (values < 1).all()
    path = tmp_path / "v.bin"
    keyed(words(9), np.tile(values, (9, 1))).save_word2vec_format(str(path), binary=True)
    assert open_embedding(path).matrix.tolist() == [values.tolist()] * 9


def test_what_gensim_has_in_memory_is_a_table_too() -> None:
    embedding = open_embedding(keyed(LABELS, VECTORS))
    assert list(embedding.labels) == LABELS
    assert repr(embedding) == "Embedding('KeyedVectors': 63 vectors of 7 dimensions, 62 words)"


@pytest.mark.parametrize("kind", ["i8", "O", "c8"])
def test_arrays_in_memory_of_anything_but_floats_are_refused(kind: str) -> None:
    vectors = keyed(LABELS, VECTORS)
    vectors.vectors = np.zeros(VECTORS.shape, kind)
    with pytest.raises(CorruptCheckpointError, match="KeyedVectors"):
        open_embedding(vectors)


@pytest.mark.parametrize("kind", ["f2", ">f4", "f8"])
def test_floats_of_any_size_and_order_are_taken(kind: str) -> None:
    vectors = keyed(LABELS, VECTORS)
    for order in ("C", "F"):
        vectors.vectors = np.asarray(VECTORS, kind, order=order)  # type: ignore[call-overload]
        np.testing.assert_allclose(open_embedding(vectors).matrix.numpy(), VECTORS, atol=2e-3)


def test_vectors_in_memory_that_are_not_finite_or_not_ours_to_write() -> None:
    vectors = keyed(LABELS, VECTORS)
    vectors.vectors[3, 0] = np.nan
    vectors.vectors.flags.writeable = False
    embedding = open_embedding(vectors)
    (note,) = embedding.notes
    assert "NaN" in note
    assert note.endswith(" 1")
    assert 3 not in embedding.answer_rows("all").tolist()


def test_odd_texts(tmp_path: Path) -> None:
    """A byte order mark, lines longer than what is sniffed, more lines than announced, words that are not UTF-8."""
    path = tmp_path / "v.txt"
    path.write_bytes(b"\xef\xbb\xbfthe 1 2\nof 3 4\n")
    assert list(open_embedding(path).labels) == ["the", "of"]
    wide = np.random.default_rng(1).standard_normal((3, 20_000))
    assert open_embedding(write_text(path, words(3), wide)).matrix.shape == (3, 20_000)
    path.write_bytes(b"2 2\n. . 1 2\nof 3 4\nand 5 6\n")
    embedding = open_embedding(path)
    assert list(embedding.labels) == [". .", "of", "and"]
    (note,) = embedding.notes
    assert re.search(r"\b3\b.*\b2\b", note)
    path.write_bytes(b"the 1 2\n\xff\xfe 3 4\nof 1e39 2\nand 1_0 2\nin 5 6\nto 7 8\na 9 9\n")
    embedding = open_embedding(path)
    assert list(embedding.labels) == ["the", "in", "to", "a"]
    for fact in (r"1 \D*UTF-8\D* 2\b", r"1 \D*Inf\D* 3\b", r"1 \D*text\D* 4\b"):
        assert re.search(fact, embedding.notes[0]), fact


def test_rows_keep_the_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    lines = [f"{word} {i} {i}" for i, word in enumerate(words(100))]
    lines[37] = "two words 37 37"
    lines[50] = "aaa 0 x"
    path.write_text("\n".join(lines))
    embedding = open_embedding(path)
    assert embedding.matrix[:, 0].tolist() == [i for i in range(100) if i != 50]
    assert embedding.labels[37] == "two words"


@pytest.mark.slow
def test_a_wide_file_of_few_vectors_takes_little_memory(tmp_path: Path) -> None:
    pytest.importorskip("resource")
    path, width = tmp_path / "v.vec", 200_000  # a step of 1,000 rows would already take 800 MB
    path.write_text(f"1 {width}\nthe" + " 1" * width + "\n")
    code = (
        "import resource; from attngeo.embeddings.opening import open_embedding\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"assert open_embedding({str(path)!r}).matrix.shape == (1, {width})\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(run.stdout) / 1024 < 600


def test_one_of_several_files_in_a_zip_is_named(tmp_path: Path) -> None:
    for width in (2, 3):
        write_text(tmp_path / f"glove.{width}d.txt", LABELS, VECTORS[:, :width])
    with zipfile.ZipFile(tmp_path / "glove.zip", "w") as archive:
        for width in (2, 3):
            archive.write(tmp_path / f"glove.{width}d.txt", f"glove.{width}d.txt")
    with pytest.raises(UsageError, match=r"2 files .*glove\.zip/glove\.2d\.txt"):
        open_embedding(tmp_path / "glove.zip")
    with pytest.raises(ModelNotFoundError, match=r"glove\.9d\.txt.*glove\.2d\.txt"):
        open_embedding(f"{tmp_path}/glove.zip/glove.9d.txt")
    assert open_embedding(f"{tmp_path}/glove.zip/glove.3d.txt").matrix.shape == (len(LABELS), 3)


def test_word_vectors_have_no_output_table(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="leave out table"):
        open_embedding(FORMS["GloVe"](tmp_path), table="output")
