"""Sizes of an attention module: the heads in its configuration, checked against the shapes of its tensors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from attngeo.bounds.names import list_names
from attngeo.errors import CorruptCheckpointError, ShapeError
from attngeo.layouts.heads import (
    HEAD_DIM,
    HEADS,
    KEY_HEADS,
    HeadConfig,
    list_numbers,
    list_unread_fields,
    positive_integers,
)
from attngeo.layouts.layout import LETTERS, LatentLayout, Layout, Sizes
from attngeo.layouts.modules import Module
from attngeo.layouts.names import join

# Fields that state the width of a stack, and fields that only seem to. The width may double from stage to stage.
WIDTH = re.compile(r"hidden|dim|width|embd|embed|d_model|latents|bottleneck|channels")
NO_WIDTH = re.compile(r"^mm_|head|intermediate|ffn|mlp|vocab|layers|position")
STAGES = 6
# Fields of defaults that state the width of a stack, and a name that most configuration classes accept for it.
DEFAULT_WIDTH = re.compile(r"((en|de)coder_|text_)?(hidden_sizes?|d_model|n_embd|embed_dims?|emb_dim|hidden_dim)|dim")
USUAL_WIDTH = "hidden_size"
SHOWN = 6
# Parts between two towers. They have heads of their own.
BRIDGES = ("abstractor", "connector", "perceiver", "projector", "resampler")
# How the roles of vectors end, except gains.
VECTORS = ("_bias", "norm", "_scale")
# The shape of a tensor, by its name.
ShapeOf = Callable[[str], Sequence[int]]


class StoredModule(NamedTuple):
    """An attention module with its tensors.

    Attributes:
        module: the module.
        tensors: role → name of the tensor.
        shape_of: name of a tensor → its shape.
    """

    module: Module
    tensors: Mapping[str, str]
    shape_of: ShapeOf

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the configuration, with the family's defaults."""
        return {**self.module.family.defaults, **self.module.section}

    def shape(self, role: str) -> tuple[int, ...]:
        """The shape of the tensor of a role."""
        return tuple(self.shape_of(self.tensors[role]))

    def out_in(self, role: str, *, transposed: bool = False) -> tuple[int, int]:
        """Output width and input width of a weight. Raises ShapeError if it is not a matrix."""
        shape = self.shape(role)
        if len(shape) == 3 and (transposed or role == "o"):
            shape = (shape[0], shape[1] * shape[2])
        if len(shape) != 2 or 0 in shape:
            raise ShapeError(f"{self.tensors[role]} is {list(shape)}, expected a matrix")
        first, second = shape
        return (second, first) if transposed else (first, second)


class _Heads(NamedTuple):
    """Numbers of heads, and their width.

    Attributes:
        heads: number of query heads.
        key_heads: number of key heads.
        head_dim: width of a head; None if nothing states it, and it does not follow from the width.
    """

    heads: int
    key_heads: int
    head_dim: int | None


def measure_sizes(stored: StoredModule, stated: HeadConfig) -> Sizes:
    """The sizes of a module. stated: its heads in the configuration.

    Raises ShapeError if tensors and configuration contradict each other, CorruptCheckpointError if either lacks
    something.
    """
    layout = stored.module.layout
    if isinstance(layout, LatentLayout):
        sizes = _measure_latent(stored, layout, stated.heads)
    else:
        sizes = _measure_separate(stored, layout, stated)
        if not (stored.module.family.source and stored.module.certain):
            _check_description(stored, sizes)
    if stated.is_assumed:
        _check_assumption(stored, sizes)
    _check_vectors(stored, sizes)
    return sizes


