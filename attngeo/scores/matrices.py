"""W_qk as matrices: one of them small enough to be drawn, and the rows and columns that are outliers of many.

A row of W_qk belongs to an input dimension of the queries, a column to one of the keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from attngeo.attention.finding import select
from attngeo.attention.opened import Attention
from attngeo.attention.options import ReadingOptions
from attngeo.attention.projections import require_outputs
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.reference import Model
from attngeo.choices import PARTS_OF, OneCircuit, real, whole
from attngeo.errors import CheckpointError, UnsupportedModelError, UsageError, about
from attngeo.geometry.forms import Form, form_statistics, largest_entries, layer_form, output_forms, rescale_form
from attngeo.geometry.scores import is_outlier, norms_and_thresholds
from attngeo.geometry.spectra import number_bands, random_edge, singular_values
from attngeo.keywords import takes
from attngeo.session import Session

# Squares along an edge; a screen cannot show more.
MOST_CELLS = 384
AXES = ("row", "column")


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
    model: Model,
    layer: int = 0,
    *,
    head: int | None = None,
    stack: str | None = None,
    gamma: float = 2.0,
    cells: int = MOST_CELLS,
    hub: HubAccess,
) -> QueryKeyMatrix:
    """W_qk of one layer, or of one of its heads, reduced to a size that can be drawn.

    Args:
        model: as for `attngeo.score`.
        layer: number of the layer in its stack.
        head: number of a query head; by default the sum over all heads.
        stack: name of the stack; by default the first one.
        gamma: a row or column is an outlier if its norm exceeds mean + gamma·std of the norms; directionality sums the
            outliers.
        cells: the largest number of squares along an edge.
        hub: access to the Hub; its fields are keywords, too:
            {hub}

    Returns:
        The squares, and the norms of rows and columns. The `attrs` of both tables say which matrix it is.

    Raises:
        ModelUnavailableError: the model cannot be found or reached.
        CheckpointError: the model cannot be read or scored.
        UsageError: there is no such layer or head, or a number is outside its limits.

    >>> cells, norms = query_key_matrix("demo:minilm", layer=2, cells=100)
    >>> cells.shape, int(norms.outlier.sum())
    ((96, 96), 57)
    """
    gamma = real("gamma", gamma, 0)
    cells = whole("cells", cells, 1)
    form, attrs = _read_form(model, layer, head, stack, "qk", hub)
    d_model = form.left.shape[2]
    edge = -(-d_model // cells)
    attrs |= {"gamma": gamma, "edge": edge}
    firsts = range(0, d_model, edge)
    largest = largest_entries(form.left[0], form.right[0], edge)
    shown = pd.DataFrame(largest.float().numpy(), index=firsts, columns=firsts)
    norms = _measure_norms(form, gamma)
    shown.attrs = norms.attrs = attrs
    return QueryKeyMatrix(shown, norms)


def _read_form(
    model: Model, layer: int, head: int | None, stack: str | None, circuit: OneCircuit, hub: HubAccess
) -> tuple[Form, dict[Any, Any]]:
    """The form of one head, or of the whole layer, in float64, and the names of its place.

    Raises what opening a model raises, CheckpointError and UsageError.
    """
    options = ReadingOptions(device="cpu", precision="float64")
    opened = Attention.open(model, options, Session(hub=hub), parts=PARTS_OF[circuit])
    with opened as attention, about(attention.ref), torch.inference_mode():
        site = select(attention.sites, stack or attention.sites[0].stack, [layer], attention.ref)[0]
        if head is not None and not 0 <= head < site.heads:
            expected = f"expected 0 to {site.heads - 1}"
            raise UsageError(f"{attention.ref} has no head {head} in layer {layer}, {expected}")
        require_outputs(site)
        forms = attention.read_site(site)
    key_heads = forms.key_heads
    if forms.output is None:
        assert forms.query_key is not None
        left, right, _ = forms.query_key
        needed = "query or key"
    else:
        left, right, _, _ = forms.output
        needed = "value or output"
    if left.shape[-1] != right.shape[-1]:
        raise CheckpointError(
            f"its matrix is {left.shape[-1]} × {right.shape[-1]}, expected a square one; choose another stack",
            subject=site.module,
        )
    if circuit == "qk":
        heads = Form(left, right, key_heads)
        of_layer = layer_form(heads)
    else:
        heads, of_layer = output_forms(left, right, key_heads)
    form = of_layer if head is None else Form(heads.left[[head]], heads.right[[heads.key_heads[head]]], [0])
    if not (form.left.isfinite().all() and form.right.isfinite().all()):
        raise CheckpointError(f"{site.module} has NaN or Inf in its {needed} weights")
    return form, {"model": attention.ref, "stack": site.stack, "layer": layer, "head": head, "circuit": circuit}


def measure_spectrum(
    model: Model,
    session: Session = Session(),
    *,
    layer: int = 0,
    head: int | None = None,
    stack: str | None = None,
    circuit: OneCircuit = "qk",
) -> pd.DataFrame:
    """The singular values of a matrix of one layer, or of one of its heads, in bands.

    The values of a band are each within 5% of the one before: a small change of the weights mixes their directions.

    Args:
        model: as for `attngeo.score`.
        session: access to the Hub.
        layer: number of the layer in its stack.
        head: number of a query head; by default the sum over all heads.
        stack: name of the stack; by default the first one.
        circuit: W_qk, or Wv·Wo (ov).

    Returns:
        One row for each singular value that may be above 0, the largest first: number, from 1; value; and band, the
        number of its band, from 1. A value within 5% of the one before is in the same band. The `attrs` say which
        matrix it is, its `frobenius_norm`, and the `edge`, see `attngeo.geometry.spectra.random_edge`.

    Raises:
        ModelUnavailableError: the model cannot be found or reached.
        CheckpointError: it cannot be read or scored.
        UsageError: there is no such layer or head.

    >>> spectrum = measure_spectrum("demo:minilm", layer=2, head=5)
    >>> len(spectrum), int(spectrum["band"].max())
    (32, 5)
    """
    form, attrs = _read_form(model, layer, head, stack, circuit, session.hub)
    _, rank, d_model = form.left.shape
    values = singular_values(form.left, form.right)[0]
    bands = number_bands(values).numpy()
    spectrum = pd.DataFrame({"number": range(1, len(values) + 1), "value": values.numpy(), "band": bands})
    norm = float(values.norm())
    spectrum.attrs = {**attrs, "frobenius_norm": norm, "edge": random_edge(norm, rank, d_model)}
    return spectrum


def _measure_norms(form: Form, gamma: float) -> pd.DataFrame:
    """The norm of each row and each column of a form of one head."""
    norms, thresholds = norms_and_thresholds(form_statistics(form), gamma)
    outliers = is_outlier(norms, thresholds)
    d_model = norms.shape[-1]
    return pd.DataFrame(
        {
            "axis": ["row"] * d_model + ["column"] * d_model,
            "index": [*range(d_model), *range(d_model)],
            "norm": norms.flatten().numpy(),
            "outlier": outliers.flatten().numpy(),
        }
    )


def count_outliers(
    model: Model, session: Session = Session(), *, stack: str | None = None, gamma: float = 2.0
) -> pd.DataFrame:
    """The number of layers and heads of a stack in which each row and each column of W_qk is an outlier.

    Zero and non-finite matrices have no outliers.

    Args:
        model: as for `attngeo.score`.
        session: access to the Hub and progress.
        stack: name of the stack; by default the first one.
        gamma: a row or column is an outlier if its norm exceeds mean + gamma·std of the norms.

    Returns:
        One row per row or column of W_qk that is an outlier in a layer or head, the most frequent first:

            model, stack
            axis                "row" or "column"
            index               its number, from 0
            layers, heads       number of layers and heads in which it is an outlier
            layers_chance       how many rows (columns) would be outliers in as many layers or more if each layer had
                                its own outliers at random places
            heads_chance        the same for heads

        Its `attrs` have the numbers of all layers, heads and dimensions: of_layers, of_heads, d_model; and gamma.

    Raises:
        ModelUnavailableError: the model cannot be found or reached.
        CheckpointError: it cannot be read or scored.
        UnsupportedModelError: its layers have no dimensions in common, or a matrix is not square.
        UsageError: there is no such stack, or gamma is outside its limits.

    >>> counts = count_outliers("demo:minilm")
    >>> print(counts[["axis", "index", "layers"]].head(2).to_string(index=False))
      axis  index  layers
       row    245       6
    column     94       6
    """
    gamma = real("gamma", gamma, 0)
    of_layers: list[NDArray[np.bool_]] = []  # [2, 1, d_model] each, rows first
    of_heads: list[NDArray[np.bool_]] = []  # [2, heads, d_model]
    options = ReadingOptions(device="cpu")
    with Attention.open(model, options, session) as attention, about(attention.ref), torch.inference_mode():
        sites = select(attention.sites, stack or attention.sites[0].stack, None, attention.ref)
        widths = sorted({site.d_model for site in sites} | {site.key_width for site in sites})
        if len(widths) > 1:
            raise UnsupportedModelError(
                f"stack {sites[0].stack} has queries and keys of {', '.join(map(str, widths))} inputs, expected the "
                "same number in all layers, so that they share rows and columns; choose another stack with $stack",
                "stack",
            )
        for forms in attention.read(sites):
            of_layers.append(_find_outliers(layer_form(forms.form), gamma))
            of_heads.append(_find_outliers(forms.form, gamma))
    outliers = {"layers": np.concatenate(of_layers, 1), "heads": np.concatenate(of_heads, 1)}
    counts = _count_shared(outliers)
    table = counts.assign(model=attention.ref, stack=sites[0].stack)[["model", "stack", *counts.columns]]
    table.attrs = {
        "title": "Outliers that layers and heads share",
        "model": str(attention.ref),
        "gamma": gamma,
        "d_model": widths[0],
        "of_layers": outliers["layers"].shape[1],
        "of_heads": outliers["heads"].shape[1],
    }
    return table


def _count_shared(outliers: dict[str, NDArray[np.bool_]]) -> pd.DataFrame:
    """How many layers and heads share each row and each column that is an outlier, and how many would by chance.

    outliers: of the "layers" and of the "heads", [2, matrices, d_model], rows first.
    """
    d_model = outliers["layers"].shape[2]
    counts = []
    for axis, name in enumerate(AXES):
        frame = pd.DataFrame({"axis": name, "index": range(d_model)})
        for unit, are_outliers in outliers.items():
            of_axis = are_outliers[axis]
            frame[unit] = of_axis.sum(0)
            frame[f"{unit}_chance"] = expect_shared(of_axis.sum(1), d_model)[frame[unit]]
        counts.append(frame[(frame["layers"] > 0) | (frame["heads"] > 0)])
    return pd.concat(counts).sort_values(["layers", "heads"], ascending=False, kind="stable", ignore_index=True)


def _find_outliers(form: Form, gamma: float) -> NDArray[np.bool_]:
    """Which rows and which columns of each head are outliers, [2, heads, d_model]."""
    rescaled, _ = rescale_form(form)
    outliers: NDArray[np.bool_] = is_outlier(*norms_and_thresholds(form_statistics(rescaled), gamma)).numpy()
    return outliers


def expect_shared(outliers: Sequence[int] | NDArray[np.int_], d_model: int) -> NDArray[np.float64]:
    """How many dimensions are expected to be outliers of 0, 1, 2 … or more matrices, whose outliers are anywhere.

    Args:
        outliers: the number of outliers of each matrix.
        d_model: the number of dimensions.

    Returns:
        [matrices + 1]; the first one is `d_model`.

    >>> expect_shared([2, 2], 4).tolist()
    [4.0, 3.0, 1.0]
    """
    chances = np.ones(1)  # of one dimension, by the number of matrices that it is an outlier of
    for count in outliers:
        share = count / d_model
        chances = np.convolve(chances, [1 - share, share])
    expected: NDArray[np.float64] = d_model * chances[::-1].cumsum()[::-1]
    return expected
