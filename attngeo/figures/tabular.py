"""Methods on tables of categories: accuracy over shifts, attention between cells, encodings of categories."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from attngeo.figures.common import SHARE, average_runs, colour_methods, dodge, escape_name, finish_figure, thin_labels
from attngeo.figures.options import PlotOptions
from attngeo.figures.palette import MAGNITUDE, MODELS, SYMBOLS

# The method that the others are compared with; heights in pixels.
OURS = "atn"
PANEL_HEIGHT, AROUND, LEGEND_LINE = 260, 180, 30
LARGEST_SQUARE = 12
# Names of methods up to this length are written in capitals.
LONGEST_ACRONYM = 3


def draw_shift(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """Mean accuracy of each method against the correlation in training rows, with two standard errors; a panel for each
    number of causes and noise.

    rows: of `attngeo tabular simulate` or `auto-mpg`, where the place of the correlation is taken by the data's name.
    Open symbols are the paper's means, unless `options.published` is false.
    """
    shifts = rows["corr"].map("{:g}".format) if "corr" in rows else rows["data"].map(str)
    rows = rows.assign(shift=shifts)
    across, down = (_list_values(rows, name) for name in ("noise", "n_c"))
    figure = make_subplots(
        rows=len(down), cols=len(across), shared_yaxes=True, shared_xaxes=True, vertical_spacing=0.12,
        subplot_titles=[_name_panel(n_c, noise) for n_c in down for noise in across],
    )  # fmt: skip
    places = {shift: place for place, shift in enumerate(dict.fromkeys(rows.sort_values("shift")["shift"]))}
    styles = _style_methods(list(dict.fromkeys(rows["method"])), places)
    for style in styles:
        own = rows[rows["method"] == style.method]
        for number, (panel, inside) in enumerate(_split(own, down, across)):
            _add_means(figure, inside, style, panel, is_first=number == 0)
            if options.published and "published_accuracy" in inside:
                _add_published(figure, inside, style, panel)
    figure.update_xaxes(
        tickvals=list(places.values()), ticktext=[escape_name(place) for place in places], showticklabels=True
    )
    figure.update_yaxes(tickformat=".0%", rangemode="tozero")
    figure.update_yaxes(title="accuracy", col=1)
    if "corr" in rows:
        figure.update_xaxes(title="correlation in training rows", row=len(down))
    figure.update_layout(height=max(PANEL_HEIGHT * len(down), LEGEND_LINE * len(styles)) + AROUND)
    shown = "mean ± 2 standard errors" + ("; open symbols: the paper" if _has_published(rows, options) else "")
    finished = finish_figure(figure, "accuracy on rows with another distribution", shown)
    return finished.update_layout(margin={"t": 110})  # room for the titles of panels


def draw_row_attention(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001 - every kind takes options
    """The attention of each cell of a row, when it is masked, on all cells, as a map; the mean over heads and rows.

    rows: of `attngeo tabular predict --attention-output`. The values of the cells are shown if there is one row only.
    """
    means = rows.groupby(["cell", "on"], sort=False)["attention"].mean().unstack("on")
    order = list(dict.fromkeys(rows["cell"]))
    means = means.loc[order, list(dict.fromkeys(rows["on"]))]
    count = rows["row"].nunique() if "row" in rows else 1
    values = dict(zip(rows["on"], rows["value"], strict=True)) if "value" in rows and count == 1 else {}
    figure = go.Figure(
        go.Heatmap(
            z=means.to_numpy(), x=[_label_cell(name, values) for name in means.columns],
            y=[escape_name(name) for name in means.index], colorscale=MAGNITUDE, zmin=0, zmax=means.to_numpy().max(),
            colorbar={"title": "attention", "tickformat": SHARE},
            texttemplate="%{z:.1%}" if len(order) <= LARGEST_SQUARE else None,
            hovertemplate="%{y}, masked, attends %{z:.1%} to %{x}<extra></extra>",
        )
    )  # fmt: skip
    figure.update_yaxes(autorange="reversed", title="masked cell", automargin=True)
    figure.update_xaxes(title="attends to", automargin=True)
    shown = "mean over heads" if count == 1 else f"mean over heads and {count} rows"
    return finish_figure(figure, "attention between the cells of a row", shown)


def draw_encodings(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001 - every kind takes options
    """The encodings of categories in two dimensions, with one colour and symbol for each column; categories that are
    numbers are joined in their order.

    rows: of `attngeo tabular fit --encodings-output`. A label that would lie on another one shows under the pointer.
    """
    columns = list(dict.fromkeys(rows["column"]))
    colours = sample_colorscale(MODELS, [0.1 + 0.8 * at / max(len(columns) - 1, 1) for at in range(len(columns))])
    figure = go.Figure()
    labels = [escape_name(value) for value in rows["value"]]
    rows = rows.assign(label=labels, shown=thin_labels(rows["x"], rows["y"], labels))
    for at, (column, colour) in enumerate(zip(columns, colours, strict=True)):
        own = rows[rows["column"] == column]
        numbers = pd.to_numeric(own["value"], errors="coerce")
        has_order = numbers.notna().all()
        own = own.iloc[numbers.to_numpy().argsort(kind="stable")] if has_order else own
        figure.add_scatter(
            x=own["x"], y=own["y"], mode="lines+markers+text" if has_order else "markers+text",
            name=escape_name(column), text=own["shown"], textposition="top center", customdata=own["label"],
            line={"color": colour, "width": 1},
            marker={"color": colour, "size": 9, "symbol": SYMBOLS[at % len(SYMBOLS)]},
            hovertemplate=f"{escape_name(column)} = %{{customdata}}<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(title="first principal component")
    figure.update_yaxes(title="second principal component", scaleanchor="x")
    return finish_figure(figure, "encodings of categories")


def _list_values(rows: pd.DataFrame, name: str) -> list[float | None]:
    return [float(value) for value in sorted(rows[name].unique())] if name in rows else [None]


def _name_panel(n_c: float | None, noise: float | None) -> str:
    if n_c is None or noise is None:
        return ""
    return f"{n_c:g} {'cause' if n_c == 1 else 'causes'}, noise {noise:g}"


@dataclass(frozen=True)
class _Style:
    """How a method is drawn. places: shift → its place on the axis. offset: of this method's points from there."""

    method: str
    colour: str
    offset: float
    places: Mapping[str, int]

    @property
    def name(self) -> str:
        return escape_name(self.method.upper() if len(self.method) <= LONGEST_ACRONYM else self.method)

    def place(self, shifts: Iterable[str]) -> list[float]:
        return [self.places[shift] + self.offset for shift in shifts]


