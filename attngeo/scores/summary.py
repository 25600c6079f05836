"""From a row for each layer and head to a row for each stack of each model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.errors import DataError
from attngeo.tables.read import require_columns

if TYPE_CHECKING:
    import pandas as pd

SCORES = ("symmetry", "directionality")
NEEDED = ("model", "stack", "layer", "head", *SCORES)
# Of the layers' scores, and of the heads'.
PLACES = {"min": 0.0, "lower": 0.25, "median": 0.5, "upper": 0.75, "max": 1.0}
# Quartiles over whole layers, then the same over heads.
SPREADS = tuple(f"{prefix}{score}_{place}" for prefix in ("", "heads_") for score in SCORES for place in PLACES)
COLUMNS = ("model", "stack", "parameters", "layers", "heads", *SPREADS)


def refuse_repeated(rows: pd.DataFrame) -> None:
    """Raise DataError where a layer or head of a model stands in the rows twice, as of two conventions put together."""
    if (twice := rows.duplicated(["model", "stack", "layer", "head"])).any():
        row = rows[twice].iloc[0]
        raise DataError(
            f"layer {row['layer']} of {row['model']} ({row['stack']}) is there twice, expected each of them once; "
            "give a model once, or choose rows, for example of one note, with where"
        )


def summarise(rows: pd.DataFrame) -> pd.DataFrame:
    """What is typical of each stack of each model: the columns `COLUMNS`, a row each, in the order of the rows.

    rows: of `attngeo.score`; raises DataError where they lack its columns. layers, heads: how many have a score.
    symmetry_median and the like are over whole layers, heads_symmetry_median over heads; lower and upper are quartiles.
    Missing where there is nothing to summarise.
    """
    import pandas as pd

    require_columns(rows, NEEDED, "the table", "attngeo.score")
    refuse_repeated(rows)
    found = []
    for (model, stack), own in rows.groupby(["model", "stack"], sort=False):
        known = list(own["parameters"].dropna()) if "parameters" in own else []
        whole, heads = own[own["head"].isna()], own[own["head"].notna()]
        row = {
            "model": model, "stack": stack, "parameters": known[0] if known else pd.NA,
            "layers": int(whole["symmetry"].count()), "heads": int(heads["symmetry"].count()),
        }  # fmt: skip
        for prefix, some in (("", whole), ("heads_", heads)):
            for score in SCORES:
                row |= {f"{prefix}{score}_{place}": some[score].quantile(share) for place, share in PLACES.items()}
        found.append(row)
    frame = pd.DataFrame(found, columns=list(COLUMNS)).astype({"parameters": "Int64"} | dict.fromkeys(SPREADS, float))
    frame.attrs = {"title": "Attention scores, summarised"}
    return frame
