"""Results per category, type and overall, and comparisons of models, from one row for each model and question."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from attngeo.analogies.statistics import Array, Bootstrap, holm, interval, mcnemar, resample_means

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "model", "level", "name", "asked", "known", "accuracy", "accuracy_low", "accuracy_high", "top5", "mean_rank", "mrr",
    "mean_cosine", "questions", "note",
)  # fmt: skip
COMPARISON_COLUMNS = (
    "model", "other", "level", "name", "known", "both", "only_model", "only_other", "neither",
    "difference", "difference_low", "difference_high", "p_value", "p_corrected",
)  # fmt: skip
COUNTS = ("asked", "known", "both", "only_model", "only_other", "neither")


def summarise_answers(questions: pd.DataFrame, *, bootstrap: Bootstrap, which: str = "own") -> pd.DataFrame:
    """Accuracy and the other measures of each model, per category, per type and overall.

    questions: one row for each model and question with the columns model, category, type, rank, cosine, known,
    first_pair and second_pair. Measures are over the known questions. accuracy: share with rank 1. top5: share with
    rank 5 or better. mrr: mean of 1/rank. mean_cosine: of the answer with the target. accuracy_low, accuracy_high: 95%
    bootstrap interval. which: value of the column `questions`. Returns the columns `COLUMNS`; `note` is empty.
    """
    rows = []
    for model, own in questions.groupby("model", sort=False):
        known = own[own["known"]]
        correct = (known["rank"] == 1).to_numpy(dtype=float)[:, None]
        sums = _resample_categories(own, known, correct, bootstrap)
        for level, name, members in _list_levels(own):
            some = known[known["category"].isin(members)]
            low, high = _estimate_interval(sums, members, bootstrap)
            rank = some["rank"].astype(float)
            rows.append({
                "model": model, "level": level, "name": name,
                "asked": int(own["category"].isin(members).sum()), "known": len(some),
                "accuracy": (rank == 1).mean() if len(some) else np.nan, "accuracy_low": low, "accuracy_high": high,
                "top5": (rank <= 5).mean() if len(some) else np.nan, "mean_rank": rank.mean(), "mrr": (1 / rank).mean(),
                "mean_cosine": some["cosine"].mean(), "questions": which, "note": "",
            })  # fmt: skip
    return _build_frame(questions, rows, COLUMNS)


def compare_models(questions: pd.DataFrame, *, bootstrap: Bootstrap) -> pd.DataFrame:
    """Compare each two models on the questions that both know: McNemar's test, and the difference of their accuracies.

    p_corrected is Holm's correction over the pairs of models, within each type and overall. Returns
    `COMPARISON_COLUMNS`; no row for a single model.
    """
    by_model = {model: own.reset_index(drop=True) for model, own in questions.groupby("model", sort=False)}
    rows: list[dict[str, Any]] = []
    for (model, own), (other, theirs) in combinations(by_model.items(), 2):
        both_known = (own["known"] & theirs["known"]).to_numpy(dtype=bool)
        known = own[both_known]
        right = np.stack([(frame["rank"][both_known] == 1).to_numpy(dtype=bool) for frame in (own, theirs)], 1)
        sums = _resample_categories(own, known, right[:, :1].astype(float) - right[:, 1:], bootstrap)
        for level, name, members in _list_levels(own):
            if level == "category":
                continue
            first, second = right[known["category"].isin(members).to_numpy()].T
            low, high = _estimate_interval(sums, members, bootstrap)
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
    return _build_frame(questions, rows, COMPARISON_COLUMNS)


def _list_levels(own: pd.DataFrame) -> Iterator[tuple[str, str, list[Any]]]:
    """Each category, each type and the whole: level, name, and its categories."""
    categories = own[["category", "type"]].drop_duplicates("category")
    for category in categories["category"]:
        yield "category", category, [category]
    for kind, members in categories[categories["type"] != ""].groupby("type", sort=False):
        yield "type", str(kind), list(members["category"])
    yield "overall", "overall", list(categories["category"])


def _resample_categories(
    own: pd.DataFrame, known: pd.DataFrame, values: Array, bootstrap: Bootstrap
) -> dict[Any, Array]:
    """Category → numerators and denominators of resampled means of `values` [rows of `known`, columns].

    The key of a category is its place among all categories of `own`, so that every model is resampled alike.
    """
    keys = {category: key for key, category in enumerate(own["category"].unique())}
    return {
        category: resample_means(
            values[some.index], some["first_pair"].to_numpy(), some["second_pair"].to_numpy(), bootstrap, keys[category]
        )
        for category, some in known.reset_index(drop=True).groupby("category", sort=False)
    }


def _estimate_interval(sums: Mapping[Any, Array], members: Iterable[Any], bootstrap: Bootstrap) -> tuple[float, float]:
    """The interval of the mean over some categories; those without a known question have no sums."""
    found = [sums[category][:, 0] for category in members if category in sums]
    return interval(sum(found, np.zeros((2, bootstrap.draws))))


def _build_frame(like: pd.DataFrame, rows: list[dict[str, Any]], columns: tuple[str, ...]) -> pd.DataFrame:
    frame = type(like)(rows, columns=list(columns))
    return frame.astype({name: "Int64" for name in COUNTS if name in columns})
