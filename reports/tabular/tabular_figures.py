"""Figure of joint training on two tables.

    python reports/tabular/tabular_figures.py    # requires attngeo[images], and Chromium or Chrome

draws joint-training.png in reports/figures; `make figures` does so, too.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots
from tabular_statements import joint_gains  # type: ignore[import-not-found]

from attngeo.figures.save import save_figure
from attngeo.figures.style import GUIDE, MARKED, finish_figure

HERE = Path(__file__).parent
FIGURES = HERE.parent / "figures"
INTERVAL = {"thickness": 1.5, "width": 4}
ZERO = {"color": GUIDE, "width": 1, "dash": "dot"}
# Pixels above panels that have titles.
TOP = 100
CASES = ("cars", "origin", "planted")
VALUES = {"accuracy": "difference in accuracy", "log_loss": "difference in log loss"}


def draw_joint(table: pd.DataFrame) -> go.Figure:
    """What joint training changes in accuracy and log loss, against the rows of A, in each case."""
    figure = make_subplots(
        rows=len(VALUES),
        cols=len(CASES),
        column_titles=[*CASES],
        shared_xaxes="all",
        shared_yaxes="rows",
        vertical_spacing=0.08,
        horizontal_spacing=0.04,
    )
    for row, (values, label) in enumerate(VALUES.items(), 1):
        gains = joint_gains(table, values)
        for column, case in enumerate(CASES, 1):
            points = gains.loc[case]
            figure.add_scatter(
                x=[str(rows) for rows in points.index],
                y=points["mean"],
                error_y=INTERVAL | {"array": points["half"]},
                mode="markers",
                marker={"color": MARKED, "size": 9},
                showlegend=False,
                row=row,
                col=column,
            )
        figure.update_yaxes(title=label, row=row, col=1)
    figure.add_hline(y=0, line=ZERO)
    figure.update_xaxes(type="category")
    figure.update_xaxes(title="rows of A", row=len(VALUES))
    figure.update_yaxes(zeroline=False)
    figure.update_annotations(font_size=13)
    figure.update_layout(width=900, height=560)
    details = "mean of ten seeds with 95% intervals; better: accuracy above 0, log loss below 0"
    return finish_figure(figure, "attention trained on tables A and B less attention trained on A alone", details, TOP)


def draw_figures() -> dict[str, go.Figure]:
    """All figures, by the names of their files."""
    return {"joint-training.png": draw_joint(pd.read_csv(HERE / "joint.csv"))}


if __name__ == "__main__":
    for name, figure in draw_figures().items():
        save_figure(figure, FIGURES / name)
