"""Figures by name, from files, models and tables; and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.runs import small_settings

import attngeo
from attngeo.errors import AttnGeoError, DataError, DataUnavailableError, ModelNotFoundError, UsageError
from attngeo.figures.palette import OBJECTIVES
from attngeo.pretrain import compare, run
from attngeo.reporting.plots import KINDS, View, plot
from attngeo.tables import write as tables
from attngeo.tables.read import filter_rows, read_results


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of score as files of every format, a run and a comparison."""
    folder = tmp_path_factory.mktemp("plots")
    rows = attngeo.score("demo:encoder", per_head=True)
    for suffix in ("csv", "json", "jsonl", "parquet"):
        tables.write_table(rows, folder / f"scores.{suffix}")
    tables.write_table(rows[rows["head"].isna()], folder / "layers.csv")
    settings = small_settings(folder, steps=4, log_every=2, save_every=100)
    run(settings, folder / "run")
    compare(settings, folder / "both", ["default", "symmetric"], objectives=["mlm", "clm"])
    return folder


def data_of(figure: Any) -> Any:
    return [{**trace.to_plotly_json()} for trace in figure.data]


@pytest.mark.parametrize("suffix", ["csv", "json", "jsonl", "parquet"])
@pytest.mark.parametrize("kind", ["heatmap", "layers", "heads", "size"])
def test_a_file_gives_the_figure_of_the_model(kind: Any, suffix: str, folder: Path) -> None:
    of_model, of_file = (plot(kind, given).to_json() for given in ("demo:encoder", folder / f"scores.{suffix}"))
    assert of_model == of_file


def test_files_models_and_tables_go_together(folder: Path) -> None:
    frame = attngeo.score("demo:decoder", per_head=True)
    figure = plot("layers", [folder / "scores.csv", frame, "demo:minilm"], view=View(score="directionality"))
    assert [t.name for t in figure.data if t.showlegend is not False] == ["demo:encoder", "demo:decoder", "demo:minilm"]
    only = plot("layers", [folder / "scores.csv", frame], view=View(stack="decoder"))
    assert only.layout.title.text.startswith("demo:decoder: ")


def test_results_without_heads_are_drawn_where_they_can_be(folder: Path) -> None:
    assert len(plot("heatmap", folder / "layers.csv").data) == 1
    assert len(plot("layers", folder / "layers.csv").data) == 1
    with pytest.raises(DataError, match="has no rows of heads; write it with attngeo score --per-head"):
        plot("heads", folder / "layers.csv")
    with pytest.raises(DataError, match=r"^the table has no rows of heads"):
        plot("heads", pd.read_csv(folder / "layers.csv"))


def test_curves_of_a_run_and_of_a_comparison(folder: Path) -> None:
    geometry = pd.read_parquet(folder / "run/geometry.parquet")
    for given in (folder / "run", folder / "run/geometry.parquet"):
        line = plot("training", given).data[-1]
        layers = geometry[geometry["head"].isna()].groupby("step")["symmetry"].median()
        assert (list(line.x), list(line.y)) == ([0, 2, 4], pytest.approx(layers.tolist()))
    assert line.name == "encoder (mlm)"
    both = plot("training", folder / "both")
    lines = {t.name: t for t in both.data if t.showlegend is not False}
    assert set(lines) == {f"{kind}, {init} init" for kind in ("encoder (mlm)", "decoder (clm)")
                          for init in ("default", "symmetric")}  # fmt: skip
    for init, dash in (("default", "solid"), ("symmetric", "dash")):
        geometry = pd.read_parquet(folder / f"both/mlm-{init}-seed0/geometry.parquet")
        layers = geometry[geometry["head"].isna()].groupby("step")["symmetry"].median()
        line = lines[f"encoder (mlm), {init} init"]
        assert list(line.y) == pytest.approx(layers.tolist())
        assert (line.line.dash, line.line.color) == (dash, OBJECTIVES["mlm"])
    of_one = plot("training", folder / "both", view=View(where={"init": "symmetric"}))
    assert [t.name for t in of_one.data if t.showlegend is not False] == ["encoder (mlm)", "decoder (clm)"]
    assert "symmetric init, median and quartiles over" in of_one.layout.title.text
    loss = plot("training", folder / "both/curves.parquet", view=View(score="loss", where={"objective": "mlm"}))
    assert [t.name for t in loss.data if t.name] == ["default init", "symmetric init"]
    with pytest.raises(UsageError, match="losses of several objectives have no common scale; choose one of mlm, clm"):
        plot("training", folder / "both", view=View(score="loss"))
    assert len(plot("training-layers", folder / "both", view=View(score="directionality")).data) == 2 * 4


