"""Training runs on text: sequences in an order that depends on the seed alone, masks, and losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name
from torch.utils.data import Dataset, IterableDataset
from transformers import PreTrainedTokenizerBase

from attngeo.errors import DataError, UsageError, first_line, is_panic
from attngeo.pretrain.constraints import SymmetryPenalty, TiedKeys
from attngeo.pretrain.initialisation import check_init, initialize
from attngeo.pretrain.models import build_model, check_length, configure_text, read_config
from attngeo.pretrain.options import TextPretrainOptions
from attngeo.pretrain.sources import open_text
from attngeo.pretrain.text_source import TextSource
from attngeo.pretrain.tokenizer import prepare_tokenizer
from attngeo.pretrain.trainer import LabelCount, RunTrainer, TrainingTask, draw_order

# A training sequence: `input_ids` [length], and its `index`, counted from the start of training.
Example = dict[str, Any]
# Arguments of a tokeniser. Not verbose: it would warn of documents that are longer than its own model takes.
IDS_ONLY: dict[str, Any] = {"return_attention_mask": False, "return_token_type_ids": False, "verbose": False}
# Those for documents that are packed, and for documents that are cut to a length.
PACKED = IDS_ONLY | {"add_special_tokens": False}
CUT = IDS_ONLY | {"truncation": True}
# Streamed sequences that are shuffled with each other.
SHUFFLED = 10_000
# Purposes of random numbers: the generators of two purposes never give the same numbers.
ORDER, MASKS = 0, 1
# Shares of the tokens to predict that become the mask token, and a random token (Devlin et al. 2019, section 3.1).
MASKED, RANDOM = 0.8, 0.1
# The label of a token that is not predicted.
NO_LABEL = -100


def prepare_text(options: TextPretrainOptions, processes: int, checkpoint: Path | None = None) -> TrainingTask:
    """Everything a run on text needs; a resumed run uses the tokeniser of its checkpoint.

    Raises UsageError, DataUnavailableError and DataError.
    """
    read_config(options.model, options.objective)  # a typo is reported before the data are read
    check_init(options.init)
    text = open_text(options.data, column=options.text_column, space_characters=options.space_characters)
    reference = options.tokenizer if checkpoint is None else str(checkpoint)
    tokenizer = prepare_tokenizer(reference, text, options.vocab_size, "mlm" if options.masks_inputs else "clm")
    config = configure_text(options, tokenizer)
    batch = options.batch_size * processes
    data = build_sequences(
        text,
        tokenizer,
        length=options.seq_len,
        count=options.steps * options.grad_accum * batch,
        least=batch,
        seed=options.seed,
        pack=options.pack,
    )
    transformers.set_seed(options.seed)  # the weights depend on the seed alone, not on earlier draws
    model = build_model(config, options.objective)
    check_length(model, options.seq_len)
    changed = initialize(model, options.init, seed=options.seed, init_std=options.init_std, init_bias=options.init_bias)
    about: dict[str, Any] = {"name": text.name, "vocabulary": len(tokenizer)}
    if isinstance(data, ShuffledSequences):
        about["tokens"] = data.distinct_tokens
        about["epochs"] = round(len(data) / data.distinct, 3)
    is_encoder = options.objective == "mlm"
    collator = SeededMaskingCollator(
        tokenizer,
        mlm=options.masks_inputs,
        mlm_probability=options.mlm_probability,
        mask_seed=options.seed,
        packed=options.pack,
        predicts_next=not is_encoder,
    )
    return TrainingTask(
        model=model,
        data=data,
        collator=collator,
        processor=tokenizer,
        make_trainer=partial(
            MaskedTrainer if is_encoder else CausalTrainer,
            tied=TiedKeys(model) if options.tie_query_key else None,
            penalty=SymmetryPenalty(model, options.symmetry_penalty) if options.symmetry_penalty else None,
        ),
        steps=options.steps,
        warmup=options.warmup,
        changed=changed,
        about=about,
        unit="tokens",
        count_units=data.tokens_until,
    )


# The tokens of each document, int32.
EncodeDocuments = Callable[[list[str]], list[np.ndarray]]


@dataclass(eq=False)
class ShuffledSequences(Dataset[Example]):
    """Training sequences: all sequences of the text in a random order, then all in another order, and so on.

    The order depends on the seed, not on the number of processes, the batch size or the initialisation. After the first
    epoch, packed sequences are cut at different places in each epoch; otherwise a model would memorise the pieces of a
    small text.

    Attributes:
        tokens: all documents end to end, int32.
        bounds: start of each sequence, and end of the last sequence.
        count: number of sequences, including repeats.
        seed: seed of the order.
        length: tokens of a packed sequence; 0 if the sequences are padded.
    """

    tokens: np.ndarray
    bounds: np.ndarray
    count: int
    seed: int
    length: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < self.count:
            raise IndexError(index)
        epoch, position = divmod(index, self.distinct)
        order, shift = self._draw_order(epoch)
        sequence = order[position]
        start, end = self.bounds[sequence : sequence + 2]
        shift = min(shift, len(self.tokens) - end)  # the last sequence has few tokens or none behind it
        return {"input_ids": self.tokens[start + shift : end + shift], "index": index}

    @property
    def distinct(self) -> int:
        """Number of different sequences of the text."""
        return len(self.bounds) - 1

    @property
    def distinct_tokens(self) -> int:
        """Number of tokens in these sequences."""
        return int(self.bounds[-1])

    def tokens_until(self, count: int) -> int:
        """Number of tokens in the first `count` sequences, without padding."""
        lengths = np.diff(self.bounds)
        full_epochs, remaining = divmod(count, self.distinct)
        order, _ = self._draw_order(full_epochs)
        return int(full_epochs * lengths.sum() + lengths[order[:remaining]].sum())

    def _draw_order(self, epoch: int) -> tuple[np.ndarray, int]:
        """The order of one epoch, and by how many tokens its sequences are shifted: in the first one by none."""
        return draw_order(self.distinct, self.length if epoch else 0, self.seed, ORDER, epoch)


@dataclass(eq=False)
class StreamedSequences(IterableDataset[Example]):
    """Packed sequences of a text, read during training. At its end, the text is read again.

    Each sequence is shuffled among the next 10,000.

    Attributes:
        text: documents of the text.
        encode: function that tokenises documents.
        length: tokens of a sequence.
        seed: seed of the order.

    Raises:
        DataError: the text does not fill one sequence.
    """

    text: TextSource
    encode: EncodeDocuments
    length: int
    seed: int

    def tokens_until(self, count: int) -> int:
        """Number of tokens in the first `count` sequences."""
        return count * self.length

    def __iter__(self) -> Iterator[Example]:
        index = 0
        remaining = np.empty(0, dtype=np.int32)  # tokens that fill no sequence yet
        for epoch in count():
            first = index
            random = np.random.default_rng((self.seed, ORDER, epoch))
            buffer: list[np.ndarray] = []
            for texts in self.text.read_batches():
                tokens = np.concatenate([remaining, *self.encode(texts)])
                end = len(tokens) // self.length * self.length
                remaining = tokens[end:]
                for ids in tokens[:end].reshape(-1, self.length):
                    if len(buffer) < SHUFFLED:
                        buffer.append(ids.copy())  # a view would keep all of `tokens` in memory
                        continue
                    position = random.integers(SHUFFLED)
                    yield {"input_ids": buffer[position], "index": index}
                    buffer[position] = ids.copy()
                    index += 1
            for position in random.permutation(len(buffer)):
                yield {"input_ids": buffer[position], "index": index}
                index += 1
            if index == first:
                raise DataError(f"{self.text.name} has fewer than {self.length} tokens; lower $seq_len", "seq_len")


def build_sequences(
    text: TextSource,
    tokenizer: PreTrainedTokenizerBase,
    *,
    length: int,
    count: int,
    least: int,
    seed: int,
    pack: bool = True,
    option: str = "batch_size",
) -> ShuffledSequences | StreamedSequences:
    """Tokenise a text and cut it into training sequences.

    Args:
        text: documents of the text.
        tokenizer: the tokenizer.
        length: tokens of a sequence; with padding, the largest number.
        count: number of sequences to train on, including repeats.
        least: smallest number of sequences that the text must have.
        seed: seed of the order.
        pack: whether to cut the text into full sequences; otherwise each document is one sequence.
        option: option that sets `least`, for messages.

    Raises:
        DataError: the text has fewer sequences than `least`.
        UsageError: the text is streamed, but `pack` is false.
    """
    encode = make_encoder(tokenizer, length, pack=pack)
    if text.streaming:
        if not pack:
            raise UsageError(f"{text.name} is streamed, and streamed text must be packed; leave $pack on", "pack")
        return StreamedSequences(text, encode, length, seed)
    batches = [np.empty(0, dtype=np.int32)]
    lengths = [0]
    for texts in text.read_batches():
        documents = encode(texts)
        batches.append(np.concatenate(documents))
        if not pack:
            lengths += [len(document) for document in documents if len(document)]
    tokens = np.concatenate(batches)
    bounds = np.arange(0, len(tokens) + 1, length) if pack else np.cumsum(lengths)
    sequences = ShuffledSequences(tokens, bounds, count, seed, length if pack else 0)
    if sequences.distinct < least:
        raise DataError(
            f"{text.name} has {len(tokens):,} tokens, which make {sequences.distinct} sequences, expected at least "
            f"{least} of {length} tokens; give more text, or lower ${option} or $seq_len",
            option,
            "seq_len",
        )
    return sequences


def make_encoder(tokenizer: PreTrainedTokenizerBase, length: int, *, pack: bool) -> EncodeDocuments:
    """A function that tokenises documents: with a separator after each if they are packed, else cut to `length`."""
    if not pack:
        return partial(_encode, tokenizer, CUT | {"max_length": length}, [])
    separator = tokenizer.sep_token_id
    if separator is None:
        separator = tokenizer.eos_token_id
    return partial(_encode, tokenizer, PACKED, [] if separator is None else [separator])


def _encode(tokenizer: Any, arguments: dict[str, Any], end: list[int], texts: list[str]) -> list[np.ndarray]:
    try:
        encoded = tokenizer(texts, **arguments)["input_ids"]
    except BaseException as error:
        if not is_panic(error):
            raise
        raise DataError(
            f"the tokenizer {tokenizer.name_or_path} fails on the text ({first_line(error)}); give another $tokenizer",
            "tokenizer",
        ) from None
    return [np.array([*ids, *end], dtype=np.int32) for ids in encoded]


@dataclass(frozen=True)
class SeededMaskingCollator:
    """Makes batches with masks that depend only on `mask_seed` and on the index of each sequence.

    So a resumed run has the same masks, with any number of processes, and the sequences of a batch are masked
    independently.

    Attributes:
        tokenizer: the tokenizer of the sequences.
        mlm: predict masked tokens; otherwise predict each token from the tokens before it.
        mlm_probability: share of predicted tokens, with `mlm`.
        mask_seed: seed of the masks.
        packed: all sequences are full, so no attention mask is needed.
        predicts_next: each label is predicted from the tokens before it, so the first token has no label.
    """

    tokenizer: PreTrainedTokenizerBase
    mlm: bool = True
    mlm_probability: float = 0.15
    mask_seed: int = 0
    packed: bool = True
    predicts_next: bool = False

    def __call__(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """A batch of `input_ids` and `labels` [batch, length], with an `attention_mask` if sequences are padded.

        A label is -100 if its token is not predicted.
        """
        lengths = torch.tensor([len(example["input_ids"]) for example in examples])
        is_token = torch.arange(int(lengths.max())) < lengths[:, None]
        ids = torch.full(is_token.shape, self.tokenizer.pad_token_id or 0)
        ids[is_token] = torch.from_numpy(np.concatenate([example["input_ids"] for example in examples])).long()
        if self.mlm:
            ids, labels = self._mask(ids.numpy(), examples)
        else:
            labels = torch.where(is_token, ids, NO_LABEL)
        if self.predicts_next or not self.mlm:
            labels[:, 0] = NO_LABEL  # nothing comes before the first token
        batch = {"input_ids": ids, "labels": labels}
        if not self.packed:
            batch["attention_mask"] = is_token.long()
        return batch

    def _mask(self, ids: np.ndarray, examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
        """Choose the tokens to predict, a share `mlm_probability` of those that are not special, and mask them."""
        # Uniform draws that choose tokens to predict, and what replaces these; 1 in the padding.
        choices, replacements = np.ones((2, *ids.shape))
        random_tokens = np.zeros_like(ids)
        for row, example in enumerate(examples):
            length = len(example["input_ids"])
            random = np.random.default_rng((self.mask_seed, MASKS, example["index"]))
            choices[row, :length], replacements[row, :length] = random.random((2, length))
            random_tokens[row, :length] = random.integers(len(self.tokenizer), size=length)
        is_chosen = (choices < self.mlm_probability) & ~np.isin(ids, self.tokenizer.all_special_ids)
        labels = np.where(is_chosen, ids, NO_LABEL)
        replaced = np.where(replacements < MASKED + RANDOM, random_tokens, ids)
        masked = np.where(replacements < MASKED, self.tokenizer.mask_token_id, replaced)
        return torch.from_numpy(np.where(is_chosen, masked, ids)), torch.from_numpy(labels)


class MaskedTrainer(RunTrainer):
    """Trains a masked language model, and computes its output layer only for the masked tokens.

    The loss is the same and costs less: with BERT's vocabulary, the output layer costs more than the rest of a small
    model. In every family, the hidden states of these tokens are selected between the model's body and its head.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, compute_loss_func=_mean_over_masked, **kwargs)
        self._masked: Tensor | None = None
        body: Any = getattr(self.model, "base_model", self.model)
        if body is not self.model:
            body.register_forward_hook(self._keep_masked)

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The Trainer's loss. The hook gets the tokens that have labels."""
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
    """Trains a model to predict the next token, and computes the loss itself, in the same way for all families.

    The models' own losses are means over different numbers of tokens: a BERT used as a decoder counts the first token
    of each sequence, and some families leave the loss to the Trainer.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, compute_loss_func=_mean_over_next, **kwargs)


def _mean_over_next(outputs: Any, labels: Tensor, num_items_in_batch: LabelCount = None) -> Tensor:
    """Cross-entropy of each label given the tokens before it; the first label of a sequence must be -100."""
    return _mean_loss(outputs["logits"][:, :-1], labels[:, 1:], num_items_in_batch)


def _mean_over_masked(outputs: Any, labels: Tensor, num_items_in_batch: LabelCount = None) -> Tensor:
    """Cross-entropy over the tokens that have a label; the logits are of these tokens, or of all."""
    logits = outputs["logits"]
    is_chosen = labels != NO_LABEL
    if logits.shape[:-1] == labels.shape:
        logits = logits[is_chosen]
    return _mean_loss(logits, labels[is_chosen], num_items_in_batch)


def _mean_loss(logits: Tensor, labels: Tensor, num_items_in_batch: LabelCount) -> Tensor:
    """Summed cross-entropy over the labels other than -100, divided by their number in all accumulated batches."""
    count = (labels != NO_LABEL).sum() if num_items_in_batch is None else torch.as_tensor(num_items_in_batch)
    total = F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten(), reduction="sum")
    return total / count.clamp(min=1).to(total.device)
