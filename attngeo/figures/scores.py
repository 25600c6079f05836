"""The scores of attention layer by layer, head by head and by the size of models; one matrix, and its updates.

Functions take rows of `attngeo.score(model, per_head=True)`, of one model or of several joined.
"""

from __future__ import annotations

import math
from typing import Any

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
    escape_names,
    fade,
    finish_figure,
    hover_of,
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
# Tokens of a sequence that axes have room to name, and the fewest that a map is made for.
MOST_TOKENS, FEWEST_TOKENS = 64, 24
# Pixels of a token on both axes, and around their map.
TOKEN, MARGIN = 11, 220
# The column of a pivot table that holds whole layers, which have no head.
WHOLE = -1


def draw_heatmap(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """One score as a map of layers × heads, with the whole layers beside it; one panel for each stack and model.

    White is the chance level; the colours end at the value that is furthest from it, rounded up to a tenth. Missing
    scores are grey.

    Args:
        rows: rows of `attngeo.score`: model, stack, layer, head, and the score.
        options: `score` names the score.

    Returns:
        A figure of two columns: whole layers, and heads.
    """
    score = options.score
    panels = split_panels(rows)
    heights = [max(panel.rows["layer"].nunique() * CELL_HEIGHT, LEAST_HEIGHT) for panel in panels]
    titles = []
    for panel in panels:
        titles += ["", panel.name]
    widest_spacing = 0.9 / max(len(panels) - 1, 1)
    figure = make_subplots(
        rows=len(panels),
        cols=2,
        column_widths=[0.06, 0.94],
        horizontal_spacing=0.012,
        vertical_spacing=min(widest_spacing, 90 / (sum(heights) + AROUND)),
        row_heights=heights,
        shared_yaxes=True,
        subplot_titles=titles,
    )
    for row, panel in enumerate(panels, 1):
        _add_map(figure, panel, score, row)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    middle = chance_of(score)
    largest = float((rows[score] - middle).abs().max())
    reach = math.ceil(largest * 10) / 10 if largest > 0 else 1.0
    bar = {"title": {"text": label_of(score), "side": "right"}}
    figure.update_layout(
        coloraxis={"colorscale": SIGNED, "cmin": middle - reach, "cmax": middle + reach, "colorbar": bar},
        height=sum(heights) + AROUND + BETWEEN * (len(panels) - 1),
        plot_bgcolor=MISSING,
    )
    return finish_figure(figure, compose_title(rows, f"{label_of(score)} of W_qk"))


def _add_map(figure: go.Figure, panel: Panel, score: str, row: int) -> None:
    """Add the whole layers of one stack in the first column of subplots, its heads in the second."""
    heads_or_whole = panel.rows["head"].astype("Float64").fillna(WHOLE)
    table = panel.rows.assign(head=heads_or_whole).pivot_table(
        index="layer", columns="head", values=score, aggfunc="first", dropna=False
    )
    layers = table.loc[:, table.columns == WHOLE]
    heads = table.loc[:, table.columns != WHOLE]
    for column, cells, names, hover in (
        (1, layers, ["all"], "whole layer"),
        (2, heads, [int(head) for head in heads.columns], "head %{x}"),
    ):
        if cells.empty:
            continue
        figure.add_heatmap(
            z=cells.to_numpy(dtype="float32", na_value=np.nan),
            y=[int(layer) for layer in cells.index],
            x=names,
            coloraxis="coloraxis",
            hoverongaps=False,
            row=row,
            col=column,
            hovertemplate=f"{panel.hover}, layer %{{y}}, {hover}<br>{hover_of(score, 'z')}<extra></extra>",
        )
    figure.update_xaxes(showgrid=False, tickvals=["all"], row=row, col=1)
    if not heads.empty:
        figure.update_xaxes(title="head", showgrid=False, **choose_ticks(heads.columns), row=row, col=2)
    figure.update_yaxes(title="layer", **choose_ticks(table.index), row=row, col=1)


def draw_layers(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """One score against the layer: a line for the whole layers of each stack, a band for the quartiles of its heads.

    Args:
        rows: rows of `attngeo.score`: model, stack, layer, head, and the score.
        options: `score` names the score.

    Returns:
        A figure of one line for each stack of each model.
    """
    score = options.score
    number_format = number_format_of(score)
    figure = go.Figure()
    for panel in split_panels(rows):
        colour, dash = tell_apart(panel, DASHES)
        name = panel.name or escape_name(panel.stack)
        is_head = panel.rows["head"].notna()
        heads = quartiles_by(panel.rows[is_head], "layer", score).astype("float32")
        if not heads.empty:
            add_band(figure, heads["lower"], heads["upper"], colour, name)
        layers = panel.rows[~is_head].set_index("layer")[score].astype("float32")
        figure.add_scatter(
            x=layers.index,
            y=layers,
            name=name,
            legendgroup=name,
            mode="lines+markers",
            line={"color": colour, "width": 2.5, "dash": dash},
            marker={"size": 6},
            customdata=heads.reindex(layers.index).to_numpy(dtype="float32", na_value=np.nan),
            hovertemplate=f"{panel.hover}, layer %{{x}}<br>"
            f"{hover_of(score)}<br>its heads: median %{{customdata[1]:{number_format}}}, "
            f"quartiles %{{customdata[0]:{number_format}}} to %{{customdata[2]:{number_format}}}<extra></extra>",
        )
    add_chance_line(figure, score)
    figure.update_layout(
        xaxis={"title": "layer", **choose_ticks(pd.Index(rows["layer"]))}, yaxis={"title": axis_title_of(score)}
    )
    return finish_figure(figure, compose_title(rows, f"{label_of(score)} of each layer, with quartiles over its heads"))


def draw_heads(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001 - every kind takes options
    """One point for each head: its directionality against its symmetry.

    Args:
        rows: rows of `attngeo.score(model, per_head=True)`: model, stack, layer, head, symmetry, directionality.
        options: unused; every kind takes them.

    Returns:
        A figure of one colour and symbol for each stack of each model.

    Raises:
        DataError: there are no heads.
    """
    heads = rows[rows["head"].notna()]
    if heads.empty:
        raise DataError("the rows of heads are missing; write them with attngeo score --per-head")
    figure = go.Figure()
    trace = go.Scattergl if len(heads) > MANY_POINTS else go.Scatter
    for panel in split_panels(heads):
        colour, symbol = tell_apart(panel, SYMBOLS)
        points = trace(
            x=panel.rows["symmetry"].astype("float32"),
            y=panel.rows["directionality"].astype("float32"),
            mode="markers",
            name=panel.name or escape_name(panel.stack),
            marker={"color": colour, "symbol": symbol, "size": 7, "opacity": 0.65},
            customdata=panel.rows[["layer", "head"]].to_numpy(dtype="int32"),
            hovertemplate=f"{panel.hover}, layer %{{customdata[0]}}, "
            "head %{customdata[1]}<br>symmetry %{x:+.3f}<br>directionality %{y:+.3f}<extra></extra>",
        )
        figure.add_trace(points)
    add_chance_line(figure, "directionality")
    add_chance_line(figure, "symmetry", axis="x")
    figure.update_layout(xaxis_title=axis_title_of("symmetry"), yaxis_title=axis_title_of("directionality"))
    return finish_figure(figure, compose_title(rows, "symmetry and directionality of each head"))


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


# Points of the line in a margin; every outlier has a point of its own besides.
MARGIN_POINTS = 1024
# The quantile at which the shades end, so that a few large entries do not leave all others white.
DARKEST = 0.995


def draw_matrix(cells: pd.DataFrame, norms: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001
    """|W_qk| as shades, with the norms of its rows at the right and of its columns on top; outliers are marked.

    The shades end at the 99.5th percentile; larger entries are black, too.
    Source: Saponati et al. 2025, Fig. 2 (examples).

    Args:
        cells: the first table of `attngeo.query_key_matrix`, whose `attrs` name the matrix.
        norms: the second table of `attngeo.query_key_matrix`.
        options: unused; every kind takes them.

    Returns:
        A figure of the matrix and its two margins.
    """
    matrix = cells.attrs
    figure = make_subplots(
        rows=2,
        cols=2,
        column_widths=[0.84, 0.16],
        row_heights=[0.16, 0.84],
        shared_xaxes=True,
        shared_yaxes=True,
        horizontal_spacing=0.015,
        vertical_spacing=0.015,
    )
    edge = matrix["edge"]
    span = f" and the next {edge - 1}" if edge > 1 else ""
    figure.add_heatmap(
        z=cells.to_numpy(dtype="float32"),
        x=cells.columns,
        y=cells.index,
        colorscale=MAGNITUDE,
        zmin=0,
        zmax=float(np.quantile(cells.to_numpy(), DARKEST)),
        colorbar={"title": "largest |entry|", "x": 1.02},
        hovertemplate=f"row %{{y}}{span}<br>column %{{x}}{span}<br>largest |entry| %{{z:.3g}}<extra></extra>",
        row=2,
        col=1,
    )
    _add_margin(figure, norms[norms["axis"] == "column"], "column", {"row": 1, "col": 1})
    _add_margin(figure, norms[norms["axis"] == "row"], "row", {"row": 2, "col": 2})
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
    name = f"layer {matrix['layer']}"
    if matrix["head"] is not None:
        name = f"head {matrix['head']} of {name}"
    title = f"{escape_name(matrix['model'])}: |W_qk| of {name} ({escape_name(matrix['stack'])})"
    details = (
        f"outliers: {outliers.get('row', 0)} rows and {outliers.get('column', 0)} columns with a norm above "
        f"mean + {matrix['gamma']:g}·std"
    )
    return finish_figure(figure, title, details)


def _add_margin(figure: go.Figure, norms: pd.DataFrame, axis: str, subplot: dict[str, int]) -> None:
    """Add norms as a line, of every few the largest, and each outlier as a point."""
    step = -(-len(norms) // MARGIN_POINTS)
    largest = norms.loc[norms.groupby(norms["index"] // step)["norm"].idxmax()]
    line: dict[str, Any] = {"mode": "lines", "line": {"color": GUIDE, "width": 1}}
    markers: dict[str, Any] = {"mode": "markers", "marker": {"color": MARKED, "size": 5}}
    for rows, style in ((largest, line), (norms[norms["outlier"]], markers)):
        positions = rows["index"].to_numpy("int32")
        values = rows["norm"].to_numpy("float32")
        if axis == "column":
            points = {"x": positions, "y": values, "hovertemplate": "column %{x}<br>norm %{y:.4g}<extra></extra>"}
        else:
            points = {"x": values, "y": positions, "hovertemplate": "row %{y}<br>norm %{x:.4g}<extra></extra>"}
        figure.add_scatter(showlegend=False, **points, **style, **subplot)


def draw_outliers(counts: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """In how many layers or heads each row and column of W_qk is an outlier; marked if chance gives less than one.

    Args:
        counts: table of `attngeo.scores.matrices.count_outliers`, whose `attrs` name the model.
        options: `over` chooses layers or heads.

    Returns:
        A figure of two panels: rows, and columns.
    """
    unit = options.over
    total = counts.attrs[f"of_{unit}"]
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    marked = []
    for panel, axis in enumerate(("row", "column"), 1):
        outliers = counts[(counts["axis"] == axis) & (counts[unit] > 0)]
        is_marked = outliers[f"{unit}_by_chance"] < 1
        marked.append(f"{int(is_marked.sum())} {axis}s")
        for rows, colour in ((outliers[~is_marked], GUIDE), (outliers[is_marked], MARKED)):
            figure.add_scatter(
                x=rows["index"],
                y=rows[unit],
                mode="markers",
                marker={"color": colour, "size": 5},
                showlegend=False,
                customdata=rows[["layers", "heads", f"{unit}_by_chance"]],
                hovertemplate=f"{axis} %{{x}}<br>outlier of %{{customdata[0]}} of {counts.attrs['of_layers']} layers, "
                f"%{{customdata[1]}} of {counts.attrs['of_heads']} heads<br>"
                f"by chance %{{customdata[2]:.2g}} {axis}s of as many {unit}<extra></extra>",
                row=panel,
                col=1,
            )
        figure.update_yaxes(title=f"{unit} ({axis}s)", range=[0, total * 1.05], row=panel, col=1)
        figure.update_xaxes(range=[-0.5, counts.attrs["d_model"] - 0.5], row=panel, col=1)
    figure.update_xaxes(title="row (query dimension), column (key dimension)", row=2, col=1)
    details = (
        f"norm above mean + {counts.attrs['gamma']:g}·std; "
        f"marked: {' and '.join(marked)} in so many {unit} that chance gives less than one"
    )
    stack = escape_name(counts["stack"].iloc[0]) if len(counts) else ""
    title = f"{escape_name(counts.attrs['model'])}: outliers of W_qk in {total} {unit} ({stack})"
    return finish_figure(figure, title, details)


def draw_updates(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """A score of the updates against the layer: the median over heads in a band of quartiles; dotted, at chance.

    Args:
        rows: rows of `attngeo gradients`: model, stack, layer, head, objective, and the score.
        options: `score` names the score.

    Returns:
        A figure of one colour for each objective, one dash for each model and stack.

    Raises:
        DataError: there are no heads.
    """
    score = options.score
    heads = rows[rows["head"].notna()]
    if heads.empty:
        raise DataError("the rows of heads are missing, expected those of attngeo gradients")
    stacks = list(heads.groupby(["model", "stack"], sort=False).groups)
    figure = go.Figure()
    for (model, stack, objective), updates in heads.groupby(["model", "stack", "objective"], sort=False):
        colour = OBJECTIVES.get(str(objective), OTHER)
        dash = DASHES[stacks.index((model, stack)) % len(DASHES)]
        name = escape_name(OBJECTIVE_NAMES.get(str(objective), objective))
        if len(stacks) > 1:
            name = f"{escape_name(model)} · {name}"
        quartiles = quartiles_by(updates, "layer", score)
        add_band(figure, quartiles["lower"], quartiles["upper"], colour, name)
        figure.add_scatter(
            x=quartiles.index,
            y=quartiles["median"],
            name=name,
            legendgroup=name,
            mode="lines+markers",
            line={"color": colour, "width": 2.5, "dash": dash},
            customdata=quartiles[["lower", "upper"]],
            hovertemplate=f"{name}, layer %{{x}}<br>{hover_of(score)} "
            "(%{customdata[0]:.3f} to %{customdata[1]:.3f})<extra></extra>",
        )
        if f"{score}_chance" not in updates:
            continue
        chance = updates.groupby("layer")[f"{score}_chance"].median()
        figure.add_scatter(
            x=chance.index,
            y=chance,
            mode="lines",
            line={"color": colour, "width": 1, "dash": "dot"},
            showlegend=False,
            legendgroup=name,
            hovertemplate=f"{name}, layer %{{x}}<br>shuffled %{{y:.3f}}<extra></extra>",
        )
    figure.update_layout(
        xaxis={"title": "layer", **choose_ticks(pd.Index(heads["layer"]))}, yaxis={"title": axis_title_of(score)}
    )
    details = "median and quartiles over heads; dotted: rows of β shuffled"
    return finish_figure(figure, compose_title(rows, f"{label_of(score)} of updates of W_qk"), details)


def draw_pairs(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """β of each pair of tokens as a map, of one head or summed over the heads of a layer; blank if not seen.

    Args:
        rows: rows of `attngeo gradients --pairs-output`: model, stack, layer, head, position, token, other_position,
            other_token, beta.
        options: `layer` and `head` choose the pairs; all heads if `head` is None.

    Returns:
        A figure of one map, with the names of the tokens if axes have room for them.

    Raises:
        UsageError: the rows lack the layer or the head.
        DataError: the pairs are of several models or stacks.
    """
    for name in ("model", "stack"):
        if rows[name].nunique() > 1:
            raise DataError(f"pairs of several values of {name}, expected one; select it with where")
    pairs = _choose(rows, "layer", options.layer)
    details = f"layer {options.layer}, sum over heads"
    if options.head is not None:
        pairs = _choose(pairs, "head", options.head)
        details = f"layer {options.layer}, head {options.head}"
    table = pairs.groupby(["position", "other_position"])["beta"].sum().unstack()
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
    if len(names) <= MOST_TOKENS:  # a token may occur twice, so that axes have numbers
        ticks = list(range(len(names)))
        figure.update_xaxes(tickvals=ticks, ticktext=names, tickangle=-90)
        figure.update_yaxes(tickvals=ticks, ticktext=names)
    figure.update_xaxes(title="attended to", showgrid=False, zeroline=False, automargin=True)
    figure.update_yaxes(
        title="token that attends", showgrid=False, zeroline=False, automargin=True, autorange="reversed"
    )
    size = max(len(names), FEWEST_TOKENS) * TOKEN + MARGIN
    figure.update_layout(height=size, width=size + 120)
    return finish_figure(figure, compose_title(rows, "gradients by attention logits"), details)


def _choose(rows: pd.DataFrame, column: str, number: int) -> pd.DataFrame:
    """The rows with this number of a layer or head. Raises UsageError if there is none."""
    one_of(column, str(number), [str(known) for known in sorted(rows[column].unique())])
    return rows[rows[column] == number]
