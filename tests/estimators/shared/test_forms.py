"""Files of spreadsheets and of other countries: each is read as pandas reads it with the options set by hand."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.messages import assert_states, refuses

from attngeo.bounds.encodings import CHUNK_BYTES, CP1252, UTF8, find_encoding
from attngeo.errors import TableError, UsageError
from attngeo.estimators.efa.files import fit_own_sequences, predict_file, sample_file
from attngeo.estimators.efa.options import EfaDrawOptions, EfaFitOptions, EfaPredictOptions
from attngeo.estimators.shared.files import read_own_table, read_written
from attngeo.estimators.shared.forms import FormOptions
from attngeo.estimators.tabular.files import fit_own_table, impute_own_table, predict_own_table
from attngeo.estimators.tabular.options import FitOptions, PredictOptions, RowsOptions
from attngeo.progress import Progress
from attngeo.tables.write import write_table

GERMAN = "plz;Größe;anteil\n01067;16.022,29;0,5\n04109;1.234;1\n"
COMMA = {"sep": ";", "decimal": ",", "thousands": "."}
# A file, its encoding, what pandas needs for it, and words of the notes.
FILES: dict[str, tuple[str, str, dict[str, Any], list[str]]] = {
    "German": (GERMAN, "utf-8", COMMA | {"dtype": {"plz": str}}, ["semicolons", "16022.29"]),
    "German with a mark": (GERMAN, "utf-8-sig", COMMA | {"dtype": {"plz": str}}, ["semicolons"]),
    "German of Windows": (GERMAN, "cp1252", COMMA | {"dtype": {"plz": str}}, ["cp1252", "--encoding"]),
    "first line of Excel": (f"sep=;\n{GERMAN}", "cp1252", COMMA | {"dtype": {"plz": str}, "skiprows": 1}, []),
    "Unicode text": ("a\tb\nä\t1,5\nö\t2\n", "utf-16", {"sep": "\t", "decimal": ","}, ["tabs", "utf-16"]),
    "UTF-16 without a mark": ("a\tb\nä\t1.5\nö\t2\n", "utf-16-le", {"sep": "\t"}, ["utf-16-le"]),
    "tabs": ("a\tb\nx\t1.5\ny\t2,5\n", "utf-8", {"sep": "\t"}, ["tabs"]),
    "vertical bars": ("a|b\nx|1\n", "utf-8", {"sep": "|"}, ["vertical bars"]),
    "French": (
        "a;b\nx;1\u00a0234,5\ny;2\n",
        "utf-8",
        {"sep": ";", "decimal": ",", "thousands": "\u00a0", "engine": "python"},
        ["1234.5"],
    ),
    "thin spaces": (
        "a;b\nx;1\u202f234,5\ny;2\n",
        "utf-8",
        {"sep": ";", "decimal": ",", "thousands": "\u202f", "engine": "python"},
        [],
    ),
    "Swiss": ("a;b\nx;1'234.50\ny;2\n", "utf-8", {"sep": ";", "thousands": "'"}, ["1234.5"]),
    "American": ('a,b\nx,"16,022.29"\ny,"1,000"\n', "utf-8", {"thousands": ","}, ["16022.29"]),
    "another column tells": (
        'a,b\n"1,000",0.5\n"2,000",1\n',
        "utf-8",
        {"thousands": ","},
        ["is read as 1000", "--decimal"],
    ),
    "another column tells of commas": ('a,b\n"1,000","0,5"\n"2,000",1\n', "utf-8", {"decimal": ","}, ["is read as 1 "]),
    "the separator tells": ("a;b\n16.022;x\n5.123;y\n", "utf-8", COMMA, ["is read as 16022"]),
    "semicolons and points": ("a;b\n16.022;0.5\n5.123;7.4\n", "utf-8", {"sep": ";"}, []),
    "nothing tells": ('a,b\n"1,000",x\n"2,000",y\n', "utf-8", {}, ["1000 or 1", "read as text", "--decimal"]),
    "nothing tells of points": ("a,b\n16.022,x\n5.123,y\n", "utf-8", {}, ["16.022 or 16022", "--decimal"]),
    "both marks": ('a,b,c\n0.5,"1,000",x;y\n', "utf-8", {"thousands": ","}, []),
    "points": ("a,b,c\n0.5,16.022,x;y\n1,2.123,z\n", "utf-8", {}, []),
    "a column of both": ('a,b\n4.726,x\n"4,72",y\n5.1,z\n', "utf-8", {}, ["'4,72' in row 2", "'5.1' in row 3"]),
    "dates": ("a;b\n31.12.2023;1,5\n01.02.2024;2\n", "utf-8", {"sep": ";", "decimal": ","}, []),
    "exponents and signs": ("a;b\n1,5E+03;x\n-2,5;y\n;z\n", "utf-8", {"sep": ";", "decimal": ","}, []),
    "addresses": ("a;b\n192.168.1.1;1.2.3\n10.0.0.1;1.100.200\n", "utf-8", {"sep": ";"}, []),
    "lists": ('a,b\n"1,2",x\n"1,2,3",y\n', "utf-8", {}, []),
    "large numbers": ("a;b\n9.007.199.254.740.993;x\n1;y\n", "utf-8", COMMA, []),
}


def read(path: Path, **options: Any) -> tuple[pd.DataFrame, str]:
    notes: list[str] = []
    frame = read_own_table(path, options=FormOptions(**options), progress=lambda report: notes.append(report.what))
    return frame, " | ".join(notes)


@pytest.mark.parametrize("kind", FILES)
def test_each_file_is_read_as_by_hand(kind: str, tmp_path: Path) -> None:
    text, encoding, by_hand, words = FILES[kind]
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode(encoding))
    frame, notes = read(path)
    expected = pd.read_csv(path, encoding=encoding, **by_hand)
    pd.testing.assert_frame_equal(frame, expected, check_exact=True)
    assert_states(notes or "none", *words)
    if not by_hand:
        assert bool(notes) == bool(words)
    written = read_written(path)
    assert written is not None
    assert written.shape == expected.shape


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_percent_is_the_number_before_the_sign(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"t{suffix}"
    path.write_text("a;b;c\n12%;0,5 %;5%\n5 %;1%;6\n")
    frame, notes = read(path)
    assert frame.to_dict("list") == {"a": [12, 5], "b": [0.5, 1], "c": ["5%", "6"]}
    assert_states(notes, "'12%' is read as 12", "percent")


def test_options_say_what_the_file_does_not_show(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("ж,n,m\nю,16.022,0.5\n".encode("cp1251"))
    frame, notes = read(path, encoding="cp1251", decimal=",")
    assert frame.to_dict("list") == {"ж": ["ю"], "n": [16022], "m": ["0.5"]}
    assert_states(notes, "'0.5' is not a number with decimal mark ,")
    path.write_text("a,b;c\n1,2;3\n")
    assert read(path, separator=";")[0].to_dict("list") == {"a,b": [1.2], "c": [3]}
    assert read(path, separator="tab")[0].columns.tolist() == ["a,b;c"]
    for wrong in ({"separator": ";;"}, {"encoding": "utf-99"}, {"decimal": ";"}):
        with refuses(UsageError, *wrong):
            FormOptions(**wrong)


def test_a_file_of_two_encodings_or_of_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("a,b\né,1\n".encode() + b"\xe9,2\n")
    with refuses(TableError, path, "line 3", "0xe9", "--encoding"):
        read(path)
    path.write_bytes(b"a,b\n\x81,1\n")
    with refuses(TableError, path, "line 2", "0x81"):
        read(path)
    path.write_bytes(b"\0a\0,b\n\0\0")
    with refuses(TableError, path, "not text"):
        read(path)


def write_lone_quotes(path: Path, separator: str) -> None:
    rows = [f"{'ab'[at % 2]}{separator}n{at % 3}{separator}{'pq'[at % 2]}\n" for at in range(60)]
    rows[20] = f'a{separator}"20 inch{separator}p\n'
    rows[40] = f'b{separator}"open{separator}q\n'
    path.write_text(f"x{separator}note{separator}y\n" + "".join(rows))


@pytest.mark.parametrize("separator", [",", ";"])
def test_rows_between_two_lone_quotation_marks_are_noted(separator: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    write_lone_quotes(path, separator)
    frame, notes = read(path)
    assert len(frame) == 40
    assert_states(notes, "'note'", "row 21", "21 lines", "--no-quotes")
    frame, notes = read(path, quotes=False)
    expected = pd.read_csv(path, sep=separator, quoting=csv.QUOTE_NONE)
    pd.testing.assert_frame_equal(frame, expected)
    assert "lines" not in notes


@pytest.mark.parametrize(
    ("text", "lines"),
    [('x,note,y\n1,"foo,u\n2,"bar,v\n3,c,w\n', 2), ('x,y,note\n1,a,"foo\n2,b,bar\nbaz"\n3,c,d\n', 3)],
    ids=["the ends of two rows", "a row inside"],
)
def test_one_sign_of_rows_in_a_cell_is_enough_for_a_note(text: str, lines: int, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    frame, notes = read(tmp_path / "t.csv")
    assert len(frame) == 2
    assert_states(notes, "'note'", "row 1", f"{lines} lines", "--no-quotes")


def test_texts_of_several_lines_are_not_noted(tmp_path: Path) -> None:
    pd.DataFrame({"x": [1, 2], "note": ["one\ntwo", "a, b\nc"], "y": ["u", "v"]}).to_csv(
        tmp_path / "t.csv", index=False
    )
    assert read(tmp_path / "t.csv")[1] == ""
    (tmp_path / "t.csv").write_text('a,b\n"1,2\n3,4\n')
    with refuses(TableError, tmp_path / "t.csv", "--no-quotes"):
        read(tmp_path / "t.csv")


def make_rows() -> pd.DataFrame:
    draw = np.random.default_rng(0)
    income = draw.integers(100, 2_000_000, 60) / 100
    return pd.DataFrame(
        {"plz": draw.choice(["01067", "04109"], 60), "income": income, "y": np.where(income > 1e4, "ä", "b")}
    )


def write_german(rows: pd.DataFrame, path: Path) -> None:
    texts = rows["income"].map(
        lambda number: "" if number != number else f"{number:,.2f}".translate(str.maketrans(",.", ".,"))
    )
    rows.assign(income=texts).to_csv(path, sep=";", index=False, encoding="cp1252")


def test_a_model_of_one_form_predicts_and_fills_files_of_the_other(tmp_path: Path) -> None:
    rows = make_rows()
    rows.to_csv(tmp_path / "points.csv", index=False)
    write_german(rows, tmp_path / "german.csv")
    found = []
    for train, other in (("points", "german"), ("german", "points")):
        options = FitOptions(
            target="y", methods="atn", max_epochs=5, device="cpu", test=str(tmp_path / f"{other}.csv"),
            save=str(tmp_path / train),
        )  # fmt: skip
        found.append(fit_own_table(str(tmp_path / f"{train}.csv"), options))
        asked = [str(tmp_path / f"{name}.csv") for name in (train, other)]
        found += [predict_own_table(tmp_path / train, path, PredictOptions()) for path in asked]
    for again, first in ((3, 0), (2, 1), (4, 1), (5, 1)):
        pd.testing.assert_frame_equal(found[again], found[first])
    holes = rows.assign(income=rows["income"].where(rows.index != 7))
    write_german(holes, tmp_path / "german.csv")
    write_table(
        impute_own_table(tmp_path / "points", str(tmp_path / "german.csv"), RowsOptions()), tmp_path / "filled.csv"
    )
    german: dict[str, Any] = {"sep": ";", "decimal": ",", "encoding": "cp1252"}
    filled = pd.read_csv(tmp_path / "filled.csv", thousands=".", dtype={"plz": str}, **german)
    assert (filled["income"] == rows["income"])[rows.index != 7].all()
    assert 0 < filled["income"][7] < 20_000
    assert filled["plz"].equals(rows["plz"])
    assert 0 < filled["p(income)"][7] < 1
    asked = [str(tmp_path / "german.csv")]
    write_table(predict_own_table(tmp_path / "points", *asked, PredictOptions()), tmp_path / "predicted.csv")
    assert pd.read_csv(tmp_path / "predicted.csv", **german)["probability"].between(0, 1).all()


def test_numbers_that_are_filled_in_have_the_decimal_mark_of_the_file(tmp_path: Path) -> None:
    """Not that of its column, if this one has whole numbers or no cell; and not points that part thousands."""
    rows = pd.DataFrame({"a": np.arange(40) / 4, "b": np.arange(40) / 8, "c": 1.5 + np.arange(40) % 2})
    rows.to_csv(tmp_path / "points.csv", index=False)
    options = FitOptions(max_epochs=1, device="cpu", save=str(tmp_path / "m"))
    fit_own_table(str(tmp_path / "points.csv"), options)
    for separator, mark in ((",", "."), (";", ","), (";", ".")):
        path = tmp_path / "holes.csv"
        cells = [["", "", f"1{mark}5"], ["3", "", f"2{mark}25"], ["4", "", f"1{mark}5"]]
        path.write_text("\n".join(separator.join(row) for row in [["a", "b", "c"], *cells]) + "\n")
        write_table(impute_own_table(tmp_path / "m", str(path), RowsOptions()), tmp_path / "filled.csv")
        written = pd.read_csv(tmp_path / "filled.csv", sep=separator, dtype=str)
        filled = pd.read_csv(tmp_path / "filled.csv", sep=separator, decimal=mark)
        assert all(pd.api.types.is_numeric_dtype(kind) for kind in filled.dtypes)
        assert written["c"].tolist() == [row[2] for row in cells]


def test_a_table_goes_back_in_the_encoding_of_its_file(tmp_path: Path) -> None:
    """Or as UTF-8, with a note, if that one lacks a character of the model's texts."""
    rows = pd.DataFrame({"town": ["Łódź", "Köln"] * 20, "y": ["u", "v"] * 20})
    path = str(tmp_path / "t.csv")
    rows.to_csv(path, index=False)
    fit_own_table(path, FitOptions(max_epochs=40, learning_rate=0.02, device="cpu", save=str(tmp_path / "m")))
    holes = rows[1:].assign(town=["Köln", *[""] * 38])
    for encoding, town, expected in (
        ("utf-8-sig", "", "utf-8-sig"), ("utf-16", "", "utf-16"), ("cp1252", "", "utf-8"), ("cp1252", "Köln", "cp1252"),
    ):  # fmt: skip
        holes.replace("", town).to_csv(path, index=False, encoding=encoding)
        notes: list[Progress] = []
        filled = impute_own_table(tmp_path / "m", path, RowsOptions(encoding=encoding), notes.append)
        write_table(filled, tmp_path / "filled.csv")
        assert (tmp_path / "filled.csv").read_bytes().decode(expected).startswith("town,y")
        assert [("cp1252" in note.what, "UTF-8" in note.what) for note in notes] == [(True, True)] * (
            expected == "utf-8"
        )


