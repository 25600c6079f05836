"""Ordinary tables of a user: numbers, dates, names of rows, rare texts, and those that no training row has."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from support.messages import assert_states, refuses

from attngeo.errors import CorruptCheckpointError, TableError, UnknownColumnError, UsageError
from attngeo.estimators import AttentionClassifier
from attngeo.estimators.shared.dates import DateColumn, find_dates
from attngeo.estimators.tabular.files import fit_own_table, impute_own_table, predict_own_table, read_tables
from attngeo.estimators.tabular.kinds import find_free_texts, find_row_names, set_kinds, split_dates
from attngeo.estimators.tabular.options import FitOptions, PredictOptions, RowsOptions
from attngeo.estimators.tabular.views import tabulate_encodings
from attngeo.progress import Progress

FAST: dict[str, Any] = {"target": "y", "methods": "atn", "max_epochs": 2, "device": "cpu"}


def write_visits(folder: Path, rows: int = 120) -> str:
    """A table with a number of the row, a code of it, a date, a count with a long tail, a year and a rare text."""
    random = np.random.default_rng(0)
    when = pd.Timestamp("2023-01-30") + pd.to_timedelta(random.integers(0, 9000, rows), "h")
    frame = pd.DataFrame({
        "number": random.permutation(rows) + 100,
        "code": [f"v{at}" for at in random.permutation(rows)],
        "when": when.strftime("%d.%m.%Y %H:%M"),
        "count": [*random.integers(0, 5, rows - 1), 11],
        "year": random.choice([2021, 2022], rows),
        "town": ["Ulm", "Bonn"] * (rows // 2 - 1) + ["Kiel", "Jena"],
        "y": np.where(when.hour < 12, "early", "late"),
    })  # fmt: skip
    frame.to_csv(folder / "visits.csv", index=False)
    return str(folder / "visits.csv")


def columns_of(path: str, **options: Any) -> list[str]:
    return read_tables(path, FitOptions(target="y", **options)).train_x.columns.tolist()


@pytest.mark.parametrize(
    ("texts", "written"),
    [
        (["2023-01-31", "2022-12-01"], "%Y-%m-%d"),
        (["2023-01-31 10:20:30", "2022-12-01 00:00:00"], "%Y-%m-%d %H:%M:%S"),
        (["31.01.2023", "01.12.2022"], "%d.%m.%Y"),
        (["01/31/2023", "12/01/2022"], "%m/%d/%Y"),
        (["31/01/2023", "01/12/2022"], "%d/%m/%Y"),
        (["01/02/2023", "12/01/2022"], None),  # of which no cell says what is the day
        (["2023-01-31", "soon"], None),
        (["20230131", "20221201"], None),
        (["1", "2"], None),
        ([], None),
    ],
)
def test_dates_are_found_if_one_format_reads_all_of_them(texts: list[str], written: str | None) -> None:
    found = find_dates(pd.Series([*texts, None], dtype=object))
    assert (found and found.written) == written


def test_the_user_decides_what_two_formats_read() -> None:
    for cells, written in ((["01/02/2023", "12/01/2022"], "%d/%m/%Y"), ([20230131, 20221201], "%Y%m%d")):
        found = find_dates(pd.Series(cells), is_date=True)
        assert found is not None
        assert found.written == written


def test_the_parts_of_dates_are_those_of_the_calendar() -> None:
    frame = pd.DataFrame({"a": [1, 2, 3], "when": ["1970-01-02 06:00", None, "2023-07-30 23:59"], "b": [4, 5, 6]})
    parts = split_dates(frame, {"when": DateColumn("%Y-%m-%d %H:%M"), "absent": DateColumn("")})
    assert parts.columns.tolist() == ["a", "when.days", "when.month", "when.weekday", "when.hour", "b"]
    assert parts.iloc[0].tolist() == [1, 1.25, 1, 4, 6, 4]  # a Friday; weekdays count from Monday, 0
    assert parts.iloc[1, 1:5].isna().all()
    assert parts.iloc[2, 2:5].tolist() == [7, 6, 23]
    zoned = frame.assign(when=pd.to_datetime(frame["when"]).dt.tz_localize("Europe/Berlin"))
    assert split_dates(zoned, {"when": DateColumn("", "Europe/Berlin")})["when.hour"].tolist()[2] == 23
    with refuses(TableError, "row 3", "'when'", "2023-07-30 23:59 h"):
        split_dates(
            frame.assign(when=["01.02.2023", None, "2023-07-30 23:59 h"]), {"when": DateColumn("%d.%m.%Y")}, "error"
        )


def read_column(cells: Any, written: str, zone: str | None = "", **options: Any) -> tuple[list[Any], list[str]]:
    """The times of a column, from its days, and the notes about it, for a model with such a training column."""
    notes: list[str] = []
    dates = {"when": DateColumn(written, zone, "EXAMPLE")}
    frame = split_dates(pd.DataFrame({"when": cells}), dates, report=notes.append, **options)
    times = pd.Timestamp(0) + pd.to_timedelta(frame["when.days"], "D")
    return times.dt.round("s").dt.strftime("%Y-%m-%d %H:%M").tolist(), notes


OTHER_FORMS = {
    "a midnight": ["2023-01-31 00:00:00"],
    "a midnight of UTC": ["2023-01-31T00:00:00Z"],
    "a fraction": ["2023-01-31T00:00:00.000"],
    "points": ["31.01.2023"],
    "days first": ["31/01/2023"],
    "months first": ["01-31-2023"],
    "no separator": [20230131],
    "no separator, and a missing cell": [20230131.0, None],
    "a dtype": pd.to_datetime(["2023-01-31"]),
    "a dtype of categories": pd.Series(["2023-01-31"], dtype="category"),
    "days of Parquet": [pd.Timestamp("2023-01-31").date()],
}


@pytest.mark.parametrize("form", OTHER_FORMS)
def test_a_date_is_read_in_any_form_that_tells_it(form: str) -> None:
    found, _ = read_column(OTHER_FORMS[form], "%Y-%m-%d")
    assert found[0] == "2023-01-31 00:00"


def test_cells_tell_the_day_of_others_in_their_column_only() -> None:
    dates = ["31/12/2023", "01/02/2023"]
    found, notes = read_column(dates, "%Y-%m-%d")
    assert found == ["2023-12-31 00:00", "2023-02-01 00:00"]
    assert_states(notes[0], "'when'", 2, "'31/12/2023'", "'EXAMPLE'")
    assert read_column(["12/31/2023", "01/02/2023"], "%Y-%m-%d")[0] == ["2023-12-31 00:00", "2023-01-02 00:00"]
    assert read_column(dates[1:], "%m/%d/%Y") == (["2023-01-02 00:00"], [])
    for cells, written in ((dates[1:], "%Y-%m-%d"), (dates, "%m/%d/%Y"), ([*dates, "12/31/2023"], "%Y-%m-%d")):
        with refuses(TableError, "'when'", "'EXAMPLE'", f"'{cells[0]}'"):
            read_column(cells, written)


@pytest.mark.parametrize("wrong", [1, 2])
def test_a_tenth_of_the_cells_may_be_no_dates(wrong: int) -> None:
    cells = ["2023-01-31"] * (10 - wrong) + ["soon"] * wrong + [None]
    if wrong == 1:
        _, notes = read_column(cells, "%Y-%m-%d")
        assert_states(notes[0], "'when'", "1 of 10", "'soon' in row 10", "'EXAMPLE'")
        return
    with refuses(TableError, "row 9", "'when'", "'soon'", "'EXAMPLE'", "10 cells"):
        read_column(cells, "%Y-%m-%d")


@pytest.mark.parametrize("text", ["k. A.", "00.00.0000", "31.02.2023"])
@pytest.mark.parametrize("few", [4, 5])
def test_a_few_texts_among_the_dates_of_a_training_column_are_missing(few: int, text: str, tmp_path: Path) -> None:
    """Of 40 cells, a tenth are few. More are an error if the user says that the column has dates."""
    days = pd.date_range("2023-01-20", periods=40).strftime("%d.%m.%Y").tolist()
    path = str(tmp_path / "rows.csv")
    table = pd.DataFrame({"when": [*days[:30], *[text] * few, *days[30 + few :]], "y": ["p", "q"] * 20})
    table.to_csv(path, index=False)
    for kinds in ([], ["when:date"], ["when:day-month"]):
        notes: list[Progress] = []
        options = FitOptions(target="y", column_types=kinds, columns=["when"])
        if few > 4 and kinds:
            advice = "--missing 'k. A.'" if text == "k. A." else f"--missing {text}"
            with refuses(TableError, path, "row 31", "'when'", repr(text), "4 more of 40", advice):
                read_tables(path, options)
            continue
        columns = read_tables(path, options, notes.append).train_x
        assert ("when.days" in columns) == (few == 4)
        if few > 4:
            assert not any("'when'" in note.what for note in notes)
            continue
        assert_states(
            notes[0].what, path, "'when'", "4", f"{text!r} in row 31", "missing", "--column-type when:category"
        )
        found = pd.Timestamp(0) + pd.to_timedelta(columns["when.days"].dropna(), "D")
        assert {*found.dt.strftime("%d.%m.%Y")} <= {*days}
    chosen = read_tables(path, FitOptions(target="y", column_types=["when:category"])).train_x["when"]
    assert text in chosen.cat.categories


def test_texts_among_dates_that_do_not_tell_day_and_month_are_left_to_the_user(tmp_path: Path) -> None:
    path = str(tmp_path / "rows.csv")
    pd.DataFrame({"d": ["01/02/2023", "03/04/2023"] * 19 + ["-"] * 2, "y": ["p", "q"] * 20}).to_csv(path, index=False)
    notes: list[Progress] = []
    tables = read_tables(path, FitOptions(target="y"), notes.append)
    assert_states(notes[0].what, "'d'", "'01/02/2023'", "categories", "--column-type d:day-month")
    assert "-" in pd.concat([tables.train_x, tables.test_x])["d"].tolist()
    chosen = read_tables(path, FitOptions(target="y", column_types=["d:month-day"]))
    assert chosen.missing_in == {"d": ("-",)}
    assert {*chosen.train_x["d.month"].dropna()} == {1, 3}


def test_two_dates_of_no_common_format_are_named() -> None:
    column = pd.Series([None, "01/14/2023", "01/15/2023", "16/01/2023"], name="d", dtype="str")
    with refuses(TableError, "row 4", "'d'", "'16/01/2023'", "'01/14/2023' in row 2"):
        set_kinds(column.to_frame(), {"d": "date"}, "t.csv")


def test_what_is_missing_in_training_is_missing_at_prediction(tmp_path: Path) -> None:
    """In columns of numbers and dates, however many cells it has, and in no other column."""
    rows = 80
    days = pd.date_range("2023-01-20", periods=rows).strftime("%d.%m.%Y").tolist()
    table = pd.DataFrame({
        "age": np.arange(rows).astype(str),
        "mass": [f"{at % 9},5" for at in range(rows)],
        "size": ["n/a" if at % 3 else str(at) for at in range(rows)],
        "when": days,
        "town": ["Ulm", "Bonn", "k. A.", "n/a"] * (rows // 4),
        "y": ["p", "q"] * (rows // 2),
    })  # fmt: skip
    table.loc[[3, 9], ["age", "when"]] = "k. A."
    table.loc[[5, 7], "mass"] = "-"
    path = str(tmp_path / "train.csv")
    table.to_csv(path, index=False, sep=";")
    folder = tmp_path / "m"
    fit_own_table(path, FitOptions(**FAST, save=str(folder), column_types=["size:number"]))
    config = json.loads((folder / "config.json").read_text())
    known = {"age": ["k. A."], "mass": ["-"], "size": ["n/a"], "when": ["k. A."]}
    assert config["missing_in"] == known
    asked = table.head(20).drop(columns="y")
    for name, (text,) in known.items():
        asked.loc[2:, name] = text
    empty = asked.copy()
    empty.loc[2:, [*known]] = None
    for suffix in ("csv", "parquet"):
        paths = [str(tmp_path / f"{name}.{suffix}") for name in ("asked", "empty")]
        for frame, file in zip((asked, empty), paths, strict=True):
            frame.to_csv(file, index=False, sep=";") if suffix == "csv" else frame.to_parquet(file)
        for unseen in ("mask", "error"):
            found, expected = (predict_own_table(folder, file, PredictOptions(unseen=unseen)) for file in paths)
            pd.testing.assert_frame_equal(found, expected)
        filled, complete = (impute_own_table(folder, file, RowsOptions()) for file in paths)
        pd.testing.assert_frame_equal(filled.drop(columns="when"), complete.drop(columns="when"))
        assert filled["p(age)"].notna().sum() == 18
        assert filled["town"].tolist() == asked["town"].tolist()
    tested = FitOptions(**FAST, test=path, column_types=["size:number"])
    scores = fit_own_table(path, tested)
    assert scores["test_rows"].iloc[0] == rows
    asked.assign(age="unknown").to_csv(paths[0].replace("parquet", "csv"), index=False, sep=";")
    with refuses(TableError, "row 1", "'age'", "'unknown'", "--missing unknown"):
        predict_own_table(folder, paths[0].replace("parquet", "csv"), PredictOptions())
    del config["missing_in"]  # as of an older version
    (folder / "config.json").write_text(json.dumps(config))
    with refuses(TableError, "row 3", "'when'", "'k. A.'"):
        predict_own_table(folder, str(tmp_path / "asked.parquet"), PredictOptions())


def test_times_are_those_of_the_zone_of_the_training_column() -> None:
    instants = pd.to_datetime(["2023-01-15 23:30", "2023-07-15 23:30"]).tz_localize("UTC")
    forms: list[Any] = [
        instants,
        instants.tz_convert("Asia/Tokyo"),
        instants.tz_convert("Asia/Tokyo").strftime("%Y-%m-%dT%H:%M:%S%z"),
        pd.Series(instants, dtype=pd.ArrowDtype(pa.timestamp("us", "Asia/Tokyo"))),
        ["2023-01-15T23:30Z", "2023-07-16 01:30:00+02"],
        [instants[0].tz_convert("America/New_York"), instants[1]],
    ]
    for form in forms:
        assert read_column(form, "", "Europe/Berlin") == (["2023-01-16 00:30", "2023-07-16 01:30"], [])
    assert read_column(forms[1], "", "-03:30")[0] == ["2023-01-15 20:00", "2023-07-15 20:00"]
    naive = ["2023-03-26 02:30", "2023-10-29 02:30"]  # which Berlin has never, and twice
    found, (note,) = read_column(naive, "", "Europe/Berlin")
    assert found == naive
    assert_states(note, "'when'", "Europe/Berlin")
    found, (note,) = read_column(forms[1], "", None)  # of a model of an older version
    assert found == ["2023-01-16 08:30", "2023-07-16 08:30"]
    assert_states(note, "'when'", "zones")


def test_zones_that_contradict_one_another_are_refused() -> None:
    for cells, zone in ((["2023-01-15 23:30Z"], ""), (["2023-01-15 23:30Z", "2023-01-15 23:30"], "UTC")):
        with refuses(TableError, "'when'", "'2023-01-15 23:30Z'", "zone"):
            read_column(cells, "%Y-%m-%d %H:%M", zone)
    with refuses(TableError, "'when'", "'2023-01-15T01:00Z'", "zone", "'EXAMPLE'"):
        read_column(["2023-01-15T00:00Z", "2023-01-15T01:00Z"], "%Y-%m-%d")


FAR_DATES = ["9999-12-31", "2999-01-01", "1600-01-01", "0001-01-01"]


@pytest.mark.parametrize("zone", ["", "UTC", "Europe/Berlin", "America/New_York"])
def test_dates_of_any_year_have_the_parts_of_the_calendar(zone: str) -> None:
    """Those of Python's datetime."""
    for text in FAR_DATES:
        for cells in ([text], pd.to_datetime([text], format="ISO8601").astype("datetime64[s]")):
            frame = split_dates(pd.DataFrame({"when": cells}), {"when": DateColumn("", zone)})
            day = dt.date.fromisoformat(text)
            expected = [(day - dt.date(1970, 1, 1)).days, day.month, day.weekday(), 0]
            assert frame.iloc[0].tolist() == expected
    if zone:
        zoned = pd.to_datetime(FAR_DATES, format="ISO8601").tz_localize("UTC")
        assert split_dates(pd.DataFrame({"when": zoned}), {"when": DateColumn("", zone)}).notna().all(axis=None)


