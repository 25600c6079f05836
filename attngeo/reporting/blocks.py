"""The figures and tables of a recipe, made from its results."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngeo.errors import DataError
from attngeo.figures.matrix import matrix_map
from attngeo.figures.palette import DASHES
from attngeo.reporting.gathering import Gathered, located
from attngeo.reporting.plots import KINDS, View, plot
from attngeo.reporting.recipe import Check, FigureBlock, Recipe, TableBlock
from attngeo.scores.conditions import Condition, Outcome
from attngeo.scores.matrix import query_key_matrix
from attngeo.tables.read import filter_rows, require_columns

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

# Kinds that show one model at a time, where there are several, and those that show so many of them at once.
ONE_BY_ONE = ("heatmap", "heads")
MOST_AT_ONCE = len(DASHES)
# Names of the files of tables.
FILE_NAME, LONGEST_NAME = r"\w[\w.-]{0,120}", 100
SUMMARY = ("model", "stack", "parameters", "layers", "heads", "symmetry_lower", "symmetry_median", "symmetry_upper",
           "directionality_lower", "directionality_median", "directionality_upper")  # fmt: skip
BESIDE = ("symmetry_median", "symmetry_published", "symmetry_difference", "directionality_median",
          "directionality_published", "directionality_difference")  # fmt: skip

CAPTIONS = {
    "rows": "all rows", "summary": "median and quartiles over layers",
    "published": "medians over layers, measured and published",
}  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """A figure, or one for each of several models to choose from. label: what it shows. of: the results it is from."""

    label: str
    caption: str
    of: str | None
    variants: list[tuple[str, Figure]]


@dataclass(frozen=True)
class Tabled:
    """A table, and the name of its files."""

    name: str
    caption: str
    rows: pd.DataFrame


def drawn(block: FigureBlock, found: Gathered, base: Path, *, offline: bool) -> Drawn:
    """The figure of a block. Raises what reading a model raises, and DataError where the results lack what is shown."""
    view = View(score=block.score, layer=block.layer, head=block.head, stack=block.stack, published=block.published)
    if block.kind == "matrix":
        model = str(block.model)
        shown = query_key_matrix(located(model, base), block.layer, head=block.head, stack=block.stack, offline=offline)
        shown.cells.attrs["model"] = model  # by the recipe's name for it, not by where it lies on this machine
        return Drawn(_label(block), block.caption, None, [("", matrix_map(*shown))])
    rows = filter_rows(_rows(found, str(block.of)), block.where, str(block.of))
    if block.models is not None:
        rows = require_columns(rows, ("model",), str(block.of), "attngeo.score")
        rows = rows[rows["model"].isin(block.models)]
    if rows.empty:
        raise DataError(f"{block.of} has nothing of {', '.join(block.models or ())}")
    models = list(dict.fromkeys(rows["model"])) if "model" in rows else []
    if len(models) > (1 if block.kind in ONE_BY_ONE else MOST_AT_ONCE) and block.kind in (*ONE_BY_ONE, "layers"):
        variants = [(model, plot(block.kind, rows[rows["model"] == model], view=view)) for model in models]
    else:
        variants = [("", plot(block.kind, rows, view=view))]
    return Drawn(_label(block), block.caption, block.of, variants)


def _label(block: FigureBlock) -> str:
    """What the figure shows, in words, for who does not see it."""
    what = str(KINDS[block.kind].__doc__).splitlines()[0]
    what = what.replace("A score or the loss", block.score.capitalize()).replace("A score", block.score.capitalize())
    what = what.replace("Median score", f"Median {block.score}")
    return what + (f" ({block.model})" if block.model else "")


def _rows(found: Gathered, of: str) -> pd.DataFrame:
    """The rows of the results of that name. Raises DataError where none could be had."""
    if of not in found.rows:
        raise DataError(f"nothing of {of} could be had")
    return found.rows[of]


def tabled(block: TableBlock, found: Gathered, taken: dict[str, pd.DataFrame]) -> Tabled:
    """The table of a block, under a name of its own; taken: the tables so far. Raises DataError."""
    rows = filter_rows(_rows(found, block.of), block.where, block.of)
    if block.show == "summary":
        rows = _summary(rows)
    elif block.show == "published":
        rows = beside_published(rows)
    if block.columns is not None:
        missing = [column for column in block.columns if column not in rows]
        if missing:
            there = ", ".join(map(str, rows.columns))
            raise DataError(f"the table of {block.of} has no column {missing[0]!r}, expected some of: {there}")
        rows = rows[block.columns]
    kinds = [block.of, *([] if block.show == "rows" else [block.show]), *map(str, block.where.values())]
    name = _free("-".join(re.sub(r"[^\w.-]+", "-", kind, flags=re.ASCII).strip("-.") for kind in kinds), rows, taken)
    return Tabled(name, block.caption or CAPTIONS[block.show], rows)


def _free(name: str, rows: pd.DataFrame, taken: dict[str, pd.DataFrame]) -> str:
    """The name, or the first of name-2, name-3 … that no other table has."""
    name = name[:LONGEST_NAME]
    names = (name if number == 1 else f"{name}-{number}" for number in count(1))
    free = next(each for each in names if each not in taken or taken[each].equals(rows))
    taken[free] = rows
    return free


def _summary(rows: pd.DataFrame) -> pd.DataFrame:
    from attngeo.scores.summary import summarise

    return summarise(rows)[list(SUMMARY)]


def beside_published(rows: pd.DataFrame) -> pd.DataFrame:
    """The median scores of each stack of each model, those that were published for it, and the difference.

    The last column is what is known to be wrong with the published ones.
    """
    from attngeo.scores.published import published_of
    from attngeo.scores.summary import summarise

    table = summarise(rows)[["model", "stack", "symmetry_median", "directionality_median"]]
    known = [published_of(model, stack) or {} for model, stack in zip(table["model"], table["stack"], strict=True)]
    for score in ("symmetry", "directionality"):
        table[f"{score}_published"] = [float(row.get(score, "nan")) for row in known]
        table[f"{score}_difference"] = table[f"{score}_median"] - table[f"{score}_published"]
    return table.assign(erratum=[row.get("erratum", "") for row in known])[["model", "stack", *BESIDE, "erratum"]]


def outcomes(check: Check, recipe: Recipe, found: Gathered) -> list[Outcome]:
    """What a check says of every stack of its models; a model that could not be had fails."""
    from attngeo.scores.summary import summarise

    rows: Any = found.rows.get(check.of)
    there = set() if rows is None else set(require_columns(rows, ("model",), check.of, "attngeo.score")["model"])
    wanted = check.models if check.models is not None else recipe.models_of(check.of)
    said = [Outcome(check.fail_if, model, "", None, {}) for model in wanted if model not in there]
    if check.models is not None and rows is not None:
        rows = rows[rows["model"].isin(check.models)]
    return said if rows is None or rows.empty else [*said, *Condition(check.fail_if).outcomes(summarise(rows))]
