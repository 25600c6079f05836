"""Results per category, type and overall, and comparisons of models, from one row for each model and question.

Accuracies have bootstrap intervals, and two models are compared by McNemar's test.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from attngeo.analogies.options import COLUMNS, AnalogyOptions

Array = np.ndarray[Any, np.dtype[Any]]
LEVEL = 0.95
# Bytes of resampling weights in memory at a time.
CHUNK = 1 << 26
COMPARISON_COLUMNS = (
    "model", "other", "level", "name", "known", "both", "only_model", "only_other", "neither",
    "difference", "difference_low", "difference_high", "p_value", "p_corrected",
)  # fmt: skip
COUNTS = ("asked", "known", "both", "only_model", "only_other", "neither")
# Wibisono and Wang 2023, Table 3, over 9,522 questions that all its models know.
PAPER = "paper, Table 3"
# Questions asked and known, by type; the two types make the whole.
TABLE_3_COUNTS = {"semantic": (8869, 2278), "syntactic": (10675, 7244), "overall": (19544, 9522)}
# Model → accuracy and mean cosine of target and answer, by type.
TABLE_3 = {
    "BERT": {"semantic": (0.641, 0.500), "syntactic": (0.754, 0.610), "overall": (0.727, 0.584)},
    "GloVe": {"semantic": (0.759, 0.600), "syntactic": (0.692, 0.610), "overall": (0.708, 0.607)},
    "CBOW": {"semantic": (0.234, 0.504), "syntactic": (0.667, 0.582), "overall": (0.563, 0.564)},
}


def summarise_answers(questions: pd.DataFrame, *, options: AnalogyOptions, which: str = "own") -> pd.DataFrame:
    """Accuracy and the other measures of each model, per category, per type and overall.

    questions: one row for each model and question with the columns model, category, type, rank, cosine, known,
    first_pair and second_pair. Measures are over the known questions. accuracy: share with rank 1. top5: share with
    rank 5 or better. mrr: mean of 1/rank. mean_cosine: of the answer with the target. accuracy_low, accuracy_high: 95%
    interval of a bootstrap as the options say. which: value of the column `questions`. Returns the columns `COLUMNS`;
    `note` is empty.
    """
    rows = []
    for model, answers in questions.groupby("model", sort=False):
        known = answers[answers["known"]]
        correct = (known["rank"] == 1).to_numpy(dtype=float)[:, None]
        sums = _resample_categories(answers, known, correct, options)
        for level, name, members in _list_levels(answers):
            some = known[known["category"].isin(members)]
            low, high = _estimate_interval(sums, members, options)
            rank = some["rank"].astype(float)
            rows.append({
                "model": model, "level": level, "name": name,
                "asked": int(answers["category"].isin(members).sum()), "known": len(some),
                "accuracy": (rank == 1).mean() if len(some) else np.nan, "accuracy_low": low, "accuracy_high": high,
                "top5": (rank <= 5).mean() if len(some) else np.nan, "mean_rank": rank.mean(), "mrr": (1 / rank).mean(),
                "mean_cosine": some["cosine"].mean(), "questions": which, "note": "",
            })  # fmt: skip
    return _build_frame(rows, COLUMNS)


def compare_models(questions: pd.DataFrame, *, options: AnalogyOptions) -> pd.DataFrame:
    """Compare each two models on the questions that both know: McNemar's test, and the difference of their accuracies.

    p_corrected is Holm's correction over the pairs of models, within each type and overall. Returns
    `COMPARISON_COLUMNS`; no row for a single model.
    """
    by_model = {model: answers.reset_index(drop=True) for model, answers in questions.groupby("model", sort=False)}
    rows: list[dict[str, Any]] = []
    for (model, first_answers), (other, second_answers) in combinations(by_model.items(), 2):
        frames = (first_answers, second_answers)
        both_known = (first_answers["known"] & second_answers["known"]).to_numpy(dtype=bool)
        known = first_answers[both_known]
        right = np.stack([(frame["rank"][both_known] == 1).to_numpy(dtype=bool) for frame in frames], 1)
        sums = _resample_categories(first_answers, known, right[:, :1].astype(float) - right[:, 1:], options)
        for level, name, members in _list_levels(first_answers):
            if level == "category":
                continue
            first, second = right[known["category"].isin(members).to_numpy()].T
            low, high = _estimate_interval(sums, members, options)
            only_model, only_other = int((first & ~second).sum()), int((second & ~first).sum())
            rows.append({
                "model": model, "other": other, "level": level, "name": name, "known": len(first),
                "both": int((first & second).sum()), "only_model": only_model, "only_other": only_other,
                "neither": int((~first & ~second).sum()),
                "difference": (only_model - only_other) / len(first) if len(first) else np.nan,
                "difference_low": low, "difference_high": high, "p_value": mcnemar(only_model, only_other),
            })  # fmt: skip
    for name in dict.fromkeys(row["name"] for row in rows):
        group = [row for row in rows if row["name"] == name]
        for row, corrected in zip(group, holm([row["p_value"] for row in group]), strict=True):
            row["p_corrected"] = corrected
    return _build_frame(rows, COMPARISON_COLUMNS)


def _list_levels(answers: pd.DataFrame) -> Iterator[tuple[str, str, list[Any]]]:
    """Each category, each type and the whole: level, name, and its categories."""
    categories = answers[["category", "type"]].drop_duplicates("category")
    for category in categories["category"]:
        yield "category", category, [category]
    for kind, members in categories[categories["type"] != ""].groupby("type", sort=False):
        yield "type", str(kind), list(members["category"])
    yield "overall", "overall", list(categories["category"])


def _resample_categories(
    answers: pd.DataFrame, known: pd.DataFrame, values: Array, options: AnalogyOptions
) -> dict[Any, Array]:
    """Category → numerators and denominators of resampled means of `values` [rows of `known`, columns].

    The key of a category is its place among all categories of `answers`, so that every model is resampled alike.
    """
    keys = {category: key for key, category in enumerate(answers["category"].unique())}
    return {
        category: resample_means(
            values[some.index], some["first_pair"].to_numpy(), some["second_pair"].to_numpy(), options, keys[category]
        )
        for category, some in known.reset_index(drop=True).groupby("category", sort=False)
    }


def _estimate_interval(
    sums: Mapping[Any, Array], members: Iterable[Any], options: AnalogyOptions
) -> tuple[float, float]:
    """The interval of the mean over some categories; those without a known question have no sums."""
    parts = [sums[category][:, 0] for category in members if category in sums]
    return interval(sum(parts, np.zeros((2, options.draws))))


def _build_frame(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=list(columns))
    return frame.astype({name: "Int64" for name in COUNTS if name in columns})


def resample_means(values: Array, first: Array, second: Array, options: AnalogyOptions, key: int) -> Array:
    """Numerators and denominators [2, columns, draws] of the mean of each column of `values` [questions, columns].

    The questions are those of one category. first, second: the names of their two pairs, [questions]. The sum over
    categories gives a type. key: number of the category, so that every model is resampled in the same way.

    Questions are not independent: each pair of words makes many questions (Google's capitals of common countries are 23
    pairs and 506 questions), and a model that gets one pair wrong can get all of its questions wrong. So pairs are
    drawn; the weight of a question is the product of the draws of its two pairs (Davezies, D'Haultfœuille and
    Guyonvarch 2021, Annals of Statistics 49(2), for data on pairs of units).
    """
    generator = np.random.default_rng([options.seed, key])
    count = len(values)
    names, inverse = np.unique(np.concatenate([first, second]), return_inverse=True)
    units, places = len(names), inverse.reshape(2, count)
    sums = np.empty((2, values.shape[1], options.draws))
    step = max(1, CHUNK // (8 * count))
    for start in range(0, options.draws, step):
        stop = min(start + step, options.draws)
        drawn = generator.multinomial(units, np.full(units, 1 / units), size=stop - start)
        weights = drawn[:, places].prod(1).astype(float)
        sums[0, :, start:stop] = (weights @ values).T
        sums[1, :, start:stop] = weights.sum(1)
    return sums


def interval(sums: Array) -> tuple[float, float]:
    """The 95% percentile interval of the mean, from numerators and denominators [2, draws].

    NaN without draws, and if all draws are equal: the bootstrap has no interval for an accuracy of 0 or 1.
    """
    numerators, denominators = sums
    means = numerators[denominators > 0] / denominators[denominators > 0]
    if not len(means) or means.min() == means.max():
        return float("nan"), float("nan")
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


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
    return [float(value) for value in corrected]


def published_rows() -> list[dict[str, Any]]:
    """Table 3 as rows of the results' table; what it does not print is missing."""
    return [
        {
            "model": f"{model} ({PAPER})", "questions": "published",
            "level": "overall" if name == "overall" else "type", "name": name,
            "asked": TABLE_3_COUNTS[name][0], "known": TABLE_3_COUNTS[name][1], "accuracy": accuracy,
            "mean_cosine": cosine, "note": "",
        }
        for model, values in TABLE_3.items()
        for name, (accuracy, cosine) in values.items()
    ]  # fmt: skip
