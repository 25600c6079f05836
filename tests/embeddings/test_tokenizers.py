"""Tokenisers in every form that checkpoints have, compared with the libraries that define the forms."""

from __future__ import annotations

import json
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Command
from support.checkpoints import write_single
from support.hub_client import environment_of
from support.hub_server import Hub
from support.vectors import TEXT, byte_level, checkpoint, random_vectors, sentence_piece, word_piece, write_questions

from attngeo.embeddings.embedding import Embedding
from attngeo.embeddings.opening import open_embedding
from attngeo.errors import CheckpointError, CorruptCheckpointError, ShapeError, UnsupportedModelError, UsageError


def words_of(embedding: Embedding) -> list[str]:
    return [embedding.labels[row] for row in embedding.answer_rows("words").tolist()]


def cut(embedding: Embedding, word: str) -> list[int] | None:
    assert embedding.pieces is not None
    return embedding.pieces(word)


def test_byte_level_words_are_the_ones_after_a_space(tmp_path: Path) -> None:
    library = byte_level(tmp_path / "tokenizer.json")
    embedding = open_embedding(checkpoint(tmp_path, library.get_vocab_size()))
    known = {embedding.labels[row]: row for row in embedding.answer_rows("words").tolist()}
    for word in ("the", "queen", "Athens"):
        assert library.encode(f" {word}").ids == [known[word]], word
    assert "<|endoftext|>" not in known
    for word in dict.fromkeys([*TEXT.split(), "whiter", "Sparta", "été"]):
        assert cut(embedding, word) == library.encode(f" {word}").ids, word


def test_tokenizer_json_counts_and_not_the_class_of_the_family(tmp_path: Path) -> None:
    """AutoTokenizer would make BERT's WordPiece of it, which has other rules."""
    library = byte_level(tmp_path / "tokenizer.json")
    embedding = open_embedding(checkpoint(tmp_path, library.get_vocab_size(), model_type="bert"))
    assert cut(embedding, "Athens") == library.encode(" Athens").ids


@pytest.mark.parametrize(
    ("family", "name", "kind", "shift"),
    [
        ("t5", "spiece.model", "unigram", 0),
        ("deberta-v2", "spm.model", "unigram", 0),
        ("llama", "tokenizer.model", "bpe", 0),
        # Fairseq's special tokens come before the pieces.
        ("xlm-roberta", "sentencepiece.bpe.model", "unigram", 1),
        ("camembert", "sentencepiece.bpe.model", "unigram", 4),
    ],
)
def test_sentence_piece(tmp_path: Path, family: str, name: str, kind: str, shift: int) -> None:
    """The ids of SentencePiece's own library, after the special tokens that the family puts before them."""
    from sentencepiece import SentencePieceProcessor

    model = sentence_piece(tmp_path, kind)
    library = SentencePieceProcessor(model_file=str(model))
    folder = checkpoint(tmp_path / "model", library.get_piece_size() + shift, model_type=family)
    shutil.copy(model, folder / name)
    embedding = open_embedding(folder)
    assert "king" in words_of(embedding)
    assert embedding.labels[library.piece_to_id("▁king") + shift] == "king"
    for word in TEXT.split():
        ids = library.encode(word)
        pieces = [library.id_to_piece(number) for number in ids]
        usable = library.unk_id() not in ids and not any(piece.startswith("<0x") for piece in pieces)
        assert cut(embedding, word) == ([number + shift for number in ids] if usable else None), word
    assert cut(embedding, "日") is None  # unknown, or bytes, which are no part of a word


def write_word_pieces(folder: Path) -> Sequence[str]:
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "king", "man", "##s", "woman"]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    return vocabulary


