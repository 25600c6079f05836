"""Results of word analogies as bars."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from attngeo.figures.common import finished, plain
from attngeo.figures.palette import INTERVAL, MODELS

LEVELS = {"overall": "all questions", "type": "types", "category": "categories"}
BAR_HEIGHT, AROUND = 16, 160
# Different numbers of questions that the title gives; with more of them, hovers do.
MOST_COUNTS = 2


def analogy_bars(scores: pd.DataFrame) -> go.Figure:
    """Accuracy for all questions, each type and each category, with 95% intervals; a bar for each model.

    scores: the rows of `attngeo.analogy`. Where several questions sets are reported, a model has a bar for each.
    """
    rows = scores[scores["accuracy"].notna()]
    several = rows["questions"].nunique() > 1
    names = [name for level in LEVELS for name in dict.fromkeys(rows.loc[rows["level"] == level, "name"])]
    groups = list(rows.groupby(["model", "questions"], sort=False))
    colours = sample_colorscale(MODELS, [0.35 + 0.55 * i / max(len(groups) - 1, 1) for i in range(len(groups))])
    figure = go.Figure()
    for ((model, questions), own), colour in zip(groups, colours, strict=True):
        middle = own["accuracy"]
        figure.add_bar(
            orientation="h", y=[_label(name) for name in own["name"]], x=middle, marker_color=colour,
            name=plain(model) + f" ({plain(questions)} questions)" * several,
            error_x={
                "array": own["accuracy_high"] - middle, "arrayminus": middle - own["accuracy_low"],
                "thickness": 1.5, "width": 3, "color": INTERVAL,
            },
            customdata=own[["known", "asked", "accuracy_low", "accuracy_high"]].astype(float),
            hovertemplate=f"{plain(model)}<br>%{{y}}: %{{x:.1%}}<br>"
            f"95%: %{{customdata[2]:.1%}} to %{{customdata[3]:.1%}}<br>"
            "%{customdata[0]:,} of %{customdata[1]:,} questions known<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(
        title="accuracy (share of known questions, with 95% intervals)", tickformat=".0%", rangemode="tozero"
    )
    figure.update_yaxes(
        categoryorder="array", categoryarray=[_label(name) for name in names], autorange="reversed", automargin=True
    )
    figure.update_layout(height=len(names) * (BAR_HEIGHT * len(groups) + 8) + AROUND, barmode="group")
    title = "word analogies" if len(groups) > 1 else f"{plain(rows['model'].iloc[0])}: word analogies"
    overall = rows[rows["level"] == "overall"]
    known = sorted({f"{int(count):,}" for count in overall["known"].dropna()})
    details = f"of {' or '.join(known)} questions" if 0 < len(known) <= MOST_COUNTS else ""
    return finished(figure, title, details)


def _label(name: str) -> str:
    return "<b>overall</b>" if name == "overall" else plain(name)
