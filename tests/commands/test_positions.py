"""`attngeo positions` as a user runs it: by command, by recipe, and its figures."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import Command
from support.checkpoints import CONFIG, weights, write_single
from support.messages import assert_fails, refuses

import attngeo as library
from attngeo.errors import (
    AttnGeoError,
    CorruptCheckpointError,
    DataError,
    ModelNotFoundError,
    UnsupportedModelError,
    UsageError,
)
from attngeo.offsets.options import KERNEL
from attngeo.reporting.report import build_report


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A LLaMA of two layers, 4 heads and 2 key heads."""
    return write_single(tmp_path / "model", weights(), CONFIG)


def test_the_table_fits_80_columns_and_files_have_a_row_for_each_head(
    inside: Command, model: Path, tmp_path: Path
) -> None:
    files = [tmp_path / f"p.{suffix}" for suffix in ("csv", "parquet", "json")]
    run = inside("positions", model, *(part for file in files for part in ("-o", file)))
    assert run.returncode == 0
    assert run.stderr == "attngeo: note: decoder, layers 0-1: rotary embeddings\n"
    assert max(map(len, run.stdout.splitlines())) <= 80
    rows = library.positions(model)
    for file in files:
        read = {"csv": pd.read_csv, "parquet": pd.read_parquet, "json": pd.read_json}[file.suffix[1:]](file)
        assert list(read.columns) == list(library.columns("positions"))
        assert read["fast_share"].tolist() == pytest.approx(rows["fast_share"].tolist())
    lines = [line.split() for line in run.stdout.splitlines()]
    first = rows[rows["layer"] == 0]
    [line] = [line for line in lines if line[:3] == ["decoder", "0", "4"]]
    largest = first.loc[first["fast_share"].idxmax()]
    previous = first.loc[first["previous_token"].idxmax()]
    assert line[3:] == [
        f"{first['fast_share'].median():.3f}", f"{largest['fast_share']:.3f}", f"({largest['head']})",
        f"{previous['previous_token']:+.4f}", f"({previous['head']})", str((first["peak"] == 1).sum()),
    ]  # fmt: skip
    start = next(number for number, line in enumerate(lines) if line[:3] == ["heads", "with", "the"])
    ranked = [line for line in lines[start:] if line[:1] == ["decoder"]]
    by_share = rows.sort_values("fast_share", ascending=False)
    assert [line[1:3] for line in ranked] == [[str(row.layer), str(row.head)] for row in by_share.itertuples()]
    assert inside("positions", model, "-q").stderr == ""


def test_rows_for_programs_and_selected_rows(inside: Command, model: Path) -> None:
    run = inside("positions", model, "demo:decoder", "--format", "csv", "--layers", "0-1")
    assert (run.returncode, run.stderr) == (0, "")
    printed = pd.read_csv(io.StringIO(run.stdout))
    assert printed.groupby("model", sort=False).size().tolist() == [8, 8]
    ranked = json.loads(inside("positions", model, "--sort", "fast_share", "--top", 2, "--format", "json").stdout)
    shares = [row["fast_share"] for row in ranked]
    assert shares == sorted(printed["fast_share"].dropna(), reverse=True)[:2]
    brief = inside("positions", model, "--sort", "-fast_share", "--top", 1)
    assert "previous token" in brief.stdout
    assert len([line for line in brief.stdout.splitlines() if line.split()[:1] == ["decoder"]]) == 1


def test_models_without_rotary_embeddings_are_ranked_by_the_kernel(inside: Command) -> None:
    run = inside("positions", "demo:decoder")
    assert run.returncode == 0
    assert "heads with the largest previous token" in run.stdout
    assert "excess" not in run.stdout
    assert "128 positions of bert.embeddings.position_embeddings.weight" in run.stderr
    assert inside("positions", "demo:decoder", "--summary").stderr.endswith(run.stderr)
    rows = library.positions("demo:decoder")
    best = rows.loc[rows["previous_token"].idxmax()]
    lines = [line.split() for line in run.stdout.splitlines()]
    start = next(number for number, line in enumerate(lines) if line[:3] == ["heads", "with", "the"])
    first = next(line for line in lines[start:] if line[:1] == ["decoder"])
    assert first[1:3] == [str(best["layer"]), str(best["head"])]


