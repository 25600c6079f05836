"""The columns that a recipe names, checked before any work: those of every command's results are known in advance."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from attngeo.papers.wibisono2023.tables import ADVANTAGE_COLUMNS, LABELS, METHOD_COLUMNS
from attngeo.reporting.schema import (
    AnalogyRequest,
    AutoMpgRequest,
    EfaRequest,
    PretrainRequest,
    Recipe,
    Request,
    ScoreRequest,
    SimulateRequest,
    TableBlock,
    TheoryRequest,
)
from attngeo.reporting.toml_lines import Place
from attngeo.tables.read import explain_unknown_column


def find_unknown_columns(recipe: Recipe) -> Iterator[tuple[Place, str]]:
    """The place of each column that results cannot have, and what is wrong. Those of a file are known only later."""
    for i, section in enumerate(recipe.section):
        for j, figure in enumerate(section.figures):
            place: Place = ("section", i, "figures", j)
            yield from _check(recipe, (*place, "where"), figure.of, figure.shown.where or {}, named=True)
        for j, table in enumerate(section.tables):
            place = ("section", i, "tables", j)
            yield from _check(recipe, (*place, "where"), table.of, table.where, named=True)
            if table.show == "rows":
                yield from _check(recipe, (*place, "columns"), table.of, table.columns or ())
            else:
                yield from _explain((*place, "columns"), table.columns or (), _columns_shown(recipe, table))


def _check(
    recipe: Recipe, place: Place, of: str | None, columns: Iterable[str], *, named: bool = False
) -> Iterator[tuple[Place, str]]:
    """Whether some results have these columns. named: whether each column is a key of the recipe."""
    request = recipe.find_request(of) if of is not None else None
    known = columns_of(request) if request is not None else None
    if known is not None:
        yield from _explain(place, columns, known, named=named)


def _explain(
    place: Place, columns: Iterable[str], known: Collection[str], *, named: bool = False
) -> Iterator[tuple[Place, str]]:
    for column in columns:
        if column not in known:
            yield (*place, column) if named else place, explain_unknown_column(column, known)


def columns_of(request: Request) -> tuple[str, ...] | None:
    """The columns of the results of a command; None for those of a file."""
    match request:
        case ScoreRequest():
            from attngeo.scores.score import score_columns

            return score_columns()
        case AnalogyRequest():
            from attngeo.analogies.summary import COLUMNS

            return COLUMNS
        case PretrainRequest():
            from attngeo.pretrain.callback import geometry_columns
            from attngeo.pretrain.comparison import RUN_COLUMNS

            return (*RUN_COLUMNS, *geometry_columns())
        case TheoryRequest():
            from attngeo.papers.statements import COLUMNS as THEORY_COLUMNS

            return THEORY_COLUMNS
        case SimulateRequest():
            from attngeo.papers.wibisono2023.tables import SIMULATION_COLUMNS

            return SIMULATION_COLUMNS
        case AutoMpgRequest():
            from attngeo.papers.wibisono2023.tables import AUTO_MPG_COLUMNS

            return AUTO_MPG_COLUMNS
        case EfaRequest():
            from attngeo.papers.wibisono2025.experiments import COLUMNS as EFA_COLUMNS

            return EFA_COLUMNS
    return None


def _columns_shown(recipe: Recipe, table: TableBlock) -> tuple[str, ...]:
    """The columns of what a table shows instead of rows; of a file, all that it may have."""
    from attngeo.reporting.blocks import published_columns, shown_columns

    if table.show in ("summary", "published"):
        return shown_columns() if table.show == "summary" else published_columns()
    request = recipe.find_request(table.of)
    known = None if request is None else columns_of(request)
    labels = [name for name in LABELS if known is None or name in known]
    return (*labels, *(METHOD_COLUMNS if table.show == "methods" else ADVANTAGE_COLUMNS))
