"""The figures and tables of a recipe, made from its results."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngeo.checks import Condition, Outcome
from attngeo.errors import DataError
from attngeo.figures.palette import DASHES
from attngeo.plots import KINDS, View, plot
from attngeo.reporting.gathering import Gathered, located
from attngeo.reporting.recipe import Check, FigureBlock, TableBlock
from attngeo.results import chosen

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

# Kinds that show one model at a time, where there are several, and those that show so many of them at once.
ONE_BY_ONE = ("heatmap", "heads")
MOST_AT_ONCE = len(DASHES)
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


def drawn(block: FigureBlock, found: Gathered, base: Path, *, offline: bool) -> Drawn | None:
    """The figure of a block; None where its results could not be had."""
    view = View(score=block.score, layer=block.layer, head=block.head, stack=block.stack, published=block.published)
    if block.kind == "matrix":
        figure = plot("matrix", located(str(block.model), base), view=view, offline=offline)
        return Drawn(_label(block), block.caption, None, [("", figure)])
    rows = found.rows.get(str(block.of))
    if rows is None:
        return None
    rows = chosen(rows, block.where, str(block.of))
    if block.models is not None:
        rows = rows[rows["model"].isin(block.models)]
    if rows.empty:
        return None
    models = list(dict.fromkeys(rows["model"])) if "model" in rows else []
    if len(models) > (1 if block.kind in ONE_BY_ONE else MOST_AT_ONCE) and block.kind in (*ONE_BY_ONE, "layers"):
        variants = [(model, plot(block.kind, rows[rows["model"] == model], view=view)) for model in models]
    else:
        variants = [("", plot(block.kind, rows, view=view))]
    return Drawn(_label(block), block.caption, block.of, variants)


def _label(block: FigureBlock) -> str:
    """What the figure shows, in words, for who does not see it."""
    what = str(KINDS[block.kind].__doc__).splitlines()[0]
    if block.kind not in ("heads", "matrix", "analogies"):
        what = f"{block.score.capitalize()}: {what[0].lower()}{what[1:]}"
    return what + (f" ({block.model})" if block.model else "")


def tabled(block: TableBlock, found: Gathered) -> Tabled | None:
    """The table of a block; None where its results could not be had."""
    rows = found.rows.get(block.of)
    if rows is None:
        return None
    rows = chosen(rows, block.where, block.of)
    kinds = [block.of, *([] if block.show == "rows" else [block.show]), *(str(value) for value in block.where.values())]
    name = "-".join(re.sub(r"[^\w.-]+", "-", kind).strip("-.") for kind in kinds)
    if block.show == "summary":
        rows = _summary(rows)
    elif block.show == "published":
        rows = beside_published(rows)
    if block.columns is not None:
        missing = [column for column in block.columns if column not in rows]
        if missing:
            there = ", ".join(map(str, rows.columns))
            raise DataError(f"the table of {name} has no column {missing[0]!r}, expected some of: {there}")
        rows = rows[block.columns]
    return Tabled(name, block.caption or CAPTIONS[block.show], rows)


def _summary(rows: pd.DataFrame) -> pd.DataFrame:
    from attngeo.summaries import summarise

    return summarise(rows)[list(SUMMARY)]


def beside_published(rows: pd.DataFrame) -> pd.DataFrame:
    """The median scores of each stack of each model, those that were published for it, and the difference.

    The last column is what is known to be wrong with the published ones.
    """
    from attngeo.published import published_of
    from attngeo.summaries import summarise

    table = summarise(rows)[["model", "stack", "symmetry_median", "directionality_median"]]
    known = [published_of(model, stack) or {} for model, stack in zip(table["model"], table["stack"], strict=True)]
    for score in ("symmetry", "directionality"):
        table[f"{score}_published"] = [float(row.get(score, "nan")) for row in known]
        table[f"{score}_difference"] = table[f"{score}_median"] - table[f"{score}_published"]
    return table.assign(erratum=[row.get("erratum", "") for row in known])[["model", "stack", *BESIDE, "erratum"]]


def outcomes(checks: list[Check], found: Gathered) -> list[Outcome]:
    """What every check says of every stack of its models."""
    from attngeo.summaries import summarise

    said: list[Outcome] = []
    for check in checks:
        rows: Any = found.rows.get(check.of)
        if rows is None:
            continue
        if check.models is not None:
            rows = rows[rows["model"].isin(check.models)]
        said += Condition(check.fail_if).outcomes(summarise(rows))
    return said
