"""A score that is added to the table is found in figures and in the page of a report, with no other change."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pandas as pd
import pytest
from support.reports import change
from support.toy_score import add_toy_score

import attngeo
from attngeo.errors import DataError
from attngeo.reporting.report import build_report
from attngeo.scores.spec import SCORES
from attngeo.scores.summary import summarize
from attngeo.tables.write import write_table


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    add_toy_score(monkeypatch)


@pytest.mark.parametrize("kind", ["heatmap", "layers", "size"])
def test_figures_show_it_with_its_label_and_range(kind: str) -> None:
    rows = attngeo.score("demo:encoder", per_head=True)
    text = attngeo.plot(kind, rows, score="toy", published=False).to_json()
    assert "toy share" in text
    assert "%{y:.3f}" in text or "%{z:.3f}" in text  # never negative, so without a sign
    figure = attngeo.plot("layers", rows, score="toy")
    assert re.sub("(<[^>]*>)+", " ", figure.layout.yaxis.title.text).strip() == SCORES["toy"].axis_title
    [line] = figure.select_traces({"name": "encoder", "xaxis": "x"})
    assert list(line.y) == pytest.approx(rows[rows["head"].isna()]["toy"].tolist())


def test_curves_show_it() -> None:
    rows = attngeo.score("demo:encoder", per_head=True)
    curves = pd.concat([rows.assign(step=step, loss=1.0) for step in (0, 10)], ignore_index=True)
    [line] = attngeo.plot("training", curves, score="toy").select_traces({"name": "run"})
    assert list(line.y) == pytest.approx([rows[rows["head"].isna()]["toy"].median()] * 2)
    lines = [trace for trace in attngeo.plot("training-layers", curves, score="toy").data if trace.mode != "markers"]
    assert len(lines) == 3


def test_published_models_are_left_out_of_a_score_that_was_not_published() -> None:
    rows = attngeo.score("demo:encoder", per_head=True)
    assert [trace.name for trace in attngeo.plot("size", rows, score="toy").data] == ["encoder"]


def test_the_command_draws_it(inside: Callable[..., CompletedProcess[str]], tmp_path: Path) -> None:
    done = inside("plot", "layers", "demo:encoder", "--score", "toy", "-o", tmp_path / "a.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert "toy share" in json.dumps(json.loads((tmp_path / "a.json").read_text())["layout"], ensure_ascii=False)


def test_a_report_has_it_in_its_figure_table_and_check(recipe: Path, tmp_path: Path) -> None:
    change(recipe, 'kind = "layers"', 'kind = "heatmap", score = "toy"')
    change(recipe, 'show = "summary" }', 'show = "summary" }, { of = "scores", show = "published" }')
    change(recipe, "symmetry.median < 0.2", "toy.median < 2")
    made = build_report(recipe, tmp_path / "out")
    page = made.page.read_text()
    assert "Toy share of every layer and head" in page
    assert "toy_<wbr>median" in page
    assert [check.failed for check in made.checks] == [True]
    summary = pd.read_csv(tmp_path / "out/tables/scores-summary.csv")
    rows = pd.read_csv(tmp_path / "out/tables/scores.csv")
    assert summary["toy_median"].tolist() == pytest.approx(summarize(rows)["toy_median"].tolist())
    assert "toy_published" not in pd.read_csv(tmp_path / "out/tables/scores-published.csv")


def test_results_files_hold_it_as_numbers(tmp_path: Path) -> None:
    """JSON writes a missing score as null, which says nothing about its type."""
    rows = attngeo.score("demo:encoder", per_head=True)
    rows.loc[rows["layer"] == 0, "toy"] = float("nan")
    write_table(rows, tmp_path / "rows.json")
    figure = attngeo.plot("layers", tmp_path / "rows.json", score="toy")
    [line] = figure.select_traces({"name": "encoder", "xaxis": "x"})
    assert list(line.y)[1:] == pytest.approx(rows[rows["head"].isna()]["toy"].tolist()[1:])
    write_table(rows.assign(toy="much"), tmp_path / "wrong.csv")
    with pytest.raises(DataError, match="toy"):
        attngeo.plot("layers", tmp_path / "wrong.csv", score="toy")
