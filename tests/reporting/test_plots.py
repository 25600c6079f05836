"""Figures by name, from files, models and tables; and the inputs that are refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.runs import small_options

import attngeo
from attngeo.errors import AttnGeoError, CorruptCheckpointError, DataError, DataUnavailableError, UsageError
from attngeo.figures.kinds import PlotOptions
from attngeo.figures.style import OBJECTIVES
from attngeo.pretrain import compare_runs, run
from attngeo.reporting.plots import plot
from attngeo.tables import write as tables


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of score as files of every format, a run and a comparison."""
    folder = tmp_path_factory.mktemp("plots")
    rows = attngeo.score("demo:encoder", per_head=True)
    for suffix in ("csv", "json", "jsonl", "parquet"):
        tables.write_table(rows, folder / f"scores.{suffix}")
    tables.write_table(rows[rows["head"].isna()], folder / "layers.csv")
    settings = small_options(folder, steps=4, log_every=2, save_every=100)
    run(settings, folder / "run")
    compare_runs(settings, folder / "both", compare=["default", "symmetric"], objectives=["mlm", "clm"])
    return folder


@pytest.mark.parametrize("kind", ["heatmap", "layers", "heads", "size"])
def test_a_file_gives_the_figure_of_the_model(kind: Any, folder: Path) -> None:
    of_model = plot(kind, "demo:encoder").to_json()
    for suffix in ("csv", "json", "jsonl", "parquet"):
        assert plot(kind, folder / f"scores.{suffix}").to_json() == of_model, suffix


def test_files_models_and_tables_go_together(folder: Path) -> None:
    frame = attngeo.score("demo:decoder", per_head=True)
    figure = plot("layers", [folder / "scores.csv", frame, "demo:minilm"], score="directionality")
    assert [t.name for t in figure.data if t.showlegend is not False] == ["demo:encoder", "demo:decoder", "demo:minilm"]
    only = plot("layers", [folder / "scores.csv", frame], stack="decoder")
    assert only.layout.title.text.startswith("demo:decoder: ")


def test_results_without_heads_are_drawn_where_they_can_be(folder: Path) -> None:
    assert len(plot("heatmap", folder / "layers.csv").data) == 1
    assert len(plot("layers", folder / "layers.csv").data) == 1
    with pytest.raises(DataError, match=r"layers\.csv: .*--per-head"):
        plot("heads", folder / "layers.csv")
    with pytest.raises(DataError, match=r"^the table: .*--per-head"):
        plot("heads", pd.read_csv(folder / "layers.csv"))


def test_curves_of_a_run_and_of_a_comparison(folder: Path) -> None:
    geometry = pd.read_parquet(folder / "run/geometry.parquet")
    for given in (folder / "run", folder / "run/geometry.parquet"):
        [line] = plot("training", given).select_traces({"name": "encoder (mlm)"})
        layers = geometry[geometry["head"].isna()].groupby("step")["symmetry"].median()
        assert (list(line.x), list(line.y)) == ([0, 2, 4], pytest.approx(layers.tolist()))
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
    of_one = plot("training", folder / "both", where={"init": "symmetric"})
    assert [t.name for t in of_one.data if t.showlegend is not False] == ["encoder (mlm)", "decoder (clm)"]
    assert "symmetric init, median and quartiles over" in of_one.layout.title.text
    loss = plot("training", folder / "both/curves.parquet", score="loss", where={"objective": "mlm"})
    assert [t.name for t in loss.data if t.name] == ["default init", "symmetric init"]
    with pytest.raises(UsageError, match="mlm, clm"):
        plot("training", folder / "both", score="loss")
    layers = plot("training-layers", folder / "both", score="directionality", over="heads")
    assert len([trace for trace in layers.data if trace.name]) == 2 * 4
    assert "over heads" in layers.layout.title.text


def test_the_published_models_can_be_left_out(folder: Path) -> None:
    assert [len(plot("size", folder / "scores.csv", published=wanted).data) for wanted in (True, False)] == [
        3,
        1,
    ]


