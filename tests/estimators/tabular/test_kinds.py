"""Ordinary tables of a user: numbers, dates, names of rows, rare texts, and those that no training row has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.messages import refuses

from attngeo.errors import TableError, UsageError
from attngeo.estimators import AttentionClassifier
from attngeo.estimators.tabular.files import fit_own_table, impute_own_table, predict_own_table, read_tables
from attngeo.estimators.tabular.kinds import find_date_format, find_free_texts, find_row_names, split_dates
from attngeo.estimators.tabular.options import FitOptions, PredictOptions, RowsOptions
from attngeo.estimators.tabular.views import tabulate_encodings

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
    assert find_date_format(pd.Series([*texts, None], dtype=object)) == written


def test_the_user_decides_what_two_formats_read() -> None:
    assert find_date_format(pd.Series(["01/02/2023", "12/01/2022"]), is_date=True) == "%d/%m/%Y"
    assert find_date_format(pd.Series([20230131, 20221201]), is_date=True) == "%Y%m%d"


def test_the_parts_of_dates_are_those_of_the_calendar() -> None:
    frame = pd.DataFrame({"a": [1, 2, 3], "when": ["1970-01-02 06:00", None, "2023-07-30 23:59"], "b": [4, 5, 6]})
    parts = split_dates(frame, {"when": "%Y-%m-%d %H:%M", "absent": ""})
    assert parts.columns.tolist() == ["a", "when.days", "when.month", "when.weekday", "when.hour", "b"]
    assert parts.iloc[0].tolist() == [1, 1.25, 1, 4, 6, 4]  # a Friday; weekdays count from Monday, 0
    assert parts.iloc[1, 1:5].isna().all()
    assert parts.iloc[2, 2:5].tolist() == [7, 6, 23]
    zoned = frame.assign(when=pd.to_datetime(frame["when"]).dt.tz_localize("Europe/Berlin"))
    assert split_dates(zoned, {"when": ""})["when.hour"].tolist()[2] == 23
    with refuses(TableError, "row 3", "'when'", "2023-07-30 23:59"):
        split_dates(frame.assign(when=["01.02.2023", None, "2023-07-30 23:59"]), {"when": "%d.%m.%Y"}, "error")


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
    rows.to_csv(tmp_path / "rows.csv", index=False)
    predicted = predict_own_table(tmp_path / "m", str(tmp_path / "rows.csv"), PredictOptions())
    assert predicted["prediction"].isin(["early", "late"]).all()
    with refuses(TableError, "rows.csv: row 2", "'when'", "'soon'"):
        predict_own_table(tmp_path / "m", str(tmp_path / "rows.csv"), PredictOptions(unseen="error"))
    rows.drop(columns="when").to_csv(tmp_path / "dateless.csv", index=False)
    with refuses(TableError, "dateless.csv", "no column 'when'", "training rows: when, count, year, town"):
        predict_own_table(tmp_path / "m", str(tmp_path / "dateless.csv"), PredictOptions())
    with refuses(TableError, "dateless.csv", "no column 'when'"):
        read_tables(path, FitOptions(target=None, test=str(tmp_path / "dateless.csv")))
    rows.assign(town=[None, "Ulm"]).to_csv(tmp_path / "gaps.csv", index=False)
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
        with refuses(TableError, path, *facts):
            columns_of(path, **options)
    for text in ("year", "year:text", ":date"):
        with refuses(UsageError, "column_types", f"'{text}'", "category"):
            FitOptions(column_types=[text])
