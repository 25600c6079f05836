"""The figures, tables and checks of a recipe, made from its results."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from attngeo.errors import DataError, UsageError
from attngeo.papers.saponati2025.published import published_of, published_scores
from attngeo.papers.wibisono2023.tables import (
    ADVANTAGE_COLUMNS,
    LABELS,
    METHOD_COLUMNS,
    measure_advantage,
    summarise_methods,
)
from attngeo.reporting.answers import Workplace, resolve_reference
from attngeo.reporting.plots import FigureInputs, plot, read_tables
from attngeo.reporting.recipe import Check, FigureBlock, Recipe, TableBlock
from attngeo.reporting.results import CollectedResults
from attngeo.scores.spec import SCORES, score_names
from attngeo.scores.summary import QUARTILES, Condition, Outcome, statistic, summarise
from attngeo.tables.read import explain_unknown_column, filter_rows, list_values, require_columns

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

# Names of the files of tables: what is allowed, and the characters of a name before its number.
FILE_NAME, LONGEST_NAME = r"\w[\w.-]{0,120}", 100
CAPTIONS = {
    "rows": "all rows", "summary": "median and quartiles over layers",
    "published": "medians over layers, measured and published",
    "methods": "mean and standard deviation of each method, and the published mean",
    "advantage": "accuracy of attention above that of the best of the other methods, with the standard error",
}  # fmt: skip


@dataclass(frozen=True)
class ReportFigure:
    """A figure of a report.

    label: what it shows, for readers who do not see it. source: the name of its results, None for a model. variants:
    the name of each model that a reader may choose, and its figure; a single one has the name "".
    """

    label: str
    caption: str
    source: str | None
    variants: list[tuple[str, Figure]]


@dataclass(frozen=True)
class ReportTable:
    """A table of a report. name: that of its files."""

    name: str
    caption: str
    rows: pd.DataFrame


def build_figure(block: FigureBlock, results: CollectedResults, place: Workplace) -> ReportFigure:
    """The figure of a block. Raises what reading a model raises, and DataError or UsageError if the results lack what
    is shown.
    """
    if block.model is not None:
        variants = [("", _draw_model(block, block.model, place))]
    else:
        variants = _draw_variants(block, _select_rows(block, results))
    return ReportFigure(_describe(block), block.caption, block.of, variants)


def _draw_model(block: FigureBlock, model: str, place: Workplace) -> Figure:
    """A figure of one model, which is named as in the recipe instead of by its path on this machine."""
    frames = read_tables(
        FigureInputs(
            given=[resolve_reference(model, place.base)], spec=block.spec, options=block.shown,
            hub=place.hub, progress=place.progress,
        )
    )  # fmt: skip
    for frame in frames:
        frame.attrs = {**frame.attrs, "model": model}
    return block.spec.make(*frames, options=block.shown)


def _draw_variants(block: FigureBlock, rows: pd.DataFrame) -> list[tuple[str, Figure]]:
    """One figure of all models, or one for each if its kind shows no more at once."""
    most, options = block.spec.most_models, block.shown.replace(where=None)  # `rows` are selected already
    models = list(dict.fromkeys(rows["model"])) if "model" in rows else []
    if most is None or len(models) <= most:
        return [("", plot(block.kind, rows, options=options))]
    return [(model, plot(block.kind, rows[rows["model"] == model], options=options)) for model in models]


def _select_rows(block: FigureBlock, results: CollectedResults) -> pd.DataFrame:
    """The rows that a figure shows: those of its models that `where` selects."""
    rows = filter_rows(find_rows(results, str(block.of)), block.shown.where or {}, str(block.of))
    if block.models is None:
        return rows
    rows = require_columns(rows, ("model",), str(block.of), "attngeo.score")
    rows = rows[rows["model"].isin(block.models)]
    if rows.empty:
        raise UsageError(f"{block.of} has no rows of {', '.join(block.models)}")
    return rows


def _describe(block: FigureBlock) -> str:
    """What the figure shows, in words."""
    options = block.shown
    label = SCORES[options.score].label if options.score in SCORES else options.score
    text = block.spec.describe(label)
    text = text[0].upper() + text[1:]
    return f"{text} ({block.model})" if block.model else text


def find_rows(results: CollectedResults, name: str) -> pd.DataFrame:
    """The rows of the results of that name. Raises DataError if all of them are missing."""
    if name not in results.rows:
        raise DataError(f"the results {name} are missing: all of their parts failed")
    return results.rows[name]


def build_table(block: TableBlock, results: CollectedResults, taken: dict[str, pd.DataFrame]) -> ReportTable:
    """The table of a block. Raises DataError, and UsageError for a column or a value that the results lack.

    taken: the tables so far, by the names of their files; the new one is added under a name of its own.
    """
    rows = filter_rows(find_rows(results, block.of), block.where, block.of)
    if block.show == "summary":
        rows = summarise(rows)[list(shown_columns())]
    elif block.show == "published":
        rows = compare_with_published(rows)
    elif block.show == "methods":
        rows = summarise_methods(rows)
    elif block.show == "advantage":
        rows = measure_advantage(rows)
    if block.columns is not None:
        missing = [column for column in block.columns if column not in rows]
        if missing:
            raise UsageError(f"{block.of}: {explain_unknown_column(missing[0], list(rows.columns))}")
        rows = rows[block.columns]
    values = [value for wanted in block.where.values() for value in list_values(wanted)]
    kinds = [block.of, *([] if block.show == "rows" else [block.show]), *values]
    name = "-".join(re.sub(r"[^\w.-]+", "-", kind, flags=re.ASCII).strip("-.") for kind in kinds)
    return ReportTable(_choose_name(name, rows, taken), block.caption or CAPTIONS[block.show], rows)


def _choose_name(name: str, rows: pd.DataFrame, taken: dict[str, pd.DataFrame]) -> str:
    """The name, or the first of name-2, name-3 … that no other table has; the same rows share a name."""
    name = name[:LONGEST_NAME]
    names = (name if number == 1 else f"{name}-{number}" for number in count(1))
    free = next(each for each in names if each not in taken or taken[each].equals(rows))
    taken[free] = rows
    return free


def list_shown_columns(show: str, known: Collection[str] | None) -> tuple[str, ...] | None:
    """The columns of what a table shows. known: those of the results; None if only reading tells them."""
    if show in ("summary", "published"):
        return shown_columns() if show == "summary" else published_columns()
    if show == "rows":
        return None if known is None else tuple(known)
    labels = [name for name in LABELS if known is None or name in known]
    return (*labels, *(METHOD_COLUMNS if show == "methods" else ADVANTAGE_COLUMNS))


def shown_columns() -> tuple[str, ...]:
    """The columns of a summary that a page has room for."""
    spread = (statistic(score, place) for score in score_names() for place in QUARTILES)
    return ("model", "stack", "parameters", "layers", "heads", *spread)


def compare_with_published(rows: pd.DataFrame) -> pd.DataFrame:
    """For each stack of each model: the median of each published score, its published value, and the difference.

    The last column is the known mistake in the published values, empty if there is none.
    """
    scores = _published_score_names()
    table = summarise(rows)[["model", "stack", *(statistic(score, "median") for score in scores)]]
    known = [published_of(model, stack) or {} for model, stack in zip(table["model"], table["stack"], strict=True)]
    for score in scores:
        median, published, difference = _columns_beside(score)
        table[published] = [float(row.get(score, "nan")) for row in known]
        table[difference] = table[median] - table[published]
    return table.assign(erratum=[row.get("erratum", "") for row in known])[list(published_columns())]


def published_columns() -> tuple[str, ...]:
    """The columns of `compare_with_published`, in their order."""
    beside = (column for score in _published_score_names() for column in _columns_beside(score))
    return ("model", "stack", *beside, "erratum")


def _published_score_names() -> list[str]:
    return [score for score in score_names() if score in published_scores()]


def _columns_beside(score: str) -> tuple[str, str, str]:
    """The columns of the median of a score, its published value, and the difference."""
    return statistic(score, "median"), f"{score}_published", f"{score}_difference"


def run_check(check: Check, recipe: Recipe, results: CollectedResults) -> list[Outcome]:
    """The outcome of a check for every stack of its models; a model that is missing fails."""
    request = recipe.find_request(check.of)
    wanted = check.models or ([] if request is None else request.model_names)
    rows = results.rows.get(check.of)
    if rows is None:
        return [Outcome(check.fail_if, model, "", None, {}) for model in wanted]
    found = set(require_columns(rows, ("model",), check.of, "attngeo.score")["model"])
    missing = [Outcome(check.fail_if, model, "", None, {}) for model in wanted if model not in found]
    if check.models is not None:
        rows = rows[rows["model"].isin(check.models)]
    return missing if rows.empty else [*missing, *Condition(check.fail_if).outcomes(summarise(rows))]
