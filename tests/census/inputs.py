"""Random inputs for a module, from the names of its forward's parameters and from its configuration."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from census.sizes import TOKENS_FROM, TOKENS_TO

TOKENS = 7
MAKERS: dict[str, Callable[[Source], list[Any]]] = {}
# Inputs that are given although their parameter has a default, if the module has the parameter.
WELCOME = {
    "input_ids", "decoder_input_ids", "pixel_values", "input_features", "input_values", "hidden_states", "bbox",
    "inputs_embeds", "flattened_patches", "audio_codes", "encoder_hidden_states", "past_values",
    "image_attention_mask", "last_hidden_state", "grid_thw",
    "position_embeddings", "task_inputs", "cross_attention_states", "patch_embeds",
}  # fmt: skip


@dataclass
class Source:
    """What the makers of inputs draw from: the module, the configurations around it and the random numbers."""

    module: nn.Module
    configs: list[Any]
    seed: int

    def __post_init__(self) -> None:
        self.takes = list(inspect.signature(self.module.forward).parameters)
        self.generator = torch.Generator().manual_seed(self.seed)

    def first(self, *names: str, default: Any = None) -> Any:
        """Return the first of these fields that a configuration has."""
        for config in self.configs:
            for name in names:
                value = _field(config, name)
                if value is not None and value != []:
                    return value
        return default

    def integer(self, *names: str, default: int = 3) -> int:
        """Return the first of these fields as one number."""
        value = self.first(*names, default=default)
        if isinstance(value, list | tuple):
            value = value[0]
        if isinstance(value, dict):
            value = value.get("height", default)
        return int(value) if isinstance(value, int | float) else default

    def noise(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def whole(self, low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, max(high, low + 1), shape, generator=self.generator)


def _field(config: Any, name: str) -> Any:
    fields = {**vars(config)}
    name = getattr(config, "attribute_map", {}).get(name, name)
    if name in fields:
        return fields[name]
    try:
        return getattr(config, name, None)
    except Exception:
        return None


def maker(*names: str) -> Callable[[Callable[[Source], list[Any]]], Callable[[Source], list[Any]]]:
    """Register a function that returns the values to try for the parameters of these names."""

    def register(make: Callable[[Source], list[Any]]) -> Callable[[Source], list[Any]]:
        for name in names:
            MAKERS[name] = make
        return make

    return register


def variants(
    module: nn.Module, configs: list[Any], seed: int, extra: dict[str, Any] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield combinations of inputs to try, at most 24, the most likely first."""
    parameters = inspect.signature(module.forward).parameters
    main = getattr(module, "main_input_name", None)
    if isinstance(main, list):
        main = main[0]
    required = [
        name for name, p in parameters.items()
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]  # fmt: skip
    welcome = [name for name in parameters if name in WELCOME and name in MAKERS]
    if "input_ids" in welcome and "inputs_embeds" in welcome:
        welcome.remove("inputs_embeds")
    if main in parameters and main in MAKERS and main not in required:
        required.insert(0, main)
    extra = extra or {}
    lists = [[n for n in wanted if n not in extra] for wanted in _choices(required, welcome, main)]
    count = 0
    for names in lists:
        source = Source(module, configs, seed)
        try:
            options = {name: MAKERS[name](source) if name in MAKERS else [None] for name in names}
        except Exception:  # a maker that does not find what it needs here
            continue
        for values in itertools.islice(_combine(options), 20):
            given = {n: v for n, v in values.items() if v is not None or n in required}
            yield given | extra
            count += 1
            if count >= 40:
                return


