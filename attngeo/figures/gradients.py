"""The updates that a text asks of attention, layer by layer and by pairs of tokens: rows of `attngeo gradients`."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from attngeo.choices import one_of
from attngeo.errors import DataError
from attngeo.figures.kinds import PlotOptions
from attngeo.figures.names import FORM, escape_name, escape_names
from attngeo.figures.style import (
    DASHES,
    OBJECTIVE_NAMES,
    OBJECTIVES,
    OTHER,
    SIGNED,
    add_band,
    axis_title_of,
    choose_ticks,
    compose_title,
    finish_figure,
    hover_of,
    label_of,
    quartiles_by,
)

# Tokens of a sequence that axes have room to name, and the fewest that a map is made for.
MOST_TOKENS_NAMED, FEWEST_TOKENS = 64, 24
# Pixels of a token on both axes, and around their map.
TOKEN, MARGIN = 11, 220


class _Updates(NamedTuple):
    """The updates of the heads of one stack of a model under one objective, and how they are drawn.

    Attributes:
        name: label of the line.
        colour: colour of the line.
        dash: dash of the line.
        rows: rows of the heads.
    """

    name: str
    colour: str
    dash: str
    rows: pd.DataFrame


def draw_updates(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """A score of the updates against the layer: the median over heads in a band of quartiles; dotted lines show chance.

    If the rows have it, a second panel shows the score of the change of W_qk by a step.

    Args:
        rows: rows of `attngeo gradients`: model, stack, layer, head, objective, and the score.
        options: `score` names the score.

    Returns:
        A figure with one colour per objective and one dash per model and stack. All bands are below all lines.

    Raises:
        DataError: there are no heads.
    """
    score = options.score
    heads = rows[rows["head"].notna()]
    if heads.empty:
        raise DataError("there are no rows for heads, expected the output of attngeo gradients")
    panels = {"update ΔM": score}
    change = f"change_{score}"
    if change in heads and heads[change].notna().any():
        panels[f"change of {FORM} by a step"] = change
    titles = list(panels) if len(panels) > 1 else None
    figure = make_subplots(cols=len(panels), shared_yaxes=True, subplot_titles=titles)
    groups = _split_updates(heads)
    for panel, column in enumerate(panels.values(), 1):
        subplot = {"row": 1, "col": panel}
        for group in groups:
            quartiles = quartiles_by(group.rows, "layer", column)
            add_band(figure, quartiles["lower"], quartiles["upper"], group.colour, group.name, subplot)
        for group in groups:
            _add_lines(figure, group, score, column, subplot)
    figure.update_xaxes(choose_ticks(pd.Index(heads["layer"])))
    figure.update_xaxes(title="layer")
    figure.update_yaxes(title=axis_title_of(score), col=1)
    details = "median and quartiles over heads; dotted: with the rows of β shuffled"
    return finish_figure(figure, compose_title(rows, f"{label_of(score)} of updates of {FORM}"), details, top=90)


def _split_updates(heads: pd.DataFrame) -> list[_Updates]:
    """The updates of each objective in each stack of each model; their names have the model if there are several."""
    stacks = list(heads.groupby(["model", "stack"], sort=False).groups)
    groups = []
    for (model, stack, objective), rows in heads.groupby(["model", "stack", "objective"], sort=False):
        name = escape_name(OBJECTIVE_NAMES.get(str(objective), objective))
        if len(stacks) > 1:
            name = f"{escape_name(model)} · {escape_name(objective)}"
        dash = DASHES[stacks.index((model, stack)) % len(DASHES)]
        groups.append(_Updates(name, OBJECTIVES.get(str(objective), OTHER), dash, rows))
    return groups


def _add_lines(figure: go.Figure, group: _Updates, score: str, column: str, subplot: dict[str, int]) -> None:
    """Add the medians over heads of one column of the rows, and those at chance if the rows have them."""
    quartiles = quartiles_by(group.rows, "layer", column)
    figure.add_scatter(
        x=quartiles.index,
        y=quartiles["median"],
        name=group.name,
        legendgroup=group.name,
        showlegend=subplot["col"] == 1,
        mode="lines+markers",
        line={"color": group.colour, "width": 2.5, "dash": group.dash},
        customdata=quartiles[["lower", "upper"]],
        hovertemplate=f"{group.name}, layer %{{x}}<br>{hover_of(score)} "
        "(%{customdata[0]:.3f} to %{customdata[1]:.3f})<extra></extra>",
        **subplot,
    )
    if f"{column}_chance" not in group.rows:
        return
    chance = group.rows.groupby("layer")[f"{column}_chance"].median()
    figure.add_scatter(
        x=chance.index,
        y=chance,
        mode="lines",
        line={"color": group.colour, "width": 1, "dash": "dot"},
        showlegend=False,
        legendgroup=group.name,
        hovertemplate=f"{group.name}, layer %{{x}}<br>shuffled %{{y:.3f}}<extra></extra>",
        **subplot,
    )


def draw_pairs(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """β of each pair of tokens as a map, for one head or summed over the heads of a layer; unseen pairs are blank.

    Args:
        rows: rows of `attngeo gradients --pairs-output`: model, stack, layer, head, position, token, attended_position,
            attended_token, beta.
        options: `layer` and `head` choose the pairs; all heads if `head` is None.

    Returns:
        A figure of one map; the axes name the tokens if there is room.

    Raises:
        UsageError: the rows lack the layer or the head.
        DataError: the pairs are of several models or stacks.
    """
    for name in ("model", "stack"):
        if rows[name].nunique() > 1:
            raise DataError(f"the pairs have several values of {name}, expected one; select one with $where", "where")
    pairs = _choose(rows, "layer", options.layer)
    details = f"layer {options.layer}, sum over heads"
    if options.head is not None:
        pairs = _choose(pairs, "head", options.head)
        details = f"layer {options.layer}, head {options.head}"
    table = pairs.groupby(["position", "attended_position"])["beta"].sum().unstack()
    tokens = pairs.drop_duplicates("position").set_index("position")["token"]
    names = escape_names(tokens[table.index])
    reach = float(table.abs().max().max()) or 1.0
    heatmap = go.Heatmap(
        z=table.to_numpy(),
        colorscale=SIGNED,
        zmin=-reach,
        zmax=reach,
        hoverongaps=False,
        customdata=[[(name, other) for other in names] for name in names],
        colorbar={"title": "∂loss/∂logit", "exponentformat": "power"},
        hovertemplate="%{customdata[0]} attends to %{customdata[1]}<br>%{z:.3g}<extra></extra>",
    )
    figure = go.Figure(heatmap)
    if len(names) <= MOST_TOKENS_NAMED:  # a token may occur twice, so that axes have numbers
        ticks = list(range(len(names)))
        figure.update_xaxes(tickvals=ticks, ticktext=names, tickangle=-90)
        figure.update_yaxes(tickvals=ticks, ticktext=names)
    figure.update_xaxes(title="attended token", showgrid=False, zeroline=False, automargin=True)
    figure.update_yaxes(title="attending token", showgrid=False, zeroline=False, automargin=True, autorange="reversed")
    size = max(len(names), FEWEST_TOKENS) * TOKEN + MARGIN
    figure.update_layout(height=size, width=size + 120)
    return finish_figure(figure, compose_title(rows, "gradients with respect to attention logits"), details)


def _choose(rows: pd.DataFrame, column: str, number: int) -> pd.DataFrame:
    """The rows with this number of a layer or head. Raises UsageError if there is none."""
    one_of(column, str(number), [str(known) for known in sorted(rows[column].unique())])
    return rows[rows[column] == number]
