"""Errors of models in the experiments of exponential family attention, beside the paper's and those of baselines."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from attngeo.errors import DataError
from attngeo.figures.options import PlotOptions
from attngeo.figures.style import (
    DASHES,
    GUIDE,
    MARKED,
    OTHER,
    average_runs,
    colour_methods,
    dodge,
    escape_name,
    finish_figure,
)

# What a row's metric must be to be drawn, and how the axis calls it; there is one for each experiment.
METRICS = {"mse": "mean squared error", "loss": "loss", "cross_entropy": "cross-entropy"}
# The models of the paper: attention and the factor model; all others are baselines without training.
OURS, FACTORS = "efa", "fm"
NAMES = {OURS: "EFA", FACTORS: "factor model"}


class CountAxis(NamedTuple):
    """An axis of numbers: its title, where a number is on it, and whether errors have a log scale beside it."""

    title: str
    place: Callable[[float], float]
    log_errors: bool


# Settings that are numbers, by the letter before the number.
COUNTS = {
    "k": CountAxis("neighbours of the factor model, k", float, True),
    "N": CountAxis("sequences that train, N (log scale)", math.log10, False),
}
DIRECTIONS = {"bi": "bidirectional", "uni": "unidirectional"}
# From this ratio of errors on, ticks are powers of 10, not of 2.
WIDE = 64
# Pixels: the height of a panel, of a single one, and the room between and around panels.
PANEL_HEIGHT, WHOLE_HEIGHT, BETWEEN, AROUND = 230, 440, 90, 170


def draw_test_errors(rows: pd.DataFrame, options: PlotOptions) -> go.Figure:
    """The test error of each model by direction and setting, with two standard errors over seeds; a panel for each
    experiment and metric.

    If a setting is a number of neighbours or of sequences, it is the axis, and the other models are lines across it.
    rows: of `attngeo efa run`. Open symbols are the paper's numbers, unless `options.published` is false.
    Raises DataError if there is no error among the metrics.
    """
    rows = _select_errors(rows)
    if not options.published:
        rows = rows.assign(published=float("nan"))
    panels = list(rows.groupby(["experiment", "family", "metric"], sort=False))
    height = PANEL_HEIGHT if len(panels) > 1 else WHOLE_HEIGHT
    inside = (height + BETWEEN) * len(panels) - BETWEEN
    names = [", ".join(filter(None, map(escape_name, key[:2]))) for key, _ in panels]
    figure = make_subplots(
        rows=len(panels), cols=1, vertical_spacing=BETWEEN / inside if len(panels) > 1 else 0,
        subplot_titles=names if len(panels) > 1 else None,
    )  # fmt: skip
    dots = [own for _, own in panels if own["count"].isna().all()]
    colours = colour_methods(_order_models(pd.concat(dots)["model"]), OURS) if dots else {}
    for number, (_, own) in enumerate(panels, 1):
        if own["count"].notna().any():
            _add_counts(figure, own, number)
        else:
            _add_settings(figure, own, colours, number)
        scale = " (log scale)" if figure.layout[f"yaxis{number if number > 1 else ''}"].type == "log" else ""
        figure.update_yaxes(title=METRICS[own["metric"].iloc[0]] + scale, row=number)
    figure.update_layout(height=inside + AROUND)
    title = "errors on test rows" if len(panels) > 1 else f"{names[0]}: errors on test rows"
    shown = "mean ± 2 standard errors over seeds" if "seed" not in rows or rows["seed"].nunique() > 1 else "one seed"
    shown += "; open symbols: the paper" if _has_published(rows) else ""
    return finish_figure(figure, title, shown).update_layout(margin={"t": 100})


def _select_errors(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows whose metric is an error, with texts for settings, and the number and its letter if a setting is one.

    Losses of different families cannot be compared: the setting that names one goes to the column family.
    """
    found = rows[rows["metric"].isin(list(METRICS)) & rows["value"].notna()]
    if found.empty:
        raise DataError(f"no row has a value of a metric that is one of: {', '.join(METRICS)}")
    setting = found["setting"].fillna("").map(str)
    counts = setting.str.extract(rf"^(?P<letter>[{''.join(COUNTS)}])=(?P<count>[1-9]\d*)$")
    published = found["published"] if "published" in found else float("nan")
    count = counts["count"].astype("float64")
    found = found.assign(setting=setting, count=count, letter=counts["letter"], published=published)
    family = setting.where(found["metric"] == "loss", "")
    return found.assign(family=family, setting=setting.where(family == "", ""))


def _has_published(rows: pd.DataFrame) -> bool:
    return bool(rows["published"].notna().any())


def _order_models(models: pd.Series) -> list[str]:
    """Attention, the factor model, and the baselines in their order."""
    return sorted(dict.fromkeys(models), key=lambda name: (name != OURS, name != FACTORS))


def _name_model(model: str) -> str:
    return NAMES.get(model, escape_name(model))


