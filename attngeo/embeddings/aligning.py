"""Which coordinate of one model's stream is which of another's: columns of token embeddings, assigned to each other."""

from __future__ import annotations

from typing import NamedTuple

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from attngeo.checkpoints.store import TensorStore, float_shape
from attngeo.embeddings.opening import find_table
from attngeo.errors import about

# Rows that are read of each table. The first tokens of a vocabulary are the commonest ones.
MOST_ROWS = 16384


class Alignment(NamedTuple):
    """The other model's coordinate for each coordinate of the stream.

    order: [width], each number once. rows: how many rows of the tables were compared.
    """

    order: Tensor
    rows: int


def align_streams(store: TensorStore, other: TensorStore) -> Alignment | None:
    """Assign the columns of two tables of token embeddings, so that the sum of their cosines is largest.

    Reads as many of the first rows as both have, at most MOST_ROWS. Only a permutation is found, no rotation.

    Returns:
        None if the tables are not of one width.

    Raises:
        UnsupportedModelError: a model has no token embeddings.
        MissingPackageError: scipy is not installed.
    """
    tables = (store, other)
    names = []
    shapes = []
    for opened in tables:
        with about(opened.ref):
            names.append(find_table(opened, "input")[0])
            shapes.append(float_shape(opened, names[-1]))
    if shapes[0][1] != shapes[1][1]:
        return None
    rows = min(shapes[0][0], shapes[1][0], MOST_ROWS)
    columns = []
    for opened, name in zip(tables, names, strict=True):
        with about(opened.ref):
            opened.open([name])
            table = opened.read(name, slice(0, rows)).float().nan_to_num(nan=0, posinf=0, neginf=0)
        columns.append(torch.nn.functional.normalize(table, dim=0))
    cosines = columns[0].T @ columns[1]
    _, order = linear_sum_assignment(cosines.numpy(), maximize=True)
    return Alignment(torch.from_numpy(order), rows)
