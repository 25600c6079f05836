"""`attngeo.plot`: a figure of any kind, from files, folders of runs, models or DataFrames."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attngeo.bounds import read_small_text
from attngeo.checkpoints.access import HubAccess
from attngeo.choices import one_of
from attngeo.errors import DataError, UsageError
from attngeo.figures.kinds import FIGURES, FigureSpec
from attngeo.figures.options import PlotOptions
from attngeo.options import takes_after_two
from attngeo.progress import ProgressCallback, ignore_progress
from attngeo.scores.spec import number_columns
from attngeo.tables.read import filter_rows, is_results, read_results, require_columns

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

# How messages call a DataFrame, which has no name.
THE_TABLE = "the table"
# Columns of the experiments on tables that name a setting.
METHOD_SETTING = ("n_c", "noise", "corr")
# The files of a folder of pretrain that hold curves: of a comparison, and of a single run.
CURVE_FILES = ("curves.parquet", "geometry.parquet")


class PlotKeywords(PlotOptions, HubAccess):
    """The keywords of `plot`."""

    options: PlotOptions | None = None
    hub: HubAccess | None = None
    progress: ProgressCallback | None = None


@takes_after_two(PlotKeywords)
def plot(
    kind: str,
    inputs: Any,
    options: PlotOptions,
    *,
    hub: HubAccess,
    progress: ProgressCallback | None = None,
) -> Figure:
    """Draw a figure of one of the kinds in `attngeo.figures.kinds.FIGURES`.

    inputs: one or several of: a file that `attngeo score`, `analogy` or `pretrain` wrote, a folder of `pretrain`,
    a model's reference, a model in memory, a DataFrame of results.
    {options}
    {hub}
    progress: called while models are read.

    An option that a kind does not use has no effect.
    Raises UsageError for an unknown kind or a score that the kind cannot show, DataError for rows that lack what is
    drawn, and what reading the inputs raises.

    >>> figure = plot("layers", "demo:minilm")
    >>> len(figure.data[-1].x)
    6
    """
    spec = FIGURES[one_of("kind", kind, FIGURES)]
    if spec.scores:
        one_of("score", options.score, spec.scores)
    given = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    if not given:
        raise UsageError("there is nothing to plot, expected a model or a file of results")
    sources = FigureInputs(given=given, spec=spec, options=options, hub=hub, progress=progress or ignore_progress)
    tables = read_tables(sources)
    try:
        return spec.make(*tables, options=options)
    except DataError as error:
        raise DataError(f"{sources.name}: {error}") from None


@dataclass(frozen=True, kw_only=True)
class FigureInputs:
    """What a figure is drawn from. given: one or several files, references, models in memory or DataFrames."""

    given: list[Any]
    spec: FigureSpec
    options: PlotOptions
    hub: HubAccess
    progress: ProgressCallback

    @property
    def name(self) -> str:
        """The first input, as messages call it; a table is not printed."""
        return THE_TABLE if is_frame(self.given[0]) else str(self.given[0])


def is_frame(given: Any) -> bool:
    """Whether something is a DataFrame; asks without importing pandas."""
    return hasattr(given, "columns")


def is_table(given: Any) -> bool:
    """Whether something is a DataFrame or names a file of rows."""
    return is_frame(given) or (isinstance(given, str | Path) and is_results(str(given)))


def read_tables(inputs: FigureInputs) -> list[pd.DataFrame]:
    """The tables that a kind of figure is drawn from: one, but for a matrix.

    Raises UsageError for inputs that this kind cannot be drawn from, and what reading them raises.
    """
    import pandas as pd

    spec, source = inputs.spec, SOURCES[inputs.spec.source]
    others = [given for given in inputs.given if not is_table(given)]
    if not spec.columns:
        return _read_matrix(inputs, others)
    if others and source.open is None:
        raise UsageError(f"{spec.name} cannot be drawn from {others[0]!r:.80}, expected a file of {source.made_by}")
    frames = [
        _read_rows(given, inputs) if is_table(given) else source.open(given, inputs)  # type: ignore[misc]
        for given in inputs.given if is_table(given) or not source.at_once
    ]  # fmt: skip
    if others and source.at_once and source.open is not None:
        if frames:
            raise UsageError(
                "files and models cannot be mixed: models are compared on common questions; give only one kind"
            )
        frames = [source.open(others, inputs)]
    rows = frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)
    rows = filter_rows(rows, inputs.options.where or {}, THE_TABLE)
    return [source.finish(rows, inputs) if source.finish is not None else rows]


def _read_rows(given: Any, inputs: FigureInputs) -> pd.DataFrame:
    """The rows of a file or a DataFrame, with the columns that the kind requires."""
    source, columns = SOURCES[inputs.spec.source], inputs.spec.required_columns(inputs.options)
    if is_frame(given):
        rows: pd.DataFrame = require_columns(given, columns, THE_TABLE, source.made_by.removesuffix(" -o FILE"))
    else:
        rows = read_results(given, columns, source.made_by, numbers=(*number_columns(), *source.numbers))
    return _name_run(rows, given) if inputs.spec.source == "pretrain" else rows


def _score(model: Any, inputs: FigureInputs) -> pd.DataFrame:
    from attngeo.scores.score import score

    return score(model, per_head=True, hub=inputs.hub, progress=inputs.progress)


def _finish_scores(rows: pd.DataFrame, inputs: FigureInputs) -> pd.DataFrame:
    """The rows of the stack that is asked for. Raises UsageError for rows that occur twice."""
    from attngeo.scores.summary import refuse_repeated

    refuse_repeated(rows)
    stack = inputs.options.stack
    if stack is None:
        return rows
    stacks = list(rows["stack"].unique())
    if stack not in stacks:
        raise UsageError(f"there is no stack {stack!r}, expected one of: {', '.join(stacks)}")
    return rows[rows["stack"] == stack]


def _read_matrix(inputs: FigureInputs, models: list[Any]) -> list[pd.DataFrame]:
    from attngeo.scores.matrix import query_key_matrix

    options = inputs.options
    if len(inputs.given) != 1 or not models:
        raise UsageError(
            f"{inputs.spec.name} requires one model, expected a reference such as org/name, a folder or demo:minilm"
        )
    return list(
        query_key_matrix(models[0], layer=options.layer, head=options.head, stack=options.stack, hub=inputs.hub)
    )


def _ask_analogies(models: list[Any], inputs: FigureInputs) -> pd.DataFrame:
    from attngeo.analogies.analogy import analogy

    return analogy(models, hub=inputs.hub, progress=inputs.progress).scores


def _read_run(place: Any, inputs: FigureInputs) -> pd.DataFrame:
    """The curves of a folder of pretrain."""
    if not isinstance(place, str | Path):
        raise UsageError(
            f"{inputs.spec.name} cannot be drawn from a {type(place).__name__}, expected files or folders of "
            "attngeo pretrain"
        )
    path = Path(place).expanduser()
    if not path.is_dir():
        return _read_rows(path, inputs)  # raises that it is no file of results
    curves = [path / name for name in CURVE_FILES if (path / name).is_file()]
    if not curves:
        raise DataError(f"{path} has no {' and no '.join(CURVE_FILES)}, expected a folder of attngeo pretrain")
    return _read_rows(curves[0], inputs)


def _name_run(rows: pd.DataFrame, place: Any) -> pd.DataFrame:
    """The rows of one run with the columns that tell it from others, if they lack them. place: of its curves."""
    settings: Any = {}
    if not is_frame(place):
        try:
            settings = json.loads(read_small_text(Path(place).expanduser().parent / "settings.json"))
        except (OSError, ValueError, RecursionError):
            settings = {}
    settings = settings if isinstance(settings, Mapping) else {}
    objective = "image" if settings.get("task") == "image" else settings.get("objective", "run")
    about = {"objective": objective, "init": settings.get("init", "default"), "seed": settings.get("seed", 0)}
    return rows.assign(**{name: value for name, value in about.items() if name not in rows})


def _finish_methods(rows: pd.DataFrame, inputs: FigureInputs) -> pd.DataFrame:
    """Rows that name settings or data."""
    if "data" in rows:
        return rows
    return require_columns(rows, METHOD_SETTING, inputs.name, "attngeo tabular simulate")


def _find_folder(given: Any, inputs: FigureInputs) -> Path:
    """The folder of a saved model, which is all that is drawn. Raises UsageError."""
    if len(inputs.given) == 1 and Path(str(given)).is_dir():
        return Path(str(given))
    made_by = SOURCES[inputs.spec.source].made_by
    raise UsageError(f"{inputs.spec.name} cannot be drawn from {given!r:.80}, expected a file of {made_by}")


def _read_encodings(given: Any, inputs: FigureInputs) -> pd.DataFrame:
    from attngeo.estimators import AttentionClassifier
    from attngeo.estimators.tabular.files import tabulate_encodings

    return tabulate_encodings(AttentionClassifier.load(_find_folder(given, inputs)))


def _read_vectors(given: Any, inputs: FigureInputs) -> pd.DataFrame:
    from attngeo.estimators import ExponentialFamilyAttention
    from attngeo.estimators.efa.prediction import tabulate_vectors

    return tabulate_vectors(ExponentialFamilyAttention.load(_find_folder(given, inputs)))


class FigureSource(NamedTuple):
    """Where the rows of figures come from.

    made_by: what writes files of them. numbers: columns of numbers, besides those of scores. open: makes rows of what
    is neither a file of rows nor a DataFrame. at_once: whether `open` takes all of them. finish: the last step.
    """

    made_by: str
    numbers: tuple[str, ...] = ()
    open: Callable[[Any, FigureInputs], pd.DataFrame] | None = None
    at_once: bool = False
    finish: Callable[[pd.DataFrame, FigureInputs], pd.DataFrame] | None = None


SOURCES = {
    "score": FigureSource("attngeo score -o FILE", open=_score, finish=_finish_scores),
    "matrix": FigureSource("attngeo score"),
    "pretrain": FigureSource("attngeo pretrain", open=_read_run),
    "analogy": FigureSource("attngeo analogy -o FILE", open=_ask_analogies, at_once=True),
    "explain": FigureSource(
        "attngeo analogy --explain CORPUS -o FILE",
        ("cosine", "cosine_error", "rho", "sigma", "sigma_star", "delta", "xi", "zeta_spread"),
    ),
    "simulate": FigureSource(
        "attngeo tabular simulate -o FILE", ("noise", "corr", "mse", "published_accuracy", "published_mse"),
        finish=_finish_methods,
    ),
    "cells": FigureSource("attngeo tabular predict --attention-output FILE", ("attention",)),
    "encodings": FigureSource(
        "attngeo tabular fit --encodings-output FILE, or a folder of --save", ("x", "y"), open=_read_encodings
    ),
    "efa": FigureSource("attngeo efa run -o FILE", ("value", "published")),
    "weights": FigureSource("attngeo efa attention -o FILE", ("weight",)),
    "vectors": FigureSource(
        "attngeo.estimators.efa.prediction.tabulate_vectors, or a folder of efa fit --save", ("number", "value"),
        open=_read_vectors,
    ),
    "places": FigureSource("attngeo efa attention --places-output FILE", ("latitude", "longitude", "weight")),
}  # fmt: skip
