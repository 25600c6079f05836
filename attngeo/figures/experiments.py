"""Methods of the papers' experiments beside one another and beside the published numbers: accuracies and errors."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from attngeo.errors import DataError
from attngeo.figures.kinds import PlotOptions
from attngeo.figures.style import DASHES, GUIDE, MARKED, MODELS, OTHER, escape_name, finish_figure, sample_colours

# The half width of an interval in standard errors. Distance between the points of two methods, as a share of that
# between two places of an axis.
ERRORS, DODGE = 2.0, 0.09
# Names of methods up to this length are written in capitals.
LONGEST_ACRONYM = 3
# Pixels: the height of a panel, of a single one, and the room between and around panels and for a line of the legend.
PANEL_HEIGHT, WHOLE_HEIGHT, BETWEEN, AROUND, LEGEND_LINE = 260, 440, 90, 180, 30


def draw_shift(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """Mean accuracy of each method against the correlation in training rows, with two standard errors; a panel for each
    number of causes and noise.

    rows: of `attngeo tabular simulate` or `auto-mpg`, where the place of the correlation is taken by the data's name.
    Open symbols are the paper's means, unless `options.published` is false.
    """
    shifts = rows["corr"].map("{:g}".format) if "corr" in rows else rows["data"].map(str)
    rows = _choose_published(rows.assign(place=shifts, value=rows["accuracy"]), "published_accuracy", options)
    methods, rows = list(rows["method"].unique()), rows.sort_values("place", kind="stable")
    across, down = (sorted(rows[name].unique()) if name in rows else [None] for name in ("noise", "n_c"))
    figure = make_subplots(
        rows=len(down), cols=len(across), shared_yaxes=True, shared_xaxes=True, vertical_spacing=0.12,
        subplot_titles=[
            f"{n_c:g} {'cause' if n_c == 1 else 'causes'}, noise {noise:g}" for n_c in down for noise in across
        ] if "n_c" in rows else None,
    )  # fmt: skip
    places = {shift: place for place, shift in enumerate(rows["place"].unique())}
    colours, beside = _colour_methods(methods, "atn"), _dodge(methods)
    for method in methods:
        name = escape_name(method.upper() if len(method) <= LONGEST_ACRONYM else method)
        look = {"name": name, "legendgroup": method, "mode": "lines+markers"}
        part = rows[rows["method"] == method]
        part = part.assign(x=part["place"].map(places) + beside[method])
        for row, n_c in enumerate(down, 1):
            for col, noise in enumerate(across, 1):
                inside = part if n_c is None else part[(part["n_c"] == n_c) & (part["noise"] == noise)]
                _add_points(figure, inside, look, colours[method], {"row": row, "col": col}, form=".1%")
    figure.update_xaxes(
        tickvals=list(places.values()), ticktext=[escape_name(place) for place in places], showticklabels=True
    )
    figure.update_yaxes(tickformat=".0%", rangemode="tozero")
    figure.update_yaxes(title="accuracy", col=1)
    if "corr" in rows:
        figure.update_xaxes(title="correlation in training rows", row=len(down))
    figure.update_layout(height=max(PANEL_HEIGHT * len(down), LEGEND_LINE * len(methods)) + AROUND)
    shown = "mean ± 2 standard errors" + _explain_symbols(rows)
    return finish_figure(figure, "accuracy on rows with another distribution", shown, top=110)


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
    values, counts = grouped["value"], grouped.size()
    error = (ERRORS * values.std() / counts**0.5).where(counts > 1)
    columns = {"mean": values.mean(), "error": error, "runs": counts, "published": grouped["published"].first()}
    return pd.DataFrame(columns)


def _colour_methods(names: Sequence[str], ours: str) -> dict[str, str]:
    """A colour for each method that is compared: ours is marked, the others are sampled from a scale."""
    others = [name for name in names if name != ours]
    return dict(zip(others, sample_colours(MODELS, len(others), 0.15, 0.85), strict=True)) | {ours: MARKED}


def _dodge(names: Sequence[str]) -> dict[str, float]:
    """How far the points of each method are beside their place on the axis, so that none hides another."""
    return {name: DODGE * (at - (len(names) - 1) / 2) for at, name in enumerate(names)}


def _add_points(
    figure: go.Figure, rows: pd.DataFrame, look: Mapping[str, Any], colour: str, panel: Mapping[str, int],
    form: str = ".4g",
) -> None:  # fmt: skip
    """The means of one method with their intervals, and the paper's numbers as open symbols.

    rows: with columns x, value and published. look: of its trace; the first panel that has it is in the legend.
    """
    if rows.empty:
        return
    is_new = all(trace.legendgroup != look["legendgroup"] for trace in figure.data)
    means = _average_runs(rows, "x")
    figure.add_scatter(
        x=means.index, y=means["mean"], customdata=means["runs"], showlegend=is_new, **look, **panel,
        error_y={"array": means["error"], "thickness": 1.5, "width": 3}, marker={"color": colour, "size": 9},
        line={"color": colour, "width": 1},
        hovertemplate=f"{look['name']}: %{{y:{form}}}, %{{customdata}} runs<extra></extra>",
    )  # fmt: skip
    known = means["published"].dropna()
    if len(known):
        figure.add_scatter(
            x=known.index, y=known, mode="markers", showlegend=False, legendgroup=look["legendgroup"], **panel,
            marker={"color": colour, "size": 14, "symbol": "circle-open"},
            hovertemplate=f"{look['name']} in the paper: %{{y:{form}}}<extra></extra>",
        )  # fmt: skip


# What a row's metric must be to be drawn, and how the axis calls it; there is one for each experiment.
METRICS = {"mse": "mean squared error", "loss": "loss", "cross_entropy": "cross-entropy"}
# The models of the paper: attention and the factor model; all others are baselines without training.
OURS, FACTORS = "efa", "fm"
NAMES = {OURS: "EFA", FACTORS: "factor model"}
# Settings that are numbers, by the letter before the number. Errors over neighbours have a log scale.
NEIGHBOURS, SEQUENCES = "k", "N"
TITLES = {NEIGHBOURS: "neighbours of the factor model, k", SEQUENCES: "sequences that train, N (log scale)"}
DIRECTIONS = {"bi": "bidirectional", "uni": "unidirectional"}
# From this ratio of errors on, ticks are powers of 10, not of 2.
WIDE = 64


def draw_test_errors(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """The test error of each model by direction and setting, with two standard errors over seeds; a panel for each
    experiment and metric.

    If a setting is a number of neighbours or of sequences, it is the axis, and the other models are lines across it.
    rows: of `attngeo efa run`. Open symbols are the paper's numbers, unless `options.published` is false.
    Raises DataError if there is no error among the metrics.
    """
    rows = _choose_published(_select_errors(rows), "published", options)
    panels = list(rows.groupby(["experiment", "family", "metric"], sort=False))
    height = PANEL_HEIGHT if len(panels) > 1 else WHOLE_HEIGHT
    inside = (height + BETWEEN) * len(panels) - BETWEEN
    names = [", ".join(filter(None, map(escape_name, key[:2]))) for key, _ in panels]
    figure = make_subplots(
        rows=len(panels), cols=1, vertical_spacing=BETWEEN / inside if len(panels) > 1 else 0,
        subplot_titles=names if len(panels) > 1 else None,
    )  # fmt: skip
    dots = [part for _, part in panels if part["count"].isna().all()]
    colours = _colour_methods(_order_models(pd.concat(dots)["model"]), OURS) if dots else {}
    for number, (_, part) in enumerate(panels, 1):
        if part["count"].notna().any():
            _add_counts(figure, part, number)
        else:
            _add_settings(figure, part, colours, number)
        scale = " (log scale)" if figure.layout[f"yaxis{number if number > 1 else ''}"].type == "log" else ""
        figure.update_yaxes(title=METRICS[part["metric"].iloc[0]] + scale, row=number)
    figure.update_layout(height=inside + AROUND)
    title = "errors on test rows" if len(panels) > 1 else f"{names[0]}: errors on test rows"
    shown = "mean ± 2 standard errors over seeds" if "seed" not in rows or rows["seed"].nunique() > 1 else "one seed"
    return finish_figure(figure, title, shown + _explain_symbols(rows), top=100)


def _select_errors(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows whose metric is an error, with texts for settings, and the number and its letter if a setting is one.

    Losses of different families cannot be compared: the setting that names one goes to the column family.
    """
    errors = rows[rows["metric"].isin(list(METRICS)) & rows["value"].notna()]
    if errors.empty:
        raise DataError(f"no row has a value of a metric that is one of: {', '.join(METRICS)}")
    setting = errors["setting"].astype(object).fillna("").map(str)
    counts = setting.str.extract(rf"^(?P<letter>[{''.join(TITLES)}])=(?P<count>[1-9]\d*)$")
    family = setting.where(errors["metric"] == "loss", "")
    counts = counts.astype({"count": "float64"})
    return errors.assign(family=family, setting=setting.where(family == "", ""), **counts)


