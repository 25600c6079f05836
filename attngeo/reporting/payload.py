"""Figures as bytes in a page: JSON with the long arrays taken out, compressed together.

Scores of heat maps are kept as whole thousandths, which is what a picture and a hover show; all else as it is.
"""

from __future__ import annotations

import base64
import gzip
import json
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Arrays shorter than this stay in the JSON.
SHORT = 16
THOUSANDTHS, LARGEST, MISSING = 1000, 32, -(2**15)
# numpy's kinds, as the page's script names them. Whole numbers of 64 bits have no array in a browser.
KINDS = {"float32": "f4", "float64": "f8", "int8": "i1", "uint8": "u1", "int16": "i2", "int32": "i4"}


class Payload:
    """Figures that are added one by one; `encoded` is all of them as base64 text of gzip."""

    def __init__(self) -> None:
        self._figures: list[Any] = []
        self._arrays: list[bytes] = []
        self._size = 0

    def add(self, figure: Figure) -> int:
        """Add a figure; its number."""
        content = figure.to_plotly_json()
        content["layout"].pop("template", None)  # the page's own script gives it the page's colours
        for trace in content["data"]:
            if trace["type"] == "heatmap" and "coloraxis" in trace:
                scores = np.asarray(_array_of(trace["z"]), dtype=float)
                trace["z"] = self._thousandths(scores) if not (abs(scores) > LARGEST).any() else scores
        self._figures.append(self._taken_out(content))
        return len(self._figures) - 1

    def encoded(self) -> str:
        """A header of 8 bytes, the length of the JSON; the JSON; the arrays from the next multiple of 8 on."""
        text = json.dumps(self._figures, separators=(",", ":"), allow_nan=False).encode()
        text += b" " * (-len(text) % 8)
        return compressed(len(text).to_bytes(8, "little") + text + b"".join(self._arrays))

    def _taken_out(self, content: Any) -> Any:
        """The content with every long array of numbers replaced by where it is."""
        if isinstance(content, dict):
            if "bdata" in content:  # plotly's own base64 of an array
                return self._taken_out(_array_of(content))
            return {key: self._taken_out(value) for key, value in content.items()}
        if hasattr(content, "to_numpy") or isinstance(content, np.ndarray):
            array = np.asarray(content)
            numbers = array.dtype.kind in "iuf"
            if not numbers or array.size < SHORT or array.ndim > 2:
                return self._taken_out(array.tolist())
            return self._placed(array)
        if isinstance(content, list | tuple):
            return [self._taken_out(value) for value in content]
        if isinstance(content, float) and not np.isfinite(content):
            return None
        return content.item() if isinstance(content, np.generic) else content

    def _thousandths(self, scores: np.ndarray) -> Any:
        whole = np.where(np.isnan(scores), MISSING, np.round(scores * THOUSANDTHS)).astype("int16")
        return {**self._placed(whole), "scale": 1 / THOUSANDTHS, "missing": MISSING}

    def _placed(self, array: np.ndarray) -> dict[str, Any]:
        if array.dtype.name not in KINDS:
            array = array.astype(_kind_for(array))
        content = np.ascontiguousarray(array).tobytes()
        where = {"at": self._size, "kind": KINDS[array.dtype.name], "shape": list(array.shape)}
        content += b"\0" * (-len(content) % 8)
        self._arrays.append(content)
        self._size += len(content)
        return where


def _kind_for(array: np.ndarray) -> str:
    """A kind that a browser has and that holds every value: whole numbers past 32 bits are exact to 2^53 as floats."""
    if array.dtype.kind == "f":
        return "float32"
    limits = np.iinfo("int32")
    return "int32" if array.min() >= limits.min and array.max() <= limits.max else "float64"


def compressed(content: bytes) -> str:
    """Base64 text of gzip; the same for the same content."""
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


def _array_of(packed: Any) -> Any:
    """Plotly's base64 of an array as the array; anything else as it is."""
    if not isinstance(packed, dict) or "bdata" not in packed:
        return packed
    array = np.frombuffer(base64.b64decode(packed["bdata"]), dtype=packed["dtype"])
    shape = [int(size) for size in str(packed["shape"]).split(",")] if "shape" in packed else [-1]
    return array.reshape(shape)
