"""Scores along a training: rows of `attngeo score` of several revisions or folders, one for each step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from attngeo.bounds.names import list_names
from attngeo.errors import DataError
from attngeo.figures.fit import BELOW
from attngeo.figures.grid import Subplot
from attngeo.figures.kinds import PlotOptions
from attngeo.figures.names import escape_name, name_form
from attngeo.figures.style import (
    GUIDE,
    MOST_MODELS_TOGETHER,
    Look,
    Panel,
    add_band,
    axis_title_of,
    compose_title,
    fade,
    finish_figure,
    hover_of,
    label_of,
    number_format_of,
    quartiles_by,
    split_panels,
    tell_apart,
)
from attngeo.scores.spec import SCORES, scores_in
from attngeo.scores.trajectory import BAND, find_departures, follow_steps
from attngeo.studies.steps import step_of

# The share of a logarithmic axis between step 0 and the first other step, and the least ratio of their places.
GAP, LEAST_RATIO = 0.1, 1.5
# The fewest ticks of an axis with enough steps, and the most if the ticks are steps themselves.
FEWEST_TICKS, MOST_TICKS = 3, 8
# Pixels of a panel in a figure of more than two scores, and around all of them.
PANEL_HEIGHT, AROUND = 220, 160
# With more lines than this in a panel, the departures have no numbers beside them.
MOST_LINES_NUMBERED = 4
# Pixels of a ring; the opacity of a chance band.
RING, CHANCE_OPACITY = 13, 0.25


class _Line(NamedTuple):
    """A score of one stack against the training step.

    Attributes:
        panel: rows of the stack.
        look: colour and dash of the line.
        quartiles: lower quartile, median and upper quartile, by step.
        departure: step at which the score leaves chance, see the figure; None if it does not.
    """

    panel: Panel
    look: Look
    quartiles: pd.DataFrame
    departure: int | None

    @classmethod
    def of(cls, panel: Panel, look: Look, score: str, departures: pd.DataFrame) -> _Line:
        """The line of a stack, whose departures are among those of all."""
        quartiles = quartiles_by(panel.rows, "step", score).astype("float64").dropna()
        is_own = (departures[["model", "stack", "score"]] == [panel.model, panel.stack, score]).all(axis=1)
        steps = departures.loc[is_own, "step"].dropna()
        return cls(panel, look, quartiles, None if steps.empty else int(steps.iloc[0]))


def draw_trajectory(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """Each score against the training step, in its own panel: the median over layers in a band of quartiles.

    The axis of steps is logarithmic; step 0 is at its left end. Grey is the chance band: two standard deviations of one
    random form around the mean. A ring marks the step from which the median stays outside the band, on one side; see
    `find_departures`.

    Args:
        rows: rows of `attngeo.score` of several revisions or folders, whose names state the steps: model, stack, layer,
            head, d_model, and scores. Those without a step, such as org/name@main, are left out.
        options: `over` chooses whole layers or heads.

    Returns:
        A figure with one line per stack of each model, and one panel per score of the rows.

    Raises:
        DataError: no name states a step, two state the same one, there are no rows for heads, or for whole layers, or
            there are more lines than can be told apart.
    """
    followed = follow_steps(rows)
    of_heads = options.over == "heads"
    chosen = followed[followed["head"].notna() == of_heads]
    if chosen.empty:
        missing = "heads; write them with attngeo score --per-head, or" if of_heads else "whole layers;"
        raise DataError(f"there are no rows for {missing} choose another $over", "over")
    panels = split_panels(chosen)
    if len(panels) > MOST_MODELS_TOGETHER:
        raise DataError(
            f"{len(panels)} stacks of models are too many to tell apart, expected at most {MOST_MODELS_TOGETHER}; "
            "select some with $where",
            "where",
        )
    scores = [score for score in scores_in(rows.columns) if score in rows and chosen[score].notna().any()]
    if not scores:
        raise DataError('no row has a score, expected the output of attngeo.score; the column "note" says why')
    departures = find_departures(rows, options.over)
    places = place_steps(chosen["step"])
    looks = tell_apart(panels)
    figure = make_subplots(rows=len(scores), shared_xaxes=True, vertical_spacing=0.25 / (len(scores) + 2))
    for row, score in enumerate(scores, 1):
        lines = [_Line.of(panel, look, score, departures) for panel, look in zip(panels, looks, strict=True)]
        subplot = {"row": row, "col": 1}
        for line in lines:
            x = line.quartiles.rename(index=places)
            add_band(figure, x["lower"], x["upper"], line.look.colour, line.panel.label, subplot)
        for line in lines:
            _add_median(figure, line, score, places, subplot)
        for line in lines:
            _add_ring(figure, line, score, places, subplot, is_numbered=len(lines) <= MOST_LINES_NUMBERED)
        _add_chance(figure, chosen, score, subplot)
        name_axis = label_of if len(scores) > 1 else axis_title_of  # the ends of an axis are longer than a low panel
        figure.update_yaxes(title=name_axis(score), **subplot)
    figure.update_xaxes(type="log", **choose_step_ticks(places))
    figure.update_xaxes(title="step", row=len(scores), col=1)
    figure.update_layout(legend=BELOW)
    if len(scores) > 2:
        figure.update_layout(height=len(scores) * PANEL_HEIGHT + AROUND)
    title = compose_title(chosen, f"scores of {name_form(rows)} during training")
    return finish_figure(figure, title, _describe(rows, chosen, departures, options.over))


def _describe(rows: pd.DataFrame, chosen: pd.DataFrame, departures: pd.DataFrame, over: str) -> str:
    """The details below the title: what lines, bands and rings are, where step 0 is, and what is left out."""
    parts = [f"median and quartiles over {over}"]
    if not departures.empty:
        parts.append(f"grey: range of chance, ±{BAND:g} standard deviations of a random form")
    if departures["step"].notna().any():
        parts.append("ring: outside this range from this step on")
    if (chosen["step"] == 0).any():
        parts.append("step 0 is at the left end of the logarithmic axis")
    without_step = [escape_name(name) for name in rows["model"].unique() if step_of(str(name)) is None]
    if without_step:
        parts.append(f"left out because the name has no step: {list_names(without_step)}")
    return "; ".join(parts)


def place_steps(steps: Iterable[int]) -> dict[int, float]:
    """The place of each step on a logarithmic axis: the step itself, except 0, which is left of all others.

    >>> place_steps([100, 0, 1, 10_000])
    {0: 0.398..., 1: 1.0, 100: 100.0, 10000: 10000.0}
    """
    places: dict[int, float] = {}
    ordered = sorted(set(map(int, steps)))
    others = [step for step in ordered if step > 0]
    if 0 in ordered:
        first = others[0] if others else 1
        last = others[-1] if others else 1
        places[0] = first / max((last / first) ** GAP, LEAST_RATIO)
    return places | {step: float(step) for step in others}


def choose_step_ticks(places: Mapping[int, float]) -> dict[str, list[float] | list[str]]:
    """Ticks of an axis of steps: powers of ten, or else 1, 2 and 5 times these, or else some of the steps; and 0."""
    others = [step for step in places if step > 0]
    ticks: list[int] = []
    if others:
        powers = [10**power for power in range(int(math.log10(others[-1])) + 1)]
        for candidates in (powers, [factor * power for power in powers for factor in (1, 2, 5)]):
            ticks = [tick for tick in candidates if others[0] <= tick <= others[-1]]
            if len(ticks) >= FEWEST_TICKS:
                break
        else:
            ticks = others[:: -(-len(others) // MOST_TICKS)]
    zero = [0] if 0 in places else []
    return {
        "tickvals": [*(places[tick] for tick in zero), *map(float, ticks)],
        "ticktext": [f"{tick:,}" for tick in (*zero, *ticks)],
    }


def _add_chance(figure: go.Figure, rows: pd.DataFrame, score: str, subplot: Subplot) -> None:
    """Add the chance band of a score for each width of the models, below the lines that are there."""
    chance = SCORES[score].chance
    if chance is None:
        return
    for width in sorted(rows["d_model"].unique()):
        mean, deviation = chance(int(width))
        figure.add_hrect(
            y0=mean - BAND * deviation,
            y1=mean + BAND * deviation,
            fillcolor=fade(GUIDE, CHANCE_OPACITY),
            line_width=0,
            layer="below",
            **subplot,
        )


def _add_median(figure: go.Figure, line: _Line, score: str, places: Mapping[int, float], subplot: Subplot) -> None:
    """Add the medians of one stack; the first panel names it in the legend."""
    number_format = number_format_of(score)
    steps = line.quartiles.index
    figure.add_scatter(
        x=[places[step] for step in steps],
        y=line.quartiles["median"],
        mode="lines+markers",
        name=line.panel.label,
        legendgroup=line.panel.label,
        showlegend=subplot["row"] == 1,
        line={"color": line.look.colour, "width": 2, "dash": line.look.dash},
        marker={"symbol": line.look.symbol, "size": 5},
        customdata=line.quartiles[["lower", "upper"]].assign(step=steps),
        hovertemplate=f"{line.panel.hover}<br>step %{{customdata[2]:,}}<br>median {hover_of(score)}<br>quartiles "
        f"%{{customdata[0]:{number_format}}} to %{{customdata[1]:{number_format}}}<extra></extra>",
        **subplot,
    )


def _add_ring(
    figure: go.Figure, line: _Line, score: str, places: Mapping[int, float], subplot: Subplot, *, is_numbered: bool
) -> None:
    """Add a ring around the median at the step of its departure, if any, with its number if there are few lines."""
    step = line.departure
    if step is None:
        return
    figure.add_scatter(
        x=[places[step]],
        y=[line.quartiles["median"][step]],
        mode="markers+text" if is_numbered else "markers",
        text=[f"{step:,}"] if is_numbered else None,
        textposition="top center",
        cliponaxis=False,
        marker={"symbol": "circle-open", "size": RING, "color": line.look.colour, "line": {"width": 2}},
        legendgroup=line.panel.label,
        showlegend=False,
        hovertemplate=f"{line.panel.hover}<br>{hover_of(score)}<br>outside the range of chance from step {step:,}"
        "<extra></extra>",
        **subplot,
    )
