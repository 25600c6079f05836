"""From documents to training sequences, in an order that depends on the seed alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset
from transformers import PreTrainedTokenizerBase

from attngeo.errors import DataError, UsageError
from attngeo.pretrain.texts import Text

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


class Sequences(Dataset[Example]):
    """`count` training sequences: all of them in a new random order, then all again, and so on.

    The order is that of the seed, whatever the processes, batches and initialisation. tokens: all documents end to end.
    bounds: where a sequence begins, and where the last ends.
    """

    def __init__(self, tokens: np.ndarray, bounds: np.ndarray, count: int, seed: int) -> None:
        self._tokens, self._bounds, self._count, self._seed = tokens, bounds, count, seed
        self.distinct = len(bounds) - 1
        self._orders: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < self._count:
            raise IndexError(index)
        epoch, place = divmod(index, self.distinct)
        chosen = self._order(epoch)[place]
        return {"input_ids": self._tokens[self._bounds[chosen] : self._bounds[chosen + 1]], "index": index}

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
        return int(whole * lengths.sum() + lengths[self._order(whole)[:rest]].sum())

    def _order(self, epoch: int) -> np.ndarray:
        if epoch not in self._orders:
            # A batch may begin in one epoch and end in the next.
            self._orders = {old: order for old, order in self._orders.items() if old == epoch - 1}
            self._orders[epoch] = np.random.default_rng((self._seed, ORDER, epoch)).permutation(self.distinct)
        return self._orders[epoch]


class Stream(IterableDataset[Example]):
    """Sequences packed from documents as they come, shuffled among the next 10,000; from the start again at the end."""

    def __init__(self, text: Text, encode: Callable[[list[str]], Encoded], length: int, seed: int) -> None:
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


@dataclass
class Masking:
    """Makes batches, with masks that depend on the seed `keyed_by` and on a sequence's number alone.

    So the masks are the same after a run is resumed, and on any number of processes. mlm: of the tokens that are not
    special a share of `mlm_probability` is predicted, of these 80% are masked, 10% replaced by a random token and 10%
    left as they are (Devlin et al. 2019, 3.1); else every token is predicted. packed: nothing is padded.
    """

    tokeniser: PreTrainedTokenizerBase
    mlm: bool = True
    mlm_probability: float = 0.15
    keyed_by: int = 0
    packed: bool = True

    def __call__(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """A batch: input_ids [batch, length]; labels, -100 where nothing is predicted; attention_mask if padded."""
        lengths = [len(example["input_ids"]) for example in examples]
        ids = np.full((len(examples), max(lengths)), self.tokeniser.pad_token_id or 0, dtype=np.int64)
        real = np.arange(max(lengths)) < np.array(lengths)[:, None]
        ids[real] = np.concatenate([example["input_ids"] for example in examples])
        labels = np.where(real, ids, -100)
        if self.mlm:
            ids, labels = self._masked(ids, real, lengths, [example["index"] for example in examples])
        batch = {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}
        if not self.packed:
            batch["attention_mask"] = torch.from_numpy(real.astype(np.int64))
        return batch

    def _masked(
        self, ids: np.ndarray, real: np.ndarray, lengths: list[int], indices: list[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        vocabulary = len(self.tokeniser)
        draws, words = np.ones((2, *ids.shape)), np.zeros_like(ids)
        for row, (length, index) in enumerate(zip(lengths, indices, strict=True)):
            random = np.random.default_rng((self.keyed_by, MASKS, index))
            draws[:, row, :length] = random.random((2, length))
            words[row, :length] = random.integers(vocabulary, size=length)
        chosen = (draws[0] < self.mlm_probability) & real & ~np.isin(ids, self.tokeniser.all_special_ids)
        labels = np.where(chosen, ids, -100)
        masked = np.where(draws[1] < 0.8, self.tokeniser.mask_token_id, np.where(draws[1] < 0.9, words, ids))
        return np.where(chosen, masked, ids), labels


def encoder_of(tokeniser: PreTrainedTokenizerBase, length: int, *, pack: bool) -> Callable[[list[str]], Encoded]:
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


def sequences_of(
    text: Text, tokeniser: PreTrainedTokenizerBase, *, length: int, pack: bool, count: int, batch: int, seed: int
) -> Sequences | Stream:
    """The sequences that `count` are drawn from. Raises DataError where they do not fill one batch."""
    encode = encoder_of(tokeniser, length, pack=pack)
    if text.streaming:
        if not pack:
            raise UsageError(
                f"{text.name} is read as it comes, which only packed sequences can be; leave --no-pack out"
            )
        return Stream(text, encode, length, seed)
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
    return Sequences(tokens, bounds, count, seed)
