"""Curves of training: the scores and the loss against the step.

Every function takes the rows of `curves.parquet`: objective, init, seed, step, stack, layer, head (missing for a whole
layer), symmetry, directionality and loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from attngeo.figures.common import MEANING, QUARTILES, Score, finished, plain, zero_line
from attngeo.figures.palette import DASHES, INITIALISATIONS, LAYERS, OBJECTIVE_NAMES, OBJECTIVES, OTHER, faded


@dataclass(frozen=True)
class _Runs:
    """The runs of one objective and initialisation, over seeds; name: what tells them from the others."""

    name: str
    colour: str
    dash: str
    rows: pd.DataFrame


def score_curves(curves: pd.DataFrame, score: Score) -> go.Figure:
    """Median score of whole layers against the step, with quartiles over layers and seeds.

    A line for each objective and initialisation. Source: Saponati et al. 2025, Fig. 3a and 3b, Fig. S5b.
    """
    layers = curves[curves["head"].isna()]
    figure = go.Figure(layout={"xaxis_title": "step", "yaxis_title": MEANING[score]})
    for runs in _runs(layers):
        by_step = runs.rows.groupby("step")[score]
        spread = pd.DataFrame({name: by_step.quantile(share) for name, share in QUARTILES.items()})
        _add_band(figure, spread, runs)
    zero_line(figure)
    over = f"median and quartiles over {layers['layer'].nunique()} layers"
    return finished(figure, f"{score} of W_qk", _common(layers, over + " and {}" * (layers["seed"].nunique() > 1)))


def layer_curves(curves: pd.DataFrame, score: Score) -> go.Figure:
    """The score of each layer against the step, the median over seeds; a panel for each objective and initialisation.

    Source: Saponati et al. 2025, Fig. 3c and 3d, Fig. S5c.
    """
    layers = curves[curves["head"].isna()]
    panels = list(_runs(layers))
    figure = make_subplots(
        cols=len(panels), shared_yaxes=True, x_title="step",
        subplot_titles=[runs.name.replace(", ", "<br>") if len(panels) > 1 else "" for runs in panels],
    )  # fmt: skip
    figure.update_annotations(font_size=12)
    numbers = sorted(layers["layer"].unique())
    # Not the last of the scale, a yellow that is lost on white.
    colours = sample_colorscale(LAYERS, [0.85 * i / max(len(numbers) - 1, 1) for i in range(len(numbers))])
    for column, runs in enumerate(panels, 1):
        for layer, colour in zip(numbers, colours, strict=True):
            line = runs.rows[runs.rows["layer"] == layer].groupby("step")[score].median()
            figure.add_scatter(
                x=line.index, y=line, name=f"layer {layer}", line={"color": colour}, legendgroup=str(layer),
                showlegend=column == 1 and len(numbers) > 1, row=1, col=column,
                hovertemplate=f"{runs.name}, layer {layer}<br>step %{{x:,}}<br>{score} %{{y:.3f}}<extra></extra>",
            )  # fmt: skip
    figure.update_yaxes(title=MEANING[score], col=1)
    figure = finished(figure, f"{score} of W_qk, layer by layer", _common(layers, "median over {}"))
    return figure.update_layout(margin_t=100 if len(panels) > 1 else 70)


def loss_curves(curves: pd.DataFrame) -> go.Figure:
    """Training loss against the step: mean over seeds, with their range; a line for each initialisation.

    Source: Saponati et al. 2025, Fig. S5a.
    """
    losses = curves[["objective", "init", "seed", "step", "loss"]].dropna().drop_duplicates()
    figure = go.Figure(layout={"xaxis_title": "step", "yaxis_title": "loss (nats per predicted token)"})
    for runs in _runs(losses):
        _add_band(figure, runs.rows.groupby("step")["loss"].agg(["min", "mean", "max"]), runs)
    return finished(figure, "training loss", _common(losses, "mean and range over {}"))


def _runs(rows: pd.DataFrame) -> Iterator[_Runs]:
    """Colours tell objectives apart, or initialisations of one objective; dashes those of one colour."""
    several = {name: rows[name].nunique() > 1 for name in ("objective", "init")}
    seen: Counter[str] = Counter()
    for (objective, init), own in rows.groupby(["objective", "init"], sort=False):
        names = [_objective(objective)] * (several["objective"] or not several["init"])
        names += [f"{plain(init)} init"] * several["init"]
        by_init = several["init"] and not several["objective"]
        colour = INITIALISATIONS.get(str(init), OTHER) if by_init else OBJECTIVES.get(str(objective), OTHER)
        dash = DASHES[seen[colour] % len(DASHES)]
        seen[colour] += 1
        yield _Runs(", ".join(names), colour, dash, own)


def _objective(name: object) -> str:
    return plain(OBJECTIVE_NAMES.get(str(name), name))


def _common(rows: pd.DataFrame, over: str) -> str:
    """What all lines have in common, and what they are taken over; {} stands for the number of seeds."""
    objectives, inits, seeds = rows["objective"].unique(), rows["init"].unique(), rows["seed"].nunique()
    said = [_objective(objectives[0])] * (len(objectives) == 1) + [f"{plain(inits[0])} init"] * (len(inits) == 1)
    if seeds > 1 or "{}" not in over:
        said.append(over.format(f"{seeds} seeds"))
    return ", ".join(said)


def _add_band(figure: go.Figure, spread: pd.DataFrame, runs: _Runs) -> None:
    """A line, and around it the band between the first and the last column."""
    lower, middle, upper = (spread[column] for column in spread.columns)
    edge = {"mode": "lines", "line_width": 0, "showlegend": False, "hoverinfo": "skip", "legendgroup": runs.name}
    figure.add_scatter(x=spread.index, y=upper, **edge)
    figure.add_scatter(x=spread.index, y=lower, fill="tonexty", fillcolor=faded(runs.colour), **edge)
    figure.add_scatter(
        x=spread.index, y=middle, name=runs.name, legendgroup=runs.name,
        line={"color": runs.colour, "width": 2.5, "dash": runs.dash}, customdata=pd.concat([lower, upper], axis=1),
        hovertemplate=f"{runs.name}<br>step %{{x:,}}<br>%{{y:.3f}} (%{{customdata[0]:.3f}} to %{{customdata[1]:.3f}})"
        "<extra></extra>",
    )  # fmt: skip