def test_sequences_are_read_in_the_form_of_their_file(tmp_path: Path) -> None:
    rows = pd.DataFrame({"sequence": np.arange(40) // 2, "item": ["Öl", "Tee"] * 20, "value": np.arange(40) / 4})
    rows.to_csv(tmp_path / "points.csv", index=False)
    rows.to_csv(tmp_path / "commas.csv", index=False, sep=";", decimal=",", encoding="cp1252")
    tables = []
    for name in ("points", "commas"):
        options = EfaFitOptions(
            width=4, max_epochs=1, family="gaussian", device="cpu", save=str(tmp_path / name), random_state=0,
            test=str(tmp_path / "commas.csv"),
        )  # fmt: skip
        tables.append(fit_own_sequences(str(tmp_path / f"{name}.csv"), options))
    pd.testing.assert_frame_equal(*tables)
    notes: list[Progress] = []
    predicted = predict_file(tmp_path / "points", str(tmp_path / "commas.csv"), EfaPredictOptions(), notes.append)
    assert_states(" | ".join(note.what for note in notes), "semicolons", "cp1252")
    assert predicted["item"].tolist() == rows["item"].tolist()
    again = predict_file(tmp_path / "points", str(tmp_path / "points.csv"))
    pd.testing.assert_series_equal(predicted["log_prob"], again["log_prob"])
    drawn = sample_file(tmp_path / "points", EfaDrawOptions(data=str(tmp_path / "commas.csv")))
    for table in (predicted, drawn):
        write_table(table, tmp_path / "written.csv")
        written = pd.read_csv(tmp_path / "written.csv", sep=";", decimal=",", encoding="cp1252")
        numbers = written.drop(columns=["item", "predicted_item"], errors="ignore")
        assert all(pd.api.types.is_numeric_dtype(kind) for kind in numbers.dtypes)


def test_a_table_of_nothing_but_unclear_numbers_is_refused_with_their_form(tmp_path: Path) -> None:
    cells = pd.Series(range(1000, 1040)).map("{:,}".format)
    pd.DataFrame({"a": cells, "y": ["u", "v"] * 20}).to_csv(tmp_path / "t.csv", index=False)
    options = FitOptions(target="y", methods="lr", device="cpu")
    with refuses(TableError, "'a'", "'1,000'", "--decimal"):
        fit_own_table(str(tmp_path / "t.csv"), options)
    rows = fit_own_table(str(tmp_path / "t.csv"), options.replace(decimal=".", column_types=["a:number"]))
    assert rows["method"].tolist() == ["frequencies", "lr"]


def test_a_target_of_fractions_is_refused_in_each_form(tmp_path: Path) -> None:
    rows = make_rows().rename(columns={"y": "letter", "income": "y"})
    rows.to_csv(tmp_path / "points.csv", index=False)
    write_german(rows.rename(columns={"y": "income"}), tmp_path / "german.csv")
    for name, target in (("points", "y"), ("german", "income")):
        with refuses(TableError, target, "pandas.qcut"):
            fit_own_table(str(tmp_path / f"{name}.csv"), FitOptions(target=target, methods="lr", device="cpu"))


def test_a_character_of_utf8_that_two_chunks_share_shows_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"a" * (CHUNK_BYTES - 1) + "é".encode() + b"\xe9")
    assert find_encoding(path) == UTF8
    path.write_bytes(b"a" * (CHUNK_BYTES - 1) + b"\xe9a")
    assert find_encoding(path) == CP1252
