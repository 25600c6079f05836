"""Token ids, and what comes with them: masks, positions, types and boxes."""

from __future__ import annotations

from typing import Any

import torch

from attngeo.verification.inputs.source import TOKENS, TOKENS_FROM, TOKENS_TO, Source, makes


def _read_vocabulary(source: Source) -> int:
    return source.integer("vocab_size", "text_vocab_size", default=TOKENS_TO)


@makes("input_ids")
def _make_ids(source: Source) -> list[Any]:
    high = min(TOKENS_TO, _read_vocabulary(source))
    low = min(TOKENS_FROM, high // 2)
    ids = source.whole(low, high, 1, TOKENS)
    options = [ids]
    if (books := source.first("num_codebooks", "num_code_groups", "n_codes_total")) is not None:
        shapes = [(1, TOKENS, books), (1, books, TOKENS), (books, TOKENS)]
        shapes += [(1, books + 1, TOKENS), (1, TOKENS, books + 1)]
        options += [source.whole(2, min(high, 16), *shape) for shape in shapes]
    channels = source.first("num_channels", default=3)
    if isinstance(channels, int) and channels > 3:
        options.append(source.whole(low, high, 1, TOKENS, channels))
    options.append(source.whole(low, high, 1, 32))
    return options


@makes("decoder_input_ids")
def _make_decoder_ids(source: Source) -> list[Any]:
    high = min(TOKENS_TO, source.integer("decoder_vocab_size", "vocab_size", default=20))
    ids = source.whole(min(4, high // 2), high, 1, 5)
    options = [ids]
    if (books := source.first("num_codebooks", "num_channels", "n_codes_total")) is not None and books > 3:
        options += [source.whole(2, 16, books, 5), source.whole(2, 16, 1, 5, books)]
    return options


@makes("attention_mask")
def _make_mask(_: Source) -> list[Any]:
    return [None, torch.ones(1, TOKENS, dtype=torch.long)]


@makes("mask", "key_padding_mask")
def _make_bool_mask(_: Source) -> list[Any]:
    return [torch.ones(1, TOKENS, dtype=torch.bool), torch.ones(1, 5, dtype=torch.bool), torch.ones(1, 12), None]


@makes("merge_sizes")
def _make_merge_sizes(_: Source) -> list[Any]:
    return [torch.tensor([1]), torch.tensor([2])]


@makes("image_attention_mask")
def _make_image_mask(_: Source) -> list[Any]:
    return [torch.ones(1, TOKENS, 1, dtype=torch.long)]


@makes("position_ids")
def _make_positions(_: Source) -> list[Any]:
    places = torch.arange(TOKENS)[None]
    return [places, places.expand(3, 1, TOKENS), None]


@makes("token_type_ids", "mm_token_type_ids")
def _make_types(_: Source) -> list[Any]:
    return [torch.zeros(1, TOKENS, dtype=torch.long)]


@makes("task_inputs")
def _make_task(source: Source) -> list[Any]:
    return [source.whole(TOKENS_FROM, TOKENS_TO, 1, source.integer("task_seq_len", default=TOKENS))]


@makes("bbox")
def _make_boxes(source: Source) -> list[Any]:
    return [source.whole(0, 50, 1, TOKENS, 4).sort(-1).values, source.noise(1, TOKENS, 4).sigmoid().sort(-1).values]