@pytest.mark.parametrize(
    ("cells", "zone"),
    [
        (["2023-06-01 10:00:00+00:00", "2023-06-01 10:00:00.5Z"], "UTC"),
        (["2023-06-01 10:00+0200"] * 2, "+02:00"),
        (["2023-06-01 10:00+02:00", "2023-12-01 10:00+01:00"], "UTC"),
        (["2023-06-01 10:00", "2023-06-01"], ""),
        (pd.date_range("2023", periods=2, tz="Asia/Tokyo"), "Asia/Tokyo"),
        (pd.date_range("2023", periods=2, tz="+02:00"), "+02:00"),
        ([pd.Timestamp("2023", tz="Asia/Tokyo"), pd.Timestamp("2023", tz="UTC")], "UTC"),
    ],
)
def test_the_zone_of_a_column_is_the_one_that_its_cells_have(cells: Any, zone: str) -> None:
    found = find_dates(pd.Series(cells))
    assert found is not None
    assert found.zone == zone
    assert found.has_several_zones == (len({str(pd.Timestamp(cell).tzinfo) for cell in cells}) > 1)


def test_the_zone_of_dates_is_kept_in_a_saved_model(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    when = pd.date_range("2023-06-01", periods=80, freq="61min", tz="UTC")[random.permutation(80)]
    table = pd.DataFrame({"when": when, "z": random.choice(["u", "v"], 80), "y": np.where(when.hour < 12, "am", "pm")})
    path = str(tmp_path / "rows.parquet")
    table.to_parquet(path)
    folder = tmp_path / "m"
    fit_own_table(path, FitOptions(**FAST, save=str(folder)))
    predicted = predict_own_table(folder, path, PredictOptions())
    notes: list[Progress] = []
    table.assign(when=when.tz_convert("Asia/Tokyo")).to_csv(tmp_path / "tokyo.csv", index=False)
    pd.testing.assert_frame_equal(predict_own_table(folder, str(tmp_path / "tokyo.csv"), PredictOptions()), predicted)
    config = json.loads((folder / "config.json").read_text())
    assert config["zones"] == {"when": "UTC"}
    del config["zones"]  # as of an older version
    (folder / "config.json").write_text(json.dumps(config))
    pd.testing.assert_frame_equal(predict_own_table(folder, path, PredictOptions(), notes.append), predicted)
    assert_states(notes[0].what, path, "'when'", "older version")
    config["zones"] = {"when": "Nowhere/None"}
    (folder / "config.json").write_text(json.dumps(config))
    with refuses(CorruptCheckpointError, "config.json", "'Nowhere/None'"):
        predict_own_table(folder, path, PredictOptions())


def test_names_of_rows_are_left_out_unless_the_user_wants_them(tmp_path: Path) -> None:
    path = write_visits(tmp_path)
    parts = [f"when.{part}" for part in ("days", "month", "weekday", "hour")]
    assert columns_of(path) == [*parts, "count", "year", "town"]
    assert columns_of(path, columns="number,count") == ["number", "count"]
    assert columns_of(path, drop="when,year") == ["count", "town"]
    assert columns_of(path, column_types=["number:number"])[0] == "number"
    assert columns_of(path, column_types=["when:category"]) == ["when", "count", "year", "town"]


@pytest.mark.parametrize("rows", [19, 20])
def test_names_of_rows_and_free_texts_are_looked_for_from_twenty_rows_on(rows: int) -> None:
    frame = pd.DataFrame({"number": range(rows), "name": [f"r{row}" for row in range(rows)]})
    assert [name for name, _ in find_row_names(frame)] == (["number", "name"] if rows == 20 else [])
    assert [*find_free_texts(frame)] == ([("name", 20)] if rows == 20 else [])


def test_a_kind_that_is_chosen_is_that_of_the_saved_model(tmp_path: Path) -> None:
    path = write_visits(tmp_path)
    fit_own_table(path, FitOptions(**FAST, column_types=["year:category"], save=str(tmp_path / "m")))
    coding = AttentionClassifier.load(tmp_path / "m").coding_
    kinds = {column.name: column.edges is None for column in coding.features}
    assert kinds["year"]
    assert not kinds["count"]
    assert kinds["when.hour"]
    assert not kinds["when.days"]


def test_explanations_show_days_as_dates(tmp_path: Path) -> None:
    path = write_visits(tmp_path)
    fit_own_table(path, FitOptions(**FAST, save=str(tmp_path / "m")))
    when = ["01.01.2031 23:00", "31.12.1969 00:00", None]
    rows = pd.DataFrame({"when": when, "count": 9, "year": 2020, "town": "Rom"})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    cells = tmp_path / "cells.csv"
    predict_own_table(tmp_path / "m", str(tmp_path / "rows.csv"), PredictOptions(attention_output=str(cells)))
    shown = pd.read_csv(cells, dtype=str)
    days = shown[(shown["on"] == "when.days") & (shown["cell"] == "count")].drop_duplicates("row")["value"]
    assert days.tolist() == ["2031-01-01T23:00:00", "1969-12-31", "[MASK]"]
    hours = shown[(shown["on"] == "when.hour") & (shown["cell"] == "count")].drop_duplicates("row")["value"]
    assert hours.tolist() == ["23", "0", "[MASK]"]
    encodings = tabulate_encodings(AttentionClassifier.load(tmp_path / "m")).set_index("column")["value"]
    written = pd.read_csv(path)["when"]
    moments = pd.to_datetime(encodings["when.days"])
    first, last = (pd.to_datetime(written, dayfirst=True).agg(end) for end in ("min", "max"))
    assert moments.between(first, last).all()
    assert moments.is_monotonic_increasing


def test_any_row_of_the_kinds_of_the_training_is_predicted(tmp_path: Path) -> None:
    path = write_visits(tmp_path)
    fit_own_table(path, FitOptions(**FAST, save=str(tmp_path / "m")))
    rows = pd.DataFrame(
        {"when": ["01.01.2031 23:00", "soon"], "count": [99, -1], "year": [1999.5, 2030], "town": "Rom"}
    )
    pd.concat([rows, *[rows[:1]] * 8]).to_csv(tmp_path / "rows.csv", index=False)
    predicted = predict_own_table(tmp_path / "m", str(tmp_path / "rows.csv"), PredictOptions())
    assert predicted["prediction"].isin(["early", "late"]).all()
    with refuses(TableError, "rows.csv: row 2", "'when'", "'soon'"):
        predict_own_table(tmp_path / "m", str(tmp_path / "rows.csv"), PredictOptions(unseen="error"))
    rows.drop(columns="when").to_csv(tmp_path / "dateless.csv", index=False)
    with refuses(TableError, "dateless.csv", "no column 'when'", "training rows: when, count, year, town"):
        predict_own_table(tmp_path / "m", str(tmp_path / "dateless.csv"), PredictOptions())
    with refuses(TableError, "dateless.csv", "no column 'when'"):
        read_tables(path, FitOptions(target=None, test=str(tmp_path / "dateless.csv")))
    rows.assign(when="01.01.2031 23:00", town=[None, "Ulm"]).to_csv(tmp_path / "gaps.csv", index=False)
    filled = impute_own_table(tmp_path / "m", str(tmp_path / "gaps.csv"), RowsOptions())
    assert filled.columns.tolist() == ["when", "count", "year", "town", "p(town)"]
    assert filled["town"].tolist()[0] in ("Ulm", "Bonn")


def test_a_text_that_no_training_row_has_is_what_rare_texts_are(tmp_path: Path) -> None:
    """Rare towns have another label than the others, which a text that is new shares with them."""
    random = np.random.default_rng(0)
    is_rare = random.random(200) < 0.4
    town = np.where(is_rare, [f"t{at // 2}" for at in range(200)], random.choice(["Ulm", "Bonn"], 200))
    frame = pd.DataFrame({"town": town, "noise": random.choice(["a", "b"], 200)})
    labels = np.where(is_rare, "r", "f")
    model = AttentionClassifier(
        unseen="category", min_frequency=5, max_epochs=20, learning_rate=0.02, random_state=0, device="cpu"
    ).fit(frame, labels)
    assert model.coding_.columns[0].values == ("Bonn", "Ulm")
    new = pd.DataFrame({"town": ["Rom", "Ulm"], "noise": ["a", "a"]})
    assert model.predict(new).tolist() == ["r", "f"]
    assert model.impute(new).equals(new)
    model.save(tmp_path / "m")
    loaded = AttentionClassifier.load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.predict_proba(new), model.predict_proba(new))
    again = loaded.partial_fit(frame, labels)
    assert again.network_.layout.has_unseen


