"""`attngeo theory` as a user runs it."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from conftest import Command
from support.messages import assert_fails, assert_states

from attngeo.errors import AttnGeoError, DataError, DataUnavailableError
from attngeo.papers.residuals import Residuals
from attngeo.papers.statements import STATEMENTS

COLUMNS = ["statement", "paper", "computed", "tolerance", "residual", "holds", "as_printed"]


def test_a_table_that_fits_80_columns(inside: Command) -> None:
    run = inside("theory", "lemma", "theorem-2", "definition-3.1")
    assert (run.returncode, run.stderr) == (0, "")
    lines = run.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    cells = {line.split()[0]: line.split()[-4:] for line in lines if line.strip().endswith(("yes", "no"))}
    for name in ("lemma-1", "lemma-11", "lemma-15", "theorem-2-one-head"):
        residual, *rest = cells[name]
        assert float(residual) < 1e-10
        assert rest == ["1e-10", "yes", "yes"]
    assert cells["definition-3.1"][-2:] == ["yes", "no"]
    assert "printed: 2" in run.stdout
    assert_states(lines[-1], 8, 6, "hold")


def test_rows_for_programs_and_files(inside: Command, tmp_path: Path) -> None:
    paths = [tmp_path / f"theory.{suffix}" for suffix in ("csv", "md", "parquet")]
    outputs = [argument for path in paths for argument in ("-o", path)]
    run = inside("theory", "lemma-1", "proposition-s1.15", "--seed", 2, "--format", "json", *outputs)
    assert (run.returncode, run.stderr) == (0, "")
    rows = json.loads(run.stdout)
    assert [list(row) for row in rows] == [COLUMNS] * 3
    assert [row["as_printed"] for row in rows] == [True, True, False]
    assert all(row["holds"] is True and 0 <= row["residual"] <= row["tolerance"] for row in rows)
    assert "8" in rows[2]["computed"]
    assert [row["statement"] for row in csv.DictReader(paths[0].read_text("utf-8").splitlines())] == [
        row["statement"] for row in rows
    ]
    assert paths[1].read_text("utf-8").count("\n") == 5
    assert pd.read_parquet(paths[2])["residual"].tolist() == [row["residual"] for row in rows]
    again = inside("theory", "lemma-1", "--seed", 2, "--format", "csv")
    assert next(csv.DictReader(io.StringIO(again.stdout)))["residual"] == str(rows[0]["residual"])


def test_the_exit_code_is_1_if_a_statement_does_not_hold(
    inside: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = replace(STATEMENTS["lemma-1"], function=lambda _: Residuals("broken", (0.5, float("nan"))))
    monkeypatch.setitem(STATEMENTS, "lemma-1", broken)
    run = inside("theory", "lemma-1", "lemma-11", "-o", tmp_path / "rows.csv", "--format", "json")
    assert run.returncode == 1
    first, _ = json.loads(run.stdout)
    assert (first["residual"], first["holds"], first["as_printed"]) == (None, False, False)
    assert_states(run.stderr, "lemma-1", "does not hold")
    assert "lemma-11" not in run.stderr
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 3
    run = inside("theory", "lemma-1")
    assert run.returncode == 1
    assert "broken" in run.stdout


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["lemma-12"], ["'lemma-12'", "did you mean lemma-1?"]),
        (["Lemma-1"], ["'Lemma-1'", "lemma-1"]),
        (["lemma-1", "nothing-like-it-at-all"], ["'nothing-like-it-at-all'", "lemma-1"]),
        (["lemma-1", "--seed", "-1"], ["--seed", "-1"]),
        (["lemma-1", "--seed", "x"], ["--seed", "whole number"]),
        (["lemma-1", "-o", "rows.xyz"], ["rows.xyz"]),
        (["lemma-1", "-o", "a.csv", "-o", "a.csv"], ["twice"]),
        (["lemma-1", "--format", "xml"], ["xml"]),
        (["lemma-1", "-q", "-v"], ["--quiet", "--verbose"]),
        (["lemma-1", "--text", "toy"], ["--text", "lemma-1"]),
        (["--text", "toy", "--seed", "3"], ["--text", "--seed"]),
        (["--text", "text.csv", "-o", "text.csv"], ["text.csv"]),
    ],
)
def test_wrong_usage(inside: Command, tmp_path: Path, arguments: list[str], facts: list[str]) -> None:
    assert_fails(inside("theory", *arguments, cwd=tmp_path), 2, *facts)
    assert not list(tmp_path.iterdir())


def test_the_tokens_of_a_text(inside: Command, tmp_path: Path) -> None:
    lines = [f"The {noun} is here today ." for noun in ("cat", "dog", "bird") for _ in range(9)]
    (tmp_path / "text.txt").write_text("\n".join([*lines, *(f"w{number} v{number}" for number in range(20))]))
    run = inside("theory", "--text", "text.txt", "-o", "rows.csv", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert_states(run.stderr, "note", 20, 48, "-o FILE")
    assert max(map(len, run.stdout.splitlines())) <= 80
    assert_states(run.stdout.splitlines()[0], "text.txt", 48, 202)
    first, second, *rest = csv.DictReader((tmp_path / "rows.csv").read_text("utf-8").splitlines())
    assert len(rest) == 46
    assert {first["token"], second["token"]} == {"The", "."}
    sums = {row["token"]: (row["count"], row["context"], row["predicted"], row["ratio"]) for row in (first, second)}
    assert sums == {"The": ("27", "135", "0", "inf"), ".": ("27", "0", "135", "0.0")}
    printed = inside("theory", "--text", tmp_path / "text.txt", "--format", "json")
    assert printed.stderr == ""
    assert {row["token"]: row["ratio"] for row in json.loads(printed.stdout)}["The"] is None


@pytest.mark.parametrize(
    ("data", "error", "facts"),
    [
        (None, DataUnavailableError, ["text.txt", "toy"]),
        (b"one\ntwo\n", DataError, ["text.txt", 2]),
        (b"\xff\xfe", DataError, ["text.txt", "UTF-8"]),
    ],
)
def test_texts_that_cannot_be_counted(
    inside: Command, tmp_path: Path, data: bytes | None, error: type[AttnGeoError], facts: list[object]
) -> None:
    if data is not None:
        (tmp_path / "text.txt").write_bytes(data)
    assert_fails(inside("theory", "--text", tmp_path / "text.txt"), error, *facts)


def test_the_help_and_the_rows_for_programs(inside: Command) -> None:
    run = inside("theory", "--help")
    assert run.returncode == 0
    assert "as printed" in run.stdout
    run = inside("theory", "lemma-11", "--format", "csv", "-q")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.splitlines()[0] == ",".join(COLUMNS)


@pytest.mark.slow
def test_all_statements_hold(attngeo: Command) -> None:
    run = attngeo("theory", "--format", "json")
    assert run.returncode == 0, run.stderr
    rows = json.loads(run.stdout)
    assert [row["statement"] for row in rows] == list(STATEMENTS)
    assert sum(not row["as_printed"] for row in rows) == 14  # which, `test_no_verdict_depends_on_the_seed` says
