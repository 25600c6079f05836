"""Batches of token sequences: padding, masks and labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerBase

from attngeo.pretrain.text.sequences import MASKS, Example

# The label of a token that is not predicted.
NO_LABEL = -100


class SeededMaskingCollator(DataCollatorForLanguageModeling):
    """transformers' collator, but the masks depend only on `mask_seed` and on the index of each sequence.

    So a resumed run has the same masks, whatever the number of processes, and the sequences of a batch are masked
    independently of each other. packed: all sequences are full, so that no attention mask is needed. given: arguments
    of transformers' collator, such as `mlm` and `mlm_probability`.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, *, mask_seed: int = 0, packed: bool = True, **given: Any
    ) -> None:
        super().__init__(tokenizer, **given)
        self._mask_seed, self._packed = mask_seed, packed
        self._rows: list[tuple[int, int]] = []  # index and length of each sequence of the batch

    def torch_call(self, examples: Sequence[Example]) -> dict[str, Any]:  # type: ignore[override]
        """A batch of `input_ids` and `labels` [batch, length], with an `attention_mask` if sequences are padded.

        A label is -100 if its token is not predicted.
        """
        self._rows = [(example["index"], len(example["input_ids"])) for example in examples]
        lengths = torch.tensor([length for _, length in self._rows])
        longest = int(lengths.max())
        ids = torch.full((len(examples), longest), self.tokenizer.pad_token_id or 0)
        real = torch.arange(longest) < lengths[:, None]
        ids[real] = torch.from_numpy(np.concatenate([example["input_ids"] for example in examples])).long()
        batch: dict[str, Any] = super().torch_call(list(ids))
        if not self.mlm:
            # transformers' collator gives no label to padding tokens; some tokenisers end documents with that token.
            batch["labels"] = torch.where(real, ids, NO_LABEL)
            batch["labels"][:, 0] = NO_LABEL  # nothing comes before the first token
        if not self._packed:
            batch["attention_mask"] = real.long()
        return batch

    def torch_mask_tokens(
        self, inputs: Any, special_tokens_mask: Any | None = None, offset_mapping: Any | None = None
    ) -> tuple[Any, Any]:
        """Choose the tokens to predict, a share `mlm_probability` of those that are not special, and mask them.

        By default, 80% of the chosen tokens become the mask token, 10% a random token, and 10% stay.
        Source: Devlin et al. 2019, section 3.1.
        """
        del special_tokens_mask, offset_mapping
        ids = inputs.numpy()
        vocabulary, changed = len(self.tokenizer), self.mask_replace_prob + self.random_replace_prob
        draws, random_tokens = np.ones((2, *ids.shape)), np.zeros_like(ids)
        for row, (index, length) in enumerate(self._rows):
            random = np.random.default_rng((self._mask_seed, MASKS, index))
            draws[:, row, :length] = random.random((2, length))
            random_tokens[row, :length] = random.integers(vocabulary, size=length)
        chosen = (draws[0] < self.mlm_probability) & ~np.isin(ids, self.tokenizer.all_special_ids)
        labels = np.where(chosen, ids, NO_LABEL)
        replaced = np.where(draws[1] < changed, random_tokens, ids)
        masked = np.where(draws[1] < self.mask_replace_prob, self.tokenizer.mask_token_id, replaced)
        return torch.from_numpy(np.where(chosen, masked, ids)), torch.from_numpy(labels)