def test_whole_numbers_that_no_float_parts_stay_categories() -> None:
    table = pd.DataFrame({"id": [2**60, 2**60 + 1] * 10})
    model = AttentionClassifier(max_epochs=1, random_state=0, device="cpu").fit(table, [0, 1] * 10)
    assert model.coding_.columns[0].edges is None
    assert model.coding_.columns[0].values == (2**60, 2**60 + 1)


def test_dates_that_do_not_tell_day_and_month_are_noted(tmp_path: Path) -> None:
    path = str(tmp_path / "rows.csv")
    pd.DataFrame({"d": ["01/02/2023", "03/04/2023"] * 20, "y": ["p", "q"] * 20}).to_csv(path, index=False)
    for kinds, days, facts in (
        ([], [], ["'d'", "'01/02/2023'", "categories", "--column-type d:day-month"]),
        (["d:date"], ["2023-02-01", "2023-04-03"], ["'d'", "%d/%m/%Y", "month-day"]),
        (["d:day-month"], ["2023-02-01", "2023-04-03"], []),
        (["d:month-day"], ["2023-01-02", "2023-03-04"], []),
    ):
        notes: list[Progress] = []
        tables = read_tables(path, FitOptions(target="y", column_types=kinds), notes.append)
        first = notes[0].what
        if facts:
            assert_states(first, path, *facts)
        assert ("month-day" in first) == bool(facts)
        if days:
            found = pd.Timestamp(0) + pd.to_timedelta(tables.train_x["d.days"].sort_values().unique(), "D")
            assert found.strftime("%Y-%m-%d").tolist() == days
    with refuses(TableError, path, "'d'", "no dates"):
        pd.DataFrame({"d": ["31/02/2023", "03/14/2023"] * 20, "y": ["p", "q"] * 20}).to_csv(path, index=False)
        read_tables(path, FitOptions(target="y", column_types=["d:day-month"]))


