"""Small multiples: panels of one size in a grid, whose axes are shared."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

# Panels in a line at most, of more panels than make one line.
MOST_PANELS_ACROSS = 4
# Pixels: the height of a panel in a figure of more than two lines, the room between lines and around all.
PANEL_HEIGHT, BETWEEN, AROUND = 150, 56, 190
# Characters of the name of a panel, and the size of its type in pixels.
NAME_LENGTH, PANEL_TITLE = 30, 12

Subplot = dict[str, int]


def choose_columns(panels: int) -> int:
    """The number of panels in a row: for few panels, as many as there are rows.

    >>> [choose_columns(panels) for panels in (1, 2, 3, 4, 6, 12, 40)]
    [1, 2, 3, 2, 3, 4, 4]
    """
    if panels < MOST_PANELS_ACROSS:
        return panels
    if panels == MOST_PANELS_ACROSS:
        return 2
    return 3 if panels <= 6 else MOST_PANELS_ACROSS


def make_grid(titles: Sequence[str], columns: int) -> tuple[go.Figure, list[Subplot]]:
    """A figure with one panel per title, row by row, and the row and column of each.

    All panels have the same ranges. Axes have ticks and titles only at the left, and at the lowest panel of each
    column.
    """
    lines = -(-len(titles) // columns)
    height = lines * (PANEL_HEIGHT + BETWEEN) - BETWEEN + AROUND
    figure = make_subplots(
        rows=lines,
        cols=columns,
        shared_xaxes="all",
        shared_yaxes="all",
        horizontal_spacing=0.03 if columns > 1 else 0,
        vertical_spacing=BETWEEN / (height - AROUND) if lines > 1 else 0,
        subplot_titles=titles,
    )
    figure.update_annotations(font_size=PANEL_TITLE)
    if lines > 2:
        figure.update_layout(height=height)
    subplots = []
    for number in range(len(titles)):
        line, column = divmod(number, columns)
        subplots.append({"row": line + 1, "col": column + 1})
    return figure, subplots


def title_axes(figure: go.Figure, subplots: Sequence[Subplot], x_title: str, y_title: str) -> None:
    """Give titles to the axes at the left, and to the lowest of each column, which may end before the last line."""
    lowest = {subplot["col"]: subplot["row"] for subplot in subplots}
    for column, row in lowest.items():
        figure.update_xaxes(title=x_title, showticklabels=True, row=row, col=column)
    figure.update_yaxes(title=y_title, col=1)
