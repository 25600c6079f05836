"""Random inputs for any module of transformers, from what its forward takes and from its configuration.

`MAKERS` lists, for each name of a parameter, what makes the values to try for it. `combine_inputs` puts them together.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

TOKENS = 7
# Token ids of inputs, [from, to): special tokens have others.
TOKENS_FROM = 10
TOKENS_TO = 100
# Frames, rows and columns of an image that is given as patches.
GRID = (1, 4, 4)
PATCHES = 16
# Inputs that are given although their parameter has a default, if the module has the parameter.
WELCOME = {
    "input_ids", "decoder_input_ids", "pixel_values", "input_features", "input_values", "hidden_states", "bbox",
    "inputs_embeds", "flattened_patches", "audio_codes", "encoder_hidden_states", "past_values",
    "image_attention_mask", "last_hidden_state", "grid_thw",
    "position_embeddings", "task_inputs", "cross_attention_states", "patch_embeds",
}  # fmt: skip
# What stands for other inputs, and is never added to them.
INSTEAD = {"inputs_embeds", "hidden_states"}
# Combinations to try of one set of names.
MOST_INPUTS_OF_A_SET = 20


@dataclass
class Source:
    """A module to run, and the configurations around it, the nearest first."""

    module: nn.Module
    configs: list[Any]

    def __post_init__(self) -> None:
        self.takes = list(inspect.signature(self.module.forward).parameters)
        self.generator = torch.Generator().manual_seed(0)

    def first(self, *names: str, default: Any = None) -> Any:
        """The first of these fields that a configuration has."""
        for config in self.configs:
            for name in names:
                value = _read_field(config, name)
                if value is not None and value != []:
                    return value
        return default

    def integer(self, *names: str, default: int = 3) -> int:
        """The first of these fields as one number."""
        value = self.first(*names, default=default)
        if isinstance(value, list | tuple):
            value = value[0]
        if isinstance(value, dict):
            value = value.get("height", default)
        return int(value) if isinstance(value, int | float) else default

    def noise(self, *shape: int) -> Tensor:
        """A tensor of normally distributed numbers."""
        return torch.randn(*shape, generator=self.generator)

    def whole(self, low: int, high: int, *shape: int) -> Tensor:
        """A tensor of random whole numbers from `low`, all below `high`."""
        return torch.randint(low, max(high, low + 1), shape, generator=self.generator)

    @property
    def width(self) -> int:
        """The input width of the module: from its first norm or Linear, else from its configuration."""
        for child in self.module.modules():
            if isinstance(child, nn.Linear):
                return child.in_features
            weight = child._parameters.get("weight")
            if weight is not None and weight.ndim == 1 and "Norm" in type(child).__name__:
                return weight.shape[0]
        return self.integer("hidden_size", "d_model", "n_embd", "embed_dim", default=48)


def _read_field(config: Any, name: str) -> Any:
    try:
        return getattr(config, name, None)
    except Exception:  # a property that its configuration cannot compute
        return None


# Token ids


def _make_ids(source: Source) -> list[Any]:
    high = min(TOKENS_TO, source.integer("vocab_size", "text_vocab_size", default=TOKENS_TO))
    low = min(TOKENS_FROM, high // 2)
    options = [source.whole(low, high, 1, TOKENS)]
    books = source.first("num_codebooks", "num_code_groups", "n_codes_total")
    if books is not None:
        shapes = [(1, TOKENS, books), (1, books, TOKENS), (books, TOKENS)]
        shapes += [(1, books + 1, TOKENS), (1, TOKENS, books + 1)]
        options += [source.whole(2, min(high, 16), *shape) for shape in shapes]
    channels = source.first("num_channels", default=3)
    if isinstance(channels, int) and channels > 3:
        options.append(source.whole(low, high, 1, TOKENS, channels))
    options.append(source.whole(low, high, 1, 32))
    return options


def _make_decoder_ids(source: Source) -> list[Any]:
    high = min(TOKENS_TO, source.integer("decoder_vocab_size", "vocab_size", default=20))
    options = [source.whole(min(4, high // 2), high, 1, 5)]
    books = source.first("num_codebooks", "num_channels", "n_codes_total")
    if books is not None and books > 3:
        options += [source.whole(2, 16, books, 5), source.whole(2, 16, 1, 5, books)]
    return options


# Images and videos, as pixels or as patches


def _list_shapes(source: Source) -> list[tuple[int, int, int]]:
    channels = source.integer("num_channels", "in_channels", "in_chans", default=3)
    size = source.first("image_size", "img_size", "input_size")
    if isinstance(size, dict):
        size = [size.get("height"), size.get("width")]
    shapes = []
    if isinstance(size, list | tuple) and len(size) >= 2:
        shapes.append((channels, int(size[0]), int(size[1])))
    elif isinstance(size, int):
        shapes.append((channels, size, size))
    shapes += [(channels, side, side) for side in (64, 32, 128, 224)]
    if channels != 3:
        shapes.append((3, 64, 64))
    return shapes


def _make_pixels(source: Source) -> list[Any]:
    shapes = _list_shapes(source)
    frames = source.integer("num_frames", "frames_per_clip", default=2)
    flat_patches = [_make_flat_patches(source), _make_flat_patches(source)[None]]
    square_patches = _make_square_patches(source)
    image = source.noise(1, *shapes[0])
    in_patches = any(name.startswith(("grid", "image_grid", "pixel_position")) for name in source.takes)
    options = [*flat_patches, *square_patches, image] if in_patches else [image, *flat_patches]
    options.append(source.noise(1, frames, *shapes[0]))
    options.append(source.noise(1, 1, *shapes[0]))
    options += [source.noise(1, *shape) for shape in shapes[1:]]
    return options


def _make_videos(source: Source) -> list[Any]:
    frames = source.integer("num_frames", "frames_per_clip", default=2)
    return [source.noise(1, frames, *shape) for shape in _list_shapes(source)]


def _make_flat_patches(source: Source) -> Tensor:
    """Patches, as wide as the first convolution of the module takes them, or else its first projection."""
    for layer_class in (nn.Conv2d | nn.Conv3d, nn.Linear):
        for child in source.module.modules():
            if isinstance(child, layer_class):
                return source.noise(PATCHES, child.weight[0].numel())
    channels = source.integer("num_channels", "in_channels", "in_chans")
    side = source.integer("patch_size", "spatial_patch_size", default=4)
    return source.noise(PATCHES, channels * side**2 * source.integer("temporal_patch_size", default=1))


def _make_square_patches(source: Source) -> list[Tensor]:
    """Patches as little images, for a first convolution that takes one patch at a time."""
    for child in source.module.modules():
        if isinstance(child, nn.Conv2d):
            patches = source.noise(PATCHES, *child.weight.shape[1:])
            return [patches, patches[None]]
    return []


def _make_patch_positions(_: Source) -> list[Any]:
    patches = torch.arange(PATCHES)
    return [torch.stack([patches % GRID[2], patches // GRID[2]], -1)[None]]


def _make_placed_patches(source: Source) -> list[Any]:
    width = source.integer("patch_embed_hidden_size", default=27)
    positions = torch.stack([torch.arange(TOKENS) % 2, torch.arange(TOKENS) // 2], -1).float()[None]
    return [torch.cat([positions, source.noise(1, TOKENS, width)], -1)]


def _make_pixel_mask(source: Source) -> list[Any]:
    side = _list_shapes(source)[0][1]
    return [torch.ones(1, side, side, dtype=torch.long)]


# Sound: spectra, waves and codes


def _make_features(source: Source) -> list[Any]:
    mel = source.integer(
        "num_mel_bins",
        "feature_size",
        "input_feat_per_channel",
        "feat_in",
        "input_dim",
        "input_size",
        "num_mels",
        default=80,
    )
    window = source.first("n_window", default=None)
    lengths = [64, 2 * source.integer("max_source_positions", default=32), 48]
    if isinstance(window, int):
        lengths.insert(0, 2 * window)
    options: list[Any] = []
    for length in lengths:
        options += [source.noise(1, length, mel), source.noise(1, mel, length)]
    options.insert(1, source.noise(1, 64, source.width))
    options.insert(1, source.noise(1, 64, source.integer("input_size", default=mel)))
    options.append(source.noise(1, 1, 64, mel))
    return options


def _make_waves(source: Source) -> list[Any]:
    mel = source.integer("num_mel_bins", default=80)
    length = source.integer("max_length", default=64)
    return [
        source.noise(1, 1600),
        source.noise(1, 1, 1600),
        source.noise(1, length, mel),
        source.noise(1, 7680),
        source.noise(1, 1, 9600),
    ]


def _make_codes(source: Source) -> list[Any]:
    books = source.integer("num_quantizers", "num_codebooks", "n_codebooks", default=4)
    return [source.whole(0, 16, 1, books, TOKENS), source.whole(0, 16, 1, TOKENS, books)]


# Time series


def _make_past(source: Source) -> list[Any]:
    context = source.integer("context_length", default=16)
    lags = source.first("lags_sequence", default=None)
    length = context + (max(lags) if isinstance(lags, list) else 0)
    channels = source.integer("num_input_channels", "input_size", default=1)
    return [source.noise(1, length, channels), source.noise(1, length)]


def _make_past_times(source: Source) -> list[Any]:
    context = source.integer("context_length", default=16)
    lags = source.first("lags_sequence", default=[0])
    return [source.noise(1, context + max(lags), source.integer("num_time_features", default=1))]


# Hidden states, the states that they attend to, and rotations


def _make_hidden(source: Source) -> list[Any]:
    """States as wide as the module takes them."""
    return _make_states(source, source.width)


def _make_keys(source: Source) -> list[Any]:
    """States as wide as the module's projection of keys takes them."""
    return _make_states(source, _key_width(source) or source.width)


