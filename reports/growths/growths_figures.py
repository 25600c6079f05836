"""The figure of the growths along the trainings of train_growths.py.

    python reports/growths/growths_figures.py    # requires attngeo[images], and Chromium or Chrome

draws growths-along.png in reports/figures; `make figures` does so, too.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
from growths_statements import PARTS, average_parts  # type: ignore[import-not-found]
from plotly.subplots import make_subplots

from attngeo.figures.fit import BELOW
from attngeo.figures.save import save_figure
from attngeo.figures.style import GUIDE, OBJECTIVE_NAMES, OBJECTIVES, fade, finish_figure

HERE = Path(__file__).parent
FIGURES = HERE.parent / "figures"
# A panel for each score: the value of unrelated heads, or none.
PANELS = {"symmetric_growth": 1, "antisymmetric_growth": 1, "own_symmetry": None}
DASHES = dict(zip(PARTS, ("solid", "dash"), strict=True))
# Opacity of the line of one seed, behind the mean.
ONE_SEED = 0.35
# Pixels of a row of panels, and above and below all of them.
ROW, AROUND = 250, 190
# Share of the height between two rows of panels.
BETWEEN = 0.14


def draw_along(table: pd.DataFrame) -> go.Figure:
    """Growths and own symmetry of the first layer, and of the others, along the trainings.

    Args:
        table: along.csv.
    """
    curves = average_parts(table)
    starts = list(table["init"].unique())
    titles = [f"{score.replace('_', ' ')}, {start} start" for start, score in product(starts, PANELS)]
    places = (len(starts), len(PANELS))
    figure = make_subplots(*places, subplot_titles=titles, horizontal_spacing=0.07, vertical_spacing=BETWEEN)
    for row, start in enumerate(starts, 1):
        for column, (score, unrelated) in enumerate(PANELS.items(), 1):
            rows = curves[(curves["init"] == start) & (curves["score"] == score)]
            add_curves(figure, rows, row, column)
            if unrelated is not None:
                figure.add_hline(y=unrelated, line={"color": GUIDE, "width": 1, "dash": "dot"}, row=row, col=column)
    figure.update_xaxes(title="update", row=len(starts))
    figure.update_yaxes(title="growth", matches="y", col=1)
    figure.update_yaxes(matches="y", col=2)
    figure.update_yaxes(title="own symmetry", col=len(PANELS))
    figure.update_annotations(font_size=13)
    figure.update_layout(width=1000, height=AROUND + ROW * len(starts), legend=BELOW)
    details = "bold: means over seeds; faint: each seed; dotted: heads whose parts are unrelated"
    return finish_figure(figure, "growths along the training", details, 100)


def add_curves(figure: go.Figure, rows: pd.DataFrame, row: int, column: int) -> None:
    """Add the curves of one score from one start to a panel; the first panel has the legend of all."""
    place = {"row": row, "col": column}
    for (objective, part), curves in rows.groupby(["objective", "part"], sort=False):
        colour = OBJECTIVES[str(objective)]
        dash = DASHES[str(part)]
        for _, curve in curves.groupby("seed"):
            line = {"color": fade(colour, ONE_SEED), "width": 1, "dash": dash}
            figure.add_scatter(x=curve["step"], y=curve["value"], mode="lines", line=line, showlegend=False, **place)
        mean = curves.groupby("step")["value"].mean()
        figure.add_scatter(
            x=mean.index,
            y=mean,
            mode="lines",
            name=f"{OBJECTIVE_NAMES[str(objective)]}, {part}",
            line={"color": colour, "width": 2.5, "dash": dash},
            showlegend=row == column == 1,
            **place,
        )


def draw_figures() -> dict[str, go.Figure]:
    """The figure, by the name of its file."""
    return {"growths-along.png": draw_along(pd.read_csv(HERE / "along.csv"))}


if __name__ == "__main__":
    for name, figure in draw_figures().items():
        save_figure(figure, FIGURES / name)
