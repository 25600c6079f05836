"""query_key_matrix against the matrix itself."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.messages import refuses

import attngeo
from attngeo.errors import CheckpointError, UsageError
from attngeo.geometry.forms import largest_entries
from attngeo.scores.matrices import query_key_matrix

Build = Callable[[str], Any]


def dense(model: Any, layer: int, head: int | None) -> np.ndarray:
    """W_qk itself, from the weights that the library gives, keys repeated for their queries."""
    ((_, wq, wk),) = attngeo.attention_sites(model, layers=[layer])
    wk = wk.repeat_interleave(len(wq) // len(wk), 0)
    products = (wq.double() @ wk.double().mT).numpy()
    return products.sum(0) if head is None else products[head]


@pytest.mark.parametrize(("name", "head"), [("demo:minilm", None), ("demo:minilm", 3), ("llama", None), ("llama", 3)])
def test_cells_norms_and_outliers_are_those_of_the_matrix(name: str, head: int | None, built: Build) -> None:
    model = name if name.startswith("demo") else built(name)
    whole = dense(model, 1, head)
    cells, norms = query_key_matrix(model, layer=1, head=head, cells=7)
    edge = cells.attrs["edge"]
    assert edge == -(-len(whole) // 7)
    for i, row in enumerate(cells.index):
        for j, column in enumerate(cells.columns):
            square = np.abs(whole[row : row + edge, column : column + edge])
            assert cells.iloc[i, j] == pytest.approx(square.max(), rel=1e-5)
    for axis, expected in (("row", np.linalg.norm(whole, axis=1)), ("column", np.linalg.norm(whole, axis=0))):
        own = norms[norms["axis"] == axis]
        assert own["norm"].to_numpy() == pytest.approx(expected, rel=1e-6)
        above = expected / (expected.mean() + 2 * expected.std()) - 1
        assert np.abs(above).min() > 1e-6  # so that the precision of the norms decides nothing
        assert own["outlier"].tolist() == (above > 0).tolist()


def test_the_largest_entries_of_a_matrix_of_many_strips() -> None:
    q, k = torch.randn(2, 3, 2500, generator=torch.Generator().manual_seed(0))
    whole = (q.T @ k).abs()
    squares = torch.nn.functional.pad(whole, (0, 6, 0, 6)).unflatten(1, (358, 7)).unflatten(0, (358, 7))
    # Products of three terms are rounded as the processor adds them.
    torch.testing.assert_close(largest_entries(q, k, 7), squares.amax((1, 3)))


@pytest.mark.parametrize("cells", [0, -1, 1.5, "7", True, None])
def test_a_number_of_cells_that_is_none_is_refused(cells: Any) -> None:
    with refuses(UsageError, "cells is", repr(cells), "expected a whole number"):
        query_key_matrix("demo:minilm", cells=cells)


def test_missing_heads_layers_and_stacks_are_refused(built: Build) -> None:
    with pytest.raises(UsageError, match=r"head 12 .*layer 0.* 11"):
        query_key_matrix("demo:minilm", head=12)
    with pytest.raises(UsageError, match=r"layer 6.* 5"):
        query_key_matrix("demo:minilm", layer=6)
    with pytest.raises(UsageError, match="'cross'"):
        query_key_matrix("demo:minilm", stack="cross")
    model = built("bert")
    name, weights = next(
        (n, p) for n, p in model.named_parameters() if n.endswith("layer.0.attention.self.query.weight")
    )
    kept = weights[0, 0].item()
    try:
        weights.data[0, 0] = float("nan")
        with pytest.raises(CheckpointError, match="NaN or Inf"):
            query_key_matrix(model)
    finally:
        weights.data[0, 0] = kept
    assert name


def test_equal_norms_are_no_outliers(built: Build) -> None:
    """The same rule as in directionality: a norm that rounding alone lifts above the mean is no outlier."""
    model = copy.deepcopy(built("bert")).double()
    query, key = (
        next(p for n, p in model.named_parameters() if n.endswith(f"layer.0.attention.self.{part}.weight"))
        for part in ("query", "key")
    )
    random = torch.randn(*query.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    query.data = torch.linalg.qr(random)[0]
    key.data = query.data.clone()
    _, norms = query_key_matrix(model, layer=0, gamma=0.0)
    assert norms["norm"].max() > norms["norm"].mean()
    assert not norms["outlier"].any()


def test_a_query_head_takes_the_key_head_of_its_group(built: Build) -> None:
    """Head 2 of four over two key heads: the second, where the published pairing would take the first."""
    cells, _ = query_key_matrix(built("llama"), layer=1, head=2)
    assert cells.to_numpy().max() == pytest.approx(np.abs(dense(built("llama"), 1, 2)).max(), rel=1e-5)


def test_cells_that_divide_the_width_are_as_many_as_asked_for() -> None:
    cells, _ = query_key_matrix("demo:minilm", cells=96)
    assert (cells.shape, cells.attrs["edge"]) == ((96, 96), 4)
