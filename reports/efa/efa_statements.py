"""The numbers of README.md, computed from the tables beside it.

Each function takes a table and gives the numbers of one place in the text, in the order in which they are written
there. The comments of README.md call them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

ERRORS = ("mse", "cross_entropy", "loss")
DIRECTIONS = ("bi", "uni")
RATINGS = (1, 2, 3)
NEIGHBORS = (1, 2, 3, 4, 5, 10, 15, 20, 25, 30, 35, 40)
# Of table 3 of the paper.
PRODUCTS = ("Asparagus", "Carrots", "Fresh Cauliflower", "Organic Avocado")
ITEM_BASELINES = ("unigram", "unigram-without-repeats", "softmax-regression")
# Half of a 95% interval of Student's t in standard errors, by the number of values.
STUDENT = {3: 4.3027, 5: 2.7764, 6: 2.5706}
DATA = ("baskets", "baskets in order", "movies", "movies in order", "ratings", "temperatures")


def round_up(value: float, decimals: int) -> float:
    """The least number with so many decimals that is not below the value."""
    scale = 10.0**decimals
    return math.ceil(value * scale) / scale


def with_interval(values: pd.Series[Any]) -> list[float]:
    """Mean, and half of the 95% interval."""
    return [values.mean(), STUDENT[len(values)] * values.std() / len(values) ** 0.5]


def select_errors(table: pd.DataFrame, experiment: str, model: str, direction: str, setting: str = "") -> pd.DataFrame:
    """The rows of the errors of a model, one for each seed."""
    return table[
        (table["experiment"] == experiment)
        & (table["model"] == model)
        & (table["direction"] == direction)
        & (table["setting"].fillna("") == setting)
        & table["metric"].isin(ERRORS)
    ]


def mean_error(table: pd.DataFrame, experiment: str, model: str, direction: str, setting: str = "") -> float:
    """The mean error of a model over its seeds."""
    return float(select_errors(table, experiment, model, direction, setting)["value"].mean())


def published_error(table: pd.DataFrame, experiment: str, model: str, direction: str, setting: str = "") -> float:
    """The error of a model in the paper."""
    return float(select_errors(table, experiment, model, direction, setting)["published"].iloc[0])


def describe_error(table: pd.DataFrame, experiment: str, model: str, direction: str, setting: str = "") -> list[float]:
    """Mean, standard deviation if there are several seeds, and the paper's number."""
    errors = select_errors(table, experiment, model, direction, setting)
    numbers = [errors["value"].mean()]
    if len(errors) > 1:
        numbers.append(errors["value"].std())
    return [*numbers, errors["published"].iloc[0]]


def errors_on_test_rows(table: pd.DataFrame) -> list[float]:
    """The table "Errors on test rows", row by row."""
    numbers = []
    for direction in DIRECTIONS:
        numbers += describe_error(table, "synthetic", "efa", direction)
        numbers += describe_error(table, "synthetic", "fm", direction)
        if direction == "bi":
            numbers.append(mean_error(table, "synthetic", "mean-per-item", "bi"))
            numbers.append(mean_error(table, "synthetic", "bayes", "bi"))
    numbers += _errors_of_items(table, "movielens-sequence")
    for setting in ("v1", "v2"):
        for direction in DIRECTIONS:
            numbers += describe_error(table, "movielens-ratings", "efa", direction, setting)
            numbers += describe_error(table, "movielens-ratings", "fm", direction, setting)
            if direction == "bi":
                numbers.append(mean_error(table, "movielens-ratings", "mean-per-item", "bi", setting))
    numbers += _errors_of_items(table, "instacart")
    numbers += [1, 5]
    numbers += describe_error(table, "temperature", "efa", "bi", "1 layer")
    numbers += describe_error(table, "temperature", "fm", "bi", "k=5")
    numbers.append(mean_error(table, "temperature", "ridge-per-city", "bi"))
    numbers.append(mean_error(table, "temperature", "day-before", "bi"))
    for layers in (2, 4):
        numbers.append(layers)
        numbers += describe_error(table, "temperature", "efa", "bi", f"{layers} layers")
    for days in ("1 day", "2 days"):
        numbers += describe_error(table, "temperature", "efa", "bi", f"4 layers, {days}")
        numbers.append(mean_error(table, "temperature", "ridge-per-city", "bi", days))
    return numbers


