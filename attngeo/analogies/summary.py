"""Results per category, type and overall, and comparisons of models, from one row for each model and question.

Accuracies have bootstrap intervals, and two models are compared by McNemar's test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from attngeo.analogies.options import LAYER, TABLE_LAYER, AnalogyOptions, add_layer, analogy_columns
from attngeo.questions.rows import ABOUT_BOTH

Array = np.ndarray[Any, np.dtype[Any]]
LEVEL = 0.95
# Bytes of resampling weights in memory at a time.
CHUNK = 1 << 26
COMPARISON_COLUMNS = (
    *ABOUT_BOTH, "level", "name", "known", "both", "only_model", "only_other", "neither",
    "difference", "difference_low", "difference_high", "p_value", "p_corrected",
)  # fmt: skip
OTHER_LAYER = "other_layer"
COUNTS = (LAYER, OTHER_LAYER, "asked", "known", "both", "only_model", "only_other", "neither")
# Wibisono and Wang 2023, Table 3, over 9,522 questions that all its models know.
PAPER = "paper, Table 3"
# Type → numbers of questions asked and known. "overall" is the sum of the two types.
TABLE_3_COUNTS = {"semantic": (8869, 2278), "syntactic": (10675, 7244), "overall": (19544, 9522)}
# Model → accuracy and mean cosine of target and answer, by type.
TABLE_3 = {
    "BERT": {"semantic": (0.641, 0.500), "syntactic": (0.754, 0.610), "overall": (0.727, 0.584)},
    "GloVe": {"semantic": (0.759, 0.600), "syntactic": (0.692, 0.610), "overall": (0.708, 0.607)},
    "CBOW": {"semantic": (0.234, 0.504), "syntactic": (0.667, 0.582), "overall": (0.563, 0.564)},
}


def summarize_answers(questions: pd.DataFrame, *, options: AnalogyOptions, which: str = "own") -> pd.DataFrame:
    """Accuracy and the other measures of each model and layer, per category, per type and overall.

    Measures are over the known questions. accuracy: share with rank 1. top5: share with rank 5 or better. mrr: mean of
    1/rank. mean_cosine: mean cosine of the answer with the target. accuracy_low, accuracy_high: 95% bootstrap interval.

    Args:
        questions: one row for each model, layer and question with the columns model, layer, category, type, rank,
            cosine, known, first_pair and second_pair.
        options: the bootstrap, and whether layers are asked.
        which: value of the column `questions`.

    Returns:
        The columns `analogy_columns`; `revision` is missing, and `note` empty.
    """
    rows = []
    for (model, layer), answers in questions.groupby(["model", LAYER], sort=False):
        known = answers[answers["known"]]
        is_right = (known["rank"] == 1).to_numpy(dtype=float)
        sums = _resample_categories(answers, known, is_right, options)
        for level, name, categories in _list_levels(answers):
            selected = known[known["category"].isin(categories)]
            rank = selected["rank"].astype(float)
            low, high = _estimate_interval(sums, categories, options)
            row = {
                "model": model,
                LAYER: layer,
                "level": level,
                "name": name,
                "asked": int(answers["category"].isin(categories).sum()),
                "known": len(selected),
                "accuracy": (rank == 1).mean(),
                "accuracy_low": low,
                "accuracy_high": high,
                "top5": (rank <= 5).mean(),
                "mean_rank": rank.mean(),
                "mrr": (1 / rank).mean(),
                "mean_cosine": selected["cosine"].mean(),
                "questions": which,
                "note": "",
            }
            rows.append(row)
    return _build_frame(rows, analogy_columns(options.layers))


def compare_models(questions: pd.DataFrame, *, options: AnalogyOptions) -> pd.DataFrame:
    """Compare pairs on the questions that both know: McNemar's test, and the difference of accuracies.

    The pairs are the tables of each two models, and each layer with the table of its model. p_corrected is Holm's
    correction over all pairs, within each type and overall. Returns `comparison_columns`, without revisions; no row for
    the table of a single model.
    """
    groups = questions.groupby(["model", LAYER], sort=False)
    by_place: dict[Any, pd.DataFrame] = {place: answers.reset_index(drop=True) for place, answers in groups}
    rows: list[dict[str, Any]] = []
    for (model, layer), (other, other_layer) in _list_pairs([*by_place]):
        answers = by_place[model, layer]
        other_answers = by_place[other, other_layer]
        both_known = (answers["known"] & other_answers["known"]).to_numpy(dtype=bool)
        known = answers[both_known]
        is_right = (answers["rank"][both_known] == 1).to_numpy(dtype=bool)
        other_is_right = (other_answers["rank"][both_known] == 1).to_numpy(dtype=bool)
        differences = is_right.astype(float) - other_is_right
        sums = _resample_categories(answers, known, differences, options)
        for level, name, categories in _list_levels(answers):
            if level == "category":
                continue
            selected = known["category"].isin(categories).to_numpy()
            first = is_right[selected]
            second = other_is_right[selected]
            count = len(first)
            only_model = int((first & ~second).sum())
            only_other = int((second & ~first).sum())
            low, high = _estimate_interval(sums, categories, options)
            row = {
                "model": model,
                LAYER: layer,
                "other": other,
                OTHER_LAYER: other_layer,
                "level": level,
                "name": name,
                "known": count,
                "both": int((first & second).sum()),
                "only_model": only_model,
                "only_other": only_other,
                "neither": int((~first & ~second).sum()),
                "difference": (only_model - only_other) / count if count else np.nan,
                "difference_low": low,
                "difference_high": high,
                "p_value": mcnemar(only_model, only_other),
            }
            rows.append(row)
    for name in dict.fromkeys(row["name"] for row in rows):
        pairs = [row for row in rows if row["name"] == name]
        for row, corrected in zip(pairs, holm([row["p_value"] for row in pairs]), strict=True):
            row["p_corrected"] = corrected
    return _build_frame(rows, comparison_columns(options.layers))


def comparison_columns(layers: Sequence[int] | None = None) -> tuple[str, ...]:
    """The columns of the table of comparisons, in order; with `layers` it has those of both."""
    if layers is None:
        return COMPARISON_COLUMNS
    columns = add_layer(COMPARISON_COLUMNS, layers)
    count = len(ABOUT_BOTH) + 1
    return (*columns[:count], OTHER_LAYER, *columns[count:])


def _list_pairs(places: Sequence[tuple[str, int]]) -> list[tuple[tuple[str, int], tuple[str, int]]]:
    """The pairs to compare of models and layers: tables of different models, and layers with their own table."""
    tables = [(model, layer) for model, layer in places if layer == TABLE_LAYER]
    layers = [((model, layer), (model, TABLE_LAYER)) for model, layer in places if layer != TABLE_LAYER]
    return [*combinations(tables, 2), *layers]


def _list_levels(answers: pd.DataFrame) -> Iterator[tuple[str, str, list[str]]]:
    """What has a row of its own: each category, each type, and all together. Their level, name and categories."""
    categories = answers[["category", "type"]].drop_duplicates("category")
    for category in categories["category"]:
        yield "category", category, [category]
    for question_type, members in categories[categories["type"] != ""].groupby("type", sort=False):
        yield "type", str(question_type), list(members["category"])
    yield "overall", "overall", list(categories["category"])


def _resample_categories(
    answers: pd.DataFrame, known: pd.DataFrame, values: Array, options: AnalogyOptions
) -> dict[str, Array]:
    """Category → numerators and denominators of resampled means of `values` [rows of `known`].

    The key of a category is its number among all categories of `answers`, so that every model is resampled alike.
    """
    sums = {}
    keys = {category: key for key, category in enumerate(answers["category"].unique())}
    for category, questions in known.reset_index(drop=True).groupby("category", sort=False):
        first_pairs = questions["first_pair"].to_numpy()
        second_pairs = questions["second_pair"].to_numpy()
        sums[str(category)] = resample_means(
            values[questions.index], first_pairs, second_pairs, options, keys[category]
        )
    return sums


def _estimate_interval(
    sums: Mapping[str, Array], categories: Sequence[str], options: AnalogyOptions
) -> tuple[float, float]:
    """The interval of the mean over some categories; those without a known question have no sums."""
    totals = np.zeros((2, options.n_draws))
    for category in categories:
        totals += sums.get(category, 0)
    return interval(totals)


def _build_frame(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=list(columns))
    return frame.astype({name: "Int64" for name in COUNTS if name in columns})


def resample_means(values: Array, first: Array, second: Array, options: AnalogyOptions, key: int) -> Array:
    """Numerators and denominators [2, n_draws] of the mean of `values`.

    The questions belong to one category. The sum over categories gives a type.

    Questions are not independent: each pair of words makes many questions (Google's capitals of common countries are 23
    pairs and 506 questions), and a model that gets one pair wrong can get all of its questions wrong. So pairs are
    drawn; the weight of a question is the product of the draws of its two pairs (Davezies, D'Haultfœuille and
    Guyonvarch 2021, Annals of Statistics 49(2), for data on pairs of units).

    Args:
        values: value of each question, [questions].
        first: name of the first pair of each question, [questions].
        second: name of the second pair of each question, [questions].
        options: the bootstrap.
        key: number of the category, so that every model is resampled in the same way.
    """
    generator = np.random.default_rng([options.seed, key])
    count = len(values)
    names, inverse = np.unique(np.concatenate([first, second]), return_inverse=True)
    units = len(names)
    pairs = inverse.reshape(2, count)  # the numbers of both pairs of each question
    sums = np.empty((2, options.n_draws))
    step = max(1, CHUNK // (8 * count))
    for start in range(0, options.n_draws, step):
        stop = min(start + step, options.n_draws)
        drawn = generator.multinomial(units, np.full(units, 1 / units), size=stop - start)
        weights = drawn[:, pairs].prod(1).astype(float)
        sums[:, start:stop] = weights @ values, weights.sum(1)
    return sums


def interval(sums: Array) -> tuple[float, float]:
    """The 95% percentile interval of the mean, from numerators and denominators [2, n_draws].

    NaN without draws, and if all draws are equal: the bootstrap has no interval for an accuracy of 0 or 1.
    """
    numerators, denominators = sums
    means = numerators[denominators > 0] / denominators[denominators > 0]
    if not len(means) or means.min() == means.max():
        return float("nan"), float("nan")
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return low, high


def mcnemar(only_first: int, only_second: int) -> float:
    """The exact two-sided p-value of McNemar's test, from the numbers of questions that only one model gets right.

    If the models are equally accurate, each such question is a fair coin: p = min(1, 2·P(X ≤ min)), X ~ B(n, ½). The
    test assumes independent questions, see `resample_means`. McNemar 1947, doi 10.1007/BF02295996.
    """
    count = only_first + only_second
    ways = term = 1
    for k in range(1, min(only_first, only_second) + 1):
        term = term * (count - k + 1) // k
        ways += term
    return min(1.0, float(2 * ways / 2**count))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction of p-values for their number: the probability of any false rejection is at most α.

    Holm 1979, "A simple sequentially rejective multiple test procedure", https://www.jstor.org/stable/4615733.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values)
    factors = np.arange(len(order), 0, -1)
    corrected = np.empty(len(order))
    corrected[order] = np.minimum(np.maximum.accumulate(np.asarray(p_values)[order] * factors), 1)
    return corrected.tolist()


def published_rows() -> list[dict[str, Any]]:
    """Table 3 as rows of the table of results; values that it does not print are missing."""
    rows = []
    for model, measures in TABLE_3.items():
        for name, (accuracy, cosine) in measures.items():
            asked, known = TABLE_3_COUNTS[name]
            row = {
                "model": f"{model} ({PAPER})",
                LAYER: TABLE_LAYER,
                "questions": "published",
                "level": "overall" if name == "overall" else "type",
                "name": name,
                "asked": asked,
                "known": known,
                "accuracy": accuracy,
                "mean_cosine": cosine,
                "note": "",
            }
            rows.append(row)
    return rows