def _add_settings(figure: go.Figure, own: pd.DataFrame, colours: dict[str, str], row: int) -> None:
    """One point for each model, direction and setting."""
    models = _order_models(own["model"])
    beside = dodge(models)
    labels = [
        ", ".join(part for part in (DIRECTIONS.get(direction, escape_name(direction)), escape_name(setting)) if part)
        for direction, setting in zip(own["direction"], own["setting"], strict=True)
    ]
    own = own.assign(label=labels)
    places = {label: at for at, label in enumerate(dict.fromkeys(labels))}
    for model in models:
        about = {
            "name": _name_model(model), "legendgroup": model, "showlegend": _is_new(figure, model),
            "marker": {"color": colours[model], "size": 9},
        }  # fmt: skip
        _add_points(figure, own[own["model"] == model], "label", places, beside[model], row, about)
    figure.update_xaxes(
        tickvals=list(places.values()), ticktext=list(places), range=[-0.5, len(places) - 0.5], zeroline=False, row=row
    )


def _add_counts(figure: go.Figure, own: pd.DataFrame, row: int) -> None:
    """A line of models against the numbers of their settings, and a line across the panel for each other one."""
    counted = own[own["count"].notna()]
    numbers = sorted(counted["count"].unique())
    axis = COUNTS[counted["letter"].iloc[0]]
    places = {number: axis.place(number) for number in numbers}
    for model, part in counted.groupby("model", sort=False):
        colour = colour_methods([OURS, str(model)], OURS)[str(model)]
        about = {
            "name": _name_model(str(model)), "legendgroup": str(model), "showlegend": _is_new(figure, str(model)),
            "mode": "lines+markers", "line": {"color": colour, "width": 1}, "marker": {"color": colour, "size": 9},
        }  # fmt: skip
        _add_points(figure, part.sort_values("count"), "count", places, 0, row, about)
    first, last = places[numbers[0]], places[numbers[-1]]
    ends = (first, last) if len(numbers) > 1 else (first - 1, last + 1)
    edge = 0.04 * (ends[1] - ends[0])
    _add_lines(figure, own[own["count"].isna()], (ends[0] - edge, ends[1] + edge), row)
    figure.update_xaxes(
        title=axis.title, tickvals=list(places.values()), ticktext=[f"{number:g}" for number in numbers], row=row,
        range=[ends[0] - 2 * edge, ends[1] + 2 * edge], zeroline=False,
    )  # fmt: skip
    if axis.log_errors:
        errors = pd.concat([own["value"], own["published"]]).dropna()
        is_wide = errors.max() > WIDE * errors.min()
        figure.update_yaxes(type="log", tick0=1, dtick=1 if is_wide else math.log10(2), tickformat=".3~g", row=row)


def _add_lines(figure: go.Figure, own: pd.DataFrame, ends: tuple[float, float], row: int) -> None:
    """A line for each model and setting, from the largest error to the smallest: the order of the legend.

    The interval is at the left end of a line, and the paper's number at the right one.
    """
    keys = own["model"].map(str) + "\n" + own["setting"]
    found = average_runs(own["value"], keys).join(own.groupby(keys)[["model", "setting", "published"]].first())
    order = {model: list(part.index) for model, part in found.groupby("model", sort=False)}
    for key, each in found.sort_values("mean", ascending=False).iterrows():
        ours, at = each["model"] == OURS, order[each["model"]].index(key)
        colour = MARKED if ours else OTHER if each["model"] == FACTORS else GUIDE
        name = ", ".join(part for part in (_name_model(each["model"]), escape_name(each["setting"])) if part)
        about = {"legendgroup": str(key), "row": row, "col": 1}
        figure.add_scatter(
            x=ends, y=[each["mean"]] * 2, mode="lines", name=f"{name}: {each['mean']:.3g}",
            line={"color": colour, "width": 2, "dash": DASHES[at % len(DASHES)]},
            error_y={"array": [each["error"], float("nan")], "thickness": 2, "width": 0},
            hovertemplate=f"{name}: %{{y:.4g}}, {each['runs']} runs<extra></extra>", **about,
        )  # fmt: skip
        if pd.notna(each["published"]):
            figure.add_scatter(
                x=ends[1:], y=[each["published"]], mode="markers", showlegend=False,
                marker={"color": colour, "size": 11, "symbol": "circle-open"},
                hovertemplate=f"{name} in the paper: %{{y:.4g}}<extra></extra>", **about,
            )  # fmt: skip


def _add_points(
    figure: go.Figure, own: pd.DataFrame, by: str, places: Mapping[Any, float], offset: float, row: int,
    about: dict[str, Any],
) -> None:  # fmt: skip
    """The means of one model with their intervals, and the paper's numbers; about: how its trace is drawn."""
    found = average_runs(own["value"], own[by])
    figure.add_scatter(
        x=[places[key] + offset for key in found.index], y=found["mean"], customdata=found["runs"],
        error_y={"array": found["error"], "thickness": 1.5, "width": 3}, row=row, col=1,
        hovertemplate=f"{about['name']}: %{{y:.4g}}, %{{customdata}} runs<extra></extra>",
        **{"mode": "markers"} | about,
    )  # fmt: skip
    known = own.groupby(by, sort=False)["published"].first().dropna()
    if len(known):
        figure.add_scatter(
            x=[places[key] + offset for key in known.index], y=known, mode="markers", showlegend=False, row=row, col=1,
            legendgroup=about["legendgroup"], marker=about["marker"] | {"size": 14, "symbol": "circle-open"},
            hovertemplate=f"{about['name']} in the paper: %{{y:.4g}}<extra></extra>",
        )  # fmt: skip


def _is_new(figure: go.Figure, group: str) -> bool:
    """Whether no panel before has this model, so that the legend needs it."""
    return all(trace.legendgroup != group for trace in figure.data)