def test_most_cells_of_a_column_of_numbers_are_numbers(tmp_path: Path) -> None:
    train = pd.DataFrame({"size": np.arange(40) % 8 / 4, "z": ["u", "v"] * 20, "y": ["p", "q"] * 20})
    path = str(tmp_path / "train.csv")
    train.to_csv(path, index=False)
    fit_own_table(path, FitOptions(**FAST, save=str(tmp_path / "m")))
    rows = str(tmp_path / "rows.parquet")
    train.to_parquet(rows)
    expected = predict_own_table(tmp_path / "m", rows, PredictOptions())
    train.assign(size=train["size"].map("{:.2f}".format).str.replace(".", ",")).to_parquet(rows)
    pd.testing.assert_frame_equal(predict_own_table(tmp_path / "m", rows, PredictOptions()), expected)
    for count in (4, 5, 40):
        sizes = train["size"].astype(str)
        sizes[:count] = "1,000 kg"
        train.assign(size=sizes).to_parquet(rows)
        notes: list[Progress] = []
        if count == 4:
            predict_own_table(tmp_path / "m", rows, PredictOptions(), notes.append)
            assert_states(notes[0].what, rows, "'size'", "4 of 40", "'1,000 kg' in row 1")
            continue
        with refuses(TableError, rows, "row 1", "'size'", "'1,000 kg'", "0.0", f"{count - 1} more of 40"):
            predict_own_table(tmp_path / "m", rows, PredictOptions())
        with refuses(TableError, rows, "row 1", "'size'"):
            fit_own_table(path, FitOptions(**FAST, test=rows))
        with refuses(TableError, rows, "row 1", "'size'"):
            impute_own_table(tmp_path / "m", rows, RowsOptions())


