"""Sound: waves, spectra and codes."""

from __future__ import annotations

from typing import Any

import torch

from attngeo.verification.inputs.source import TOKENS, Source, makes, width_taken


@makes("audio_mel_mask", "input_features_mask", "audio_mask")
def _make_features_mask(_: Source) -> list[Any]:
    return [torch.ones(1, 64, dtype=torch.bool), torch.zeros(1, 64, dtype=torch.bool)]


@makes("input_features", "audio_features", "spectrogram", "audio_mel")
def _make_features(source: Source) -> list[Any]:
    mel = source.integer(
        "num_mel_bins", "feature_size", "input_feat_per_channel", "feat_in", "input_dim", "input_size", "num_mels",
        default=80,
    )  # fmt: skip
    window = source.first("n_window", default=None)
    positions = source.integer("max_source_positions", default=32)
    lengths = [64, 2 * positions, 48]
    if isinstance(window, int):
        lengths.insert(0, 2 * window)
    options: list[Any] = []
    for length in lengths:
        options += [source.noise(1, length, mel), source.noise(1, mel, length), source.noise(mel, length)]
    options.insert(1, source.noise(1, 64, width_taken(source)))
    options.insert(1, source.noise(1, 64, source.integer("input_size", default=mel)))
    options.append(source.noise(1, 1, 64, mel))
    return options


@makes("input_values", "audio_values", "waveform", "padding_values", "audio")
def _make_waves(source: Source) -> list[Any]:
    mel = source.integer("num_mel_bins", default=80)
    length = source.integer("max_length", default=64)
    return [
        source.noise(1, 1600), source.noise(1, 1, 1600), source.noise(1, length, mel), source.noise(1, 64, mel),
        source.noise(1, 7680), source.noise(1, 1, 9600), source.noise(1, 16000), source.noise(1, 1, 32000),
    ]  # fmt: skip


@makes("audio_codes", "codes", "audio_input_ids")
def _make_codes(source: Source) -> list[Any]:
    books = source.integer("num_quantizers", "num_codebooks", "n_codebooks", default=4)
    return [
        source.whole(0, 16, 1, books, TOKENS),
        source.whole(0, 16, books, 1, TOKENS),
        source.whole(0, 16, 1, TOKENS),
        source.whole(0, 16, 1, TOKENS, books),
    ]