def _order_models(models: pd.Series) -> list[str]:
    """Attention, the factor model, and the baselines in their order."""
    return sorted(dict.fromkeys(models), key=lambda name: (name != OURS, name != FACTORS))


def _name_model(model: Hashable, setting: object = "") -> str:
    names = [NAMES.get(str(model), escape_name(model)), escape_name(setting)]
    return ", ".join(filter(None, names))


def _add_settings(figure: go.Figure, part: pd.DataFrame, colours: Mapping[str, str], row: int) -> None:
    """One point for each model, direction and setting."""
    models = _order_models(part["model"])
    beside = _dodge(models)
    labels = [
        ", ".join(filter(None, (DIRECTIONS.get(direction, escape_name(direction)), escape_name(setting))))
        for direction, setting in zip(part["direction"], part["setting"], strict=True)
    ]
    places = {label: at for at, label in enumerate(dict.fromkeys(labels))}
    part = part.assign(x=[places[label] + beside[model] for label, model in zip(labels, part["model"], strict=True)])
    for model in models:
        look = {"name": _name_model(model), "legendgroup": model, "mode": "markers"}
        _add_points(figure, part[part["model"] == model], look, colours[model], {"row": row, "col": 1})
    figure.update_xaxes(
        tickvals=list(places.values()), ticktext=list(places), range=[-0.5, len(places) - 0.5], zeroline=False, row=row
    )


