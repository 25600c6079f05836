"""The tokeniser of a run: one that exists, or WordPieces trained on the run's own text."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from attngeo.choices import Objective
from attngeo.errors import DataError, DataUnavailableError, UsageError
from attngeo.pretrain.texts import NAMED, Text

SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
# A data set that is read as it comes has no end: its first documents must do.
MOST_DOCUMENTS = 200_000


def tokeniser_of(reference: str, text: Text, vocab_size: int, objective: Objective) -> PreTrainedTokenizerBase:
    """The tokeniser that `reference` names, or for "train" one of at most `vocab_size` pieces trained on `text`.

    "" is the one that a data set of `NAMED` was published with, and "train" for any other.

    Raises DataUnavailableError where it cannot be had, UsageError where it cannot mask, DataError for an empty text.
    """
    if not reference:
        reference = NAMED[text.name].tokenizer if text.name in NAMED else "train"
    if reference == "train":
        return train(text, vocab_size)
    try:
        tokeniser = AutoTokenizer.from_pretrained(reference)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise DataUnavailableError(
            f"tokenizer {reference} cannot be had ({reason}); give a folder or Hub id, or --tokenizer train"
        ) from error
    if objective == "mlm" and tokeniser.mask_token is None:
        raise UsageError(f"tokenizer {reference} has no mask token, which mlm needs; give another or --objective clm")
    if tokeniser.pad_token is None:
        tokeniser.pad_token = tokeniser.eos_token or tokeniser.unk_token
    return tokeniser


def train(text: Text, vocab_size: int) -> PreTrainedTokenizerFast:
    """Lower-case WordPieces in BERT's manner (Devlin et al. 2019), trained on the documents of `text`."""
    core = Tokenizer(models.WordPiece(unk_token=SPECIAL["unk_token"]))
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL.values()), show_progress=False
    )
    core.train_from_iterator(_first(text.batches()), trainer)
    if core.get_vocab_size() <= len(SPECIAL):
        raise DataError(f"{text.name} holds no text; give another with --data")
    core.post_processor = processors.BertProcessing(
        *((SPECIAL[kind], core.token_to_id(SPECIAL[kind])) for kind in ("sep_token", "cls_token"))
    )
    kinds: dict[str, Any] = SPECIAL
    return PreTrainedTokenizerFast(tokenizer_object=core, **kinds)


def _first(batches: Iterator[list[str]]) -> Iterator[list[str]]:
    return islice(batches, MOST_DOCUMENTS // 1000)
