"""The tokeniser of a run: an existing one, or WordPieces trained on the text of the run."""

from __future__ import annotations

import string
import sys
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from attngeo.checkpoints.patience import require_answers
from attngeo.choices import Objective
from attngeo.embeddings.isolated import IsolatedTokenizer
from attngeo.errors import DataError, DataUnavailableError, UsageError, contain_panics, first_line
from attngeo.pretrain.references import parse_tokenizer
from attngeo.pretrain.text_source import TextSource, silence_libraries

SPECIAL: dict[str, Any] = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
# A streamed text may be endless, so a tokeniser is trained on these batches at most: a hundred million characters.
MOST_BATCHES = 100
# Characters in the vocabulary at most, as in the trainer of BERT's vocabulary in `tokenizers`.
MOST_VOCABULARY_CHARACTERS = 1000

# Letters that a tokeniser cuts before it gets a text: rules that make millions of one would take all memory.
PROBE = f"{string.printable} é ß 日 क"


def prepare_tokenizer(
    reference: str, text: TextSource, vocab_size: int, objective: Objective
) -> PreTrainedTokenizerBase:
    """Load the tokeniser that `reference` names, or train one on `text`.

    reference: a folder or `org/name[@revision]`; "train" for at most `vocab_size` WordPieces; "" for the tokeniser
    published with the data set, or "train" if there is none.

    Raises DataUnavailableError if the tokeniser cannot be loaded, UsageError if the objective needs a mask token and it
    has none, DataError if the text is empty or the folder has no readable tokeniser.
    """
    reference = reference or text.tokenizer
    if reference == "train":
        return train_wordpieces(text, vocab_size)
    tokenizer = load_tokenizer(reference)
    require_mask(tokenizer, masked=objective == "mlm")
    return tokenizer


def require_mask(tokenizer: PreTrainedTokenizerBase, *, masked: bool) -> None:
    """Raise UsageError if `masked` is true and the tokeniser has no mask token."""
    if masked and tokenizer.mask_token is None:
        name = tokenizer.name_or_path
        raise UsageError(
            f"tokenizer {name} has no mask token, which mlm requires; give another one, or $objective clm", "objective"
        )


def load_tokenizer(reference: str) -> PreTrainedTokenizerBase:
    """The tokeniser in a folder or on the Hub. Raises DataUnavailableError, DataError or UsageError."""
    ref = parse_tokenizer(reference)
    try:
        with silence_libraries(), require_answers(reference), contain_panics():
            # Without the last argument, transformers asks on the terminal whether it may run a tokeniser's own code.
            tokenizer = AutoTokenizer.from_pretrained(
                ref.name, revision=ref.revision or "main", trust_remote_code=False
            )
        _try_out(tokenizer, reference)
        return tokenizer
    except Exception as error:
        reason = first_line(error)
        if ref.kind == "folder":
            raise DataError(f"{reference} has no readable tokeniser ({reason})") from error
        raise DataUnavailableError(
            f"tokenizer {reference} cannot be loaded ({reason}); give a folder, org/name on the Hub, or "
            "$tokenizer train",
            "tokenizer",
        ) from error


def _try_out(tokenizer: Any, reference: str) -> None:
    """Cut a few letters in a process with limits. Raises CorruptCheckpointError if that takes too much."""
    library = getattr(tokenizer, "backend_tokenizer", None)
    if library is not None:
        IsolatedTokenizer(library.to_str(), "its tokenizer", reference).encode(PROBE)


def train_wordpieces(text: TextSource, vocab_size: int) -> PreTrainedTokenizerFast:
    """Train lower-case WordPieces like BERT's (Devlin et al. 2019) on the documents of `text`.

    vocab_size: largest number of pieces, including the five special tokens. The same text gives the same pieces with
    the same numbers in each process. Raises UsageError if `vocab_size` is less than 9, DataError if the text is empty.
    """
    core = _make_tokenizer(models.WordPiece(unk_token=SPECIAL["unk_token"]))
    # A character takes at most two pieces, at the start of a word and inside: at least half of the pieces are longer.
    characters = min((vocab_size - len(SPECIAL)) // 4, MOST_VOCABULARY_CHARACTERS)
    if characters < 1:
        raise UsageError(
            f"$vocab_size is {vocab_size}, expected at least {len(SPECIAL) + 4} to train a tokeniser", "vocab_size"
        )
    alphabet = _choose_alphabet(core, text, characters)
    if not alphabet:
        raise DataError(f"{text.name} holds no text; give other data")
    # The trainer numbers the characters inside words in the order of a hash table, which differs between processes, and
    # breaks ties between merges by these numbers (github.com/huggingface/tokenizers/issues/1794). So it gets these
    # characters in a fixed order, as special tokens. The vocabulary then moves to a tokeniser without special tokens.
    inside = [f"##{character}" for character in alphabet if _continues_words(core, character)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL.values(), *inside],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    core.train_from_iterator(islice(text.read_batches(), MOST_BATCHES), trainer)
    vocabulary = core.get_vocab(with_added_tokens=False)
    core = _make_tokenizer(models.WordPiece(vocabulary, unk_token=SPECIAL["unk_token"]))
    core.decoder = decoders.WordPiece()
    core.post_processor = processors.BertProcessing(
        (SPECIAL["sep_token"], vocabulary[SPECIAL["sep_token"]]),
        (SPECIAL["cls_token"], vocabulary[SPECIAL["cls_token"]]),
    )
    return PreTrainedTokenizerFast(tokenizer_object=core, **SPECIAL)  # type: ignore[no-untyped-call]


def _make_tokenizer(model: models.Model) -> Tokenizer:
    core = Tokenizer(model)
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return core


def _choose_alphabet(core: Tokenizer, text: TextSource, most: int) -> list[str]:
    """The most frequent characters of the normalised text, without spaces, in the order of their Unicode numbers."""
    counts = np.zeros(sys.maxunicode + 1, dtype=np.int64)
    for texts in islice(text.read_batches(), MOST_BATCHES):
        points = np.frombuffer("".join(texts).encode("utf-32-le"), dtype=np.uint32)
        counts += np.bincount(points, minlength=len(counts))
    frequencies: Counter[str] = Counter()
    for point in np.flatnonzero(counts).tolist():
        for character in core.normalizer.normalize_str(chr(point)):
            if core.pre_tokenizer.pre_tokenize_str(character):
                frequencies[character] += int(counts[point])
    return sorted(sorted(frequencies, key=lambda character: (-frequencies[character], character))[:most])


def _continues_words(core: Tokenizer, character: str) -> bool:
    """Whether the character can be inside a word. Punctuation marks and Chinese characters are words of their own."""
    return len(core.pre_tokenizer.pre_tokenize_str(core.normalizer.normalize_str(f"a{character}a"))) == 1
