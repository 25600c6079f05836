"""Accuracy at word analogies as bars or by layer, and the error terms of paraphrases."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from attngeo.errors import DataError
from attngeo.figures.fit import BELOW, PANEL_TITLE_HEIGHT, TITLE_HEIGHT
from attngeo.figures.grid import MOST_PANELS_ACROSS, make_grid, title_axes
from attngeo.figures.kinds import PlotOptions
from attngeo.figures.names import escape_name
from attngeo.figures.style import INTERVAL, MODELS, ROLES, SYMBOLS, compose_title, finish_figure, sample_colours

# The levels of rows, in the order of their bars.
LEVELS = ("overall", "type", "category")
# Pixels.
BAR_HEIGHT, BETWEEN, AROUND = 16, 8, 160
# The title names the number of questions if there are no more different ones than this; the hovers always do.
MOST_QUESTION_COUNTS = 2
# The column of layers, and the layer that is the table of vectors itself.
LAYER = "layer"
TABLE_LAYER = -1


def draw_analogies(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001 - every kind takes options
    """Accuracy on all questions, each type and each category, with 95% intervals; one bar per model.

    If the rows have several sets of questions, a model has one bar per set. If they have several layers, the figure has
    lines over the layers instead, with one panel for all questions and one per type.

    Args:
        rows: rows of `attngeo.analogy`, its table `scores`.
        options: unused; all kinds accept them.

    Returns:
        A figure of horizontal bars, or of lines.

    Raises:
        DataError: no row has an accuracy.
    """
    rows = rows[rows["accuracy"].notna()]
    if rows.empty:
        raise DataError(
            "no row has an accuracy: the models know none of the questions; choose other rows with $where", "where"
        )
    if LAYER in rows and rows[LAYER].nunique() > 1:
        return _draw_layers(rows)
    several_sets = rows["questions"].nunique() > 1
    names: list[str] = []
    for level in LEVELS:
        names.extend(rows.loc[rows["level"] == level, "name"].unique())
    groups = list(rows.groupby(["model", "questions"], sort=False))
    colours = sample_colours(MODELS, len(groups), 0.35, 0.9)
    figure = go.Figure()
    for ((model, questions), bars), colour in zip(groups, colours, strict=True):
        name = escape_name(model)
        if several_sets:
            name += f" ({escape_name(questions)} questions)"
        _add_bars(figure, bars, name, escape_name(model), colour)
    known = "questions that all models know" if set(rows["questions"]) == {"common"} else "known questions"
    title = f"accuracy (share of {known}, with 95% intervals)"
    figure.update_xaxes(title=title, tickformat=".0%", rangemode="tozero")
    figure.update_yaxes(
        categoryorder="array", categoryarray=[_label(name) for name in names], autorange="reversed", automargin=True
    )
    figure.update_layout(height=len(names) * (BAR_HEIGHT * len(groups) + BETWEEN) + AROUND, barmode="group")
    title = "word analogies" if len(groups) > 1 else f"{escape_name(rows['model'].iloc[0])}: word analogies"
    return finish_figure(figure, title, _count_questions(rows))


def _draw_layers(rows: pd.DataFrame) -> go.Figure:
    """Accuracy against the layer: for all questions, and for each type; one line per model and set of questions."""
    rows = rows[rows["level"] != "category"].astype({LAYER: "int64"})
    names = sorted(rows["name"].unique(), key=lambda name: name != "overall")
    groups = list(rows.groupby(["model", "questions"], sort=False))
    several_sets = rows["questions"].nunique() > 1
    colours = sample_colours(MODELS, len(groups), 0.35, 0.9)
    figure, subplots = make_grid([escape_name(name) for name in names], min(len(names), MOST_PANELS_ACROSS))
    for ((model, questions), lines), colour in zip(groups, colours, strict=True):
        label = f"{escape_name(model)} ({escape_name(questions)} questions)" if several_sets else escape_name(model)
        for name, subplot in zip(names, subplots, strict=True):
            line = lines[lines["name"] == name].sort_values(LAYER)
            figure.add_scatter(
                x=line[LAYER],
                y=line["accuracy"],
                name=label,
                legendgroup=label,
                showlegend=name == names[0],
                mode="lines+markers",
                line_color=colour,
                error_y={
                    "array": line["accuracy_high"] - line["accuracy"],
                    "arrayminus": line["accuracy"] - line["accuracy_low"],
                    "thickness": 1,
                    "width": 2,
                },
                customdata=line[["accuracy_low", "accuracy_high"]].astype(float),
                hovertemplate=f"{escape_name(model)}<br>layer %{{x}}: %{{y:.1%}}<br>"
                "95%: %{customdata[0]:.1%} to %{customdata[1]:.1%}<extra></extra>",
                **subplot,
            )
    title_axes(figure, subplots, f"layer ({TABLE_LAYER}: the table)", "accuracy, with 95% intervals")
    figure.update_yaxes(tickformat=".0%", rangemode="tozero")
    figure.update_layout(legend=BELOW)
    title = compose_title(rows, "word analogies by layer")
    return finish_figure(
        figure, title, _count_questions(rows[rows[LAYER] == TABLE_LAYER]), TITLE_HEIGHT + PANEL_TITLE_HEIGHT
    )


def _add_bars(figure: go.Figure, rows: pd.DataFrame, name: str, model: str, colour: str) -> None:
    """Add the bars of one model and set of questions. name: in the legend. model: in the hovers."""
    accuracy = rows["accuracy"]
    figure.add_bar(
        orientation="h",
        y=[_label(label) for label in rows["name"]],
        x=accuracy,
        marker_color=colour,
        name=name,
        error_x={
            "array": rows["accuracy_high"] - accuracy,
            "arrayminus": accuracy - rows["accuracy_low"],
            "thickness": 1.5,
            "width": 3,
            "color": INTERVAL,
        },
        customdata=rows[["known", "asked", "accuracy_low", "accuracy_high"]].astype(float),
        hovertemplate=f"{model}<br>%{{y}}: %{{x:.1%}}<br>95%: %{{customdata[2]:.1%}} to %{{customdata[3]:.1%}}<br>"
        "%{customdata[0]:,} of %{customdata[1]:,} questions known<extra></extra>",
    )


def _count_questions(rows: pd.DataFrame) -> str:
    """How many questions were known overall, if the models do not differ much in it."""
    known = rows.loc[rows["level"] == "overall", "known"].dropna()
    counts = sorted({f"{int(count):,}" for count in known})
    return f"{' or '.join(counts)} questions" if 0 < len(counts) <= MOST_QUESTION_COUNTS else ""


def _label(name: str) -> str:
    """The name of a bar; all questions together are in bold type."""
    return "<b>overall</b>" if name == "overall" else escape_name(name)


# Column → the title of its panel.
TERMS = {
    "rho": "‖ρ‖", "sigma": "‖σ‖ of W", "sigma_star": "‖σ‖ of W*", "delta": "‖δ‖", "xi": "‖ξ‖",
    "zeta_spread": "range of ζ",
}  # fmt: skip
PANELS_ACROSS = 3
COLOURS = tuple(ROLES.values())
# Pixels of a row of panels.
PANEL_HEIGHT = 260
# The room between two rows of panels, as a share of the height.
SPACE = 0.18


def draw_paraphrases(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:  # noqa: ARG001 - every kind takes options
    """One panel per error term: one point per question, one colour and symbol per model.

    A panel leaves out questions for which its term is undefined; an empty panel says so.

    Args:
        rows: rows of `attngeo analogy --explain`.
        options: unused; all kinds accept them.

    Returns:
        A figure of the cosine error against each error term.
    """
    count = -(-len(TERMS) // PANELS_ACROSS)
    figure = make_subplots(
        rows=count, cols=PANELS_ACROSS, subplot_titles=list(TERMS.values()), shared_yaxes=True, vertical_spacing=SPACE
    )
    subplots = {}
    for number, term in enumerate(TERMS):
        row, column = divmod(number, PANELS_ACROSS)
        subplots[term] = {"row": row + 1, "col": column + 1}
    for number, (model, questions) in enumerate(rows.groupby("model", sort=False)):
        words = questions[["a", "b", "c", "answer"]].to_numpy()
        labels = [escape_name(f"{a} : {b} = {c} : {d}") for a, b, c, d in words]
        style = {"color": COLOURS[number % len(COLOURS)], "symbol": SYMBOLS[number % len(SYMBOLS)], "size": 9}
        for term, title in TERMS.items():
            figure.add_scatter(
                x=questions[term],
                y=questions["cosine_error"],
                mode="markers",
                name=escape_name(model),
                text=labels,
                legendgroup=str(number),
                showlegend=term == next(iter(TERMS)),
                marker=style,
                cliponaxis=False,  # a term may be zero
                hovertemplate=f"{escape_name(model)}<br>%{{text}}<br>{title} %{{x:.3f}}<br>"
                "cosine error %{y:.3f}<extra></extra>",
                **subplots[term],
            )
    for term in TERMS:
        if rows[term].isna().all():
            figure.add_annotation(
                text="not defined<br>for any question",
                showarrow=False,
                x=0.5,
                y=0.5,
                xref="x domain",
                yref="y domain",
                **subplots[term],
            )
    figure.update_yaxes(title="1 − cosine", col=1)
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(rangemode="tozero")
    figure.update_layout(height=PANEL_HEIGHT * count + 100)
    return finish_figure(figure, "word analogies: cosine error against paraphrase errors")