def test_the_published_models_can_be_left_out(folder: Path) -> None:
    assert [len(plot("size", folder / "scores.csv", view=View(published=wanted)).data) for wanted in (True, False)] == [
        3,
        1,
    ]


def test_every_kind_says_what_it_is() -> None:
    for make in KINDS.values():
        assert make.__doc__


@pytest.mark.parametrize(
    ("kind", "inputs", "given", "error", "message"),
    [
        ("bars", "demo:minilm", {}, UsageError, "kind is 'bars', expected one of: heatmap, layers"),
        ("heatmap", [], {}, UsageError, "nothing to plot"),
        ("heatmap", "none.csv", {}, DataUnavailableError, "none.csv: no such file; write one with attngeo score"),
        ("heatmap", "text.csv", {}, DataError, "has no column 'model', its columns are a, b"),
        ("heatmap", "empty.csv", {}, DataError, "empty.csv cannot be read"),
        ("heatmap", "header.csv", {}, DataError, "has no rows"),
        ("heatmap", "broken.parquet", {}, DataError, "broken.parquet cannot be read"),
        ("heatmap", "broken.json", {}, DataError, "broken.json cannot be read"),
        ("heatmap", "demo:minilm", {"score": "loss"}, UsageError, "score loss is for training"),
        ("heatmap", "demo:minilm", {"score": "beauty"}, UsageError, "score is 'beauty', expected one of"),
        ("layers", "demo:minilm", {"stack": "cross"}, UsageError, "no stack 'cross', expected one of: encoder"),
        ("matrix", "text.csv", {}, UsageError, "matrix is drawn from one model"),
        ("matrix", ["demo:minilm", "demo:encoder"], {}, UsageError, "matrix is drawn from one model"),
        ("training", ".", {}, DataError, "holds no curves.parquet and no geometry.parquet"),
        ("training", "text.csv", {}, DataError, "has no column 'step'"),
        ("analogies", "text.csv", {}, DataError, "has no column 'model'.*expected what attngeo analogy -o FILE writes"),
        ("size", "sizeless.csv", {}, DataError, "does not say how many parameters"),
        ("layers", "words.csv", {}, DataError, "words.csv: column layer: .*; expected whole numbers"),
        ("layers", "nameless.csv", {}, DataError, "nameless.csv: a row has no model, expected every row to name one"),
        ("layers", ["demo:encoder", "twice.csv"], {}, DataError, r"layer 0 of demo:encoder \(encoder\) is there twice"),
        ("heatmap", "scores.md", {}, DataError, "scores.md: expected a file of results, ending in one of: .csv .json"),
        ("analogies", "scores.html", {}, DataError, "scores.html: expected a file of results"),
        ("heatmap", "run", {}, ModelNotFoundError, "run: no config.json in run; a model lies in run/model, name that"),
        ("training", 3, {}, UsageError, "training is drawn from a int, expected files or folders of attngeo pretrain"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(
    kind: Any, inputs: Any, given: dict[str, Any], error: type[AttnGeoError], message: str, folder: Path,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("text.csv").write_text("a,b\n1,2\n")
    shutil.copytree(folder / "run", "run")
    Path("empty.csv").write_text("")
    Path("header.csv").write_text((folder / "scores.csv").read_text().partition("\n")[0] + "\n")
    Path("broken.parquet").write_bytes(b"PAR1 but not")
    Path("broken.json").write_text('[{"model": ')
    rows = pd.read_csv(folder / "scores.csv")
    rows.drop(columns="parameters").to_csv("sizeless.csv", index=False)
    rows.assign(layer="first").to_csv("words.csv", index=False)
    rows.assign(model=None).to_csv("nameless.csv", index=False)
    rows.to_csv("twice.csv", index=False)
    with pytest.raises(error, match=message) as raised:
        plot(kind, inputs, view=View(**given))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("suffix", ["csv", "json", "jsonl", "parquet", "CSV"])
def test_files_come_back_as_they_were_written(suffix: str, tmp_path: Path) -> None:
    """To the last bit, with heads as whole numbers, and a model that is called NA."""
    frame = attngeo.score("demo:encoder", per_head=True).assign(model="NA")
    tables.write_table(frame, tmp_path / f"rows.{suffix}")
    back = read_results(tmp_path / f"rows.{suffix}", ("model", "head"), "attngeo score")
    for name in ("symmetry", "directionality", "frobenius_norm", "head", "layer", "parameters"):
        assert back[name].tolist() == frame[name].tolist(), name
    assert back["model"].unique().tolist() == ["NA"]
    assert len(filter_rows(back, {"head": 1}, "rows")) == 3
    assert len(filter_rows(back, {"layer": 1}, "rows")) == 5


def test_rows_are_chosen_by_whole_values(tmp_path: Path) -> None:
    frame = pd.DataFrame({"layer": [1, 10, 11], "mixed": ["a", 1, [2]]})
    tables.write_table(frame, tmp_path / "rows.json")
    back = read_results(tmp_path / "rows.json", ("layer",), "x")
    assert filter_rows(back, {"layer": 1}, "rows")["layer"].tolist() == [1]
    assert back["mixed"].tolist() == ["a", "1", "[2]"]
    tables.write_table(back, tmp_path / "rows.parquet")


def test_a_run_on_images_and_one_without_settings(folder: Path, tmp_path: Path) -> None:
    rows = pd.read_parquet(folder / "run/geometry.parquet")
    rows.to_parquet(tmp_path / "geometry.parquet")
    assert plot("training", tmp_path).data[-1].name == "run"
    (tmp_path / "settings.json").write_text('{"task": "image", "objective": "mlm", "init": "symmetric", "seed": 4}')
    figure = plot("training", tmp_path)
    assert (figure.data[-1].name, "symmetric init" in figure.layout.title.text) == ("vision", True)
    half = rows.assign(init="symmetric")
    assert "symmetric init" in plot("training", half).layout.title.text


def test_json_has_no_infinity_and_its_lines_may_hold_any_character(tmp_path: Path) -> None:
    frame = pd.DataFrame({"model": ["a\u2028b", "c"], "note": [None, "x"], "symmetry": [0.5, float("inf")]})
    for suffix in ("json", "jsonl"):
        tables.write_table(frame, tmp_path / f"rows.{suffix}")
        assert "Infinity" not in (tmp_path / f"rows.{suffix}").read_text()
        back = read_results(tmp_path / f"rows.{suffix}", ("model",), "x")
        assert back["model"].tolist() == ["a\u2028b", "c"]
        assert back["symmetry"].isna().tolist() == [False, True]
        assert back["note"].isna().tolist() == [True, False]
    (tmp_path / "rows.jsonl").write_text('{"layer": 1}\n\n{"layer": 2}\n')
    assert read_results(tmp_path / "rows.jsonl", ("layer",), "x")["layer"].tolist() == [1, 2]
    (tmp_path / "rows.json").write_text('[{"layer": 1180591620717411303424}]')
    with pytest.raises(DataError, match="column layer"):
        read_results(tmp_path / "rows.json", ("layer",), "x")
