"""What all figures share: names as plain text, panels of models and stacks, legends."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Literal

import pandas as pd
import plotly.graph_objects as go

from attngeo.figures.palette import GUIDE

Score = Literal["symmetry", "directionality"]
SCORES: tuple[Score, ...] = ("symmetry", "directionality")
# What an end of each score's scale stands for.
MEANING = {
    "symmetry": "symmetry (1 symmetric, −1 skew-symmetric)",
    "directionality": "directionality (−1 columns dominate, 1 rows)",
}
QUARTILES = {"lower": 0.25, "median": 0.5, "upper": 0.75}
LONGEST_NAME = 60


def plain(text: object, longest: int = LONGEST_NAME) -> str:
    """A name as plotly shows it letter for letter: no mark-up, no templates, its middle left out where it is long."""
    name = str(text)
    if len(name) > longest:
        name = f"{name[: longest // 2 - 1]}…{name[-(longest // 2) :]}"
    return html.escape("".join(c if c.isprintable() else "�" for c in name), quote=False).replace("{", "&#123;")


def panels(rows: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Model, stack and rows of every stack of every model, in the order of the rows."""
    for (model, stack), own in rows.groupby(["model", "stack"], sort=False):
        yield str(model), str(stack), own


def titled(rows: pd.DataFrame) -> dict[tuple[str, str], str]:
    """What tells the panels apart: the stack, the model, or both; "" where there is one."""
    pairs = [(model, stack) for model, stack, _ in panels(rows)]
    models, stacks = ({pair[i] for pair in pairs} for i in (0, 1))
    if len(models) == 1:
        return {pair: plain(pair[1]) if len(stacks) > 1 else "" for pair in pairs}
    one_each = len(models) == len(pairs)
    return {pair: plain(pair[0]) if one_each else f"{plain(pair[0])} · {plain(pair[1])}" for pair in pairs}


def heading(rows: pd.DataFrame, what: str) -> str:
    """A title: the model where there is one, and what is shown."""
    models = rows["model"].unique()
    return f"{plain(models[0])}: {what}" if len(models) == 1 else what


def finished(figure: go.Figure, title: str, details: str = "") -> go.Figure:
    """With a title, details below it, and a legend only where there is something to tell apart."""
    text = title + f"<br><sup>{details}</sup>" * bool(details)
    named = sum(trace.showlegend is not False and bool(trace.name) for trace in figure.data)
    return figure.update_layout(
        title=text, template="plotly_white", showlegend=named > 1, margin={"t": 70, "r": 30},
        hoverlabel={"align": "left"},
    )  # fmt: skip


def counted(numbers: pd.Index) -> dict[str, list[int]]:
    """Ticks of an axis of layers or heads: whole numbers, not more than about twenty."""
    last = int(numbers.max())
    step = next(step for step in (1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, last + 1) if last < 20 * step)
    return {"tickvals": list(range(0, last + 1, step))}


def zero_line(figure: go.Figure, **place: int) -> None:
    """What chance gives: neither symmetric nor skew, neither rows nor columns."""
    figure.add_hline(y=0, line={"color": GUIDE, "width": 1, "dash": "dot"}, **place)
