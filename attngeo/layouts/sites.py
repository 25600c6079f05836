"""From tensor names and the configuration to the attention sites of a model: their place, tensors and sizes."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, count, takewhile
from typing import Any, NamedTuple

from attngeo.errors import CorruptCheckpointError, ShapeError, UnsupportedModelError
from attngeo.layouts.config import (
    HEAD_DIM,
    HEADS,
    KEY_HEADS,
    MOST_LAYERS,
    HeadConfig,
    Role,
    join,
    list_numbers,
    read_heads,
)
from attngeo.layouts.families import HEAD_NORMS
from attngeo.layouts.layout import (
    LATENT_ROLES,
    AttentionSite,
    HeadNorm,
    LatentLayout,
    Layout,
    Sizes,
    make_sizes,
)
from attngeo.layouts.modules import Module, conditions_hold, find_absent_layers, survey_modules

CROSS = re.compile(
    r"(encoder_attn|encdecattention|cross_?att(entio)?n|encoder_decoder_attention|second_sub_layer)", re.IGNORECASE
)
DECODER = re.compile(r"(^|\.)\w*decoder\w*\.")
ENCODER = re.compile(r"(^|\.)\w*encoder\w*\.")


class _Candidate(NamedTuple):
    """A module that attends, before its sizes are known. tensors: role → name of those that are needed."""

    stack: str
    layer: int
    module: Module
    tensors: dict[str, str]


def find_sites(
    names: Collection[str],
    config: Mapping[str, Any],
    *,
    shape_of: ShapeOf,
    ref: str,
    biases: bool = False,
    input_norms: bool = False,
    parts: str = "qk",
    prepare: Callable[[list[str]], None] = lambda _: None,
) -> tuple[list[AttentionSite], dict[str, str]]:
    """Find the attention sites of a model.

    names: all tensor names. config: config.json. shape_of: gives the shape of a tensor by its name. ref: the model's
    name, for errors. biases, input_norms: whether these tensors are needed besides the weights. parts: the letters of
    the projections to read, q and k among them. `shape_of` is not called for tensors that are not needed, so that their
    files need not be downloaded. prepare: is called once with the names of all that are, before `shape_of`.

    Returns the sites in the order of stack and layer, and what is left out: name pattern → reason.
    Raises UnsupportedModelError if the model has no attention of a known form; ShapeError or CorruptCheckpointError if
    tensors and configuration of a listed family contradict each other, or those of all modules that a rule found.
    """
    names = set(names)
    modules, skipped = survey_modules(names, config, ref)
    candidates, unread = _list_candidates(modules, names, parts)
    if not candidates:
        name, why = next(iter(unread.items()))
        raise UnsupportedModelError(f"{ref}: no attention that can be scored: {name}: {why}")
    for candidate in candidates:
        for role in [*candidate.tensors]:
            if (role.endswith("_bias") and not biases) or (role.startswith("pre_norm") and not input_norms):
                del candidate.tensors[role]
    skipped |= find_absent_layers(modules, names) | unread
    prepare([name for candidate in candidates for name in candidate.tensors.values()])
    sites, errors = [], []
    for stack, layer, module, tensors in candidates:
        try:
            sizes = measure(module, _stated_heads(module, layer, ref), tensors, shape_of, ref)
        except (ShapeError, CorruptCheckpointError) as error:
            if module.family.source and module.certain:
                raise
            # A rule found it. The rest of the model may be what it seems.
            errors.append(error)
            skipped.setdefault(module.template, str(error).removeprefix(f"{ref}: "))
        else:
            sites.append(AttentionSite(
                stack, layer, module.name, module.layout, module.family, module.section, tensors, sizes, module.rule,
                parts, _notes(module, tensors),
            ))  # fmt: skip
    if errors and not sites:
        raise errors[0]
    return sites, dict(sorted(skipped.items()))


def _list_candidates(
    modules: Iterable[Module], names: Collection[str], parts: str
) -> tuple[list[_Candidate], dict[str, str]]:
    """The modules in the order of stack and layer, and those that are left out: name pattern → reason."""
    candidates: list[_Candidate] = []
    unread: dict[str, str] = {}
    for stack, members in _group_by_stack(modules).items():
        for layer, plain in _number_layers(members):
            if reason := _explain_unread(plain, layer):
                unread |= reason
            else:
                module = _recognise_head_norm(plain, names)
                candidates.append(_Candidate(stack, layer, module, _find_tensors(module, names, parts)))
    return candidates, unread


def _explain_unread(module: Module, layer: int) -> dict[str, str]:
    """Why the layer is left out, by the name of its module, or by the pattern of all of these; empty if it is not.

    Layers that follow those of the model only draft further tokens (multi-token prediction). The last layers of some
    models use the keys of an earlier one, and have none of their own.
    """
    names = ("num_hidden_layers", "num_nextn_predict_layers", "num_kv_shared_layers")
    layers, more, shared = (module.section.get(name) for name in names)
    if type(layers) is not int:
        return {}
    if type(more) is int and layers <= layer < layers + more:
        return {module.name: "it drafts further tokens"}
    if type(shared) is int and shared > 0 and layer >= layers - shared:
        return {module.template: f"the last {shared} layers use the keys of earlier ones"}
    return {}


def _recognise_head_norm(module: Module, names: Collection[str]) -> Module:
    """The module with the QK-norm that its tensors are named after, if a rule found it. One with biases is centred."""
    if module.family.source or module.family.head_norm:
        return module
    for q, k in HEAD_NORMS:
        if q in module.family.cross_norm:  # it normalises the input
            continue
        path = join(module.name, q)
        if f"{path}.weight" in names or f"{path}.norms.0.weight" in names:
            norm = HeadNorm(q=q, k=k, centred=f"{path}.bias" in names)
            return replace(module, family=replace(module.family, head_norm=norm))
    return module


def _stated_heads(module: Module, layer: int, ref: str) -> HeadConfig:
    """The heads of the module as its section of the configuration states them, or for this layer in particular."""
    section, by_layer = module.section, module.section.get("per_layer_config")
    if isinstance(by_layer, Mapping):
        fields = by_layer.get(str(layer), by_layer.get(layer))
        section = {**section, **fields} if isinstance(fields, Mapping) else section
    decoder = DECODER.search(module.name) or (module.family.stack == "decoder" and not ENCODER.search(module.name))
    role: Role = "decoder" if decoder else "encoder"
    # The encoder in the name of a cross-attention is where its keys come from.
    words = re.split(r"[._]", CROSS.sub("", module.name).lower())
    return read_heads(
        section, role, defaults=module.family.defaults, stage=_stage(module, section), ref=ref, words=words
    )


def _stage(module: Module, section: Mapping[str, Any]) -> int | None:
    """The stage of a model whose heads differ from stage to stage: the first number in the module's name.

    If the configuration states the number of blocks of each stage, that number counts the blocks of all stages.
    """
    first = module.indices[0] if module.indices else None
    blocks = section.get("blocks_per_stage")
    if first is None or not isinstance(blocks, list) or not all(type(size) is int for size in blocks):
        return first
    return next((stage for stage, end in enumerate(accumulate(blocks)) if first < end), None)


def _group_by_stack(modules: Iterable[Module]) -> dict[str, list[Module]]:
    """The modules by stack. Each pattern of names is one stack; the pattern is added to names that are not unique."""
    by_template: dict[str, list[Module]] = defaultdict(list)
    for module in modules:
        by_template[module.template].append(module)
    by_name: dict[str, list[str]] = defaultdict(list)
    for template, members in by_template.items():
        by_name[_stack_name(members[0])].append(template)
    stacks = {}
    for name, templates in by_name.items():
        for template in templates:
            stacks[name if len(templates) == 1 else f"{name}:{template}"] = by_template[template]
    order = ["encoder", "text", "vision", "audio", "decoder", "cross"]
    return dict(sorted(stacks.items(), key=lambda item: (order.index(item[0]) if item[0] in order else 9, item[0])))


def _stack_name(module: Module) -> str:
    for pattern, stack in module.family.stacks.items():
        if re.search(pattern, module.name):
            return stack
    if CROSS.search(module.name):
        return "cross"
    if module.tower:
        return module.tower
    if module.family.stack not in ("encoder", "decoder"):
        return module.family.stack
    # BERT and similar models become decoders by their configuration alone.
    if DECODER.search(module.name) or module.section.get("is_decoder") is True:
        return "decoder"
    causal = module.family.stack == "decoder" and not module.family.source
    if causal and not module.section.get("is_encoder_decoder"):
        return "decoder"
    return "encoder" if ENCODER.search(module.name) else module.family.stack


def _number_layers(modules: list[Module]) -> list[tuple[int, Module]]:
    """The modules of one stack with their layer numbers.

    A layer's number is the number in its name that varies within the stack. If several vary, it is a running count.
    """
    modules = sorted(modules, key=lambda module: module.indices)
    varying = [i for i, values in enumerate(zip(*(m.indices for m in modules), strict=True)) if len(set(values)) > 1]
    if len(varying) > 1:
        return list(enumerate(modules))
    place = varying[0] if varying else 0
    return [(module.indices[place] if module.indices else 0, module) for module in modules]


def _find_tensors(module: Module, names: Collection[str], parts: str) -> dict[str, str]:
    """Role → name of each tensor that the layout and the family name and the checkpoint has."""
    layout, family = module.layout, module.family
    if isinstance(layout, Layout):
        stored = {letter: layout.holder(letter) for letter in parts}
        fields = {letter: projection.name for letter, projection in stored.items()}
        fields |= {f"{letter}_bias": projection.bias for letter, projection in stored.items()}
        fields["q_scale"] = layout.q_scale
    else:
        fields = {role: getattr(layout, role) for role in LATENT_ROLES}
    wanted = {role: join(module.name, name) for role, name in fields.items() if name}
    raw_bias = join(module.name, "q_bias")
    if wanted.get("q_bias") not in names and raw_bias in names:
        wanted["q_bias"] = raw_bias  # some models give biases to queries and values only
    if family.head_norm is not None:
        for role, norm in (("q_gain", family.head_norm.q), ("k_gain", family.head_norm.k)):
            path = join(module.name, norm)
            wanted[role] = path if path in names else f"{path}.weight"
            per_head = (f"{path}.norms.{head}.weight" for head in count())
            wanted |= {f"{role}.{head}": name for head, name in enumerate(takewhile(names.__contains__, per_head))}
    if conditions_hold(family.pre_norm_when, module.section, family):
        norms = family.cross_norm if CROSS.search(module.name) else ()
        wanted |= _find_pre_norm(module.name, norms or family.pre_norm, names)
    return {role: name for role, name in wanted.items() if name in names}


def _find_pre_norm(module: str, candidates: Sequence[str], names: Collection[str]) -> dict[str, str]:
    """The normalisation in front of the module: the first candidate in it, or in the nearest module around it.

    The search stops at the module's layer: the first enclosing module whose name is a number.
    """
    parts = module.split(".")
    for depth in range(len(parts), -1, -1):
        for candidate in candidates:
            path = join(".".join(parts[:depth]), candidate)
            if f"{path}.weight" in names:
                return {"pre_norm": f"{path}.weight", "pre_norm_bias": f"{path}.bias"}
        if "".join(parts[depth : depth + 1]).isdigit():
            break
    return {}


def _notes(module: Module, tensors: Mapping[str, str]) -> tuple[str, ...]:
    family, notes = module.family, list(module.family.notes)
    if isinstance(module.layout, LatentLayout):
        notes.append("latent attention: low-rank factors multiplied out, latent norm gains folded")
    if any(role.startswith(("q_gain", "k_gain")) for role in tensors):
        notes.append("QK-norm: its gain is folded in, its division is left out")
    if family.shared is not None and (applied := _times_applied(module, *family.shared)) > 1:
        notes.append(f"shared weights, applied {applied} times")
    return tuple(notes)


def _times_applied(module: Module, layers_field: str, groups_field: str) -> int:
    """How many layers use this group of shared weights: layer l uses group int(l / (layers / groups))."""
    section = {**module.family.defaults, **module.section}
    layers, groups = section.get(layers_field), section.get(groups_field, 1)
    if type(layers) is not int or type(groups) is not int or not 1 <= groups <= layers <= MOST_LAYERS:
        return 1
    group = module.indices[0] if module.indices else 0
    return sum(int(layer / (layers / groups)) == group for layer in range(layers))


# Fields that state the width of a stack, and those that only seem to. From stage to stage a width may double.
WIDTH = re.compile(r"hidden|dim|width|embd|embed|d_model|latents|bottleneck|channels")
NO_WIDTH = re.compile(r"^mm_|head|intermediate|ffn|mlp|vocab|layers|position")
STAGES = 6
# Model types of which some layers have more key heads than is stated: as many as query heads, or twice as many.
MORE_KEY_HEADS = ("hunyuan_vl_vision", "mimo_v2_flash")
# Parts between two towers. They have heads of their own.
BRIDGES = ("abstractor", "connector", "perceiver", "projector", "resampler")
# The shape of a tensor, by its name.
ShapeOf = Callable[[str], Sequence[int]]


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
    stated = (
        value if isinstance(value, list) else [value]
        for name, value in module.section.items()
        if isinstance(name, str) and WIDTH.search(name) and not NO_WIDTH.search(name)
    )
    widths = [number for numbers in stated for number in numbers if type(number) is int and number > 0]
    if sizes.widths["q"] in list_numbers({**module.family.defaults, **module.section}, HEAD_DIM) or not widths:
        return
    if not any(sizes.d_model == width << stage for width in widths for stage in range(STAGES)):
        raise ShapeError(
            f"{ref}: {module.name} has an input width of {sizes.d_model}, and config.json states heads for a width of "
            f"{', '.join(map(str, widths[:3]))} only; it does not describe this part"
        )


def _measure_separate(
    module: Module, layout: Layout, stated: HeadConfig, tensors: Mapping[str, str], shape_of: ShapeOf, ref: str
) -> Sizes:
    """The sizes of a module whose heads are slots of stored layers."""
    shapes = {
        letter: _out_in(tensors[letter], shape_of, layout.holder(letter).transposed, ref)
        for letter in "qkvo"
        if letter in tensors
    }
    rows, inputs = ({letter: shape[axis] for letter, shape in shapes.items()} for axis in (0, 1))
    width, key_width = inputs["q"], inputs["k"]
    heads = stated.heads
    key_heads = {"one": 1, "heads": heads}.get(layout.key_heads, stated.key_heads or heads)
    head_dim = stated.head_dim
    slots = make_sizes(heads, key_heads, 1, width, key_width).rows(layout.holder("q").slots)
    if layout.width_from_rows and rows["q"] % slots == 0:
        head_dim = rows["q"] // slots
    if head_dim is None and width % heads == 0:
        head_dim = width // heads
    first = (heads, key_heads, head_dim)
    if head_dim is not None and _fits(layout, sizes := make_sizes(heads, key_heads, head_dim, width, key_width), rows):
        return sizes
    others = dict.fromkeys(_other_sizes(module, first, width))
    fitting = [sizes for other in others if _fits(layout, sizes := make_sizes(*other, width, key_width), rows)]
    as_many = [sizes for sizes in fitting if sizes.counts["q"] == heads]
    for candidates in (as_many, fitting):
        if len(candidates) == 1:
            return candidates[0]
    raise _explain_misfit(module, layout, first, rows, width, tensors, ref)


def _fits(layout: Layout, sizes: Sizes, rows: Mapping[str, int]) -> bool:
    """Whether weights with these numbers of rows, by letter, hold these heads."""
    heads, key_heads = sizes.counts["q"], sizes.counts["k"]
    if heads % key_heads or any(heads % blocks or key_heads % blocks for blocks in _fixed_blocks(layout)):
        return False
    return all(sizes.rows(layout.holder(letter).slots) == count for letter, count in rows.items())


def _fixed_blocks(layout: Layout) -> list[int]:
    return [projection.blocks for projection in layout.projections if isinstance(projection.blocks, int)]


def _other_sizes(module: Module, first: tuple[int, int, int | None], width: int) -> Iterator[tuple[int, int, int]]:
    """Other heads that the configuration states, for layers that differ from the rest of their stack.

    Such layers have fields of their own, for example `global_head_dim`. A number of key heads is none of query heads,
    and what is stated is not derived from the width: the weights would fit heads that the running model does not have.
    Where encoder and decoder have heads of their own, a stated head_dim may be that of the other one.
    """
    section = {**module.family.defaults, **module.section}
    head_dims = [*list_numbers(section, HEAD_DIM), *([first[2]] if first[2] else [])]
    key_heads = [first[1], *list_numbers(section, KEY_HEADS)]
    of_queries = {name: value for name, value in section.items() if not list_numbers({name: value}, KEY_HEADS)}
    query_fields = [name for name, value in of_queries.items() if list_numbers({name: value}, HEADS)]
    states_head_dim = bool(list_numbers(module.section, HEAD_DIM)) and len(query_fields) == 1
    states_key_heads = bool(list_numbers(module.section, KEY_HEADS))
    for heads in (first[0], *list_numbers(of_queries, HEADS)):
        by_width = [width // heads] if width % heads == 0 and not states_head_dim else []
        by_queries = [] if states_key_heads else [heads]
        if section.get("model_type") in MORE_KEY_HEADS:
            by_queries = [heads, 2 * first[1]]
        yield from ((heads, keys, dim) for keys in (*key_heads, *by_queries) for dim in (*head_dims, *by_width))


def _explain_misfit(
    module: Module,
    layout: Layout,
    stated: tuple[int, int, int | None],
    rows: Mapping[str, int],
    width: int,
    tensors: Mapping[str, str],
    ref: str,
) -> ShapeError:
    """The error for weights that hold none of the heads that the configuration states."""
    heads, key_heads, head_dim = stated
    fixed = _fixed_blocks(layout)
    if head_dim is None or heads % key_heads or any(heads % blocks or key_heads % blocks for blocks in fixed):
        into = "".join(f", or into {blocks} blocks" for blocks in fixed if blocks > 1)
        return ShapeError(
            f"{ref}: {module.name}: {heads} heads and {key_heads} key heads divide neither evenly among themselves nor "
            f"an input width of {width}{into}"
        )
    sizes = make_sizes(heads, key_heads, head_dim, width, width)
    slots = {letter: layout.holder(letter).slots for letter in rows}
    letter = next(letter for letter in rows if sizes.rows(slots[letter]) != rows[letter])
    return ShapeError(
        f"{ref}: {tensors[letter]} has an output width of {rows[letter]}, expected {sizes.rows(slots[letter])} "
        f"({slots[letter]}: {heads} heads, {key_heads} key heads, head_dim {head_dim}); config.json and weights do not "
        "belong together, or the weight holds more than queries and keys"
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
    alone = isinstance(module.layout, LatentLayout) and module.layout.keys_alone
    want: dict[str, tuple[int, ...]] = {"kv_a": (rank + rope, width)}
    want["kv_b"] = (heads * rank, nope) if alone else (heads * (nope + value), rank)
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
    return make_sizes(heads, heads, nope + rope, width, width, value)


def _check_vectors(tensors: Mapping[str, str], sizes: Sizes, shape_of: ShapeOf, ref: str) -> None:
    """Raise ShapeError if a bias or a gain does not fit the projection that it belongs to."""
    heads, key_heads, head_dim, width = sizes.counts["q"], sizes.counts["k"], sizes.widths["q"], sizes.d_model
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


def _out_in(name: str, shape_of: ShapeOf, transposed: bool, ref: str) -> tuple[int, int]:
    """Output width and input width of a weight. Raises ShapeError if it is no matrix."""
    shape = tuple(shape_of(name))
    if transposed and len(shape) == 3:
        shape = (shape[0], shape[1] * shape[2])
    if len(shape) != 2 or 0 in shape:
        raise ShapeError(f"{ref}: {name} is {list(shape)}, expected a matrix")
    return (shape[1], shape[0]) if transposed else (shape[0], shape[1])
