"""The scores of attention layer by layer, head by head and by the size of models; and one matrix.

Functions take rows of `attngeo.score(model, per_head=True)`, of one model or of several joined.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from attngeo.choices import one_of
from attngeo.errors import DataError
from attngeo.figures.kinds import PlotOptions
from attngeo.figures.style import (
    DASHES,
    GUIDE,
    MAGNITUDE,
    MARKED,
    MISSING,
    OBJECTIVE_NAMES,
    OBJECTIVES,
    OTHER,
    ROLES,
    SIGNED,
    SYMBOLS,
    Panel,
    add_band,
    add_chance_line,
    axis_title_of,
    chance_of,
    choose_ticks,
    compose_title,
    escape_name,
    fade,
    finish_figure,
    label_of,
    number_format_of,
    quartiles_by,
    role_of,
    split_panels,
    tell_apart,
)
from attngeo.scores.spec import SCORES
from attngeo.scores.summary import QUARTILES, statistic, summarise

# Pixels: the height of a cell, the least height of a panel, and the room between panels and around them.
CELL_HEIGHT, LEAST_HEIGHT, BETWEEN, AROUND = 18, 160, 70, 130
# With more points than this, a browser draws on a canvas instead of making one element for each.
MANY_POINTS = 5_000
# Tokens of a sequence that axes have room to name; pixels of a token on both axes, and around their map.
MOST_TOKENS, TOKEN, MARGIN = 64, 11, 220
# The column of a pivot table that holds whole layers, which have no head.
WHOLE = -1


def draw_heatmap(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """One score as a map of layers × heads, with the whole layers beside it; one panel for each stack and model.

    White is the chance level; the colours end at the value that is furthest from it, rounded up to a tenth. Missing
    scores are grey.
    """
    score, panels = options.score, split_panels(rows)
    heights = [max(panel.rows["layer"].nunique() * CELL_HEIGHT, LEAST_HEIGHT) for panel in panels]
    figure = make_subplots(
        rows=len(panels), cols=2, column_widths=[0.06, 0.94], horizontal_spacing=0.012,
        vertical_spacing=min(0.9 / max(len(panels) - 1, 1), 90 / (sum(heights) + AROUND)),
        row_heights=heights, shared_yaxes=True,
        subplot_titles=[title for panel in panels for title in ("", panel.name)],
    )  # fmt: skip
    for row, panel in enumerate(panels, 1):
        _add_map(figure, panel, score, row)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    middle = chance_of(score)
    largest = float((rows[score] - middle).abs().max())
    reach = math.ceil(largest * 10) / 10 if largest > 0 else 1.0
    figure.update_layout(
        coloraxis={
            "colorscale": SIGNED, "cmin": middle - reach, "cmax": middle + reach,
            "colorbar": {"title": {"text": label_of(score), "side": "right"}},
        },
        height=sum(heights) + AROUND + BETWEEN * (len(panels) - 1), plot_bgcolor=MISSING,
    )  # fmt: skip
    return finish_figure(figure, compose_title(rows, f"{label_of(score)} of W_qk"))


def _add_map(figure: go.Figure, panel: Panel, score: str, row: int) -> None:
    """The whole layers of one stack in the first column of subplots, its heads in the second."""
    table = panel.rows.assign(head=panel.rows["head"].astype("Float64").fillna(WHOLE)).pivot_table(
        index="layer", columns="head", values=score, aggfunc="first", dropna=False
    )
    is_layer = table.columns == WHOLE
    layers, heads = table.loc[:, is_layer], table.loc[:, ~is_layer]
    for column, part in ((1, layers), (2, heads)):
        if part.empty:
            continue
        hovered = "whole layer" if column == 1 else "head %{x}"
        figure.add_heatmap(
            z=part.to_numpy(dtype="float32", na_value=np.nan), y=[int(layer) for layer in part.index],
            x=["all"] if column == 1 else [int(head) for head in part.columns],
            coloraxis="coloraxis", hoverongaps=False, row=row, col=column,
            hovertemplate=f"{panel.hover}, layer %{{y}}, {hovered}<br>{label_of(score)} "
            f"%{{z:{number_format_of(score)}}}<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(showgrid=False, tickvals=["all"], row=row, col=1)
    if not heads.empty:
        figure.update_xaxes(title="head", showgrid=False, **choose_ticks(heads.columns), row=row, col=2)
    figure.update_yaxes(title="layer", **choose_ticks(table.index), row=row, col=1)


def draw_layers(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """One score against the layer: a line for the whole layers of each stack, a band for the quartiles of its heads."""
    score, number, figure = options.score, number_format_of(options.score), go.Figure()
    for panel in split_panels(rows):
        colour, dash = tell_apart(panel, DASHES)
        part, name = panel.rows, panel.name or escape_name(panel.stack)
        heads = quartiles_by(part[part["head"].notna()], "layer", score).astype("float32")
        if not heads.empty:
            add_band(figure, heads["lower"], heads["upper"], colour, name)
        layers = part[part["head"].isna()].set_index("layer")[score].astype("float32")
        figure.add_scatter(
            x=layers.index, y=layers, name=name, legendgroup=name, mode="lines+markers",
            line={"color": colour, "width": 2.5, "dash": dash}, marker={"size": 6},
            customdata=heads.reindex(layers.index).to_numpy(dtype="float32", na_value=np.nan),
            hovertemplate=f"{panel.hover}, layer %{{x}}<br>"
            f"{label_of(score)} %{{y:{number}}}<br>its heads: median %{{customdata[1]:{number}}}, "
            f"quartiles %{{customdata[0]:{number}}} to %{{customdata[2]:{number}}}<extra></extra>",
        )  # fmt: skip
    add_chance_line(figure, score)
    figure.update_layout(
        xaxis={"title": "layer", **choose_ticks(pd.Index(rows["layer"]))}, yaxis={"title": axis_title_of(score)}
    )
    return finish_figure(figure, compose_title(rows, f"{label_of(score)} of each layer, with quartiles over its heads"))


def draw_heads(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001 - every kind takes options
    """One point for each head: its directionality against its symmetry. Raises DataError if there are no heads."""
    heads = rows[rows["head"].notna()]
    if heads.empty:
        raise DataError("the rows of heads are missing; write them with attngeo score --per-head")
    figure = go.Figure()
    trace = go.Scattergl if len(heads) > MANY_POINTS else go.Scatter
    for panel in split_panels(heads):
        colour, symbol = tell_apart(panel, SYMBOLS)
        part = panel.rows
        figure.add_trace(trace(
            x=part["symmetry"].astype("float32"), y=part["directionality"].astype("float32"), mode="markers",
            name=panel.name or escape_name(panel.stack),
            marker={"color": colour, "symbol": symbol, "size": 7, "opacity": 0.65},
            customdata=part[["layer", "head"]].to_numpy(dtype="int32"),
            hovertemplate=f"{panel.hover}, layer %{{customdata[0]}}, "
            "head %{customdata[1]}<br>symmetry %{x:+.3f}<br>directionality %{y:+.3f}<extra></extra>",
        ))  # fmt: skip
    add_chance_line(figure, "directionality")
    add_chance_line(figure, "symmetry", axis="x")
    figure.update_layout(xaxis_title=axis_title_of("symmetry"), yaxis_title=axis_title_of("directionality"))
    return finish_figure(figure, compose_title(rows, "symmetry and directionality of each head"))


# With more models than this, names beside the points would cover one another.
MOST_NAMED, NAME_LENGTH = 12, 28


def draw_sizes(rows: pd.DataFrame, published: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """Median score over layers against the number of parameters, with quartiles; a point for each stack and model.

    published: the published models, which are drawn faintly behind the others, hollow if an erratum is known. If the
    picture has scores of both conventions, its title says which are whose. Raises DataError if no row has a number of
    parameters. Source: Saponati et al. 2025, Fig. 2, S1 and S2.
    """
    summary = summarise(rows)
    summary["convention"] = _list_conventions(rows, summary)
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
    details = ["bars: quartiles over layers"]
    conventions = sorted(summary["convention"].unique())
    if behind:
        details.append("hollow: published value with a known error")
    if conventions != ["published"] and behind:
        details.append(f"faint points: published convention, models: {' and '.join(conventions)}")
    elif len(conventions) > 1:
        details.append("models of both conventions, corrected and published")
    return finish_figure(
        figure, f"median {label_of(options.score)} over layers against the number of parameters", "; ".join(details)
    )


def _list_conventions(rows: pd.DataFrame, summary: pd.DataFrame) -> list[str]:
    """The convention of each stack of a summary, of the notes of its rows."""
    notes = rows["note"].astype("str") if "note" in rows else pd.Series("", rows.index)
    noted = rows[notes.str.contains("published convention")]
    published = {*zip(noted["model"], noted["stack"], strict=True)}
    stacks = zip(summary["model"], summary["stack"], strict=True)
    return ["published" if stack in published else "corrected" for stack in stacks]


def _add_published(figure: go.Figure, published: pd.DataFrame, score: str) -> None:
    """The published models, clipped to the score's range, beyond which a few mistaken ones lie."""
    for role in map(str, published["role"].unique()):
        part = published[published["role"] == role]
        lower, middle, upper = (
            part[name].clip(SCORES[score].low, SCORES[score].high)
            for name in (f"{score}_lower", score, f"{score}_upper")
        )
        figure.add_scatter(
            x=part["parameters"], y=middle, mode="markers", name=f"published {role}s",
            error_y={"array": upper - middle, "arrayminus": middle - lower, "thickness": 1, "width": 0,
                     "color": fade(ROLES[role])},
            marker={
                "color": ROLES[role], "size": 6, "opacity": 0.3,
                "symbol": ["circle-open" if erratum else "circle" for erratum in part["erratum"]],
            },
            customdata=[
                [escape_name(row.model), row.layers, "<br>" + str(row.erratum) if row.erratum else ""]
                for row in part.itertuples()
            ],
            hovertemplate="%{customdata[0]}, published<br>%{x:,} parameters, %{customdata[1]} layers<br>"
            f"{label_of(score)} %{{y:{number_format_of(score)}}}%{{customdata[2]}}<extra></extra>",
        )  # fmt: skip