def _errors_of_items(table: pd.DataFrame, experiment: str) -> list[float]:
    """Attention, the factor model and the baselines of items, in both directions."""
    numbers = []
    for direction in DIRECTIONS:
        numbers += describe_error(table, experiment, "efa", direction)
        numbers += describe_error(table, experiment, "fm", direction)
        numbers += [mean_error(table, experiment, model, direction) for model in ITEM_BASELINES]
    return numbers


def differences_from_paper(table: pd.DataFrame) -> pd.Series[float]:
    """Relative difference of each mean error from the paper's, by experiment, model, direction and setting."""
    errors = table[table["metric"].isin(ERRORS)].fillna({"setting": ""})
    groups = errors.groupby(["experiment", "model", "direction", "setting"])
    return groups["value"].mean() / groups["published"].first() - 1


def largest_difference_from_paper(table: pd.DataFrame) -> float:
    """Of attention and the factor model on ratings and sequences."""
    compared = table[
        table["experiment"].isin(["synthetic", "movielens-sequence", "movielens-ratings"])
        & table["model"].isin(["efa", "fm"])
    ]
    return round_up(float(differences_from_paper(compared).abs().max()), 3)


def clear_differences_from_paper(table: pd.DataFrame) -> list[float]:
    """Those above two deviations, without signs."""
    differences = differences_from_paper(table)
    return [
        differences["movielens-sequence", "efa", "uni", ""],
        -differences["movielens-ratings", "efa", "bi", "v2"],
        -differences["synthetic", "fm", "bi", ""],
        -differences["synthetic", "fm", "uni", ""],
    ]


def temperature_errors(table: pd.DataFrame, model: str) -> pd.DataFrame:
    """The errors of a model on temperatures, by setting."""
    is_error = (table["experiment"] == "temperature") & (table["model"] == model) & (table["metric"] == "mse")
    return table[is_error].set_index("setting")


def best_neighbors(table: pd.DataFrame) -> list[float]:
    """Factor models with four and five neighbours: ours, then the paper's."""
    errors = temperature_errors(table, "fm").loc[["k=4", "k=5"]]
    return [*errors["value"], *errors["published"]]


def errors_by_neighbors(table: pd.DataFrame) -> list[float]:
    """Factor models with each number of neighbours: ours, then the paper's."""
    errors = temperature_errors(table, "fm").loc[[f"k={count}" for count in NEIGHBORS]]
    return [*errors["value"], *errors["published"]]


def one_layer_on_temperatures(table: pd.DataFrame) -> list[float]:
    """The paper's error, and the lowest and highest of our seeds."""
    errors = temperature_errors(table, "efa").loc[["1 layer"]]
    return [errors["published"].iloc[0], errors["value"].min(), errors["value"].max()]


def more_layers_on_temperatures(table: pd.DataFrame) -> list[float]:
    """Two and four layers, ours and the paper's; then four layers with one and two days before."""
    errors = temperature_errors(table, "efa")
    numbers = []
    for settings in (["2 layers", "4 layers"], ["4 layers, 1 day", "4 layers, 2 days"]):
        numbers += [*errors.loc[settings]["value"], *errors.loc[settings]["published"]]
    return numbers


def movielens_baselines(table: pd.DataFrame) -> list[float]:
    """Softmax regression in both directions, and frequencies without repeats."""
    return [
        mean_error(table, "movielens-sequence", "softmax-regression", "bi"),
        mean_error(table, "movielens-sequence", "softmax-regression", "uni"),
        mean_error(table, "movielens-sequence", "unigram-without-repeats", "bi"),
    ]


def instacart_baselines(table: pd.DataFrame) -> list[float]:
    """Regression and attention in one direction, the paper's attention; attention and regression in both."""
    return [
        mean_error(table, "instacart", "softmax-regression", "uni"),
        mean_error(table, "instacart", "efa", "uni"),
        published_error(table, "instacart", "efa", "uni"),
        mean_error(table, "instacart", "efa", "bi"),
        mean_error(table, "instacart", "softmax-regression", "bi"),
    ]