def test_vocab_txt(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model", 9, model_type="bert")
    library = word_piece(tmp_path / "tokenizer.json", write_word_pieces(folder))
    embedding = open_embedding(folder)
    assert words_of(embedding) == ["king", "man", "woman"]
    for word in ("kings", "King", "queen"):
        expected = library.encode(word, add_special_tokens=False).ids
        assert cut(embedding, word) == (None if 1 in expected else expected)


def list_frame(embedding: Embedding) -> list[list[str]]:
    """The special tokens before and after a text."""
    assert embedding.find_frame is not None
    return [[embedding.labels[row] for row in rows] for rows in embedding.find_frame()]


def test_special_tokens_around_a_text_are_those_of_the_tokeniser(tmp_path: Path) -> None:
    """As tokenizer.json says, as transformers puts them for the class of a vocabulary, or as a tokeniser in memory."""
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing
    from transformers import BertTokenizer

    folder = checkpoint(tmp_path / "file", 9, model_type="bert")
    vocabulary = write_word_pieces(folder)
    assert list_frame(open_embedding(folder)) == [["[CLS]"], ["[SEP]"]]
    word_piece(folder / "tokenizer.json", vocabulary)
    assert list_frame(open_embedding(folder)) == [[], []]
    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    special = [("[CLS]", 2), ("[MASK]", 4), ("[SEP]", 3)]
    library.post_processor = TemplateProcessing(single="[CLS] [MASK] $A [SEP]", special_tokens=special)
    library.save(str(folder / "tokenizer.json"))
    assert list_frame(open_embedding(folder)) == [["[CLS]", "[MASK]"], ["[SEP]"]]
    in_memory = BertTokenizer(str(folder / "vocab.txt"))
    assert list_frame(open_embedding(folder, tokenizer=in_memory)) == [["[CLS]"], ["[SEP]"]]


def test_the_settings_beside_a_vocabulary_count(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model", 9, model_type="bert")
    write_word_pieces(folder)
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert cut(open_embedding(folder), "king") == [5]
    assert cut(open_embedding(folder), "King") is None


def write_byte_level_pair(folder: Path) -> Any:
    """GPT-2's form: vocab.json and merges.txt."""
    library = byte_level(folder.parent / "library.json")
    library.save_model(str(folder))
    return library


def test_vocab_json_with_merges(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model", 365, model_type="gpt2")
    library = write_byte_level_pair(folder)
    embedding = open_embedding(folder)
    for word in TEXT.split():
        assert cut(embedding, word) == library.encode(f" {word}").ids
    assert "<|endoftext|>" not in words_of(embedding)


def test_vocab_json_that_gives_ids_to_pieces(tmp_path: Path) -> None:
    """Marian's form: SentencePiece cuts, vocab.json gives the ids. Its tokeniser is written in Python."""
    from sentencepiece import SentencePieceProcessor

    model = sentence_piece(tmp_path)
    library = SentencePieceProcessor(model_file=str(model))
    count = library.get_piece_size()
    vocabulary = {library.id_to_piece(number): count - 1 - number for number in range(count)}
    folder = checkpoint(tmp_path / "model", count, model_type="marian")
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    for name in ("source.spm", "target.spm"):
        shutil.copy(model, folder / name)
    embedding = open_embedding(folder)
    assert embedding.labels[vocabulary["▁king"]] == "king"
    assert cut(embedding, "queens") == [vocabulary[piece] for piece in library.encode("queens", out_type=str)]
    assert cut(embedding, "日") is None


def test_words_of_clip_end_with_a_mark_and_are_written_in_bytes(tmp_path: Path) -> None:
    vocabulary = [
        "k", "i", "n", "g</w>", "ki", "kin", "king</w>", "josÃ©</w>", "jos", "ÃŃ</w>",
        "<|startoftext|>", "<|endoftext|>",
    ]  # fmt: skip
    folder = checkpoint(tmp_path, len(vocabulary), model_type="clip")
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(vocabulary)}))
    (folder / "merges.txt").write_text("#version: 0.2\nk i\nki n\nkin g</w>\n")
    embedding = open_embedding(folder)
    assert list(embedding.labels[5:10]) == ["kin##", "king", "josé", "jos##", "í"]
    assert words_of(embedding) == ["g", "king", "josé", "í"]
    assert cut(embedding, "king") == [6]
    assert cut(embedding, "queen") is None


