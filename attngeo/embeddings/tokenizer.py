"""The tokeniser of a checkpoint: its tokens by id, the ids of special tokens, and the tokens of a word.

`tokenizers` reads tokenizer.json, in a process of its own (see `isolated`). AutoTokenizer of transformers does not: for
many families it makes the tokeniser from the class of the family, and then loses rules that only the file has.
AutoTokenizer reads every other form; it gets a local folder, does not use the network and may not run code of the
checkpoint. What it makes of them, if it is one of `tokenizers`, cuts words in a process of its own, too.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from attngeo.bounds.names import name_type
from attngeo.bounds.small_files import MOST_TOKENIZER_BYTES, read_small_bytes, read_small_text, require_regular_file
from attngeo.checkpoints.gguf_header import TOKEN_TYPES, TOKENS, VOCABULARY, read_vocabulary
from attngeo.checkpoints.store import TensorStore
from attngeo.checkpoints.tensor_file import RegularFile
from attngeo.embeddings.embedding import INSIDE_MARK, LEAST_CASED_SHARE, MARKS
from attngeo.embeddings.isolated import PROBE, FastTokens, Frame, IsolatedTokenizer
from attngeo.errors import (
    CorruptCheckpointError,
    NetworkError,
    UnsupportedModelError,
    UsageError,
    about,
    contain_panics,
    first_line,
)

COMPLETE = "tokenizer.json"
CONFIG = "tokenizer_config.json"
# The files that transformers reads if there is no tokenizer.json: vocabularies, at least one of which is required, and
# files that some families keep beside them.
VOCABULARIES = (
    "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "sentencepiece.model",
    "spm.model", "source.spm",
)  # fmt: skip
COMPANIONS = (CONFIG, "special_tokens_map.json", "added_tokens.json", "merges.txt", "bpe.codes", "target.spm")
ADVICE = (
    "put the model's tokenizer.json, as written by AutoTokenizer.from_pretrained(…).save_pretrained(…), beside its "
    "weights"
)
# A byte that no token covers, as SentencePiece writes it. Its vector says nothing about a word.
BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
# Names of the ids of special tokens in GGUF files (one as llama.cpp misspells it), and the type of these tokens.
SPECIAL = ("bos", "eos", "unknown", "seperator", "padding", "cls", "mask")
CONTROL = 3

Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class ModelTokenizer:
    """Tokens and the function that cuts texts into them.

    Attributes:
        tokens: id → token.
        special: ids that no text gives, and the id of unknown tokens.
        added: ids of tokens that were added after training, special or not.
        encode: function that gives the ids of a text, without special tokens around it; empty if it fails.
        find_frame: function that gives the special tokens around a text.
    """

    tokens: Mapping[int, str]
    special: frozenset[int]
    added: frozenset[int]
    encode: Encode
    find_frame: Callable[[], Frame]

    def pieces(self, word: str) -> list[int] | None:
        """The ids of a word's tokens in running text. None if a part of the word has no token."""
        ids = self.encode(word)
        if not self._starts_word(ids):
            # Byte-level tokenisers need a space before a word; without it they take the word for the end of another.
            spaced = self.encode(f" {word}")
            if self._starts_word(spaced):
                ids = spaced
        for number in ids:
            if number in self.special or number not in self.tokens or BYTE.fullmatch(self.tokens[number]):
                return None
        return ids or None

    def _starts_word(self, ids: list[int]) -> bool:
        first = self.tokens.get(ids[0], "") if ids else ""
        return any(mark.marks_words and first.startswith(mark.text) for mark in MARKS)


def take_tokenizer(tokenizer: Any) -> ModelTokenizer:
    """The tokeniser of a `transformers` or `tokenizers` object. Raises UsageError for any other object."""
    library = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if hasattr(library, "get_added_tokens_decoder"):
        return _wrap_fast(type(library).from_str(library.to_str()))  # a copy: its settings are changed
    if hasattr(tokenizer, "all_special_ids"):  # one that is written in Python
        return ModelTokenizer(
            {number: token for token, number in tokenizer.get_vocab().items()},
            frozenset(tokenizer.all_special_ids),
            frozenset(tokenizer.added_tokens_decoder),
            lambda text: list(tokenizer.encode(text, add_special_tokens=False)),
            partial(_find_frame, tokenizer),
        )
    raise UsageError(
        f"$tokenizer is {name_type(tokenizer)}, expected a tokenizer from transformers or tokenizers", "tokenizer"
    )


def _find_frame(tokenizer: Any) -> Frame:
    """The special tokens that a tokeniser written in Python puts before and after a text."""
    inside = list(tokenizer.encode(PROBE, add_special_tokens=False))
    ids = list(tokenizer.encode(PROBE))
    for start in range(len(ids) - len(inside) + 1):
        end = start + len(inside)
        if inside and ids[start:end] == inside:
            return Frame(tuple(ids[:start]), tuple(ids[end:]))
    return Frame((), ())