def temperature_baselines(table: pd.DataFrame) -> list[float]:
    """Regression and attention, without earlier days, with one, and with two."""
    return [
        mean_error(table, "temperature", "ridge-per-city", "bi"),
        published_error(table, "temperature", "efa", "bi", "4 layers"),
        mean_error(table, "temperature", "efa", "bi", "2 layers"),
        published_error(table, "temperature", "efa", "bi", "4 layers, 1 day"),
        mean_error(table, "temperature", "efa", "bi", "4 layers, 1 day"),
        mean_error(table, "temperature", "ridge-per-city", "bi", "1 day"),
        mean_error(table, "temperature", "efa", "bi", "4 layers, 2 days"),
        mean_error(table, "temperature", "ridge-per-city", "bi", "2 days"),
    ]


def instacart_against_paper(table: pd.DataFrame) -> list[float]:
    """How far the factor models are from the paper's, attention beside the paper's, and what attention gains."""
    factors = {direction: mean_error(table, "instacart", "fm", direction) for direction in DIRECTIONS}
    attention = {direction: mean_error(table, "instacart", "efa", direction) for direction in DIRECTIONS}
    distances = [
        abs(factors[direction] / published_error(table, "instacart", "fm", direction) - 1) for direction in DIRECTIONS
    ]
    gains = [factors[direction] - attention[direction] for direction in DIRECTIONS]
    return [*distances, attention["bi"], published_error(table, "instacart", "efa", "bi"), *gains]


def errors_by_text(table: pd.DataFrame) -> list[float]:
    """The table "By the text in place of the code", row by row."""
    baselines = {
        ("synthetic", ""): ("mean-per-item", "bayes"),
        ("movielens-sequence", ""): ("unigram-without-repeats", "softmax-regression"),
        ("movielens-ratings", "v1"): ("mean-per-item",),
        ("movielens-ratings", "v2"): ("mean-per-item",),
    }
    numbers = []
    for (experiment, setting), others in baselines.items():
        for direction in DIRECTIONS:
            models = ["efa", "fm", *others]
            numbers += [mean_error(table, experiment, model, direction, setting) for model in models]
    return numbers


def errors_of_settings(
    tables: Sequence[pd.DataFrame], experiment: str, model: str, directions: Sequence[str]
) -> list[float]:
    """The mean errors of a model in several tables, in each direction."""
    return [mean_error(table, experiment, model, direction) for table in tables for direction in directions]


def layers_by_text(tables: Sequence[pd.DataFrame]) -> list[float]:
    """One, two and four layers on temperatures by the text; two and four by the code; the paper's three."""
    text, code = (temperature_errors(table, "efa") for table in tables)
    layers = ["1 layer", "2 layers", "4 layers"]
    return [*text.loc[layers]["value"], *code.loc[layers[1:]]["value"], *text.loc[layers]["published"]]


def days_by_text(table: pd.DataFrame) -> list[float]:
    """One layer on temperatures by the text, with one and two earlier days."""
    return [*temperature_errors(table, "efa").loc[["1 layer, 1 day", "1 layer, 2 days"]]["value"]]


def differences_by_text(table: pd.DataFrame) -> list[float]:
    """How far the error by the text is from the code's, as a share, in both directions."""
    errors = table.set_index(["settings", "direction"])["cross_entropy"]
    return [abs(float(1 - errors["text", direction] / errors["code", direction])) for direction in DIRECTIONS]


