"""`attngeo compose`: what it prints, writes and refuses."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pandas as pd
import pytest
from support.checkpoints import write_single
from support.messages import assert_fails, assert_states

import attngeo as library
from attngeo.circuits.compose_options import COMPOSE_COLUMNS
from attngeo.errors import AttnGeoError, NetworkError, UnsupportedModelError

Run = Callable[..., CompletedProcess[str]]


def test_the_terminal_shows_the_strongest_pairs_the_thresholds_and_a_map(inside: Run) -> None:
    done = inside("compose", "demo:minilm", "--top", "3", COLUMNS="80")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    rows = library.compose("demo:minilm")
    for kind in "qkv":
        of_kind = rows[rows["kind"] == kind]
        for row in of_kind.nlargest(3, "composition_z").itertuples():
            star = "*" if row.above_threshold else ""
            assert f"{row.from_layer}.{row.from_head}→{row.to_layer}.{row.to_head}" in done.stdout
            assert f"{row.composition_z:+.1f}{star}" in done.stdout
    for found in rows.attrs["thresholds"]:
        assert any(f"{found['threshold']:.1f}" in line and f" {found['above']} " in line for line in lines)
    assert sum("  3.2 of 2,160 pairs" in line for line in lines) == 3
    assert sum(line.startswith(("0 ", "1 ", "2 ", "3 ", "4 ", "5")) for line in lines) == 6
    assert "impossible pairs" in done.stderr
    assert "do not prove a circuit" in done.stderr


def test_a_threshold_of_few_pairs_is_exceeded_by_chance(inside: Run) -> None:
    """The threshold of 48 impossible pairs is near the largest of them: another one of 48 is above it by chance."""
    [line] = [line for line in inside("compose", "demo:encoder", "--kind", "k").stdout.splitlines() if "keys  " in line]
    assert line.endswith("  1 of 48 pairs")


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_narrow_and_plain_terminals(columns: str, inside: Run) -> None:
    done = inside("compose", "demo:encoder", "-q", COLUMNS=columns, LC_ALL="C")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    title, *lines = done.stdout.splitlines()
    assert title.startswith("demo:encoder")
    assert "".join(lines).isascii()
    assert max(map(len, lines)) <= int(columns)
    strongest = library.compose("demo:encoder").dropna(subset="composition_z").groupby("kind")["composition_z"].max()
    assert all(f"{z:+.1f}" in done.stdout for z in strongest)


def test_files_have_all_pairs(inside: Run, tmp_path: Path) -> None:
    done = inside("compose", "demo:encoder", "--kind", "k,v", "--format", "csv", "-o", tmp_path / "c.parquet", "-q")
    assert done.returncode == 0, done.stderr
    printed = pd.read_csv(io.StringIO(done.stdout))
    written = pd.read_parquet(tmp_path / "c.parquet")
    assert list(written.columns) == list(printed.columns) == list(COMPOSE_COLUMNS)
    assert set(written["kind"]) == {"k", "v"}
    assert len(written) == len(printed) == len(library.compose("demo:encoder", kind=["k", "v"]))


def test_top_writes_the_strongest_pairs_of_each_kind(inside: Run, tmp_path: Path) -> None:
    rows = library.compose("demo:encoder")
    done = inside("compose", "demo:encoder", "--top", "3", "--format", "csv", "-o", tmp_path / "c.csv", "-q")
    written = pd.read_csv(tmp_path / "c.csv")
    assert done.stdout == (tmp_path / "c.csv").read_text()
    for kind, pairs in written.groupby("kind"):
        expected = rows[rows["kind"] == kind]["composition_z"].nlargest(3).tolist()
        assert pairs["composition_z"].tolist() == pytest.approx(expected)
    assert len(written) == 9
    sorted_rows = inside("compose", "demo:encoder", "--top", "4", "--sort", "composition", "--format", "csv", "-q")
    largest = rows["composition"].nlargest(4).tolist()
    assert pd.read_csv(io.StringIO(sorted_rows.stdout))["composition"].tolist() == pytest.approx(largest)
    none = inside("compose", "demo:encoder", "--top", "0", "--format", "csv", "-q")
    assert len(pd.read_csv(io.StringIO(none.stdout))) == len(rows)


def test_notes_say_what_reading_again_costs_and_when_the_threshold_is_of_few_pairs(inside: Run) -> None:
    done = inside("compose", "demo:minilm", "--memory", "1KB", "--from-layers", "0,1", "--to-layers", "5")
    assert_states(next(line for line in done.stderr.splitlines() if "--memory" in line), "times")
    assert "queries, keys, values comes from only 432 impossible pairs" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "facts"),
    [
        (["demo:minilm", "--from-layers", "4-5", "--to-layers", "0-1"], 2, ("--from-layers", "--to-layers")),
        (["demo:minilm", "--from-layers", "7"], 2, ("--from-layers", 7, 5)),
        (["demo:minilm", "--kind", "o"], 2, ("--kind", "'o'")),
        (["demo:minilm", "--memory", "much"], 2, ("--memory",)),
        (["demo:minilm", "--stack", "decoder"], 2, ("decoder", "encoder")),
        (["demo:minilm", "--top", "-1"], 2, ("--top",)),
        (["nothing-here"], NetworkError, ("nothing-here",)),
    ],
)
def test_wrong_usage(
    arguments: list[str], code: int | type[AttnGeoError], facts: tuple[object, ...], inside: Run
) -> None:
    assert_fails(inside("compose", *arguments), code, *facts)


def test_a_model_without_outputs_is_refused(inside: Run, tmp_path: Path) -> None:
    assert_fails(inside("compose", write_single(tmp_path / "model")), UnsupportedModelError, "output projection")


def test_a_recipe_asks_for_compositions(inside: Run, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'title = "Heads"\n[[results]]\ncommand = "compose"\nname = "pairs"\nmodels = ["demo:encoder"]\n'
        'options = { kind = ["k"], fold_norm = true }\n'
        '[[section]]\ntitle = "Pairs"\n'
        'tables = [{ of = "pairs", columns = ["from_layer", "to_layer", "composition_z"] }]\n'
    )
    done = inside("report", recipe, "-o", tmp_path / "report", "-q")
    assert done.returncode == 0, done.stderr
    rows = pd.read_csv(tmp_path / "report/tables/pairs.csv")
    assert len(rows) == len(library.compose("demo:encoder", kind="k"))
