"""Maps of layers × heads: panels of the stacks of models, one below the other, with one scale of colours."""

from __future__ import annotations

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from attngeo.figures.fit import PANEL_TITLE_HEIGHT, TITLE_HEIGHT
from attngeo.figures.grid import PANEL_TITLE
from attngeo.figures.style import MISSING, Panel

# Pixels: the height of a cell, the least height of a panel, and the room between panels and around them.
CELL_HEIGHT, LEAST_HEIGHT, BETWEEN, AROUND = 18, 160, 70, 130


def stack_panels(panels: list[Panel]) -> tuple[go.Figure, list[int]]:
    """A figure with one panel per stack, one below the other, and their heights in pixels."""
    heights = [max(_count_rows(panel) * CELL_HEIGHT, LEAST_HEIGHT) for panel in panels]
    figure = make_subplots(
        rows=len(panels),
        cols=1,
        row_heights=heights,
        vertical_spacing=min(0.9 / max(len(panels) - 1, 1), BETWEEN / (sum(heights) + AROUND)),
        subplot_titles=[panel.name for panel in panels],
    )
    return figure, heights


def room_above(panels: list[Panel]) -> int:
    """Pixels above the panels, which have titles if there are several."""
    return TITLE_HEIGHT + PANEL_TITLE_HEIGHT if len(panels) > 1 else TITLE_HEIGHT


def _count_rows(panel: Panel) -> int:
    """The rows of the map of a panel: layers, or the heads of a single one."""
    layers = panel.rows["layer"].nunique()
    return layers if layers > 1 else len(panel.rows)


def lay_out(figure: go.Figure, heights: list[int], coloraxis: dict[str, object], x_title: str) -> None:
    """Give the panels their colours, their height and the title of the axis below the last one."""
    figure.update_yaxes(autorange="reversed", showgrid=False, zeroline=False)
    figure.update_xaxes(showgrid=False, zeroline=False)
    figure.update_xaxes(title=x_title, row=len(heights), col=1)
    figure.update_annotations(font_size=PANEL_TITLE)
    height = sum(heights) + AROUND + BETWEEN * (len(heights) - 1)
    figure.update_layout(coloraxis=coloraxis, height=height, plot_bgcolor=MISSING)
