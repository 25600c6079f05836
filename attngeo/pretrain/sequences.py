"""From documents to training sequences, in an order that depends on the seed alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerBase

from attngeo.errors import DataError
from attngeo.pretrain.texts import Text

Example = dict[str, Any]
# Documents that are shuffled with one another where a data set is read as it comes.
SHUFFLED = 10_000


class Sequences(Dataset[Example]):
    """`count` training sequences: all of them in a new random order, then all again, and so on.

    The order is that of the seed, whatever the processes, batches and initialisation, and each sequence carries its
    number `index` in it. tokens: all documents end to end. bounds: where a sequence begins, and where the last ends.
    """

    def __init__(
        self, tokens: np.ndarray, bounds: np.ndarray, special: np.ndarray, count: int, seed: int
    ) -> None:  # fmt: skip
        self._tokens, self._bounds, self._special, self._count = tokens, bounds, special, count
        self.distinct = len(bounds) - 1
        self._order = lru_cache(maxsize=2)(lambda epoch: np.random.default_rng((seed, epoch)).permutation(self.distinct))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Example:
        epoch, place = divmod(index, self.distinct)
        chosen = self._order(epoch)[place]
        ids = self._tokens[self._bounds[chosen] : self._bounds[chosen + 1]].astype(np.int64)
        return {"input_ids": ids, "special_tokens_mask": self._special[ids], "index": index}

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


class Stream(IterableDataset[Example]):
    """Sequences packed from documents as they come, shuffled among the next 10,000; from the start again at the end."""

    def __init__(self, text: Text, encode: Callable[[list[str]], list[list[int]]], special: np.ndarray, length: int,
                 seed: int) -> None:  # fmt: skip
        self._text, self._encode, self._special, self._length, self._seed = text, encode, special, length, seed

    def __iter__(self) -> Iterator[Example]:
        index, epoch, left = 0, 0, np.empty(0, dtype=np.int64)
        while True:
            documents = self._text.documents.shuffle(seed=self._seed + epoch, buffer_size=SHUFFLED)
            text = Text(self._text.name, documents, self._text.column, True, self._text.joined_characters)
            before = index
            for texts in text.batches():
                left = np.concatenate([left, *map(np.asarray, self._encode(texts))]).astype(np.int64)
                while len(left) >= self._length:
                    ids, left = left[: self._length], left[self._length :]
                    yield {"input_ids": ids, "special_tokens_mask": self._special[ids], "index": index}
                    index += 1
            if index == before:
                raise DataError(f"{self._text.name} has fewer than {self._length} tokens; lower --seq-len")
            epoch += 1


class Masking(DataCollatorForLanguageModeling):  # type: ignore[misc]
    """transformers' collator, with masks that depend on the seed and a sequence's number alone.

    So the masks are the same after a run is resumed, and on any number of processes.
    """

    keyed_by: int = 0
    packed: bool = True

    def torch_call(self, examples: list[Example]) -> dict[str, Any]:
        """A batch: input_ids [batch, length], labels with -100 where nothing is predicted."""
        self._indices = [int(example["index"]) for example in examples]
        batch: dict[str, Any] = super().torch_call(
            [{name: value for name, value in example.items() if name != "index"} for example in examples]
        )
        if self.packed:
            batch.pop("attention_mask", None)  # nothing is padded
            if not self.mlm:
                batch["labels"] = batch["input_ids"].clone()  # also where the padding token ends documents
        return batch

    def torch_mask_tokens(
        self, inputs: Any, special_tokens_mask: Any | None = None, offset_mapping: Any | None = None
    ) -> tuple[Any, Any]:
        """Mask each sequence with random numbers of its own."""
        rows = []
        for row, index in enumerate(self._indices):
            self.generator = torch.Generator().manual_seed(hash((self.keyed_by, index)) % 2**32)
            mask = None if special_tokens_mask is None else special_tokens_mask[row : row + 1]
            rows.append(super().torch_mask_tokens(inputs[row : row + 1], mask, offset_mapping))
        masked, labels = zip(*rows, strict=True)
        return torch.cat(masked), torch.cat(labels)


def encoder_of(tokeniser: PreTrainedTokenizerBase, length: int, *, pack: bool) -> Callable[[list[str]], list[list[int]]]:
    """Documents to token ids: packed ones end with the separator, padded ones are cut to `length`."""
    separator = tokeniser.sep_token_id if tokeniser.sep_token_id is not None else tokeniser.eos_token_id
    end = [] if separator is None else [separator]

    def packed(texts: list[str]) -> list[list[int]]:
        ids = tokeniser(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
        return [[*each, *end] for each in ids]

    def padded(texts: list[str]) -> list[list[int]]:
        encoded = tokeniser(texts, truncation=True, max_length=length, return_attention_mask=False, verbose=False)
        return [each for each in encoded["input_ids"] if each]

    return packed if pack else padded


def sequences_of(
    text: Text, tokeniser: PreTrainedTokenizerBase, *, length: int, pack: bool, count: int, batch: int, seed: int
) -> Sequences | Stream:
    """The sequences that `count` are drawn from. Raises DataError where they do not fill one batch."""
    special = np.zeros(len(tokeniser), dtype=np.int64)
    special[[each for each in tokeniser.all_special_ids if each < len(special)]] = 1
    encode = encoder_of(tokeniser, length, pack=pack)
    if text.streaming:
        if not pack:
            raise DataError(f"{text.name} is read as it comes, which only packed sequences can be; leave --no-pack out")
        return Stream(text, encode, special, length, seed)
    flat: list[np.ndarray] = []
    lengths: list[int] = []
    for texts in filter(None, text.batches()):
        for ids in encode(texts):
            flat.append(np.asarray(ids, dtype=np.int32))
            lengths.append(len(ids))
    tokens = np.concatenate(flat) if flat else np.empty(0, dtype=np.int32)
    if not len(tokens):
        raise DataError(f"{text.name} holds no text; give another with --data")
    bounds = np.arange(0, len(tokens) + 1, length) if pack else np.cumsum([0, *lengths])
    if len(bounds) - 1 < batch:
        raise DataError(
            f"{text.name} has {len(tokens):,} tokens, {len(bounds) - 1} sequences, expected at least one batch of {batch} × "
            f"{length}; give more text, or lower --batch-size or --seq-len"
        )
    return Sequences(tokens, bounds, special, count, seed)
