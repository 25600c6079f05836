"""One W_qk for a picture: reduced in size, with the norms of its rows and columns."""

from __future__ import annotations

from contextlib import closing
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.opening import open_store
from attngeo.checkpoints.store import TensorStore
from attngeo.choices import whole
from attngeo.errors import CheckpointError, UsageError
from attngeo.geometry.forms import Form, form_statistics, largest_entries, layer_factors
from attngeo.geometry.scores import check_choices, is_outlier, outlier_threshold
from attngeo.layouts.layout import AttentionSite
from attngeo.options import takes
from attngeo.scores.weights import key_heads_of, projections, read, select, sites_of

# Squares along an edge; a screen cannot show more.
MOST_CELLS = 384


class QueryKeyMatrix(NamedTuple):
    """A reduced W_qk.

    cells: the largest |entry| of each square of W_qk; rows and columns are named after the first of the square. norms:
    one row for each row and column of W_qk, with the columns axis ("row" or "column"), index, norm and outlier.
    """

    cells: pd.DataFrame
    norms: pd.DataFrame


class MatrixKeywords(HubAccess):
    """The keywords of `query_key_matrix`."""

    hub: HubAccess | None = None
    layer: int = 0
    head: int | None = None
    stack: str | None = None
    gamma: float = 2.0
    cells: int = MOST_CELLS


@takes(MatrixKeywords)
def query_key_matrix(
    model: Any,
    layer: int = 0,
    *,
    head: int | None = None,
    stack: str | None = None,
    gamma: float = 2.0,
    cells: int = MOST_CELLS,
    hub: HubAccess,
) -> QueryKeyMatrix:
    """W_qk of one layer, or of one of its heads, small enough to be drawn.

    model, stack: as for `attngeo.score`; the default is the first stack. gamma: a row or column is an outlier
    if its norm exceeds mean + gamma·std of the norms; directionality sums the outliers. cells: the largest number of
    squares along an edge.
    {hub}

    The `attrs` of both tables say which matrix it is.
    Raises ModelUnavailableError and CheckpointError; UsageError for a layer or head that does not exist, or no cells.

    >>> cells, norms = query_key_matrix("demo:minilm", layer=2, cells=100)
    >>> cells.shape, int(norms.outlier.sum())
    ((96, 96), 57)
    """
    check_choices(gamma, "corrected")
    cells = whole("cells", cells, 1)
    with closing(open_store(model, hub)) as store, torch.inference_mode():
        sites, _ = sites_of(store)
        site = select(sites, stack or sites[0].stack, [layer], store.ref)[0]
        if head is not None and not 0 <= head < site.heads:
            raise UsageError(f"{store.ref} has no head {head} in layer {layer}, expected from 0 to {site.heads - 1}")
        q, k = _read_factors(store, site, head)
    edge = -(-q.shape[1] // cells)
    about: dict[Any, Any] = {
        "model": store.ref, "stack": site.stack, "layer": layer, "head": head, "gamma": gamma, "edge": edge,
    }  # fmt: skip
    firsts = range(0, q.shape[1], edge)
    shown = pd.DataFrame(largest_entries(q, k, edge).float().numpy(), index=firsts, columns=firsts)
    norms = _measure_norms(q, k, gamma)
    shown.attrs = norms.attrs = about
    return QueryKeyMatrix(shown, norms)


def _read_factors(store: TensorStore, site: AttentionSite, head: int | None) -> tuple[Tensor, Tensor]:
    """The factors q and k, [rank, d_model] each, of a head or of the whole layer. Raises CheckpointError."""
    q, k, _ = projections(site, read(store, site), dtype=torch.float64, ref=store.ref)
    if q.shape[-1] != k.shape[-1]:
        raise CheckpointError(
            f"{store.ref}: {site.module}: W_qk is not square, expected queries and keys of the same input width"
        )
    key_head = key_heads_of(site, "corrected")
    q, k = layer_factors(Form(q, k, list(enumerate(key_head)))) if head is None else (q[head], k[key_head[head]])
    if not (q.isfinite().all() and k.isfinite().all()):
        raise CheckpointError(f"{store.ref}: {site.module} has NaN or Inf in its query or key weights")
    return q, k


def _measure_norms(q: Tensor, k: Tensor, gamma: float) -> pd.DataFrame:
    """The norm of each row and each column."""
    statistics = form_statistics(q, k)
    parts = [
        pd.DataFrame({"axis": axis, "index": range(len(norms)), "norm": norms,
                      "outlier": is_outlier(norms, outlier_threshold(norms, gamma)).numpy()})
        for axis, norms in (("row", statistics.row_norms), ("column", statistics.column_norms))
    ]  # fmt: skip
    return pd.concat(parts, ignore_index=True)