def measure_outputs(stored: StoredModule, sizes: Sizes) -> Sizes:
    """The sizes, completed for stored values and outputs. Raises ShapeError if their tensors do not fit."""
    layout = stored.module.layout
    key_heads = sizes.key_heads
    if isinstance(layout, LatentLayout):
        value_dim = int(stored.fields["v_head_dim"])
        if "v_b" in stored.tensors:
            rank = math.prod(stored.shape("kv_norm"))
            _require_size(stored, "v_b", math.prod(stored.shape("v_b")), sizes.heads * value_dim * rank, "numbers")
    else:
        holder = layout.holder("v")
        rows, width = stored.out_in("v", transposed=holder.transposed)
        value_dim = sizes.head_dim
        if holder.slots == "v":
            value_dim = rows // key_heads
        _require_size(stored, "v", rows, replace(sizes, value_dim=value_dim).rows(holder.slots), "outputs")
        if width != sizes.key_width:
            raise ShapeError(f"its values read {width} inputs, but its keys read {sizes.key_width}")
    output_width, inputs = stored.out_in("o", transposed=layout.outputs[0].transposed)
    _require_size(stored, "o", inputs, sizes.heads * value_dim, "inputs")
    if "v_bias" in stored.tensors:
        expected = {key_heads * value_dim, *([] if isinstance(layout, LatentLayout) else [rows])}
        bias = stored.shape("v_bias")
        if len(bias) != 1 or bias[0] not in expected:
            counts = " or ".join(map(str, sorted(expected)))
            raise ShapeError(f"{stored.tensors['v_bias']} is {list(bias)}, expected a vector of {counts} numbers")
    if "o_bias" in stored.tensors:
        _require_size(stored, "o_bias", math.prod(stored.shape("o_bias")), output_width, "numbers")
    if "o_norm" in stored.tensors:
        _require_size(stored, "o_norm", math.prod(stored.shape("o_norm")), output_width, "numbers")
    return replace(sizes, value_dim=value_dim, output_width=output_width)


def _require_size(stored: StoredModule, role: str, size: int, expected: int, unit: str) -> None:
    """Raise ShapeError if the size of the tensor of this role is not the expected one. unit: what the size counts."""
    if size != expected:
        shape = list(stored.shape(role))
        raise ShapeError(f"{stored.tensors[role]} is {shape} with {size} {unit}, expected {expected}")


# Heads that are slots of stored layers


def _measure_separate(stored: StoredModule, layout: Layout, stated: HeadConfig) -> Sizes:
    """The sizes of a module whose heads are slots of stored layers."""
    rows: dict[str, int] = {}
    inputs: dict[str, int] = {}
    for letter in LETTERS:
        rows[letter], inputs[letter] = stored.out_in(letter, transposed=layout.holder(letter).transposed)
    width = inputs["q"]
    key_width = inputs["k"]
    first = _resolve_heads(layout, stated, rows["q"], width)
    if first.head_dim is not None:
        sizes = Sizes(first.heads, first.key_heads, first.head_dim, width, key_width)
        if _fits(layout, sizes, rows):
            return sizes
    fitting = []
    for heads, key_heads, head_dim in dict.fromkeys(_other_heads(stored, first, width)):
        sizes = Sizes(heads, key_heads, head_dim, width, key_width)
        if _fits(layout, sizes, rows):
            fitting.append(sizes)
    as_stated = [sizes for sizes in fitting if sizes.heads == first.heads]
    for choice in (as_stated, fitting):
        if len(choice) == 1:
            return choice[0]
    raise _explain_misfit(stored, layout, first, rows, width)


def _resolve_heads(layout: Layout, stated: HeadConfig, rows: int, width: int) -> _Heads:
    """The heads by configuration and layout. rows, width: output width and input width of the queries."""
    heads = stated.heads
    key_heads = {"one": 1, "heads": heads}.get(layout.key_heads, stated.key_heads or heads)
    head_dim = stated.head_dim
    if layout.width_from_rows:
        slots = Sizes(heads, key_heads, 1, width, width).rows(layout.holder("q").slots)
        if rows % slots == 0:
            head_dim = rows // slots
    all_heads = heads + stated.pruned
    if head_dim is None and width % all_heads == 0:
        head_dim = width // all_heads
    return _Heads(heads, key_heads, head_dim)


def _fits(layout: Layout, sizes: Sizes, rows: Mapping[str, int]) -> bool:
    """Whether weights with these numbers of rows, by letter, hold these heads."""
    if not _divides(layout, sizes.heads, sizes.key_heads):
        return False
    return all(sizes.rows(layout.holder(letter).slots) == count for letter, count in rows.items())


def _divides(layout: Layout, heads: int, key_heads: int) -> bool:
    """Whether query heads divide evenly among key heads, and both divide evenly among the blocks of projections."""
    blocks = _list_blocks(layout)
    return heads % key_heads == 0 and all(heads % count == 0 and key_heads % count == 0 for count in blocks)


def _list_blocks(layout: Layout) -> list[int]:
    """The fixed numbers of blocks, more than one, of the layout's projections."""
    counts = [projection.blocks for projection in layout.projections]
    return [count for count in counts if isinstance(count, int) and count > 1]


