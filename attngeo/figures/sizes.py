"""The scores of models against their numbers of parameters."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from attngeo.errors import DataError
from attngeo.figures.common import (
    add_chance_line,
    axis_title_of,
    escape_name,
    finish_figure,
    label_of,
    number_format_of,
    quartile_shares,
)
from attngeo.figures.options import PlotOptions
from attngeo.figures.palette import OTHER, ROLES, role_of
from attngeo.scores.spec import SCORES
from attngeo.scores.summary import statistic

# With more models than this, names beside the points would cover one another.
MOST_NAMED, LONGEST_NAME = 12, 28


def draw_sizes(summary: pd.DataFrame, published: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """Median score over layers against the number of parameters, with quartiles; a point for each stack and model.

    summary: rows of `attngeo.scores.summary.summarise`. published: rows of `published_scores`, drawn faintly behind the
    others, hollow if an erratum is known; they are left out if they lack the score. Raises DataError if no row has a
    number of parameters. Source: Saponati et al. 2025, Fig. 2 and S1.
    """
    if summary["parameters"].isna().all():
        raise DataError("the numbers of parameters are missing; write the rows again with attngeo score")
    figure = go.Figure()
    behind = options.published and options.score in published
    if behind:
        _add_published(figure, published, options.score)
    _add_measured(figure, summary[summary["parameters"].notna()], options.score)
    add_chance_line(figure, options.score)
    figure.update_layout(
        xaxis={"title": "parameters", "type": "log", "exponentformat": "B", "dtick": 1},
        yaxis={"title": axis_title_of(options.score)},
    )
    details = "bars: quartiles over layers"
    if behind:
        details += "; hollow: published value with a known error"
    return finish_figure(
        figure, f"median {label_of(options.score)} over layers against the number of parameters", details
    )


def _add_published(figure: go.Figure, published: pd.DataFrame, score: str) -> None:
    """The published models, clipped to the score's range, beyond which a few mistaken ones lie."""
    for role in map(str, published["role"].unique()):
        own = published[published["role"] == role]
        figure.add_scatter(
            x=own["parameters"], y=own[score].clip(SCORES[score].low, SCORES[score].high), mode="markers",
            name=f"published {role}s",
            marker={
                "color": ROLES[role], "size": 6, "opacity": 0.3,
                "symbol": ["circle-open" if erratum else "circle" for erratum in own["erratum"]],
            },
            customdata=[
                [escape_name(row.model), row.layers, "<br>" + str(row.erratum) if row.erratum else ""]
                for row in own.itertuples()
            ],
            hovertemplate="%{customdata[0]}, published<br>%{x:,} parameters, %{customdata[1]} layers<br>"
            f"{label_of(score)} %{{y:{number_format_of(score)}}}%{{customdata[2]}}<extra></extra>",
        )  # fmt: skip


def _add_measured(figure: go.Figure, sized: pd.DataFrame, score: str) -> None:
    """The median of each stack with a bar from quartile to quartile; named if there are few."""
    named = len(sized) <= MOST_NAMED
    for role, own in sized.groupby(sized["stack"].map(role_of), sort=False):
        lower, middle, upper = (own[statistic(score, place)].astype("float32") for place in quartile_shares())
        figure.add_scatter(
            x=own["parameters"].astype("int64"), y=middle, mode="markers+text" if named else "markers",
            text=[escape_name(row.model, LONGEST_NAME) for row in own.itertuples()] if named else None,
            textposition="middle right", textfont={"size": 11}, cliponaxis=False, name=escape_name(role),
            marker={"color": ROLES.get(str(role), OTHER), "size": 11, "line": {"color": "#FFFFFF", "width": 1}},
            error_y={"array": upper - middle, "arrayminus": middle - lower, "thickness": 1.5, "width": 4},
            customdata=[[escape_name(row.model), escape_name(row.stack), row.layers] for row in own.itertuples()],
            hovertemplate="%{customdata[0]}<br>%{x:,} parameters<br>%{customdata[1]}, %{customdata[2]} layers<br>"
            f"median {label_of(score)} %{{y:{number_format_of(score)}}}<extra></extra>",
        )  # fmt: skip
