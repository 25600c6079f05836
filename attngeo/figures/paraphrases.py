"""The error terms of paraphrases against the cosine errors of analogies."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from attngeo.figures.common import escape_name, finish_figure
from attngeo.figures.options import PlotOptions
from attngeo.figures.palette import ROLES, SYMBOLS

# Column → the title of its panel.
TERMS = {
    "rho": "‖ρ‖", "sigma": "‖σ‖ of W", "sigma_star": "‖σ‖ of W*", "delta": "‖δ‖", "xi": "‖ξ‖",
    "zeta_spread": "range of ζ",
}  # fmt: skip
COLUMNS = 3
COLOURS = tuple(ROLES.values())
# Pixels of a row of panels, and the share of the height between two.
HEIGHT, BETWEEN = 260, 0.18


def draw_paraphrases(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001 - every kind takes options
    """A panel for each error term: one point for each question, a colour and a symbol for each model.

    rows: of `attngeo analogy --explain`. Questions without a defined term are left out of its panel, and an empty panel
    says so.
    """
    count = -(-len(TERMS) // COLUMNS)
    figure = make_subplots(
        rows=count, cols=COLUMNS, subplot_titles=list(TERMS.values()), shared_yaxes=True, vertical_spacing=BETWEEN
    )
    for number, (model, own) in enumerate(rows.groupby("model", sort=False)):
        labels = [escape_name(f"{a} : {b} = {c} : {d}") for a, b, c, d in own[["a", "b", "c", "answer"]].to_numpy()]
        for place, term in enumerate(TERMS):
            figure.add_scatter(
                x=own[term], y=own["cosine_error"], mode="markers", name=escape_name(model), text=labels,
                legendgroup=str(number), showlegend=place == 0,
                marker={"color": COLOURS[number % len(COLOURS)], "symbol": SYMBOLS[number % len(SYMBOLS)], "size": 9},
                hovertemplate=f"{escape_name(model)}<br>%{{text}}<br>{TERMS[term]} %{{x:.3f}}<br>"
                "cosine error %{y:.3f}<extra></extra>",
                row=place // COLUMNS + 1, col=place % COLUMNS + 1,
            )  # fmt: skip
    for place, term in enumerate(TERMS):
        if rows[term].isna().all():
            figure.add_annotation(
                text="not defined<br>for any question", showarrow=False, x=0.5, y=0.5, xref="x domain",
                yref="y domain", row=place // COLUMNS + 1, col=place % COLUMNS + 1,
            )  # fmt: skip
    for row in range(1, count + 1):
        figure.update_yaxes(title="1 − cosine", row=row, col=1)
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(rangemode="tozero")
    figure.update_layout(height=HEIGHT * count + 100)
    return finish_figure(figure, "word analogies: cosine error against paraphrase errors")