def read_tokenizer(store: TensorStore) -> ModelTokenizer:
    """The tokeniser beside the weights of a checkpoint; downloads its files if necessary.

    Raises UnsupportedModelError if there is none or if transformers cannot read it, CorruptCheckpointError for a broken
    tokenizer.json, NetworkError in offline mode if the cache has none, UsageError for a model in memory.
    """
    if store.folder is None:
        raise UsageError(
            "a model in memory has no tokeniser; pass a tokenizer from transformers or tokenizers as $tokenizer",
            "tokenizer",
            subject=store.ref,
        )
    with about(store.ref):
        complete = store.file(COMPLETE)
        if complete is not None:
            try:
                text = read_small_text(complete, MOST_TOKENIZER_BYTES)
            except (OSError, ValueError) as error:
                raise CorruptCheckpointError(
                    f"{complete.name} is not a readable tokeniser ({first_line(error)}); copy or download it again"
                ) from None
            return _isolate(text, complete.name, store.ref)
        if store.format == "GGUF":
            return _read_gguf(store.folder / store.main_file, store.ref)
        vocabularies = [path for path in map(store.file, VOCABULARIES) if path is not None]
        if vocabularies:
            return _read_with_transformers(vocabularies, store)
        if store.offline:
            raise NetworkError(
                "no tokeniser in the cache, and offline mode is on; run once online with $download", "download"
            )
        raise UnsupportedModelError(
            f"no tokeniser beside the weights, looked for {', '.join((COMPLETE, *VOCABULARIES))}; {ADVICE}"
        )


def _read_gguf(path: Path, ref: str) -> ModelTokenizer:
    """The vocabulary in the header of a GGUF file, whose limits were checked when it was opened."""
    if not path.is_file():
        raise UnsupportedModelError(
            "the vocabulary in a GGUF file can be read only from a local copy; set $download, or give the checkpoint "
            "that the file was made from",
            "download",
        )
    with closing(RegularFile(path)) as source:
        values = read_vocabulary(source)
    tokens = values.get(TOKENS)
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise UnsupportedModelError(f"it lacks {TOKENS}, a list of strings; {ADVICE}")
    if values.get(f"{VOCABULARY}.model") == "bert":
        return _build_word_piece(tokens, values)
    try:
        # AutoTokenizer would ask for an architecture that it knows.
        tokenizer = _load("PreTrainedTokenizerFast", path.parent, ref, gguf_file=path.name)
    except Exception as error:  # anything, such as a KeyError for a file without scores
        reason = f"it lacks {error}" if isinstance(error, KeyError) else first_line(error)
        raise UnsupportedModelError(
            f"transformers cannot convert the vocabulary in the file ({reason}); {ADVICE}"
        ) from None
    return replace(tokenizer, find_frame=partial(_read_frame, values))


def _read_frame(values: Mapping[str, Any]) -> Frame:
    """The special tokens around a text that a GGUF file states, which transformers leaves out.

    Without a statement, only SentencePiece's models put a token before a text, as in llama.cpp.
    """
    ids: list[tuple[int, ...]] = []
    for token, is_usual in (("bos", values.get(f"{VOCABULARY}.model") == "llama"), ("eos", False)):
        number = values.get(f"{VOCABULARY}.{token}_token_id")
        is_added = bool(values.get(f"{VOCABULARY}.add_{token}_token", is_usual))
        ids.append((number,) if is_added and isinstance(number, int) else ())
    return Frame(*ids)


def _build_word_piece(stored: list[str], values: Mapping[str, Any]) -> ModelTokenizer:
    """The WordPiece tokeniser of a GGUF file. Raises UnsupportedModelError if it has no unknown token.

    llama.cpp's converter puts ▁ before tokens that start a word, takes ## from the others, leaves special tokens as
    they are, and fills rows without a token; earlier versions took every token in brackets for special. Few files say
    whether letters become small and accents go. If not, they do so if that changes no token, or few of them.

    Source: `set_vocab` of BertModel, https://github.com/ggml-org/llama.cpp/blob/master/conversion/bert.py
    """
    special = set()
    types = values.get(TOKEN_TYPES)
    if isinstance(types, np.ndarray):
        special.update(np.flatnonzero(types == CONTROL).tolist())
    for field in SPECIAL:
        number = values.get(f"{VOCABULARY}.{field}_token_id")
        if isinstance(number, int):
            special.add(number)
    tokens = {}
    for number, text in enumerate(stored):
        token = text
        if number not in special and not (text.startswith("[") and text.endswith("]")):
            token = text[1:] if text.startswith("▁") else f"{INSIDE_MARK}{text}"
        if token != f"[PAD{number}]":  # a row without a token
            tokens[number] = token
    unknown = values.get(f"{VOCABULARY}.unknown_token_id")
    name = tokens.get(unknown) if isinstance(unknown, int) else "[UNK]"
    vocabulary = {token: number for number, token in tokens.items()}
    if name not in vocabulary:
        raise UnsupportedModelError(
            f"its unknown token is missing: none of {len(stored):,} tokens is {name or f'number {unknown}'}; {ADVICE}"
        )
    lowercase = values.get(f"{VOCABULARY}.normalizer.lowercase")
    strip_accents = values.get(f"{VOCABULARY}.normalizer.strip_accents")
    if not isinstance(lowercase, bool):
        lowercase = _changes_few(tokens.values(), lowercase=True, strip_accents=False)
    if not isinstance(strip_accents, bool):
        strip_accents = lowercase and _changes_few(tokens.values(), lowercase=False, strip_accents=True)
    library = Tokenizer(WordPiece(vocabulary, unk_token=name))
    library.normalizer = BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    library.pre_tokenizer = BertPreTokenizer()
    library.add_special_tokens([tokens[number] for number in sorted(special & tokens.keys())])
    return _wrap_fast(library)


