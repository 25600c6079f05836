"""Figure of the part of the updates that comes through the error of each token at its own position.

    python reports/gradients/gradients_figures.py    # requires attngeo[images], and Chromium or Chrome

draws own-token.png in reports/figures; `make figures` does so, too.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
from gradients_statements import interval  # type: ignore[import-not-found]
from plotly.subplots import make_subplots

from attngeo.figures.fit import BELOW
from attngeo.figures.save import save_figure
from attngeo.figures.style import GUIDE, MARKED, finish_figure

HERE = Path(__file__).parent
FIGURES = HERE.parent / "figures"
# Pixels above panels that have titles.
TOP = 100
MODELS = ("demo:encoder", "demo:decoder", "SmolLM2-135M")
COLOURS = {"trained": MARKED, "random": GUIDE}


def draw_own_token(table: pd.DataFrame) -> go.Figure:
    """The share of own tokens in the update of each whole layer: means over draws with intervals."""
    layers = table[table["head"].isna()]
    figure = make_subplots(
        rows=1,
        cols=len(MODELS),
        subplot_titles=MODELS,
        shared_yaxes=True,
        column_widths=[0.22, 0.22, 0.56],
        horizontal_spacing=0.04,
    )
    for column, model in enumerate(MODELS, 1):
        of_model = layers[layers["model"] == model]
        for weights, draws in of_model.groupby("weights", sort=False):
            intervals = [interval(shares) for _, shares in draws.groupby("layer")["own_token_share"]]
            figure.add_scatter(
                x=sorted(draws["layer"].unique()),
                y=[mean for mean, _, _ in intervals],
                error_y={"array": [high - mean for mean, _, high in intervals], "thickness": 1.5, "width": 3},
                mode="lines+markers",
                marker={"color": COLOURS[str(weights)], "size": 7},
                line={"color": COLOURS[str(weights)], "width": 1.5},
                name=f"{weights} weights",
                legendgroup=weights,
                showlegend=column == 1,
                row=1,
                col=column,
            )
        figure.update_xaxes(title="layer", dtick=5 if of_model["layer"].max() > 10 else 1, row=1, col=column)
    figure.update_xaxes(zeroline=False)
    figure.update_yaxes(zeroline=False)
    figure.update_yaxes(title="share by own tokens", col=1)
    figure.update_annotations(font_size=13)
    figure.update_layout(width=900, height=430, legend=BELOW)
    details = "updates of whole layers: mean of five draws with 95% intervals; the rest comes through other tokens"
    return finish_figure(figure, "how much of an update comes through the error of the own token", details, TOP)


def draw_figures() -> dict[str, go.Figure]:
    """All figures, by the names of their files."""
    return {"own-token.png": draw_own_token(pd.read_csv(HERE / "own-token.csv"))}


if __name__ == "__main__":
    for name, figure in draw_figures().items():
        save_figure(figure, FIGURES / name)
