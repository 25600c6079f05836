"""Rows of results as tables: the types of their columns, and how each table was made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attngeo.provenance import merge_origins
from attngeo.studies.results import ResultForm, Row
from attngeo.studies.steps import order_steps

if TYPE_CHECKING:
    import pandas as pd

# What columns of results about models hold; all others hold numbers.
TEXTS = (
    "model", "other", "verdict", "revision", "model_type", "format", "circuit", "stack", "layers", "kind",
    "objective", "from_route", "to_route", "from_stack", "to_stack", "note",
)  # fmt: skip
WHOLE = (
    "parameters", "step", "layer", "head", "key_head", "d_model", "head_dim", "peak", "from_layer", "from_head",
    "to_layer", "to_head", "from_heads", "to_heads",
)  # fmt: skip
FLAGS = ("related",)
# The form of the rows that are kept.
KEPT_FORM = ResultForm(texts=TEXTS, whole=WHOLE, about=("made", "model", "device"))


def build_frame(rows: Sequence[Row], columns: Sequence[str]) -> pd.DataFrame:
    """The table of rows, with the types of its columns."""
    import pandas as pd

    return set_types(pd.DataFrame(rows, columns=list(columns)))


def set_types(frame: pd.DataFrame) -> pd.DataFrame:
    """A table whose columns have the types of their names, also where all values are missing."""
    types: dict[Any, Any] = {}
    for name in frame:
        if name in WHOLE:
            types[name] = "Int64"
        elif name in FLAGS:
            types[name] = "boolean"
        elif name not in TEXTS:
            types[name] = "float64"
    return frame.astype(types)


def order_frames(frames: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """The tables of several models, those of the checkpoints of one training in the order of their steps."""
    names = [str(frame.attrs.get("other", frame.attrs.get("model"))) for frame in frames]
    return [frames[place] for place in order_steps(names)]


def join_frames(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The tables of several models as one, see `order_frames`, with their origins; an empty one if there are none.

    Tables about a model and another one differ in the other one.
    """
    import pandas as pd

    if len(frames) == 1:
        return frames[0]
    frames = order_frames(frames)
    rows = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
    about = [frame.attrs for frame in frames]
    if frames and all("other" in of_one for of_one in about):
        merged = merge_origins([{**of_one, "model": of_one["other"]} for of_one in about])
        rows.attrs = merged | {"model": about[0]["model"], "other": merged["model"]}
    else:
        rows.attrs = merge_origins(about)
    return rows
