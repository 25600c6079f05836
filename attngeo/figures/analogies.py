"""Accuracy at word analogies as bars, and the error terms of paraphrases."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from attngeo.errors import DataError
from attngeo.figures.kinds import PlotOptions
from attngeo.figures.style import INTERVAL, MODELS, ROLES, SYMBOLS, escape_name, finish_figure, sample_colours

# Which rows come first.
LEVELS = ("overall", "type", "category")
# Pixels.
BAR_HEIGHT, BETWEEN, AROUND = 16, 8, 160
# The title names the number of questions if there are no more different ones than this; the hovers always do.
MOST_COUNTS = 2


def draw_analogies(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001 - every kind takes options
    """Accuracy for all questions, each type and each category, with 95% intervals; a bar for each model.

    rows: of `attngeo.analogy`. If they are about several sets of questions, a model has a bar for each set.
    Raises DataError if no row has an accuracy.
    """
    rows = rows[rows["accuracy"].notna()]
    if rows.empty:
        raise DataError("no row has an accuracy: none of its questions is known; choose other rows by where")
    several_sets = rows["questions"].nunique() > 1
    names = [name for level in LEVELS for name in dict.fromkeys(rows.loc[rows["level"] == level, "name"])]
    groups = list(rows.groupby(["model", "questions"], sort=False))
    colours = sample_colours(MODELS, len(groups), 0.35, 0.9)
    figure = go.Figure()
    for ((model, questions), part), colour in zip(groups, colours, strict=True):
        name = f"{escape_name(model)} ({escape_name(questions)} questions)" if several_sets else escape_name(model)
        _add_bars(figure, part, name, escape_name(model), colour)
    figure.update_xaxes(
        title="accuracy (share of known questions, with 95% intervals)", tickformat=".0%", rangemode="tozero"
    )
    figure.update_yaxes(
        categoryorder="array", categoryarray=[_label(name) for name in names], autorange="reversed", automargin=True
    )
    figure.update_layout(height=len(names) * (BAR_HEIGHT * len(groups) + BETWEEN) + AROUND, barmode="group")
    title = "word analogies" if len(groups) > 1 else f"{escape_name(rows['model'].iloc[0])}: word analogies"
    return finish_figure(figure, title, _count_questions(rows))


def _add_bars(figure: go.Figure, part: pd.DataFrame, name: str, model: str, colour: str) -> None:
    middle = part["accuracy"]
    figure.add_bar(
        orientation="h", y=[_label(label) for label in part["name"]], x=middle, marker_color=colour, name=name,
        error_x={
            "array": part["accuracy_high"] - middle, "arrayminus": middle - part["accuracy_low"], "thickness": 1.5,
            "width": 3, "color": INTERVAL,
        },
        customdata=part[["known", "asked", "accuracy_low", "accuracy_high"]].astype(float),
        hovertemplate=f"{model}<br>%{{y}}: %{{x:.1%}}<br>95%: %{{customdata[2]:.1%}} to %{{customdata[3]:.1%}}<br>"
        "%{customdata[0]:,} of %{customdata[1]:,} questions known<extra></extra>",
    )  # fmt: skip


def _count_questions(rows: pd.DataFrame) -> str:
    """How many questions were known overall, if the models do not differ much in it."""
    counts = sorted({f"{int(count):,}" for count in rows.loc[rows["level"] == "overall", "known"].dropna()})
    return f"{' or '.join(counts)} questions" if 0 < len(counts) <= MOST_COUNTS else ""


def _label(name: str) -> str:
    """The name of a bar; all questions together are in bold type."""
    return "<b>overall</b>" if name == "overall" else escape_name(name)


# Column → the title of its panel.
TERMS = {
    "rho": "‖ρ‖", "sigma": "‖σ‖ of W", "sigma_star": "‖σ‖ of W*", "delta": "‖δ‖", "xi": "‖ξ‖",
    "zeta_spread": "range of ζ",
}  # fmt: skip
PANELS_ACROSS = 3
COLOURS = tuple(ROLES.values())
# Pixels of a row of panels, and the share of the height between two.
PANEL_HEIGHT, SPACE = 260, 0.18


def draw_paraphrases(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001 - every kind takes options
    """A panel for each error term: one point for each question, a colour and a symbol for each model.

    rows: of `attngeo analogy --explain`. Questions without a defined term are left out of its panel, and an empty panel
    says so.
    """
    count = -(-len(TERMS) // PANELS_ACROSS)
    figure = make_subplots(
        rows=count, cols=PANELS_ACROSS, subplot_titles=list(TERMS.values()), shared_yaxes=True, vertical_spacing=SPACE
    )
    panels = {term: {"row": at // PANELS_ACROSS + 1, "col": at % PANELS_ACROSS + 1} for at, term in enumerate(TERMS)}
    for number, (model, part) in enumerate(rows.groupby("model", sort=False)):
        labels = [escape_name(f"{a} : {b} = {c} : {d}") for a, b, c, d in part[["a", "b", "c", "answer"]].to_numpy()]
        for at, (term, title) in enumerate(TERMS.items()):
            figure.add_scatter(
                x=part[term], y=part["cosine_error"], mode="markers", name=escape_name(model), text=labels,
                legendgroup=str(number), showlegend=at == 0,
                marker={"color": COLOURS[number % len(COLOURS)], "symbol": SYMBOLS[number % len(SYMBOLS)], "size": 9},
                hovertemplate=f"{escape_name(model)}<br>%{{text}}<br>{title} %{{x:.3f}}<br>"
                "cosine error %{y:.3f}<extra></extra>", **panels[term],
            )  # fmt: skip
    for term in TERMS:
        if rows[term].isna().all():
            figure.add_annotation(
                text="not defined<br>for any question", showarrow=False, x=0.5, y=0.5, xref="x domain",
                yref="y domain", **panels[term],
            )  # fmt: skip
    figure.update_yaxes(title="1 − cosine", col=1)
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(rangemode="tozero")
    figure.update_layout(height=PANEL_HEIGHT * count + 100)
    return finish_figure(figure, "word analogies: cosine error against paraphrase errors")