def test_what_cannot_be_measured_is_one_line_with_an_exit_code(
    inside: Command, model: Path, saved: Callable[[str], Path], tmp_path: Path
) -> None:
    no_attention = write_single(tmp_path / "mlp", {"model.layers.0.mlp.up_proj.weight": torch.randn(8, 8)})
    no_keys = {name: tensor for name, tensor in weights().items() if "k_proj" not in name}
    cases: list[tuple[type[AttnGeoError], list[object], list[object]]] = [
        (UnsupportedModelError, [no_attention], ["no query-key attention"]),
        (UnsupportedModelError, [write_single(tmp_path / "half", no_keys)], ["q_proj"]),
        (
            CorruptCheckpointError,
            [write_single(tmp_path / "rope", config=CONFIG | {"rope_theta": "x"})],
            ["rotary", "'x'", "--config"],
        ),
        (ModelNotFoundError, [tmp_path / "none"], ["none"]),
        (UsageError, [model, "--layers", "7"], ["layer 7", "0 to 1"]),
        (UsageError, [model, "--stack", "vision"], ["vision", "decoder"]),
        (UsageError, [model, "--columns", "fast"], ["--columns", "fast_share"]),
        (UsageError, [model, "-o", model / "config.json"], ["config.json", "input"]),
    ]
    for error, arguments, facts in cases:
        assert_fails(inside("positions", *arguments), error, *facts)
    both = inside("positions", model, no_attention, "--format", "csv")
    assert both.returncode == 4
    assert len(pd.read_csv(io.StringIO(both.stdout))) == 8
    assert "no query-key attention" in both.stderr
    crossed = inside("positions", saved("bart"))
    assert crossed.returncode == 0
    assert "cross-attention: queries and keys come from different sequences" in crossed.stderr
    assert max(map(len, crossed.stdout.splitlines())) <= 80


RECIPE = """
title = "Positions"
[[results]]
name = "positions"
command = "positions"
models = ["./model", "demo:decoder"]
options = { layers = "0-1" }
[[section]]
title = "Both"
figures = [
    { kind = "position-map", of = "positions", models = ["./model"] },
    { kind = "position-kernel", of = "positions", layer = 1 },
]
tables = [{ of = "positions", columns = ["model", "layer", "head", "fast_share"] }]
"""


@pytest.mark.usefixtures("no_pictures")
def test_a_recipe_asks_and_draws(model: Path, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(RECIPE)
    made = build_report(tmp_path / "r.toml", tmp_path / "out")
    assert made.failures == []
    assert made.page.read_text().count('class="chart"') == 2
    rows = pd.read_csv(tmp_path / "out/tables/positions.csv")
    assert rows["model"].unique().tolist() == ["./model", "demo:decoder"]
    own = rows[rows["model"] == "./model"]
    assert own["fast_share"].tolist() == pytest.approx(library.positions(model)["fast_share"].tolist())
    (tmp_path / "r.toml").write_text(RECIPE.replace("fast_share", "fast_shar"))
    with refuses(UsageError, "did you mean fast_share"):
        build_report(tmp_path / "r.toml", tmp_path / "again")


def test_the_map_shows_the_share_of_each_head(model: Path) -> None:
    rows = library.positions(model)
    figure = library.plot("position-map", rows)
    (trace,) = figure.data
    assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax) == (0, rows["fast_share"].max())
    expected = rows.pivot_table(index="layer", columns="head", values="fast_share")
    assert np.asarray(trace.z) == pytest.approx(expected.to_numpy(), rel=1e-6)
    assert (list(trace.x), list(trace.y)) == ([0, 1, 2, 3], [0, 1])
    rows.loc[0, "fast_share"] = None
    (trace,) = library.plot("position-map", rows).data
    assert math.isnan(trace.z[0][0])
    with pytest.raises(DataError, match="no head has a fast share"):
        library.plot("position-map", "demo:decoder")


def test_the_kernel_is_shown_against_its_mean(model: Path, tmp_path: Path) -> None:
    rows = library.positions(model)
    rows.to_csv(tmp_path / "p.csv", index=False)
    for source in (rows, model, tmp_path / "p.csv"):
        (trace,) = library.plot("position-kernel", source, layer=1).data
        kernel = rows[rows["layer"] == 1][list(KERNEL)].to_numpy()
        distances = kernel - kernel.mean(1, keepdims=True)
        assert np.asarray(trace.z) == pytest.approx(distances / abs(distances).max(1, keepdims=True), abs=1e-5)
        assert np.asarray(trace.customdata) == pytest.approx(kernel, rel=1e-5)
    assert len(library.plot("position-kernel", [rows, "demo:decoder"]).data) == 2
    with refuses(UsageError, "layer", 7):
        library.plot("position-kernel", rows, layer=7)
    with pytest.raises(DataError, match="no head of layer 0 has a position kernel"):
        library.plot("position-kernel", rows.assign(**dict.fromkeys(KERNEL, math.nan)))
    (flat,) = library.plot("position-kernel", rows.assign(**dict.fromkeys(KERNEL, 2.0))).data
    assert not np.asarray(flat.z).any()
    with refuses(UsageError, "stack", "encoder"):
        library.plot("position-kernel", rows, stack="encoder")
    with pytest.raises(DataError, match="two rows"):
        library.plot("position-kernel", [rows, rows])


def test_kept_tables_are_listed(inside: Command, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNGEO_CACHE", str(tmp_path / "kept"))
    assert inside("positions", model, "--fold-norm").returncode == 0
    again = inside("positions", model, "--fold-norm")
    assert "from kept results; --fresh computes them again" in again.stderr
    listed = inside("cache", "list")
    assert "fold_norm" in listed.stdout
