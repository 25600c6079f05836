"""Tables of a few kilobytes that stand for gigabytes are refused before they are unpacked, whoever reads them."""

from __future__ import annotations

import csv
import gzip
import io
import json
import subprocess
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet
from support.messages import assert_states

from attngeo.bounds import machine
from attngeo.errors import AttnGeoError, DataError, NotEnoughMemoryError, TableError
from attngeo.estimators.shared import files
from attngeo.estimators.shared.files import read_own_table
from attngeo.pretrain import text_formats
from attngeo.pretrain.text_formats import read_rows
from attngeo.tables import parquet as rows, read
from attngeo.tables.read import read_results

MEGABYTE = 1 << 20
AVAILABLE = 20 * MEGABYTE


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 20 MB of memory that is free, so that what would fill a larger one is quickly made."""
    for module in (machine, files):
        monkeypatch.setattr(module, "available_memory", lambda: AVAILABLE)
        monkeypatch.setattr(module, "UNCHECKED", MEGABYTE)
    monkeypatch.setattr(read, "MOST_RESULTS_BYTES", AVAILABLE)


def write(path: Path, table: pa.Table, **options: Any) -> Path:
    parquet.write_table(table, path, compression="zstd", **options)
    return path


def write_repeated_text(path: Path) -> Path:
    """A text of 100 kB in a thousand rows."""
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 100, pa.int32()), ["x" * 100_000])
    schema = pa.schema({"model": pa.string()})
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for _ in range(10):
            writer.write_table(pa.table([text.cast(pa.string())], schema=schema))
    return path


def write_runs(path: Path) -> Path:
    """The same number in ten million rows."""
    column = pa.repeat(pa.scalar(1, pa.int64()), 1 << 20)
    schema = pa.schema({"layer": pa.int64()})
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for _ in range(10):
            writer.write_table(pa.table([column], schema=schema))
    return path


def write_long_page(path: Path) -> Path:
    """One text, which a page of the file stores whole."""
    return write(path, pa.table({"model": ["x" * AVAILABLE]}), use_dictionary=False, write_statistics=False)


def write_forged_page(path: Path) -> Path:
    """The same, in a file that sums up its pages as a hundred bytes."""
    content = write_long_page(path).read_bytes()
    metadata = parquet.read_metadata(io.BytesIO(content)).row_group(0)
    for number in {metadata.total_byte_size, metadata.column(0).total_uncompressed_size}:
        content = content.replace(encode(number), encode(100))
    assert parquet.read_metadata(io.BytesIO(content)).row_group(0).total_byte_size == 100
    path.write_bytes(content)
    return path


def encode(number: int) -> bytes:
    """A positive number as Thrift writes it, always in four bytes."""
    number *= 2
    return bytes([number >> 7 * place & 127 | (128 if place < 3 else 0) for place in range(4)])


def read_as_results(path: Path) -> object:
    return read_results(path, ["model"], "attngeo score")


def read_as_text(path: Path) -> object:
    with path.open("rb") as file:
        return sum(len(row["model"]) for row in read_rows(file, path.name))


BOMBS = (write_repeated_text, write_runs, write_long_page, write_forged_page)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("write_bomb", BOMBS)
@pytest.mark.parametrize("read_file", [read_own_table, read_as_results])
def test_a_table_is_counted_unfolded(
    read_file: Callable[[Path], object],
    write_bomb: Callable[[Path], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = write_bomb(tmp_path / "rows.parquet")
    assert path.stat().st_size < MEGABYTE
    monkeypatch.setattr(rows, "read_table", None)  # which would unpack it
    with pytest.raises(
        (NotEnoughMemoryError, DataError), match=r"rows\.parquet.*(GB of memory|unpacks to more)"
    ) as caught:
        read_file(path)
    assert_states(str(caught.value), str(path))


def test_a_text_that_fits_is_read(tmp_path: Path) -> None:
    """What may be as long as all different texts together is counted text by text."""
    names = [f"name{number:04d}" * 100 for number in range(100)]
    path = write(tmp_path / "rows.parquet", pa.table({"a": [names[i % 100] for i in range(5000)], "b": [1] * 5000}))
    with path.open("rb") as file:
        exact = rows.count_unfolded(file, 6_000_000)
        bound = rows.count_unfolded(file, 1 << 40)
    assert 4_000_000 < exact < 5_000_000
    assert bound > 100_000_000
    assert len(read_own_table(path)) == 5000


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip"])
def test_pages_are_found_in_files_of_every_form(version: str, compression: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    frame = pd.DataFrame({"a": [f"text {i}" for i in range(5000)], "b": range(5000), "c": [[1, 2]] * 5000})
    frame.to_parquet(path, compression=compression, data_page_version=version, data_page_size=2000, row_group_size=900)
    metadata = parquet.read_metadata(path)
    groups, columns = metadata.num_row_groups, metadata.num_columns
    chunks = [metadata.row_group(group).column(number) for group in range(groups) for number in range(columns)]
    with path.open("rb") as file:
        footer = rows._read_footer(file)
        assert (footer.rows, len(footer.groups)) == (5000, groups)
        for part, chunk in zip(chain.from_iterable(footer.groups), chunks, strict=True):
            assert (part.name, part.values, part.packed) == (
                chunk.path_in_schema, chunk.num_values, chunk.total_compressed_size
            )  # fmt: skip
            sizes, values = rows._list_pages(file, part, 10_000)
            headers = chunk.total_uncompressed_size - sum(sizes)
            assert 0 < headers < 100 * len(sizes)
            assert values >= chunk.num_values
    assert len(read_own_table(path)) == 5000


# Reads a file again and again, each time with another bit of its footer changed.
FLIP_BITS = """
import io, random, sys
random.seed(0)
from attngeo.tables.parquet import count_unfolded, read_table
content = open(sys.argv[1], "rb").read()
footer = int.from_bytes(content[-8:-4], "little")
errors = set()
for _ in range(4000):
    changed = bytearray(content)
    changed[len(content) - 8 - random.randrange(footer)] ^= 1 << random.randrange(8)
    source = io.BytesIO(changed)
    try:
        count_unfolded(source, 1 << 30, with_nested=True)
        read_table(source, with_nested=True)
    except Exception as error:
        errors.add(type(error).__name__)
