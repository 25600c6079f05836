"""The scores of attention: layer by layer, head by head, model by model.

Every function takes rows of `attngeo.score(model, per_head=True)`, of one model or of several put together.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from attngeo.figures.common import (
    MEANING,
    QUARTILES,
    Score,
    counted,
    finished,
    heading,
    panels,
    plain,
    titled,
    zero_line,
)
from attngeo.figures.palette import DASHES, GUIDE, MISSING, OTHER, ROLES, SIGNED, SYMBOLS, colour_of, faded, role_of

# Pixels of a cell, and around the panel.
CELL_HEIGHT, LEAST_HEIGHT, AROUND = 18, 160, 130
# Points past which a browser draws on a canvas rather than one element each.
MANY_POINTS = 5_000
# Models past which names beside points would cover one another, and the characters of a name.
MOST_NAMED, MOST_OF_NAME = 12, 28


def heat_map(rows: pd.DataFrame, score: Score) -> go.Figure:
    """One score as a map of layers × heads, and of the whole layers beside it; a panel for each stack and model.

    The colours run from minus to plus the largest value there is, white being 0; missing scores are grey.
    """
    titles = titled(rows)
    shown = list(panels(rows))
    heights = [max(own["layer"].nunique() * CELL_HEIGHT, LEAST_HEIGHT) for _, _, own in shown]
    spacing = min(0.9 / max(len(shown) - 1, 1), 90 / (sum(heights) + AROUND))
    figure = make_subplots(
        rows=len(shown), cols=2, column_widths=[0.06, 0.94], horizontal_spacing=0.012, vertical_spacing=spacing,
        row_heights=heights, shared_yaxes=True,
        subplot_titles=[part for title in titles.values() for part in ("", title)],
    )  # fmt: skip
    for row, (model, stack, own) in enumerate(shown, 1):
        table = own.assign(head=own["head"].astype("Float64").fillna(-1)).pivot_table(
            index="layer", columns="head", values=score, aggfunc="first", dropna=False
        )
        for column, part in ((1, table[[-1]] if -1 in table else None), (2, table.drop(columns=-1, errors="ignore"))):
            if part is None or part.empty:
                continue
            name = "whole layer" if column == 1 else "head %{x}"
            x = ["all"] if column == 1 else [int(head) for head in part.columns]
            figure.add_heatmap(
                z=part.to_numpy(dtype="float32", na_value=np.nan), x=x, y=[int(layer) for layer in part.index],
                coloraxis="coloraxis", hoverongaps=False, row=row, col=column,
                hovertemplate=f"{plain(model)}<br>{plain(stack)}, layer %{{y}}, {name}<br>{score} %{{z:+.3f}}"
                "<extra></extra>",
            )  # fmt: skip
            ticks = counted(part.columns) if column == 2 else {"tickvals": ["all"]}
            figure.update_xaxes(title="head" if column == 2 else None, showgrid=False, **ticks, row=row, col=column)
        figure.update_yaxes(title="layer", **counted(table.index), row=row, col=1)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    largest = _largest(rows[score])
    bar = {"title": {"text": score, "side": "right"}}
    figure.update_layout(
        coloraxis={"colorscale": SIGNED, "cmin": -largest, "cmax": largest, "colorbar": bar},
        height=sum(heights) + AROUND + 70 * (len(shown) - 1), plot_bgcolor=MISSING,
    )  # fmt: skip
    return finished(figure, heading(rows, f"{score} of W_qk"))


def _largest(values: pd.Series) -> float:
    """The largest magnitude, rounded up to a tenth; 1 where there is no value."""
    largest = values.abs().max()
    return 1.0 if not largest > 0 else math.ceil(float(largest) * 10) / 10


def score_by_layer(rows: pd.DataFrame, score: Score) -> go.Figure:
    """One score against the layer: a line for the whole layers of each stack, and a band for the quartiles of heads."""
    names = titled(rows)
    figure = go.Figure()
    used: dict[str, int] = {}
    for model, stack, own in panels(rows):
        number = used[role_of(stack)] = used.get(role_of(stack), -1) + 1
        colour, dash = colour_of(stack), DASHES[number % len(DASHES)]
        name = names[model, stack] or plain(stack)
        heads = own[own["head"].notna()].groupby("layer")[score].quantile(np.array(list(QUARTILES.values()))).unstack()
        heads = heads.astype("float32")
        edge = {"mode": "lines", "line_width": 0, "showlegend": False, "hoverinfo": "skip", "legendgroup": name}
        if not heads.empty:
            figure.add_scatter(x=heads.index, y=heads[0.75], **edge)
            figure.add_scatter(x=heads.index, y=heads[0.25], fill="tonexty", fillcolor=faded(colour), **edge)
        layers = own[own["head"].isna()].set_index("layer")[score].astype("float32")
        spread = heads.reindex(layers.index, columns=list(QUARTILES.values()))
        figure.add_scatter(
            x=layers.index, y=layers, name=name, legendgroup=name, mode="lines+markers",
            line={"color": colour, "width": 2.5, "dash": dash}, marker={"size": 6},
            customdata=spread.to_numpy(dtype="float32", na_value=np.nan),
            hovertemplate=f"{plain(model)}<br>{plain(stack)}, layer %{{x}}<br>{score} %{{y:+.3f}}<br>its heads: median "
            "%{customdata[1]:+.3f}, quartiles %{customdata[0]:+.3f} to %{customdata[2]:+.3f}<extra></extra>",
        )  # fmt: skip
    zero_line(figure)
    figure.update_layout(
        xaxis={"title": "layer", **counted(pd.Index(rows["layer"]))}, yaxis={"title": MEANING[score]},
    )  # fmt: skip
    return finished(figure, heading(rows, f"{score} of each layer, and quartiles over its heads"))


def symmetry_against_directionality(rows: pd.DataFrame) -> go.Figure:
    """A point for each head: its directionality against its symmetry."""
    names = titled(rows)
    figure = go.Figure()
    used: dict[str, int] = {}
    heads = rows[rows["head"].notna()]
    kind = go.Scattergl if len(heads) > MANY_POINTS else go.Scatter
    for model, stack, own in panels(heads):
        number = used[role_of(stack)] = used.get(role_of(stack), -1) + 1
        figure.add_trace(kind(
            x=own["symmetry"].astype("float32"), y=own["directionality"].astype("float32"), mode="markers",
            name=names[model, stack] or plain(stack),
            marker={"color": colour_of(stack), "symbol": SYMBOLS[number % len(SYMBOLS)], "size": 7, "opacity": 0.65},
            customdata=own[["layer", "head"]].to_numpy(dtype="int32"),
            hovertemplate=f"{plain(model)}<br>{plain(stack)}, layer %{{customdata[0]}}, head %{{customdata[1]}}<br>"
            "symmetry %{x:+.3f}<br>directionality %{y:+.3f}<extra></extra>",
        ))  # fmt: skip
    zero_line(figure)
    figure.add_vline(x=0, line={"color": GUIDE, "width": 1, "dash": "dot"})
    figure.update_layout(xaxis_title=MEANING["symmetry"], yaxis_title=MEANING["directionality"])
    return finished(figure, heading(rows, "symmetry and directionality of each head"))


def score_by_size(summary: pd.DataFrame, score: Score, published: pd.DataFrame | None = None) -> go.Figure:
    """Median score over layers against the number of parameters, with quartiles; a point for each stack and model.

    summary: rows of `attngeo.scores.summary.summarise`. published: rows of `published_scores`, shown faintly
    behind, hollow where there is an erratum. Source: Saponati et al. 2025, Fig. 2 and S1.
    """
    figure = go.Figure()
    if published is not None:
        for role in map(str, published["role"].unique()):
            own = published[published["role"] == role]
            figure.add_scatter(
                x=own["parameters"], y=own[score].clip(-1, 1), mode="markers", name=f"published {role}s",
                marker={
                    "color": ROLES[role], "size": 6, "opacity": 0.3,
                    "symbol": ["circle-open" if erratum else "circle" for erratum in own["erratum"]],
                },
                customdata=[
                    [plain(r.model), r.layers, "<br>" * bool(r.erratum) + str(r.erratum)] for r in own.itertuples()
                ],
                hovertemplate=f"%{{customdata[0]}}, published<br>%{{x:,}} parameters, %{{customdata[1]}} layers<br>"
                f"{score} %{{y:+.3f}}%{{customdata[2]}}<extra></extra>",
            )  # fmt: skip
    sized = summary[summary["parameters"].notna()]
    named = len(sized) <= MOST_NAMED
    for stack, own in sized.groupby(sized["stack"].map(role_of), sort=False):
        lower, middle, upper = (own[f"{score}_{place}"].astype("float32") for place in QUARTILES)
        figure.add_scatter(
            x=own["parameters"].astype("int64"), y=middle, mode="markers+text" if named else "markers",
            text=[plain(r.model, MOST_OF_NAME) for r in own.itertuples()] if named else None,
            textposition="top center", textfont={"size": 11}, cliponaxis=False, name=plain(stack),
            marker={"color": ROLES.get(str(stack), OTHER), "size": 11, "line": {"color": "#FFFFFF", "width": 1}},
            error_y={"array": upper - middle, "arrayminus": middle - lower, "thickness": 1.5, "width": 4},
            customdata=[[plain(r.model), plain(r.stack), r.layers] for r in own.itertuples()],
            hovertemplate="%{customdata[0]}<br>%{x:,} parameters<br>%{customdata[1]}, %{customdata[2]} layers<br>"
            f"median {score} %{{y:+.3f}}<extra></extra>",
        )  # fmt: skip
    zero_line(figure)
    figure.update_layout(
        xaxis={"title": "parameters", "type": "log", "exponentformat": "B", "dtick": 1},
        yaxis={"title": MEANING[score]},
    )  # fmt: skip
    details = "bars: quartiles over layers" + "; hollow: a published number with a known mistake" * (
        published is not None
    )
    return finished(figure, f"median {score} over layers against the number of parameters", details)
