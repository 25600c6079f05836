"""Figures of methods on tables of categories."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from conftest import Command
from support.messages import assert_fails

import attngeo
from attngeo.errors import DataError, DataUnavailableError, UsageError
from attngeo.figures.estimators import draw_encodings, draw_row_attention
from attngeo.figures.experiments import draw_shift
from attngeo.figures.kinds import PlotOptions


@pytest.fixture
def results() -> pd.DataFrame:
    """Two methods on two data sets of four settings, of which one has one data set only."""
    rows = [
        {"n_c": n_c, "noise": 0.5, "corr": corr, "method": method, "seed": seed,
         "accuracy": 0.1 * n_c + 0.2 * corr + 0.01 * seed + (0.1 if method == "atn" else 0), "mse": 1.0,
         "published_accuracy": 0.3 if method == "atn" else 0.2, "published_mse": 2.0}
        for n_c in (1, 5) for corr in (0.9, 0.1) for method in ("lr", "atn") for seed in (1, 3)
    ]  # fmt: skip
    return pd.DataFrame(rows).drop(index=len(rows) - 1)


def test_each_method_has_its_mean_and_error_at_each_shift(results: pd.DataFrame) -> None:
    figure = draw_shift(results, PlotOptions(published=False))
    assert len(figure.data) == 4  # two methods in two panels
    lines = {(trace.name, trace.yaxis): trace for trace in figure.data}
    first = lines["ATN", "y"]
    assert list(first.y) == pytest.approx([0.1 + 0.02 + 0.02 + 0.1, 0.1 + 0.18 + 0.02 + 0.1])
    deviation = np.std([0.01, 0.03], ddof=1)
    assert list(first.error_y.array) == pytest.approx([2 * deviation / np.sqrt(2)] * 2)
    second = lines["ATN", "y2"]
    assert np.isnan(second.error_y.array[0])  # one run has no deviation
    assert list(second.customdata) == [1, 2]
    assert list(figure.layout.xaxis.ticktext) == ["0.1", "0.9"]
    assert [round(x - place, 3) for place, x in enumerate(first.x)] == [0.045, 0.045]
    assert [note.text for note in figure.layout.annotations] == ["1 cause, noise 0.5", "5 causes, noise 0.5"]
    assert sum(trace.showlegend is not False for trace in figure.data) == 2


def test_the_means_of_the_paper_are_open_symbols_beside_it(results: pd.DataFrame) -> None:
    figure = draw_shift(results, PlotOptions())
    published = [trace for trace in figure.data if trace.mode == "markers"]
    assert {trace.marker.symbol for trace in published} == {"circle-open"}
    assert {(trace.legendgroup, y) for trace in published for y in trace.y} == {("lr", 0.2), ("atn", 0.3)}
    assert "paper" in figure.layout.title.text
    without = draw_shift(results.assign(published_accuracy=np.nan), PlotOptions())
    assert "paper" not in without.layout.title.text


def test_many_methods_have_room_in_the_legend(results: pd.DataFrame) -> None:
    one = results[(results["n_c"] == 1) & (results["method"] == "atn")]
    methods = ["lr", "ft-transformer", *(f"own-{number}" for number in range(12))]
    few, many = (draw_shift(pd.concat([one.assign(method=name) for name in names]), PlotOptions(published=False))
                 for names in (methods[:2], methods))  # fmt: skip
    assert [trace.name for trace in many.data][:3] == ["LR", "ft-transformer", "own-0"]
    assert many.layout.height > few.layout.height


def test_real_data_have_one_panel(results: pd.DataFrame) -> None:
    rows = results[results["n_c"] == 1].drop(columns=["n_c", "noise", "corr"]).assign(data="auto-<mpg>")
    figure = attngeo.plot("shift", rows)
    assert list(figure.layout.xaxis.ticktext) == ["auto-&lt;mpg&gt;"]
    assert len({trace.xaxis for trace in figure.data}) == 1


def test_the_attention_of_cells_is_the_mean_over_heads() -> None:
    rows = pd.DataFrame(
        [
            {"cell": cell, "on": on, "value": f"{on}<1>", "head": head, "attention": 0.2 * head + 0.1 * (cell == on)}
            for head in (0, 1)
            for cell in ("x", "a")
            for on in ("x", "a")
        ]
    )
    (trace,) = draw_row_attention(rows, PlotOptions()).data
    assert list(trace.y) == ["x", "a"]
    assert list(trace.x) == ["x = x&lt;1&gt;", "a = a&lt;1&gt;"]
    np.testing.assert_allclose(trace.z, [[0.2, 0.1], [0.1, 0.2]])
    assert trace.zmin == 0


def test_the_attention_of_several_rows_is_their_mean() -> None:
    pair = pd.DataFrame({"cell": ["x", "x"], "on": ["x", "a"], "value": ["1", "2"], "head": 0, "attention": [0.4, 0.6]})
    figure = draw_row_attention(
        pd.concat([pair.assign(row=1), pair.assign(row=2, attention=[0.8, 0.2])]), PlotOptions()
    )
    (trace,) = figure.data
    assert list(trace.x) == ["x", "a"]
    np.testing.assert_allclose(trace.z, [[0.6, 0.4]])
    assert "2 rows" in figure.layout.title.text


def test_the_encodings_of_a_column_are_a_line_of_its_categories() -> None:
    rows = pd.DataFrame({"column": ["b", "b", "<a>"], "value": ["0", "1", "{x}"], "x": [0.0, 1, 2], "y": [3.0, 4, 5]})
    first, second = draw_encodings(rows, PlotOptions()).data
    assert (first.name, list(first.x), list(first.text)) == ("b", [0, 1], ["0", "1"])
    assert second.name == "&lt;a&gt;"
    assert list(second.text) == ["&#123;x}"]
    assert first.line.color != second.line.color
    assert ("lines" in first.mode, "lines" in second.mode) == (True, False)  # numbers have an order
    repeated, _ = draw_encodings(rows.set_axis([0, 0, 0]), PlotOptions()).data  # as after pd.concat
    assert list(repeated.x) == [0, 1]


def test_files_and_tables_are_drawn_and_others_refused(
    results: pd.DataFrame, inside: Command, tmp_path: object
) -> None:
    path = f"{tmp_path}/results.csv"
    results.to_csv(path, index=False)
    run = inside("plot", "shift", path, "--where", "n_c=5", "-o", f"{tmp_path}/figure.json")
    assert (run.returncode, run.stderr) == (0, "")
    assert len(attngeo.plot("shift", path, where={"n_c": 5}).data) == 4
    with pytest.raises(UsageError, match=r"shift.*demo:minilm.*attngeo tabular simulate"):
        attngeo.plot("shift", "demo:minilm")
    with pytest.raises(DataError, match="accuracy"):
        attngeo.plot("shift", results.drop(columns="accuracy"))
    with pytest.raises(DataError, match="corr"):
        attngeo.plot("shift", results.drop(columns="corr"))
    assert_fails(
        inside("plot", "shift", f"{tmp_path}/nowhere.csv", "-o", f"{tmp_path}/f.json"),
        DataUnavailableError,
        "nowhere.csv",
    )
    assert_fails(inside("plot", "encodings", path, "-o", f"{tmp_path}/f.json"), DataError, "results.csv", "column")
