"""Pairs of layers whose heads are composed: which can compose in a running model, and which cannot."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import combinations, product
from typing import NamedTuple

from attngeo.circuits.compose_options import ComposeOptions
from attngeo.errors import UnsupportedModelError, UsageError
from attngeo.layouts.layout import AttentionSite

# The stack whose output the keys and values of cross-attention read.
ENCODER = "encoder"


class Direction(NamedTuple):
    """Heads of one site that write, and heads of another site that read.

    Attributes:
        writer: number of the writing site, in the list of sites.
        reader: number of the reading site.
        kinds: what the reader reads with: one or more of q, k and v.
        is_possible: whether the reader can receive what is written. If not, the compositions show what trained heads of
            this model have in common without a circuit.
        route: the stacks of the writers and of the readers whose possible pairs these pairs are compared with.
    """

    writer: int
    reader: int
    kinds: tuple[str, ...]
    is_possible: bool
    route: tuple[str, str]


class LayerPair(NamedTuple):
    """Two sites that must be in memory at the same time.

    Attributes:
        a: number of the first site, in the list of sites.
        b: number of the second site; a ≤ b.
        directions: which of them writes, and which reads.
    """

    a: int
    b: int
    directions: tuple[Direction, ...]


def list_pairs(sites: Sequence[AttentionSite], options: ComposeOptions) -> list[LayerPair]:
    """The pairs of layers in each stack, and the pairs of an encoder layer with cross-attention that reads the encoder.

    Raises:
        UnsupportedModelError: no stack has two layers, or the layers of a stack differ in width.
        UsageError: no layer in `from_layers` is before a layer in `to_layers`.
    """
    _require_layers(sites, options)
    by_stack: dict[str, list[int]] = {}
    for number, site in enumerate(sites):
        by_stack.setdefault(site.stack, []).append(number)
    pairs: list[LayerPair] = []
    for stack, numbers in by_stack.items():
        members = [sites[number] for number in numbers]
        require_one_width(stack, [width for site in members for width in (site.d_model, site.output_width)])
        pairs += _list_within(sites, stack, numbers, options.kind)
        if sites[numbers[0]].is_cross:
            pairs += _list_across(sites, by_stack.get(ENCODER, []), numbers, options.kind)
    if not _can_compose(pairs):
        lonely = ", ".join(f"{stack} ({len(numbers)})" for stack, numbers in by_stack.items())
        raise UnsupportedModelError(f"composition needs a stack with two or more layers, got {lonely}")
    chosen = list(_choose(pairs, sites, options))
    if not _can_compose(chosen):
        raise UsageError(
            "no layer in $from_layers is before a layer in $to_layers; heads read only what earlier layers write",
            "from_layers",
            "to_layers",
        )
    return chosen


def _can_compose(pairs: Iterable[LayerPair]) -> bool:
    return any(direction.is_possible for pair in pairs for direction in pair.directions)


def _require_layers(sites: Sequence[AttentionSite], options: ComposeOptions) -> None:
    """Raise UsageError if one of the chosen layers does not exist."""
    present = sorted({site.layer for site in sites})
    for name, layers in (("from_layers", options.from_layers), ("to_layers", options.to_layers)):
        missing = [layer for layer in layers or () if layer not in present]
        if missing:
            raise UsageError(
                f"${name} names layer {missing[0]}, expected layers from {present[0]} to {present[-1]}", name
            )


def require_one_width(stack: str, widths: Iterable[int]) -> None:
    """Raise UnsupportedModelError if heads of a stack that are compared read or write streams of different widths."""
    widths = sorted({*widths})
    if len(widths) > 1:
        raise UnsupportedModelError(
            f"the layers of stack {stack} have widths {', '.join(map(str, widths))}, expected one width: heads of "
            "different layers need one residual stream; choose another stack with $stack",
            "stack",
        )


def _list_within(
    sites: Sequence[AttentionSite], stack: str, numbers: Sequence[int], kinds: Collection[str]
) -> Iterator[LayerPair]:
    """The pairs of layers of one stack."""
    for a, b in combinations(numbers, 2):
        if sites[a].layer != sites[b].layer:
            yield LayerPair(a, b, tuple(_list_directions(a, b, stack, kinds, sites[a].is_cross)))


def _list_across(
    sites: Sequence[AttentionSite], encoder: Sequence[int], cross: Sequence[int], kinds: Collection[str]
) -> Iterator[LayerPair]:
    """The pairs of the layers of an encoder with the cross-attention whose keys and values read its output."""
    from_encoder = tuple(kind for kind in kinds if kind != "q")
    for a, b in product(encoder, cross):
        if from_encoder and sites[a].output_width == sites[b].key_width:
            yield LayerPair(a, b, (Direction(a, b, from_encoder, True, (ENCODER, sites[b].stack)),))


def _list_directions(a: int, b: int, stack: str, kinds: Collection[str], reads_encoder: bool) -> Iterator[Direction]:
    """From the earlier site of a stack to the later one, and back, which is impossible.

    Keys and values of cross-attention do not read what the stack writes: in both directions, these are impossible. They
    are compared with the pairs that lead from the encoder.
    """
    from_stream = tuple(kind for kind in kinds if kind == "q" or not reads_encoder)
    from_encoder = tuple(kind for kind in kinds if kind not in from_stream)
    for writer, reader, is_possible in ((a, b, True), (b, a, False)):
        if from_stream:
            yield Direction(writer, reader, from_stream, is_possible, (stack, stack))
        if from_encoder:
            yield Direction(writer, reader, from_encoder, False, (ENCODER, stack))


def _choose(pairs: Sequence[LayerPair], sites: Sequence[AttentionSite], options: ComposeOptions) -> Iterator[LayerPair]:
    """The pairs with the directions that the chosen layers need.

    Possible ones lead from the layers that write to those that read; impossible ones are among all of these layers.
    """
    chosen = {*(options.from_layers or ()), *(options.to_layers or ())}
    is_all = options.from_layers is None or options.to_layers is None

    def is_needed(direction: Direction) -> bool:
        writer = sites[direction.writer].layer
        reader = sites[direction.reader].layer
        if not direction.is_possible:
            return is_all or (writer in chosen and reader in chosen)
        writes = options.from_layers is None or writer in options.from_layers
        reads = options.to_layers is None or reader in options.to_layers
        return writes and reads

    for pair in pairs:
        directions = tuple(filter(is_needed, pair.directions))
        if directions:
            yield pair._replace(directions=directions)
