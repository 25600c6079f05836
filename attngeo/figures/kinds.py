"""The kinds of figures as data, and their options: the one table that `attngeo.plot`, its command and recipes read.

A new kind is a function, DataFrames and options → Figure, and one more entry of `FIGURES`. The table imports neither
pandas nor plotly: a function is imported when it is first called.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from attngeo.choices import OneCircuit
from attngeo.errors import UsageError
from attngeo.figures.fit import remove_title
from attngeo.figures.lengths import is_on_paper, parse_length, to_pixels
from attngeo.figures.names import replace_title
from attngeo.options import DRAWING, Options, option
from attngeo.questions.table import QUESTIONS
from attngeo.scores.spec import SCORES, score_names
from attngeo.studies.labels import label_option, list_named, name_models, resolve_labels

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Not a score, but drawn like one by the kinds that show training.
LOSS = "loss"
# Pixels of a side of a figure, and of its type, at least and at most.
SIDES, TYPE_SIZES = (100, 10_000), (4, 100)
# The height of a figure on paper whose height is not given, as a share of its width.
PAPER_SHAPE = 0.7


def drawable_scores() -> tuple[str, ...]:
    """The valid values of the option `score`: every score, and the loss."""
    return (*SCORES, LOSS)


def parse_where(texts: Any) -> Mapping[str, Any]:
    """Column → its values, of texts such as "layer=2"; a mapping stays as it is. Raises UsageError.

    >>> parse_where(["layer=2", "note=a=b", "layer=3"])
    {'layer': ['2', '3'], 'note': ['a=b']}
    """
    if isinstance(texts, Mapping):
        return texts
    if not isinstance(texts, list | tuple):
        raise UsageError(f"$where is {texts!r:.60}, expected a column and its value, such as {{'layer': 2}}", "where")
    values: dict[str, list[str]] = {}
    for text in texts:
        column, equals, value = text.partition("=") if isinstance(text, str) else ("", "", "")
        if not (column and equals and value):
            raise UsageError(f"$where is {text!r:.60}, expected COLUMN=VALUE", "where")
        values.setdefault(column, []).append(value)
    return values


class PlotOptions(Options):
    """Options of a figure. Raises UsageError for an invalid choice or a value outside its limits."""

    score: str = option(
        "symmetry",
        "Score to draw; the kind training also draws loss",
        panel=DRAWING,
        choices=drawable_scores,
    )
    layer: int = option(0, "Layer of the matrix", panel=DRAWING, metavar="N", least=0)
    head: int | None = option(
        None, "Head of the matrix", panel=DRAWING, metavar="N", shown_default="the whole layer", least=0
    )
    stack: str | None = option(
        None, "Draw only this stack: encoder, decoder, cross, vision …", panel=DRAWING, metavar="NAME"
    )
    circuit: OneCircuit = option(
        "qk", "Matrix of each head: queries with keys (qk), or values with outputs (ov)", panel=DRAWING
    )
    where: Mapping[str, object] | None = option(
        None,
        "Draw only rows with this value; for the kind size, the columns modality, family, role and erratum "
        "select published models",
        panel=DRAWING,
        metavar="COLUMN=VALUE",
        parse=parse_where,
        repeated=True,
    )
    over: Literal["layers", "heads"] = option(
        "layers",
        "Draw each whole layer, or median and quartiles over its heads (training-layers); median and quartiles over "
        "layers or over heads (trajectory); outliers of layers or of heads (outliers)",
        panel=DRAWING,
    )
    published: bool = option(
        True,
        "Show published numbers: the 223 rows (size), results of experiments (shift, test-errors)",
        panel=DRAWING,
        shown_default="published",
    )
    title: str | None = option(
        None,
        "Title of the figure; an empty title also removes the details and their space",
        panel=DRAWING,
        metavar="TEXT",
        shown_default="what it shows",
    )
    label: Mapping[str, str] | None = label_option(DRAWING)
    font_size: float | str | None = option(
        None,
        "Font size of ticks, names and axes: pixels, or points such as 8pt",
        panel=DRAWING,
        metavar="LENGTH",
        shown_default="12 pixels; 9 (6.75pt) in a figure below 700 x 400",
        parse=partial(parse_length, "font_size", *TYPE_SIZES),
    )


class FigureSize(Options):
    """The size of a figure that is written to a file."""

    width: float | str | None = option(
        None,
        "Width of the figure: pixels, or a length on paper such as 3.4in, 8.6cm, 86mm or 245pt",
        panel=DRAWING,
        metavar="LENGTH",
        shown_default="1000; a .html page fills a wider window",
        parse=partial(parse_length, "width", *SIDES),
    )
    height: float | str | None = option(
        None,
        "Height of the figure, like the width; it grows if panels or the legend need more",
        panel=DRAWING,
        metavar="LENGTH",
        shown_default="600 for most kinds; 0.7 times a width given as a length on paper",
        parse=partial(parse_length, "height", *SIDES),
    )

    def resize(self, figure: Figure) -> None:
        """Give a figure this size; omitted values stay."""
        if self.width is not None:
            figure.update_layout(width=to_pixels(self.width))
        if self.height is not None:
            figure.update_layout(height=to_pixels(self.height))
        elif self.width is not None and is_on_paper(self.width):
            figure.update_layout(height=PAPER_SHAPE * to_pixels(self.width))


# The button of plotly's tool bar that sends the data to a cloud. Pages leave it out by a setting, which a figure cannot
# have: where plotly itself shows a figure, as in a notebook, its layout leaves the button out.
UPLOAD = "sendChartToCloud"
# The end of the description of a figure that shows the published models, too.
BESIDE = ", with the published models (Fig. 2)"
# Options of every kind, and of those that show models.
COMMON, OF_MODELS = ("title", "font_size"), ("label",)

# Source of the rows of a figure → the command or function that makes them; of others, it is the command of that name.
SOURCES = {
    "matrix": "attngeo score", "pretrain": "attngeo pretrain", "pairs": "attngeo gradients --pairs-output FILE",
    "explain": "attngeo analogy --explain CORPUS -o FILE",
    "simulate": "attngeo tabular simulate -o FILE", "cells": "attngeo tabular predict --attention-output FILE",
    "encodings": "attngeo.estimators.tabular.tabulate_encodings, or a folder written by tabular fit --save",
    "efa": "attngeo efa run -o FILE", "weights": "attngeo efa attention -o FILE",
    "vectors": "attngeo.estimators.efa.tabulate_vectors, or a folder written by efa fit --save",
    "places": "attngeo efa attention --places-output FILE",
}  # fmt: skip

# Sources whose rows name models by references, besides the questions about models.
NAMING_SOURCES = ("matrix", "pairs", "analogy", "explain")


@dataclass(frozen=True, kw_only=True)
class FigureSpec:
    """One kind of figure.

    Attributes:
        name: name of the kind.
        draw: function that is called as draw(*tables, options=options), or the name "module:function" of one in
            `attngeo.figures`.
        description: what it shows, as a noun phrase; {score} stands for the score.
        source: source of its rows, a question or a key of `SOURCES`.
        columns: columns that rows must have, besides the score's own; none if it is drawn from a model.
        options: fields of PlotOptions that it uses, besides `COMMON`.
        draws_loss: whether `score` may be "loss".
        most_models: with more models than this, a report draws each on its own, with a menu; None draws all together.
        beside: columns of the published models that are drawn beside the rows; `where` selects these models by them.
    """

    name: str
    draw: str | Callable[..., Figure]
    description: str
    source: str
    columns: tuple[str, ...] = ()
    options: tuple[str, ...]
    draws_loss: bool = False
    most_models: int | None = None
    beside: tuple[str, ...] = ()

    def make(self, *tables: Any, options: PlotOptions) -> Figure:
        """The figure of these tables."""
        draw = pkgutil.resolve_name(f"attngeo.figures.{self.draw}") if isinstance(self.draw, str) else self.draw
        figure: Figure = draw(*self._label(tables, options), options=options)
        figure.update_layout(modebar_remove=UPLOAD)
        if options.title == "":
            remove_title(figure)
        elif options.title is not None:
            replace_title(figure, options.title)
        if options.font_size is not None:
            figure.update_layout(font_size=to_pixels(options.font_size))
        return figure

    def _label(self, tables: tuple[Any, ...], options: PlotOptions) -> tuple[Any, ...]:
        """The tables with the labels of their models; the published models keep their names."""
        if not (options.label and self.names_models):
            return tables
        count = len(tables) - bool(self.beside)
        own = tables[:count]
        labels = resolve_labels(options.label, list_named(*own))
        return (*(name_models(table, labels) for table in own), *tables[count:])

    def describe(self, score: str = "score", *, published: bool = True) -> str:
        """A description in words, with the name of a score in it. published: whether published models are shown."""
        description = self.description.format(score=score)
        return description if published else description.replace(BESIDE, "")

    @property
    def all_options(self) -> tuple[str, ...]:
        """The fields of PlotOptions that it uses, those of every kind among them, and of kinds that show models."""
        return (*self.options, *COMMON, *(OF_MODELS if self.names_models else ()))

    @property
    def names_models(self) -> bool:
        """Whether it names models by their references."""
        question = QUESTIONS.get(self.source)
        return self.source in NAMING_SOURCES or (question is not None and question.is_of_models)

    @property
    def made_by(self) -> str:
        """The command or function that makes the rows, for the advice in errors."""
        optional = self.optional_scores
        scores = f" --scores {','.join(optional)}" if optional else ""
        return SOURCES.get(self.source, f"attngeo {self.source}{scores} -o FILE")

    @property
    def optional_scores(self) -> tuple[str, ...]:
        """The optional scores among its columns."""
        return tuple(name for name in self.columns if name in SCORES and SCORES[name].is_optional)

    @property
    def from_saved(self) -> bool:
        """Whether it may be drawn from the folder of a saved model, too."""
        return self.source in ("vectors", "encodings")

    @property
    def scores(self) -> tuple[str, ...]:
        """The valid values of the option `score`."""
        if "score" not in self.options:
            return ()
        has_optional = self.source in ("score", "pretrain")
        scores = tuple(SCORES) if has_optional else score_names()
        return (*scores, LOSS) if self.draws_loss else scores

    def required_columns(self, options: PlotOptions) -> tuple[str, ...]:
        """The columns that rows read from a file must have, including the drawn score."""
        return (*self.columns, options.score) if "score" in self.options else self.columns

    def split_where(self, options: PlotOptions) -> tuple[dict[str, Any], dict[str, Any]]:
        """The conditions of `where` on the rows, and those on the published models. Raises UsageError."""
        where = dict(options.where or {})
        beside = {column: where.pop(column) for column in self.beside if column in where}
        if beside and not options.published:
            raise UsageError(
                f"$where selects published models by {next(iter(beside))}, but published models are not "
                "shown; leave out this condition, or show them with $published",
                "where",
                "published",
            )
        return where, beside

    def check_given(self, names: Collection[str]) -> None:
        """Raise UsageError if an option that the user gave has no effect on this kind."""
        for name in names:
            if name not in self.all_options:
                raise UsageError(
                    f"${name} is not an option of {self.name}, expected: {', '.join(self.all_options)}", name
                )


# How the heads of a layer add up: the growths of their parts, and the shares of the symmetry of the layer.
GROWTHS = ("symmetric_growth", "antisymmetric_growth")
SHARES = ("own_symmetry", "agreement", "cancellation")
SCORED = ("model", "stack", "layer", "head")
CHANGED = (*SCORED, "other", "change", "cosine")
MIRRORED = (
    *SCORED, "other_layer", "other_head", "mirror", "twin", "antisymmetric_cosine", "is_partner",
)  # fmt: skip
KERNEL = tuple(f"kernel_{offset}" for offset in range(9))
TRAINED = ("step", "stack", "layer", "head")
WHERE = ("where",)
FIGURES: dict[str, FigureSpec] = {
    spec.name: spec
    for spec in (
        FigureSpec(
            name="heatmap", draw="scores:draw_heatmap", source="score", columns=SCORED, most_models=1,
            description="{score} of every layer and head, as a map of layers × heads",
            options=("score", "stack", "where"),
        ),
        FigureSpec(
            name="layers", draw="scores:draw_layers", source="score", columns=SCORED, most_models=12,
            description="{score} of whole layers, and median and quartiles over heads, against the layer",
            options=("score", "stack", "where"),
        ),
        FigureSpec(
            name="heads", draw="scores:draw_heads", source="score", most_models=12, options=("stack", "where"),
            columns=(*SCORED, "symmetry", "directionality"),
            description="symmetry against directionality, one point for each head",
        ),
        FigureSpec(
            name="growths", draw="growths:draw_growths", source="score", most_models=4, options=("stack", "where"),
            columns=(*SCORED, "symmetry", *GROWTHS, *SHARES),
            description="growth of the symmetric and antisymmetric parts of heads in their sum, and the shares of the "
            "symmetry of the layer, against the layer",
        ),
        FigureSpec(
            name="size", draw="sizes:draw_sizes", source="score", columns=SCORED,
            description="median {score} against the number of parameters" + BESIDE,
            options=("score", "stack", "where", "published"), beside=("modality", "family", "role", "erratum"),
        ),
        FigureSpec(
            name="trajectory", draw="trajectory:draw_trajectory", source="score", columns=(*SCORED, "d_model"),
            description="scores of revisions against their training steps, and the step from which each is outside the "
            "range of chance",
            options=("stack", "where", "over"),
        ),
        FigureSpec(
            name="matrix", draw="matrix:draw_matrix", source="matrix", options=("layer", "head", "stack"),
            description="entries of one W_qk, with the norms of its rows and columns",
        ),
        FigureSpec(
            name="spectrum", draw="spectrum:draw_spectrum", source="matrix",
            options=("layer", "head", "stack", "circuit"),
            description="singular values of one W_qk or W_ov, in bands, beside the edge of random factors",
        ),
        FigureSpec(
            name="outliers", draw="matrix:draw_outliers", source="matrix", options=("over", "stack"),
            description="rows and columns of W_qk that are outliers in several layers, compared with outliers at "
            "random places",
        ),
        FigureSpec(
            name="position-map", draw="positions:draw_position_map", source="positions", most_models=1,
            columns=(*SCORED, "fast_share"), options=("stack", "where"),
            description="share of fast rotary pairs of every head, as a map of layers × heads",
        ),
        FigureSpec(
            name="position-kernel", draw="positions:draw_kernels", source="positions", most_models=1,
            columns=(*SCORED, *KERNEL), options=("layer", "stack", "where"),
            description="position kernel of the heads of one layer: how far back they look by position alone",
        ),
        FigureSpec(
            name="mirror-map", draw="mirrors:draw_mirror_map", source="mirrors", most_models=1,
            columns=MIRRORED, options=("layer", "stack", "where"),
            description="mirrors (-) and twins (+) among the heads of one layer, as a map of heads × heads",
        ),
        FigureSpec(
            name="change-map", draw="changes:draw_change_map", source="compare", options=WHERE, columns=CHANGED,
            description="change of every head from one model to others, as a map of layers × heads",
        ),
        FigureSpec(
            name="change-layers", draw="changes:draw_change_layers", source="compare", options=WHERE, columns=CHANGED,
            description="change of whole layers from one model to others, against the layer",
        ),
        FigureSpec(
            name="training", draw="training:draw_training", source="pretrain", columns=TRAINED, draws_loss=True,
            description="{score} against the training step (Fig. 3, S5)", options=("score", "where"),
        ),
        FigureSpec(
            name="training-layers", draw="training:draw_training_layers", source="pretrain", columns=TRAINED,
            description="{score} of each layer against the training step (Fig. 3, S5)",
            options=("score", "where", "over"),
        ),
        FigureSpec(
            name="updates", draw="gradients:draw_updates", source="gradients", columns=(*SCORED, "objective"),
            description="{score} of each layer's updates on a text: median and quartiles over heads, also with the "
            "rows of β shuffled",
            options=("score", "where"),
        ),
        FigureSpec(
            name="pairs", draw="gradients:draw_pairs", source="pairs", options=("layer", "head", "where"),
            columns=(
                "model", "stack", "layer", "head", "position", "token", "attended_position", "attended_token", "beta",
            ),
            description="gradient with respect to the attention logit of each pair of tokens, as a map",
        ),
        FigureSpec(
            name="analogies", draw="analogies:draw_analogies", source="analogy", options=WHERE,
            columns=(
                "model", "level", "name", "asked", "known", "accuracy", "accuracy_low", "accuracy_high", "questions",
            ),
            description="accuracy at word analogies, with confidence intervals",
        ),
        FigureSpec(
            name="paraphrases", draw="analogies:draw_paraphrases", source="explain", options=WHERE,
            columns=(
                "model", "a", "b", "c", "answer", "cosine_error", "rho", "sigma", "sigma_star", "delta", "xi",
                "zeta_spread",
            ),
            description="paraphrase errors of word analogies against their cosine errors (analogy --explain)",
        ),
        FigureSpec(
            name="shift", draw="experiments:draw_shift", source="simulate", columns=("method", "seed", "accuracy"),
            description="accuracy of each method against the distribution shift of the test rows, with intervals",
            options=("where", "published"),
        ),
        FigureSpec(
            name="row-attention", draw="estimators:draw_row_attention", source="cells", options=WHERE,
            columns=("cell", "on", "head", "attention"),
            description="attention between the cells of a table row",
        ),
        FigureSpec(
            name="encodings", draw="estimators:draw_encodings", source="encodings", options=WHERE,
            columns=("column", "value", "x", "y"),
            description="encodings of a table's categories in two dimensions",
        ),
        FigureSpec(
            name="test-errors", draw="experiments:draw_test_errors", source="efa", options=("where", "published"),
            columns=("experiment", "model", "direction", "setting", "metric", "value"),
            description="test errors of exponential family attention, factor models and baselines, with intervals",
        ),
        FigureSpec(
            name="item-attention", draw="estimators:draw_item_attention", source="weights", options=WHERE,
            columns=("sequence", "layer", "position", "attended_position", "weight"),
            description="attention between the items of a sequence, layer by layer",
        ),
        FigureSpec(
            name="item-vectors", draw="estimators:draw_item_vectors", source="vectors", options=WHERE,
            columns=("item", "vector", "head", "number", "value"),
            description="queries, keys and values of items in each head of the first layer",
        ),
        FigureSpec(
            name="place-attention", draw="estimators:draw_place_attention", source="places", options=WHERE,
            columns=("place", "attended_place", "latitude", "longitude", "layer", "weight"),
            description="attention of one place to others, on a map of longitude and latitude",
        ),
    )
}  # fmt: skip