def _make_states(source: Source, width: int) -> list[Any]:
    other = source.integer("hidden_size", "d_model", "n_embd", "embed_dim", default=width)
    shapes = ((1, TOKENS, width), (TOKENS, width), (1, 4, 4, width), (1, 16, width), (1, width, 4, 4))
    options = [source.noise(*shape) for shape in shapes]
    if other != width:
        options.insert(1, source.noise(1, TOKENS, other))
    if {"query", "key", "value"} <= set(source.takes):
        options = [options[0], source.noise(1, 1, TOKENS, width)]
    if "grid_thw" in source.takes:
        options.insert(0, _make_flat_patches(source))
    return options


def _make_context(source: Source) -> list[Any]:
    width = source.integer("encoder_hidden_size", "cross_attention_hidden_size", "encoder_width", default=0)
    of_keys = _key_width(source, "cross|encoder_attn|enc_dec|EncDec")
    return [source.noise(1, 5, of_keys or width or _key_width(source) or source.width)]


def _key_width(source: Source, within: str = "") -> int:
    """The width that the first layer of keys takes, in the submodules whose names match; 0 if there is none."""
    for name, child in source.module.named_modules():
        if isinstance(child, nn.Linear) and re.search(within, name) and re.search("k_proj|key|to_kv|k_lin|kv", name):
            return child.in_features
    return 0


