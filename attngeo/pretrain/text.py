"""A training run on text: its model, its batches with their masks and labels, and its losses."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerBase

from attngeo.pretrain.initialisation import check_init, initialise
from attngeo.pretrain.models import build_model, check_length, configure_text, read_config
from attngeo.pretrain.options import TextPretrainOptions
from attngeo.pretrain.sequences import MASKS, Example, ShuffledSequences, StreamedSequences, build_sequences
from attngeo.pretrain.sources import open_text
from attngeo.pretrain.tokeniser import prepare_tokeniser
from attngeo.pretrain.trainer import RunTrainer, TrainingTask

# The label of a token that is not predicted.
NO_LABEL = -100
Sequences = ShuffledSequences | StreamedSequences


def prepare_text(options: TextPretrainOptions, processes: int, checkpoint: Path | None = None) -> TrainingTask:
    """Everything that a run on text needs; if it is resumed, with the tokeniser of its checkpoint.

    Raises UsageError, DataUnavailableError and DataError.
    """
    read_config(options.model, options.objective)  # a typo is reported before the data are read
    check_init(options.init)
    text = open_text(options.data, column=options.text_column, space_characters=options.space_characters)
    reference = options.tokenizer if checkpoint is None else str(checkpoint)
    tokeniser = prepare_tokeniser(reference, text, options.vocab_size, options.objective)
    config = configure_text(options, tokeniser)
    batch = options.batch_size * processes
    data = build_sequences(
        text, tokeniser, length=options.seq_len, pack=options.pack, batch=batch,
        count=options.steps * options.grad_accum * batch, seed=options.seed,
    )  # fmt: skip
    transformers.set_seed(options.seed)  # the weights depend on the seed alone, not on earlier draws
    model = build_model(config, options.objective)
    check_length(model, options.seq_len)
    changed = initialise(model, options.init, seed=options.seed)
    masked = options.objective == "mlm"
    collator = SeededMaskingCollator(
        tokeniser, mlm=masked, mlm_probability=options.mlm_probability, mask_seed=options.seed, packed=options.pack
    )
    return TrainingTask(
        model=model,
        data=data,
        collator=collator,
        processor=tokeniser,
        make_trainer=MaskedTrainer if masked else CausalTrainer,
        steps=options.steps,
        warmup=options.warmup,
        changed=changed,
        about=_describe_data(text.name, data, len(tokeniser)),
        count_rates=partial(_count_tokens, data, options.seq_len),
    )


def _describe_data(name: str, data: Sequences, vocabulary: int) -> dict[str, Any]:
    known: dict[str, Any] = {}
    if isinstance(data, ShuffledSequences):
        known = {"tokens": data.distinct_tokens, "epochs": round(data.epochs, 3)}
    return {"name": name, "vocabulary": vocabulary, **known}


def _count_tokens(data: Sequences, length: int, sequences: int, seconds: float) -> dict[str, float]:
    """Tokens without padding, in all and per second."""
    tokens = data.tokens_until(sequences) if isinstance(data, ShuffledSequences) else sequences * length
    return {"tokens": tokens, "tokens_per_second": round(tokens / max(seconds, 1e-9), 1)}


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


class MaskedTrainer(RunTrainer):
    """Trains a masked language model; computes its output layer for the masked tokens only.

    The loss is the same, but costs less: with BERT's vocabulary the output layer costs more than the rest of a small
    model. The hidden states are cut between the model's body and its head, in every family.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, compute_loss_func=_mean_over_masked, **kwargs)
        self._masked: Tensor | None = None
        body: Any = getattr(self.model, "base_model", self.model)
        if body is not self.model:
            body.register_forward_hook(self._keep_masked)

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The Trainer's loss; the hook learns which tokens have labels."""
        self._masked = inputs["labels"] != NO_LABEL
        try:
            return super().compute_loss(model, inputs, *args, **kwargs)
        finally:
            self._masked = None

    def _keep_masked(self, body: Any, inputs: Any, output: Any) -> Any:  # noqa: ARG002 - a hook's signature
        if self._masked is None:
            return output
        hidden = output[0][self._masked][None]
        if isinstance(output, MutableMapping):
            output[next(iter(output))] = hidden
            return output
        return (hidden, *output[1:])


class CausalTrainer(RunTrainer):
    """Trains a model to predict the next token; computes the loss itself, in the same way for all families.

    The models' own losses are means over a number of tokens that differs: for a BERT as decoder it counts the first
    token of each sequence, and some families leave the loss to the Trainer.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, compute_loss_func=_mean_over_next, **kwargs)


def _mean_over_next(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """Cross-entropy of each label given the tokens before it; the first label of a sequence must be -100."""
    logits, following = outputs["logits"][:, :-1], labels[:, 1:]
    return _mean_loss(logits, following, num_items_in_batch)


def _mean_over_masked(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """Cross-entropy over the tokens that have a label; the logits are of these tokens, or of all."""
    logits, chosen = outputs["logits"], labels != NO_LABEL
    if logits.shape[:-1] == labels.shape:
        logits = logits[chosen]
    return _mean_loss(logits, labels[chosen], num_items_in_batch)


def _mean_loss(logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor:
    """Summed cross-entropy over the labels other than -100, divided by their number in all accumulated batches."""
    count = (labels != NO_LABEL).sum() if num_items_in_batch is None else torch.as_tensor(num_items_in_batch)
    total = F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten(), reduction="sum")
    return total / count.clamp(min=1).to(total.device)