def _add_measured(figure: go.Figure, sized: pd.DataFrame, score: str) -> None:
    """The median of each stack with a bar from quartile to quartile; named if there are few."""
    named = len(sized) <= MOST_NAMED
    for role, part in sized.groupby(sized["stack"].map(role_of), sort=False):
        lower, middle, upper = (part[statistic(score, place)].astype("float32") for place in QUARTILES)
        figure.add_scatter(
            x=part["parameters"].astype("int64"), y=middle, mode="markers+text" if named else "markers",
            text=[escape_name(row.model, NAME_LENGTH) for row in part.itertuples()] if named else None,
            textposition="middle right", textfont={"size": 11}, cliponaxis=False, name=escape_name(role),
            marker={"color": ROLES.get(str(role), OTHER), "size": 11, "line": {"color": "#FFFFFF", "width": 1}},
            error_y={"array": upper - middle, "arrayminus": middle - lower, "thickness": 1.5, "width": 4},
            customdata=[
                [escape_name(row.model), escape_name(row.stack), row.layers, row.convention]
                for row in part.itertuples()
            ],
            hovertemplate="%{customdata[0]}<br>%{x:,} parameters<br>%{customdata[1]}, %{customdata[2]} layers<br>"
            f"median {label_of(score)} %{{y:{number_format_of(score)}}} (%{{customdata[3]}})<extra></extra>",
        )  # fmt: skip