@pytest.mark.parametrize(
    ("kind", "inputs", "given", "error", "message"),
    [
        ("bars", "demo:minilm", {}, UsageError, "'bars'.*did you mean pairs"),
        ("zzz", "demo:minilm", {}, UsageError, "'zzz'.*heatmap, layers"),
        ("heatmap", [], {}, UsageError, "nothing"),
        ("heatmap", "none.csv", {}, DataUnavailableError, r"none\.csv"),
        ("heatmap", "text.csv", {}, DataError, "'model'.* a, b"),
        ("heatmap", "empty.csv", {}, DataError, r"empty\.csv"),
        ("heatmap", "header.csv", {}, DataError, r"header\.csv"),
        ("heatmap", "broken.parquet", {}, DataError, r"broken\.parquet"),
        ("heatmap", "broken.json", {}, DataError, r"broken\.json"),
        ("heatmap", "demo:minilm", {"score": "loss"}, UsageError, "'loss'.*symmetry, directionality"),
        ("heatmap", "demo:minilm", {"score": "beauty"}, UsageError, "'beauty'"),
        ("heatmap", "demo:minilm", {"where": "layer=1"}, UsageError, "layer=1"),
        ("layers", "demo:minilm", {"stack": "cross"}, UsageError, "'cross'.*encoder"),
        ("matrix", "text.csv", {}, UsageError, "one model"),
        ("outliers", "text.csv", {}, UsageError, "outliers requires one model"),
        ("outliers", "demo:minilm", {"stack": "cross"}, UsageError, "'cross'"),
        ("matrix", ["demo:minilm", "demo:encoder"], {}, UsageError, "one model"),
        ("training", ".", {}, DataError, r"curves\.parquet.*geometry\.parquet"),
        ("training", "text.csv", {}, DataError, "'step'"),
        ("analogies", "text.csv", {}, DataError, "'model'.*attngeo analogy"),
        ("analogies", ["text.csv", "demo:minilm"], {}, DataError, "'model'.*attngeo analogy"),
        ("size", "sizeless.csv", {}, DataError, r"sizeless\.csv: .*parameters"),
        ("layers", "words.csv", {}, DataError, r"words\.csv: column layer"),
        ("layers", "nameless.csv", {}, DataError, r"nameless\.csv: .* model"),
        ("layers", ["demo:encoder", "twice.csv"], {}, DataError, r"layer 0 of demo:encoder \(encoder\)"),
        ("layers", "scoreless.csv", {}, DataError, r"scoreless\.csv .*'symmetry'"),
        ("heatmap", "scores.md", {}, DataError, r"scores\.md: .*\.csv \.json"),
        ("analogies", "scores.html", {}, DataError, r"scores\.html"),
        ("heatmap", "run", {}, CorruptCheckpointError, "run/model"),
        ("training", 3, {}, UsageError, " int,"),
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
    rows.drop(columns="symmetry").to_csv("scoreless.csv", index=False)
    rows.assign(layer="first").to_csv("words.csv", index=False)
    rows.assign(model=None).to_csv("nameless.csv", index=False)
    rows.to_csv("twice.csv", index=False)
    for name in ("scores.md", "scores.html"):
        Path(name).touch()
    with pytest.raises(error, match=message) as raised:
        plot(kind, inputs, **given)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("row-attention", {"cell": "a", "on": "b", "head": 0, "attention": "much"}),
        ("item-attention", {"sequence": 1, "layer": 0, "position": 0, "attended_position": 0, "weight": "much"}),
        ("test-errors", {"experiment": "e", "model": "efa", "direction": "bi", "setting": "", "metric": "mse",
                         "value": "much"}),
        ("place-attention", {"place": "a", "attended_place": "b", "latitude": "north", "longitude": 1, "layer": 0,
                             "weight": 1}),
    ],
)  # fmt: skip
def test_texts_in_place_of_numbers_are_refused_in_one_line(kind: str, rows: dict[str, Any], tmp_path: Path) -> None:
    frame = pd.DataFrame([rows])
    frame.to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(DataError, match=r"^(?s:[^\n]*rows\.csv[^\n]* attngeo [^\n]*)\Z"):
        plot(kind, tmp_path / "rows.csv")
    with pytest.raises(DataError, match=r"^the table .* attngeo "):
        plot(kind, frame)


def test_a_run_on_images_and_one_without_settings(folder: Path, tmp_path: Path) -> None:
    rows = pd.read_parquet(folder / "run/geometry.parquet")
    rows.to_parquet(tmp_path / "geometry.parquet")
    assert {trace.name for trace in plot("training", tmp_path).data if trace.name} == {"run"}
    (tmp_path / "settings.json").write_text('{"task": "image", "objective": "mlm", "init": "symmetric", "seed": 4}')
    figure = plot("training", tmp_path)
    assert {trace.name for trace in figure.data if trace.name} == {"vision"}
    assert "symmetric init" in figure.layout.title.text
    half = rows.assign(init="symmetric")
    assert "symmetric init" in plot("training", half).layout.title.text


def test_files_and_models_of_analogies_cannot_be_mixed(tmp_path: Path) -> None:
    pd.DataFrame({
        "model": ["m"], "level": "overall", "name": "overall", "asked": 3, "known": 2, "accuracy": 0.5,
        "accuracy_low": 0.3, "accuracy_high": 0.6, "questions": "own",
    }).to_csv(tmp_path / "a.csv", index=False)  # fmt: skip
    assert len(plot("analogies", tmp_path / "a.csv").data) == 1
    with pytest.raises(UsageError, match="cannot be mixed"):
        plot("analogies", [tmp_path / "a.csv", "demo:minilm"])


def test_options_are_keywords_or_one_object() -> None:
    figure = plot("layers", "demo:encoder", options=PlotOptions(score="directionality"))
    assert figure.to_json() == plot("layers", "demo:encoder", score="directionality").to_json()