def _make_rotations(source: Source) -> list[Any]:
    size = None
    for child in source.module.modules():
        size = getattr(child, "head_dim", None) or getattr(child, "qk_rope_head_dim", None)
        if isinstance(size, int):
            break
    size = size if isinstance(size, int) else source.integer("head_dim", default=16)
    return [(torch.ones(*shape), torch.zeros(*shape)) for shape in ((1, TOKENS, size), (TOKENS, size))]


Maker = Callable[[Source], list[Any]]


# Names of parameters, separated by spaces → what makes the values to try for them, the most likely first.
_MAKERS: dict[str, Maker] = {
    "input_ids": _make_ids,
    "decoder_input_ids": _make_decoder_ids,
    "attention_mask": lambda _: [None, torch.ones(1, TOKENS, dtype=torch.long)],
    "mask": lambda _: [torch.ones(1, 12)],
    "image_attention_mask": lambda _: [torch.ones(1, TOKENS, 1, dtype=torch.long)],
    "task_inputs": lambda source: [
        source.whole(TOKENS_FROM, TOKENS_TO, 1, source.integer("task_seq_len", default=TOKENS))
    ],
    "bbox": lambda source: [source.whole(0, 50, 1, TOKENS, 4).sort(-1).values],
    "pixel_values": _make_pixels,
    "pixel_values_videos pixel_values_video video videos": _make_videos,
    "pixel_position_ids image_position_ids patch_positions": _make_patch_positions,
    "flattened_patches": _make_placed_patches,
    "pixel_attention_mask pixel_mask patch_attention_mask": _make_pixel_mask,
    "grid_thw image_grid_thw grid_ths grid_thws": lambda _: [torch.tensor([GRID])],
    "grid_hw image_grid_hw grid_hws image_grid_hws spatial_shapes tgt_sizes image_sizes": lambda _: [
        torch.tensor([GRID[1:]])
    ],
    "merge_sizes": lambda _: [torch.tensor([1])],
    "input_features audio_features spectrogram audio_mel": _make_features,
    "audio_mel_mask input_features_mask audio_mask": lambda _: [torch.ones(1, 64, dtype=torch.bool)],
    "input_values audio_values waveform padding_values audio": _make_waves,
    "audio_codes codes audio_input_ids": _make_codes,
    "past_values": _make_past,
    "past_time_features": _make_past_times,
    "past_observed_mask": lambda source: [torch.ones_like(_make_past(source)[0])],
    "hidden_states hidden_state input_tensor inputs_embeds x query queries embeddings src tgt inputs features hidden "
    "query_states key_states value_states query_embeds embedding_output encoder_embeddings noise_embeds "
    "context_hidden_states": _make_hidden,
    "key value": _make_keys,
    "last_hidden_state": lambda source: [
        source.noise(1, TOKENS, source.integer("input_size", "hidden_size", default=48))
    ],
    "encoder_hidden_states key_value_states context ctx_tensor memory cross_attention_states image_embeds patch_embeds "
    "encoder_outputs latents vision_hidden_states kv memory_states encoder_states keys values "
    "key_value_input": _make_context,
    "position_embeddings rotary_pos_emb rotary_emb freqs freqs_cis position_embedding pos_emb "
    "position_embeddings_vision": _make_rotations,
    "cu_seqlens cu_seq_lens cu_seqlens_q": lambda _: [torch.tensor([0, TOKENS], dtype=torch.int32)],
    "max_seqlen": lambda _: [TOKENS],
    "size spatial_shape hw input_dimensions image_size": lambda _: [(4, 4)],
}
# The same by single name.
MAKERS: dict[str, Maker] = {}
for _names, _make in _MAKERS.items():
    MAKERS |= dict.fromkeys(_names.split(), _make)


