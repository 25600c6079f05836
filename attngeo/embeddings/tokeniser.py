"""A checkpoint's tokeniser: its tokens by id, which of them are special, and the tokens of a word.

Read with `tokenizers` and `sentencepiece`, which run no code of the checkpoint.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attngeo.checkpoints.module_store import ModuleStore
from attngeo.checkpoints.store import TensorStore
from attngeo.embeddings.words import MARKS
from attngeo.errors import CorruptCheckpointError, NetworkError, UnsupportedModelError, UsageError

SENTENCEPIECE = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "spm.model", "source.spm")
LOOKED_FOR = ("tokenizer.json", "vocab.json", "vocab.txt", *SENTENCEPIECE)
# By how much a family's ids are those of its SentencePiece file moved up. Some make room for fairseq's special tokens:
# https://github.com/huggingface/transformers/blob/v4.57.0/src/transformers/models/xlm_roberta/tokenization_xlm_roberta.py
# Others number pieces in ways of their own, so a family that is not listed is refused rather than guessed.
MOVED = {
    **dict.fromkeys(("xlm-roberta", "xlm-roberta-xl", "mbart", "xglm"), 1),
    **dict.fromkeys(
        ("albert", "big_bird", "deberta-v2", "gemma", "gemma2", "gemma3", "gemma3_text", "llama", "mistral", "mixtral",
         "mt5", "phi3", "rembert", "t5", "umt5", "xlnet"), 0,
    ),
}  # fmt: skip
FAIRSEQ = {0: "<s>", 1: "<pad>", 2: "</s>", 3: "<unk>"}
# A byte that no token covers, as SentencePiece writes it. Its vector says nothing about a word.
BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")

Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class Tokeniser:
    """tokens: by id. special: ids that no text gives. added: ids that were added after training, special or not."""

    tokens: Mapping[int, str]
    special: frozenset[int]
    added: frozenset[int]
    encode: Encode | None

    def pieces(self, word: str) -> list[int] | None:
        """The ids of a word's tokens in running text; None where it cannot be written with them."""
        if self.encode is None:
            return None
        ids = self.encode(word)
        if not self._starts_word(ids):
            # Byte-level tokenisers take a word without a space in front for the rest of another.
            spaced = self.encode(f" {word}")
            ids = spaced if self._starts_word(spaced) else ids
        usable = ids and all(
            number in self.tokens and number not in self.special and not BYTE.fullmatch(self.tokens[number])
            for number in ids
        )
        return ids if usable else None

    def _starts_word(self, ids: list[int]) -> bool:
        first = self.tokens.get(ids[0], "") if ids else ""
        return any(mark.marks_words and first.startswith(mark.text) for mark in MARKS)


def take_tokeniser(given: Any) -> Tokeniser:
    """The tokeniser in a `transformers` or `tokenizers` object. Raises UsageError for what is neither."""
    library = getattr(given, "backend_tokenizer", given)
    if not hasattr(library, "get_added_tokens_decoder"):
        raise UsageError(
            f"tokeniser is a {type(given).__name__}, expected a fast tokeniser of transformers, or one of tokenizers"
        )
    return _of_library(type(library).from_str(library.to_str()))  # a copy, whose settings are ours to change


def read_tokeniser(store: TensorStore) -> Tokeniser:
    """The tokeniser that comes with a checkpoint. Raises UnsupportedModelError without one, CorruptCheckpointError."""
    for name in LOOKED_FOR:
        path = store.file(name)
        if path is None:
            continue
        try:
            return _read(name, path, store)
        except (UnsupportedModelError, CorruptCheckpointError):
            raise
        except Exception as error:  # tokenizers raises bare Exceptions for what it cannot parse
            raise CorruptCheckpointError(
                f"{store.ref}: {name} is not a readable tokeniser ({_line(error)}); download it again"
            ) from None
    if isinstance(store, ModuleStore):
        raise UsageError(f"{store.ref}: a model in memory brings no tokeniser; give open_embedding(model, tokeniser=…)")
    if store.offline:
        raise NetworkError(f"{store.ref}: no tokeniser in the cache, and offline mode is on; run once without it")
    raise UnsupportedModelError(
        f"{store.ref}: no tokeniser beside the weights, looked for {', '.join(LOOKED_FOR)}; put the model's own there"
    )


def _read(name: str, path: Path, store: TensorStore) -> Tokeniser:
    if name == "tokenizer.json":
        from tokenizers import Tokenizer

        return _of_library(Tokenizer.from_file(str(path)))
    if name == "vocab.json":
        return _read_vocab_json(path, store)
    if name == "vocab.txt":
        return _read_wordpiece(path, store)
    model_type = str(store.config.get("model_type"))
    if model_type not in MOVED:
        raise UnsupportedModelError(
            f"{store.ref}: how {model_type!r} numbers the pieces of {name} is not known; put its tokenizer.json there, "
            "which AutoTokenizer.from_pretrained(…).save_pretrained(…) writes"
        )
    return _read_sentencepiece(path, MOVED[model_type])


