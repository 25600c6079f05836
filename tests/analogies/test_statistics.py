"""Intervals and tests: against exact sums, by simulation, and from what they must not depend on."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from attngeo.analogies.options import AnalogyOptions
from attngeo.analogies.summary import (
    COMPARISON_COLUMNS,
    compare_models,
    holm,
    interval,
    mcnemar,
    resample_means,
    summarize_answers,
)

PAIRS = [f"pair {i}" for i in range(14)]
QUESTIONS = list(itertools.permutations(PAIRS, 2))


def frame(ranks: Any, model: str = "m", category: str = "c", kind: str = "", known: Any = True) -> pd.DataFrame:
    """Answers to all questions of fourteen pairs."""
    first, second = zip(*QUESTIONS, strict=True)
    return pd.DataFrame({
        "model": model, "layer": -1, "category": category, "type": kind, "known": known, "first_pair": first,
        "second_pair": second, "rank": pd.array(ranks, "Int64"), "cosine": 1 / np.asarray(ranks, float),
    })  # fmt: skip


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_a_fair_coin(first: int, second: int) -> None:
    n, least = first + second, min(first, second)
    tail = sum(Fraction(math.comb(n, k), 2**n) for k in range(least + 1))
    assert mcnemar(first, second) == pytest.approx(float(min(Fraction(1), 2 * tail)))
    assert mcnemar(first, second) == pytest.approx(mcnemar(second, first))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.001, 0.5))
def test_holm_rejects_step_by_step(p_values: list[float], alpha: float) -> None:
    rejected = set()
    for step, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[place] * (len(p_values) - step) > alpha:
            break
        rejected.add(place)
    assert {place for place, p in enumerate(holm(p_values)) if p <= alpha} == rejected


def test_intervals_cover_the_truth() -> None:
    """A question is right where both its pairs are good, which each is with probability 0.8: the truth is 0.64."""
    generator = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        good = dict(zip(PAIRS, generator.random(len(PAIRS)) < 0.8, strict=True))
        correct = np.array([float(good[a] and good[b]) for a, b in QUESTIONS])
        first, second = (np.array(names) for names in zip(*QUESTIONS, strict=True))
        low, high = interval(resample_means(correct, first, second, AnalogyOptions(n_draws=300), 0))
        covered += low <= 0.64 <= high
    assert covered >= 170


def test_the_interval_of_a_row_is_that_of_drawn_pairs() -> None:
    """Pairs are drawn with repetition; a question counts as often as the draws of its two pairs multiplied."""
    ranks = np.random.default_rng(3).integers(1, 4, len(QUESTIONS))
    rows = summarize_answers(frame(ranks), options=AnalogyOptions(n_draws=4000))
    row = rows[rows["level"] == "overall"].iloc[0]
    generator = np.random.default_rng(4)
    means = []
    for _ in range(4000):
        times = np.bincount(generator.integers(0, 14, 14), minlength=14)
        weights = np.array([times[PAIRS.index(one)] * times[PAIRS.index(other)] for one, other in QUESTIONS])
        means.append((weights * (ranks == 1)).sum() / weights.sum())
    low, high = np.quantile(means, [0.025, 0.975])
    width = high - low
    assert row["accuracy_low"] == pytest.approx(low, abs=0.05 * width)
    assert row["accuracy_high"] == pytest.approx(high, abs=0.05 * width)


def test_no_draws_give_no_interval() -> None:
    row = summarize_answers(frame([1] * len(QUESTIONS)), options=AnalogyOptions(n_draws=0)).iloc[-1]
    assert row["accuracy"] == 1
    assert math.isnan(row["accuracy_low"])


def test_levels_add_up() -> None:
    generator = np.random.default_rng(2)
    parts = [
        frame(generator.integers(1, 8, len(QUESTIONS)), category=category, kind=kind, known=generator.random(182) < 0.7)
        for category, kind in (("a", "x"), ("b", "x"), ("c", "y"))
    ]
    rows = summarize_answers(pd.concat(parts), options=AnalogyOptions()).set_index("name")
    assert rows["level"].tolist() == ["category"] * 3 + ["type"] * 2 + ["overall"]
    assert rows["asked"].tolist() == [182, 182, 182, 364, 182, 546]
    for name, members in {"x": ["a", "b"], "y": ["c"], "overall": ["a", "b", "c"]}.items():
        counts = rows.loc[members, "known"].astype(float)
        assert rows.loc[name, "known"] == counts.sum()
        for column in ("accuracy", "top5", "mean_rank", "mrr", "mean_cosine"):
            assert rows.loc[name, column] == pytest.approx((rows.loc[members, column] * counts).sum() / counts.sum())
        assert rows.loc[name, "accuracy_low"] < rows.loc[name, "accuracy"] < rows.loc[name, "accuracy_high"]
    assert rows.loc["y", "accuracy_low"] == rows.loc["c", "accuracy_low"]


def test_each_measure_is_that_of_plain_counting() -> None:
    """Of ranks, some of which are 5 and 6, and of cosines; and of the questions that two models know."""
    generator = np.random.default_rng(9)
    answers = {}
    for model in ("m", "n"):
        ranks = generator.choice([1, 1, 2, 5, 6, 40], len(QUESTIONS))
        rows = frame(ranks, model, known=generator.random(len(QUESTIONS)) < 0.7)
        answers[model] = rows.assign(cosine=generator.uniform(-1, 1, len(rows)))
    scores = summarize_answers(pd.concat(answers.values()), options=AnalogyOptions(), which="own")
    for model, rows in answers.items():
        known = [row for row in rows.to_dict("records") if row["known"]]
        count = len(known)
        row = scores[(scores["model"] == model) & (scores["level"] == "overall")].iloc[0]
        expected = {
            "asked": len(rows), "known": count,
            "accuracy": sum(row["rank"] == 1 for row in known) / count,
            "top5": sum(row["rank"] <= 5 for row in known) / count,
            "mean_rank": sum(row["rank"] for row in known) / count,
            "mrr": sum(1 / row["rank"] for row in known) / count,
            "mean_cosine": sum(row["cosine"] for row in known) / count,
        }  # fmt: skip
        assert row[[*expected]].to_dict() == pytest.approx(expected)
        assert len({round(value, 6) for value in expected.values()}) == len(expected)  # none stands for another one
    compared = compare_models(pd.concat(answers.values()), options=AnalogyOptions()).iloc[0]
    both = (answers["m"]["known"] & answers["n"]["known"]).to_numpy()
    assert compared["known"] == both.sum()
    counts = compared[["both", "only_model", "only_other", "neither"]]
    assert counts.sum() == both.sum()
    assert compared["difference"] == pytest.approx((counts["only_model"] - counts["only_other"]) / both.sum())


def test_categories_are_drawn_independently() -> None:
    """Two alike make a type whose interval is narrower by the square root of two."""
    ranks = np.random.default_rng(5).integers(1, 3, 182)
    rows = summarize_answers(
        pd.concat([frame(ranks, category=name, kind="x") for name in "ab"]), options=AnalogyOptions()
    ).set_index("name")
    widths = rows["accuracy_high"] - rows["accuracy_low"]
    assert widths["x"] / widths["a"] == pytest.approx(2**-0.5, rel=0.15)
    assert widths["a"] != widths["b"]


def test_models_are_compared_question_by_question() -> None:
    generator = np.random.default_rng(3)
    ranks = {
        model: np.where(generator.random(182) < share, 1, 4) for model, share in (("m", 0.8), ("n", 0.5), ("o", 0.5))
    }
    result = compare_models(
        pd.concat([frame(values, model) for model, values in ranks.items()]), options=AnalogyOptions()
    )
    assert tuple(result.columns) == COMPARISON_COLUMNS
    assert list(zip(result["model"], result["other"], strict=True)) == [("m", "n"), ("m", "o"), ("n", "o")]
    for row in result.to_dict("records"):
        first, second = (ranks[row[name]] == 1 for name in ("model", "other"))
        counts = [(first & second).sum(), (first & ~second).sum(), (~first & second).sum(), (~first & ~second).sum()]
        assert [row[name] for name in ("both", "only_model", "only_other", "neither")] == counts
        assert row["difference"] == pytest.approx(first.mean() - second.mean())
        assert row["difference_low"] <= row["difference"] <= row["difference_high"]
        assert row["p_value"] == mcnemar(row["only_model"], row["only_other"])
    assert result["p_corrected"].tolist() == holm(result["p_value"].tolist())
    assert result["p_corrected"][0] < 1e-3 < 0.05 < result["p_corrected"][2]


def test_equal_models_do_not_differ() -> None:
    ranks = np.random.default_rng(4).integers(1, 3, 182)
    row = compare_models(pd.concat([frame(ranks, "m"), frame(ranks, "n")]), options=AnalogyOptions()).iloc[0]
    assert (row["difference"], row["p_value"]) == (0, 1)
    assert row[["difference_low", "difference_high"]].isna().all()


def test_one_model_is_compared_with_none() -> None:
    assert len(compare_models(frame([1] * 182), options=AnalogyOptions())) == 0