def test_bad_columns_and_kinds_are_refused(tmp_path: Path) -> None:
    path = write_visits(tmp_path)
    for options, facts in (
        ({"columns": "cuont"}, ["'cuont'", "count"]),
        ({"drop": "nothing"}, ["'nothing'"]),
        ({"column_types": ["yaer:number"]}, ["'yaer'", "year"]),
        ({"column_types": ["town:number"]}, ["'town'", "no numbers"]),
        ({"column_types": ["town:date"]}, ["'town'", "no dates"]),
        ({"drop": "number,code,when,count,year,town"}, ["no column remains"]),
    ):
        is_unknown = facts[0] in ("'cuont'", "'nothing'", "'yaer'")
        with refuses(UnknownColumnError if is_unknown else TableError, path, *facts):
            columns_of(path, **options)
    for text in ("year", "year:text", ":date"):
        with refuses(UsageError, "column_types", f"'{text}'", "category"):
            FitOptions(column_types=[text])


@pytest.mark.parametrize(
    "texts",
    [["02.02.21", "31.12.20"], ["2/2/21", None], ["02-02-21 10:30", "03-02-21 9:00"], ["k. A.", *["02.02.21"] * 9]],
)
def test_dates_with_years_of_two_digits_are_no_dates_and_said_to_be_such(texts: list[str | None]) -> None:
    frame = pd.DataFrame({"day": texts})
    notes: list[str] = []
    _, dates = set_kinds(frame, {}, "rows.csv", notes.append)
    assert not dates
    (note,) = notes
    first = next(text for text in texts if text and text[0].isdigit())
    assert_states(note, "'day'", repr(first), "two-digit year", "four")
    with refuses(TableError, "rows.csv", "'day'", repr(first), "two-digit year", "four") as caught:
        set_kinds(frame, {"day": "day-month"}, "rows.csv", notes.append)
    assert "alike" not in str(caught.value)


@pytest.mark.parametrize(
    "texts",
    [["02.02.21", "soon"], ["k. A.", *["02.02.21"] * 8], ["52.71.21", "02.02.21"], ["1.2.3", "4.5.6"], ["a", "b"]],
)
def test_other_texts_are_no_dates_with_short_years(texts: list[str]) -> None:
    notes: list[str] = []
    set_kinds(pd.DataFrame({"day": texts}), {}, "rows.csv", notes.append)
    assert not notes
