"""What is a word: the marks that tokenisers put on their tokens, and what a word is made of.

A vocabulary marks either the tokens that start a word (`Ġ` in byte-level BPE, `▁` in SentencePiece), those that end
one (`</w>`), or those that continue one (`##` in WordPiece); the mark that most of its tokens carry is its own. A token
is a word if it is a whole word by that mark, is not special, and consists of letters (of any script, with their marks),
single hyphens, apostrophes and full stops between or after them. That leaves out `[unused9]`, `##ing`, `<s>`, control
and byte tokens, numbers, punctuation, and phrases such as `New_York`. Nothing is left out for being rare or one letter
long.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from typing import Literal, NamedTuple

from tokenizers.decoders import ByteLevel
from tokenizers.pre_tokenizers import ByteLevel as ByteLevelBytes

JOINERS = frozenset("-'’.")
# How a token that is only a part of a word is labelled, whatever its vocabulary writes.
INSIDE = "##"
# A mark that fewer tokens carry is a letter, such as the Ġ of Maltese.
LEAST_SHARE = 0.01


class Mark(NamedTuple):
    """Where a mark stands in a token, and whether it marks whole words (at their start or end) or what is inside."""

    text: str
    at: Literal["start", "end"]
    marks_words: bool


BYTE_LEVEL = Mark("Ġ", "start", True)
MARKS = (BYTE_LEVEL, Mark("▁", "start", True), Mark("</w>", "end", True), Mark(INSIDE, "start", False))


def is_word(text: str) -> bool:
    """Whether `text` is written as a single word.

    >>> [is_word(text) for text in ("queen", "São", "U.S.", "mother-in-law", "[unused9]", "1990", "New_York", "-")]
    [True, True, True, True, False, False, False, False]
    """
    if text.isalpha():
        return True
    if not text or not text[0].isalpha():
        return False
    return all(
        character.isalpha()
        or unicodedata.category(character).startswith("M")
        or (character in JOINERS and previous not in JOINERS)
        for previous, character in pairwise(text)
    ) and (text[-1] == "." or text[-1] not in JOINERS)


def mark_of(tokens: Collection[str]) -> Mark | None:
    """The mark that a vocabulary uses; None where its tokens carry none."""
    counts = {mark: sum(_carries(token, mark) for token in tokens) for mark in MARKS}
    mark = max(counts, key=counts.__getitem__)
    return mark if counts[mark] >= max(1, LEAST_SHARE * len(tokens)) else None


def labels_of(tokens: Mapping[int, str], special: Collection[int]) -> tuple[dict[int, str], set[int]]:
    """The label of each token by its id, and the ids of those that are words.

    >>> labels_of({0: "<s>", 1: "Ġking", 2: "s", 3: "ĠÃ©t"}, special={0})
    ({0: '<s>', 1: 'king', 2: '##s', 3: 'ét'}, {1, 3})
    """
    ordinary = [token for number, token in tokens.items() if number not in special]
    mark = mark_of(ordinary)
    decoder = ByteLevel() if mark is not None and _is_byte_level(ordinary, mark) else None
    labels, words = {}, set()
    for number, token in tokens.items():
        if number in special:
            labels[number] = token
            continue
        whole = mark is None or _carries(token, mark) == mark.marks_words
        text = token if mark is None else _without(token, mark)
        if decoder is not None:
            text = decoder.decode([text])
        if whole and is_word(text):
            words.add(number)
        labels[number] = text if whole else f"{text}{INSIDE}" if mark and mark.at == "end" else f"{INSIDE}{text}"
    return labels, words


def _is_byte_level(tokens: Iterable[str], mark: Mark) -> bool:
    """Whether tokens write bytes as letters: GPT-2's kind does, and CLIP's, which marks the ends of words."""
    if mark.text != "</w>":
        return mark == BYTE_LEVEL
    letters = set(ByteLevelBytes.alphabet())
    return all(letters.issuperset(_without(token, mark)) for token in tokens)


def _carries(token: str, mark: Mark) -> bool:
    return token.startswith(mark.text) if mark.at == "start" else token.endswith(mark.text)


def _without(token: str, mark: Mark) -> str:
    return token.removeprefix(mark.text) if mark.at == "start" else token.removesuffix(mark.text)
