"""The tokeniser of a run: one that exists, or WordPieces trained on the run's own text."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from attngeo.checkpoints.reference import ModelRef
from attngeo.choices import Objective
from attngeo.errors import DataError, DataUnavailableError, ModelNotFoundError, UsageError, first_line
from attngeo.pretrain.hub_data import silence_libraries
from attngeo.pretrain.text.sources import TextSource

SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
# A data set that is read as it comes has no end: its first hundred million characters must do.
MOST_BATCHES = 100
# Characters in the vocabulary at most, as in the trainer of BERT's vocabulary in `tokenizers`.
MOST_CHARACTERS = 1000


def prepare_tokeniser(
    reference: str, text: TextSource, vocab_size: int, objective: Objective
) -> PreTrainedTokenizerBase:
    """The tokeniser that `reference` names, or for "train" one of at most `vocab_size` pieces trained on `text`.

    reference: a folder or `org/name[@revision]`; "" for the one that the data set was published with, if any.

    Raises DataUnavailableError where it cannot be had, UsageError where it cannot mask, DataError for an empty text or
    a folder without one.
    """
    reference = reference or text.tokenizer
    if reference == "train":
        return train_wordpieces(text, vocab_size)
    tokeniser = _load(reference)
    if objective == "mlm" and tokeniser.mask_token is None:
        raise UsageError(f"tokenizer {reference} has no mask token, which mlm needs; give another or --objective clm")
    return tokeniser


def _load(reference: str) -> PreTrainedTokenizerBase:
    try:
        ref = ModelRef.parse(reference)
    except ModelNotFoundError:
        raise DataUnavailableError(
            f"tokenizer {reference}: no such folder; give one, a Hub id, or --tokenizer train"
        ) from None
    if ref.kind not in ("folder", "hub"):
        raise UsageError(f"tokenizer {reference} is a {ref.kind}, expected a folder, a Hub id, or train")
    try:
        with silence_libraries():
            # Without the last argument, a tokeniser that brings code of its own asks on the terminal.
            return AutoTokenizer.from_pretrained(ref.name, revision=ref.revision or "main", trust_remote_code=False)
    except Exception as error:
        reason = first_line(error)
        if ref.kind == "folder":
            raise DataError(f"{reference} holds no tokeniser that can be read ({reason})") from error
        raise DataUnavailableError(
            f"tokenizer {reference} cannot be had ({reason}); give a folder or Hub id, or --tokenizer train"
        ) from error


def train_wordpieces(text: TextSource, vocab_size: int) -> PreTrainedTokenizerFast:
    """Lower-case WordPieces in BERT's manner (Devlin et al. 2019), trained on the documents of `text`.

    The same text gives the same pieces with the same numbers, in every process.
    """
    core = _untrained(models.WordPiece(unk_token=SPECIAL["unk_token"]))
    # A character takes two pieces at most, so that half of them, or more, are left for longer ones.
    characters = min((vocab_size - len(SPECIAL)) // 4, MOST_CHARACTERS)
    if characters < 1:
        raise UsageError(f"vocab_size is {vocab_size}, expected at least {len(SPECIAL) + 4} to train a tokeniser")
    alphabet = _alphabet(core, text, characters)
    if not alphabet:
        raise DataError(f"{text.name} holds no text; give another with --data")
    # The trainer numbers the characters inside words in the order of a hash table, which differs from process to
    # process, and settles ties between merges by those numbers (github.com/huggingface/tokenizers/issues/1794). So it
    # is given them in an order, as if they were special, and the vocabulary then moves to a tokeniser without them.
    inside = [f"##{character}" for character in alphabet if _joins(core, character)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=[*SPECIAL.values(), *inside], initial_alphabet=alphabet,
        limit_alphabet=len(alphabet), show_progress=False,
    )  # fmt: skip
    core.train_from_iterator(islice(text.batches(), MOST_BATCHES), trainer)
    vocabulary = core.get_vocab(with_added_tokens=False)
    core = _untrained(models.WordPiece(vocabulary, unk_token=SPECIAL["unk_token"]))
    core.decoder = decoders.WordPiece()
    core.post_processor = processors.BertProcessing(
        (SPECIAL["sep_token"], vocabulary[SPECIAL["sep_token"]]),
        (SPECIAL["cls_token"], vocabulary[SPECIAL["cls_token"]]),
    )
    kinds: dict[str, Any] = SPECIAL
    return PreTrainedTokenizerFast(tokenizer_object=core, **kinds)  # type: ignore[no-untyped-call]


def _untrained(model: models.Model) -> Tokenizer:
    core = Tokenizer(model)
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return core


def _alphabet(core: Tokenizer, text: TextSource, most: int) -> list[str]:
    """The most frequent characters of normalised text, spaces left out, in the order of their numbers in Unicode."""
    counts = np.zeros(sys.maxunicode + 1, dtype=np.int64)
    for texts in islice(text.batches(), MOST_BATCHES):
        points = np.frombuffer("".join(texts).encode("utf-32-le"), dtype=np.uint32)
        counts += np.bincount(points, minlength=len(counts))
    found: Counter[str] = Counter()
    for point in np.flatnonzero(counts).tolist():
        for character in core.normalizer.normalize_str(chr(point)):
            if core.pre_tokenizer.pre_tokenize_str(character):
                found[character] += int(counts[point])
    return sorted(sorted(found, key=lambda character: (-found[character], character))[:most])


def _joins(core: Tokenizer, character: str) -> bool:
    """Whether a word can go on with this character: punctuation and Chinese characters are words by themselves."""
    return len(core.pre_tokenizer.pre_tokenize_str(core.normalizer.normalize_str(f"a{character}a"))) == 1