print(*sorted(errors))
"""


def test_a_damaged_footer_ends_no_process(tmp_path: Path) -> None:
    """Arrow sums up the values of a column in a footer, and ends the process where Python asks for wrong sums."""
    path = write(tmp_path / "rows.parquet", pa.table({"a": ["x", "y"], "b": [1, 2], "c": [[1], [2]]}))
    run = subprocess.run([sys.executable, "-c", FLIP_BITS, path], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert "OSError" in run.stdout


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(b"\x19\xf3" + b"\xff" * 8 + b"\x7f", id="a list of bytes that is longer than any file"),
        pytest.param(b"\x19" * 100_000, id="lists in lists"),
        pytest.param(b"\x1c" * 100_000, id="records in records"),
    ],
)
def test_a_header_without_end_is_refused(header: bytes, tmp_path: Path) -> None:
    path = write(tmp_path / "rows.parquet", pa.table({"a": [bytes(200_000)]}), use_dictionary=False)
    content = path.read_bytes()
    path.write_bytes(content[:4] + header + content[4 + len(header) :])
    with pytest.raises(DataError, match=r"rows\.parquet cannot be read"):
        read_as_results(path)


def test_a_training_text_is_counted_unfolded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_repeated_text(tmp_path / "rows.parquet")
    monkeypatch.setattr(text_formats, "MOST_ROWS_BYTES", 5 * MEGABYTE)
    with pytest.raises(ValueError, match="100 rows take more than"):
        read_as_text(path)


@pytest.mark.parametrize("name", ["text.txt.gz", "text.jsonl.gz", "text.csv.gz", "text.json.gz"])
def test_a_packed_line_has_a_limit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_formats, "MOST_DOCUMENT_CHARACTERS", 1000)
    monkeypatch.setattr(text_formats, "MOST_LIST_CHARACTERS", 1000)
    start = b"[" if ".json.gz" in name else b"text\n" if "csv" in name else b""
    path = tmp_path / name
    path.write_bytes(gzip.compress(start + b'"' + b"x" * 2000))
    former = csv.field_size_limit()
    with path.open("rb") as file, pytest.raises(ValueError, match="more than 1,000 characters"):
        list(read_rows(file, name))
    csv.field_size_limit(former)  # one limit for all readers of a process


@pytest.mark.usefixtures("small")
def test_short_rows_are_as_long_as_the_first(tmp_path: Path) -> None:
    """Pandas fills them: ten thousand rows of ten thousand cells, of which one is written."""
    text = ",".join(f"c{number}" for number in range(10_000)) + "\n" + "1\n" * 10_000
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(NotEnoughMemoryError, match=r"rows\.csv"):
        read_own_table(path)
    with pytest.raises(AttnGeoError, match=r"rows\.csv"):
        read_as_results(path)


def test_objects_of_different_names_make_columns_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "MOST_TABLE_VALUES", 1_000_000)
    objects = [{f"c{number}": 1} for number in range(2000)]
    for name, text in (("a.json", json.dumps(objects)), ("a.jsonl", "\n".join(map(json.dumps, objects)))):
        (tmp_path / name).write_text(text)
        with pytest.raises(DataError, match="4,000,000 values"):
            read_as_results(tmp_path / name)


NESTED = {
    "lists": pa.array([[1.0, 2.0]] * 3),
    "records": pa.array([{"a": 1}] * 3),
    "maps": pa.array([[("a", 1)]] * 3, pa.map_(pa.string(), pa.int64())),
}


@pytest.mark.parametrize("kind", NESTED)
def test_a_nested_column_is_left_out_with_a_note(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "rows.parquet", pa.table({"e": NESTED[kind], "y": [0, 1, 0]}))
    assert read_own_table(path).to_dict("list") == {"y": [0, 1, 0]}
    assert_states(caplog.text.strip(), str(path), "'e'", kind, "left out")
    with pytest.raises(TableError, match=f"rows.parquet: column 'e': holds {kind}"):
        read_own_table(path, named=["e"])
    with pytest.raises(DataError, match=f"'e' holds {kind}"):
        read_as_results(path)


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_a_date_that_no_calendar_has(zone: str | None, tmp_path: Path) -> None:
    moments = pa.array([0, 2**62], pa.int64()).cast(pa.timestamp("us", tz=zone))
    path = write(tmp_path / "rows.parquet", pa.table({"t": moments, "model": ["a", "b"]}))
    with pytest.raises(TableError, match=r"row 2: column 't': has the year 148108"):
        read_own_table(path)


CHANGES = {
    "a type that is none": ('"numpy_type": "int64"', '"numpy_type": "Int1000"'),
    "another type": ('"numpy_type": "str"', '"numpy_type": "datetime64[ns]"'),
    "an index that is missing": ('"index_columns": [{', '"index_columns": ["zz",{'),
    "a name twice": ('"name": "e"', '"name": "y"'),
    "another name": ('"name": "e"', '"name": "q"'),
    "no objects": ('"columns": [', '"columns": [7,'),
    "a list": None,
}


@pytest.mark.parametrize("change", CHANGES)
def test_notes_of_pandas_that_contradict_a_column(change: str, tmp_path: Path) -> None:
    table = pa.Table.from_pandas(pd.DataFrame({"e": ["a", "b"], "y": [0, 1]}))
    notes = table.schema.metadata[b"pandas"].decode()
    replaced = CHANGES[change]
    changed = "[]" if replaced is None else notes.replace(*replaced)
    assert changed != notes
    path = write(tmp_path / "rows.parquet", table.replace_schema_metadata({"pandas": changed}))
    with pytest.raises(TableError) as caught:
        read_own_table(path)
    assert_states(str(caught.value), str(path), "cannot be read")
    with pytest.raises(DataError, match="cannot be read"):
        read_results(path, ["e"], "attngeo score")
