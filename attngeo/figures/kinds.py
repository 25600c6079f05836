"""The kinds of figures as data: the one table that `attngeo.plot`, its command and recipes read.

A new kind is a function, DataFrames and options → Figure, and one more `FigureSpec` in `FIGURES`. The table imports
neither pandas nor plotly: a function is imported when it is first called.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from attngeo.errors import UsageError
from attngeo.figures.options import LOSS, PlotOptions
from attngeo.figures.palette import DASHES
from attngeo.scores.spec import score_names

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# What a figure can be drawn from. scores: rows of `attngeo.score` with all heads. summary: rows of `summarise`, made of
# them. published: rows of `published_scores`. matrix: the two tables of `query_key_matrix`. curves: rows of
# `curves.parquet` or `geometry.parquet`. analogies: rows of `attngeo.analogy`. explanations: rows of `explain`.
# methods: rows of `attngeo tabular simulate` or `auto-mpg`. cells, encodings: tables of an `AttentionClassifier`; the
# latter also of a saved model. weights: rows of `attngeo efa attention`. vectors, places: rows of
# `attngeo.estimators.efa.views`;
# the former also of a saved model. errors: rows of `attngeo efa run`.
FrameName = Literal[
    "scores", "summary", "published", "matrix", "curves", "analogies", "explanations", "methods", "cells", "encodings",
    "weights", "vectors", "places", "errors",
]  # fmt: skip
Draw = Callable[..., "Figure"]


@dataclass(frozen=True, kw_only=True)
class FigureSpec:
    """One kind of figure.

    description: what it shows, as a noun phrase; {score} stands for the score. frames: the tables that `draw` takes, in
    this order. columns: those that the rows which are read must have, besides the score's own. options: the fields of
    PlotOptions that it uses. draw: called as draw(*tables, options=options). draws_loss: whether `score` may be "loss".
    most_models: a report draws more models than this one by one, with a menu; None draws them all at once.
    """

    name: str
    description: str
    frames: tuple[FrameName, ...]
    columns: tuple[str, ...] = ()
    options: tuple[str, ...]
    draw: Draw
    draws_loss: bool = False
    most_models: int | None = None

    def describe(self, score: str = "score") -> str:
        """What it shows, in words, with the name of a score in it."""
        return self.description.format(score=score)

    @property
    def scores(self) -> tuple[str, ...]:
        """What the option `score` may be."""
        if "score" not in self.options:
            return ()
        return (*score_names(), LOSS) if self.draws_loss else score_names()

    def required_columns(self, options: PlotOptions) -> tuple[str, ...]:
        """The columns that the rows which are read must have, the drawn score's among them."""
        return (*self.columns, options.score) if "score" in self.options else self.columns

    def check_given(self, names: Collection[str]) -> None:
        """Raise UsageError if one of these options, which a user gave, has no effect on this kind."""
        for name in names:
            if name not in self.options:
                raise UsageError(f"{name} is not an option of {self.name}, expected some of: {', '.join(self.options)}")


def import_later(name: str) -> Draw:
    """The function "module:function", imported when it is first called."""

    def draw(*tables: Any, options: PlotOptions) -> Figure:
        figure: Figure = pkgutil.resolve_name(name)(*tables, options=options)
        return figure

    return draw


SCORE_COLUMNS = ("model", "stack", "layer", "head")

