"""Figures as text in a page: plotly's own JSON, one figure a line, compressed together.

Plotly writes and reads arrays as base64. The scores of heat maps, which are most of a large page, are whole
thousandths instead: a picture and a hover show no more, and as decimal text they compress to less than half.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

THOUSANDTHS = 1000
# The `meta` of a heat map in thousandths, for the script of the page.
META = {"thousandths": True}


def pack_figures(figures: Iterable[Figure]) -> str:
    """All figures as base64 text of gzip. The same figures give the same text."""
    return compress("\n".join(map(encode_figure, figures)).encode())


def encode_figure(figure: Figure) -> str:
    """A figure as plotly's JSON, in one line, without the template; the page sets the colours."""
    from plotly.io.json import to_json_plotly

    content = figure.to_plotly_json()
    content["layout"].pop("template", None)
    for trace in content["data"]:
        if trace["type"] == "heatmap" and "coloraxis" in trace:
            trace |= {"z": count_thousandths(trace["z"]), "meta": META}
    return str(to_json_plotly(content))


def count_thousandths(scores: Any) -> list[list[int | None]]:
    """Scores as whole thousandths; None for a missing one.

    >>> count_thousandths(np.array([[0.1234, np.nan], [-1.0, 0.0]]))
    [[123, None], [-1000, 0]]
    """
    rounded = np.round(_as_array(scores) * THOUSANDTHS)
    return [[int(value) if np.isfinite(value) else None for value in row] for row in rounded.tolist()]


def compress(content: bytes) -> str:
    """Base64 text of gzip. The same content gives the same text."""
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


def _as_array(values: Any) -> np.ndarray:
    """The array of a trace: plotly keeps it as it is, or as base64 with its type and shape."""
    if not isinstance(values, dict):
        return np.asarray(values, dtype=float)
    shape = [int(size) for size in str(values["shape"]).split(",")]
    return np.frombuffer(base64.b64decode(values["bdata"]), dtype=values["dtype"]).reshape(shape).astype(float)
