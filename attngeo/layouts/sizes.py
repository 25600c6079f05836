"""The sizes of an attention module: configuration and shapes of its tensors, checked against each other."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from attngeo.errors import CorruptCheckpointError, ShapeError
from attngeo.layouts.heads import HEAD_DIM, HEADS, KEY_HEADS, HeadConfig, list_numbers
from attngeo.layouts.layout import LatentLayout, QKLayout, slot_rows
from attngeo.layouts.modules import Module
from attngeo.layouts.names import join

# Fields that state the width of a stack, and those that only seem to. From stage to stage a width may double.
WIDTH = re.compile(r"hidden|dim|width|embd|embed|d_model|latents|bottleneck|channels")
NO_WIDTH = re.compile(r"^mm_|head|intermediate|ffn|mlp|vocab|layers|position")
STAGES = 6
# Parts between two towers. They have heads of their own.
BRIDGES = ("abstractor", "connector", "perceiver", "projector", "resampler")
# The shape of a tensor, by its name.
ShapeOf = Callable[[str], Sequence[int]]


class Sizes(NamedTuple):
    """The sizes of one attention module.

    heads, key_heads: numbers of query heads and key heads. head_dim: width of one head. d_model: input width of the
    queries. key_width: input width of the keys.
    """

    heads: int
    key_heads: int
    head_dim: int
    d_model: int
    key_width: int


def measure(module: Module, stated: HeadConfig, tensors: Mapping[str, str], shape_of: ShapeOf, ref: str) -> Sizes:
    """The sizes of a module. stated: its heads in the configuration. tensors: role → tensor name.

    Raises ShapeError if tensors and configuration contradict each other, CorruptCheckpointError if one is missing.
    """
    if isinstance(module.layout, LatentLayout):
        sizes = _measure_latent(module, stated.heads, tensors, shape_of, ref)
    else:
        sizes = _measure_separate(module, module.layout, stated, tensors, shape_of, ref)
        if not (module.family.source and module.certain):
            _check_description(module, sizes, ref)
    _check_vectors(tensors, sizes, shape_of, ref)
    return sizes


def _check_description(module: Module, sizes: Sizes, ref: str) -> None:
    """Raise ShapeError if the section of the configuration seems to describe another part of the model.

    Any number of heads that divides the width fits the weights. So a number that was stated for another part would give
    wrong heads in silence. The width that is stated with it tells.
    """
    bridges = {word for word in BRIDGES if word in module.name.lower() and word not in (module.tower or "")}
    if bridges and not any("head" in name and word in name for name in module.section for word in bridges):
        raise ShapeError(f"{ref}: {module.name}: config.json states no number of heads for the {min(bridges)}")
    widths = _stated_widths(module.section)
    if sizes.head_dim in list_numbers({**module.family.defaults, **module.section}, HEAD_DIM) or not widths:
        return
    if not any(sizes.d_model == width << stage for width in widths for stage in range(STAGES)):
        raise ShapeError(
            f"{ref}: {module.name} has an input width of {sizes.d_model}, and config.json states heads for a width of "
            f"{', '.join(map(str, widths[:3]))} only; it does not describe this part"
        )


def _stated_widths(section: Mapping[str, Any]) -> list[int]:
    """All numbers in a section of the configuration that may be the width of a stack."""
    values = [
        value if isinstance(value, list) else [value]
        for name, value in section.items()
        if isinstance(name, str) and WIDTH.search(name) and not NO_WIDTH.search(name)
    ]
    return [number for numbers in values for number in numbers if type(number) is int and number > 0]


def _measure_separate(
    module: Module,
    layout: QKLayout,
    stated: HeadConfig,
    tensors: Mapping[str, str],
    shape_of: ShapeOf,
    ref: str,
) -> Sizes:
    """The sizes of a module whose queries and keys are slots of one or two projections."""
    (rows, width), (k_rows, key_width) = (_out_in(tensors[role], shape_of, layout.conv1d, ref) for role in ("q", "k"))
    heads = stated.heads
    key_heads = {"one": 1, "heads": heads}.get(layout.key_heads, stated.key_heads or heads)
    head_dim = stated.head_dim
    slots = slot_rows(layout.slots, heads=heads, key_heads=key_heads, head_dim=1)
    if layout.width_from_rows and rows % slots == 0:
        head_dim = rows // slots
    if head_dim is None and width % heads == 0:
        head_dim = width // heads
    first = (heads, key_heads, head_dim)
    if head_dim is not None and _fits(layout, heads, key_heads, head_dim, rows, k_rows):
        return Sizes(heads, key_heads, head_dim, width, key_width)
    others = dict.fromkeys(own for own in _other_sizes(module, first, width) if _fits(layout, *own, rows, k_rows))
    as_many = [own for own in others if own[0] == heads]
    for fitting in (as_many, list(others)):
        if len(fitting) == 1:
            return Sizes(*fitting[0], width, key_width)
    raise _explain_misfit(module, layout, first, (rows, k_rows), width, tensors, ref)


def _fits(layout: QKLayout, heads: int, key_heads: int, head_dim: int, rows: int, k_rows: int) -> bool:
    """Whether weights with these numbers of rows hold these heads."""
    if heads % key_heads:
        return False
    if isinstance(layout.blocks, int) and (heads % layout.blocks or key_heads % layout.blocks):
        return False
    sizes = {"heads": heads, "key_heads": key_heads, "head_dim": head_dim}
    return slot_rows(layout.slots, **sizes) == rows and slot_rows(layout.k_slots, **sizes) == k_rows


def _other_sizes(module: Module, first: tuple[int, int, int | None], width: int) -> Iterator[tuple[int, int, int]]:
    """Other heads that the configuration states, for layers that differ from the rest of their stack.

    Such layers have fields of their own, for example `global_head_dim`.
    """
    section = {**module.family.defaults, **module.section}
    head_dims = [*list_numbers(section, HEAD_DIM), *([first[2]] if first[2] else [])]
    key_heads = [first[1], *list_numbers(section, KEY_HEADS)]
    for heads in (first[0], *list_numbers(section, HEADS)):
        by_width = [width // heads] if width % heads == 0 else []
        yield from ((heads, keys, dim) for keys in (*key_heads, heads) for dim in (*head_dims, *by_width))


def _explain_misfit(
    module: Module,
    layout: QKLayout,
    stated: tuple[int, int, int | None],
    got: tuple[int, int],
    width: int,
    tensors: Mapping[str, str],
    ref: str,
) -> ShapeError:
    """The error for weights that hold none of the heads that the configuration states."""
    heads, key_heads, head_dim = stated
    if head_dim is None:
        return ShapeError(f"{ref}: {module.name}: {heads} heads do not divide an input width of {width}")
    if heads % key_heads:
        return ShapeError(f"{ref}: {module.name}: {heads} heads cannot share {key_heads} key heads evenly")
    if isinstance(layout.blocks, int) and (heads % layout.blocks or key_heads % layout.blocks):
        return ShapeError(f"{ref}: {module.name}: {heads} heads do not divide into {layout.blocks} blocks")
    sizes = {"heads": heads, "key_heads": key_heads, "head_dim": head_dim}
    role = "k" if slot_rows(layout.slots, **sizes) == got[0] else "q"
    slots, rows = (layout.slots, got[0]) if role == "q" else (layout.k_slots, got[1])
    return ShapeError(
        f"{ref}: {tensors[role]} has an output width of {rows}, expected {slot_rows(slots, **sizes)} ({slots}: {heads} "
        f"heads, {key_heads} key heads, head_dim {head_dim}); config.json and weights do not belong together, or the "
        "weight holds more than queries and keys"
    )


def _measure_latent(module: Module, heads: int, tensors: Mapping[str, str], shape_of: ShapeOf, ref: str) -> Sizes:
    """The sizes of a module with multi-head latent attention; see `LatentLayout`."""
    section = {**module.family.defaults, **module.section}
    nope, rope, value = (section.get(name) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    if not (isinstance(nope, int) and isinstance(rope, int) and isinstance(value, int)):
        raise CorruptCheckpointError(f"{ref}: config.json lacks qk_nope_head_dim, qk_rope_head_dim or v_head_dim")
    if "kv_norm" not in tensors:
        raise CorruptCheckpointError(f"{ref}: {join(module.name, LatentLayout.kv_norm)} is missing")
    rank, width = math.prod(shape_of(tensors["kv_norm"])), _out_in(tensors["kv_a"], shape_of, False, ref)[1]
    if shape_of(tensors["kv_a"])[0] == rank:  # some layers have no rotary embeddings
        nope, rope = nope + rope, 0
    want: dict[str, tuple[int, ...]] = {"kv_a": (rank + rope, width), "kv_b": (heads * (nope + value), rank)}
    if "q_a" in tensors and "q" in tensors:
        raise CorruptCheckpointError(
            f"{ref}: {module.name} has both {tensors['q']} and {tensors['q_a']}, expected one of them; "
            "remove the one that the model does not use"
        )
    if "q_a" in tensors:
        query_rank, _ = _out_in(tensors["q_a"], shape_of, False, ref)
        want |= {"q_a": (query_rank, width), "q_b": (heads * (nope + rope), query_rank), "q_norm": (query_rank,)}
    else:
        want["q"] = (heads * (nope + rope), width)
    for role, shape in want.items():
        if role not in tensors:
            raise CorruptCheckpointError(f"{ref}: {join(module.name, getattr(module.layout, role))} is missing")
        if tuple(shape_of(tensors[role])) != shape:
            raise ShapeError(f"{ref}: {tensors[role]} is {list(shape_of(tensors[role]))}, expected {list(shape)}")
    return Sizes(heads, heads, nope + rope, width, width)


def _check_vectors(tensors: Mapping[str, str], sizes: Sizes, shape_of: ShapeOf, ref: str) -> None:
    """Raise ShapeError if a bias or a gain does not fit the projection that it belongs to."""
    heads, key_heads, head_dim, width, _ = sizes
    for role, name in tensors.items():
        shape = tuple(shape_of(name)) if role.endswith(("_bias", "norm", "_scale")) or "_gain" in role else ()
        if role in ("pre_norm", "pre_norm_bias"):
            fits = shape == (width,)
        elif role == "q_scale":
            fits = shape == (head_dim,)
        elif "_gain" in role:
            fits = math.prod(shape) in (head_dim, head_dim * (heads if role.startswith("q") else key_heads))
        elif role in ("q_bias", "k_bias"):
            fits = len(shape) == 1 and shape[0] % head_dim == 0
        else:
            fits = True
        if not fits:
            raise ShapeError(
                f"{ref}: {name} is {list(shape)}, which does not fit {heads} heads and {key_heads} key heads with "
                f"head_dim {head_dim} and an input width of {width}"
            )


def _out_in(name: str, shape_of: ShapeOf, conv1d: bool, ref: str) -> tuple[int, int]:
    """Output width and input width of a weight. Raises ShapeError if it is no matrix."""
    shape = tuple(shape_of(name))
    if conv1d and len(shape) == 3:
        shape = (shape[0], shape[1] * shape[2])
    if len(shape) != 2 or 0 in shape:
        raise ShapeError(f"{ref}: {name} is {list(shape)}, expected a matrix")
    return (shape[1], shape[0]) if conv1d else (shape[0], shape[1])