def _of_library(tokenizer: Any) -> Tokeniser:
    tokenizer.no_truncation()
    tokenizer.no_padding()
    added = tokenizer.get_added_tokens_decoder()
    tokens = {number: token for token, number in tokenizer.get_vocab(with_added_tokens=True).items()}
    special = {number for number, token in added.items() if token.special} | _unknown(tokenizer)

    def encode(text: str) -> list[int]:
        try:
            encoding = tokenizer.encode(text, add_special_tokens=False)
        except Exception:  # what the library raises, bare, where a model without an unknown token meets one
            return []
        covered = {place for start, stop in encoding.offsets for place in range(start, stop)}
        # A BPE without an unknown token drops what it does not know.
        whole = all(place in covered for place, letter in enumerate(text) if letter.isalnum())
        return list(encoding.ids) if whole else []

    return Tokeniser(tokens, frozenset(special), frozenset(added), encode)


def _unknown(tokenizer: Any) -> set[int]:
    """The id that stands for what a vocabulary does not have, special or not."""
    token = getattr(tokenizer.model, "unk_token", None)
    if token is not None:
        number = tokenizer.token_to_id(token)
    else:  # a Unigram model has a number instead, which only its JSON tells
        number = json.loads(tokenizer.to_str())["model"].get("unk_id")
    return set() if number is None else {number}


def _read_vocab_json(path: Path, store: TensorStore) -> Tokeniser:
    """GPT-2's pair of files; or without merges a plain list of tokens, cut by a SentencePiece model if there is one."""
    vocabulary = json.loads(path.read_text("utf-8"))
    if not isinstance(vocabulary, dict) or not all(type(n) is int and n >= 0 for n in vocabulary.values()):
        raise CorruptCheckpointError(f"{store.ref}: vocab.json is no object of token → id; download it again")
    vocabulary = {token.encode("utf-8", "replace").decode("utf-8"): number for token, number in vocabulary.items()}
    ends_words = any(token.endswith("</w>") for token in vocabulary)  # CLIP's kind, which is cut in another way
    if (merges := store.file("merges.txt")) is not None and not ends_words:
        from tokenizers import ByteLevelBPETokenizer

        library = ByteLevelBPETokenizer(str(path), str(merges), add_prefix_space=False)
        read = _of_library(library._tokenizer)
        return Tokeniser(read.tokens, _looks_special(read.tokens), read.added, read.encode)
    tokens = {number: token for token, number in vocabulary.items()}
    encode: Encode | None = None
    if (model := next(filter(None, map(store.file, SENTENCEPIECE)), None)) is not None:
        processor = _sentencepiece(model)

        def encode(text: str) -> list[int]:
            return [vocabulary.get(piece, -1) for piece in processor.encode(text, out_type=str)]

    return Tokeniser(tokens, _looks_special(tokens), frozenset(), encode)


def _read_wordpiece(path: Path, store: TensorStore) -> Tokeniser:
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer

    tokens = dict(enumerate(path.read_text("utf-8").removesuffix("\n").split("\n")))
    vocabulary = {token: number for number, token in tokens.items()}
    stated = store.file("tokenizer_config.json")
    settings = json.loads(stated.read_text("utf-8")) if stated is not None else {}
    lowercase = settings.get("do_lower_case", True) if isinstance(settings, dict) else True
    library = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    library.normalizer = BertNormalizer(lowercase=bool(lowercase))
    library.pre_tokenizer = BertPreTokenizer()
    encode = _of_library(library).encode if "[UNK]" in vocabulary else None
    return Tokeniser(tokens, _looks_special(tokens), frozenset(), encode)


def _read_sentencepiece(path: Path, moved: int) -> Tokeniser:
    processor = _sentencepiece(path)
    count = processor.get_piece_size()
    special = {n + moved for n in range(count) if processor.is_control(n) or processor.is_unused(n)}
    special |= {processor.unk_id() + moved}
    tokens = {n + moved: processor.id_to_piece(n) for n in range(count)}
    if moved:
        tokens |= FAIRSEQ
        special |= set(FAIRSEQ)
    return Tokeniser(
        tokens, frozenset(special), frozenset(), lambda text: [n + moved for n in processor.encode(text, out_type=int)]
    )


def _sentencepiece(path: Path) -> Any:
    from sentencepiece import SentencePieceProcessor

    return SentencePieceProcessor(model_file=str(path))


def _looks_special(tokens: Mapping[int, str]) -> frozenset[int]:
    """The ids of tokens in brackets, where no file says which are special."""
    return frozenset(number for number, token in tokens.items() if re.fullmatch(r"<[^>]+>|\[[^\]]+\]", token))


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__
