"""Rows of results as tables: the types of their columns, and how each table was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attngeo.provenance import merge_origins
from attngeo.questions.rows import ABOUT_BOTH, ABOUT_MODEL
from attngeo.studies.results import ResultForm, Row
from attngeo.studies.steps import order_steps

if TYPE_CHECKING:
    import pandas as pd

# What columns of results about models hold; all others hold numbers.
TEXTS = (
    *ABOUT_BOTH, "model_type", "format", "circuit", "stack", "layers", "kind", "objective", "from_route", "to_route",
    "from_stack", "to_stack", "module", "verdict", "token", "target", "attended_token", "level", "name", "questions",
    "form", "note",
)  # fmt: skip
WHOLE = (
    "parameters", "step", "layer", "head", "key_head", "d_model", "head_dim", "peak", "from_layer", "from_head",
    "to_layer", "to_head", "other_layer", "other_head", "from_heads", "to_heads", "token_id", "target_id", "rank",
    "position", "attended_position", "asked", "known", "direction", "last_direction",
)  # fmt: skip
FLAGS = ("related", "above_threshold", "shares_key_head", "is_partner")
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
        else:
            types[name] = "str" if name in TEXTS else "float64"
    return frame.astype(types)


def order_frames(frames: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """The tables of several models, with the checkpoints of one training in the order of their steps."""
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
        merged = merge_origins([_as_of_other(of_one) for of_one in about])
        of_first = {name: about[0].get(name) for name in ABOUT_MODEL}
        rows.attrs = merged | of_first | {"other": merged["model"], "other_revision": merged["revision"]}
    else:
        rows.attrs = merge_origins(about)
    return rows


def _as_of_other(about: Mapping[Any, Any]) -> dict[Any, Any]:
    """How a table about a model and another one was made, under the name and the revision of the other."""
    return {**about, "model": about["other"], "revision": about.get("other_revision")}