def _other_heads(stored: StoredModule, first: _Heads, width: int) -> Iterator[tuple[int, int, int]]:
    """Other heads, key heads and head_dim that the configuration states, for layers that differ from their stack.

    Such layers have their own fields, for example `global_head_dim`. Numbers of key heads are not tried as numbers of
    query heads, and a stated size is not derived from the width: the weights would fit heads that the running model
    does not have. If encoder and decoder have their own heads, a stated head_dim may belong to the other one.
    """
    fields = stored.fields
    head_dims = list_numbers(fields, HEAD_DIM)
    if first.head_dim:
        head_dims.append(first.head_dim)
    key_heads = [first.key_heads, *list_numbers(fields, KEY_HEADS)]
    of_queries = {name: value for name, value in fields.items() if not list_numbers({name: value}, KEY_HEADS)}
    query_fields = [name for name, value in of_queries.items() if list_numbers({name: value}, HEADS)]
    section = stored.module.section
    states_head_dim = bool(list_numbers(section, HEAD_DIM)) and len(query_fields) == 1
    states_key_heads = bool(list_numbers(section, KEY_HEADS))
    for heads in (first.heads, *list_numbers(of_queries, HEADS)):
        derived_key_heads = [] if states_key_heads else [heads]
        if stored.module.family.more_key_heads:
            derived_key_heads = [heads, 2 * first.key_heads]
        derived_head_dims = [width // heads] if width % heads == 0 and not states_head_dim else []
        for keys in (*key_heads, *derived_key_heads):
            for head_dim in (*head_dims, *derived_head_dims):
                yield heads, keys, head_dim


def _explain_misfit(
    stored: StoredModule, layout: Layout, stated: _Heads, rows: Mapping[str, int], width: int
) -> ShapeError:
    """The error for weights that fit none of the heads in the configuration."""
    heads, key_heads, head_dim = stated
    if head_dim is None or not _divides(layout, heads, key_heads):
        blocks = "".join(f"; both must divide evenly into {count} blocks" for count in _list_blocks(layout))
        return ShapeError(
            f"{heads} heads and {key_heads} key heads do not fit an input width of {width}: heads must be a multiple "
            f"of key heads, and divide the width unless config.json states head_dim{blocks}",
            subject=stored.module.name,
        )
    sizes = Sizes(heads, key_heads, head_dim, width, width)
    slots = {letter: layout.holder(letter).slots for letter in rows}
    letter = next(letter for letter in rows if sizes.rows(slots[letter]) != rows[letter])
    problem = "config.json may belong to another model, or the weight may hold more than queries and keys"
    unread = list_unread_fields(stored.module.section)
    if unread:
        problem = f"config.json may state the heads of each layer in {list_names(unread)}, which attngeo does not read"
    return ShapeError(
        f"{stored.tensors[letter]} has an output width of {rows[letter]}, expected "
        f"{sizes.rows(slots[letter])} ({slots[letter]}: {heads} heads, {key_heads} key heads, head_dim {head_dim}); "
        f"{problem}"
    )


def _check_description(stored: StoredModule, sizes: Sizes) -> None:
    """Raise ShapeError if the section of the configuration seems to describe another part of the model.

    Any number of heads that divides the width fits the weights, so a number stated for another part would silently give
    wrong heads. The width stated beside it shows this.
    """
    module = stored.module
    tower = module.tower or ""
    bridges = [word for word in BRIDGES if word in module.name.lower() and word not in tower]
    if bridges:
        fields = " ".join(name for name in module.section if "head" in name)
        if not any(word in fields for word in bridges):
            raise ShapeError(
                f"config.json does not state the number of heads of the {min(bridges)}", subject=module.name
            )
    widths = []
    for name, value in module.section.items():
        if isinstance(name, str) and WIDTH.search(name) and not NO_WIDTH.search(name):
            widths += positive_integers(value)
    if not widths or sizes.head_dim in list_numbers(stored.fields, HEAD_DIM):
        return
    fitting = {sizes.d_model / 2**stage for stage in range(STAGES)}
    if fitting.isdisjoint(widths):
        raise ShapeError(
            f"{module.name} has an input width of {sizes.d_model}, but config.json only states heads for a "
            f"width of {', '.join(map(str, widths[:3]))}; it does not describe this part of the model"
        )


def _check_assumption(stored: StoredModule, sizes: Sizes) -> None:
    """Raise CorruptCheckpointError if nothing confirms the default number of heads of a model type.

    transformers uses the default with the stated width, or else with the default width. A configuration from another
    program states both under names that transformers does not read, and any number of heads that divides the width
    would fit the weights.
    """
    module = stored.module
    defaults = {name: value for name, value in module.family.defaults.items() if DEFAULT_WIDTH.fullmatch(name)}
    names = {*defaults, USUAL_WIDTH}
    if not defaults or any(positive_integers(module.section.get(name)) for name in names):
        return
    if sizes.head_dim in list_numbers(stored.fields, HEAD_DIM):  # then the weights confirm the number
        return
    widths: list[int] = []
    for value in defaults.values():
        widths += positive_integers(value)
    if {sizes.d_model / 2**stage for stage in range(STAGES)}.isdisjoint(widths):
        with_heads = [name for name in module.section if isinstance(name, str) and "head" in name]
        seen = ", ".join(with_heads[:SHOWN]) or "no field with head in its name"
        fields = [name for name in module.family.defaults if list_numbers({name: 1}, HEADS)]
        raise CorruptCheckpointError(
            "config.json does not state the number of attention heads in a field that "
            f"{module.model_type!r:.40} uses, expected {' or '.join(fields)}, found {seen:.200}; add the field, or "
            "give another config.json",
            subject=module.name,
        )


# Latent attention, and vectors


def _measure_latent(stored: StoredModule, layout: LatentLayout, heads: int) -> Sizes:
    """The sizes of a module with multi-head latent attention; see `LatentLayout`."""
    name = stored.module.name
    nope, rope, value = (stored.fields.get(field) for field in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    if not (isinstance(nope, int) and isinstance(rope, int) and isinstance(value, int)):
        raise CorruptCheckpointError("config.json lacks qk_nope_head_dim, qk_rope_head_dim or v_head_dim")
    if "q_a" in stored.tensors and "q" in stored.tensors:
        raise CorruptCheckpointError(
            f"{name} has both {stored.tensors['q']} and {stored.tensors['q_a']}, expected one of them; "
            "remove the one that the model does not use"
        )
    queries = ("q_a", "q_b", "q_norm") if "q_a" in stored.tensors else ("q",)
    for role in ("kv_norm", *queries):
        if role not in stored.tensors:
            raise CorruptCheckpointError(f"{join(name, getattr(layout, role))} is missing")
    rank = math.prod(stored.shape("kv_norm"))
    rows, width = stored.out_in("kv_a")
    if rows == rank:  # some layers have no rotary embeddings
        nope += rope
        rope = 0
    head_dim = nope + rope
    expected: dict[str, tuple[int, ...]] = {"kv_a": (rank + rope, width), "q": (heads * head_dim, width)}
    expected["kv_b"] = (heads * rank, nope) if layout.keys_alone else (heads * (nope + value), rank)
    if "q_a" in stored.tensors:
        query_rank, _ = stored.out_in("q_a")
        expected |= {"q_a": (query_rank, width), "q_b": (heads * head_dim, query_rank), "q_norm": (query_rank,)}
    for role, shape in expected.items():
        if role in stored.tensors and stored.shape(role) != shape:
            raise ShapeError(f"{stored.tensors[role]} is {list(stored.shape(role))}, expected {list(shape)}")
    return Sizes(heads, heads, head_dim, width, width)


def _check_vectors(stored: StoredModule, sizes: Sizes) -> None:
    """Raise ShapeError if a bias or a gain does not fit the projection that it belongs to."""
    heads = sizes.heads
    key_heads = sizes.key_heads
    head_dim = sizes.head_dim
    for role, name in stored.tensors.items():
        if role == "o_norm" or (not role.endswith(VECTORS) and "_gain" not in role):
            continue
        shape = stored.shape(role)
        fits = True
        if role in ("pre_norm", "pre_norm_bias"):
            fits = shape == (sizes.d_model,)
        elif role == "q_scale":
            fits = shape == (head_dim,)
        elif "_gain" in role:
            of_all_heads = head_dim * (heads if role.startswith("q") else key_heads)
            fits = math.prod(shape) in (head_dim, of_all_heads)
        elif role in ("q_bias", "k_bias"):
            fits = len(shape) == 1 and shape[0] % head_dim == 0
        if not fits:
            raise ShapeError(
                f"{name} is {list(shape)}, which does not match {heads} heads and {key_heads} "
                f"key heads with head_dim {head_dim} and an input width of {sizes.d_model}"
            )