def _add_counts(figure: go.Figure, part: pd.DataFrame, row: int) -> None:
    """A line of models against the numbers of their settings, and a line across the panel for each other one."""
    counted = part[part["count"].notna()].sort_values("count", kind="stable")
    letter, numbers = counted["letter"].iloc[0], counted["count"].unique()
    places = {number: math.log10(number) if letter == SEQUENCES else number for number in numbers}
    counted = counted.assign(x=counted["count"].map(places))
    for model, points in counted.groupby("model", sort=False):
        colour = _colour_methods([OURS, str(model)], OURS)[str(model)]
        look = {"name": _name_model(model), "legendgroup": str(model), "mode": "lines+markers"}
        _add_points(figure, points, look, colour, {"row": row, "col": 1})
    first, last = places[numbers[0]], places[numbers[-1]]
    ends = (first, last) if len(numbers) > 1 else (first - 1, last + 1)
    edge = 0.04 * (ends[1] - ends[0])
    _add_lines(figure, part[part["count"].isna()], (ends[0] - edge, ends[1] + edge), row)
    figure.update_xaxes(
        title=TITLES[letter], tickvals=list(places.values()), ticktext=[f"{number:g}" for number in numbers], row=row,
        range=[ends[0] - 2 * edge, ends[1] + 2 * edge], zeroline=False,
    )  # fmt: skip
    if letter == NEIGHBOURS:
        errors = pd.concat([part["value"], part["published"]]).dropna()
        is_wide = errors.max() > WIDE * errors.min()
        figure.update_yaxes(type="log", tick0=1, dtick=1 if is_wide else math.log10(2), tickformat=".3~g", row=row)


def _add_lines(figure: go.Figure, part: pd.DataFrame, ends: tuple[float, float], row: int) -> None:
    """A line for each model and setting, from the largest error to the smallest: the order of the legend.

    The interval is at the left end of a line, and the paper's number at the right one.
    """
    part = part.assign(key=part["model"].map(str) + "\n" + part["setting"])
    means = _average_runs(part, "key").join(part.groupby("key")[["model", "setting"]].first())
    means["number"] = means.groupby("model", sort=False).cumcount()
    for key, line in means.sort_values("mean", ascending=False).iterrows():
        colour = {OURS: MARKED, FACTORS: OTHER}.get(line["model"], GUIDE)
        name = _name_model(line["model"], line["setting"])
        about = {"legendgroup": str(key), "row": row, "col": 1}
        figure.add_scatter(
            x=ends, y=[line["mean"]] * 2, mode="lines", name=f"{name}: {line['mean']:.3g}",
            line={"color": colour, "width": 2, "dash": DASHES[line["number"] % len(DASHES)]},
            error_y={"array": [line["error"], float("nan")], "thickness": 2, "width": 0},
            hovertemplate=f"{name}: %{{y:.4g}}, {line['runs']} runs<extra></extra>", **about,
        )  # fmt: skip
        if pd.notna(line["published"]):
            figure.add_scatter(
                x=ends[1:], y=[line["published"]], mode="markers", showlegend=False,
                marker={"color": colour, "size": 11, "symbol": "circle-open"},
                hovertemplate=f"{name} in the paper: %{{y:.4g}}<extra></extra>", **about,
            )  # fmt: skip
