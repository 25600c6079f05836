"""Scores against the number of parameters, of the user's models and of the published ones."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from attngeo.errors import DataError
from attngeo.figures.kinds import PlotOptions
from attngeo.figures.style import (
    OTHER,
    ROLES,
    add_chance_line,
    axis_title_of,
    escape_name,
    escape_names,
    fade,
    finish_figure,
    hover_of,
    label_of,
    role_of,
)
from attngeo.scores.spec import SCORES
from attngeo.scores.summary import QUARTILES, statistic, summarise

# With more models than this, names beside the points would cover one another.
MOST_NAMED = 12
# Characters of a name beside its point.
NAME_LENGTH = 28


def draw_sizes(rows: pd.DataFrame, published: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """Median score over layers against the number of parameters, with quartiles; a point for each stack and model.

    Source: Saponati et al. 2025, Fig. 2, S1 and S2.

    Args:
        rows: rows of `attngeo.score`, with parameters.
        published: the published models, which are drawn faintly behind the others, hollow if an erratum is known.
        options: `score` names the score, `published` shows the published models.

    Returns:
        A figure. If it has scores of both conventions, its title says which are whose.

    Raises:
        DataError: no row has a number of parameters.
    """
    summary = summarise(rows)
    summary["convention"] = _list_conventions(rows, summary)
    if summary["parameters"].isna().all():
        raise DataError("the numbers of parameters are missing; write the rows again with attngeo score")
    figure = go.Figure()
    shows_published = options.published and options.score in published
    if shows_published:
        _add_published(figure, published, options.score)
    _add_measured(figure, summary[summary["parameters"].notna()], options.score)
    add_chance_line(figure, options.score)
    figure.update_layout(
        xaxis={"title": "parameters", "type": "log", "exponentformat": "B", "dtick": 1},
        yaxis={"title": axis_title_of(options.score)},
    )
    details = ["bars: quartiles over layers"]
    conventions = sorted(summary["convention"].unique())
    if shows_published:
        details.append("hollow: published value with a known error")
    if conventions != ["published"] and shows_published:
        details.append(f"faint points: published convention, models: {' and '.join(conventions)}")
    elif len(conventions) > 1:
        details.append("models of both conventions, corrected and published")
    title = f"median {label_of(options.score)} over layers against the number of parameters"
    return finish_figure(figure, title, "; ".join(details))


def _list_conventions(rows: pd.DataFrame, summary: pd.DataFrame) -> list[str]:
    """The convention of each stack of a summary, of the notes of its rows."""
    notes = rows["note"].astype("str") if "note" in rows else pd.Series("", rows.index)
    noted = rows[notes.str.contains("published convention")]
    published = {*zip(noted["model"], noted["stack"], strict=True)}
    stacks = zip(summary["model"], summary["stack"], strict=True)
    return ["published" if stack in published else "corrected" for stack in stacks]


def _add_published(figure: go.Figure, published: pd.DataFrame, score: str) -> None:
    """Add the published models, clipped to the score's range, beyond which a few mistaken ones lie."""
    spec = SCORES[score]
    for role in map(str, published["role"].unique()):
        models = published[published["role"] == role]
        lower = models[f"{score}_lower"].clip(spec.low, spec.high)
        middle = models[score].clip(spec.low, spec.high)
        upper = models[f"{score}_upper"].clip(spec.low, spec.high)
        hovers = []
        for model in models.itertuples():
            erratum = "<br>" + str(model.erratum) if model.erratum else ""
            hovers.append([escape_name(model.model), model.layers, erratum])
        figure.add_scatter(
            x=models["parameters"],
            y=middle,
            mode="markers",
            name=f"published {role}s",
            error_y={
                "array": upper - middle,
                "arrayminus": middle - lower,
                "thickness": 1,
                "width": 0,
                "color": fade(ROLES[role]),
            },
            marker={
                "color": ROLES[role],
                "size": 6,
                "opacity": 0.3,
                "symbol": ["circle-open" if erratum else "circle" for erratum in models["erratum"]],
            },
            customdata=hovers,
            hovertemplate="%{customdata[0]}, published<br>%{x:,} parameters, %{customdata[1]} layers<br>"
            f"{hover_of(score)}%{{customdata[2]}}<extra></extra>",
        )


def _add_measured(figure: go.Figure, summary: pd.DataFrame, score: str) -> None:
    """Add the median of each stack with a bar from quartile to quartile; named if there are few."""
    are_named = len(summary) <= MOST_NAMED
    for role, stacks in summary.groupby(summary["stack"].map(role_of), sort=False):
        lower, middle, upper = (stacks[statistic(score, name)].astype("float32") for name in QUARTILES)
        names = escape_names(stacks["model"], NAME_LENGTH)
        hovers = [
            [escape_name(stack.model), escape_name(stack.stack), stack.layers, stack.convention]
            for stack in stacks.itertuples()
        ]
        figure.add_scatter(
            x=stacks["parameters"].astype("int64"),
            y=middle,
            mode="markers+text" if are_named else "markers",
            text=names if are_named else None,
            textposition="middle right",
            textfont={"size": 11},
            cliponaxis=False,
            name=escape_name(role),
            marker={"color": ROLES.get(str(role), OTHER), "size": 11, "line": {"color": "#FFFFFF", "width": 1}},
            error_y={"array": upper - middle, "arrayminus": middle - lower, "thickness": 1.5, "width": 4},
            customdata=hovers,
            hovertemplate="%{customdata[0]}<br>%{x:,} parameters<br>%{customdata[1]}, %{customdata[2]} layers<br>"
            f"median {hover_of(score)} (%{{customdata[3]}})<extra></extra>",
        )