def _style_methods(methods: Sequence[str], places: Mapping[str, int]) -> list[_Style]:
    """A colour and a place beside the others for each method."""
    colours, offsets = colour_methods(methods, OURS), dodge(methods)
    return [_Style(method, colours[method], offsets[method], places) for method in methods]


def _split(
    rows: pd.DataFrame, down: Sequence[float | None], across: Sequence[float | None]
) -> list[tuple[tuple[int, int], pd.DataFrame]]:
    """The rows of each panel that has some, with its place in the grid, counted from 1."""
    found = []
    for i, n_c in enumerate(down, 1):
        for j, noise in enumerate(across, 1):
            own = rows if n_c is None else rows[(rows["n_c"] == n_c) & (rows["noise"] == noise)]
            if len(own):
                found.append(((i, j), own))
    return found


def _add_means(figure: go.Figure, own: pd.DataFrame, style: _Style, panel: tuple[int, int], *, is_first: bool) -> None:
    found = average_runs(own["accuracy"], own["shift"]).sort_index()
    figure.add_scatter(
        x=style.place(found.index), y=found["mean"], mode="lines+markers",
        error_y={"array": found["error"], "thickness": 1.5, "width": 3}, name=style.name, legendgroup=style.method,
        showlegend=is_first, line={"color": style.colour, "width": 1}, marker={"color": style.colour, "size": 8},
        customdata=found["runs"], row=panel[0], col=panel[1],
        hovertemplate=f"{style.name}: %{{y:.1%}}, %{{customdata}} runs<extra></extra>",
    )  # fmt: skip


def _add_published(figure: go.Figure, own: pd.DataFrame, style: _Style, panel: tuple[int, int]) -> None:
    known = own.groupby("shift")["published_accuracy"].first().dropna()
    figure.add_scatter(
        x=style.place(known.index), y=known, mode="markers", showlegend=False, legendgroup=style.method,
        marker={"color": style.colour, "size": 13, "symbol": "circle-open"}, row=panel[0], col=panel[1],
        hovertemplate=f"{style.name} in the paper: %{{y:.1%}}<extra></extra>",
    )  # fmt: skip


def _has_published(rows: pd.DataFrame, options: PlotOptions) -> bool:
    return options.published and "published_accuracy" in rows and bool(rows["published_accuracy"].notna().any())


def _label_cell(name: object, values: Mapping[object, object]) -> str:
    return f"{escape_name(name)} = {escape_name(values[name])}" if name in values else escape_name(name)
