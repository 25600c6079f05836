"""Figures of the experiments with factors, masked decoders and constraints.

    python reports/symmetric-init/symmetric_init_figures.py    # requires attngeo[images], and Chromium or Chrome

draws init-factors.png, masked-decoders.png and constraints.png in reports/figures; `make figures` does so, too.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots
from symmetric_init_statements import (
    CONSTRAINTS,
    FACTORS,
    effects,
    last_layers,
    loss_increases,
    masked_gains,
    runs_from,
    with_interval,
)

from attngeo.figures.fit import BELOW
from attngeo.figures.save import save_figure
from attngeo.figures.style import (
    GUIDE,
    INITIALISATIONS,
    MARKED,
    OBJECTIVE_NAMES,
    OBJECTIVES,
    fade,
    finish_figure,
)

HERE = Path(__file__).parent
FIGURES = HERE.parent / "figures"
INTERVAL = {"thickness": 1.5, "width": 4}
ZERO = {"color": GUIDE, "width": 1, "dash": "dot"}
# Pixels above panels that have titles.
TOP = 100
# What may differ from the default start beside symmetry: larger weights, and biases.
CHANGES = {"query_key": "queries, keys", "value": "values", "biases": "biases"}
# In the order of `effects`.
EFFECTS = (
    "symmetric",
    "larger queries and keys",
    "larger values",
    "biases",
    "symmetric × queries, keys",
    "symmetric × values",
    "symmetric × biases",
)
CONSTRAINT_NAMES = ("penalty, λ = 0.1", "penalty, λ = 1", "penalty, λ = 10", "one matrix")
INPUTS = {"whole inputs": OBJECTIVES["clm"], "masked inputs": MARKED}
# How far the points of whole and of masked inputs are from their tick.
DODGE = 0.12


def draw_factors(table: pd.DataFrame) -> go.Figure:
    """Final losses of the runs from the paper's size, by what they start with; and the effects of the factors."""
    runs = runs_from(table, "smaller").reset_index()
    titles = ["final loss, by larger weights and added biases", "effects on the final loss"]
    figure = make_subplots(1, 2, subplot_titles=titles, horizontal_spacing=0.28)
    for symmetric, name in enumerate(("default", "symmetric")):
        rows = runs[runs["symmetric"] == symmetric]
        starts = [_name_start(row) for _, row in rows[FACTORS].iterrows()]
        marker = {"color": fade(INITIALISATIONS[name], 0.7), "size": 9}
        figure.add_scatter(x=rows["loss"], y=starts, name=name, mode="markers", marker=marker, row=1, col=1)
    numbers = effects(table)
    figure.add_scatter(
        x=numbers[::2],
        y=EFFECTS,
        error_x=INTERVAL | {"array": numbers[1::2]},
        mode="markers",
        marker={"color": MARKED, "size": 9},
        showlegend=False,
        row=1,
        col=2,
    )
    figure.add_vline(x=0, line=ZERO, row=1, col=2)
    figure.update_yaxes(autorange="reversed", automargin=True)
    figure.update_annotations(font_size=13)
    figure.update_layout(width=900, height=430, legend=BELOW)
    details = "one point per seed; effects and interactions (×) with 95% intervals; left of 0 is better"
    return finish_figure(figure, "encoders from weights of the paper's size", details, TOP)


def _name_start(row: pd.Series) -> str:
    """Which weights of a start are larger than the default ones, and whether it has biases."""
    changes = [name for factor, name in CHANGES.items() if row[factor]]
    return ", ".join(changes) or "none"


