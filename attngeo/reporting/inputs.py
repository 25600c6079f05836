"""From what a user names, files of results, folders of runs, models or DataFrames, to the tables of a figure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attngeo.bounds import read_small_text
from attngeo.checkpoints.access import HubAccess
from attngeo.errors import DataError, UsageError
from attngeo.figures.kinds import FigureSpec, FrameName
from attngeo.figures.options import PlotOptions
from attngeo.progress import ProgressCallback
from attngeo.scores.spec import number_columns
from attngeo.tables.read import filter_rows, is_results, read_results, require_columns

if TYPE_CHECKING:
    import pandas as pd

# How messages call a DataFrame, which has no name.
THE_TABLE = "the table"
# Columns of the experiments on tables that name a setting, and those of numbers.
METHOD_SETTING = ("n_c", "noise", "corr")
METHOD_NUMBERS = ("noise", "corr", "mse", "published_accuracy", "published_mse")
# Columns of numbers of explained analogies.
EXPLANATION_NUMBERS = ("cosine", "cosine_error", "rho", "sigma", "sigma_star", "delta", "xi", "zeta_spread")
# Columns of real numbers of exponential family attention: of weights between rows, vectors, places and errors.
WEIGHT_NUMBERS = ("weight",)
VECTOR_NUMBERS = ("number", "value")
PLACE_NUMBERS = ("latitude", "longitude", "weight")
ERROR_NUMBERS = ("value", "published")
# The files of a folder of pretrain that hold curves: of a comparison, and of a single run.
CURVE_FILES = ("curves.parquet", "geometry.parquet")


@dataclass(frozen=True, kw_only=True)
class FigureInputs:
    """What a figure is drawn from. given: one or several files, references, models in memory or DataFrames."""

    given: Sequence[Any]
    spec: FigureSpec
    options: PlotOptions
    hub: HubAccess
    progress: ProgressCallback

    @property
    def name(self) -> str:
        """The first input, as messages call it; a table is not printed."""
        return THE_TABLE if is_frame(self.given[0]) else str(self.given[0])

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that rows must have."""
        return self.spec.required_columns(self.options)

    def filter(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows that the option `where` selects."""
        return filter_rows(rows, self.options.where or {}, THE_TABLE)


def read_frames(inputs: FigureInputs) -> list[pd.DataFrame]:
    """The tables that a kind of figure is drawn from, in the order of its `frames`.

    Raises UsageError for inputs that this kind cannot be drawn from, and what reading them raises.
    """
    return [frame for name in inputs.spec.frames for frame in READERS[name](inputs)]


def is_frame(given: Any) -> bool:
    """Whether something is a DataFrame; asks without importing pandas."""
    return hasattr(given, "columns")


def _read_scores(inputs: FigureInputs) -> list[pd.DataFrame]:
    """Rows of scores: those of files as they are, those of models with all heads."""
    from attngeo.scores.score import score
    from attngeo.scores.summary import refuse_repeated

    frames = []
    for each in inputs.given:
        if is_frame(each):
            frames.append(require_columns(each, inputs.columns, THE_TABLE, "attngeo.score"))
        elif isinstance(each, str | Path) and is_results(str(each)):
            frames.append(read_results(each, inputs.columns, "attngeo score -o FILE", numbers=number_columns()))
        else:
            frames.append(score(each, per_head=True, hub=inputs.hub, progress=inputs.progress))
    rows = inputs.filter(_join(frames))
    refuse_repeated(rows)
    return [_select_stack(rows, inputs.options.stack)]


def _select_stack(rows: pd.DataFrame, stack: str | None) -> pd.DataFrame:
    if stack is None:
        return rows
    stacks = list(rows["stack"].unique())
    if stack not in stacks:
        raise UsageError(f"there is no stack {stack!r}, expected one of: {', '.join(stacks)}")
    return rows[rows["stack"] == stack]


def _read_summary(inputs: FigureInputs) -> list[pd.DataFrame]:
    from attngeo.scores.summary import summarise

    return [summarise(rows) for rows in _read_scores(inputs)]


def _read_published(_: FigureInputs) -> list[pd.DataFrame]:
    from attngeo.papers.saponati2025.published import published_scores

    return [published_scores()]


def _read_matrix(inputs: FigureInputs) -> list[pd.DataFrame]:
    from attngeo.scores.matrix import query_key_matrix

    given, options = inputs.given, inputs.options
    if len(given) != 1 or is_frame(given[0]) or is_results(str(given[0])):
        raise UsageError(
            f"{inputs.spec.name} requires one model, expected a reference such as org/name, a folder or demo:minilm"
        )
    matrix = query_key_matrix(given[0], layer=options.layer, head=options.head, stack=options.stack, hub=inputs.hub)
    return list(matrix)


def _read_analogies(inputs: FigureInputs) -> list[pd.DataFrame]:
    """Rows of word analogies: from files and tables, or from models, which are evaluated on common questions."""
    frames = [
        require_columns(each, inputs.columns, THE_TABLE, "attngeo.analogy")
        if is_frame(each)
        else read_results(each, inputs.columns, "attngeo analogy -o FILE")
        for each in inputs.given
        if is_frame(each) or is_results(str(each))
    ]
    if frames and len(frames) < len(inputs.given):
        raise UsageError(
            "files and models cannot be mixed: models are compared on common questions; give only one kind"
        )
    if not frames:
        from attngeo.analogies.analogy import analogy

        frames = [analogy(list(inputs.given), hub=inputs.hub, progress=inputs.progress).scores]
    return [inputs.filter(_join(frames))]


def _read_curves(inputs: FigureInputs) -> list[pd.DataFrame]:
    """Rows of training curves, of single runs and of comparisons."""
    frames = []
    for each in inputs.given:
        if is_frame(each):
            frames.append(_name_run(require_columns(each, inputs.columns, THE_TABLE, "attngeo pretrain"), {}))
        else:
            frames.append(_read_run(each, inputs))
    return [inputs.filter(_join(frames))]


def _read_run(place: Any, inputs: FigureInputs) -> pd.DataFrame:
    """The curves of a file, or of a folder of pretrain."""
    if not isinstance(place, str | Path):
        raise UsageError(
            f"{inputs.spec.name} cannot be drawn from a {type(place).__name__}, expected files or folders of "
            "attngeo pretrain"
        )
    path = Path(place).expanduser()
    if path.is_dir():
        found = [path / name for name in CURVE_FILES if (path / name).is_file()]
        if not found:
            raise DataError(f"{path} has no {' and no '.join(CURVE_FILES)}, expected a folder of attngeo pretrain")
        path = found[0]
    rows = read_results(path, inputs.columns, "attngeo pretrain", numbers=number_columns())
    try:
        settings = json.loads(read_small_text(path.parent / "settings.json"))
    except (OSError, ValueError, RecursionError):
        settings = {}
    return _name_run(rows, settings if isinstance(settings, dict) else {})


def _name_run(rows: pd.DataFrame, settings: Mapping[str, Any]) -> pd.DataFrame:
    """The rows of one run with the columns that tell it from others, if they lack them."""
    objective = "image" if settings.get("task") == "image" else settings.get("objective", "run")
    about = {"objective": objective, "init": settings.get("init", "default"), "seed": settings.get("seed", 0)}
    return rows.assign(**{name: value for name, value in about.items() if name not in rows})


def _read_methods(inputs: FigureInputs) -> list[pd.DataFrame]:
    """Rows of the experiments on tables, which name settings or data."""
    (rows,) = _read_rows(inputs, "attngeo tabular simulate -o FILE", METHOD_NUMBERS)
    return [rows if "data" in rows else require_columns(rows, METHOD_SETTING, inputs.name, "attngeo tabular simulate")]


def _read_explanations(inputs: FigureInputs) -> list[pd.DataFrame]:
    return _read_rows(inputs, "attngeo analogy --explain CORPUS -o FILE", EXPLANATION_NUMBERS)


def _read_cells(inputs: FigureInputs) -> list[pd.DataFrame]:
    return _read_rows(inputs, "attngeo tabular predict --attention-output FILE", ("attention",))


def _read_encodings(inputs: FigureInputs) -> list[pd.DataFrame]:
    """Rows of encodings, or those of a model that `attngeo tabular fit --save` wrote."""
    folder = _find_folder(inputs)
    if folder is not None:
        from attngeo.estimators import AttentionClassifier
        from attngeo.estimators.tabular.files import tabulate_encodings

        return [inputs.filter(tabulate_encodings(AttentionClassifier.load(folder)))]
    return _read_rows(inputs, "attngeo tabular fit --encodings-output FILE, or a folder of --save", ("x", "y"))


def _read_weights(inputs: FigureInputs) -> list[pd.DataFrame]:
    return _read_rows(inputs, "attngeo efa attention -o FILE", WEIGHT_NUMBERS)


def _read_vectors(inputs: FigureInputs) -> list[pd.DataFrame]:
    """Rows of vectors, or those of a model that `attngeo efa fit --save` wrote."""
    folder = _find_folder(inputs)
    if folder is not None:
        from attngeo.estimators import ExponentialFamilyAttention
        from attngeo.estimators.efa.views import tabulate_vectors

        return [inputs.filter(tabulate_vectors(ExponentialFamilyAttention.load(folder)))]
    return _read_rows(
        inputs, "attngeo.estimators.efa.views.tabulate_vectors, or a folder of efa fit --save", VECTOR_NUMBERS
    )


def _read_places(inputs: FigureInputs) -> list[pd.DataFrame]:
    return _read_rows(inputs, "attngeo efa attention --places-output FILE", PLACE_NUMBERS)


def _read_errors(inputs: FigureInputs) -> list[pd.DataFrame]:
    return _read_rows(inputs, "attngeo efa run -o FILE", ERROR_NUMBERS)


def _find_folder(inputs: FigureInputs) -> Path | None:
    """The folder of a saved model, if it is what is drawn."""
    given = inputs.given
    if len(given) == 1 and not is_frame(given[0]) and Path(str(given[0])).is_dir():
        return Path(str(given[0]))
    return None


def _read_rows(inputs: FigureInputs, made_by: str, numbers: Sequence[str]) -> list[pd.DataFrame]:
    """Rows of files and tables. numbers: columns of numbers."""
    for each in inputs.given:
        if not (is_frame(each) or (isinstance(each, str | Path) and is_results(str(each)))):
            raise UsageError(f"{inputs.spec.name} cannot be drawn from {each!r:.80}, expected a file of {made_by}")
    frames = [
        require_columns(each, inputs.columns, THE_TABLE, made_by)
        if is_frame(each)
        else read_results(each, inputs.columns, made_by, numbers=numbers)
        for each in inputs.given
    ]
    return [inputs.filter(_join(frames))]


def _join(frames: list[pd.DataFrame]) -> pd.DataFrame:
    import pandas as pd

    return frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)


READERS: dict[FrameName, Callable[[FigureInputs], list[pd.DataFrame]]] = {
    "scores": _read_scores,
    "summary": _read_summary,
    "published": _read_published,
    "matrix": _read_matrix,
    "curves": _read_curves,
    "analogies": _read_analogies,
    "explanations": _read_explanations,
    "methods": _read_methods,
    "cells": _read_cells,
    "encodings": _read_encodings,
    "weights": _read_weights,
    "vectors": _read_vectors,
    "places": _read_places,
    "errors": _read_errors,
}
