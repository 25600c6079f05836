"""Curves of training: the scores and the loss against the step.

Every function takes rows of `curves.parquet`: objective, init, seed, step, stack, layer, head (missing for a whole
layer), a column for each score, and loss.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from attngeo.errors import DataError, UsageError
from attngeo.figures.kinds import LOSS, PlotOptions
from attngeo.figures.style import (
    DASHES,
    INITIALISATIONS,
    LAYERS,
    OBJECTIVE_NAMES,
    OBJECTIVES,
    OTHER,
    add_band,
    add_chance_line,
    axis_title_of,
    escape_name,
    finish_figure,
    label_of,
    quartiles_by,
    sample_colours,
)
from attngeo.scores.summary import SETTLED, find_settled

# The end of the colour scale of layers: what follows is a yellow that white paper swallows.
LAST_COLOUR = 0.85
# What tells groups of runs apart.
KEYS = ("objective", "init")


class _RunGroup(NamedTuple):
    """The runs of one objective and initialisation, over seeds. name: what tells them from the other groups."""

    name: str
    colour: str
    dash: str
    rows: pd.DataFrame


def draw_training(curves: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """A score or the loss against the step: one line for each objective and initialisation, in a band.

    A score is the median over whole layers and seeds in a band of quartiles; the loss the mean over seeds in a band of
    their range. Raises UsageError for losses of several objectives. Source: Saponati et al. 2025, Fig. 3a, 3b and S5.
    """
    return _draw_losses(curves) if options.score == LOSS else _draw_scores(curves, options.score)


def _draw_scores(curves: pd.DataFrame, score: str) -> go.Figure:
    layers = curves[curves["head"].isna()]
    groups, common = _group_runs(layers)
    figure = go.Figure(layout={"xaxis_title": "step", "yaxis_title": axis_title_of(score)})
    for group in groups:
        _add_line(figure, quartiles_by(group.rows, "step", score), group)
    add_chance_line(figure, score)
    over = f"median and quartiles over {layers['layer'].nunique()} layers"
    if layers["seed"].nunique() > 1:
        over += f" and {_count_seeds(layers)}"
    return finish_figure(figure, f"{label_of(score)} of W_qk", ", ".join([*common, over]))


def _draw_losses(curves: pd.DataFrame) -> go.Figure:
    objectives = list(curves["objective"].unique())
    if len(objectives) > 1:
        raise UsageError(
            f"losses of several objectives have no common scale; select one of {', '.join(map(str, objectives))} "
            "with where, such as objective=mlm"
        )
    losses = curves[["objective", "init", "seed", "step", LOSS]].dropna().drop_duplicates()
    groups, common = _group_runs(losses)
    figure = go.Figure(layout={"xaxis_title": "step", "yaxis_title": axis_title_of(LOSS)})
    for group in groups:
        _add_line(figure, group.rows.groupby("step")[LOSS].agg(["min", "mean", "max"]), group)
    over = [f"mean and range over {_count_seeds(losses)}"] if losses["seed"].nunique() > 1 else []
    return finish_figure(figure, "training loss", ", ".join([*common, *over]))


def draw_training_layers(curves: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """The score of each layer against the step; one panel for each objective and initialisation.

    It is the median over seeds of whole layers, or over heads and seeds in a band of quartiles. A point marks the step
    from which on a curve stays within 10% of its last value. Raises DataError if there are no heads to draw.
    Source: Saponati et al. 2025, Fig. 3c, 3d, S4 and S5c.
    """
    score, of_heads = options.score, options.over == "heads"
    layers = curves[curves["head"].notna() == of_heads]
    if layers.empty:
        raise DataError(f"the rows of {'heads' if of_heads else 'whole layers'} are missing; choose another $over")
    groups, common = _group_runs(layers)
    several = len(groups) > 1
    figure = make_subplots(
        cols=len(groups), shared_yaxes=True, x_title="step",
        subplot_titles=[group.name.replace(", ", "<br>") if several else "" for group in groups],
    )  # fmt: skip
    figure.update_annotations(font_size=12)
    for column, group in enumerate(groups, 1):
        _add_layers(figure, group, sorted(layers["layer"].unique()), options, column)
    figure.update_yaxes(title=axis_title_of(score), col=1)
    several_seeds = layers["seed"].nunique() > 1
    seeds = _count_seeds(layers)
    if of_heads:
        common.append("median and quartiles over heads" + (f" and {seeds}" if several_seeds else ""))
    elif several_seeds:
        common.append(f"median over {seeds}")
    details = ", ".join(common) + f"; points: from here on within {SETTLED:.0%} of the last value"
    title = f"{label_of(score)} of W_qk, layer by layer"
    return finish_figure(figure, title, details, top=120 if several else 70)


def _add_layers(figure: go.Figure, group: _RunGroup, layers: list[int], options: PlotOptions, panel: int) -> None:
    """A line for each layer of a group of runs; the first panel has the legend of all."""
    score, colours = options.score, sample_colours(LAYERS, len(layers), 0, LAST_COLOUR)
    spreads = [quartiles_by(group.rows[group.rows["layer"] == layer], "step", score) for layer in layers]
    if options.over == "heads":  # below all lines
        for layer, colour, spread in zip(layers, colours, spreads, strict=True):
            add_band(figure, spread["lower"], spread["upper"], colour, f"layer {layer}", panel)
    for layer, colour, spread in zip(layers, colours, spreads, strict=True):
        name, line, settled = f"layer {layer}", spread["median"], find_settled(spread["median"])
        hover = f"{group.name}, {name}<br>step %{{x:,}}<br>{label_of(score)} %{{y:.3f}}"
        figure.add_scatter(
            x=line.index, y=line, name=name, line={"color": colour}, legendgroup=name,
            showlegend=panel == 1 and len(layers) > 1, row=1, col=panel, hovertemplate=f"{hover}<extra></extra>",
        )  # fmt: skip
        if settled is not None:
            figure.add_scatter(
                x=[settled], y=[line[settled]], mode="markers", marker={"color": colour, "size": 8}, legendgroup=name,
                showlegend=False, row=1, col=panel,
                hovertemplate=f"{hover}<br>from here on within {SETTLED:.0%} of the last value<extra></extra>",
            )  # fmt: skip


def _group_runs(rows: pd.DataFrame) -> tuple[list[_RunGroup], list[str]]:
    """The runs of each objective and initialisation, and the names of what all of them have in common.

    Colours tell objectives apart, or initialisations of one objective; dashes groups of one colour.
    """
    several = [key for key in KEYS if rows[key].nunique() > 1]
    groups, seen = [], Counter[str]()
    for values, part in rows.groupby(list(KEYS), sort=False):
        about = dict(zip(KEYS, map(str, values), strict=True))
        name = ", ".join(_name(key, about[key]) for key in several or ["objective"])
        by_init = several == ["init"]
        colour = INITIALISATIONS.get(about["init"], OTHER) if by_init else OBJECTIVES.get(about["objective"], OTHER)
        groups.append(_RunGroup(name, colour, DASHES[seen[colour] % len(DASHES)], part))
        seen[colour] += 1
    return groups, [_name(key, str(rows[key].iloc[0])) for key in KEYS if key not in several]


def _name(key: str, value: str) -> str:
    return f"{escape_name(value)} init" if key == "init" else escape_name(OBJECTIVE_NAMES.get(value, value))


def _count_seeds(rows: pd.DataFrame) -> str:
    """The number of seeds of each group, as text; groups may have unlike numbers."""
    counts = rows.groupby([*KEYS])["seed"].nunique()
    return f"{counts.max()} seeds" if counts.min() == counts.max() else f"{counts.min()} to {counts.max()} seeds"


def _add_line(figure: go.Figure, spread: pd.DataFrame, group: _RunGroup) -> None:
    """A line of the middle column, in a band from the first column to the last."""
    lower, middle, upper = (spread[column] for column in spread.columns)
    add_band(figure, lower, upper, group.colour, group.name)
    figure.add_scatter(
        x=spread.index, y=middle, name=group.name, legendgroup=group.name,
        line={"color": group.colour, "width": 2.5, "dash": group.dash}, customdata=pd.concat([lower, upper], axis=1),
        hovertemplate=f"{group.name}<br>step %{{x:,}}<br>%{{y:.3f}} (%{{customdata[0]:.3f}} to %{{customdata[1]:.3f}})"
        "<extra></extra>",
    )  # fmt: skip
