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
from attngeo.figures.names import FORM, escape_name
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
    finish_figure,
    label_of,
    quartiles_by,
    sample_colours,
)
from attngeo.scores.spec import SCORES
from attngeo.scores.summary import SETTLED, find_settled

# The end of the colour scale of layers: beyond it is a yellow that white paper swallows.
LAST_COLOUR = 0.85
# The columns that tell groups of runs apart.
KEYS = ("objective", "init")


class _RunGroup(NamedTuple):
    """The runs of one objective and initialisation, over seeds.

    Attributes:
        name: label that tells them from the other groups.
        colour: colour of the line.
        dash: dash of the line.
        rows: rows of the runs.
    """

    name: str
    colour: str
    dash: str
    rows: pd.DataFrame


def draw_training(curves: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """A score or the loss against the step: one line per objective and initialisation, in a band.

    For a score, the line is the median over whole layers and seeds, and the band shows quartiles. For the loss, the
    line is the mean over seeds, and the band shows their range. Source: Saponati et al. 2025, Fig. 3a, 3b and S5.

    Args:
        curves: rows of `curves.parquet`, or of `attngeo pretrain`.
        options: `score` names the score, or "loss".

    Returns:
        A figure whose details say what all runs have in common.

    Raises:
        UsageError: the losses are of several objectives.
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
    return finish_figure(figure, f"{label_of(score)} of {FORM}", ", ".join([*common, over]))


def _draw_losses(curves: pd.DataFrame) -> go.Figure:
    objectives = list(curves["objective"].unique())
    if len(objectives) > 1:
        raise UsageError(
            f"losses of several objectives have no common scale; select one of {', '.join(map(str, objectives))} "
            "with $where, such as objective=mlm",
            "where",
        )
    losses = curves[["objective", "init", "seed", "step", LOSS]].dropna().drop_duplicates()
    groups, common = _group_runs(losses)
    figure = go.Figure(layout={"xaxis_title": "step", "yaxis_title": axis_title_of(LOSS)})
    for group in groups:
        _add_line(figure, group.rows.groupby("step")[LOSS].agg(["min", "mean", "max"]), group)
    if losses["seed"].nunique() > 1:
        common.append(f"mean and range over {_count_seeds(losses)}")
    return finish_figure(figure, "training loss", ", ".join(common))


def draw_training_layers(curves: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """The score of each layer against the step; one panel per objective and initialisation.

    A line is the median over the seeds for whole layers, or the median over heads and seeds in a band of quartiles. A
    point marks the step after which a curve stays within 10% of its last value. Source: Saponati et al. 2025, Fig. 3c,
    3d and S4, which their code draws from whole layers, and S5c, whose caption says heads.

    Args:
        curves: rows of `curves.parquet`, or of `attngeo pretrain`.
        options: `score` names the score; `over` chooses whole layers or heads.

    Returns:
        A figure with one line per layer in each panel.

    Raises:
        UsageError: heads do not have the score.
        DataError: there are no rows for heads, or for whole layers, to draw.
    """
    of_heads = options.over == "heads"
    if of_heads and SCORES[options.score].is_of_layers:
        raise UsageError(f"only whole layers have {options.score}; leave out $over", "over")
    layers = curves[curves["head"].notna() == of_heads]
    if layers.empty:
        unit = "heads" if of_heads else "whole layers"
        raise DataError(f"there are no rows for {unit}; choose another $over", "over")
    groups, common = _group_runs(layers)
    several = len(groups) > 1
    titles = [group.name.replace(", ", "<br>") for group in groups] if several else [""]
    figure = make_subplots(cols=len(groups), shared_yaxes=True, subplot_titles=titles)
    figure.update_annotations(font_size=12)
    for column, group in enumerate(groups, 1):
        _add_layers(figure, group, sorted(layers["layer"].unique()), options, column)
    figure.update_xaxes(title="step")
    figure.update_yaxes(title=axis_title_of(options.score), col=1)
    averaged = ["heads"] if of_heads else []
    if layers["seed"].nunique() > 1:
        averaged.append(_count_seeds(layers))
    if averaged:
        statistics = "median and quartiles" if of_heads else "median"
        common.append(f"{statistics} over {' and '.join(averaged)}")
    details = ", ".join(common) + f"; points: from here on within {SETTLED:.0%} of the last value"
    title = f"{label_of(options.score)} of {FORM}, layer by layer"
    return finish_figure(figure, title, details, top=120 if several else 70)


def _add_layers(figure: go.Figure, group: _RunGroup, layers: list[int], options: PlotOptions, panel: int) -> None:
    """Add a line for each layer of a group of runs; the first panel has the legend of all."""
    colours = dict(zip(layers, sample_colours(LAYERS, len(layers), 0, LAST_COLOUR), strict=True))
    quartiles = {
        layer: quartiles_by(group.rows[group.rows["layer"] == layer], "step", options.score) for layer in layers
    }
    if options.over == "heads":  # below all lines
        for layer in layers:
            bounds = quartiles[layer]
            add_band(
                figure, bounds["lower"], bounds["upper"], colours[layer], f"layer {layer}", {"row": 1, "col": panel}
            )
    for layer in layers:
        name = f"layer {layer}"
        line = quartiles[layer]["median"]
        hover = f"{group.name}, {name}<br>step %{{x:,}}<br>{label_of(options.score)} %{{y:.3f}}"
        figure.add_scatter(
            x=line.index,
            y=line,
            name=name,
            line={"color": colours[layer]},
            legendgroup=name,
            showlegend=panel == 1 and len(layers) > 1,
            row=1,
            col=panel,
            hovertemplate=f"{hover}<extra></extra>",
        )
        settled = find_settled(line)
        if settled is None:
            continue
        figure.add_scatter(
            x=[settled],
            y=[line[settled]],
            mode="markers",
            marker={"color": colours[layer], "size": 8},
            legendgroup=name,
            showlegend=False,
            row=1,
            col=panel,
            hovertemplate=f"{hover}<br>from here on within {SETTLED:.0%} of the last value<extra></extra>",
        )


def _group_runs(rows: pd.DataFrame) -> tuple[list[_RunGroup], list[str]]:
    """The runs of each objective and initialisation, and the names of what all of them have in common.

    Colours tell objectives apart, or initialisations of one objective; dashes groups of one colour.
    """
    varied = [key for key in KEYS if rows[key].nunique() > 1]
    common = [_name(key, str(rows[key].iloc[0])) for key in KEYS if key not in varied]
    groups = []
    groups_of_colour = Counter[str]()
    for (objective, init), runs in rows.groupby(list(KEYS), sort=False):
        values = {"objective": str(objective), "init": str(init)}
        name = ", ".join(_name(key, values[key]) for key in varied or ["objective"])
        if varied == ["init"]:
            colour = INITIALISATIONS.get(values["init"], OTHER)
        else:
            colour = OBJECTIVES.get(values["objective"], OTHER)
        dash = DASHES[groups_of_colour[colour] % len(DASHES)]
        groups.append(_RunGroup(name, colour, dash, runs))
        groups_of_colour[colour] += 1
    return groups, common


def _name(key: str, value: str) -> str:
    """The name of an objective or of an initialisation, as titles and legends have it."""
    if key == "init":
        return f"{escape_name(value)} init"
    return escape_name(OBJECTIVE_NAMES.get(value, value))


def _count_seeds(rows: pd.DataFrame) -> str:
    """The number of seeds of each group, as text; groups may have unlike numbers."""
    counts = rows.groupby([*KEYS])["seed"].nunique()
    fewest = counts.min()
    most = counts.max()
    return f"{most} seeds" if fewest == most else f"{fewest} to {most} seeds"


def _add_line(figure: go.Figure, spread: pd.DataFrame, group: _RunGroup) -> None:
    """Add a line of the middle column, in a band from the first column to the last."""
    lower, middle, upper = (spread[column] for column in spread.columns)
    add_band(figure, lower, upper, group.colour, group.name)
    figure.add_scatter(
        x=spread.index,
        y=middle,
        name=group.name,
        legendgroup=group.name,
        line={"color": group.colour, "width": 2.5, "dash": group.dash},
        customdata=pd.concat([lower, upper], axis=1),
        hovertemplate=f"{group.name}<br>step %{{x:,}}<br>%{{y:.3f}} (%{{customdata[0]:.3f}} to %{{customdata[1]:.3f}})"
        "<extra></extra>",
    )
