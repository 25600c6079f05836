"""Contextual vectors of words: the hidden states of a running model for each word alone, after some of its layers.

A word is run as its tokens with the special tokens that the model's own tokeniser puts around a text, and nothing else.
Its vector is the state at its token; a word of several tokens has the mean of the states at its tokens, as it has the
mean of their vectors in a table. The states at special tokens are not used. Layer 0 is the output of the first block;
the output of the last one is taken after the model's final normalisation, if it has one. These are the `hidden_states`
of transformers without the first one.

An encoder–decoder model runs its encoder if that takes tokens. Else, as in Whisper, its decoder runs without an
encoder's output: there is no sound beside a word, and transformers then leaves out cross-attention.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attngeo.analogies.lexicon import Lexicon
from attngeo.analogies.options import AnalogyOptions
from attngeo.checkpoints.opening import open_store
from attngeo.devices import explain_memory, pick_device
from attngeo.embeddings.embedding import Embedding
from attngeo.embeddings.isolated import Frame
from attngeo.errors import (
    AttnGeoError,
    CorruptCheckpointError,
    UnsupportedModelError,
    UsageError,
    about,
    first_line,
)
from attngeo.progress import Progress
from attngeo.session import Session
from attngeo.verification.loading import open_running, silence_libraries

log = logging.getLogger(__name__)

# Tokens of one run of the model, about; and bytes of a number.
TOKENS_AT_ONCE = 1024
FLOAT32 = 4
TOKENS_INPUT = "input_ids"
# Modules of this name compute a vector of the whole text from the last states, on which no state depends.
POOLER = "pooler"
LESS = "use a device with more memory"


class Stack(NamedTuple):
    """The part of a model that runs words.

    Attributes:
        module: a module of transformers, called with tokens.
        path: its path in the model; "" for the model itself.
        note: what is left out of it; "" if nothing is.
    """

    module: nn.Module
    path: str
    note: str


class WordBatch(NamedTuple):
    """Words with equally many tokens.

    Attributes:
        places: their rows in the lexicon, [B].
        ids: their tokens with the special tokens around them, [B, T].
    """

    places: Tensor
    ids: Tensor


def find_frame(embedding: Embedding, first_token: str | None) -> Frame:
    """The special tokens around a word. first_token: one that comes before them.

    Raises UsageError if the vocabulary lacks it.
    """
    assert embedding.find_frame is not None  # a checkpoint has a tokeniser
    before, after = embedding.find_frame()
    if first_token is None:
        return Frame(before, after)
    if first_token not in embedding.labels:
        raise UsageError(
            f"{embedding.ref} has no token {first_token!r:.60}, which $first_token names, in its vocabulary",
            "first_token",
        )
    return Frame((embedding.labels.index(first_token), *before), after)


def describe_frame(embedding: Embedding, frame: Frame) -> str:
    """How a word is run: with which special tokens."""
    before, after = ([embedding.labels[row] for row in rows] for rows in frame)
    if not before and not after:
        return "the tokeniser puts no special tokens around a text: hidden states are those of a word at position 0"
    return f"hidden states are those of words in {' '.join([*before, 'WORD', *after])}"


@contextmanager
def open_stack(model: Any, session: Session) -> Iterator[Stack]:
    """Inside, the part of a checkpoint's model that runs words, in float32 on the CPU.

    Raises what `open_running` raises; UnsupportedModelError for a model that takes no tokens, and
    CorruptCheckpointError if its file lacks weights.
    """
    with ExitStack() as opened:
        store = opened.enter_context(closing(open_store(model, session.hub)))
        opened.enter_context(silence_libraries())
        running, random = opened.enter_context(open_running(model, store, session.progress))
        opened.enter_context(about(store.ref))
        stack = find_stack(running)
        inside = f"{stack.path}." if stack.path else ""
        missing = sorted(name for name in random if name.startswith(inside) and POOLER not in name)
        if missing:
            raise CorruptCheckpointError(
                f"the file lacks {len(missing)} tensors of {type(stack.module).__name__}, for example {missing[0]}, so "
                "their values would be random; give the complete checkpoint"
            )
        yield stack


def find_stack(model: nn.Module) -> Stack:
    """The part of a model that takes tokens, without its head. Raises UnsupportedModelError if there is none."""
    module: Any = getattr(model, "base_model", model)
    note = ""
    if getattr(model.config, "is_encoder_decoder", False):
        encoder = module.get_encoder()
        if getattr(encoder, "main_input_name", "") == TOKENS_INPUT:
            module = encoder
        else:
            module = module.get_decoder()
            note = f"{type(module).__name__} runs without an encoder's output, so that cross-attention is left out"
    if TOKENS_INPUT not in signature(module.forward).parameters:
        raise UnsupportedModelError(
            f"{type(module).__name__} takes no tokens, expected a model of text; leave out $layers", "layers"
        )
    [path] = [path for path, submodule in model.named_modules() if submodule is module]
    return Stack(module, path, note)


def read_states(
    stack: Stack, lexicon: Lexicon, frame: Frame, options: AnalogyOptions, session: Session
) -> Iterator[tuple[int, Lexicon]]:
    """Each layer with the lexicon whose vectors are the hidden states after it, in ascending order.

    The candidates of the table and its composed words have states; other rows are 0. As many layers are kept of one run
    as fit into `options.memory`, at least one; for the others, the words run again.

    Args:
        stack: what runs.
        lexicon: words and candidates of the table.
        frame: the tokens around each word.
        options: the layers, counted from 0; memory and device.
        session: progress.

    Raises:
        UsageError: the model has no such layer.
        UnsupportedModelError: the model does not run on single words, or gives no states.
        CorruptCheckpointError: a state is not finite.
    """
    embedding = lexicon.embedding
    rows = len(embedding.labels)
    count = rows + len(lexicon.composed)
    device = pick_device(options.device)
    stack.module.to(device)
    batches = list(_make_batches(lexicon, frame))
    first = _run(stack, batches[0].ids[:1].to(device))
    wanted = _check_layers(options.layers or (), len(first), embedding.ref)
    at_once = max(1, options.memory // (count * FLOAT32 * max(states.shape[-1] for states in first)))
    words = len(lexicon.candidates)
    for start in range(0, len(wanted), at_once):
        group = wanted[start : start + at_once]
        tables = [torch.zeros(count, first[layer].shape[-1]) for layer in group]
        done = 0
        for places, ids in batches:
            session.progress(Progress("prepare", "hidden states", done, words, "steps"))
            states = _run(stack, ids.to(device))
            inside = slice(len(frame.before), ids.shape[1] - len(frame.after))
            for layer, table in zip(group, tables, strict=True):
                table[places] = states[layer][:, inside].mean(1).float().cpu()
            done += len(places)
        log.info("%s: hidden states of %d words after layers %s", embedding.ref, words, ", ".join(map(str, group)))
        for layer in group:
            table = tables.pop(0)
            if not table.isfinite().all():
                raise CorruptCheckpointError(
                    f"the state of a word after layer {layer} is not finite; copy or download the model again"
                )
            contextual = replace(embedding, matrix=table[:rows])
            yield layer, replace(lexicon, embedding=contextual, composed=table[rows:])


def _make_batches(lexicon: Lexicon, frame: Frame) -> Iterator[WordBatch]:
    """The candidates in groups of equally many tokens, so that no token is padded."""
    rows = len(lexicon.embedding.labels)
    by_length: dict[int, list[tuple[int, tuple[int, ...]]]] = defaultdict(list)
    for place in lexicon.candidates.tolist():
        tokens = (place,) if place < rows else lexicon.composed_tokens[place - rows]
        by_length[len(tokens)].append((place, (*frame.before, *tokens, *frame.after)))
    for words in by_length.values():
        size = max(1, TOKENS_AT_ONCE // len(words[0][1]))
        for start in range(0, len(words), size):
            places, ids = zip(*words[start : start + size], strict=True)
            yield WordBatch(torch.tensor(places), torch.tensor(ids))


def _run(stack: Stack, ids: Tensor) -> Sequence[Tensor]:
    """The states after each layer, [B, T, width] each. ids: [B, T]. Raises UnsupportedModelError."""
    name = type(stack.module).__name__
    try:
        with explain_memory(LESS):
            output = stack.module(input_ids=ids, output_hidden_states=True, return_dict=True)
    except AttnGeoError:
        raise
    except Exception as error:  # a class that needs more than tokens, or fewer of them, raises anything
        raise UnsupportedModelError(
            f"{name} cannot be run on {ids.shape[1]} tokens alone ({type(error).__name__}: {first_line(error)}); leave "
            "out $layers",
            "layers",
        ) from None
    states: Sequence[Tensor] = (getattr(output, "hidden_states", None) or ())[1:]
    if not states or any(state.shape[:2] != ids.shape for state in states):
        raise UnsupportedModelError(f"{name} gives no hidden state for each token; leave out $layers", "layers")
    return states


def _check_layers(layers: Iterable[int], count: int, ref: str) -> list[int]:
    """The layers in ascending order. Raises UsageError for one that the model lacks, and if none is given.

    count: number of layers of the model. ref: its name.
    """
    wanted = sorted(set(layers))
    if not wanted:
        raise UsageError("layers is empty, expected at least one layer", subject=ref)
    for layer in wanted:
        if not 0 <= layer < count:
            raise UsageError(f"{ref} has no layer {layer}, expected layers from 0 to {count - 1}")
    return wanted
