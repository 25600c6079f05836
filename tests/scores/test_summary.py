"""Statistics of each stack of each model."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from support.frames import one_model

import attngeo
from attngeo.errors import DataError
from attngeo.scores.summary import summarize, summary_columns


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    frames = [attngeo.score(name, per_head=True) for name in ("demo:minilm", "demo:encoder", "demo:decoder")]
    return pd.concat(frames, ignore_index=True)


def test_summaries(rows: pd.DataFrame) -> None:
    summary = summarize(rows)
    assert list(summary.columns) == list(summary_columns())
    assert summary["model"].tolist() == ["demo:minilm", "demo:encoder", "demo:decoder"]
    assert summary[["layers", "heads"]].to_numpy().tolist() == [[6, 72], [3, 12], [3, 12]]
    own = one_model(rows, "demo:minilm")
    heads = own[own["head"].notna()]["directionality"]
    assert summary["heads_directionality_upper"][0] == pytest.approx(heads.quantile(0.75))
    assert summary["heads_directionality_min"][0] == heads.min()
    assert summarize(rows.drop(columns="parameters"))["parameters"].isna().all()


def test_a_layer_with_two_rows_is_refused(rows: pd.DataFrame) -> None:
    own = one_model(rows, "demo:encoder")
    with pytest.raises(DataError, match=r"layer 0 of demo:encoder \(encoder\)"):
        summarize(pd.concat([own, own.assign(note="published convention")]))


def test_layers_without_a_score_are_not_counted(rows: pd.DataFrame) -> None:
    own = one_model(rows, "demo:encoder").copy()
    own.loc[own["layer"] == 1, "symmetry"] = math.nan
    assert summarize(own)[["layers", "heads"]].to_numpy().tolist() == [[2, 8]]


def test_a_table_older_than_a_score_has_no_statistics_of_it(rows: pd.DataFrame) -> None:
    summary = summarize(rows.drop(columns="directionality"))
    assert summary[["directionality_median", "heads_directionality_max"]].isna().all(axis=None)
    assert summary["symmetry_median"].tolist() == summarize(rows)["symmetry_median"].tolist()
    with pytest.raises(DataError, match="symmetry"):
        summarize(rows.drop(columns="symmetry"))
