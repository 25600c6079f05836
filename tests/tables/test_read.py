"""Results files: what is written comes back, and what is selected."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from support.messages import refuses

import attngeo
from attngeo.errors import DataError, UsageError
from attngeo.tables import write as tables
from attngeo.tables.read import filter_rows, read_results


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
    assert filter_rows(back, {"layer": ["11", 1]}, "rows")["layer"].tolist() == [1, 11]
    with refuses(UsageError, "rows has no row with layer = '2'", "1, 10, 11"):
        filter_rows(back, {"layer": [1, 2]}, "rows")
    with refuses(UsageError, "head = '9', expected one of: 1.0"):
        filter_rows(pd.DataFrame({"head": [1.0, None]}), {"head": 9}, "rows")
    with refuses(UsageError, "layer = []", "1, 10, 11"):
        filter_rows(back, {"layer": []}, "rows")
    assert back["mixed"].tolist() == ["a", "1", "[2]"]
    numbers = pd.DataFrame({"noise": [0.0, 0.1, 1000.0, None], "head": pd.array([0, 1, None, 10], "Int64"), "n": "0.0"})
    for column, wanted, expected in (
        ("noise", "0", [0]), ("noise", 0, [0]), ("noise", "0.10", [1]), ("noise", ["1e3", "nan"], [2, 3]),
        ("noise", "-0", [0]), ("head", "1.0", [1]), ("head", "<NA>", [2]),
    ):  # fmt: skip
        assert filter_rows(numbers, {column: wanted}, "rows").index.tolist() == expected, wanted
    for column, wanted in (("n", "0"), ("noise", "0.2"), ("noise", "x"), ("head", "1_0"), ("head", "")):
        with refuses(UsageError, column, repr(wanted)):
            filter_rows(numbers, {column: wanted}, "rows")
    tables.write_table(back, tmp_path / "rows.parquet")


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


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.csv", "model,layer\nx,m,0\ny,m,1\n", "more cells"),
        ("rows.csv", "model,layer\nm,0,\n", "more cells"),
        ("rows.csv", "model,layer\nm,True\nm,False\n", "column layer: True"),
        ("rows.csv", "model,layer\nm,0\nm,1\nm,n/a\n", "column layer: 'n/a' in row 3"),
        ("rows.json", '[{"model": "m", "layer": 1}, {"model": "m", "layer": "x"}]', "column layer: 'x' in row 2"),
        ("rows.csv", "model;layer\nm;0\n", "semicolons, expected commas"),
        ("rows.csv", "model,layer\nm,9007199254740993\nm,\n", "column layer: 9.007e\\+15"),
        ("rows.json", '[{"model": "m", "layer": 1, "loss": true}]', "column loss: True"),
        ("rows.json", '[{"model": "m", "layer": []}]', r"column layer: \[\]"),
        ("rows.json", '[{"model": "\\ud800", "layer": 1}]', "column model"),
        ("rows.json", '{"model": ["m"], "layer": [1]}', "list of objects"),
    ],
)
def test_a_value_that_would_be_read_as_another_is_refused(
    name: str, content: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        read_results(tmp_path / name, ("model", "layer"), "x")


def test_a_parquet_file_whose_description_is_damaged_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    tables.write_table(pd.DataFrame({"model": ["m"], "layer": [1]}), path)
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({"pandas": "{}"}), path)
    with pytest.raises(DataError, match="cannot be read"):
        read_results(path, ("model", "layer"), "x")


def test_a_parquet_file_with_other_bytes_is_refused(tmp_path: Path) -> None:
    """A text that is no UTF-8, and a list of columns of pandas that contradicts the file."""
    path = tmp_path / "rows.parquet"
    frame = pd.DataFrame({"model": ["demo:encoder"] * 3, "layer": [0, 1, 2], "symmetry": [0.1, 0.2, 0.3]})
    frame.to_parquet(path, index=False, compression="none")
    table = pq.read_table(path)
    path.write_bytes(path.read_bytes().replace(b"demo:", b"dem\xff:"))
    with pytest.raises(DataError, match="cannot be read"):
        read_results(path, ("model", "layer"), "attngeo score")
    stated = table.schema.metadata[b"pandas"].replace(b'"name": "symmetry"', b'"name": "simmetry"')
    pq.write_table(table.replace_schema_metadata({b"pandas": stated}), path)
    with pytest.raises(DataError, match="simmetry"):
        read_results(path, ("model", "layer"), "attngeo score")


@pytest.mark.parametrize("suffix", ["csv", "json", "jsonl", "parquet"])
def test_names_that_look_like_numbers_stay_texts(suffix: str, tmp_path: Path) -> None:
    names = ["1e3", "007", "1.10", "True"]
    for some in (names, names[:3], names[-1:]):
        frame = pd.DataFrame({"model": some, "revision": some, "layer": range(len(some)), "unknown": 0.5})
        tables.write_table(frame, tmp_path / f"rows.{suffix}")
        back = read_results(tmp_path / f"rows.{suffix}", ("model", "layer"), "x")
        assert back["model"].tolist() == back["revision"].tolist() == some
        assert back["unknown"].tolist() == [0.5] * len(some)


def test_a_missing_value_is_not_offered_as_a_choice() -> None:
    rows = pd.DataFrame({"head": pd.array([None, 0, 1], "Int64"), "note": ["", "", ""], "z": [math.nan] * 3})
    for where, end in (({"head": 9}, "expected one of: 0, 1"), ({"note": "x"}, "one of: ''"), ({"z": 1}, "are empty")):
        with pytest.raises(UsageError) as caught:
            filter_rows(rows, where, "rows")
        assert str(caught.value).endswith(end)