def test_a_tokeniser_that_is_code_is_refused_and_not_run(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model", 9, model_type="own", auto_map={"AutoConfig": "evil.Evil"})
    write_word_pieces(folder)
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    (folder / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["evil.Evil", null]}}')
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.json"):
        open_embedding(folder)
    # Code for the configuration alone is not run either; the vocabulary can be read without it.
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    assert words_of(open_embedding(folder)) == ["king", "man", "woman"]
    assert not (tmp_path / "ran").exists()


def test_a_family_that_transformers_does_not_know_is_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model", 70, model_type="own")
    shutil.copy(sentence_piece(tmp_path), folder / "spiece.model")
    with pytest.raises(UnsupportedModelError, match=r"spiece\.model.*'own'.*tokenizer\.json"):
        open_embedding(folder)


@pytest.mark.slow
def test_only_tokeniser_files_are_downloaded_from_the_hub(hub: Hub, attngeo: Command, tmp_path: Path) -> None:
    online = environment_of(hub.url, tmp_path / "home")
    folder = hub.repositories["org/name"] = checkpoint(tmp_path / "remote", 365, model_type="gpt2")
    write_byte_level_pair(folder)
    for name in ("README.md", "pytorch_model.bin", "code.py"):
        (folder / name).write_text("not needed")
    questions = write_questions(tmp_path / "q.txt", {"own": ["the of and old"]})
    command = [
        "analogy",
        "org/name",
        "--questions",
        questions,
        "--n-answers",
        1,
        "--subwords",
        "mean",
        "--format",
        "json",
    ]
    first = attngeo(*command, "--download", **online)
    assert (first.returncode, first.stderr) == (0, "")
    assert json.loads(first.stdout)[-1]["known"] == 1
    assert sorted(hub.downloaded) == ["config.json", "merges.txt", "model.safetensors", "vocab.json"]
    hub.requests.clear()
    again = attngeo(*command, "--offline", **online)
    assert (again.returncode, again.stdout, hub.requests) == (0, first.stdout, [])


def test_truncation_and_padding_do_not_apply_to_words(tmp_path: Path) -> None:
    library = word_piece(tmp_path / "tokenizer.json")
    library.enable_truncation(1)
    library.enable_padding(length=8)
    library.save(str(tmp_path / "tokenizer.json"))
    assert cut(open_embedding(checkpoint(tmp_path, 7)), "kings") == [2, 5]