FIGURES: dict[str, FigureSpec] = {
    spec.name: spec
    for spec in (
        FigureSpec(
            name="heatmap",
            description="{score} of every layer and head, as a map of layers × heads",
            frames=("scores",),
            columns=SCORE_COLUMNS,
            options=("score", "stack", "where"),
            draw=import_later("attngeo.figures.scores:draw_heatmap"),
            most_models=1,
        ),
        FigureSpec(
            name="layers",
            description="{score} against the layer, with quartiles over heads",
            frames=("scores",),
            columns=SCORE_COLUMNS,
            options=("score", "stack", "where"),
            draw=import_later("attngeo.figures.scores:draw_layers"),
            most_models=len(DASHES),
        ),
        FigureSpec(
            name="heads",
            description="symmetry against directionality, one point for each head",
            frames=("scores",),
            columns=(*SCORE_COLUMNS, "symmetry", "directionality"),
            options=("stack", "where"),
            draw=import_later("attngeo.figures.scores:draw_heads"),
            most_models=1,
        ),
        FigureSpec(
            name="size",
            description="median {score} against the number of parameters, with the published models (Fig. 2)",
            frames=("summary", "published"),
            columns=SCORE_COLUMNS,
            options=("score", "stack", "where", "published"),
            draw=import_later("attngeo.figures.sizes:draw_sizes"),
        ),
        FigureSpec(
            name="matrix",
            description="entries of one W_qk, with the norms of its rows and columns",
            frames=("matrix",),
            options=("layer", "head", "stack"),
            draw=import_later("attngeo.figures.matrix:draw_matrix"),
        ),
        FigureSpec(
            name="training",
            description="{score} against the training step (Fig. 3, S5)",
            frames=("curves",),
            columns=("step", "stack", "layer", "head"),
            options=("score", "where"),
            draw=import_later("attngeo.figures.training:draw_training"),
            draws_loss=True,
        ),
        FigureSpec(
            name="training-layers",
            description="{score} of each layer against the training step (Fig. 3, S5)",
            frames=("curves",),
            columns=("step", "stack", "layer", "head"),
            options=("score", "where"),
            draw=import_later("attngeo.figures.training:draw_training_layers"),
        ),
        FigureSpec(
            name="analogies",
            description="accuracy at word analogies, with confidence intervals",
            frames=("analogies",),
            columns=(
                "model", "level", "name", "asked", "known", "accuracy", "accuracy_low", "accuracy_high", "questions",
            ),
            options=("where",),
            draw=import_later("attngeo.figures.analogies:draw_analogies"),
        ),
        FigureSpec(
            name="paraphrases",
            description="paraphrase errors of word analogies against their cosine errors (analogy --explain)",
            frames=("explanations",),
            columns=(
                "model", "a", "b", "c", "answer", "cosine_error", "rho", "sigma", "sigma_star", "delta", "xi",
                "zeta_spread",
            ),
            options=("where",),
            draw=import_later("attngeo.figures.paraphrases:draw_paraphrases"),
        ),
        FigureSpec(
            name="shift",
            description="accuracy of methods on tables against the shift of the test rows, with intervals",
            frames=("methods",),
            columns=("method", "seed", "accuracy"),
            options=("where", "published"),
            draw=import_later("attngeo.figures.tabular:draw_shift"),
        ),
        FigureSpec(
            name="row-attention",
            description="attention of the cells of a table's row on each other",
            frames=("cells",),
            columns=("cell", "on", "head", "attention"),
            options=("where",),
            draw=import_later("attngeo.figures.tabular:draw_row_attention"),
        ),
        FigureSpec(
            name="encodings",
            description="encodings of the categories of a table in two dimensions",
            frames=("encodings",),
            columns=("column", "value", "x", "y"),
            options=("where",),
            draw=import_later("attngeo.figures.tabular:draw_encodings"),
        ),
        FigureSpec(
            name="test-errors",
            description="test errors of exponential family attention, factor models and baselines, with intervals",
            frames=("errors",),
            columns=("experiment", "model", "direction", "setting", "metric", "value"),
            options=("where", "published"),
            draw=import_later("attngeo.figures.experiments:draw_test_errors"),
        ),
        FigureSpec(
            name="item-attention",
            description="attention of the items of a sequence on each other, layer by layer",
            frames=("weights",),
            columns=("sequence", "layer", "position", "other_position", "weight"),
            options=("where",),
            draw=import_later("attngeo.figures.items:draw_item_attention"),
        ),
        FigureSpec(
            name="item-vectors",
            description="queries, keys and values of items in each head of the first layer",
            frames=("vectors",),
            columns=("item", "vector", "head", "number", "value"),
            options=("where",),
            draw=import_later("attngeo.figures.items:draw_item_vectors"),
        ),
        FigureSpec(
            name="place-attention",
            description="attention of one place on others, on a map of longitude and latitude",
            frames=("places",),
            columns=("place", "other", "latitude", "longitude", "layer", "weight"),
            options=("where",),
            draw=import_later("attngeo.figures.places:draw_place_attention"),
        ),
    )
}  # fmt: skip
