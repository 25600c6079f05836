"""Mutated results files: rows that are accepted have the values that csv, json or pyarrow read from the same bytes."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from fuzz.outcome import Wrong, check_equal
from support.mutate import mutate_bytes, mutate_json, mutate_value

import attngeo
from attngeo.tables.read import read_results
from attngeo.tables.write import to_csv, to_json, to_jsonl

WHOLE = ("layer", "head", "key_head", "d_model", "head_dim", "parameters")
REAL = ("symmetry", "directionality", "frobenius_norm")
TEXTS = ("model", "revision", "model_type", "stack", "note")
ROWS = 6
CELLS = (
    "", " ", "0", "-1", "7 ", "007", "1.10", "1e3", "1e400", "0x10", "1_000", "1,5", "0.1", "9007199254740993",
    "0.30000000000000004", "2.2250738585072011e-308", "123456789012345678901234567890", "True", "false", "nan", "NA",
    "null", "None", "inf", "-Infinity", 'a"b', "a\nb", "é",
)  # fmt: skip


def write_results(rng: Random, folder: Path) -> None:
    """The rows of a results file, in any of its formats."""
    suffix = rng.choice(list(save_results()))
    (folder / f"scores{suffix}").write_bytes(mutate_results(rng, suffix))


def read_frame(folder: Path) -> pd.DataFrame:
    (path,) = folder.iterdir()
    return read_results(path, ("model", "layer"), "attngeo score", numbers=("symmetry", "directionality"))


def check_frame(folder: Path, frame: pd.DataFrame) -> None:
    (path,) = folder.iterdir()
    rows = read_rows(path)
    if len(rows) != len(frame):
        raise Wrong(f"{len(frame)} rows instead of {len(rows)}")
    columns = {str(name): frame[name].astype(object).where(frame[name].notna(), None).tolist() for name in frame}
    for name in dict.fromkeys(name for row in rows for name in row if name):
        if name not in columns:
            raise Wrong(f"column {name!r} is missing")
        for number, row in enumerate(rows):
            check_cell(f"row {number}, {name}", name, columns[name][number], row.get(name))


@cache
def save_results() -> dict[str, bytes]:
    """The same results in each format; parquet without compression, so that a changed byte is a changed value."""
    frame = attngeo.score("demo:encoder", per_head=True)[:ROWS]
    parquet = io.BytesIO()
    frame.to_parquet(parquet, index=False, compression="none")
    return {
        ".csv": to_csv(frame).encode(), ".json": to_json(frame).encode(), ".jsonl": to_jsonl(frame).encode(),
        ".parquet": parquet.getvalue(),
    }  # fmt: skip


def mutate_results(rng: Random, suffix: str) -> bytes:
    """The bytes of a results file with changed bytes, or with changed cells."""
    data = save_results()[suffix]
    if rng.random() < 0.3:
        return mutate_bytes(rng, data)
    match suffix:
        case ".csv":
            return mutate_cells(rng, data.decode())
        case ".json":
            return mutate_json(rng, json.loads(data))
    rows = mutate_value(rng, json.loads(save_results()[".json"]))
    if suffix == ".jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    changed = io.BytesIO()
    try:
        pq.write_table(pa.Table.from_pylist(rows), changed)
    except (pa.ArrowException, TypeError, ValueError, AttributeError, OverflowError):  # parquet has no such table
        return mutate_bytes(rng, data)
    return changed.getvalue()


def mutate_cells(rng: Random, text: str) -> bytes:
    """CSV with one to three cells replaced, inserted, removed or appended, in one row or in all of them."""
    rows = list(csv.reader(io.StringIO(text)))
    for _ in range(rng.choice((1, 1, 2, 3))):
        changed_rows = rows[1:] if rng.random() < 0.3 else [rng.choice(rows)]
        column, cell = rng.randrange(len(rows[0]) - 3), rng.choice((*CELLS, rows[0][0]))
        match rng.choice(("replace", "replace", "replace", "insert", "remove", "append")):
            case "replace":
                start, stop, cells = column, column + 1, [cell]
            case "insert":
                start, stop, cells = column, column, [cell]
            case "remove":
                start, stop, cells = column, column + 1, []
            case _:
                start, stop, cells = len(rows[0]), len(rows[0]), [cell]
        for row in changed_rows:
            row[start:stop] = cells
    changed = io.StringIO()
    csv.writer(changed, lineterminator=rng.choice(("\n", "\r\n"))).writerows(rows)
    return changed.getvalue().encode()


def read_rows(path: Path) -> Sequence[Mapping[str, Any]]:
    """The rows of a results file as a library other than pandas reads them."""
    match path.suffix:
        case ".parquet":
            table: list[dict[str, Any]] = pq.read_table(io.BytesIO(path.read_bytes())).to_pylist()
            return table
        case ".csv":
            return read_csv_rows(path.read_bytes().decode("utf-8-sig"))
        case ".json":
            rows = json.loads(path.read_text("utf-8-sig"))
        case _:
            rows = [json.loads(line) for line in path.read_text("utf-8-sig").split("\n") if line.strip()]
    if not (isinstance(rows, list) and all(isinstance(row, dict) for row in rows)):
        raise Wrong("not a list of objects")
    return rows


def read_csv_rows(text: str) -> list[dict[str, Any]]:
    """The rows of CSV without those that are blank; of two columns with one name, the first."""
    lines = csv.reader(io.StringIO(text, newline=""))
    header, *rows = [cells for cells in lines if "".join(cells[:2]).strip() or cells[1:]]
    longer = [len(cells) for cells in rows if len(cells) > len(header)]
    if longer:
        raise Wrong(f"a row has {longer[0]} cells under {len(header)} names")
    return [dict(reversed([*zip(header, cells, strict=False)])) for cells in rows]


def check_cell(where: str, name: str, found: Any, given: Any) -> None:
    """Raise Wrong unless a cell has the value that the file gives it."""
    if given in (None, "") or (isinstance(given, float) and math.isnan(given)):
        if found not in (None, ""):
            raise Wrong(f"{where}: {found!r:.80} instead of nothing")
    elif name in WHOLE:
        check_equal(where, found, int(number_of(where, given)))
        check_equal(where, Decimal(found), number_of(where, given))
    elif name in REAL:
        number_of(where, given)
        check_equal(where, found, float(given))
    elif name in TEXTS:
        check_text(where, found, given)
    elif isinstance(found, str | bool):  # of an unknown column; pandas takes true and false of a CSV file as values
        if isinstance(given, str | bool):
            check_equal(where, str(found).lower(), str(given).lower())
    else:
        check_equal(where, float(found), float(given))


def check_text(where: str, found: Any, given: Any) -> None:
    """Raise Wrong unless a cell is the text that the file gives it. One that is no text there has any form here."""
    if isinstance(given, str):
        check_equal(where, found, given)
    check_equal(where, type(found), str)


def number_of(where: str, given: Any) -> Decimal:
    """The number that a cell of a file is, exactly; a text may be one, a truth value is none."""
    try:
        if isinstance(given, int | float | str) and not isinstance(given, bool):
            return Decimal(given)
    except InvalidOperation:
        pass
    raise Wrong(f"{where}: {given!r:.80} was taken as a number")