def test_a_model_in_memory_needs_its_tokeniser(tmp_path: Path, built: Callable[[str], Any]) -> None:
    from transformers import MarianTokenizer, PreTrainedTokenizerFast

    words = [f"w{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(62)]
    library = word_piece(tmp_path / "tokenizer.json", ["[PAD]", "[UNK]", *words])
    library.enable_truncation(1)
    vocabulary = ["<pad>", "<unk>", "</s>", *(f"▁{word}" for word in words[:59])]
    (tmp_path / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(vocabulary)}))
    pieces = str(sentence_piece(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sacremoses, which is not installed
        slow = MarianTokenizer(pieces, pieces, str(tmp_path / "vocab.json"))
    model = built("bert")
    for given, known in (
        (library, words), (PreTrainedTokenizerFast(tokenizer_object=library), words), (slow, words[:59]),
    ):  # fmt: skip
        embedding = open_embedding(model, tokenizer=given)
        assert torch.equal(embedding.matrix, model.get_input_embeddings().weight)
        assert words_of(embedding) == known
    assert library.truncation is not None
    with pytest.raises(UsageError, match="str"):
        open_embedding(model, tokenizer="bert-base-uncased")
    with pytest.raises(UsageError, match="as tokenizer"):
        open_embedding(model)


def test_words_outside_the_vocabulary_stay_unknown(tmp_path: Path) -> None:
    """Also if the unknown token is not special, if there is none, and if a BPE drops letters."""
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
        assert cut(embedding, word) is None, model
        assert cut(embedding, "nave" if isinstance(model, BPE) else "king") is not None, model
    # A Unigram model without an unknown token cannot cut a word with other letters than its own.
    Tokenizer(Unigram([("king", -1.0), ("k", -2.0)])).save(str(tmp_path / "tokenizer.json"))
    assert cut(open_embedding(checkpoint(tmp_path, 2)), "zzz") is None


def test_padding_rows_and_added_tokens_are_left_out_with_a_note(tmp_path: Path) -> None:
    library = word_piece(tmp_path / "tokenizer.json")
    embedding = open_embedding(checkpoint(tmp_path, 8))
    (note,) = embedding.notes
    assert re.findall(r"\d+", note) == ["1"]  # row
    assert embedding.answer_rows("all").tolist() == list(range(7))
    library.add_special_tokens(["<extra>"])
    library.save(str(tmp_path / "tokenizer.json"))
    (note,) = open_embedding(checkpoint(tmp_path, 7)).notes
    assert re.findall(r"\d+", note) == ["1"]  # token


@pytest.mark.parametrize(("rows", "facts"), [(5, ["'##s'", " 5 "]), (20, [" 7 tokens", " 20 rows"])])
def test_a_tokeniser_of_another_model_is_refused(tmp_path: Path, rows: int, facts: list[str]) -> None:
    word_piece(tmp_path / "tokenizer.json")
    with pytest.raises(ShapeError, match=r"model\.embed_tokens\.weight") as error:
        open_embedding(checkpoint(tmp_path, rows))
    for fact in facts:
        assert fact in str(error.value)


def test_a_missing_or_broken_tokeniser(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, 7, model_type="gpt2")
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.json.*vocab\.json.*spiece\.model"):
        open_embedding(folder)
    (folder / "merges.txt").write_text("#version: 0.2\n")
    for vocabulary in ("[1]", '{"a": -1}', '{"a": "1"}', "{", ""):
        (folder / "vocab.json").write_text(vocabulary)
        with pytest.raises(CheckpointError, match=re.escape(str(folder))):
            open_embedding(folder)
    (folder / "vocab.json").unlink()
    (folder / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(CorruptCheckpointError, match=r"tokenizer\.json"):
        open_embedding(folder)
    broken = checkpoint(tmp_path / "t5", 7, model_type="t5")
    (broken / "spiece.model").write_text("no model")
    with pytest.raises(UnsupportedModelError, match=r"spiece\.model.*'t5'"):
        open_embedding(broken)


def test_a_protobuf_that_does_not_fit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of transformers asks for tiktoken instead."""
    import sentencepiece

    folder = checkpoint(tmp_path / "t5", 70, model_type="t5")
    shutil.copy(sentence_piece(tmp_path), folder / "spiece.model")
    monkeypatch.delattr(sentencepiece, "sentencepiece_model_pb2", raising=False)
    monkeypatch.setitem(sys.modules, "sentencepiece.sentencepiece_model_pb2", None)
    with pytest.raises(UnsupportedModelError, match="protobuf"):
        open_embedding(folder)


def test_vectors_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    word_piece(tmp_path / "tokenizer.json")
    vectors = random_vectors(7, 8)
    vectors[2, 3] = torch.nan
    embedding = open_embedding(write_single(tmp_path, {"wte.weight": vectors}, {"model_type": "own"}))
    (note,) = embedding.notes
    assert "NaN" in note
    assert note.endswith(" 1")
    assert 2 not in embedding.answer_rows("all").tolist()
    with pytest.raises(CorruptCheckpointError, match=r"wte\.weight"):
        open_embedding(write_single(tmp_path, {"wte.weight": vectors * torch.nan}, {"model_type": "own"}))


def test_half_precision_is_kept_and_quantised_tables_are_refused(tmp_path: Path) -> None:
    word_piece(tmp_path / "tokenizer.json")
    config = {"model_type": "own"}
    embedding = open_embedding(write_single(tmp_path, {"wte.weight": random_vectors(7, 8).bfloat16()}, config))
    assert embedding.matrix.dtype == torch.bfloat16
    with pytest.raises(UnsupportedModelError, match="I8"):
        open_embedding(write_single(tmp_path, {"wte.weight": torch.zeros(7, 8, dtype=torch.int8)}, config))
