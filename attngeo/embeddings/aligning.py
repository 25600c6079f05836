"""Which coordinate of one model's stream is which of another's: columns of token embeddings, assigned to each other.

Embeddings of strangers resemble each other as well, since they serve the same function: assigned columns make them more
similar than any permutation. So chance is what is found of a stream whose coordinates mean nothing: the other stream is
turned by random rotations, and its columns are assigned anew. But a turned stream has no coordinates that are larger
than others, and strangers may have such that are assigned to each other. So chance is, too, what is found if the signs
of the assigned coordinates are drawn at random, which leaves the size of each as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from attngeo.checkpoints.store import TensorStore, float_shape
from attngeo.embeddings.opening import find_table
from attngeo.errors import about
from attngeo.geometry.spectra import to_float64

# Rows that are read of each table. The first tokens of a vocabulary are the commonest ones.
MOST_TABLE_ROWS = 16384


class Alignment(NamedTuple):
    """The directions of the other model that match some coordinates of a stream.

    Attributes:
        kept: the coordinates, [count].
        bases: as columns, one direction per coordinate: first coordinates of the unchanged other stream, then of that
            stream rotated at random, then the first ones with random signs, [1 + 2·turns, width, count].
        rows: number of compared rows of the tables.
    """

    kept: Tensor
    bases: Tensor
    rows: int


def align_streams(
    store: TensorStore, other: TensorStore, keep: Callable[[int], Tensor], turns: int, seed: int
) -> Alignment | None:
    """Assign the columns of two tables of token embeddings, so that the sum of their cosines is largest.

    Reads the first rows, as many as both tables have, at most MOST_TABLE_ROWS. Finds only a permutation, no rotation.

    Args:
        store: one model.
        other: the model whose stream is turned.
        keep: the coordinates to keep of a stream of this width.
        turns: number of random rotations, and of draws of signs.
        seed: seed of the rotations and the signs.

    Returns:
        The alignment; None if the tables have different widths.

    Raises:
        UnsupportedModelError: a model has no token embeddings.
    """
    tables = (store, other)
    names = []
    shapes = []
    for opened in tables:
        with about(opened.ref):
            names.append(find_table(opened, "input")[0])
            shapes.append(float_shape(opened, names[-1]))
    width = shapes[0][1]
    if shapes[1][1] != width:
        return None
    rows = min(shapes[0][0], shapes[1][0], MOST_TABLE_ROWS)
    ours, theirs = (_read_rows(opened, name, rows) for opened, name in zip(tables, names, strict=True))
    products = to_float64(torch.nn.functional.normalize(ours, dim=0).T @ theirs)
    gram = to_float64(theirs.T @ theirs)
    kept = keep(width)
    generator = torch.Generator().manual_seed(seed)
    bases = []
    for turn in range(1 + turns):
        basis = _draw_rotation(width, generator) if turn else torch.eye(width, dtype=torch.float64)
        lengths = (basis * (gram @ basis)).sum(0).clamp(min=0).sqrt()
        cosines = (products @ basis / lengths).nan_to_num(nan=0, posinf=0, neginf=0)
        _, order = linear_sum_assignment(cosines.numpy(), maximize=True)
        bases.append(basis[:, torch.from_numpy(order)[kept]])
    signs = torch.randint(0, 2, (turns, len(kept)), generator=generator) * 2 - 1
    flipped = bases[0] * signs[:, None]
    return Alignment(kept, torch.cat([torch.stack(bases), flipped]), rows)


def _read_rows(store: TensorStore, name: str, rows: int) -> Tensor:
    """The first rows of a table, without what is not finite."""
    with about(store.ref):
        store.open([name])
        return store.read(name, slice(0, rows)).float().nan_to_num(nan=0, posinf=0, neginf=0)


def _draw_rotation(width: int, generator: torch.Generator) -> Tensor:
    """A random orthogonal matrix."""
    drawn = torch.randn(width, width, generator=generator, dtype=torch.float64)
    rotation: Tensor = torch.linalg.qr(drawn).Q
    return rotation
