"""Every kind of figure by name: what it is made from, and how."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attngeo.choices import FigureKind, Shown, one_of
from attngeo.errors import DataError, UsageError
from attngeo.progress import Progress
from attngeo.tables.read import filter_rows, is_results, read_results, require_columns

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

SCORE_COLUMNS = ("model", "stack", "layer", "head", "symmetry", "directionality")
CURVE_COLUMNS = ("step", "stack", "layer", "head", "symmetry", "directionality", "loss")
ANALOGY_COLUMNS = ("model", "level", "name", "asked", "known", "accuracy", "accuracy_low", "accuracy_high", "questions")
THE_TABLE = "the table"
Report = Callable[[Progress], None]


@dataclass(frozen=True, kw_only=True)
class View:
    """What of the input is shown. score: which one. layer, head: of `matrix`. published: behind `size`.

    stack: only this one. where: only the rows with these values, column by column.
    """

    score: Shown = "symmetry"
    layer: int = 0
    head: int | None = None
    stack: str | None = None
    published: bool = True
    where: Mapping[str, object] = field(default_factory=dict)


def heatmap(inputs: Sequence[Any], view: View, **how: Any) -> Figure:
    """A score of every layer and head, as a map of layers × heads"""
    from attngeo.figures.scores import heat_map

    return heat_map(_scores(inputs, view, **how), _score(view))


def layers(inputs: Sequence[Any], view: View, **how: Any) -> Figure:
    """A score against the layer, with quartiles over heads"""
    from attngeo.figures.scores import score_by_layer

    return score_by_layer(_scores(inputs, view, **how), _score(view))


def heads(inputs: Sequence[Any], view: View, **how: Any) -> Figure:
    """Symmetry against directionality, a point for each head"""
    from attngeo.figures.scores import symmetry_against_directionality

    rows = _scores(inputs, view, **how)
    if rows["head"].isna().all():
        raise DataError(f"{_named(inputs)} has no rows of heads; write it with attngeo score --per-head")
    return symmetry_against_directionality(rows)


def size(inputs: Sequence[Any], view: View, **how: Any) -> Figure:
    """Median score against the number of parameters, published models behind (Fig. 2)"""
    from attngeo.figures.scores import score_by_size
    from attngeo.scores.published import published_scores
    from attngeo.scores.summary import summarise

    summary = summarise(_scores(inputs, view, **how))
    if summary["parameters"].isna().all():
        raise DataError(
            f"{_named(inputs)} does not say how many parameters the models have; write it anew with attngeo score"
        )
    return score_by_size(summary, _score(view), published_scores() if view.published else None)


def matrix(inputs: Sequence[Any], view: View, *, offline: bool = False, progress: Report | None = None) -> Figure:  # noqa: ARG001
    """|W_qk| of one layer or head of a model, with the norms of its rows and columns"""
    from attngeo.figures.matrix import matrix_map
    from attngeo.scores.matrix import query_key_matrix

    if len(inputs) != 1 or is_results(str(inputs[0])):
        raise UsageError(
            "matrix is drawn from one model, expected a reference such as org/name, a folder or demo:minilm"
        )
    return matrix_map(*query_key_matrix(inputs[0], view.layer, head=view.head, stack=view.stack, offline=offline))


def training(inputs: Sequence[Any], view: View, **how: Any) -> Figure:  # noqa: ARG001 - nothing to download
    """A score or the loss against the training step (Fig. 3, S5)"""
    from attngeo.figures.training import loss_curves, score_curves

    rows = _curves(inputs, view)
    if view.score == "loss":
        if rows["objective"].nunique() > 1:
            there = ", ".join(rows["objective"].unique())
            raise UsageError(f"losses of several objectives have no common scale; choose one of {there} with where")
        return loss_curves(rows)
    return score_curves(rows, view.score)


def training_layers(inputs: Sequence[Any], view: View, **how: Any) -> Figure:  # noqa: ARG001 - nothing to download
    """A score of each layer against the training step (Fig. 3, S5)"""
    from attngeo.figures.training import layer_curves

    return layer_curves(_curves(inputs, view), _score(view))


def analogies(inputs: Sequence[Any], view: View, *, offline: bool = False, progress: Report | None = None) -> Figure:
    """Accuracy at word analogies, with confidence intervals"""
    from attngeo.figures.analogies import analogy_bars

    frames = [
        require_columns(each, ANALOGY_COLUMNS, THE_TABLE, "attngeo.analogy") if hasattr(each, "columns")
        else read_results(each, ANALOGY_COLUMNS, "attngeo analogy -o FILE")
        for each in inputs if hasattr(each, "columns") or is_results(str(each))
    ]  # fmt: skip
    if frames and len(frames) == len(inputs):
        return analogy_bars(filter_rows(_joined(frames), view.where, THE_TABLE))
    if frames:
        raise UsageError(
            "analogies are drawn from files or from models, which are asked together; give one or the other"
        )
    from attngeo.analogies.analogy import analogy

    rows = analogy(list(inputs), offline=offline, progress=progress or (lambda _: None)).scores
    return analogy_bars(filter_rows(rows, view.where, THE_TABLE))


KINDS: Mapping[FigureKind, Callable[..., Figure]] = {
    "heatmap": heatmap, "layers": layers, "heads": heads, "size": size, "matrix": matrix, "training": training,
    "training-layers": training_layers, "analogies": analogies,
}  # fmt: skip


# Which parts of a View each kind looks at, besides where.
USED: Mapping[FigureKind, tuple[str, ...]] = {
    "heatmap": ("score", "stack"), "layers": ("score", "stack"), "heads": ("stack",),
    "size": ("score", "stack", "published"), "matrix": ("layer", "head", "stack"), "training": ("score",),
    "training-layers": ("score",), "analogies": (),
}  # fmt: skip


def plot(
    kind: FigureKind,
    inputs: Any,
    *,
    view: View = View(),
    offline: bool = False,
    progress: Report | None = None,
) -> Figure:
    """A figure of one of the `KINDS`, from files of results, from models, or from both.

    inputs: one or several of: a file that `attngeo score`, `analogy` or `pretrain` wrote, a model's reference, a model
    in memory, a DataFrame of results. offline: use the Hub's cache only. progress: called while models are read.
    Raises UsageError for an unknown kind, and what reading the inputs raises.

    >>> figure = plot("layers", "demo:minilm")
    >>> len(figure.data[-1].x)
    6
    """
    one_of("kind", kind, FigureKind)
    one_of("score", view.score, Shown)
    given = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    if not given:
        raise UsageError("there is nothing to plot, expected a model or a file of results")
    return KINDS[kind](given, view, offline=offline, progress=progress)


def _named(inputs: Sequence[Any]) -> str:
    """The first input as a message names it: a table is not printed."""
    return THE_TABLE if hasattr(inputs[0], "columns") else str(inputs[0])


def _score(view: View) -> Literal["symmetry", "directionality"]:
    if view.score == "loss":
        raise UsageError("score loss is for training, expected symmetry or directionality here")
    return view.score


def _scores(
    inputs: Sequence[Any], view: View, *, offline: bool = False, progress: Report | None = None
) -> pd.DataFrame:
    """Rows of scores: of files as they are, of models with all their heads."""
    from attngeo.scores.scoring import score
    from attngeo.scores.summary import refuse_repeated

    frames = []
    for each in inputs:
        if hasattr(each, "columns"):
            frames.append(require_columns(each, SCORE_COLUMNS, THE_TABLE, "attngeo.score"))
        elif isinstance(each, str | Path) and is_results(str(each)):
            frames.append(read_results(each, SCORE_COLUMNS, "attngeo score -o FILE"))
        else:
            frames.append(score(each, per_head=True, offline=offline, progress=progress))
    rows = filter_rows(_joined(frames), view.where, THE_TABLE)
    refuse_repeated(rows)
    if view.stack is not None:
        stacks = list(rows["stack"].unique())
        if view.stack not in stacks:
            raise UsageError(f"there is no stack {view.stack!r}, expected one of: {', '.join(stacks)}")
        rows = rows[rows["stack"] == view.stack]
    return rows


def _curves(inputs: Sequence[Any], view: View) -> pd.DataFrame:
    """Rows of training curves, of runs and of comparisons."""
    rows = _joined([
        _with_run(require_columns(each, CURVE_COLUMNS, THE_TABLE, "attngeo pretrain"), {})
        if hasattr(each, "columns") else _curves_of(each)
        for each in inputs
    ])  # fmt: skip
    return filter_rows(rows, view.where, THE_TABLE)


def _curves_of(place: Any) -> pd.DataFrame:
    made_by = "attngeo pretrain"
    if not isinstance(place, str | Path):
        raise UsageError(f"training is drawn from a {type(place).__name__}, expected files or folders of {made_by}")
    path = Path(place).expanduser()
    if path.is_dir():
        found = [path / name for name in ("curves.parquet", "geometry.parquet") if (path / name).is_file()]
        if not found:
            raise DataError(f"{path} holds no curves.parquet and no geometry.parquet, expected a folder of {made_by}")
        path = found[0]
    rows = read_results(path, CURVE_COLUMNS, made_by)
    try:
        settings = json.loads((path.parent / "settings.json").read_text("utf-8"))
    except (OSError, ValueError):
        settings = {}
    return _with_run(rows, settings)


def _with_run(rows: pd.DataFrame, settings: Mapping[str, Any]) -> pd.DataFrame:
    """The rows of one run with what tells it from others, where they do not say so themselves."""
    image = settings.get("task") == "image"
    about = {
        "objective": "image" if image else settings.get("objective", "run"),
        "init": settings.get("init", "default"), "seed": settings.get("seed", 0),
    }  # fmt: skip
    return rows.assign(**{name: value for name, value in about.items() if name not in rows})


def _joined(frames: list[pd.DataFrame]) -> pd.DataFrame:
    import pandas as pd

    return frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)
