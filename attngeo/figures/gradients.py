"""Gradients of attention: the scores of updates layer by layer, and β of each pair of tokens."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from attngeo.choices import one_of
from attngeo.errors import DataError
from attngeo.figures.kinds import PlotOptions
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
    escape_name,
    finish_figure,
    label_of,
    number_format_of,
    quartiles_by,
)

# Tokens of a sequence that axes have room to name.
MOST_NAMED = 64
# Pixels of a token on both axes, and around the map.
CELL, AROUND = 11, 220


def draw_updates(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """A score of the updates against the layer: the median over heads in a band of quartiles; dotted, at chance.

    One colour for each objective, one dash for each model and stack. rows: of `attngeo gradients`.
    """
    score, figure = options.score, go.Figure()
    heads = rows[rows["head"].notna()]
    if heads.empty:
        raise DataError("the rows of heads are missing, expected those of attngeo gradients")
    places = list(heads.groupby(["model", "stack"], sort=False).groups)
    several = len(places) > 1
    for (model, stack, objective), part in heads.groupby(["model", "stack", "objective"], sort=False):
        colour, dash = OBJECTIVES.get(str(objective), OTHER), DASHES[places.index((model, stack)) % len(DASHES)]
        predicted = escape_name(OBJECTIVE_NAMES.get(str(objective), objective))
        name = f"{escape_name(model)} · {predicted}" if several else predicted
        quartiles = quartiles_by(part, "layer", score)
        add_band(figure, quartiles["lower"], quartiles["upper"], colour, name)
        figure.add_scatter(
            x=quartiles.index, y=quartiles["median"], name=name, legendgroup=name, mode="lines+markers",
            line={"color": colour, "width": 2.5, "dash": dash},
            customdata=quartiles[["lower", "upper"]],
            hovertemplate=f"{name}, layer %{{x}}<br>{label_of(score)} %{{y:{number_format_of(score)}}} "
            "(%{customdata[0]:.3f} to %{customdata[1]:.3f})<extra></extra>",
        )  # fmt: skip
        if f"{score}_chance" in part:
            chance = part.groupby("layer")[f"{score}_chance"].median()
            figure.add_scatter(
                x=chance.index, y=chance, mode="lines", line={"color": colour, "width": 1, "dash": "dot"},
                showlegend=False, legendgroup=name,
                hovertemplate=f"{name}, layer %{{x}}<br>shuffled %{{y:.3f}}<extra></extra>",
            )  # fmt: skip
    figure.update_layout(
        xaxis={"title": "layer", **choose_ticks(pd.Index(heads["layer"]))}, yaxis={"title": axis_title_of(score)}
    )
    shown = "median and quartiles over heads; dotted: rows of β shuffled"
    return finish_figure(figure, compose_title(rows, f"{label_of(score)} of updates of W_qk"), shown)


def draw_pairs(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """β of each pair of tokens as a map, of one head or summed over the heads of a layer; blank if not seen.

    rows: of `attngeo gradients --pairs-output`. Raises UsageError for a layer or head that the rows lack, DataError for
    pairs of several models or stacks.
    """
    for name in ("model", "stack"):
        if rows[name].nunique() > 1:
            raise DataError(f"pairs of several values of {name}, expected one; select it with where")
    one_of("layer", str(options.layer), [str(layer) for layer in sorted(rows["layer"].unique())])
    part, what = rows[rows["layer"] == options.layer], f"layer {options.layer}, sum over heads"
    if options.head is not None:
        one_of("head", str(options.head), [str(head) for head in sorted(part["head"].unique())])
        part, what = part[part["head"] == options.head], f"layer {options.layer}, head {options.head}"
    table = part.groupby(["position", "other_position"])["beta"].sum().unstack()
    tokens = part.drop_duplicates("position").set_index("position")["token"]
    names = [escape_name(tokens[at]) for at in table.index]
    reach = float(table.abs().max().max()) or 1.0
    figure = go.Figure(go.Heatmap(
        z=table.to_numpy(), colorscale=SIGNED, zmin=-reach, zmax=reach, hoverongaps=False,
        customdata=[[(own, other) for other in names] for own in names],
        colorbar={"title": "∂loss/∂logit", "exponentformat": "power"},
        hovertemplate="%{customdata[0]} attends to %{customdata[1]}<br>%{z:.3g}<extra></extra>",
    ))  # fmt: skip
    if len(names) <= MOST_NAMED:  # a token may occur twice, so that axes have numbers
        figure.update_xaxes(tickvals=list(range(len(names))), ticktext=names, tickangle=-90)
        figure.update_yaxes(tickvals=list(range(len(names))), ticktext=names)
    figure.update_xaxes(title="attended to", showgrid=False, zeroline=False, automargin=True)
    figure.update_yaxes(
        title="token that attends", showgrid=False, zeroline=False, automargin=True, autorange="reversed"
    )
    figure.update_layout(height=max(len(names), 24) * CELL + AROUND, width=max(len(names), 24) * CELL + AROUND + 120)
    return finish_figure(figure, compose_title(rows, "gradients by attention logits"), what)
