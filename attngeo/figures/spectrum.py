"""The singular values of one matrix of a head or a layer."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from attngeo.figures.kinds import PlotOptions
from attngeo.figures.names import escape_name
from attngeo.figures.style import GUIDE, INITIALISATIONS, ROLES, fade, finish_figure

# Values above and below the edge, in colours that are seen on white and on black.
ABOVE, BELOW = INITIALISATIONS["symmetric"], ROLES["encoder"]


def draw_spectrum(spectrum: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001
    """Singular values in descending order; values above the edge of random factors are marked.

    A bar joins the values of a band: each is near the one before, so neighboring directions mix.

    Args:
        spectrum: the table of `attngeo.scores.matrices.measure_spectrum`, whose `attrs` name the matrix.
        options: unused; all kinds accept them.

    Returns:
        A figure of one panel.
    """
    matrix = spectrum.attrs
    figure = go.Figure(layout={"xaxis_title": "number", "yaxis_title": "singular value"})
    hovers = []
    for _, band in spectrum.groupby("band"):
        first, last = band["number"].iloc[[0, -1]]
        largest, smallest = band["value"].iloc[[0, -1]]
        alone = f"singular value {first}"
        several = f"band of {len(band)}: {smallest:.4g} to {largest:.4g}, directions mix"
        hovers += [several if len(band) > 1 else alone] * len(band)
        if len(band) > 1:
            figure.add_scatter(
                x=band["number"],
                y=band["value"],
                mode="lines",
                line={"color": fade(BELOW), "width": 14},
                hoverinfo="skip",
                name=f"band {first} to {last}",
                showlegend=False,
            )
    is_above = spectrum["value"] > matrix["edge"]
    figure.add_scatter(
        x=spectrum["number"],
        y=spectrum["value"],
        mode="markers",
        marker={"color": [ABOVE if above else BELOW for above in is_above], "size": 6},
        customdata=hovers,
        hovertemplate="%{customdata}<br>%{x}: %{y:.4g}<extra></extra>",
        showlegend=False,
    )
    figure.add_hline(
        y=matrix["edge"],
        line={"color": GUIDE, "width": 1, "dash": "dot"},
        annotation={"text": "edge of random factors", "font_color": GUIDE},
    )
    figure.update_yaxes(rangemode="tozero")
    name = f"layer {matrix['layer']}"
    if matrix["head"] is not None:
        name = f"head {matrix['head']} of {name}"
    details = (
        f"{is_above.sum()} of {len(spectrum)} above the edge of random factors of this rank "
        f"and norm ({matrix['frobenius_norm']:.4g}); "
        "bars: values near the one before, whose directions mix"
    )
    form = f"W<sub>{matrix['circuit']}</sub>"
    title = f"{escape_name(matrix['model'])}: singular values of {form} of {name} ({escape_name(matrix['stack'])})"
    return finish_figure(figure, title, details)
