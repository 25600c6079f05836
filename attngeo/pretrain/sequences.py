"""From documents to training sequences, in an order that depends on the seed alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, count
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import Dataset, IterableDataset
from transformers import PreTrainedTokenizerBase

from attngeo.errors import DataError, UsageError
from attngeo.pretrain.sources import TextSource

# A training sequence: `input_ids` [length], and its `index`, counted from the start of training.
Example = dict[str, Any]
# How a tokeniser is called. Not verbose: it would warn of documents that are longer than its own model takes.
BARE: dict[str, Any] = {"return_attention_mask": False, "return_token_type_ids": False, "verbose": False}
PACKED, CUT = BARE | {"add_special_tokens": False}, BARE | {"truncation": True}
# Streamed sequences that are shuffled with each other.
SHUFFLED = 10_000
# Purposes of random numbers: the generators of two purposes never give the same numbers.
ORDER, MASKS = 0, 1


class TokenisedDocuments(NamedTuple):
    """The tokens of some documents.

    ids: all documents end to end, int32 [tokens]. lengths: tokens of each document, int64 [documents].
    """

    ids: np.ndarray
    lengths: np.ndarray


EncodeDocuments = Callable[[list[str]], TokenisedDocuments]


class ShuffledSequences(Dataset[Example]):
    """`count` training sequences: all sequences of the text in a random order, then all in another order, and so on.

    The order depends on the seed, not on the number of processes, the batch size or the initialisation. Packed
    sequences are cut at other places in each epoch but the first; otherwise a model learns the same pieces of a small
    text by heart.

    tokens: all documents end to end, int32. bounds: where each sequence begins, and where the last one ends. length:
    tokens of a packed sequence, or 0 if the sequences are padded.
    """

    def __init__(self, tokens: np.ndarray, bounds: np.ndarray, count: int, seed: int, length: int = 0) -> None:
        self._tokens, self._bounds, self._count, self._seed, self._length = tokens, bounds, count, seed, length
        self.distinct = len(bounds) - 1
        self._orders: dict[int, tuple[np.ndarray, int]] = {}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < self._count:
            raise IndexError(index)
        epoch, place = divmod(index, self.distinct)
        order, shift = self._draw_order(epoch)
        start, end = self._bounds[order[place] : order[place] + 2]
        shift = min(shift, len(self._tokens) - end)  # the last sequence has few tokens or none behind it
        return {"input_ids": self._tokens[start + shift : end + shift], "index": index}

    @property
    def epochs(self) -> float:
        """How often each sequence is used."""
        return self._count / self.distinct

    @property
    def distinct_tokens(self) -> int:
        """Tokens of the text."""
        return int(self._bounds[-1])

    def tokens_until(self, count: int) -> int:
        """Tokens of the first `count` sequences, without padding."""
        lengths = np.diff(self._bounds)
        whole, rest = divmod(count, self.distinct)
        return int(whole * lengths.sum() + lengths[self._draw_order(whole)[0][:rest]].sum())

    def _draw_order(self, epoch: int) -> tuple[np.ndarray, int]:
        """The order of one epoch, and by how many tokens its sequences are shifted."""
        if epoch not in self._orders:
            # The previous epoch is kept, because a batch may begin in one epoch and end in the next.
            self._orders = {old: order for old, order in self._orders.items() if old == epoch - 1}
            random = np.random.default_rng((self._seed, ORDER, epoch))
            order = random.permutation(self.distinct)
            shifted = epoch > 0 and self._length > 0
            self._orders[epoch] = order, int(random.integers(self._length)) if shifted else 0
        return self._orders[epoch]


class StreamedSequences(IterableDataset[Example]):
    """Packed sequences of a text that is read while training runs. At the end of the text, it starts again.

    Each sequence is shuffled with the next 10,000 that are read. Raises DataError if the text does not fill one
    sequence.
    """

    def __init__(self, text: TextSource, encode: EncodeDocuments, length: int, seed: int) -> None:
        self._text, self._encode, self._length, self._seed = text, encode, length, seed

    def __iter__(self) -> Iterator[Example]:
        index, rest = 0, np.empty(0, dtype=np.int32)
        for epoch in count():
            first, random = index, np.random.default_rng((self._seed, ORDER, epoch))
            buffer: list[np.ndarray] = []
            for texts in self._text.read_batches():
                tokens = np.concatenate([rest, self._encode(texts).ids])
                end = len(tokens) // self._length * self._length
                rest = tokens[end:]
                for ids in tokens[:end].reshape(-1, self._length):
                    if len(buffer) < SHUFFLED:
                        buffer.append(ids.copy())  # a view would keep all of `tokens` in memory
                        continue
                    place = random.integers(SHUFFLED)
                    yield {"input_ids": buffer[place], "index": index}
                    buffer[place] = ids.copy()
                    index += 1
            for place in random.permutation(len(buffer)):
                yield {"input_ids": buffer[place], "index": index}
                index += 1
            if index == first:
                raise DataError(f"{self._text.name} has fewer than {self._length} tokens; lower $seq_len", "seq_len")


def build_sequences(
    text: TextSource, tokeniser: PreTrainedTokenizerBase, *, length: int, pack: bool, count: int, batch: int, seed: int
) -> ShuffledSequences | StreamedSequences:
    """Tokenise a text and cut it into training sequences.

    length: tokens of a sequence, for padded ones at most. pack: cut the text into full sequences; otherwise each
    document is one sequence. count: sequences to train on in all, drawn in an order that `seed` gives. batch: sequences
    of one batch. Raises DataError if the text has no tokens or fewer sequences than a batch, UsageError if a streamed
    text is not to be packed.
    """
    encode = make_encoder(tokeniser, length, pack=pack)
    if text.streaming:
        if not pack:
            raise UsageError(f"{text.name} is streamed, and streamed sequences must be packed; leave $pack on", "pack")
        return StreamedSequences(text, encode, length, seed)
    tokens, lengths = _encode_all(text, encode)
    if not len(tokens):
        raise DataError(f"{text.name} holds no text; give another with --data")
    bounds = np.arange(0, len(tokens) + 1, length) if pack else np.cumsum([0, *lengths[lengths > 0]])
    sequences = len(bounds) - 1
    if sequences < batch:
        raise DataError(
            f"{text.name} has {len(tokens):,} tokens, {sequences} sequences, expected at least one batch of {batch} × "
            f"{length}; give more text, or lower $batch_size or $seq_len",
            "batch_size",
            "seq_len",
        )
    return ShuffledSequences(tokens, bounds, count, seed, length if pack else 0)


def make_encoder(tokeniser: PreTrainedTokenizerBase, length: int, *, pack: bool) -> EncodeDocuments:
    """A function that tokenises documents: to be packed, each ends with the separator; else it is cut to `length`."""
    call: Any = tokeniser
    if not pack:
        return partial(_encode, partial(call, **CUT, max_length=length), [])
    separator = tokeniser.sep_token_id if tokeniser.sep_token_id is not None else tokeniser.eos_token_id
    return partial(_encode, partial(call, **PACKED), [] if separator is None else [separator])


def _encode(tokenise: Callable[..., Any], end: list[int], texts: list[str]) -> TokenisedDocuments:
    documents = tokenise(texts)["input_ids"]
    if end:
        documents = [[*ids, *end] for ids in documents]
    lengths = np.fromiter(map(len, documents), dtype=np.int64, count=len(documents))
    ids = np.fromiter(chain.from_iterable(documents), dtype=np.int32, count=int(lengths.sum()))
    return TokenisedDocuments(ids, lengths)


def _encode_all(text: TextSource, encode: EncodeDocuments) -> TokenisedDocuments:
    batches = [encode(texts) for texts in text.read_batches()]
    return TokenisedDocuments(
        np.concatenate([np.empty(0, dtype=np.int32), *(batch.ids for batch in batches)]),
        np.concatenate([np.empty(0, dtype=np.int64), *(batch.lengths for batch in batches)]),
    )