def combine_inputs(module: nn.Module, configs: list[Any], known: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield combinations of keyword arguments to try on the forward of `module`, the most likely first.

    Args:
        module: the module.
        configs: configurations around the module, the nearest first.
        known: arguments that are already known.
    """
    parameters = inspect.signature(module.forward).parameters
    required = [name for name, parameter in parameters.items() if _is_required(parameter)]
    welcome = [name for name in parameters if name in WELCOME and name in MAKERS]
    if "input_ids" in welcome and "inputs_embeds" in welcome:
        welcome.remove("inputs_embeds")
    main = getattr(module, "main_input_name", None)
    main = main[0] if isinstance(main, list) else main
    if main in parameters and main in MAKERS and main not in required:
        required.insert(0, main)
    for wanted in _choose_names(required, welcome, main):
        source = Source(module, configs)
        names = [name for name in wanted if name not in known]
        try:
            options = {name: MAKERS[name](source) if name in MAKERS else [None] for name in names}
        except Exception:  # a maker that does not find what it needs here
            continue
        for values in itertools.islice(_combine(options), MOST_INPUTS_OF_A_SET):
            given = {name: value for name, value in values.items() if value is not None or name in required}
            yield {**given, **known}


def _is_required(parameter: inspect.Parameter) -> bool:
    is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    return is_named and parameter.default is parameter.empty


def _choose_names(required: list[str], welcome: list[str], main: str | None) -> list[list[str]]:
    """The sets of names to try: what is required; then with all welcome inputs; then with each of them."""
    others = [name for name in welcome if name not in required]
    sets = []
    if "decoder_input_ids" in others and required:
        sets.append([*required, "decoder_input_ids"])
    if required:
        sets.append(required)
    added = [name for name in others if name not in INSTEAD]
    if added:
        sets.append([*required, *added])
    sets.extend([*required, name] for name in others)
    if "input_ids" in (*required, *others) and main != "input_ids":
        sets.insert(min(len(sets), 1), ["input_ids"])
    return sets or [[]]


def _combine(options: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Yield one value for each name. Names of one maker, and query and key, get values of like shapes."""
    groups: dict[Maker | None, list[str]] = {}
    for name in options:
        maker = MAKERS.get(name)
        groups.setdefault(_make_hidden if maker is _make_keys else maker, []).append(name)
    counts = [min(len(options[name]) for name in names) for names in groups.values()]
    for indices in itertools.product(*map(range, counts)):
        values = {}
        for names, index in zip(groups.values(), indices, strict=True):
            for name in names:
                values[name] = options[name][index]
        yield values
