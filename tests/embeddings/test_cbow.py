"""CBOW trained on a text, and the files it is saved to."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import numpy as np
import pytest

from attngeo.embeddings.cbow import save_vectors, train_cbow
from attngeo.embeddings.opening import open_embedding
from attngeo.embeddings.options import CbowOptions
from attngeo.errors import CorruptCheckpointError, DataError, ModelNotFoundError, OutputError, UsageError

pytest.importorskip("gensim")

SMALL = CbowOptions(dimensions=12, min_count=2, epochs=3)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Sentences of two topics that share no word: cat and dog, sun and moon are used alike."""
    chooser = random.Random(0)
    topics = [
        (["cat", "dog"], ["eats", "sleeps", "runs", "barks"]),
        (["sun", "moon"], ["rises", "shines", "sets", "glows"]),
    ]
    lines = []
    for _ in range(1500):
        nouns, verbs = chooser.choice(topics)
        lines.append(" ".join([chooser.choice(nouns), *chooser.sample(verbs, 3), chooser.choice(nouns)]))
    path = tmp_path / "text.txt"
    path.write_text("\n".join(lines) + "\nThe RARE end, 1990.")
    return path


def test_words_used_alike_come_close(text: Path) -> None:
    vectors = train_cbow(text, options=CbowOptions(dimensions=12, epochs=20))
    assert vectors.similarity("cat", "dog") > vectors.similarity("cat", "moon")
    assert vectors.similarity("sun", "moon") > vectors.similarity("sun", "dog")
    assert "rare" not in vectors.key_to_index


def test_the_same_text_and_seed_give_the_same_vectors(text: Path) -> None:
    first, again = train_cbow(text, options=SMALL), train_cbow(text, options=SMALL)
    np.testing.assert_array_equal(first.vectors, again.vectors)
    assert list(first.index_to_key) == list(again.index_to_key)
    packed = text.with_suffix(".gz")
    packed.write_bytes(gzip.compress(text.read_bytes()))
    np.testing.assert_array_equal(train_cbow(packed, options=SMALL).vectors, first.vectors)


def test_case_is_folded_unless_kept(text: Path) -> None:
    every = CbowOptions(dimensions=4, min_count=1, epochs=1)
    assert {"the", "rare", "end"} <= train_cbow(text, options=every).key_to_index.keys()
    assert {"The", "RARE"} <= train_cbow(
        text, options=CbowOptions(dimensions=4, min_count=1, epochs=1, keep_case=True)
    ).key_to_index.keys()


def test_words_are_runs_of_letters_or_what_stands_between_spaces(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The U.S. in 2001 don't <unk> man_made\n" * 3)
    options = {"dimensions": 4, "min_count": 1, "epochs": 1}
    letters, spaces = (
        train_cbow(text, options=CbowOptions(**options, tokenized=cut)).key_to_index for cut in (False, True)
    )  # type: ignore[arg-type]
    assert set(letters) == {"the", "u", "s", "in", "don", "t", "unk", "man_made"}
    assert set(spaces) == {"the", "u.s.", "in", "2001", "don't", "<unk>", "man_made"}


def test_a_text_of_one_line_gives_the_same_words(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from attngeo.embeddings import cbow, vectors

    monkeypatch.setattr(vectors, "CHUNK", 1000)
    monkeypatch.setattr(cbow, "LONGEST_TEXT_LINE", 500)
    one = tmp_path / "one.txt"
    one.write_text(text.read_text().replace("\n", " "))
    counts = [
        {word: vectors.get_vecattr(word, "count") for word in vectors.index_to_key}
        for vectors in (
            train_cbow(path, options=CbowOptions(dimensions=4, min_count=1, epochs=1)) for path in (text, one)
        )
    ]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("suffix", [".txt", ".vec", ".bin"])
def test_saved_vectors_are_read_back(text: Path, tmp_path: Path, suffix: str) -> None:
    vectors = train_cbow(text, options=SMALL)
    path = tmp_path / f"vectors{suffix}"
    save_vectors(vectors, path)
    embedding = open_embedding(path)
    assert list(embedding.labels) == list(vectors.index_to_key)
    np.testing.assert_allclose(embedding.matrix.numpy(), vectors.vectors, atol=1e-6)
    assert sorted(tmp_path.iterdir()) == sorted([path, text])


def test_a_reference_trains_with_the_defaults(text: Path) -> None:
    embedding = open_embedding(f"cbow:{text}")
    assert embedding.matrix.shape[1] == CbowOptions().dimensions == 300
    assert {"cat", "moon"} <= set(embedding.labels)


def test_bad_texts_and_options(text: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"none\.txt"):
        train_cbow(tmp_path / "none.txt")
    with pytest.raises(DataError, match="99999"):
        train_cbow(text, options=CbowOptions(min_count=99999))
    empty = tmp_path / "empty.txt"
    empty.touch()
    with pytest.raises(DataError, match=r"empty\.txt"):
        train_cbow(empty)
    with pytest.raises(UsageError, match="seed is -1"):
        CbowOptions(seed=-1)
    with pytest.raises(ModelNotFoundError, match="a folder"):
        train_cbow(tmp_path)
    with pytest.raises(UsageError, match="dimensions is 0"):
        CbowOptions(dimensions=0)
    binary = tmp_path / "binary.txt"
    binary.write_bytes(b"\xff\xfe\x00" * 99)
    with pytest.raises(CorruptCheckpointError, match="UTF-8"):
        train_cbow(binary)
    for path in (tmp_path / "v.docx", tmp_path / "none" / "v.vec"):
        with pytest.raises(OutputError, match=path.name):
            save_vectors(train_cbow(text, options=SMALL), path)
