"""Tokenisers in every form that checkpoints carry them, against the libraries that they are made for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints import write_single
from support.vectors import TEXT, byte_level, checkpoint, sentence_piece, word_piece

from attngeo.embeddings.opening import open_embedding
from attngeo.errors import CorruptCheckpointError, ShapeError, UnsupportedModelError, UsageError


def means(embedding: Any, ids: list[int]) -> torch.Tensor:
    return embedding.matrix[ids].mean(0)


def test_byte_level_words_are_the_ones_with_a_space_in_front(tmp_path: Path) -> None:
    library = byte_level(tmp_path / "tokenizer.json")
    embedding = open_embedding(checkpoint(tmp_path, library.get_vocab_size()))
    known = {embedding.labels[row]: row for row in embedding.rows("words").tolist()}
    for word in ("the", "queen", "Athens"):
        assert library.encode(f" {word}").ids == [known[word]], word
    assert "<|endoftext|>" not in known
    assert embedding.pieces is not None
    for word in dict.fromkeys([*TEXT.split(), "whiter", "Sparta", "été"]):
        assert embedding.pieces(word) == library.encode(f" {word}").ids, word


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("name", ["tokenizer.model", "spiece.model"])
def test_sentence_piece(tmp_path: Path, kind: str, name: str) -> None:
    from sentencepiece import SentencePieceProcessor

    model = sentence_piece(tmp_path, kind)
    library = SentencePieceProcessor(model_file=str(model))
    folder = checkpoint(tmp_path / "model", library.get_piece_size(), model_type="t5")
    shutil.copy(model, folder / name)
    embedding = open_embedding(folder)
    words = [embedding.labels[row] for row in embedding.rows("words").tolist()]
    assert "king" in words
    assert embedding.labels[library.piece_to_id("▁king")] == "king"
    assert embedding.pieces is not None
    for word in TEXT.split():
        ids = library.encode(word)
        pieces = [library.id_to_piece(number) for number in ids]
        usable = library.unk_id() not in ids and not any(piece.startswith("<0x") for piece in pieces)
        assert embedding.pieces(word) == (ids if usable else None), word
    assert embedding.pieces("日") is None  # unknown, or bytes, which are no part of a word


def test_sentence_piece_ids_that_fairseq_moved(tmp_path: Path) -> None:
    """XLM-R's ids are those of its SentencePiece file and one more, as transformers converts them."""
    from sentencepiece import SentencePieceProcessor

    model = sentence_piece(tmp_path)
    library = SentencePieceProcessor(model_file=str(model))
    folder = checkpoint(tmp_path / "model", library.get_piece_size() + 2, model_type="xlm-roberta")
    shutil.copy(model, folder / "sentencepiece.bpe.model")
    embedding = open_embedding(folder)
    assert embedding.labels[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert embedding.labels[library.piece_to_id("▁king") + 1] == "king"


def test_vocab_txt(tmp_path: Path) -> None:
    library = word_piece(tmp_path / "tokenizer.json", ["[PAD]", "[UNK]", "[CLS]", "king", "man", "##s", "woman"])
    folder = checkpoint(tmp_path / "model", 7, model_type="bert")
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\nking\nman\n##s\nwoman\n")
    embedding = open_embedding(folder)
    assert [embedding.labels[row] for row in embedding.rows("words").tolist()] == ["king", "man", "woman"]
    assert embedding.pieces is not None
    for word in ("kings", "King", "queen"):
        expected = library.encode(word, add_special_tokens=False).ids
        assert embedding.pieces(word) == (None if 1 in expected else expected)


def test_vocab_json_with_merges(tmp_path: Path) -> None:
    library = byte_level(tmp_path / "tokenizer.json")
    library.save_model(str(tmp_path))
    folder = checkpoint(tmp_path / "model", library.get_vocab_size(), model_type="gpt2")
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(tmp_path / name, folder / name)
    embedding = open_embedding(folder)
    assert embedding.pieces is not None
    assert embedding.pieces("queens") == library.encode(" queens").ids
    assert "<|endoftext|>" not in [embedding.labels[row] for row in embedding.rows("words").tolist()]


def test_vocab_json_that_gives_ids_to_pieces(tmp_path: Path) -> None:
    """Marian's and M2M-100's form: SentencePiece cuts, vocab.json numbers."""
    from sentencepiece import SentencePieceProcessor

    model = sentence_piece(tmp_path)
    library = SentencePieceProcessor(model_file=str(model))
    count = library.get_piece_size()
    vocabulary = {library.id_to_piece(number): count - 1 - number for number in range(count)}
    folder = checkpoint(tmp_path / "model", count, model_type="marian")
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    shutil.copy(model, folder / "source.spm")
    embedding = open_embedding(folder)
    assert embedding.labels[vocabulary["▁king"]] == "king"
    assert embedding.pieces is not None
    assert embedding.pieces("queens") == [vocabulary[piece] for piece in library.encode("queens", out_type=str)]


def test_settings_that_cut_and_fill_texts_do_not_reach_words(tmp_path: Path) -> None:
    library = word_piece(tmp_path / "tokenizer.json")
    library.enable_truncation(1)
    library.enable_padding(length=8)
    library.save(str(tmp_path / "tokenizer.json"))
    embedding = open_embedding(checkpoint(tmp_path, 7))
    assert embedding.pieces is not None
    assert embedding.pieces("kings") == [2, 5]


def test_a_model_in_memory_is_given_its_tokeniser(tmp_path: Path, built: Callable[[str], Any]) -> None:
    from transformers import PreTrainedTokenizerFast

    words = [f"w{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(62)]
    library = word_piece(tmp_path / "tokenizer.json", ["[PAD]", "[UNK]", *words])
    library.enable_truncation(1)
    model = built("bert")
    for given in (library, PreTrainedTokenizerFast(tokenizer_object=library)):
        embedding = open_embedding(model, tokeniser=given)
        assert torch.equal(embedding.matrix, model.get_input_embeddings().weight)
        assert [embedding.labels[row] for row in embedding.rows("words").tolist()] == words
    assert library.truncation is not None
    with pytest.raises(UsageError, match="tokeniser is a str, expected a fast tokeniser"):
        open_embedding(model, tokeniser="bert-base-uncased")
    with pytest.raises(UsageError, match="give open_embedding"):
        open_embedding(model)


def test_what_a_vocabulary_lacks_stays_unknown(tmp_path: Path) -> None:
    """Also where its unknown token is not marked special, where it has none, and where a BPE drops letters."""
    from tokenizers import Tokenizer
    from tokenizers.models import BPE, Unigram, WordPiece

    vocabulary = {"[UNK]": 0, "king": 1, "k": 2, "##i": 3}
    letters = {letter: number for number, letter in enumerate("nave")}
    for model, word, rows in (
        (WordPiece(vocabulary, unk_token="[UNK]"), "zzz", 4),
        (WordPiece({"king": 0, "k": 1, "##i": 2}, unk_token="[UNK]"), "zzz", 3),
        (BPE(letters, [], unk_token=None), "naïve", 4),
        (Unigram([("king", -1.0), ("k", -2.0), ("<unk>", -9.0)], unk_id=2), "zzz", 3),
    ):
        Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
        embedding = open_embedding(checkpoint(tmp_path, rows))
        assert embedding.pieces is not None
        assert embedding.pieces(word) is None, model
        assert embedding.pieces("nave" if isinstance(model, BPE) else "king") is not None, model
    # A Unigram model that has no unknown token cannot cut anything that its letters do not make up.
    Tokenizer(Unigram([("king", -1.0), ("k", -2.0)])).save(str(tmp_path / "tokenizer.json"))
    embedding = open_embedding(checkpoint(tmp_path, 2))
    assert embedding.pieces is not None
    assert embedding.pieces("zzz") is None


def test_sentence_piece_of_a_family_that_is_not_listed_is_refused(tmp_path: Path) -> None:
    model = sentence_piece(tmp_path)
    folder = checkpoint(tmp_path / "model", 70, model_type="camembert")
    shutil.copy(model, folder / "sentencepiece.bpe.model")
    with pytest.raises(UnsupportedModelError, match=r"how 'camembert' numbers .* put its tokenizer\.json"):
        open_embedding(folder)


def test_clips_words_end_with_a_mark_and_are_written_in_bytes(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, 4, model_type="clip")
    (folder / "vocab.json").write_text(json.dumps({"king</w>": 0, "josÃ©</w>": 1, "jos": 2, "ÃŃ</w>": 3}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    embedding = open_embedding(folder)
    assert list(embedding.labels) == ["king", "josé", "jos##", "í"]
    assert embedding.rows("words").tolist() == [0, 1, 3]
    assert embedding.pieces is not None
    assert embedding.pieces("king") is None  # how it cuts words is not known


@pytest.mark.parametrize("vocabulary", ['{"a": -1}', '{"a": "1"}', '["a"]', '{"a": true}'])
def test_a_vocabulary_of_anything_but_ids_is_refused(tmp_path: Path, vocabulary: str) -> None:
    folder = checkpoint(tmp_path, 1)
    (folder / "vocab.json").write_text(vocabulary)
    with pytest.raises(CorruptCheckpointError, match="no object of token → id"):
        open_embedding(folder)


def test_padding_rows_and_added_tokens_are_left_out_with_a_note(tmp_path: Path) -> None:
    library = word_piece(tmp_path / "tokenizer.json")
    embedding = open_embedding(checkpoint(tmp_path, 8))
    assert embedding.notes == ("1 rows have no token",)
    assert embedding.rows("all").tolist() == list(range(7))
    library.add_special_tokens(["<extra>"])
    library.save(str(tmp_path / "tokenizer.json"))
    assert open_embedding(checkpoint(tmp_path, 7)).notes == ("1 added tokens have no vector",)


@pytest.mark.parametrize(
    ("rows", "message"), [(5, r"token '##s' has the id 5, the matrix 5 rows"), (20, "it has 7 tokens")]
)
def test_a_tokeniser_of_another_model_is_refused(tmp_path: Path, rows: int, message: str) -> None:
    word_piece(tmp_path / "tokenizer.json")
    with pytest.raises(ShapeError, match=f"the tokeniser does not match model.embed_tokens.weight.*{message}"):
        open_embedding(checkpoint(tmp_path, rows))


def test_a_missing_or_broken_tokeniser(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, 7)
    with pytest.raises(UnsupportedModelError, match=r"no tokeniser beside the weights, looked for tokenizer\.json"):
        open_embedding(folder)
    for name, text in {"vocab.json": "[1]", "spiece.model": "no model", "tokenizer.json": '{"model": 3}'}.items():
        (folder / name).write_text(text)
        with pytest.raises(CorruptCheckpointError, match=name):
            open_embedding(folder)
        (folder / name).unlink()


def test_vectors_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    word_piece(tmp_path / "tokenizer.json")
    vectors = torch.randn(7, 8)
    vectors[2, 3] = torch.nan
    embedding = open_embedding(write_single(tmp_path, {"wte.weight": vectors}, {"model_type": "own"}))
    assert embedding.notes == ("1 tokens left out: NaN or Inf in their vectors",)
    assert 2 not in embedding.rows("all").tolist()
    with pytest.raises(CorruptCheckpointError, match="no finite row"):
        open_embedding(write_single(tmp_path, {"wte.weight": vectors * torch.nan}, {"model_type": "own"}))


def test_half_precision_is_kept_and_quantised_tables_are_refused(tmp_path: Path) -> None:
    word_piece(tmp_path / "tokenizer.json")
    config = {"model_type": "own"}
    embedding = open_embedding(write_single(tmp_path, {"wte.weight": torch.randn(7, 8).bfloat16()}, config))
    assert embedding.matrix.dtype == torch.bfloat16
    with pytest.raises(UnsupportedModelError, match="stored as I8"):
        open_embedding(write_single(tmp_path, {"wte.weight": torch.zeros(7, 8, dtype=torch.int8)}, config))
