"""Curves of training: the scores and the loss against the step.

Every function takes the rows of `curves.parquet`: objective, init, seed, step, stack, layer, head (missing for a whole
layer), symmetry, directionality and loss.
"""

from __future__ import annotations

from typing import Literal

import pandas as pd
import plotly.graph_objects as go
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from attngeo.figures.common import QUARTILES, Score
from attngeo.figures.palette import INITIALISATIONS, LAYERS, OBJECTIVE_NAMES, OBJECTIVES, OTHER, faded

By = Literal["objective", "init"]
COLOURS = {"objective": OBJECTIVES, "init": INITIALISATIONS}


def score_curves(curves: pd.DataFrame, score: Score, by: By = "objective") -> go.Figure:
    """Median score of whole layers against the step, with quartiles over layers and seeds; a line for each `by`.

    Source: Saponati et al. 2025, Fig. 3a and 3b (by objective), Fig. S5b (by initialisation).
    """
    layers = curves[curves["head"].isna()]
    figure = _empty(f"{score} of W_qk", score)
    for value, rows in layers.groupby(by, sort=False):
        spread = _quartiles(rows, score)
        _add_band(figure, spread, str(value), COLOURS[by].get(str(value), OTHER))
    return _finished(figure)


def layer_curves(curves: pd.DataFrame, score: Score, by: By = "objective") -> go.Figure:
    """The score of each layer against the step, the median over seeds; a panel for each `by`.

    Source: Saponati et al. 2025, Fig. 3c and 3d (by objective), Fig. S5c (by initialisation).
    """
    layers = curves[curves["head"].isna()]
    panels = list(dict.fromkeys(layers[by]))
    figure = make_subplots(
        cols=len(panels), shared_yaxes=True, subplot_titles=[_name(panel) for panel in panels], x_title="step",
    )  # fmt: skip
    numbers = sorted(layers["layer"].unique())
    colours = sample_colorscale(LAYERS, [i / max(len(numbers) - 1, 1) for i in range(len(numbers))])
    for column, panel in enumerate(panels, 1):
        for layer, colour in zip(numbers, colours, strict=True):
            rows = layers[(layers[by] == panel) & (layers["layer"] == layer)]
            line = rows.groupby("step")[score].median()
            figure.add_scatter(
                x=line.index, y=line, name=f"layer {layer}", line={"color": colour}, legendgroup=str(layer),
                showlegend=column == 1 and len(numbers) > 1, row=1, col=column,
                hovertemplate=f"{_name(panel)}, layer {layer}<br>step %{{x:,}}<br>{score} %{{y:.3f}}<extra></extra>",
            )  # fmt: skip
    figure.update_yaxes(title=score, col=1)
    figure.update_layout(title=f"{score} of W_qk, layer by layer", template="plotly_white")
    return figure


def loss_curves(curves: pd.DataFrame) -> go.Figure:
    """Training loss against the step: mean over seeds, with their range; a line for each initialisation.

    Source: Saponati et al. 2025, Fig. S5a.
    """
    runs = curves[["init", "seed", "step", "loss"]].dropna().drop_duplicates()
    figure = _empty("training loss", "loss (nats per predicted token)")
    for init, rows in runs.groupby("init", sort=False):
        spread = rows.groupby("step")["loss"].agg(["min", "mean", "max"])
        _add_band(figure, spread, str(init), INITIALISATIONS.get(str(init), OTHER))
    return _finished(figure)


def _quartiles(rows: pd.DataFrame, score: str) -> pd.DataFrame:
    by_step = rows.groupby("step")[score]
    return pd.DataFrame({name: by_step.quantile(share) for name, share in QUARTILES.items()})


def _empty(title: str, y: str) -> go.Figure:
    return go.Figure(layout={"title": title, "xaxis_title": "step", "yaxis_title": y, "template": "plotly_white"})


def _add_band(figure: go.Figure, spread: pd.DataFrame, value: str, colour: str) -> None:
    """A line, and around it the band between the first and the last column."""
    lower, middle, upper = (spread[column] for column in spread.columns)
    name = _name(value)
    edge = {"mode": "lines", "line_width": 0, "showlegend": False, "hoverinfo": "skip", "legendgroup": name}
    figure.add_scatter(x=spread.index, y=upper, **edge)
    figure.add_scatter(x=spread.index, y=lower, fill="tonexty", fillcolor=faded(colour), **edge)
    figure.add_scatter(
        x=spread.index, y=middle, name=name, legendgroup=name, line={"color": colour, "width": 2.5},
        customdata=pd.concat([lower, upper], axis=1),
        hovertemplate=f"{name}<br>step %{{x:,}}<br>%{{y:.3f}} (%{{customdata[0]:.3f}} to %{{customdata[1]:.3f}})"
        "<extra></extra>",
    )  # fmt: skip


def _finished(figure: go.Figure) -> go.Figure:
    """A legend only where there is something to tell apart."""
    named = sum(trace.showlegend is not False for trace in figure.data)
    return figure.update_layout(showlegend=named > 1)


def _name(value: object) -> str:
    return OBJECTIVE_NAMES.get(str(value), str(value))
