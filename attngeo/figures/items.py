"""Exponential family attention over items: weights between the items of a sequence, and the vectors of items."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from attngeo.errors import UsageError
from attngeo.figures.common import SHARE, choose_ticks, escape_name, finish_figure
from attngeo.figures.options import PlotOptions
from attngeo.figures.palette import MAGNITUDE, SIGNED

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

    rows: of `attngeo.estimators.efa.views.tabulate_vectors`.
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
