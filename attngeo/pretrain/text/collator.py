"""Batches of token sequences: their padding, their masks, their labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerBase

from attngeo.pretrain.text.sequences import MASKS, Example


class SeededMaskingCollator(DataCollatorForLanguageModeling):
    """transformers' collator, with masks that depend on the seed `keyed_by` and on a sequence's number alone.

    So the masks are the same after a run is resumed, and on any number of processes, and sequences of one batch do not
    share a stream of random numbers. packed: nothing is padded.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, *, keyed_by: int = 0, packed: bool = True, **given: Any
    ) -> None:
        super().__init__(tokenizer, **given)
        self._key, self._packed = keyed_by, packed
        self._rows: list[tuple[int, int]] = []

    def torch_call(self, examples: Sequence[Example]) -> dict[str, Any]:  # type: ignore[override]
        """A batch: input_ids [batch, length]; labels, -100 where nothing is predicted; attention_mask if padded."""
        self._rows = [(example["index"], len(example["input_ids"])) for example in examples]
        length = max(length for _, length in self._rows)
        ids = torch.full((len(examples), length), self.tokenizer.pad_token_id or 0)
        real = torch.arange(length) < torch.tensor([length for _, length in self._rows])[:, None]
        ids[real] = torch.from_numpy(np.concatenate([example["input_ids"] for example in examples])).long()
        batch: dict[str, Any] = super().torch_call(list(ids))
        if not self.mlm:
            batch["labels"] = torch.where(real, ids, -100)  # also where the padding token ends documents
            batch["labels"][:, 0] = -100  # nothing comes before it
        if not self._packed:
            batch["attention_mask"] = real.long()
        return batch

    def torch_mask_tokens(
        self, inputs: Any, special_tokens_mask: Any | None = None, offset_mapping: Any | None = None
    ) -> tuple[Any, Any]:
        """Of the tokens that are not special, `mlm_probability` are predicted: 80% masked, 10% random, 10% as they are.

        Source: Devlin et al. 2019, section 3.1.
        """
        del special_tokens_mask, offset_mapping
        ids = inputs.numpy()
        vocabulary, kept = len(self.tokenizer), self.mask_replace_prob + self.random_replace_prob
        draws, words = np.ones((2, *ids.shape)), np.zeros_like(ids)
        for row, (index, length) in enumerate(self._rows):
            random = np.random.default_rng((self._key, MASKS, index))
            draws[:, row, :length] = random.random((2, length))
            words[row, :length] = random.integers(vocabulary, size=length)
        chosen = (draws[0] < self.mlm_probability) & ~np.isin(ids, self.tokenizer.all_special_ids)
        labels = np.where(chosen, ids, -100)
        replaced = np.where(draws[1] < kept, words, ids)
        masked = np.where(draws[1] < self.mask_replace_prob, self.tokenizer.mask_token_id, replaced)
        return torch.from_numpy(np.where(chosen, masked, ids)), torch.from_numpy(labels)