# Points of the line in a margin; every outlier has a point of its own besides.
MARGIN_POINTS = 1024
# Where the shades end, so that a few large entries do not leave all others white.
DARKEST = 0.995


def draw_matrix(cells: pd.DataFrame, norms: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001
    """|W_qk| as shades, with the norms of its rows at the right and of its columns on top; outliers are marked.

    cells, norms: of `attngeo.scores.computing.query_key_matrix`, whose `attrs` name the matrix. The shades end at the
    99.5th percentile; larger entries are black, too. Source: Saponati et al. 2025, Fig. 2 (examples).
    """
    about = cells.attrs
    figure = make_subplots(
        rows=2, cols=2, column_widths=[0.84, 0.16], row_heights=[0.16, 0.84], shared_xaxes=True, shared_yaxes=True,
        horizontal_spacing=0.015, vertical_spacing=0.015,
    )  # fmt: skip
    edge = about["edge"]
    span = f" and the next {edge - 1}" if edge > 1 else ""
    figure.add_heatmap(
        z=cells.to_numpy(dtype="float32"), x=cells.columns, y=cells.index, colorscale=MAGNITUDE, zmin=0,
        zmax=float(np.quantile(cells.to_numpy(), DARKEST)), colorbar={"title": "largest |entry|", "x": 1.02},
        hovertemplate=f"row %{{y}}{span}<br>column %{{x}}{span}<br>largest |entry| %{{z:.3g}}<extra></extra>",
        row=2, col=1,
    )  # fmt: skip
    for axis, place in (("column", {"row": 1, "col": 1}), ("row", {"row": 2, "col": 2})):
        _add_margin(figure, norms[norms["axis"] == axis], axis, place)
    width = len(cells) * edge
    figure.update_xaxes(title="column (key dimension)", row=2, col=1)
    figure.update_yaxes(title="row (query dimension)", row=2, col=1)
    figure.update_xaxes(range=[-0.5, width - 0.5], col=1)
    figure.update_yaxes(range=[width - 0.5, -0.5], row=2)
    # The label 0 of this axis would cover that of the rows.
    figure.update_yaxes(title="norm", rangemode="tozero", ticklabelshift=-7, row=1, col=1)
    figure.update_xaxes(title="norm", rangemode="tozero", row=2, col=2)
    figure.update_layout(height=720)
    outliers = norms[norms["outlier"]]["axis"].value_counts()
    name = f"layer {about['layer']}" if about["head"] is None else f"head {about['head']} of layer {about['layer']}"
    return finish_figure(
        figure, f"{escape_name(about['model'])}: |W_qk| of {name} ({escape_name(about['stack'])})",
        f"outliers: {outliers.get('row', 0)} rows and {outliers.get('column', 0)} columns with a norm above "
        f"mean + {about['gamma']:g}·std",
    )  # fmt: skip


def _add_margin(figure: go.Figure, norms: pd.DataFrame, axis: str, place: dict[str, int]) -> None:
    """Norms as a line, of every few the largest, and each outlier as a point."""
    width = -(-len(norms) // MARGIN_POINTS)
    largest = norms.loc[norms.groupby(norms["index"] // width)["norm"].idxmax()]
    for rows, look in (
        (largest, {"mode": "lines", "line": {"color": GUIDE, "width": 1}}),
        (norms[norms["outlier"]], {"mode": "markers", "marker": {"color": MARKED, "size": 5}}),
    ):
        positions, values = rows["index"].to_numpy("int32"), rows["norm"].to_numpy("float32")
        if axis == "column":
            points = {"x": positions, "y": values, "hovertemplate": "column %{x}<br>norm %{y:.4g}<extra></extra>"}
        else:
            points = {"x": values, "y": positions, "hovertemplate": "row %{y}<br>norm %{x:.4g}<extra></extra>"}
        figure.add_scatter(showlegend=False, **points, **look, **place)


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
    if len(names) <= MOST_TOKENS:  # a token may occur twice, so that axes have numbers
        figure.update_xaxes(tickvals=list(range(len(names))), ticktext=names, tickangle=-90)
        figure.update_yaxes(tickvals=list(range(len(names))), ticktext=names)
    figure.update_xaxes(title="attended to", showgrid=False, zeroline=False, automargin=True)
    figure.update_yaxes(
        title="token that attends", showgrid=False, zeroline=False, automargin=True, autorange="reversed"
    )
    figure.update_layout(height=max(len(names), 24) * TOKEN + MARGIN, width=max(len(names), 24) * TOKEN + MARGIN + 120)
    return finish_figure(figure, compose_title(rows, "gradients by attention logits"), what)
