"""The paper's word-analogy results, recomputed from what was stored of its runs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from support.data import DATA, needs
from support.vectors import table

import attngeo
from attngeo.analogies.options import AnalogyOptions
from attngeo.analogies.questions import load_questions
from attngeo.analogies.summary import TABLE_3, TABLE_3_COUNTS, published_rows, summarize_answers

NO_DRAWS = AnalogyOptions(n_draws=0)
stored = needs("published/analogy_bert_questions.csv")


def bert() -> pd.DataFrame:
    """The rank and cosine of every question that BERT knows, in the form of our own results."""
    rows = pd.read_csv(DATA / "published" / "analogy_bert_questions.csv")
    words = rows["task"].str.split(expand=True)
    return rows.assign(
        model="BERT", layer=-1, type=np.where(rows["category"].str.startswith("gram"), "syn", "sem"), known=True,
        first_pair=words[0] + " " + words[1], second_pair=words[2] + " " + words[3],
    )  # fmt: skip


@stored
@pytest.mark.parametrize(
    ("subset", "count"), [("bert_in_vocab_raw", 12154), ("bert_in_vocab_dedup", 11983), ("bert_and_bart_dedup", 9977)]
)
def test_the_measures_are_the_published_ones(subset: str, count: int) -> None:
    rows = bert()
    rows = rows if subset.endswith("raw") else rows[rows["dup"] == 0]
    rows = rows if "bart" not in subset else rows[rows["in_bart"] == 1]
    got = summarize_answers(rows, options=NO_DRAWS).set_index("name")
    expected = pd.read_csv(DATA / "published" / "analogy_bert_by_category.csv").query("subset == @subset")
    assert got.loc["overall", "known"] == count
    assert len(expected) == len(got) == 17
    for row in expected.to_dict("records"):
        name = row["category"] if row["category"] != "ALL" else {"all": "overall"}.get(row["type"], row["type"])
        assert got.loc[name, "known"] == row["n"]
        for ours, theirs in (("accuracy", "accuracy"), ("top5", "top5"), ("mean_cosine", "mean_cosine")):
            assert got.loc[name, ours] == pytest.approx(row[theirs], abs=1.1e-5), (name, ours)


@stored
def test_the_questions_that_bert_knows_are_the_published_ones() -> None:
    """A table of the words of BERT's questions, lower-cased as its vocabulary is, knows just these questions."""
    rows = bert()
    labels = sorted({word for task in rows["task"] for word in task.split()})
    embedding = table(np.random.default_rng(0).standard_normal((len(labels), 3)), labels)
    for keep, count in ((True, 12154), (False, 11983)):
        result = attngeo.analogy(embedding, keep_duplicates=keep, answers="all", n_draws=0)
        overall = result.rows.set_index("name").loc["overall"]
        assert (overall["known"], overall["asked"]) == (count, 19544 if keep else 19544 - 171)
        known = result.questions[result.questions["known"]]
        asked = (known["a"] + " " + known["b"] + " " + known["c"] + " " + known["answer"]).str.lower()
        assert asked.tolist() == (rows if keep else rows[rows["dup"] == 0])["task"].tolist()


def test_table_3_stands_beside_the_results() -> None:
    rows = pd.DataFrame(published_rows())
    assert set(rows["name"]) == {"semantic", "syntactic", "overall"}
    asked = load_questions("google").questions
    assert TABLE_3_COUNTS["overall"][0] == len(asked)
    for kind in ("semantic", "syntactic"):
        assert TABLE_3_COUNTS[kind][0] == sum(question.type == kind for question in asked)
    # The printed overall values are those of the types, weighted by their questions.
    for values in TABLE_3.values():
        for measure in (0, 1):
            parts = sum(values[kind][measure] * TABLE_3_COUNTS[kind][1] for kind in ("semantic", "syntactic"))
            assert values["overall"][measure] == pytest.approx(parts / TABLE_3_COUNTS["overall"][1], abs=1.1e-3)
