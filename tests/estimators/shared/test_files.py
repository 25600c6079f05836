"""A user's own file: which columns it has, how it is refused, and how its cells leave as they came."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet
from support.messages import assert_states, refuses

from attngeo.errors import TableError, UnknownColumnError
from attngeo.estimators import AttentionImputer, ExponentialFamilyAttention
from attngeo.estimators.efa.files import fit_own_sequences, predict_file, sample_file
from attngeo.estimators.efa.options import EfaDrawOptions, EfaFitOptions
from attngeo.estimators.shared.files import find_few_texts, list_missing, read_own_table, settle_table, write_like
from attngeo.estimators.shared.paths import require_column
from attngeo.estimators.tabular.files import impute_own_table
from attngeo.estimators.tabular.options import RowsOptions
from attngeo.progress import Progress
from attngeo.tables.write import to_json, write_table

# Columns of texts that a reader of numbers, dates or missing cells would change, of four cells each.
PASSED = {
    "code": ["007", "02139", "7", ""],
    "country": ["NA", "NaN", "null", "?"],
    "price": ["1.10", "1.1", "1e3", "-0"],
    "number": ["9007199254740993", "", "2", "99999999999999999999999"],
    "share": ["0.30000000000000004", "2", "", ".5"],
    "truth": ["True", "true", "FALSE", ""],
    "text": ['say "no"', "a,b", "two\nlines", "no-break\u00a0space \u200b"],
    "date": ["2020-01-31", "31/01/2020", "01:00", "1:00"],
    "": ["0", "1", "2\n", "3"],
    "log_prob": ["a", "b", "c", "d"],
    "probability": ["0.10", "0.2", "", "x"],
    "p(size)": ["1", "2", "3", "4"],
}
ROWS = {"sequence": ["01", "01", "1", "1"], "item": ["tea", "jam", "tea", ""], "size": ["1", "", "2.0", "1"],
        "mass": ["0.50", "", "1", "3e0"]}  # fmt: skip


def write_rows(path: Path) -> list[list[str]]:
    """Write the rows, and return their cells by row, the names of columns first."""
    columns = ROWS | PASSED
    rows = [list(columns), *map(list, zip(*columns.values(), strict=True))]
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    return rows


def read_rows(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return [*csv.reader(file)]


@pytest.fixture(scope="module")
def imputer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("imputer") / "m"
    table = pd.DataFrame({"size": [1, 2] * 10, "mass": [0.5, 1, 3, 4] * 5})
    AttentionImputer(max_epochs=1, random_state=0, device="cpu").fit(table).save(folder)
    return folder


@pytest.fixture(scope="module")
def baskets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("baskets") / "m"
    table = pd.DataFrame({"sequence": np.arange(20) // 2, "item": ["tea", "jam"] * 10, "price": 1.5})
    model = ExponentialFamilyAttention(
        width=4, max_epochs=1, covariates="price:number", repeats=True, device="cpu", random_state=0
    )
    model.fit(table).save(folder)
    return folder


def test_imputed_rows_have_all_other_cells_as_they_were(imputer: Path, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.csv")
    write_table(impute_own_table(imputer, str(tmp_path / "rows.csv"), RowsOptions()), tmp_path / "filled.csv")
    filled = read_rows(tmp_path / "filled.csv")
    assert filled[0] == [*rows[0], "predicted_p(size)", "p(mass)"]
    size, mass = rows[0].index("size"), rows[0].index("mass")
    assert filled[2][size] in ("1", "2.0")  # as the file writes 1 and 2
    assert float(filled[2][mass]) in (0.5, 1, 3, 4)
    rows[2][size], rows[2][mass] = filled[2][size], filled[2][mass]
    assert [row[: len(rows[0])] for row in filled] == rows


def test_predicted_rows_have_all_cells_as_they_were(baskets: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "rows.csv")
    pd.DataFrame(ROWS | PASSED).assign(sequence="1", price=["1.50", "2", "1", "3"]).to_csv(path, index=False)
    rows = read_rows(tmp_path / "rows.csv")
    write_table(predict_file(baskets, path), tmp_path / "predicted.csv")
    found = read_rows(tmp_path / "predicted.csv")
    assert found[0] == [*rows[0], "predicted_log_prob", "predicted_item", "predicted_probability"]
    assert [row[: len(rows[0])] for row in found] == rows
    assert float(found[1][-3]) < 0
    write_table(sample_file(baskets, EfaDrawOptions(data=path, seed=1)), tmp_path / "drawn.csv")
    drawn = read_rows(tmp_path / "drawn.csv")
    item = rows[0].index("item")
    assert {row[item] for row in drawn[1:]} <= {"tea", "jam"}
    assert [row[:item] + row[item + 1 :] for row in drawn] == [row[:item] + row[item + 1 :] for row in rows]


def test_a_text_that_a_model_knows_is_no_missing_cell(tmp_path: Path) -> None:
    """Namibia."""
    rows = pd.DataFrame({"sequence": np.arange(20) // 2, "item": ["NA", "DE"] * 10})
    model = ExponentialFamilyAttention(width=4, max_epochs=1, device="cpu", random_state=0).fit(rows)
    model.save(tmp_path / "m")
    rows.to_csv(tmp_path / "rows.csv", index=False)
    found = predict_file(tmp_path / "m", str(tmp_path / "rows.csv"))
    np.testing.assert_allclose(found["log_prob"].astype(float), model.log_prob(rows), rtol=1e-5)
    assert found["item"].tolist() == rows["item"].tolist()


@pytest.mark.parametrize("part", ["values", "both"])
def test_missing_texts_of_a_fit_to_sequences_are_those_of_its_model(part: str, tmp_path: Path) -> None:
    table = pd.DataFrame({"sequence": np.arange(40) // 4, "item": ["tea", "jam"] * 20})
    stars = table.assign(stars=["1", "2", "-", "3"] * 10, minutes=["k. A.", "2.5", "4", "3"] * 10)
    path, empty = str(tmp_path / "rows.csv"), str(tmp_path / "empty.csv")
    stars.to_csv(path, index=False)
    stars.replace(["-", "k. A."], "").to_csv(empty, index=False)
    chosen: dict[str, Any] = {
        "value": ["stars:gaussian", "minutes:gaussian"],
        "part": part,
        "width": 4,
        "max_epochs": 1,
    }
    options = EfaFitOptions(**chosen, device="cpu", validation_fraction=0)
    folder = tmp_path / "m"
    fit_own_sequences(path, options.replace(missing=["-", "k. A."], save=str(folder)))
    found = predict_file(folder, path).drop(columns=["stars", "minutes"])
    pd.testing.assert_frame_equal(found, predict_file(folder, empty).drop(columns=["stars", "minutes"]))
    drawn = sample_file(folder, EfaDrawOptions(data=path, seed=1))
    assert len(drawn) == len(table)
    fit_own_sequences(empty, options.replace(save=str(tmp_path / "plain")))
    with refuses(TableError, path, "row 3", "'stars'", "'-'", "--missing -"):
        predict_file(tmp_path / "plain", path)
    for config in tmp_path.glob("plain/**/config.json"):
        assert "missing" not in json.loads(config.read_text())  # older versions read it


def test_a_few_texts_among_the_numbers_of_sequences_are_noted(tmp_path: Path) -> None:
    rows = pd.DataFrame({"sequence": np.arange(20) // 2, "item": [7, 8] * 10, "age": [*range(19), "n/a"]})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    options = EfaFitOptions(width=4, max_epochs=1, covariates="age", device="cpu", validation_fraction=0)
    reports: list[Progress] = []
    fit_own_sequences(str(tmp_path / "rows.csv"), options, reports.append)
    (note,) = (report.what for report in reports if report.phase == "note")
    assert_states(note, tmp_path / "rows.csv", "'age'", "'n/a' in row 20", "--missing")


@pytest.mark.parametrize(
    ("named", "default", "expected"),
    [
        (None, None, ["", "NA", "NaN", "nan", "?"]),
        ((), None, ["", "NA", "NaN", "nan", "?"]),
        (["-"], None, ["", "NA", "NaN", "nan", "?", "-"]),
        (["-", ""], None, ["", "-"]),
        ([""], ["", "999"], [""]),
        (["-"], ["", "999"], ["", "999", "-"]),
        (["", "NA", "-"], ["", "999"], ["", "NA", "-"]),
    ],
)
def test_texts_of_missing_cells_are_beside_the_default(
    named: list[str] | None, default: list[str] | None, expected: list[str]
) -> None:
    texts = list_missing(named, default)
    assert texts == expected
    assert list_missing(texts, ["other"]) == texts


@pytest.mark.parametrize(("texts", "rows", "are_few"), [(1, 10, True), (1, 9, False), (4, 40, True), (5, 40, False)])
def test_texts_are_few_up_to_a_tenth_of_the_rows(texts: int, rows: int, are_few: bool) -> None:
    frame = pd.DataFrame({"age": [*["n/a"] * texts, *map(str, range(rows - texts))]})
    assert [name for name, _ in find_few_texts(frame)] == ["age"] * are_few


@pytest.mark.parametrize(
    ("texts", "column", "values", "expected"),
    [
        (["1.50", "2.50"], [1.5, 2.5], [2.0, 1.5, 3.25], ["2.00", "1.50", "3.25"]),
        (["1.5", "2.25"], [1.5, 2.25], [2.0], ["2.0"]),
        (["1,50", "2,25"], [1.5, 2.25], [2.0, 2.25], ["2,00", "2,25"]),
        (["TRUE", "FALSE"], ["TRUE", "FALSE"], [False, True], ["FALSE", "TRUE"]),
        (["yes", "no"], ["yes", "no"], [False], ["False"]),
        (["01", "1"], ["01", "1"], ["1", "01"], ["1", "01"]),
    ],
    ids=["decimals", "of several lengths", "commas", "booleans", "texts", "codes"],
)
def test_new_values_are_written_as_those_of_the_column(
    texts: list[str], column: list[Any], values: list[Any], expected: list[str]
) -> None:
    assert write_like(values, pd.Series(column), pd.Series(texts)) == expected


@pytest.mark.parametrize(
    ("numbers", "is_noted"),
    [(["7,5", "8,25", "1.200,5"], True), (["7.5", "8.25"], True), (["1,200", "8,500"], False), (["07,5"], True)],
)
def test_a_few_texts_among_numbers_with_decimal_commas_are_noted(numbers: list[str], is_noted: bool) -> None:
    """Not among numbers of which none tells whether its comma is a decimal mark."""
    frame = pd.DataFrame({"price": [*numbers * 10, "k.A."]})
    notes = dict(find_few_texts(frame))
    assert {*notes} == ({"price"} if is_noted else set())
    if is_noted:
        assert_states(notes["price"], 1, "'k.A.'", f"row {len(frame)}")


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "2", ""], [1, 2, None]), (["1.5", "2"], [1.5, 2]), (["007", "1"], ["007", "1"]),
        (["1.10", "2"], ["1.10", "2"]), (["True", ""], [True, None]), (["True", "1"], ["True", "1"]),
        (["9007199254740993", ""], [2**53 + 1, None]), (["1.5", "9007199254740993"], ["1.5", "9007199254740993"]),
        (["inf", "1"], ["inf", "1"]), (["9" * 5000], ["9" * 5000]), (["", ""], [None, None]),
        (["NA", "1"], ["NA", "1"]),
    ],
)  # fmt: skip
def test_cells_are_numbers_if_all_are_written_as_numbers_are(
    cells: list[str], expected: list[Any], tmp_path: Path
) -> None:
    table = settle_table(pd.DataFrame({"a": pd.Series(cells, dtype="str"), "b": "x"}))
    assert [row["a"] for row in json.loads(to_json(table))] == expected
    write_table(table, tmp_path / "t.parquet")
    assert len(parquet.read_table(tmp_path / "t.parquet")) == len(cells)


def test_one_cell_does_not_change_how_the_others_are_read(tmp_path: Path) -> None:
    """Neither a text far behind, where pandas reads in pieces, nor a missing cell among large numbers."""
    rows = 70_000
    table = pd.DataFrame({f"c{at}": np.arange(rows) % 3 for at in range(8)}).astype(object)
    table.loc[rows - 1, "c7"] = "n/a"
    table.to_csv(tmp_path / "long.csv", index=False)
    frame = read_own_table(tmp_path / "long.csv")
    assert set(frame["c7"]) == {"0", "1", "2", "n/a"}
    assert frame["c6"].dtype == np.int64
    large = [2**53 + 1, None, 2**62 + 1]
    (tmp_path / "large.csv").write_text("a,b\n9007199254740993,x\n,y\n4611686018427387905,z\n")
    parquet.write_table(pa.table({"a": large, "b": ["x", "y", "z"]}), tmp_path / "large.parquet")
    for name in ("large.csv", "large.parquet"):
        assert (
            read_own_table(tmp_path / name)["a"].astype(object).where(lambda cells: cells.notna(), None).tolist()
            == large
        )


def test_columns_without_a_name_are_named_by_their_places(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a,,y\n1,2,n\n")
    with refuses(UnknownColumnError, "expected one of: a, Unnamed: 1, y"):
        require_column([path], "zz")
    require_column([path], "Unnamed: 1")
    path.write_text(",,y\n1,2,n\n")
    with refuses(TableError, "columns 1, 2 have no names"):
        read_own_table(path)
