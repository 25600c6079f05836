"""Texts of a small language, a tokeniser for it, and their sequences."""

from __future__ import annotations

from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from attngeo.pretrain.text import ShuffledSequences, StreamedSequences, build_sequences
from attngeo.pretrain.text_source import TextSource
from attngeo.pretrain.tokenizer import train_wordpieces

WORDS = [f"{a}{b}" for a in "bdfgk" for b in "aeiou"]


def make_text(documents: list[str], *, streaming: bool = False, name: str = "text") -> TextSource:
    """A text of these documents."""
    return TextSource(name, lambda: iter(documents), streaming)


@cache
def word_tokenizer() -> PreTrainedTokenizerBase:
    """A tokeniser trained on WORDS: each word is one piece."""
    return train_wordpieces(make_text([" ".join(WORDS)] * 9), 120)


def make_sequences(documents: list[str], tokenizer: PreTrainedTokenizerBase | None = None, **given: Any) -> Any:
    """Sequences of these documents, packed in eights unless other options are given."""
    options = {"length": 8, "count": 1000, "least": 1, "seed": 0}
    return build_sequences(make_text(documents), tokenizer or word_tokenizer(), **(options | given))


def take_rows(found: ShuffledSequences | StreamedSequences, count: int, first: int = 0) -> list[tuple[int, ...]]:
    """The tokens of `count` sequences from the one with index `first` on; checks their indices."""
    if isinstance(found, StreamedSequences):
        examples = list(islice(found, first, first + count))
    else:
        examples = [found[index] for index in range(first, first + count)]
    assert [example["index"] for example in examples] == list(range(first, first + count))
    return [tuple(example["input_ids"].tolist()) for example in examples]


def cut_by_hand(documents: list[str], length: int, tokenizer: Any = None) -> list[tuple[int, ...]]:
    """What packing must give: the pieces of each document and a separator, all end to end, in parts of `length`."""
    tokenizer = tokenizer or word_tokenizer()
    end = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
    stream = [n for text in documents for n in (*tokenizer.encode(text, add_special_tokens=False), end)]
    return [tuple(stream[i : i + length]) for i in range(0, len(stream) - length + 1, length)]


def draw_documents(count: int = 40, seed: int = 0) -> list[str]:
    """Documents of random words."""
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, size=random.integers(1, 20))) for _ in range(count)]


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> str:
    """Save a tokeniser in a folder; the reference to it."""
    tokenizer.save_pretrained(folder)
    return str(folder)


@cache
def make_gpt2(pad: str | None = None, mask: str | None = None) -> PreTrainedTokenizerFast:
    """A byte-level BPE with one special token, like that of GPT-2."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = [each for each in ("<|endoftext|>", mask) if each]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        draw_documents(),
        trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|endoftext|>", pad_token=pad, mask_token=mask)
