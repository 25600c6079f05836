"""Methods of the papers' experiments beside one another and beside the published numbers: accuracies and errors."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from itertools import product
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from attngeo.errors import DataError
from attngeo.figures.kinds import PlotOptions
from attngeo.figures.names import escape_name, escape_names
from attngeo.figures.style import DASHES, GUIDE, MARKED, MODELS, OTHER, finish_figure, sample_colours

# The half width of an interval in standard errors.
ERRORS = 2.0
# Distance between the points of two methods, as a share of that between two ticks of an axis.
DODGE = 0.09
# Names of methods up to this length are written in capitals.
LONGEST_ACRONYM = 3
# Pixels: the height of a panel, and of a single one.
PANEL_HEIGHT, SINGLE_HEIGHT = 260, 440
# Pixels: the room between and around panels, and for a line of the legend.
BETWEEN, AROUND, LEGEND_LINE = 90, 180, 30


def draw_shift(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """Mean accuracy of each method against the correlation in training rows.

    There is one panel per number of causes and noise level. If the rows have no correlation, the axis shows the names
    of the data sets.

    Args:
        rows: rows of `attngeo tabular simulate` or `auto-mpg`, one for each run: method, seed, accuracy.
        options: `published` shows the paper's means as open symbols.

    Returns:
        A figure of means, with intervals of two standard errors.
    """
    shifts = rows["corr"].map("{:g}".format) if "corr" in rows else rows["data"].map(str)
    rows = _choose_published(rows.assign(shift=shifts, value=rows["accuracy"]), "published_accuracy", options)
    methods = list(rows["method"].unique())
    rows = rows.sort_values("shift", kind="stable")
    noises = sorted(rows["noise"].unique()) if "noise" in rows else [None]
    causes = sorted(rows["n_c"].unique()) if "n_c" in rows else [None]
    figure = make_subplots(
        rows=len(causes),
        cols=len(noises),
        shared_yaxes=True,
        shared_xaxes=True,
        vertical_spacing=0.12,
        subplot_titles=_title_simulations(causes, noises) if "n_c" in rows else None,
    )
    ticks = {shift: tick for tick, shift in enumerate(rows["shift"].unique())}
    colours = _colour_methods(methods, "atn")
    offsets = _dodge(methods)
    for method in methods:
        label = method.upper() if len(method) <= LONGEST_ACRONYM else method
        style = {"name": escape_name(label), "legendgroup": method, "mode": "lines+markers"}
        runs = rows[rows["method"] == method]
        runs = runs.assign(x=runs["shift"].map(ticks) + offsets[method])
        for row, n_c in enumerate(causes, 1):
            for column, noise in enumerate(noises, 1):
                points = runs if n_c is None else runs[(runs["n_c"] == n_c) & (runs["noise"] == noise)]
                _add_points(figure, points, style, colours[method], {"row": row, "col": column}, number_format=".1%")
    figure.update_xaxes(tickvals=list(ticks.values()), ticktext=escape_names(ticks), showticklabels=True)
    figure.update_yaxes(tickformat=".0%", rangemode="tozero")
    figure.update_yaxes(title="accuracy", col=1)
    if "corr" in rows:
        figure.update_xaxes(title="correlation in training rows", row=len(causes))
    figure.update_layout(height=max(PANEL_HEIGHT * len(causes), LEGEND_LINE * len(methods)) + AROUND)
    details = "mean ± 2 standard errors" + _explain_symbols(rows)
    return finish_figure(figure, "accuracy on rows from a shifted distribution", details, top=110)


def _title_simulations(causes: Sequence[Any], noises: Sequence[Any]) -> list[str]:
    """The titles of panels, row by row: the number of causes, and the noise."""
    titles = []
    for n_c, noise in product(causes, noises):
        noun = "cause" if n_c == 1 else "causes"
        titles.append(f"{n_c:g} {noun}, noise {noise:g}")
    return titles


def _choose_published(rows: pd.DataFrame, column: str, options: PlotOptions) -> pd.DataFrame:
    """The rows with the published numbers of a column in one of this name; with none if they are not to be shown."""
    is_shown = options.published and column in rows
    return rows.assign(published=rows[column] if is_shown else float("nan"))


def _explain_symbols(rows: pd.DataFrame) -> str:
    """What open symbols are, as the end of a title, if there are any."""
    return "; open symbols: the paper" if rows["published"].notna().any() else ""


def _average_runs(rows: pd.DataFrame, by: str) -> pd.DataFrame:
    """The values of runs for each key: columns mean, error (two standard errors; missing for one run) and runs.

    published: the paper's number for the key.
    """
    grouped = rows.groupby(by, sort=False)
    values = grouped["value"]
    counts = grouped.size()
    error = (ERRORS * values.std() / counts**0.5).where(counts > 1)
    columns = {"mean": values.mean(), "error": error, "runs": counts, "published": grouped["published"].first()}
    return pd.DataFrame(columns)


def _colour_methods(names: Sequence[str], ours: str) -> dict[str, str]:
    """A colour for each method that is compared: ours is marked, the others are sampled from a scale."""
    others = [name for name in names if name != ours]
    colours = sample_colours(MODELS, len(others), 0.15, 0.85)
    return dict(zip(others, colours, strict=True)) | {ours: MARKED}


def _dodge(names: Sequence[str]) -> dict[str, float]:
    """The distance of each method's points from their tick on the axis, so that none hides another."""
    middle = (len(names) - 1) / 2
    return {name: DODGE * (number - middle) for number, name in enumerate(names)}


