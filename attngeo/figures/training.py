"""Curves of training: the scores and the loss against the step.

Every function takes rows of `curves.parquet`: objective, init, seed, step, stack, layer, head (missing for a whole
layer), a column for each score, and loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from attngeo.errors import UsageError
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
    quartile_shares,
)

# The end of the colour scale of layers: what follows is a yellow that white paper swallows.
LAST_COLOUR = 0.85


@dataclass(frozen=True)
class _RunGroup:
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
    figure = go.Figure(layout={"xaxis_title": "step", "yaxis_title": axis_title_of(score)})
    for group in _group_runs(layers):
        by_step = group.rows.groupby("step")[score]
        _add_line(
            figure, pd.DataFrame({name: by_step.quantile(share) for name, share in quartile_shares().items()}), group
        )
    add_chance_line(figure, score)
    over = f"median and quartiles over {layers['layer'].nunique()} layers"
    if layers["seed"].nunique() > 1:
        over += f" and {_count_seeds(layers)}"
    return finish_figure(figure, f"{label_of(score)} of W_qk", ", ".join([*_common_names(layers), over]))


def _draw_losses(curves: pd.DataFrame) -> go.Figure:
    objectives = list(curves["objective"].unique())
    if len(objectives) > 1:
        raise UsageError(
            f"losses of several objectives have no common scale; select one of {', '.join(map(str, objectives))} "
            "with where, such as objective=mlm"
        )
    losses = curves[["objective", "init", "seed", "step", LOSS]].dropna().drop_duplicates()
    figure = go.Figure(layout={"xaxis_title": "step", "yaxis_title": axis_title_of(LOSS)})
    for group in _group_runs(losses):
        _add_line(figure, group.rows.groupby("step")[LOSS].agg(["min", "mean", "max"]), group)
    over = [f"mean and range over {_count_seeds(losses)}"] if losses["seed"].nunique() > 1 else []
    return finish_figure(figure, "training loss", ", ".join([*_common_names(losses), *over]))


def draw_training_layers(curves: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """The score of each layer against the step, median over seeds; one panel for each objective and initialisation.

    Source: Saponati et al. 2025, Fig. 3c, 3d and S5c.
    """
    score = options.score
    layers = curves[curves["head"].isna()]
    groups = list(_group_runs(layers))
    several = len(groups) > 1
    figure = make_subplots(
        cols=len(groups), shared_yaxes=True, x_title="step",
        subplot_titles=[group.name.replace(", ", "<br>") if several else "" for group in groups],
    )  # fmt: skip
    figure.update_annotations(font_size=12)
    for column, group in enumerate(groups, 1):
        _add_layers(figure, group, sorted(layers["layer"].unique()), score, column)
    figure.update_yaxes(title=axis_title_of(score), col=1)
    over = [f"median over {_count_seeds(layers)}"] if layers["seed"].nunique() > 1 else []
    finish_figure(figure, f"{label_of(score)} of W_qk, layer by layer", ", ".join([*_common_names(layers), *over]))
    return figure.update_layout(margin_t=120 if several else 70)  # panel titles are below the title


def _add_layers(figure: go.Figure, group: _RunGroup, layers: list[int], score: str, column: int) -> None:
    """A line for each layer of a group of runs; the first panel has the legend of all."""
    colours = sample_colorscale(LAYERS, [LAST_COLOUR * i / max(len(layers) - 1, 1) for i in range(len(layers))])
    for layer, colour in zip(layers, colours, strict=True):
        line = group.rows[group.rows["layer"] == layer].groupby("step")[score].median()
        figure.add_scatter(
            x=line.index, y=line, name=f"layer {layer}", line={"color": colour}, legendgroup=str(layer),
            showlegend=column == 1 and len(layers) > 1, row=1, col=column,
            hovertemplate=f"{group.name}, layer {layer}<br>step %{{x:,}}<br>{label_of(score)} %{{y:.3f}}"
            "<extra></extra>",
        )  # fmt: skip


def _group_runs(rows: pd.DataFrame) -> Iterator[_RunGroup]:
    """Colours tell objectives apart, or initialisations of one objective; dashes groups of one colour."""
    several = {name: rows[name].nunique() > 1 for name in ("objective", "init")}
    seen: Counter[str] = Counter()
    for (objective, init), own in rows.groupby(["objective", "init"], sort=False):
        names = []
        if several["objective"] or not several["init"]:
            names.append(_name_objective(objective))
        if several["init"]:
            names.append(_name_init(init))
        if several["init"] and not several["objective"]:
            colour = INITIALISATIONS.get(str(init), OTHER)
        else:
            colour = OBJECTIVES.get(str(objective), OTHER)
        dash = DASHES[seen[colour] % len(DASHES)]
        seen[colour] += 1
        yield _RunGroup(", ".join(names), colour, dash, own)


def _name_objective(objective: object) -> str:
    return escape_name(OBJECTIVE_NAMES.get(str(objective), objective))


def _name_init(init: object) -> str:
    return f"{escape_name(init)} init"


def _common_names(rows: pd.DataFrame) -> list[str]:
    """The objective and the initialisation that all lines have in common, as far as they have."""
    objectives, inits = rows["objective"].unique(), rows["init"].unique()
    names = [_name_objective(objectives[0])] if len(objectives) == 1 else []
    return [*names, _name_init(inits[0])] if len(inits) == 1 else names


def _count_seeds(rows: pd.DataFrame) -> str:
    return f"{rows['seed'].nunique()} seeds"


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
