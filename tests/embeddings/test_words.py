"""Which texts are words, and which words a vocabulary has."""

from __future__ import annotations

import pytest

from attngeo.embeddings.embedding import is_single_word, label_tokens


@pytest.mark.parametrize(
    "text", ["a", "queen", "Queen", "naïve", "हिन्दी", "日本", "don't", "co-operate", "U.S.", "l’été", "Mr."]
)
def test_words(text: str) -> None:
    assert is_single_word(text)


@pytest.mark.parametrize(
    "text",
    ["", " ", "-", "'s", "1990", "b2b", "[unused9]", "<s>", "New_York", "two words", "a--b", "end-", "@home", "▁x"],
)
def test_no_words(text: str) -> None:
    assert not is_single_word(text)


def test_word_piece() -> None:
    tokens = dict(enumerate(["[PAD]", "[unused1]", "king", "##s", "King", "1990", "!"]))
    assert label_tokens(tokens, {0}) == (tokens, {2, 4})


def test_byte_level_marks_words_and_their_bytes_are_read() -> None:
    tokens = dict(enumerate(["<|endoftext|>", "king", "Ġking", "ĠÃ©tÃ©", "Ġ", "ĠÃ", "Ġ12", "Ċ"]))
    labels, words = label_tokens(tokens, {0})
    assert words == {2, 3}
    assert [labels[number] for number in (0, 1, 2, 3)] == ["<|endoftext|>", "##king", "king", "été"]


def test_sentence_piece_bytes_and_controls_are_no_words() -> None:
    tokens = dict(enumerate(["<s>", "<0x0A>", "▁", "▁the", "the", "▁▁", "▁don't"]))
    labels, words = label_tokens(tokens, {0})
    assert words == {3, 6}
    assert (labels[3], labels[4]) == ("the", "##the")


def test_marks_at_the_end_of_words() -> None:
    labels, words = label_tokens(dict(enumerate(["king</w>", "king", "s</w>"])), set())
    assert (labels, words) == ({0: "king", 1: "king##", 2: "s"}, {0, 2})


def test_a_vocabulary_without_marks_is_of_words() -> None:
    # One Ġ among hundreds is a letter of Maltese and no mark.
    tokens = dict(
        enumerate(["Ġorġ", "king", "x1", *(f"word{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(300))])
    )
    labels, words = label_tokens(tokens, set())
    assert labels == tokens
    assert {0, 1} <= words
    assert 2 not in words