def _add_points(
    figure: go.Figure,
    rows: pd.DataFrame,
    style: Mapping[str, Any],
    colour: str,
    subplot: Mapping[str, int],
    number_format: str = ".4g",
) -> None:
    """Add the means of one method with their intervals, and the paper's numbers as open symbols.

    rows: with columns x, value and published. style: of its trace; the first panel that has it is in the legend.
    """
    if rows.empty:
        return
    is_new = all(trace.legendgroup != style["legendgroup"] for trace in figure.data)
    means = _average_runs(rows, "x")
    figure.add_scatter(
        x=means.index,
        y=means["mean"],
        customdata=means["runs"],
        showlegend=is_new,
        error_y={"array": means["error"], "thickness": 1.5, "width": 3},
        marker={"color": colour, "size": 9},
        line={"color": colour, "width": 1},
        hovertemplate=f"{style['name']}: %{{y:{number_format}}}, %{{customdata}} runs<extra></extra>",
        **style,
        **subplot,
    )
    published = means["published"].dropna()
    if published.empty:
        return
    figure.add_scatter(
        x=published.index,
        y=published,
        mode="markers",
        showlegend=False,
        legendgroup=style["legendgroup"],
        marker={"color": colour, "size": 14, "symbol": "circle-open"},
        hovertemplate=f"{style['name']} in the paper: %{{y:{number_format}}}<extra></extra>",
        **subplot,
    )


# The metrics that are drawn, and their names on the axis; there is one for each experiment.
METRICS = {"mse": "mean squared error", "loss": "loss", "cross_entropy": "cross-entropy"}
# The models of the paper: attention and the factor model; all others are baselines without training.
OURS, FACTORS = "efa", "fm"
NAMES = {OURS: "EFA", FACTORS: "factor model"}
# Settings that are numbers, by the letter before the number. Errors over neighbours have a log scale.
NEIGHBORS, SEQUENCES = "k", "N"
TITLES = {NEIGHBORS: "neighbours of the factor model, k", SEQUENCES: "training sequences, N (log scale)"}
DIRECTIONS = {"bi": "bidirectional", "uni": "unidirectional"}
# From this ratio of errors on, ticks are powers of 10, not of 2.
WIDE = 64
# The ends of a panel's lines, and of its axis, beyond the outermost ticks: shares of the distance between these.
EDGE = 0.04