def draw_masked(masked: pd.DataFrame, whole: pd.DataFrame, published: pd.DataFrame) -> go.Figure:
    """Symmetry of each layer of decoders with whole and with masked inputs, and the difference.

    Args:
        masked: masked.parquet.
        whole: curves.parquet.
        published: the layers of the authors' models at the end.
    """
    titles = ["symmetry at the end", "masked less whole inputs"]
    figure = make_subplots(1, 2, subplot_titles=titles, horizontal_spacing=0.12)
    for sign, table, (name, colour) in zip((-1, 1), (whole, masked), INPUTS.items(), strict=True):
        points = last_layers(table).melt(var_name="layer", value_name="symmetry")
        places = points["layer"].astype(float) + sign * DODGE
        marker = {"color": fade(colour, 0.7), "size": 8}
        figure.add_scatter(x=places, y=points["symmetry"], name=name, mode="markers", marker=marker, row=1, col=1)
    band = {"fillcolor": GUIDE, "opacity": 0.25, "line_width": 0}
    note = "least symmetric layers of the authors' decoders"
    decoders = published[published["objective"] == "clm"]
    lowest = decoders.groupby(["model", "data"])["symmetry"].min()
    figure.add_hrect(lowest.min(), lowest.max(), **band, annotation_text=note, row=1, col=1)
    gains = masked_gains(masked, whole)
    figure.add_scatter(
        x=[*range(4)],
        y=gains[::2],
        error_y=INTERVAL | {"array": gains[1::2]},
        mode="markers",
        marker={"color": MARKED, "size": 9},
        showlegend=False,
        row=1,
        col=2,
    )
    figure.add_hline(y=0, line=ZERO)
    figure.update_xaxes(title="layer", tickvals=[*range(4)], range=[-0.5, 3.5], zeroline=False)
    figure.update_yaxes(zeroline=False)
    figure.update_annotations(font_size=13)
    figure.update_layout(width=900, height=430, legend=BELOW)
    details = "one point per seed; differences: mean of three seeds with 95% intervals"
    return finish_figure(figure, "decoders that read whole or masked inputs", details, TOP)


def draw_constraints(table: pd.DataFrame) -> go.Figure:
    """How much higher the final loss is with each constraint, for the encoder and the decoder."""
    titles = [OBJECTIVE_NAMES[objective] for objective in ("mlm", "clm")]
    figure = make_subplots(1, 2, subplot_titles=titles, shared_yaxes=True, horizontal_spacing=0.06)
    for column, objective in enumerate(("mlm", "clm"), 1):
        increases = loss_increases(table, objective)
        colour = OBJECTIVES[objective]
        for constraint, name in zip(CONSTRAINTS, CONSTRAINT_NAMES, strict=True):
            losses = increases[constraint]
            mean, half = with_interval(losses)
            place = {"row": 1, "col": column, "showlegend": False, "mode": "markers"}
            figure.add_scatter(
                x=[mean],
                y=[name],
                error_x=INTERVAL | {"array": [half]},
                marker={"color": colour, "size": 9},
                **place,
            )
            figure.add_scatter(
                x=losses, y=[name] * len(losses), marker={"color": colour, "size": 9, "symbol": "circle-open"}, **place
            )
        figure.add_vline(x=0, line=ZERO, row=1, col=column)
    figure.update_xaxes(title="final loss less that without a constraint")
    figure.update_yaxes(autorange="reversed", automargin=True)
    figure.update_annotations(font_size=13)
    figure.update_layout(width=900, height=400)
    details = "mean of three seeds with 95% intervals; open symbols: each seed; left of 0 is better; the scales differ"
    return finish_figure(figure, "symmetry as a constraint: final losses", details, TOP)


def draw_figures() -> dict[str, go.Figure]:
    """All figures, by the names of their files."""
    names = ("factors", "masked", "curves", "constraints")
    factors, masked, whole, constraints = (pd.read_parquet(HERE / f"{name}.parquet") for name in names)
    published = pd.read_csv(HERE.parent / "pretraining/published_layers.csv")
    return {
        "init-factors.png": draw_factors(factors),
        "masked-decoders.png": draw_masked(masked, whole, published),
        "constraints.png": draw_constraints(constraints),
    }


if __name__ == "__main__":
    for name, figure in draw_figures().items():
        save_figure(figure, FIGURES / name)
