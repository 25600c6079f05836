"""Time series, with what is known about their times."""

from __future__ import annotations

from typing import Any

import torch

from attngeo.verification.inputs.source import Source, makes


@makes("past_values")
def _make_past(source: Source) -> list[Any]:
    context = source.integer("context_length", default=16)
    lags = source.first("lags_sequence", default=None)
    length = context + (max(lags) if isinstance(lags, list) else 0)
    channels = source.integer("num_input_channels", "input_size", default=1)
    return [source.noise(1, length, channels), source.noise(1, length), source.noise(1, length, 1)]


@makes("past_time_features")
def _make_past_times(source: Source) -> list[Any]:
    context = source.integer("context_length", default=16)
    lags = source.first("lags_sequence", default=[0])
    return [source.noise(1, context + max(lags), source.integer("num_time_features", default=1))]


@makes("past_observed_mask")
def _make_past_mask(source: Source) -> list[Any]:
    return [torch.ones_like(_make_past(source)[0])]