def draw_test_errors(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """The test error of each model by direction and setting; one panel per experiment and metric.

    If a setting is a number of neighbours or sequences, it is the axis, and the other models are lines across it.

    Args:
        rows: rows of `attngeo efa run`.
        options: `published` shows the paper's numbers as open symbols.

    Returns:
        A figure of means, with intervals of two standard errors over seeds.

    Raises:
        DataError: no metric of the rows is an error.
    """
    rows = _choose_published(_select_errors(rows), "published", options)
    panels = list(rows.groupby(["experiment", "family", "metric"], sort=False))
    several = len(panels) > 1
    height = PANEL_HEIGHT if several else SINGLE_HEIGHT
    total = (height + BETWEEN) * len(panels) - BETWEEN
    names = [_join(escape_name(experiment), escape_name(family)) for (experiment, family, _), _ in panels]
    figure = make_subplots(
        rows=len(panels),
        cols=1,
        vertical_spacing=BETWEEN / total,
        subplot_titles=names if several else None,
    )
    uncounted = [runs["model"] for _, runs in panels if runs["count"].isna().all()]
    colours = _colour_methods(_order_models(pd.concat(uncounted)), OURS) if uncounted else {}
    for number, ((_, _, metric), runs) in enumerate(panels, 1):
        if runs["count"].notna().any():
            _add_counts(figure, runs, number)
        else:
            _add_settings(figure, runs, colours, number)
        axis = figure.layout["yaxis" if number == 1 else f"yaxis{number}"]
        scale = " (log scale)" if axis.type == "log" else ""
        figure.update_yaxes(title=METRICS[str(metric)] + scale, row=number)
    figure.update_layout(height=total + AROUND)
    title = "errors on test rows" if several else f"{names[0]}: errors on test rows"
    has_seeds = "seed" not in rows or rows["seed"].nunique() > 1
    details = "mean ± 2 standard errors over seeds" if has_seeds else "one seed"
    return finish_figure(figure, title, details + _explain_symbols(rows), top=100)


def _select_errors(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows whose metric is an error, with texts for settings, and the number and its letter if a setting is one.

    Losses of different families cannot be compared: the setting that names one goes to the column family.
    """
    errors = rows[rows["metric"].isin(list(METRICS)) & rows["value"].notna()]
    if errors.empty:
        raise DataError(f"no row has a value for any of the metrics {', '.join(METRICS)}")
    setting = errors["setting"].astype(object).fillna("").map(str)
    counts = setting.str.extract(rf"^(?P<letter>[{''.join(TITLES)}])=(?P<count>[1-9]\d*)$")
    family = setting.where(errors["metric"] == "loss", "")
    counts = counts.astype({"count": "float64"})
    return errors.assign(family=family, setting=setting.where(family == "", ""), **counts)


def _order_models(models: pd.Series) -> list[str]:
    """Attention, the factor model, and the baselines in their order."""
    return sorted(dict.fromkeys(models), key=lambda name: (name != OURS, name != FACTORS))


def _join(*names: str) -> str:
    """The names that are not empty, with commas."""
    return ", ".join(filter(None, names))


def _name_model(model: Hashable) -> str:
    return NAMES.get(str(model), escape_name(model))


def _add_settings(figure: go.Figure, rows: pd.DataFrame, colours: Mapping[str, str], row: int) -> None:
    """Add one point for each model, direction and setting."""
    models = _order_models(rows["model"])
    offsets = _dodge(models)
    labels = [
        _join(DIRECTIONS.get(direction, escape_name(direction)), escape_name(setting))
        for direction, setting in zip(rows["direction"], rows["setting"], strict=True)
    ]
    ticks = {label: tick for tick, label in enumerate(dict.fromkeys(labels))}
    rows = rows.assign(x=[ticks[label] + offsets[model] for label, model in zip(labels, rows["model"], strict=True)])
    for model in models:
        style = {"name": _name_model(model), "legendgroup": model, "mode": "markers"}
        _add_points(figure, rows[rows["model"] == model], style, colours[model], {"row": row, "col": 1})
    figure.update_xaxes(
        tickvals=list(ticks.values()), ticktext=list(ticks), range=[-0.5, len(ticks) - 0.5], zeroline=False, row=row
    )


def _add_counts(figure: go.Figure, rows: pd.DataFrame, row: int) -> None:
    """Add a line of models against the numbers of their settings, and a line across the panel for each other one."""
    counted = rows[rows["count"].notna()].sort_values("count", kind="stable")
    letter = counted["letter"].iloc[0]
    counts = counted["count"].unique()
    ticks = {count: math.log10(count) if letter == SEQUENCES else count for count in counts}
    counted = counted.assign(x=counted["count"].map(ticks))
    for model, points in counted.groupby("model", sort=False):
        colour = _colour_methods([OURS, str(model)], OURS)[str(model)]
        style = {"name": _name_model(model), "legendgroup": str(model), "mode": "lines+markers"}
        _add_points(figure, points, style, colour, {"row": row, "col": 1})
    first = ticks[counts[0]]
    last = ticks[counts[-1]]
    if len(counts) == 1:
        first -= 1
        last += 1
    edge = EDGE * (last - first)
    _add_lines(figure, rows[rows["count"].isna()], (first - edge, last + edge), row)
    figure.update_xaxes(
        title=TITLES[letter],
        tickvals=list(ticks.values()),
        ticktext=[f"{count:g}" for count in counts],
        row=row,
        range=[first - 2 * edge, last + 2 * edge],
        zeroline=False,
    )
    if letter == NEIGHBORS:
        errors = pd.concat([rows["value"], rows["published"]]).dropna()
        is_wide = errors.max() > WIDE * errors.min()
        figure.update_yaxes(type="log", tick0=1, dtick=1 if is_wide else math.log10(2), tickformat=".3~g", row=row)


def _add_lines(figure: go.Figure, rows: pd.DataFrame, ends: tuple[float, float], row: int) -> None:
    """Add a line for each model and setting, from the largest error to the smallest: the order of the legend.

    The interval is at the left end of a line, and the paper's number at the right one.
    """
    rows = rows.assign(key=rows["model"].map(str) + "\n" + rows["setting"])
    means = _average_runs(rows, "key").join(rows.groupby("key")[["model", "setting"]].first())
    means["number"] = means.groupby("model", sort=False).cumcount()
    for key, line in means.sort_values("mean", ascending=False).iterrows():
        colour = {OURS: MARKED, FACTORS: OTHER}.get(line["model"], GUIDE)
        name = _join(_name_model(line["model"]), escape_name(line["setting"]))
        figure.add_scatter(
            x=ends,
            y=[line["mean"], line["mean"]],
            mode="lines",
            name=f"{name}: {line['mean']:.3g}",
            line={"color": colour, "width": 2, "dash": DASHES[line["number"] % len(DASHES)]},
            error_y={"array": [line["error"], float("nan")], "thickness": 2, "width": 0},
            hovertemplate=f"{name}: %{{y:.4g}}, {line['runs']} runs<extra></extra>",
            legendgroup=str(key),
            row=row,
            col=1,
        )
        if pd.isna(line["published"]):
            continue
        figure.add_scatter(
            x=ends[1:],
            y=[line["published"]],
            mode="markers",
            showlegend=False,
            marker={"color": colour, "size": 11, "symbol": "circle-open"},
            hovertemplate=f"{name} in the paper: %{{y:.4g}}<extra></extra>",
            legendgroup=str(key),
            row=row,
            col=1,
        )
