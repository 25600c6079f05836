"""Rows and columns that `attngeo score` selects, tables for LaTeX, and narrow or plain terminals."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pandas as pd
import pytest
from support.messages import assert_states

from attngeo import score

Run = Callable[..., CompletedProcess[str]]


def test_the_largest_rows_of_all_models(inside: Run, tmp_path: Path) -> None:
    options = ["--per-head", "--sort", "symmetry", "--top", "5", "--columns", "model,layer,head,symmetry"]
    done = inside("score", "demo:encoder", "demo:decoder", *options, "-o", "s.csv", "-q", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = score(["demo:encoder", "demo:decoder"], per_head=True)
    assert rows.nlargest(5, "symmetry")["head"].isna().any()  # whole layers are among them, and not in the table
    expected = (
        rows[rows["head"].notna()]
        .nlargest(5, "symmetry")[["model", "layer", "head", "symmetry"]]
        .reset_index(drop=True)
    )
    written = pd.read_csv(tmp_path / "s.csv", dtype={"layer": "Int64", "head": "Int64"})
    pd.testing.assert_frame_equal(written, expected, check_dtype=False)
    assert [line.split()[0] for line in done.stdout.splitlines() if "demo:" in line] == [*expected["model"]]


def test_the_smallest_rows_come_first_by_a_minus(inside: Run) -> None:
    done = inside("score", "demo:decoder", "--sort", "-directionality", "--format", "csv", "-q")
    directionality = score("demo:decoder")["directionality"]
    printed = pd.read_csv(io.StringIO(done.stdout))
    assert printed["directionality"].tolist() == pytest.approx(sorted(directionality))


def test_checks_see_the_rows_that_are_not_selected(inside: Run) -> None:
    done = inside("score", "demo:minilm", "--top", "1", "--columns", "layer", "--fail-if", "layers == 6", "-q")
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["--sort", "symetry"], ("--sort", "symmetry")),
        (["--columns", "layer,beauty"], ("--columns", "beauty")),
        (["--columns", ","], ("--columns",)),
        (["--top", "0"], ("--top", 1)),
    ],
)
def test_a_selection_of_nothing_known_is_refused_before_anything_is_read(
    arguments: list[str], facts: tuple[object, ...], inside: Run
) -> None:
    done = inside("score", "demo:none", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert_states(done.stderr, *facts)


def test_tables_for_latex_fit_into_a_column_and_have_the_columns_of_a_paper(inside: Run, tmp_path: Path) -> None:
    for model, rows in (("demo:minilm", 78), ("demo:decoder", 15)):
        assert inside("score", model, "--per-head", "-o", "t.tex", "-q", cwd=tmp_path).returncode == 0
        lines = (tmp_path / "t.tex").read_text("utf-8").splitlines()
        assert lines[1] == r"\begin{tabular}{rrrrr}"
        assert lines[3] == r"layer & head & symmetry & directionality & symmetry z \\"
        assert len(lines) == rows + 7


@pytest.mark.parametrize("width", [55, 58, 62, 70])
def test_titles_are_whole_while_there_is_room_for_their_words(width: int, inside: Run) -> None:
    """The last table is the widest; the names of its models have a column or lines of their own."""
    done = inside("score", "demo:minilm", "demo:decoder", "-q", COLUMNS=str(width))
    lines = done.stdout.splitlines()
    last_table = done.stdout.rpartition("\n\n")[2]
    assert re.match("(model +)?stack +(layers +)?symmetry +directionality", last_table)
    assert max(map(len, lines)) <= width


def test_no_value_is_cut_where_titles_have_no_room(inside: Run) -> None:
    digits = []
    for width in (34, 120):
        text = inside("score", "demo:minilm", "demo:decoder", "-q", COLUMNS=str(width)).stdout
        assert max(map(len, text.splitlines())) <= width
        last_table = text.rpartition("stack ")[2].partition("no room for: layers")[0]
        last_table = re.sub("(encoder|decoder) +[36] ", "", last_table)  # narrow tables count no layers
        digits.append(sorted(re.findall("[0-9]", last_table)))
    assert digits[0] == digits[1]


@pytest.mark.parametrize(("environment", "encoding"), [({"LC_ALL": "C"}, "utf-8"), ({}, "ascii")])
def test_a_plain_terminal_gets_bars_and_lines_of_ascii(environment: dict[str, str], encoding: str, inside: Run) -> None:
    """In the locale C, or with PYTHONIOENCODING=ascii."""
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(encoding=encoding)
    done = inside("score", "demo:encoder", "-q", COLUMNS="80", **environment)
    bars = [line for line in done.stdout.splitlines() if "|" in line and "##" in line]
    assert len(bars) >= 2
    assert all(line.isascii() for line in bars)
    assert "?" not in done.stdout
