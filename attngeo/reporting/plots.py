"""`attngeo.plot`: a figure of any kind, from files, folders of runs, models or DataFrames.

Imports nothing heavy until rows are read: missing inputs are refused before.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngeo import estimators
from attngeo.bounds.names import name_type
from attngeo.bounds.small_files import read_small_text
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.local_files import require_model
from attngeo.choices import one_of
from attngeo.embeddings.reference import require_embedding
from attngeo.errors import DataError, UsageError, about, first_line
from attngeo.estimators.efa.options import MADE_BY as EFA, MODEL_PARTS
from attngeo.estimators.shared.paths import require_saved
from attngeo.estimators.tabular.options import MADE_BY as TABULAR
from attngeo.figures.kinds import FIGURES, FigureSize, FigureSpec, PlotOptions
from attngeo.keywords import takes_after_two
from attngeo.progress import Progress, ProgressCallback
from attngeo.questions.asking import ask_all, join_tables
from attngeo.questions.checks import list_numbers
from attngeo.questions.frames import order_frames
from attngeo.questions.question import Question
from attngeo.questions.rows import CIRCUIT, IDENTITY, OTHER_PLACE, name_circuits, refuse_repeated
from attngeo.questions.table import QUESTIONS
from attngeo.scores.spec import SCORES
from attngeo.session import Session
from attngeo.studies.labels import ALL_MODELS, list_named
from attngeo.studies.models import match_models
from attngeo.studies.run import require_all
from attngeo.tables.read import filter_rows, is_results, read_results, require_columns, require_results

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

# How messages call a DataFrame, which has no name.
THE_TABLE = "the table"
# Columns of the experiments on tables that name a setting.
METHOD_SETTING = ("n_c", "noise", "corr")
# The files of a folder of pretrain that hold curves: of a comparison, and of a single run.
CURVE_FILES = ("curves.parquet", "geometry.parquet")


class PlotKeywords(PlotOptions, FigureSize, HubAccess):
    """The keywords of `plot`."""

    options: PlotOptions | None = None
    size: FigureSize | None = None
    hub: HubAccess | None = None
    progress: ProgressCallback | None = None


@takes_after_two(PlotKeywords)
def plot(  # noqa: D417 - the keywords are those of a session
    kind: str, inputs: Any, options: PlotOptions, *, size: FigureSize, session: Session
) -> Figure:
    """A figure of one of the kinds in `attngeo.figures.kinds.FIGURES`.

    The rows from files and DataFrames come before the rows of models. A kind ignores options that it does not use.

    Args:
        kind: name of the kind.
        inputs: one or more of: a results file of `attngeo score`, `analogy` or `pretrain`, a folder of `pretrain`, a
            model reference, a pattern such as org/name@step* or ./checkpoints/*, a model in memory, a DataFrame of
            results.
        options: how it is drawn; its fields are keywords, too:
            {options}
        size: of the files that `attngeo.save_figure` writes; its fields are keywords, too:
            {size}
        hub: access to the Hub; its fields are keywords, too:
            {hub}
        progress: called while models are read.

    Returns:
        A plotly figure; `attngeo.save_figure` writes it to a file.

    Raises:
        UsageError: the kind is unknown, or it cannot show the score.
        DataError: the rows lack the columns or values to draw.
        AttnGeoError: an input cannot be read.

    >>> figure = plot("layers", "demo:minilm")
    >>> len(figure.data[-1].x)
    6
    """
    spec = FIGURES[one_of("kind", kind, FIGURES)]
    if spec.scores:
        one_of("score", options.score, spec.scores)
    sources = expand_inputs(list(inputs) if isinstance(inputs, list | tuple) else [inputs], session.hub)
    if not sources:
        raise UsageError("there is nothing to plot, expected a model or a file of results")
    tables = read_tables(spec, sources, options, session)
    name = name_input(sources[0])
    try:
        with about(name):
            figure = spec.make(*tables, options=options)
        size.resize(figure)
        return figure
    except DataError:
        raise
    except (TypeError, ValueError) as error:  # a text in place of a number
        problem = f"{name} cannot be drawn ({first_line(error)})"
        raise DataError(f"{problem}; expected the columns that {spec.made_by} writes") from error


def expand_inputs(sources: Sequence[Any], hub: HubAccess) -> list[Any]:
    """The inputs with patterns replaced by the models and folders that match, as for `attngeo.score`."""
    expanded: list[Any] = []
    for source in sources:
        is_reference = isinstance(source, str) and not is_table(source)
        expanded += match_models(source, hub) if is_reference else [source]
    return expanded


def name_input(source: Any) -> str:
    """An input, as messages call it; a table is not printed."""
    return THE_TABLE if is_frame(source) else str(source)


def is_frame(source: Any) -> bool:
    """Whether something is a DataFrame; pandas need not be loaded to tell."""
    return hasattr(source, "iloc")


def is_table(source: Any) -> bool:
    """Whether something is a DataFrame or names a file of rows."""
    return is_frame(source) or (isinstance(source, str | Path) and is_results(str(source)))


def read_tables(spec: FigureSpec, sources: Sequence[Any], options: PlotOptions, session: Session) -> list[pd.DataFrame]:
    """The tables that a kind of figure is drawn from: one, but for a matrix; and the published models beside scores.

    Raises UsageError for inputs that this kind cannot be drawn from, and what reading them raises.
    """
    tables = [source for source in sources if is_table(source)]
    others = [source for source in sources if not is_table(source)]
    if spec.source == "matrix":
        if len(sources) != 1 or tables:
            raise UsageError(
                f"{spec.name} requires one model, expected a reference such as org/name, a folder or demo:minilm"
            )
        return _read_matrices(spec, others[0], options, session)
    _require_sources(spec, tables, others, is_single=len(sources) == 1)
    rows = _read_inputs(spec, tables, others, options, session)
    where, of_published = spec.split_where(options)
    all_models = list_named(rows)
    rows = filter_rows(rows, where, THE_TABLE).assign()
    rows.attrs[ALL_MODELS] = all_models
    question = _find_question(spec)
    if question is not None and question.rows is not None:
        identity = [name for name in (*IDENTITY, *OTHER_PLACE) if name in rows]  # rows of layers have no head
        refuse_repeated(rows, identity)
        beside = []
        if spec.beside:
            from attngeo.papers.saponati2025.published import published_scores

            beside.append(filter_rows(published_scores(), of_published, "the table of published models"))
        if options.stack is not None:
            rows = rows[rows["stack"] == one_of("stack", options.stack, rows["stack"].unique())]
        return [name_circuits(rows), *beside]
    if spec.source == "compare":
        refuse_repeated(rows, (*IDENTITY, "other"))
        return [name_circuits(rows)]
    if spec.source == "simulate" and "data" not in rows:
        require_columns(rows, METHOD_SETTING, name_input(sources[0]), "attngeo tabular simulate")
    return [rows]


def _read_matrices(spec: FigureSpec, model: Any, options: PlotOptions, session: Session) -> list[pd.DataFrame]:
    """The tables of a kind that is drawn from the matrices of a model."""
    require_model(model)
    from attngeo.scores.matrices import count_outliers, measure_spectrum, query_key_matrix

    if spec.name == "outliers":
        return [count_outliers(model, session, stack=options.stack)]
    if spec.name == "spectrum":
        spectrum = measure_spectrum(
            model,
            session,
            layer=options.layer,
            head=options.head,
            stack=options.stack,
            circuit=options.circuit,
        )
        return [spectrum]
    matrix = query_key_matrix(model, layer=options.layer, head=options.head, stack=options.stack, hub=session.hub)
    return list(matrix)


def _require_sources(spec: FigureSpec, tables: Sequence[Any], others: Sequence[Any], *, is_single: bool) -> None:
    """Raise what reading the inputs would raise if one is missing, or nothing that this kind is drawn from."""
    for source in tables:
        if not is_frame(source):
            require_results(source, spec.made_by)
    for source in others:
        if spec.source == "analogy":
            require_embedding(source)
        elif _find_question(spec) is not None:
            require_model(source)
        elif spec.source == "pretrain":
            require_results(_find_curves(source, spec), spec.made_by)
        elif is_single and spec.from_saved and Path(str(source)).is_dir():
            if spec.source == "encodings":
                require_saved(source, TABULAR)
            else:
                require_saved(source, EFA, ("", *MODEL_PARTS))
        else:
            made_by = spec.made_by
            if spec.source == "compare":  # a map is of heads
                made_by = made_by.replace(" -o", " --per-head -o")
            raise UsageError(f"{spec.name} cannot be drawn from {source!r:.80}, expected a file written by {made_by}")


def _find_question(spec: FigureSpec) -> Question | None:
    """The question about models whose table a kind is drawn from; None for other tables."""
    question = QUESTIONS.get(spec.source)
    if question is None or len(question.subjects) > 1:
        return None
    return question if question.rows is not None or question.join is not None else None


def _ask_models(
    question: Question, models: Sequence[Any], scores: Sequence[str], session: Session
) -> list[pd.DataFrame]:
    """The tables of a question about some models. Raises the error of the first one that fails.

    scores: those that are drawn; a question about scores computes the optional ones among them.
    """
    options_class = question.make_options_class()
    chosen: dict[str, Any] = {}
    if "per_head" in options_class.model_fields:
        chosen["per_head"] = True
    if scores and "scores" in options_class.model_fields:
        chosen["scores"] = scores
    asked = options_class(**chosen)
    outcomes = require_all(ask_all(question, models, session, options=asked))
    frames = order_frames([outcome.result for outcome in outcomes if outcome.result is not None])
    tables = join_tables(question, frames, options=asked)
    for note in tables[0].attrs.get("notes", ()):
        session.progress(Progress("note", note))
    return tables


def _read_inputs(
    spec: FigureSpec, tables: Sequence[Any], others: Sequence[Any], options: PlotOptions, session: Session
) -> pd.DataFrame:
    """The rows of tables, and then those of models or folders, which are computed or read."""
    frames = [_read_rows(source, spec, options) for source in tables]
    if tables and others and spec.source == "analogy":
        raise UsageError(
            "files and models cannot be mixed: models are compared on common questions; give only one kind"
        )
    question = _find_question(spec)
    if others and question is not None:
        scores = [name for name in spec.required_columns(options) if name in SCORES]
        frames += _ask_models(question, others, scores, session)
    else:
        for source in others:
            is_training = spec.source == "pretrain"
            read = _read_rows(_find_curves(source, spec), spec, options) if is_training else _read_saved(source, spec)
            frames.append(read)
    if len(frames) == 1:
        return frames[0]
    import pandas as pd

    rows = pd.concat(frames, ignore_index=True)
    if CIRCUIT in rows:
        rows[CIRCUIT] = rows[CIRCUIT].fillna("qk")
    return rows


def _read_rows(source: Any, spec: FigureSpec, options: PlotOptions) -> pd.DataFrame:
    """The rows of a file or a DataFrame, with the columns that the kind requires."""
    columns = spec.required_columns(options)
    if is_frame(source):
        rows = require_columns(source, columns, THE_TABLE, spec.made_by.removesuffix(" -o FILE"))
    else:
        rows = read_results(source, columns, spec.made_by, numbers=list_numbers())
    return _name_run(rows, source) if spec.source == "pretrain" else rows


def _find_curves(source: Any, spec: FigureSpec) -> Path:
    """The file of curves in a folder of pretrain."""
    if not isinstance(source, str | Path):
        raise UsageError(
            f"{spec.name} cannot be drawn from {name_type(source)}, expected files or folders written by "
            "attngeo pretrain"
        )
    path = Path(source).expanduser()
    if not path.is_dir():
        return path  # reading it raises that it is no file of results
    curves = [path / name for name in CURVE_FILES if (path / name).is_file()]
    if not curves:
        raise DataError(f"{path} has no {' and no '.join(CURVE_FILES)}, expected a folder written by attngeo pretrain")
    return curves[0]


def _name_run(rows: pd.DataFrame, source: Any) -> pd.DataFrame:
    """The rows of one run with the columns that tell it from others, if they lack them. source: of its curves."""
    try:
        settings = dict(json.loads(read_small_text(Path(source).expanduser().parent / "settings.json")))
    except (OSError, ValueError, TypeError, RecursionError):  # a DataFrame, or the curves of a comparison
        settings = {}
    objective = "image" if settings.get("task") == "image" else settings.get("objective", "run")
    about = {"objective": objective, "init": settings.get("init", "default"), "seed": settings.get("seed", 0)}
    return rows.assign(**{name: value for name, value in about.items() if name not in rows})


def _read_saved(source: Any, spec: FigureSpec) -> pd.DataFrame:
    """The rows of a saved model, the only input of its figure."""
    if spec.source == "encodings":
        from attngeo.estimators.tabular.classifier import TableModel
        from attngeo.estimators.tabular.views import tabulate_encodings

        return tabulate_encodings(TableModel.load(source))
    from attngeo.estimators.efa.views import tabulate_vectors

    return tabulate_vectors(estimators.ExponentialFamilyAttention.load(source))
