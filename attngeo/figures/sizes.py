"""Scores against the number of parameters, of the user's models and of the published ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from attngeo.errors import DataError
from attngeo.figures.fit import BELOW
from attngeo.figures.kinds import PlotOptions
from attngeo.figures.names import escape_name, name_form, shorten_names
from attngeo.figures.style import (
    OTHER,
    ROLES,
    add_chance_line,
    axis_title_of,
    fade,
    finish_figure,
    hover_of,
    label_of,
    role_of,
)
from attngeo.questions.spread import QUARTILES, statistic
from attngeo.scores.spec import SCORES
from attngeo.scores.summary import summarize

# With more stacks than this, points have neither names nor numbers.
MOST_STACKS_LABELLED = 20
# Characters of a name beside its point.
NAME_LENGTH = 28
# Pixels: the type of a label, its letter and its line, and half of a point with the gap between it and its label.
LABEL, LETTER, LINE, MARKER = 11, 6.0, 13.0, 8.0
# What keeps a label readable over the published points: white around its letters. A .pdf image would have a blurred one
# as pixels.
HALO = ", ".join(f"{x}px {y}px #FFFFFF" for x in (-1, 1) for y in (-1, 1))
# Points of a figure that is 3.4 inches wide are on such an area, in pixels of its smaller type. Labels that have room
# there have it in larger figures, too.
PANEL = (280.0, 80.0)
# Where a label is beside its point → the direction to the right, and down. Bars are above and below the point.
POSITIONS = {
    "middle right": (1, 0), "middle left": (-1, 0), "top right": (1, -1), "bottom right": (1, 1), "top left": (-1, -1),
    "bottom left": (-1, 1), "top center": (0, -1), "bottom center": (0, 1),
}  # fmt: skip

Point = tuple[float, float]


class Box(NamedTuple):
    """A rectangle in pixels, from the left and upper edge of a panel.

    Attributes:
        left: left edge.
        top: upper edge.
        right: right edge.
        bottom: lower edge.
    """

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        """Whether it has a common area with another one."""
        is_beside = self.right <= other.left or other.right <= self.left
        is_above = self.bottom <= other.top or other.bottom <= self.top
        return not (is_beside or is_above)


def draw_sizes(rows: pd.DataFrame, published: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """Median score over layers against the number of parameters, with quartiles; one point per stack and model.

    Source: Saponati et al. 2025, Fig. 2, S1 and S2.

    Args:
        rows: rows of `attngeo.score`, with parameters.
        published: the published models, drawn faintly behind the others, and hollow if an erratum is known.
        options: `score` names the score, `published` shows the published models.

    Returns:
        A figure. If it shows scores of both conventions, the details below its title say which points have which.

    Raises:
        DataError: no row has a number of parameters.
    """
    summary = summarize(rows)
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
        xaxis={"title": "parameters", "type": "log", "exponentformat": "B", "dtick": _choose_steps(figure)},
        yaxis={"title": axis_title_of(options.score)},
        legend=BELOW,
    )
    details = ["bars: quartiles over layers"]
    conventions = sorted(summary["convention"].unique())
    if shows_published:
        details.append("hollow: published value with a known error")
    if conventions != ["published"] and shows_published:
        details.append(f"faint points: published convention, models: {' and '.join(conventions)}")
    elif len(conventions) > 1:
        details.append("models of both conventions, corrected and published")
    title = f"median {label_of(options.score)} of {name_form(rows)} over layers against the number of parameters"
    return finish_figure(figure, title, "; ".join(details))


def _choose_steps(figure: go.Figure) -> int | str | None:
    """The ticks of the axis of sizes: powers of ten if there are two or more, otherwise 2 and 5 between them, too.

    Plotly chooses them in less than a decade.
    """
    sizes = np.concatenate([np.asarray(trace.x, dtype=float) for trace in figure.data])
    decades = math.log10(sizes.max() / sizes.min())
    if decades >= 2:
        return 1
    return "D2" if decades >= 1 else None


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
        filled = models.index[models["erratum"] == ""]
        if len(filled):  # the legend has the symbol of the first point
            models = models.loc[[filled[0], *models.index.drop(filled[0])]]
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
    """Add the median of each stack with a bar from quartile to quartile, and a label if there are few.

    Names are beside the points if all have room, otherwise numbers, which the legend explains; points in a clump share
    a label.
    """
    summary = summary.assign(role=summary["stack"].map(role_of))
    if len(summary) > MOST_STACKS_LABELLED:
        for role, stacks in summary.groupby("role", sort=False):
            _add_stacks(figure, stacks, score, escape_name(role))
        return
    points = _scale_points(figure, summary["parameters"], summary[statistic(score, "median")])
    names = shorten_names(list(summary["model"]), NAME_LENGTH)
    positions = place_labels(points, [len(name) * LETTER for name in names])
    if positions is not None:
        summary = summary.assign(label=names, position=positions)
        for role, stacks in summary.groupby("role", sort=False):
            _add_stacks(figure, stacks, score, escape_name(role))
        return
    labels, positions = place_numbers(points)
    summary = summary.assign(label=labels, position=positions)
    has_stacks = len(summary) > summary["model"].nunique()
    for index in range(len(summary)):
        stacks = summary.iloc[[index]]
        name = f"{index + 1} {escape_name(stacks['model'].item())}"
        if has_stacks:
            name += f" · {escape_name(stacks['stack'].item())}"
        _add_stacks(figure, stacks, score, name)


def _add_stacks(figure: go.Figure, stacks: pd.DataFrame, score: str, name: str) -> None:
    """Add stacks of one role as one trace, with their labels if they have some. name: in the legend."""
    lower, middle, upper = (stacks[statistic(score, quartile)].astype("float32") for quartile in QUARTILES)
    role = str(stacks["role"].iloc[0])
    hovers = [
        [escape_name(stack.model), escape_name(stack.stack), stack.layers, stack.convention]
        for stack in stacks.itertuples()
    ]
    is_labelled = "label" in stacks
    figure.add_scatter(
        x=stacks["parameters"].astype("int64"),
        y=middle,
        mode="markers+text" if is_labelled else "markers",
        text=list(stacks["label"]) if is_labelled else None,
        textposition=list(stacks["position"]) if is_labelled else None,
        textfont={"size": LABEL, "shadow": HALO},
        cliponaxis=False,
        name=name,
        marker={"color": ROLES.get(role, OTHER), "size": 11, "line": {"color": "#FFFFFF", "width": 1}},
        error_y={"array": upper - middle, "arrayminus": middle - lower, "thickness": 1.5, "width": 4},
        customdata=hovers,
        hovertemplate="%{customdata[0]}<br>%{x:,} parameters<br>%{customdata[1]}, %{customdata[2]} layers<br>"
        f"median {hover_of(score)} (%{{customdata[3]}})<extra></extra>",
    )


def _scale_points(figure: go.Figure, parameters: pd.Series, scores: pd.Series) -> list[Point]:
    """Points in pixels of a small panel, from its left and upper edge; the figure has the others."""
    sizes = np.log10(parameters.to_numpy(dtype=float))
    values = scores.to_numpy(dtype=float)
    all_sizes = np.concatenate([sizes, *(np.log10(np.asarray(trace.x, dtype=float)) for trace in figure.data)])
    all_values = np.concatenate([values, *(np.asarray(trace.y, dtype=float) for trace in figure.data)])
    left, right = np.nanmin(all_sizes), np.nanmax(all_sizes)
    bottom, top = np.nanmin(all_values), np.nanmax(all_values)
    across = (sizes - left) / ((right - left) or 1)
    down = (top - values) / ((top - bottom) or 1)
    return list(zip(across * PANEL[0], down * PANEL[1], strict=True))


def place_numbers(points: Sequence[Point]) -> tuple[list[str], list[str]]:
    """The label of each point, its number from 1, and the label's position. Points in a clump share one label: "1–6".

    Points that cover each other are a clump; clumps are the smallest whose labels have room.

    Args:
        points: in pixels, from the left and upper edge of the panel.

    Returns:
        The labels, "" of a point whose clump has its label at another one; and positions, as of `place_labels`.
    """
    reach = MARKER
    while True:
        clumps = _group_points(points, reach)
        labels = [""] * len(points)
        for clump in clumps:
            labels[clump[len(clump) // 2]] = _join_numbers(clump)
        widths = [len(label) * LETTER for label in labels]
        positions = place_labels(points, widths, must_fit=len(clumps) > 1)
        if positions is not None:
            return labels, positions
        reach += MARKER


def _group_points(points: Sequence[Point], reach: float) -> list[list[int]]:
    """The numbers of points in clumps, from above: those of a clump have neighbours in it within reach, in pixels."""
    clumps: list[list[int]] = []
    for number, point in enumerate(points):
        near = [clump for clump in clumps if any(math.dist(point, points[other]) <= reach for other in clump)]
        clumps = [clump for clump in clumps if clump not in near]
        clumps.append(sorted([number, *itertools.chain(*near)], key=lambda other: points[other][1]))
    return clumps


def _join_numbers(indices: Sequence[int]) -> str:
    """Numbers from 1, with those in a row as a range.

    >>> _join_numbers([3, 0, 1, 2, 5])
    '1–4, 6'
    """
    runs: list[list[int]] = []
    for number in sorted(index + 1 for index in indices):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def place_labels(points: Sequence[Point], widths: Sequence[float], *, must_fit: bool = True) -> list[str] | None:
    """The position of each point's label, in plotly's words, so that no label covers another or a point.

    Each label in turn takes the first free position. A label without width is not drawn, and takes the first position.

    Args:
        points: in pixels, from the left and upper edge of the panel.
        widths: of the labels, in pixels.
        must_fit: whether to give up if a label has no free position; otherwise the label takes the first position.

    Returns:
        A position for each point; None if a label did not fit.
    """
    boxes = [Box(x - MARKER, y - MARKER, x + MARKER, y + MARKER) for x, y in points]
    positions = []
    for number, (point, width) in enumerate(zip(points, widths, strict=True)):
        if not width:
            positions.append(next(iter(POSITIONS)))
            continue
        around = boxes[:number] + boxes[number + 1 :]
        labels = {position: _surround(point, width, towards) for position, towards in POSITIONS.items()}
        free = [position for position, label in labels.items() if _has_room(label, around)]
        if not free and must_fit:
            return None
        position = next(iter(free or POSITIONS))
        boxes.append(labels[position])
        positions.append(position)
    return positions


def _surround(point: Point, width: float, towards: tuple[int, int]) -> Box:
    """The box of a label of this width beside a point. towards: to the right, and down."""
    centre = point[0] + towards[0] * (MARKER + width / 2)
    middle = point[1] + towards[1] * (MARKER + LINE / 2)
    return Box(centre - width / 2, middle - LINE / 2, centre + width / 2, middle + LINE / 2)


def _has_room(label: Box, around: Sequence[Box]) -> bool:
    """Whether a label is between the sides of the panel, which are further out than the points, and covers nothing."""
    is_inside = label.left >= -2 * MARKER and label.right <= PANEL[0] + 2 * MARKER
    return is_inside and not any(label.overlaps(box) for box in around)