def _combine(options: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Yield one value for each name. Names of one kind, such as query and key, get values of like shapes."""
    group_of = {name: _hidden if MAKERS.get(name) is _keys else MAKERS.get(name) for name in options}
    groups = list(dict.fromkeys(group_of.values()))
    sizes = [min(len(options[name]) for name in options if group_of[name] is group) for group in groups]
    for places in itertools.product(*map(range, sizes)):
        place_of = dict(zip(groups, places, strict=True))
        yield {name: values[place_of[group_of[name]]] for name, values in options.items()}


def _choices(required: list[str], welcome: list[str], main: str | None) -> list[list[str]]:
    """Return the sets of names to try: what is required; then with each welcome input; then with all of them."""
    exclusive = {"inputs_embeds", "hidden_states"}
    others = [n for n in welcome if n not in required]
    sets = []
    if "decoder_input_ids" in others and required:
        sets.append([*required, "decoder_input_ids"])
    if required:
        sets.append(required)
    soft = [n for n in others if n not in exclusive]
    if soft:
        sets.append([*required, *soft])
    sets.extend([*required, n] for n in others)
    if "input_ids" in (*required, *others) and main != "input_ids":
        sets.insert(min(len(sets), 1), ["input_ids"])
    return sets or [[]]


# tokens


def _vocabulary(source: Source) -> int:
    return source.integer("vocab_size", "text_vocab_size", default=TOKENS_TO)


@maker("input_ids")
def _ids(source: Source) -> list[Any]:
    high = min(TOKENS_TO, _vocabulary(source))
    low = min(TOKENS_FROM, high // 2)
    ids = source.whole(low, high, 1, TOKENS)
    options = [ids]
    if (books := source.first("num_codebooks", "num_code_groups", "n_codes_total")) is not None:
        options.append(source.whole(2, min(high, 16), 1, TOKENS, books))
        options.append(source.whole(2, min(high, 16), 1, books, TOKENS))
        options.append(source.whole(2, min(high, 16), books, TOKENS))
        options.append(source.whole(2, min(high, 16), 1, books + 1, TOKENS))
        options.append(source.whole(2, min(high, 16), 1, TOKENS, books + 1))
    channels = source.first("num_channels", default=3)
    if isinstance(channels, int) and channels > 3:
        options.append(source.whole(low, high, 1, TOKENS, channels))
    options.append(source.whole(low, high, 1, 32))
    return options


@maker("decoder_input_ids")
def _decoder_ids(source: Source) -> list[Any]:
    high = min(TOKENS_TO, source.integer("decoder_vocab_size", "vocab_size", default=20))
    ids = source.whole(min(4, high // 2), high, 1, 5)
    options = [ids]
    if (books := source.first("num_codebooks", "num_channels", "n_codes_total")) is not None and books > 3:
        options += [source.whole(2, 16, books, 5), source.whole(2, 16, 1, 5, books)]
    return options


@maker("attention_mask")
def _mask(_: Source) -> list[Any]:
    return [None, torch.ones(1, TOKENS, dtype=torch.long)]


@maker("mask", "key_padding_mask")
def _other_mask(_: Source) -> list[Any]:
    return [torch.ones(1, TOKENS, dtype=torch.bool), torch.ones(1, 5, dtype=torch.bool), torch.ones(1, 12), None]


@maker("merge_sizes")
def _merges(_: Source) -> list[Any]:
    return [torch.tensor([1]), torch.tensor([2])]


@maker("image_attention_mask")
def _image_mask(_: Source) -> list[Any]:
    return [torch.ones(1, TOKENS, 1, dtype=torch.long)]


@maker("last_hidden_state")
def _last_hidden(source: Source) -> list[Any]:
    return [source.noise(1, TOKENS, source.integer("input_size", "hidden_size", default=48))]


@maker("position_ids")
def _positions(_: Source) -> list[Any]:
    places = torch.arange(TOKENS)[None]
    return [places, places.expand(3, 1, TOKENS), None]


@maker("token_type_ids", "mm_token_type_ids")
def _types(_: Source) -> list[Any]:
    return [torch.zeros(1, TOKENS, dtype=torch.long)]


@maker("task_inputs")
def _task(source: Source) -> list[Any]:
    return [source.whole(TOKENS_FROM, TOKENS_TO, 1, source.integer("task_seq_len", default=TOKENS))]


@maker("bbox")
def _boxes(source: Source) -> list[Any]:
    return [source.whole(0, 50, 1, TOKENS, 4).sort(-1).values, source.noise(1, TOKENS, 4).sigmoid().sort(-1).values]


# images


def _image_shapes(source: Source) -> list[tuple[int, int, int]]:
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


@maker("pixel_values")
def _pixels(source: Source) -> list[Any]:
    options: list[Any] = []
    shapes = _image_shapes(source)
    frames = source.integer("num_frames", "frames_per_clip", default=2)
    square = _square_patches(source)
    patches = [_flat_patches(source), _flat_patches(source)[None], square, None if square is None else square[None]]
    options.append(source.noise(1, *shapes[0]))
    in_patches = any(name.startswith(("grid", "image_grid", "pixel_position")) for name in source.takes)
    options = patches + options if in_patches else options + patches[:2]
    options.append(source.noise(1, frames, *shapes[0]))
    options.append(source.noise(1, 1, *shapes[0]))
    options += [source.noise(1, *shape) for shape in shapes[1:]]
    options.append(source.noise(1, shapes[0][0], frames, *shapes[0][1:]))
    options.append(source.noise(1, frames, *shapes[1]))
    return [o for o in options if o is not None]


@maker("pixel_values_videos", "pixel_values_video", "video", "videos")
def _video(source: Source) -> list[Any]:
    frames = source.integer("num_frames", "frames_per_clip", default=2)
    return [source.noise(1, frames, *shape) for shape in _image_shapes(source)]


def _patch_width(source: Source) -> int:
    patch = source.integer("patch_size", "spatial_patch_size", default=4)
    return (
        source.integer("num_channels", "in_channels", "in_chans")
        * patch**2
        * source.integer("temporal_patch_size", default=1)
    )


GRID = (1, 4, 4)


def _flat_patches(source: Source) -> Tensor:
    """16 patches, as wide as the first convolution of the module takes them, or else its first projection."""
    modules = list(source.module.modules())
    for child in (m for kind in (nn.Conv2d | nn.Conv3d, nn.Linear) for m in modules if isinstance(m, kind)):
        return source.noise(16, child.weight[0].numel())
    return source.noise(16, _patch_width(source))


def _square_patches(source: Source) -> Tensor | None:
    """16 patches as little images, for a first convolution that takes one patch at a time."""
    for child in source.module.modules():
        if isinstance(child, nn.Conv2d):
            return source.noise(16, *child.weight.shape[1:])
    return None


@maker("pixel_position_ids", "image_position_ids", "patch_positions")
def _patch_places(_: Source) -> list[Any]:
    places = torch.arange(16)
    return [torch.stack([places % 4, places // 4], -1)[None], torch.stack([places % 4, places // 4], -1)]


@maker("grid_thw", "image_grid_thw", "grid_ths", "grid_thws")
def _grid(_: Source) -> list[Any]:
    return [torch.tensor([GRID])]


@maker("grid_hw", "image_grid_hw", "grid_hws", "image_grid_hws", "spatial_shapes", "tgt_sizes", "image_sizes")
def _grid2(_: Source) -> list[Any]:
    return [torch.tensor([GRID[1:]]), [GRID[1:]]]


@maker("flattened_patches")
def _flattened(source: Source) -> list[Any]:
    width = source.integer("patch_embed_hidden_size", default=27)
    places = torch.stack([torch.arange(TOKENS) % 2, torch.arange(TOKENS) // 2], -1).float()[None]
    return [torch.cat([places, source.noise(1, TOKENS, width)], -1)]


@maker("pixel_attention_mask", "pixel_mask", "patch_attention_mask")
def _pixel_mask(source: Source) -> list[Any]:
    side = _image_shapes(source)[0][1]
    return [torch.ones(1, side, side, dtype=torch.long), torch.ones(1, 4, 4, dtype=torch.bool), None]


# sound


@maker("audio_mel_mask", "input_features_mask", "audio_mask")
def _features_mask(_: Source) -> list[Any]:
    return [torch.ones(1, 64, dtype=torch.bool), torch.zeros(1, 64, dtype=torch.bool)]


@maker("input_features", "audio_features", "spectrogram", "audio_mel")
def _features(source: Source) -> list[Any]:
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
    positions = source.integer("max_source_positions", default=32)
    lengths = [64, 2 * positions, 48]
    if isinstance(window, int):
        lengths.insert(0, 2 * window)
    options: list[Any] = []
    for length in lengths:
        options += [source.noise(1, length, mel), source.noise(1, mel, length), source.noise(mel, length)]
    options.insert(1, source.noise(1, 64, width_of(source.module, source)))
    options.insert(1, source.noise(1, 64, source.integer("input_size", default=mel)))
    options.append(source.noise(1, 1, 64, mel))
    return options


@maker("input_values", "audio_values", "waveform", "padding_values", "audio")
def _waves(source: Source) -> list[Any]:
    mel = source.integer("num_mel_bins", default=80)
    length = source.integer("max_length", default=64)
    return [
        source.noise(1, 1600), source.noise(1, 1, 1600), source.noise(1, length, mel), source.noise(1, 64, mel),
        source.noise(1, 7680), source.noise(1, 1, 9600), source.noise(1, 16000), source.noise(1, 1, 32000),
    ]  # fmt: skip


@maker("audio_codes", "codes", "audio_input_ids")
def _codes(source: Source) -> list[Any]:
    books = source.integer("num_quantizers", "num_codebooks", "n_codebooks", default=4)
    return [
        source.whole(0, 16, 1, books, TOKENS),
        source.whole(0, 16, books, 1, TOKENS),
        source.whole(0, 16, 1, TOKENS),
        source.whole(0, 16, 1, TOKENS, books),
    ]


# series


@maker("past_values")
def _past(source: Source) -> list[Any]:
    context = source.integer("context_length", default=16)
    lags = source.first("lags_sequence", default=None)
    length = context + (max(lags) if isinstance(lags, list) else 0)
    channels = source.integer("num_input_channels", "input_size", default=1)
    return [source.noise(1, length, channels), source.noise(1, length), source.noise(1, length, 1)]


@maker("past_time_features")
def _past_time(source: Source) -> list[Any]:
    context = source.integer("context_length", default=16)
    lags = source.first("lags_sequence", default=[0])
    return [source.noise(1, context + max(lags), source.integer("num_time_features", default=1))]


@maker("past_observed_mask")
def _past_mask(source: Source) -> list[Any]:
    return [torch.ones_like(_past(source)[0])]


# hidden states


def width_of(module: nn.Module, source: Source) -> int:
    """Return the width of what a module takes: of its first norm or Linear, else of its configuration."""
    for child in module.modules():
        if isinstance(child, nn.Linear):
            return child.in_features
        if isinstance(child, nn.LayerNorm):
            return int(child.normalized_shape[-1])
        weight = child._parameters.get("weight")
        if weight is not None and weight.ndim == 1 and "Norm" in type(child).__name__:
            return weight.shape[0]
    return source.integer("hidden_size", "d_model", "n_embd", "embed_dim", default=48)


@maker(
    "hidden_states", "hidden_state", "inputs_embeds", "x", "query", "queries", "embeddings", "src", "tgt", "inputs",
    "features", "hidden", "query_states", "key_states", "value_states", "query_embeds",
    "embedding_output", "encoder_embeddings", "noise_embeds", "context_hidden_states",
)  # fmt: skip
def _hidden(source: Source) -> list[Any]:
    return _states(source, width_of(source.module, source))


@maker("key", "value")
def _keys(source: Source) -> list[Any]:
    return _states(source, _key_width(source.module) or width_of(source.module, source))


def _states(source: Source, width: int) -> list[Any]:
    other = source.integer("hidden_size", "d_model", "n_embd", "embed_dim", default=width)
    options = [
        source.noise(1, TOKENS, width),
        source.noise(TOKENS, width),
        source.noise(1, 4, 4, width),
        source.noise(1, 16, width),
        source.noise(1, width, 4, 4),
    ]
    if other != width:
        options.insert(1, source.noise(1, TOKENS, other))
    if {"query", "key", "value"} <= set(source.takes):
        options = [options[0], source.noise(1, 1, TOKENS, width)]
    if "grid_thw" in source.takes:
        options.insert(0, _flat_patches(source))
    return options


@maker(
    "encoder_hidden_states", "key_value_states", "context", "memory", "cross_attention_states", "image_embeds",
    "patch_embeds", "encoder_outputs", "latents", "vision_hidden_states", "kv", "memory_states", "encoder_states",
    "keys", "values", "key_value_input",
)  # fmt: skip
def _context(source: Source) -> list[Any]:
    width = source.integer("encoder_hidden_size", "cross_attention_hidden_size", "encoder_width", default=0)
    own = width_of(source.module, source)
    widths = dict.fromkeys(
        [
            w
            for w in (
                _key_width(source.module, "cross|encoder_attn|enc_dec|EncDec"),
                width,
                _key_width(source.module),
                own,
            )
            if w
        ]
    )
    return [source.noise(1, 5, w) for w in widths] + [source.noise(5, own)]


def _key_width(module: nn.Module, within: str = "") -> int:
    """The width that the first layer of keys takes, in the submodules whose names match."""
    for name, child in module.named_modules():
        if isinstance(child, nn.Linear) and re.search(within, name) and re.search("k_proj|key|to_kv|k_lin|kv", name):
            return child.in_features
    return 0


@maker(
    "position_embeddings",
    "rotary_pos_emb",
    "rotary_emb",
    "freqs",
    "freqs_cis",
    "position_embedding",
    "pos_emb",
    "position_embeddings_vision",
)
def _rotary(source: Source) -> list[Any]:
    size = None
    for child in source.module.modules():
        size = getattr(child, "head_dim", None) or getattr(child, "qk_rope_head_dim", None)
        if isinstance(size, int):
            break
    size = size if isinstance(size, int) else source.integer("head_dim", default=16)
    shapes = ((1, TOKENS, size), (TOKENS, size), (1, TOKENS, size // 2), (TOKENS, size // 2), (16, size))
    pairs = [(torch.ones(*shape), torch.zeros(*shape)) for shape in shapes]
    width = width_of(source.module, source)
    return [
        *pairs,
        None,
        torch.zeros(TOKENS, size // 2),
        source.noise(1, 2 * TOKENS - 1, width),
        source.noise(1, TOKENS, width),
    ]


@maker("cu_seqlens", "cu_seq_lens", "cu_seqlens_q")
def _lengths(_: Source) -> list[Any]:
    return [torch.tensor([0, TOKENS], dtype=torch.int32), torch.tensor([0, 16], dtype=torch.int32)]


@maker("max_seqlen")
def _longest(_: Source) -> list[Any]:
    return [TOKENS]


@maker("height", "width", "H", "W", "h", "w")
def _side(_: Source) -> list[Any]:
    return [4]


@maker("size", "spatial_shape", "hw", "input_dimensions", "image_size")
def _sides(_: Source) -> list[Any]:
    return [(4, 4)]


@maker("num_frames", "layer_idx", "batch_size")
def _one(_: Source) -> list[Any]:
    return [1]


@maker("output_attentions", "use_cache", "output_hidden_states", "interpolate_pos_encoding")
def _no(_: Source) -> list[Any]:
    return [False]
