"""Figures of the cities that no training row has, of planted pairs, and of the recovery of a known model.

    python reports/efa/efa_figures.py    # requires attngeo[images], and Chromium or Chrome

draws left-out-cities.png, planted-pairs.png and recovery-excess.png in reports/figures; `make figures` does so, too.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from efa_statements import (  # type: ignore[import-not-found]
    by_size,
    errors_by_choice,
    excess_slope,
    ratio_to,
    select_scores,
    with_interval,
)
from plotly.subplots import make_subplots

from attngeo.figures.fit import BELOW
from attngeo.figures.save import save_figure
from attngeo.figures.style import GUIDE, MARKED, MODEL_COLOURS, OTHER, fade, finish_figure

HERE = Path(__file__).parent
FIGURES = HERE.parent / "figures"
INTERVAL = {"thickness": 1.5, "width": 4}
CHANCE = {"color": GUIDE, "width": 1, "dash": "dot"}
# Pixels above panels that have titles.
TOP = 100
ATTENTION = "attention"
BASKETS = 2000
# The models and scores of planted.csv, in the order of the table, by their names in the figure.
SCORES = {
    ("fm", "vectors"): "factor model: δ·β",
    ("fm", "centred vectors"): "factor model: δ·β, centred",
    ("fm", "probability"): "factor model: probability",
    ("counts", "lift"): "counts: lift",
    ("efa", "vectors"): "attention: δ·β",
    ("efa", "centred vectors"): "attention: δ·β, centred",
    ("efa", "vectors through values"): "attention: δ·β through values",
    ("efa", "probability"): "attention: probability",
}
MEASURES = {"right_sign": "share of pairs with the right sign", "auc": "AUC against unrelated pairs"}
# Half of the distance between two ticks holds the points of the kinds of pairs.
DODGE = 0.2
FITS = {"efa": ("attention", MARKED), "fm": ("factor model", OTHER)}
# The slope of the bound of Theorem 2.
RATE = -0.5


def draw_cities(table: pd.DataFrame) -> go.Figure:
    """Attention's error divided by that of each other method: choices, and their mean with its interval."""
    errors = errors_by_choice(table)
    figure = go.Figure()
    for method in errors.columns.drop(ATTENTION):
        ratios = errors[ATTENTION] / errors[method]
        mean, low, high = ratio_to(table, method)
        choices = {"color": MARKED, "size": 8, "symbol": "circle-open"}
        figure.add_scatter(x=ratios, y=[method] * len(ratios), mode="markers", marker=choices, showlegend=False)
        figure.add_scatter(
            x=[mean],
            y=[method],
            error_x=INTERVAL | {"array": [high - mean], "arrayminus": [mean - low]},
            mode="markers",
            marker={"color": MARKED, "size": 10},
            showlegend=False,
        )
    figure.add_vline(x=1, line=CHANCE)
    ticks = [0.125, 0.25, 0.5, 1, 2, 4]
    figure.update_xaxes(type="log", tickvals=ticks, title="attention's error divided by the method's (log scale)")
    figure.update_yaxes(autorange="reversed", automargin=True)
    figure.update_layout(width=900, height=400)
    details = "geometric mean of six choices with 95% intervals; open symbols: choices; left of 1 attention is better"
    return finish_figure(figure, "cities that no training row has: errors of attention and of others", details)


def draw_planted(table: pd.DataFrame) -> go.Figure:
    """Share of planted pairs with the right sign, and AUC, of each score and kind of pairs."""
    rows = select_scores(table, BASKETS)
    kinds = [*rows["pairs"].unique()]
    titles = [*MEASURES.values()]
    figure = make_subplots(1, 2, subplot_titles=titles, shared_yaxes=True, horizontal_spacing=0.05)
    for column, measure in enumerate(MEASURES, 1):
        for number, kind in enumerate(kinds):
            of_kind = rows[rows["pairs"] == kind].groupby(["model", "score"])[measure]
            intervals = [with_interval(of_kind.get_group(score)) for score in SCORES]
            figure.add_scatter(
                x=[mean for mean, _ in intervals],
                y=np.arange(len(SCORES)) + DODGE * (number - 1),
                error_x=INTERVAL | {"array": [half for _, half in intervals]},
                mode="markers",
                marker={"color": MODEL_COLOURS[number], "size": 8},
                name=kind,
                legendgroup=kind,
                showlegend=column == 1,
                row=1,
                col=column,
            )
    figure.add_vline(x=0.5, line=CHANCE)
    figure.update_xaxes(range=[0, 1.09])
    figure.update_yaxes(tickvals=[*range(len(SCORES))], ticktext=[*SCORES.values()], range=[len(SCORES) - 0.5, -0.5])
    figure.update_yaxes(automargin=True, zeroline=False)
    figure.update_annotations(font_size=13)
    figure.update_layout(width=900, height=520, legend=BELOW)
    details = f"mean of five seeds with 95% intervals; {BASKETS:,} baskets; dotted: chance"
    return finish_figure(figure, "planted complements and substitutes", details, TOP)


def draw_recovery(table: pd.DataFrame) -> go.Figure:
    """The excess of both models against the number of sequences on log scales, and the slope of Theorem 2's bound."""
    figure = go.Figure()
    for model, (name, colour) in FITS.items():
        excess = by_size(table, model, "excess")
        intervals = [with_interval(excess.loc[size]) for size in excess.index]
        for seed in excess:
            marker = {"color": fade(colour, 0.35), "size": 6}
            figure.add_scatter(x=excess.index, y=excess[seed], mode="markers", marker=marker, showlegend=False)
        figure.add_scatter(
            x=excess.index,
            y=[mean for mean, _ in intervals],
            error_y=INTERVAL | {"array": [half for _, half in intervals]},
            mode="lines+markers",
            name=name,
            marker={"color": colour, "size": 9},
        )
    excess = by_size(table, "efa", "excess").mean(axis="columns")
    sizes = excess.index.to_numpy(float)
    bound = excess.iloc[0] * (sizes / sizes[0]) ** RATE
    dash = {"color": GUIDE, "width": 2, "dash": "dash"}
    figure.add_scatter(x=sizes, y=bound, mode="lines", name="slope −0.5 of Theorem 2", line=dash)
    slope, half = excess_slope(table)
    figure.update_xaxes(type="log", tickvals=[*excess.index], title="training sequences (log scale)")
    ticks = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5]
    figure.update_yaxes(type="log", tickvals=ticks, title="excess cross-entropy (log scale)")
    figure.update_layout(width=900, height=450)
    details = f"mean of five seeds with 95% intervals; attention's slope is −{-slope:.2f} ± {half:.2f}"
    return finish_figure(figure, "recovery of a known model: excess over its cross-entropy", details)


def draw_figures() -> dict[str, go.Figure]:
    """All figures, by the names of their files."""
    return {
        "left-out-cities.png": draw_cities(pd.read_csv(HERE / "cities.csv")),
        "planted-pairs.png": draw_planted(pd.read_csv(HERE / "planted.csv")),
        "recovery-excess.png": draw_recovery(pd.read_csv(HERE / "recovery.csv")),
    }


if __name__ == "__main__":
    for name, figure in draw_figures().items():
        save_figure(figure, FIGURES / name)