def _changes_few(tokens: Collection[str], **rules: bool) -> bool:
    """Whether BERT's normaliser with these rules changes few tokens; those in brackets do not count."""
    normaliser = BertNormalizer(clean_text=False, handle_chinese_chars=False, **rules)
    words = [token for token in tokens if not token.startswith("[")]
    changed = sum(normaliser.normalize_str(word) != word for word in words)
    return changed <= LEAST_CASED_SHARE * len(words)


def _read_with_transformers(vocabularies: list[Path], store: TensorStore) -> ModelTokenizer:
    """The tokeniser in the folder of these files: the checkpoint's own, or the snapshot in the cache of the Hub."""
    for name in COMPANIONS:
        store.file(name)  # downloads it
    folder = vocabularies[0].parent
    try:
        for path in (folder / name for name in (*VOCABULARIES, *COMPANIONS)):
            if path.exists():
                require_regular_file(path, MOST_TOKENIZER_BYTES)
        config = folder / CONFIG
        is_code = config.exists() and b'"auto_map"' in read_small_bytes(config)
    except (OSError, ValueError) as error:
        raise CorruptCheckpointError(f"its tokeniser cannot be read ({error}); copy or download it again") from None
    if is_code:
        raise UnsupportedModelError(f"its tokeniser needs code from the checkpoint, which attngeo never runs; {ADVICE}")
    try:
        # Without the last argument, a tokeniser that needs code of its own asks on the terminal.
        return _load("AutoTokenizer", folder, store.ref, trust_remote_code=False)
    except Exception as error:  # the class that transformers chooses may raise anything
        names = ", ".join(path.name for path in vocabularies)
        raise UnsupportedModelError(
            f"transformers cannot read {names} as a tokeniser for {store.config.get('model_type')!r} "
            f"({_explain(error, vocabularies)}); {ADVICE}"
        ) from None


def _load(loader: str, folder: Path, ref: str, **more: Any) -> ModelTokenizer:
    """The tokeniser that a class of transformers loads from a folder, in silence. It may raise any Exception."""
    import transformers

    with silence_transformers(logging.CRITICAL), warnings.catch_warnings(), contain_panics():
        warnings.simplefilter("ignore")
        loaded = getattr(transformers, loader).from_pretrained(folder, local_files_only=True, **more)
        library = getattr(loaded, "backend_tokenizer", None)
        if library is None:  # it is written in Python
            return take_tokenizer(loaded)
        text = library.to_str()
    return _isolate(text, "its tokeniser", ref)


def _explain(error: Exception, vocabularies: list[Path]) -> str:
    """The reason for an error. transformers reports a protobuf that does not fit as a missing tiktoken."""
    if any(path.suffix == ".model" for path in vocabularies):
        try:
            import sentencepiece.sentencepiece_model_pb2  # noqa: F401
        except Exception as cause:  # protobuf has an error class of its own, and a missing protobuf another
            return f"protobuf is missing or is incompatible with sentencepiece: {first_line(cause)}"
    return first_line(error)


def _wrap_fast(tokenizer: Any) -> ModelTokenizer:
    """A tokeniser of `tokenizers` in this process, for one that the user or attngeo has made."""
    fast = FastTokens(tokenizer)
    return ModelTokenizer(fast.tokens, fast.special, fast.added, fast.encode, fast.find_frame)


def _isolate(text: str, file: str, ref: str) -> ModelTokenizer:
    """The tokeniser of a tokenizer.json that came with a checkpoint. text: the content of the file. file: its name."""
    isolated = IsolatedTokenizer(text, file, ref)
    return ModelTokenizer(isolated.tokens, isolated.special, isolated.added, isolated.encode, isolated.find_frame)


@contextmanager
def silence_transformers(level: int = logging.ERROR) -> Iterator[None]:
    """Inside the block, transformers logs only messages of this level and above, and shows no progress bars."""
    from transformers.utils import logging as transformers_logging

    verbosity = transformers_logging.get_verbosity()
    shows_bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(level)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if shows_bars:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
