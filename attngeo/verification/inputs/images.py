"""Images and videos, as pixels or as patches, and the sizes and masks that come with them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attngeo.verification.inputs.source import TOKENS, Source, makes

# Frames, rows and columns of an image that is given as patches.
GRID = (1, 4, 4)
PATCHES = 16


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


@makes("pixel_values")
def _make_pixels(source: Source) -> list[Any]:
    shapes = _list_shapes(source)
    frames = source.integer("num_frames", "frames_per_clip", default=2)
    square = _make_square_patches(source)
    patches: list[Any] = [make_flat_patches(source), make_flat_patches(source)[None]]
    patches += [square, None if square is None else square[None]]
    options = [source.noise(1, *shapes[0])]
    in_patches = any(name.startswith(("grid", "image_grid", "pixel_position")) for name in source.takes)
    options = patches + options if in_patches else options + patches[:2]
    options.append(source.noise(1, frames, *shapes[0]))
    options.append(source.noise(1, 1, *shapes[0]))
    options += [source.noise(1, *shape) for shape in shapes[1:]]
    options.append(source.noise(1, shapes[0][0], frames, *shapes[0][1:]))
    options.append(source.noise(1, frames, *shapes[1]))
    return [option for option in options if option is not None]


@makes("pixel_values_videos", "pixel_values_video", "video", "videos")
def _make_videos(source: Source) -> list[Any]:
    frames = source.integer("num_frames", "frames_per_clip", default=2)
    return [source.noise(1, frames, *shape) for shape in _list_shapes(source)]


def _read_patch_width(source: Source) -> int:
    channels = source.integer("num_channels", "in_channels", "in_chans")
    side = source.integer("patch_size", "spatial_patch_size", default=4)
    return channels * side**2 * source.integer("temporal_patch_size", default=1)


def make_flat_patches(source: Source) -> Tensor:
    """Patches, as wide as the first convolution of the module takes them, or else its first projection."""
    modules = list(source.module.modules())
    for child in (m for kind in (nn.Conv2d | nn.Conv3d, nn.Linear) for m in modules if isinstance(m, kind)):
        return source.noise(PATCHES, child.weight[0].numel())
    return source.noise(PATCHES, _read_patch_width(source))


def _make_square_patches(source: Source) -> Tensor | None:
    """Patches as little images, for a first convolution that takes one patch at a time."""
    for child in source.module.modules():
        if isinstance(child, nn.Conv2d):
            return source.noise(PATCHES, *child.weight.shape[1:])
    return None


@makes("pixel_position_ids", "image_position_ids", "patch_positions")
def _make_patch_places(_: Source) -> list[Any]:
    places = torch.arange(PATCHES)
    both = torch.stack([places % GRID[2], places // GRID[2]], -1)
    return [both[None], both]


@makes("grid_thw", "image_grid_thw", "grid_ths", "grid_thws")
def _make_grid(_: Source) -> list[Any]:
    return [torch.tensor([GRID])]


@makes("grid_hw", "image_grid_hw", "grid_hws", "image_grid_hws", "spatial_shapes", "tgt_sizes", "image_sizes")
def _make_plane_grid(_: Source) -> list[Any]:
    return [torch.tensor([GRID[1:]]), [GRID[1:]]]


@makes("flattened_patches")
def _make_placed_patches(source: Source) -> list[Any]:
    width = source.integer("patch_embed_hidden_size", default=27)
    places = torch.stack([torch.arange(TOKENS) % 2, torch.arange(TOKENS) // 2], -1).float()[None]
    return [torch.cat([places, source.noise(1, TOKENS, width)], -1)]


@makes("pixel_attention_mask", "pixel_mask", "patch_attention_mask")
def _make_pixel_mask(source: Source) -> list[Any]:
    side = _list_shapes(source)[0][1]
    return [torch.ones(1, side, side, dtype=torch.long), torch.ones(1, 4, 4, dtype=torch.bool), None]