def predictions_of_ratings(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of mean predictions where the rating is 1, 2 and 3."""
    return table[table["metric"].str.startswith("mean_prediction")]


def largest_deviation_of_predictions(table: pd.DataFrame) -> float:
    """Over seeds."""
    groups = predictions_of_ratings(table).groupby(["setting", "direction", "model", "metric"])
    return round_up(float(groups["value"].std().max()), 2)


def _select_ratings(means: pd.DataFrame, setting: str, direction: str, model: str) -> pd.DataFrame:
    """The rows of a model, by rating."""
    return means.loc[[(setting, direction, model, f"mean_prediction_of_{rating}") for rating in RATINGS]]


def mean_predictions(table: pd.DataFrame) -> list[float]:
    """The table "Mean predicted ratings", row by row: ours, then the paper's in brackets."""
    groups = predictions_of_ratings(table).groupby(["setting", "direction", "model", "metric"])
    means = groups[["value", "published"]].mean()
    numbers = []
    for setting in ("v1", "v2"):
        for direction in DIRECTIONS:
            for model in ("fm", "efa"):
                rows = _select_ratings(means, setting, direction, model)
                numbers += [*rows["value"], *rows["published"]]
            if (setting, direction) == ("v1", "bi"):
                numbers += [*_select_ratings(means, setting, direction, "mean-per-item")["value"]]
    return numbers


def largest_difference_of_predictions(table: pd.DataFrame) -> float:
    """Of attention's mean predictions from the paper's."""
    rows = predictions_of_ratings(table)
    means = rows[rows["model"] == "efa"].groupby(["setting", "direction", "metric"])[["value", "published"]].mean()
    return round_up(float((means["value"] - means["published"]).abs().max()), 2)


def distances_of_predictions(table: pd.DataFrame) -> list[float]:
    """Between ratings of 1 and of 3: attention in both directions and in one, means, least and most of the factors."""
    wide = predictions_of_ratings(table).pivot_table(
        index=["model", "direction", "setting"], columns="metric", values="value"
    )
    distances = wide["mean_prediction_of_3"] - wide["mean_prediction_of_1"]
    return [
        distances["efa"]["bi"].mean(),
        distances["efa"]["uni"].mean(),
        distances["mean-per-item"].mean(),
        distances["fm"].min(),
        distances["fm"].max(),
    ]


def shared_products(table: pd.DataFrame) -> list[float]:
    """Products that our lists of four products share with the authors': factor models, of how many, attention."""
    lists = table[table["item"].isin(PRODUCTS)].groupby("model")["shared"]
    shared = lists.sum()
    return [shared["bidir_fm"], shared["unidir_fm"], 5 * lists.size()["bidir_fm"], shared["unidir_efa"]]


def by_size(table: pd.DataFrame, model: str, metric: str) -> pd.DataFrame:
    """A metric of fits to the known model: a row for each number of training sequences, a column for each seed."""
    rows = table[(table["model"] == model) & (table["metric"] == metric)]
    return rows.assign(size=rows["setting"].str[2:].astype(int)).pivot(index="size", columns="seed", values="value")


def recovery_errors(table: pd.DataFrame) -> list[float]:
    """The table "Recovering a known model", row by row."""
    columns = [by_size(table, "efa", "cross_entropy"), by_size(table, "efa", "excess")]
    columns.append(by_size(table, "fm", "excess"))
    numbers = []
    for size in columns[0].index:
        numbers.append(size)
        for column in columns:
            numbers += with_interval(column.loc[size])
    return numbers


def excess_slope(table: pd.DataFrame, least: int = 0, most: int = 10_000) -> list[float]:
    """Slope of the log of attention's excess over the log of the number of sequences, over seeds.

    least, most: the numbers of sequences that count.
    """
    excess = by_size(table, "efa", "excess").loc[least:most]
    slopes = [np.polyfit(np.log(excess.index), np.log(excess[seed]), 1)[0] for seed in excess]
    return with_interval(pd.Series(slopes))


def excess_at(table: pd.DataFrame, model: str, size: int) -> float:
    """Mean excess of a model over seeds, with this number of training sequences."""
    return float(by_size(table, model, "excess").loc[[size]].to_numpy().mean())


def known_cross_entropy(table: pd.DataFrame) -> list[float]:
    """Of the known model itself on its test sequences, over seeds."""
    return with_interval(table[table["model"] == "bayes"]["value"])


def select_scores(table: pd.DataFrame, baskets: int) -> pd.DataFrame:
    """The rows of planted pairs, with the share of pairs whose score has the right sign in the column right_sign."""
    rows = table[(table["baskets"] == baskets) & table["auc"].notna()]
    is_together = rows["pairs"] == "complements"
    return rows.assign(right_sign=rows["positive"].where(is_together, 1 - rows["positive"]))


def planted_scores(table: pd.DataFrame, baskets: int) -> list[float]:
    """A table of "Planted complements and substitutes", row by row: share with the right sign, and AUC, by kind."""
    numbers = []
    for _, score in select_scores(table, baskets).groupby(["model", "score"], sort=False):
        for _, pairs in score.groupby("pairs", sort=False):
            numbers += [*with_interval(pairs["right_sign"]), *with_interval(pairs["auc"])]
    return numbers


def planted_means(table: pd.DataFrame, baskets: int, model: str, score: str, column: str) -> list[float]:
    """Means over seeds of a column, for the three kinds of planted pairs in the order of the tables."""
    rows = select_scores(table, baskets)
    rows = rows[(rows["model"] == model) & (rows["score"] == score)]
    return [*rows.groupby("pairs", sort=False)[column].mean()]


def unrelated_mean(table: pd.DataFrame, baskets: int, model: str, score: str, column: str) -> float:
    """Mean over seeds of a column of the rows of unrelated pairs."""
    rows = table[(table["pairs"] == "unrelated") & (table["baskets"] == baskets)]
    return float(rows[(rows["model"] == model) & (rows["score"] == score)][column].mean())


def errors_by_choice(table: pd.DataFrame) -> pd.DataFrame:
    """Mean errors of the left-out cities: a row for each choice, a column for each method."""
    left_out = table[table["city"] != "the other 39 cities"]
    return left_out.pivot_table(index="choice", columns="method", values="mse", sort=False)


def left_out_cities(table: pd.DataFrame) -> list[float]:
    """The table "Cities that no training row has", row by row.

    The error of a method; attention's error less this one, and divided by it (mean of logarithms, and both ends of its
    interval), over choices; choices and cities where attention's is lower.
    """
    errors = errors_by_choice(table)
    by_city = table[table["city"] != "the other 39 cities"].pivot(index="city", columns="method", values="mse")
    numbers = []
    for method in errors:
        numbers += with_interval(errors[method])
        if method != "attention":
            numbers += with_interval(errors["attention"] - errors[method])
            numbers += ratio_to(table, str(method))
            numbers.append((errors["attention"] < errors[method]).sum())
            numbers.append((by_city["attention"] < by_city[method]).sum())
    return numbers


def ratio_to(table: pd.DataFrame, method: str) -> list[float]:
    """Attention's error divided by that of a method: geometric mean over choices, and both ends of its interval."""
    errors = errors_by_choice(table)
    mean, half = with_interval((errors["attention"] / errors[method]).map(math.log))
    return [math.exp(mean), math.exp(mean - half), math.exp(mean + half)]


def attention_on_known_cities(table: pd.DataFrame) -> list[float]:
    """The error on the cities that trained, over choices."""
    return with_interval(table[table["city"] == "the other 39 cities"]["mse"])


def difference_from(table: pd.DataFrame, method: str) -> list[float]:
    """Attention's error less that of a method, over choices."""
    errors = errors_by_choice(table)
    return with_interval(errors["attention"] - errors[method])


def hardest_cities(table: pd.DataFrame) -> list[float]:
    """The three largest errors of attention, and those of kriging in the same cities."""
    by_city = table[table["city"] != "the other 39 cities"].pivot(index="city", columns="method", values="mse")
    hardest = by_city.nlargest(3, "attention")
    return [*hardest["attention"], *hardest["kriging"]]


def default_fits(table: pd.DataFrame) -> list[float]:
    """The table "The default fit": held-out rows by seed, then test rows by seed, of each fit."""
    numbers = []
    for _, fit in table.groupby(["data", "fit"], sort=False):
        numbers += [*fit["held_out"], *fit["test"]]
    return numbers


def fit_gains(table: pd.DataFrame, fit: str, other: str, rows: str = "held_out") -> pd.Series[Any]:
    """How much better a fit is than another one with the same seed, by data and seed."""
    wide = table.pivot(index=["data", "seed"], columns="fit", values=rows)
    return (wide[fit] - wide[other]).dropna()


def gains_of_one_layer(table: pd.DataFrame) -> list[float]:
    """One layer against two, by data and seed."""
    gains = fit_gains(table, "one layer", "two layers")
    return [gain for data in DATA if data in gains for gain in gains[data]]


def gain_of_higher_rate(table: pd.DataFrame) -> float:
    """On temperatures."""
    return float(fit_gains(table, "one layer", "one layer, learning rate 0.001")["temperatures"].iloc[0])


def gains_of_averaging(table: pd.DataFrame) -> list[float]:
    """Means over seeds, by data."""
    means = fit_gains(table, "one layer, averaged", "one layer").groupby("data").mean()
    return [means[data] for data in DATA]


def worst_gain_of_averaging(table: pd.DataFrame) -> list[float]:
    """How many pairs of fits there are, and by how much averaging is worse in the worst."""
    gains = fit_gains(table, "one layer, averaged", "one layer")
    return [len(gains), -gains.min()]


def baskets_against_regression(table: pd.DataFrame) -> list[float]:
    """The default fit and the softmax regression, on test rows, then on held-out rows."""
    means = table[table["data"] == "baskets"].groupby("fit")[["test", "held_out"]].mean()
    compared = means.loc[["one layer, averaged", "softmax regression"]]
    return [*compared["test"], *compared["held_out"]]


def gains_over_regression_on_movies(table: pd.DataFrame) -> list[float]:
    """The least and the most over seeds, on test rows and on held-out rows."""
    numbers = []
    for rows in ("test", "held_out"):
        gains = fit_gains(table, "one layer, averaged", "softmax regression", rows)["movies"]
        numbers += [gains.min(), gains.max()]
    return numbers


def changes_by_hiding(table: pd.DataFrame) -> list[float]:
    """What hiding rows in training costs on temperatures, and what it gains on ratings, on held-out rows."""
    numbers = []
    for data, fit, sign in (("temperatures", "one layer, learning rate 0.001", -1), ("ratings", "two layers", 1)):
        gains = fit_gains(table, f"{fit}, 30% not seen", fit)[data]
        numbers.append(sign * gains.iloc[0])
    return numbers


def _by_covariates(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """A column by direction and seed, beside each other: `alone` without covariates, `time:time` with the time."""
    named = table.fillna({"covariates": "alone"})
    return named.pivot(index=["direction", "seed"], columns="covariates", values=column)


def gains_of_time(table: pd.DataFrame) -> list[float]:
    """The table "Does the time of a rating help?", row by row."""
    item_means = _by_covariates(table, "mean_of_each_item")["alone"]["bi"]
    held_out = _by_covariates(table, "held_out")
    numbers = [item_means.mean(), item_means.std()]
    for direction in DIRECTIONS:
        alone = held_out["alone"][direction]
        timed = held_out["time:time"][direction]
        numbers += [alone.mean(), alone.std(), timed.mean(), timed.std(), *(timed - alone)]
    return numbers


def largest_loss_by_time(table: pd.DataFrame) -> float:
    """How much worse a fit with the time is, at most."""
    held_out = _by_covariates(table, "held_out")
    return round_up(float((held_out["alone"] - held_out["time:time"]).max()), 2)


def gains_over_item_means(table: pd.DataFrame) -> list[float]:
    """Attention without covariates against one distribution for each movie, in both directions and in one."""
    alone = table[table["covariates"].isna()]
    means = (alone["held_out"] - alone["mean_of_each_item"]).groupby(alone["direction"]).mean()
    return [means[direction] for direction in DIRECTIONS]


def _select_layers(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of whole layers, without those of heads."""
    return table[table["head"].isna()]


def _describe_layer(table: pd.DataFrame, run: str, layer: int) -> list[float]:
    """Symmetry of a layer: mean, standard deviation if there are several seeds, and mean distance from chance."""
    layers = _select_layers(table)
    rows = layers[layers["model"].str.startswith(run) & (layers["layer"] == layer)]
    numbers = [rows["symmetry"].mean()]
    if len(rows) > 1:
        numbers.append(rows["symmetry"].std())
    return [*numbers, rows["symmetry_z"].mean()]


def symmetry_by_layer(table: pd.DataFrame) -> list[float]:
    """The first table of "Is bidirectional attention more symmetric?", row by row."""
    runs = (
        "synthetic-efa-{}-seed",
        "movielens-sequence-efa-{}-seed",
        "movielens-ratings-efa-{}-v1",
        "movielens-ratings-efa-{}-v2",
        "instacart-efa-{}",
    )
    numbers = []
    for run in runs:
        for direction in DIRECTIONS:
            for layer in (0, 1):
                numbers += _describe_layer(table, run.format(direction), layer)
    numbers += [1, *_describe_layer(table, "temperature-efa-bi-1-layer", 0)]
    numbers.append(2)
    for layer in (0, 1):
        numbers += _describe_layer(table, "temperature-efa-bi-2-layers", layer)
    return numbers


def symmetry_of_four_layers(table: pd.DataFrame) -> list[float]:
    """The second table of that section, row by row."""
    numbers = []
    for days in ("", "-1-day", "-2-days"):
        for layer in range(4):
            numbers += _describe_layer(table, f"temperature-efa-bi-4-layers{days}-seed", layer)
    return numbers


def symmetry_on_instacart(table: pd.DataFrame) -> list[float]:
    """Means over the layers in both directions and in one, and the first layer in both."""
    layers = _select_layers(table).set_index(["model", "layer"])["symmetry"]
    return [
        layers["instacart-efa-bi-seed-0"].mean(),
        layers["instacart-efa-uni-seed-0"].mean(),
        layers["instacart-efa-bi-seed-0", 0],
    ]


def symmetry_over_seeds(table: pd.DataFrame) -> list[float]:
    """Means of ratings and their deviations, of sequences with theirs, and of synthetic ratings."""
    layers = _select_layers(table)
    models = layers.groupby("model")["symmetry"].mean()
    runs = models.groupby(models.index.str.replace("-seed-.*", "", regex=True))
    mean = runs.mean()
    deviation = runs.std()
    of_ratings = deviation[deviation.index.str.contains("ratings-efa")]
    return [
        mean["movielens-ratings-efa-bi-v1"],
        mean["movielens-ratings-efa-bi-v2"],
        mean[["movielens-ratings-efa-uni-v1", "movielens-ratings-efa-uni-v2"]].mean(),
        of_ratings.min(),
        of_ratings.max(),
        mean["movielens-sequence-efa-bi"],
        deviation["movielens-sequence-efa-bi"],
        mean["movielens-sequence-efa-uni"],
        deviation["movielens-sequence-efa-uni"],
        mean[["synthetic-efa-bi", "synthetic-efa-uni"]].mean(),
    ]


def symmetry_gains(table: pd.DataFrame) -> list[float]:
    """How much more symmetric both directions are than one on ratings v1 and v2 and on sequences, with intervals."""
    models = _select_layers(table).groupby("model")["symmetry"].mean()
    numbers = []
    for run in ("ratings-efa-{}-v1", "ratings-efa-{}-v2", "sequence-efa-{}"):
        name = f"movielens-{run}-seed-{{}}"
        gains = [models[name.format("bi", seed)] - models[name.format("uni", seed)] for seed in range(3)]
        numbers += with_interval(pd.Series(gains))
    return numbers


def symmetry_of_first_seed(table: pd.DataFrame) -> list[float]:
    """On synthetic ratings, in both directions and in one."""
    means = _select_layers(table).groupby("model")["symmetry"].mean()
    return [means[f"synthetic-efa-{direction}-seed-0"] for direction in DIRECTIONS]


def symmetry_with_two_days(table: pd.DataFrame) -> list[float]:
    """The least and the most of four layers."""
    layers = _select_layers(table)
    symmetry = layers[layers["model"].str.contains("2-days")]["symmetry"]
    return [symmetry.min(), symmetry.max()]


def directionality_on_ratings(table: pd.DataFrame) -> list[float]:
    """How many layers have a positive one on MovieLens, the least and the most."""
    layers = _select_layers(table)
    directionality = layers[layers["model"].str.contains("movielens-ratings")]["directionality"]
    return [(directionality > 0).sum(), directionality.min(), directionality.max()]


def positive_second_layers(table: pd.DataFrame) -> int:
    """How many second layers on synthetic ratings have a positive directionality."""
    layers = _select_layers(table)
    second = layers[layers["model"].str.contains("synthetic") & (layers["layer"] == 1)]
    return int((second["directionality"] > 0).sum())
