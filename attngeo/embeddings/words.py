"""Which tokens are words: the marks that tokenisers put on tokens, and the characters of a word.

A vocabulary marks the tokens that start a word (`Ġ` in byte-level BPE, `▁` in SentencePiece), those that end one
(`</w>`), or those that continue one (`##` in WordPiece). The mark of a vocabulary is the one on most of its tokens.

A token is a word if it is not special, is a whole word by that mark, and consists of letters (of any script, with their
combining marks), with single hyphens, apostrophes and full stops between or after them. Examples of tokens that are no
words: `[unused9]`, `##ing`, `<s>`, control and byte tokens, numbers, punctuation, and phrases such as `New_York`. Rare
words and words of one letter are words.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from typing import Literal, NamedTuple

from tokenizers.decoders import ByteLevel
from tokenizers.pre_tokenizers import ByteLevel as ByteLevelBytes

JOINERS = frozenset("-'’.")
# The label of a token that is only a part of a word has this mark, in every vocabulary.
INSIDE = "##"
# A mark on a smaller share of the tokens is a letter, such as the Ġ of Maltese.
LEAST_SHARE = 0.01


class Mark(NamedTuple):
    """A mark, its place in a token, and whether it is on whole words (their start or end) or on what is inside."""

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


def find_mark(tokens: Collection[str]) -> Mark | None:
    """The mark of a vocabulary; None if its tokens have none."""
    counts = {mark: sum(_has_mark(token, mark) for token in tokens) for mark in MARKS}
    mark = max(counts, key=counts.__getitem__)
    return mark if counts[mark] >= max(1, LEAST_SHARE * len(tokens)) else None


def label_tokens(tokens: Mapping[int, str], special: Collection[int]) -> tuple[dict[int, str], set[int]]:
    """The label of each token by its id, and the ids of the tokens that are words.

    >>> label_tokens({0: "<s>", 1: "Ġking", 2: "s", 3: "ĠÃ©t"}, special={0})
    ({0: '<s>', 1: 'king', 2: '##s', 3: 'ét'}, {1, 3})
    """
    ordinary = [token for number, token in tokens.items() if number not in special]
    mark = find_mark(ordinary)
    decoder = ByteLevel() if mark is not None and _is_byte_level(ordinary, mark) else None
    labels, words = {}, set()
    for number, token in tokens.items():
        if number in special:
            labels[number] = token
            continue
        text = token if mark is None else _remove_mark(token, mark)
        if decoder is not None:
            text = decoder.decode([text])
        if mark is None or _has_mark(token, mark) == mark.marks_words:
            labels[number] = text
            if is_word(text):
                words.add(number)
        elif mark.at == "end":
            labels[number] = f"{text}{INSIDE}"
        else:
            labels[number] = f"{INSIDE}{text}"
    return labels, words


def _is_byte_level(tokens: Iterable[str], mark: Mark) -> bool:
    """Whether tokens write bytes as letters, as GPT-2's do, and CLIP's, which have the mark at the ends of words."""
    if mark.text != "</w>":
        return mark == BYTE_LEVEL
    letters = set(ByteLevelBytes.alphabet())
    return all(letters.issuperset(_remove_mark(token, mark)) for token in tokens)


def _has_mark(token: str, mark: Mark) -> bool:
    return token.startswith(mark.text) if mark.at == "start" else token.endswith(mark.text)


def _remove_mark(token: str, mark: Mark) -> str:
    return token.removeprefix(mark.text) if mark.at == "start" else token.removesuffix(mark.text)
