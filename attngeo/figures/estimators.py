"""Estimators: accuracy over shifts, attention between cells and between items, encodings and vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from attngeo.errors import UsageError
from attngeo.figures.options import PlotOptions
from attngeo.figures.style import (
    MAGNITUDE,
    MODELS,
    SHARE,
    SIGNED,
    SYMBOLS,
    average_runs,
    choose_ticks,
    colour_methods,
    dodge,
    escape_name,
    finish_figure,
)

# The method that the others are compared with; heights in pixels.
OURS = "atn"
PANEL_HEIGHT, AROUND_SHIFT, LEGEND_LINE = 260, 180, 30
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
        subplot_titles=[_name_setting(n_c, noise) for n_c in down for noise in across],
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
    figure.update_layout(height=max(PANEL_HEIGHT * len(down), LEGEND_LINE * len(styles)) + AROUND_SHIFT)
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

    rows: of `attngeo tabular fit --encodings-output`.
    """
    columns = list(dict.fromkeys(rows["column"]))
    colours = sample_colorscale(MODELS, [0.1 + 0.8 * at / max(len(columns) - 1, 1) for at in range(len(columns))])
    figure = go.Figure()
    rows = rows.assign(label=[escape_name(value) for value in rows["value"]])
    for at, (column, colour) in enumerate(zip(columns, colours, strict=True)):
        own = rows[rows["column"] == column]
        numbers = pd.to_numeric(own["value"], errors="coerce")
        has_order = numbers.notna().all()
        own = own.iloc[numbers.to_numpy().argsort(kind="stable")] if has_order else own
        figure.add_scatter(
            x=own["x"], y=own["y"], mode="lines+markers+text" if has_order else "markers+text",
            name=escape_name(column), text=own["label"], textposition="top center", customdata=own["label"],
            line={"color": colour, "width": 1},
            marker={"color": colour, "size": 9, "symbol": SYMBOLS[at % len(SYMBOLS)]},
            hovertemplate=f"{escape_name(column)} = %{{customdata}}<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(title="first principal component")
    figure.update_yaxes(title="second principal component", scaleanchor="x")
    return finish_figure(figure, "encodings of categories")


def _list_values(rows: pd.DataFrame, name: str) -> list[float | None]:
    return [float(value) for value in sorted(rows[name].unique())] if name in rows else [None]


def _name_setting(n_c: float | None, noise: float | None) -> str:
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


# Sequences that one figure has room for; characters of a name.
MOST_SEQUENCES, NAME_LENGTH = 4, 28
# Pixels: the height of an item, the least and the largest height of a panel, the room between and around panels, the
# height that a letter of a slanted name takes, and the colour bar.
ITEM_HEIGHT, VECTOR_HEIGHT, LEAST_HEIGHT, MOST_HEIGHT = 26, 15, 220, 1400
BETWEEN, AROUND, LETTER, BAR = 60, 140, 6, {"lenmode": "pixels", "len": 260, "y": 1, "yanchor": "top"}
# More rows than this are not all named.
MOST_NAMED = 80
# The largest width, in items of all panels of a line, at which cells have room for their number.
LARGEST_LINE = 24
VECTORS = ("query", "key", "value")


def draw_item_attention(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001 - every kind takes options
    """The attention of each item of a sequence, when it is masked, on each item that it sees: a panel for each layer.

    rows: of `attngeo efa attention -o`; means over heads. Pairs that are not seen are blank. Raises UsageError for
    more sequences than a figure has room for.
    """
    sequences, layers = list(dict.fromkeys(rows["sequence"])), sorted(rows["layer"].unique())
    if len(sequences) > MOST_SEQUENCES:
        raise UsageError(
            f"{len(sequences):,} sequences, expected at most {MOST_SEQUENCES}; choose one by where, such as sequence = "
            f"{sequences[0]}"
        )
    tables = {
        (at, layer): _average_heads(own)
        for at, name in enumerate(sequences)
        for layer, own in rows[rows["sequence"] == name].groupby("layer")
    }
    names = {key: _name_items(rows[rows["sequence"] == sequences[key[0]]], table) for key, table in tables.items()}
    heights = [_limit(len(tables[at, layers[0]]) * ITEM_HEIGHT, LEAST_HEIGHT) for at in range(len(sequences))]
    between = BETWEEN + LETTER * max(len(name) for _, columns in names.values() for name in columns)
    inside = sum(heights) + between * (len(sequences) - 1)
    figure = make_subplots(
        rows=len(sequences), cols=len(layers), row_heights=heights, horizontal_spacing=0.03,
        vertical_spacing=between / inside if len(sequences) > 1 else 0,
        subplot_titles=[_name_panel(name, layer, len(sequences)) for name in sequences for layer in layers],
    )  # fmt: skip
    widest = max(table.shape[1] for table in tables.values()) * len(layers)
    for (at, layer), table in tables.items():
        _add_weights(
            figure, table, names[at, layer], at + 1, layers.index(layer) + 1, with_numbers=widest <= LARGEST_LINE
        )
    figure.update_yaxes(title="masked item", col=1)
    figure.update_layout(
        coloraxis={
            "colorscale": MAGNITUDE, "cmin": 0, "cmax": max(table.max().max() for table in tables.values()),
            "colorbar": {"title": "attention", "tickformat": SHARE, **BAR},
        },
        height=inside + between - BETWEEN + AROUND,
    )  # fmt: skip
    shown = "a line: an item, masked; a column: what it attends to; blank: not seen; mean over heads"
    return finish_figure(figure, "attention between the items of a sequence", shown).update_layout(margin={"t": 100})


def draw_item_vectors(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001 - every kind takes options
    """The query, key and value of each item in the first layer, as maps of items × numbers; a line of panels for each
    head.

    rows: of `attngeo.estimators.efa.prediction.tabulate_vectors`.
    """
    heads, vectors = sorted(rows["head"].unique()), [name for name in VECTORS if name in set(rows["vector"])]
    if not vectors:
        raise UsageError(f"no row has a vector that is one of: {', '.join(VECTORS)}")
    items = list(dict.fromkeys(rows["item"]))
    height = _limit(len(items) * VECTOR_HEIGHT, LEAST_HEIGHT)
    total = len(heads) * (height + 60) + AROUND
    figure = make_subplots(
        rows=len(heads), cols=len(vectors), shared_yaxes=True, horizontal_spacing=0.02,
        vertical_spacing=60 / total if len(heads) > 1 else 0,
        subplot_titles=[f"{vector}, head {head}" for head in heads for vector in vectors],
    )  # fmt: skip
    ticks = choose_ticks(pd.RangeIndex(len(items)))["tickvals"] if len(items) > MOST_NAMED else range(len(items))
    for (head, vector), own in rows.groupby(["head", "vector"]):
        if vector not in vectors:
            continue
        table = own.pivot_table(index="item", columns="number", values="value", sort=False).reindex(items)
        place = {"row": heads.index(head) + 1, "col": vectors.index(vector) + 1}
        figure.add_heatmap(
            z=table.to_numpy("float32"), x=[int(number) for number in table.columns],
            customdata=[[escape_name(item)] * table.shape[1] for item in items], coloraxis="coloraxis", **place,
            hovertemplate=f"%{{customdata}}: {vector} in head {head}, number %{{x}}: %{{z:.3f}}<extra></extra>",
        )  # fmt: skip
        figure.update_xaxes(showgrid=False, tickangle=0, tickfont={"size": 9}, **choose_ticks(table.columns), **place)
    figure.update_xaxes(title="number", row=len(heads))
    figure.update_yaxes(
        autorange="reversed", showgrid=False, zeroline=False, automargin=True, tickvals=list(ticks),
        ticktext=[escape_name(items[at], NAME_LENGTH) for at in ticks], tickfont={"size": 10},
    )  # fmt: skip
    reach = float(rows["value"].abs().max()) or 1.0
    colours = {"colorscale": SIGNED, "cmin": -reach, "cmax": reach, "colorbar": {"title": "value", **BAR}}
    figure.update_layout(coloraxis=colours, height=total)
    finished = finish_figure(figure, "queries, keys and values of items", "first layer; a line of panels for each head")
    return finished.update_layout(margin={"t": 100})


def _limit(height: int, least: int) -> int:
    return min(max(height, least), MOST_HEIGHT)


def _name_panel(sequence: object, layer: int, count: int) -> str:
    return f"layer {layer}" if count == 1 else f"sequence {escape_name(sequence)}, layer {layer}"


def _average_heads(own: pd.DataFrame) -> pd.DataFrame:
    """The mean weights over the heads of a layer, [positions, tokens]; tokens are (lag, position) in their order."""
    keyed = own.assign(lag=0) if "lag" not in own else own
    return keyed.pivot_table(index="position", columns=["lag", "other_position"], values="weight", aggfunc="mean")


def _name_items(own: pd.DataFrame, table: pd.DataFrame) -> tuple[list[str], list[str]]:
    """How the lines and the columns of a table are called: items, or positions if there are none."""
    items = dict(zip(own["position"], own["item"], strict=True)) if "item" in own else {}
    if "other_item" in own:
        items |= dict(zip(own["other_position"], own["other_item"], strict=True))
    lines, columns = (
        [escape_name(items.get(position, position), NAME_LENGTH) for position in positions]
        for positions in (table.index, table.columns.get_level_values("other_position"))
    )
    lags = table.columns.get_level_values("lag")
    return lines, [name if lag == 0 else f"{name}, {lag:g} before" for name, lag in zip(columns, lags, strict=True)]


def _add_weights(
    figure: go.Figure,
    table: pd.DataFrame,
    names: tuple[list[str], list[str]],
    row: int,
    col: int,
    *,
    with_numbers: bool,
) -> None:  # fmt: skip
    """A map of weights. names: of lines and columns; an item may occur twice, so that axes have numbers."""
    lines, columns = names
    figure.add_heatmap(
        z=table.to_numpy(), coloraxis="coloraxis", hoverongaps=False, row=row, col=col,
        customdata=[[(line, column) for column in columns] for line in lines],
        texttemplate="%{z:.0%}" if with_numbers else None,
        hovertemplate="%{customdata[0]}, masked, attends %{z:.1%} to %{customdata[1]}<extra></extra>",
    )  # fmt: skip
    shown = {"showgrid": False, "zeroline": False, "automargin": True, "row": row, "col": col}
    figure.update_xaxes(tickvals=list(range(len(columns))), ticktext=columns, tickangle=-60, **shown)
    figure.update_yaxes(
        tickvals=list(range(len(lines))), ticktext=lines, autorange="reversed", showticklabels=col == 1, **shown
    )
