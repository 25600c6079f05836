"""Kept results that somebody forged or damaged count as missing, whatever their checksum says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from attngeo.errors import NotEnoughMemoryError, UnexpectedError, explain_exhaustion
from attngeo.questions.frames import KEPT_FORM
from attngeo.session import Session
from attngeo.studies import results
from attngeo.studies.results import ABOUT, CHECKSUM, ResultRecord, locate_record
from attngeo.studies.run import StudyTask, run_task

ROWS = [{"model": "m", "layer": 0, "symmetry": 0.5, "head": None}, {"model": "m", "layer": 1, "symmetry": 0.25}]
SAID = {"made": "2026-01-01", "model": "m", "device": "cpu", "skipped": {}}


@pytest.fixture
def record(cache: Path) -> ResultRecord:  # noqa: ARG001 - the folder of kept results
    found = locate_record("scores", {"model": "m"}, form=KEPT_FORM)
    assert found is not None
    found.keep(ROWS, SAID)
    assert found.load() is not None
    return found


def forge(path: Path, table: pa.Table, said: Any) -> None:
    """Write a file with a checksum that fits."""
    text = json.dumps(said)
    checksum = results._hash(table.to_pylist(), text, path)
    parquet.write_table(table.replace_schema_metadata({ABOUT: text, CHECKSUM: checksum}), path)


def with_column(name: str, values: Any) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        return table.drop_columns([name]).append_column(name, pa.array(values))

    return change


CHANGES: dict[str, Callable[[pa.Table], pa.Table]] = {
    "a score is a text": with_column("symmetry", ["a", "b"]),
    "a layer is a text": with_column("layer", ["a", "b"]),
    "a layer is a fraction": with_column("layer", [0.5, 1.0]),
    "a model is a number": with_column("model", [1, 2]),
    "a score is a list": with_column("symmetry", [[1.0], [2.0]]),
    "a score is a record": with_column("symmetry", [{"a": 1}, {"a": 2}]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_columns_of_other_types_are_damage(change: str, record: ResultRecord) -> None:
    table = parquet.read_table(record.file)
    forge(record.file, table, SAID)
    assert record.load() is not None  # the forger's checksum fits
    forge(record.file, CHANGES[change](table), SAID)
    assert record.load() is None


@pytest.mark.parametrize(
    "said",
    [
        None, [], "text", 1, {}, SAID | {"made": 1}, SAID | {"model": None}, SAID | {"device": ["cpu"]},
        SAID | {"skipped": [1]}, SAID | {"layers": "all"}, SAID | {"version": 3},
    ],
)  # fmt: skip
def test_what_is_said_has_its_types(said: Any, record: ResultRecord) -> None:
    forge(record.file, parquet.read_table(record.file), said)
    assert record.load() is None


def test_no_file_stands_in_the_place_of_another(record: ResultRecord) -> None:
    other = locate_record("scores", {"model": "other"}, form=KEPT_FORM)
    assert other is not None
    shutil.copy(record.file, other.file)
    assert other.load() is None
    record.file.unlink()
    record.keep_part(0, ROWS, SAID)
    assert set(record.load_parts(3)) == {0}
    shutil.copy(record.folder / "00000.parquet", record.folder / "00001.parquet")
    shutil.copytree(record.folder, other.folder)
    assert set(record.load_parts(3)) == {0}
    assert other.load_parts(3) == {}


def test_a_result_is_counted_unfolded(record: ResultRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"symmetry": pa.repeat(pa.scalar(0.5), 100_000)})
    forge(record.file, table, SAID)
    assert record.file.stat().st_size < 10_000
    monkeypatch.setattr(results, "MOST_UNFOLDED_BYTES", 500_000)
    assert record.load() is None
    monkeypatch.undo()


def test_lists_are_counted_unfolded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    record = locate_record("compositions", {"model": "m"}, form=KEPT_FORM._replace(lists=("z",)))
    assert record is not None
    record.keep([{"z": [0.5] * 100_000}], SAID)
    assert record.load() is not None
    monkeypatch.setattr(results, "MOST_UNFOLDED_BYTES", 500_000)
    assert record.load() is None


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_a_lack_of_threads_or_memory_is_no_bug(error: Exception) -> None:
    def fail(*_: Any) -> None:
        raise error

    outcome = run_task(fail, StudyTask(0, "first", None), Session())
    assert type(outcome.failure) is NotEnoughMemoryError
    assert str(outcome.failure).startswith("first: ")
    assert "ulimit" in str(outcome.failure)
    assert explain_exhaustion(RuntimeError("another")) is None
    assert type(UnexpectedError.describe("first", error)) is UnexpectedError
