"""From documents to training sequences, in an order that depends on the seed alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from torch.utils.data import Dataset, IterableDataset
from transformers import PreTrainedTokenizerBase

from attngeo.errors import DataError, UsageError
from attngeo.pretrain.text.sources import TextSource

# input_ids, and `index`: which one it is, counted from the start of training.
Example = dict[str, Any]
# Tokens of some documents end to end, and how many each has.
Encoded = tuple[np.ndarray, np.ndarray]
# How a tokeniser is called. verbose: it would warn of documents that are longer than some model takes.
BARE: dict[str, Any] = {"return_attention_mask": False, "return_token_type_ids": False, "verbose": False}
PACKED, CUT = BARE | {"add_special_tokens": False}, BARE | {"truncation": True}
# Sequences that are shuffled with one another where a data set is read as it comes.
SHUFFLED = 10_000
# What random numbers are for: those of one purpose never repeat those of the other.
ORDER, MASKS = 0, 1


class ShuffledSequences(Dataset[Example]):
    """`count` training sequences: all of them in a new random order, then all again, and so on.

    The order is that of the seed, whatever the processes, batches and initialisation. tokens: all documents end to end.
    bounds: where a sequence begins, and where the last ends. length: of packed ones, else 0; these are cut at other
    places in every epoch but the first, or a small text would be learned by heart in the same pieces.
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
        order, shift = self._order(epoch)
        start, end = self._bounds[order[place] : order[place] + 2]
        shift = min(shift, len(self._tokens) - end)  # of the last one, which has nothing behind it
        return {"input_ids": self._tokens[start + shift : end + shift], "index": index}

    @property
    def epochs(self) -> float:
        """How often every sequence is seen."""
        return self._count / self.distinct

    @property
    def distinct_tokens(self) -> int:
        """Tokens of the text."""
        return int(self._bounds[-1])

    def tokens_until(self, count: int) -> int:
        """Tokens of the first `count` sequences, padding left out."""
        lengths = np.diff(self._bounds)
        whole, rest = divmod(count, self.distinct)
        return int(whole * lengths.sum() + lengths[self._order(whole)[0][:rest]].sum())

    def _order(self, epoch: int) -> tuple[np.ndarray, int]:
        """The order of one pass, and how many tokens later its sequences begin."""
        if epoch not in self._orders:
            # A batch may begin in one epoch and end in the next.
            self._orders = {old: order for old, order in self._orders.items() if old == epoch - 1}
            random = np.random.default_rng((self._seed, ORDER, epoch))
            order = random.permutation(self.distinct)
            self._orders[epoch] = order, int(random.integers(self._length)) if epoch and self._length else 0
        return self._orders[epoch]


class StreamedSequences(IterableDataset[Example]):
    """Sequences packed from documents as they come, shuffled among the next 10,000; from the start again at the end."""

    def __init__(self, text: TextSource, encode: Callable[[list[str]], Encoded], length: int, seed: int) -> None:
        self._text, self._encode, self._length, self._seed = text, encode, length, seed

    def __iter__(self) -> Iterator[Example]:
        index, epoch, left = 0, 0, np.empty(0, dtype=np.int32)
        while True:
            random, before = np.random.default_rng((self._seed, ORDER, epoch)), index
            held: list[np.ndarray] = []
            for texts in self._text.batches():
                left = np.concatenate([left, self._encode(texts)[0]])
                whole = len(left) // self._length * self._length
                for ids in left[:whole].reshape(-1, self._length):
                    if len(held) < SHUFFLED:
                        held.append(ids.copy())  # a view would keep all of `left` in memory
                        continue
                    place = random.integers(SHUFFLED)
                    yield {"input_ids": held[place], "index": index}
                    held[place] = ids.copy()
                    index += 1
                left = left[whole:]
            for place in random.permutation(len(held)):
                yield {"input_ids": held[place], "index": index}
                index += 1
            if index == before:
                raise DataError(f"{self._text.name} has fewer than {self._length} tokens; lower --seq-len")
            epoch += 1


def make_encoder(tokeniser: PreTrainedTokenizerBase, length: int, *, pack: bool) -> Callable[[list[str]], Encoded]:
    """Documents to tokens: packed ones end with the separator, padded ones are cut to `length`."""
    separator = tokeniser.sep_token_id if tokeniser.sep_token_id is not None else tokeniser.eos_token_id
    end = [separator] if pack and separator is not None else []
    call: Any = tokeniser
    return partial(_encode, partial(call, **PACKED if pack else CUT | {"max_length": length}), end)


def _encode(tokenise: Callable[..., Any], end: list[int], texts: list[str]) -> Encoded:
    documents = tokenise(texts)["input_ids"]
    if end:
        documents = [[*ids, *end] for ids in documents]
    lengths = np.fromiter(map(len, documents), dtype=np.int64, count=len(documents))
    return np.fromiter(chain.from_iterable(documents), dtype=np.int32, count=int(lengths.sum())), lengths


def build_sequences(
    text: TextSource, tokeniser: PreTrainedTokenizerBase, *, length: int, pack: bool, count: int, batch: int, seed: int
) -> ShuffledSequences | StreamedSequences:
    """The sequences that `count` are drawn from. Raises DataError where they do not fill one batch."""
    encode = make_encoder(tokeniser, length, pack=pack)
    if text.streaming:
        if not pack:
            raise UsageError(
                f"{text.name} is read as it comes, which only packed sequences can be; leave --no-pack out"
            )
        return StreamedSequences(text, encode, length, seed)
    encoded = list(map(encode, text.batches()))
    tokens = np.concatenate([np.empty(0, dtype=np.int32), *(ids for ids, _ in encoded)])
    lengths = np.concatenate([np.empty(0, dtype=np.int64), *(lengths for _, lengths in encoded)])
    if not len(tokens):
        raise DataError(f"{text.name} holds no text; give another with --data")
    bounds = np.arange(0, len(tokens) + 1, length) if pack else np.cumsum([0, *lengths[lengths > 0]])
    if len(bounds) - 1 < batch:
        raise DataError(
            f"{text.name} has {len(tokens):,} tokens, {len(bounds) - 1} sequences, expected at least one batch of "
            f"{batch} × {length}; give more text, or lower --batch-size or --seq-len"
        )
    return ShuffledSequences(tokens, bounds, count, seed, length if pack else 0)
