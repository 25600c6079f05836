"""A user's own table: what is read, how methods are measured, what is refused, and tables of what was learned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.calibration import calibration_curve
from sklearn.metrics import log_loss, mean_squared_error, recall_score, roc_auc_score
from support.messages import assert_states, refuses

from attngeo.errors import DataUnavailableError, TableError, UnknownColumnError, UsageError
from attngeo.estimators import AttentionClassifier, AttentionImputer
from attngeo.estimators.shared.files import read_own_table
from attngeo.estimators.tabular import measuring
from attngeo.estimators.tabular.files import (
    fit_own_table,
    impute_own_table,
    impute_rows,
    predict_own_table,
    read_tables,
)
from attngeo.estimators.tabular.measuring import describe_better, fit_table, measure_chances
from attngeo.estimators.tabular.options import FitOptions, PredictOptions, RowsOptions
from attngeo.estimators.tabular.views import MASK, tabulate_attention, tabulate_encodings
from attngeo.progress import Progress, ProgressCallback
from attngeo.tables.read import HEAD_BYTES
from attngeo.tables.write import write_table


def write(folder: Path, text: str, name: str = "t.csv") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_scores_are_those_of_scikit_learn() -> None:
    random = np.random.default_rng(0)
    chances = random.dirichlet([1, 1], 500)
    truth = (random.random(500) < chances[:, 1]).astype(int)
    found = measure_chances(np.array([3, 5]), truth, chances)
    predicted = np.array([3, 5])[chances.argmax(1)]
    assert found["accuracy"] == np.mean(chances.argmax(1) == truth)
    assert found["mse"] == pytest.approx(mean_squared_error(np.array([3, 5])[truth], predicted))
    assert found["log_loss"] == pytest.approx(log_loss(truth, chances))
    confidence = chances.max(1)
    edges = np.linspace(0, 1, 11)
    right, mean = calibration_curve(chances.argmax(1) == truth, confidence, n_bins=10)
    sizes = np.histogram(confidence, edges)[0]
    assert found["calibration_error"] == pytest.approx(np.sum(np.abs(right - mean) * sizes[sizes > 0]) / 500)
    assert found["calibration_error"] < 0.1
    assert np.isnan(measure_chances(np.array([np.nan, np.nan]), truth, chances)["mse"])
    assert measure_chances(np.array([0, 1]), truth, np.eye(2)[1 - truth] * 0.98 + 0.01)["calibration_error"] > 0.9


@pytest.mark.parametrize("classes", [2, 4])
def test_each_class_counts_as_any_other_in_auc_and_recall(classes: int) -> None:
    random = np.random.default_rng(1)
    chances = random.dirichlet([9, *[1] * (classes - 1)], 400)
    truth = (chances.cumsum(1) > random.random((400, 1))).argmax(1)
    found = measure_chances(np.arange(classes), truth, chances)
    chosen = chances[:, 1] if classes == 2 else chances
    assert found["auc"] == pytest.approx(roc_auc_score(truth, chosen, multi_class="ovr"))
    assert found["recall"] == pytest.approx(recall_score(truth, chances.argmax(1), average="macro"))
    assert found["majority"] == np.mean(truth == 0)
    constant = measure_chances(np.arange(classes), truth, np.tile(chances[truth == 0].mean(0), (400, 1)))
    assert (constant["auc"], constant["recall"]) == (0.5, 1 / classes)
    assert constant["accuracy"] == constant["majority"]
    alone = measure_chances(np.arange(classes), np.zeros(5, int), chances[:5])
    assert np.isnan(alone["auc"])
    assert alone["majority"] == 1


def test_cells_of_a_file_keep_their_kind(tmp_path: Path) -> None:
    path = write(tmp_path, '\ufeffname, code,n,mass\nNone,01,1,2.5\n"a,b",02,,?\nn/a,03,3,NA\n')
    frame = read_own_table(path)
    assert frame["name"].tolist() == ["None", "a,b", "n/a"]
    assert frame["n"].isna().tolist() == [False, True, False]
    assert frame["mass"].isna().tolist() == [False, True, True]
    assert read_own_table(path, missing=["n/a"])["name"].isna().tolist() == [False, False, True]
    assert read_own_table(path, missing=["n/a"])["mass"].isna().tolist() == [False, True, True]
    assert read_own_table(path, missing=["", "n/a"])["mass"].tolist() == ["2.5", "?", "NA"]
    frame.to_parquet(tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(read_own_table(tmp_path / "t.parquet"), frame)


def test_texts_of_a_parquet_file_are_missing_cells_only_if_they_are_named(tmp_path: Path) -> None:
    path = str(tmp_path / "t.parquet")
    pd.DataFrame({"town": ["NA", "-", None, "?"], "size": ["-", "s", "k. A.", "s"], "n": [1, 2, 3, 4]}).to_parquet(path)
    assert read_own_table(path)["town"].isna().tolist() == [False, False, True, False]
    frame = read_own_table(path, missing=["-"], missing_in={"size": ["k. A."], "n": ["1"], "absent": ["-"]})
    assert frame["town"].isna().tolist() == [False, True, True, False]
    assert frame["size"].isna().tolist() == [True, False, True, False]
    assert frame["n"].tolist() == [1, 2, 3, 4]


def test_codes_keep_their_leading_zeros(tmp_path: Path) -> None:
    path = write(tmp_path, "code,n,share,empty,day,month\n1,10,0.5,,01/02,01\n01 ,0,00.25,007,02/03,12\n")
    frame = read_own_table(path, codes=["code", "n", "share", "empty", "day", "absent"])
    assert frame["code"].tolist() == ["1", "01 "]
    assert frame["n"].tolist() == [10, 0]
    assert frame["share"].tolist() == [0.5, 0.25]
    assert frame["empty"].isna().tolist() == [True, False]
    assert frame["empty"][1] == "007"
    assert frame["day"].tolist() == ["01/02", "02/03"]
    assert frame["month"].tolist() == ["01", "12"]


# Labels as a file has them, and those that are predicted.
LABELS = {
    "codes": (["01", "02", "10"], ["01", "02", "10"]),
    "codes and numbers": (["1", "01", "2"], ["01", "1", "2"]),
    "booleans": (["true", "false", "true"], ["false", "true"]),
    "booleans of Python": (["True", "False", "True"], [False, True]),
    "whole numbers": (["1", "2", "3"], [1, 2, 3]),
    "whole numbers, some missing": (["1", "2", ""], [1, 2]),
    "fractions": (["1.0", "2.0", ""], [1.0, 2.0]),
    "fractions of two places": (["1.00", "2.00", "3.00"], ["1.00", "2.00", "3.00"]),
    "signs": (["+1", "-1", "+1"], ["+1", "-1"]),
    "one number in two ways": (["1", "1.0", "2"], [1, 2]),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_are_those_of_the_file(kind: str, tmp_path: Path) -> None:
    labels, classes = LABELS[kind]
    at = np.random.default_rng(0).integers(0, 3, 60)
    pd.DataFrame({"x": np.array(["a", "b", "c"])[at], "y": np.array(labels)[at]}).to_csv(
        tmp_path / "t.csv", index=False
    )
    path = str(tmp_path / "t.csv")
    options = FitOptions(
        target="y",
        methods="atn",
        max_epochs=1,
        device="cpu",
        save=str(tmp_path / "m"),
        test=path,
        validation_fraction=0,
    )
    notes = notes_of(lambda progress: fit_own_table(path, options, progress))
    predicted = predict_own_table(tmp_path / "m", path, PredictOptions())
    assert AttentionClassifier.load(tmp_path / "m").classes_.tolist() == classes
    assert [type(label) for label in AttentionClassifier.load(tmp_path / "m").classes_.tolist()] == [
        *map(type, classes)
    ]
    assert predicted.columns[3:].tolist() == [f"p({label})" for label in classes]
    equal = [note for note in notes if "the same number, so they are one class" in note]
    assert len(equal) == (kind == "one number in two ways")
    if not equal:
        write_table(predicted, tmp_path / "p.csv")
        assert set(pd.read_csv(tmp_path / "p.csv", dtype=str)["prediction"]) <= set(labels)


def test_typed_labels_keep_their_type(tmp_path: Path) -> None:
    """Those of Parquet, and of a frame; and a file of texts is measured by the labels of both kinds."""
    rows = pd.DataFrame({"x": ["a", "b"] * 20, "y": [True, False] * 20})
    rows.to_parquet(tmp_path / "t.parquet")
    rows.replace({"y": {True: "true", False: "false"}}).to_csv(tmp_path / "t.csv", index=False)
    for train, test, classes in (("parquet", "csv", [False, True]), ("csv", "parquet", ["false", "true"])):
        options = FitOptions(
            target="y", methods="lr", device="cpu", test=str(tmp_path / f"t.{test}"), min_frequency=1, n_bins=2
        )
        tables = read_tables(str(tmp_path / f"t.{train}"), options)
        rows, model = fit_table(tables, options)
        assert model.coding_.response.values == tuple(classes)
        assert rows["accuracy"].iloc[-1] == 1


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["01", "02", "03"], ("01", "02", "03")), (["1", "01", "2"], ("01", "1", "2")),
        (["1.50", "2.50", "3.50"], None),
        (["1.0", "2.0", "3.0"], (1, 2, 3)), (["TRUE", "FALSE", "FALSE"], ("FALSE", "TRUE")),
    ],
)  # fmt: skip
def test_filled_cells_are_written_as_the_others(
    cells: list[str], values: tuple[Any, ...] | None, tmp_path: Path
) -> None:
    path = str(tmp_path / "t.csv")
    table = pd.DataFrame({"code": cells * 20, "size": ["s", "m", "l"] * 20})
    table.to_csv(path, index=False)
    options = FitOptions(max_epochs=60, learning_rate=0.02, device="cpu", save=str(tmp_path / "m"), test=path)
    fit_own_table(path, options)
    if values is not None:
        assert AttentionImputer.load(tmp_path / "m").coding_.columns[0].values == values
    holes = table.assign(code=table["code"].where(table.index % 4 > 0, ""))
    holes.to_csv(path, index=False)
    write_table(impute_own_table(tmp_path / "m", path, RowsOptions()), tmp_path / "filled.csv")
    filled = pd.read_csv(tmp_path / "filled.csv", dtype=str)["code"]
    assert set(filled) <= set(cells)
    assert (filled == table["code"])[table.index % 4 > 0].all()


def test_codes_and_numbers_that_are_written_in_two_ways_are_noted(tmp_path: Path) -> None:
    table = pd.DataFrame({"code": ["01", "2"] * 20, "n": ["1", "1.0", "2", "2"] * 10, "y": ["u", "v"] * 20})
    table.to_csv(tmp_path / "t.csv", index=False)
    options = FitOptions(target="y", methods="lr", device="cpu")
    notes = notes_of(lambda progress: read_tables(str(tmp_path / "t.csv"), options, progress))
    assert_states(notes[0], "'code'", "'01'", "--column-type code:number")
    assert_states(notes[1], "'n'", "1, 1.0", "one category")
    numbers = FitOptions(target="y", methods="lr", device="cpu", column_types=["code:number"])
    notes = notes_of(lambda progress: read_tables(str(tmp_path / "t.csv"), numbers, progress))
    assert len(notes) == 1


def write_rows(folder: Path, rows: int = 80) -> str:
    random = np.random.default_rng(0)
    size, mass = random.choice(["s", "m"], rows), random.normal(size=rows)
    label = np.where(size == "s", "small", "large")
    frame = pd.DataFrame({"size": size, "mass": mass, "y": label})
    frame.loc[::9, "size"] = None
    frame.loc[5, "y"] = None
    frame.to_csv(folder / "rows.csv", index=False)
    return str(folder / "rows.csv")


def test_rows_that_are_held_out_have_a_label_and_do_not_train(tmp_path: Path) -> None:
    tables = read_tables(write_rows(tmp_path), FitOptions(target="y", test_size=0.2, random_state=3))
    assert len(tables.train_y) + len(tables.test_y) == 80
    assert len(tables.test_y) == 16
    assert tables.test_y.notna().all()
    assert not set(tables.train_y.index) & set(tables.test_y.index)
    assert 5 in tables.train_y.index
    again = read_tables(str(tmp_path / "rows.csv"), FitOptions(target="y", test_size=0.2, random_state=4))
    assert set(again.test_y.index) != set(tables.test_y.index)


def test_an_index_that_repeats_its_labels_loses_no_row(tmp_path: Path) -> None:
    rows = pd.read_csv(write_rows(tmp_path, 90))
    pd.concat([rows[:50], rows[50:].reset_index(drop=True)]).to_parquet(tmp_path / "rows.parquet")
    tables = read_tables(str(tmp_path / "rows.parquet"), FitOptions(target="y", test_size=0.2, random_state=3))
    again = pd.concat([tables.train_x, tables.test_x])
    assert sorted(again["mass"]) == sorted(rows["mass"])
    assert len(tables.test_y) == 18


def test_each_method_is_measured_on_the_same_rows(tmp_path: Path) -> None:
    options = FitOptions(target="y", methods="lr,atn", max_epochs=40, learning_rate=0.02, device="cpu")
    tables = read_tables(write_rows(tmp_path), options)
    rows, model = fit_table(tables, options)
    assert rows["method"].tolist() == ["frequencies", "lr", "atn"]
    assert (rows["accuracy"][1:] > 0.7).all()
    most = tables.train_y.value_counts().idxmax()
    assert rows["accuracy"][0] == (tables.test_y == most).mean()
    assert (rows["test_rows"] == 20).all()
    assert rows["mse"].isna().all()
    assert model is not None
    assert model.classes_.tolist() == ["large", "small"]


def notes_of(fit: Callable[[ProgressCallback], Any]) -> list[str]:
    reports: list[Progress] = []
    fit(reports.append)
    return [report.what for report in reports if report.phase == "note"]


@pytest.mark.parametrize(
    ("size", "verdict"),
    [(-0.1, None), (0.1, "as good"), (1.99, "as good"), (2.01, "better")],
)
def test_a_plain_model_is_better_from_two_standard_errors_on(size: float, verdict: str | None) -> None:
    spread = np.random.default_rng(0).normal(size=50)
    spread -= spread.mean()
    plain = np.full(50, 0.75)
    error = spread.std(ddof=1) / np.sqrt(50)
    notes = describe_better({"frequencies": plain + 9, "atn": plain + spread + size * error, "lr": plain})
    if verdict is None:
        assert notes == []
    else:
        (note,) = notes
        assert_states(note, verdict, "LR", "ATN", "0.750", f"{0.75 + size * error:.3f}", f"{error:.3f}")


def test_the_note_names_the_best_of_the_plain_models() -> None:
    losses = {name: np.array([loss, loss + 0.1]) for name, loss in (("frequencies", 1), ("atn", 2), ("rf", 3))}
    assert_states(describe_better(losses)[0], "better", "frequencies", "1.050", "2.050")
    assert describe_better({"frequencies": np.ones(2), "lr": np.zeros(2)}) == []
    assert_states(describe_better({name: loss[:1] for name, loss in losses.items()})[0], "as good")  # of one row


def test_attention_alone_is_compared_with_a_model_that_costs_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One epoch at a low rate is worse than logistic regression, whose score is that of a fit with both."""
    both = FitOptions(target="y", methods="atn,lr", max_epochs=1, learning_rate=1e-6, device="cpu")
    tables = read_tables(write_rows(tmp_path), both)
    rows = fit_table(tables, both)[0].set_index("method")
    alone = both.replace(methods="atn")
    (note,) = (note for note in notes_of(lambda bar: fit_table(tables, alone, bar)) if "plain model" in note)
    assert_states(note, "better", "LR", *(f"{rows.loc[name, 'log_loss']:.3f}" for name in ("lr", "atn")))
    numbers = 60 * (2 + 10) * 2  # rows, categories of both columns, classes
    for cheap in (numbers, numbers - 1):
        monkeypatch.setattr(measuring, "CHEAP_NUMBERS", cheap)
        notes = notes_of(lambda bar: fit_table(tables, alone, bar))
        assert any("for LR" in note for note in notes) == (cheap == numbers)


# A column of a file, and the facts of the note about it.
READ_OTHERWISE = {
    "an index": ("", [*range(40)], ["Unnamed: 0", "left out"]),
    "an index of texts": ("", [f"r{at}" for at in range(40)], ["Unnamed: 0", "left out"]),
    "Namibia": ("country", ["NA", "DE", "FR", "NA"] * 10, ["'country'", "'NA' (20×)", "--missing ''"]),
    "a text among numbers": ("age", [*range(39), "n/a"], ["'age'", "1", "'n/a' in row 40", "missing", "--column-type"]),
    "codes": ("shop", [at % 20 for at in range(200)], ["shop (20 values)", "--column-type shop:category"]),
    "codes, five times each": ("shop", [at % 24 for at in range(160)], ["shop (24 values)"]),  # of 120 to train with
    "codes, less often": ("shop", [at % 24 for at in range(158)], []),
    "no index": ("", [1, 2] * 20, []),
    "missing numbers": ("age", ["NA", 1, 2, 3] * 10, ["'age'", "'NA' (10×)", "missing"]),
    "quantities": ("age", [*range(20)] * 2, []),
    "numbers of rows": ("age", [*range(40)], ["'age'", "numbers the rows", "left out"]),
    "names of rows": ("name", [f"r{at}" for at in range(40)], ["'name'", "a different value", "left out"]),
    "units": ("mass", ["1 234 kg", "5,5 kg"] * 20, ["'mass'", "'1 234 kg'", "'kg'", "remove"]),
    "a currency": ("price", ["303,50 €", "$ 1,20", "9 USD", "1 €"] * 10, ["'price'", "'303,50 €'", "'€'"]),
    "a unit beside other texts": (
        "price",
        ["2.271 €", "303 €", "9 €", "- ", "k.A."] * 8,
        ["'2.271 €'", "--missing k.A."],
    ),
    "house numbers": ("house", ["12", "12a", "12b", "13"] * 10, []),
    "more house numbers": ("house", ["12", "12a", "12b", "13a"] * 10, []),
    "many texts among numbers": (
        "age",
        [10, 10, 20, "k. A."] * 10,
        ["'age'", "10 of 40", "numbers", "'k. A.' in row 4", "--column-type age:number"],
    ),
    "many texts among dates": (
        "day",
        ["31.01.2023", "01.02.2023", "01.02.2023", "-"] * 10,
        ["'day'", "10 of 40", "dates", "'-' in row 4", "--missing -"],
    ),
    "units beside plain numbers": (
        "mass",
        ["70 kg", "71", "70", "72 kg"] * 10,
        ["'mass'", "'70 kg'", "'kg'", "remove"],
    ),
    "a few units beside plain numbers": ("house", ["12", "12a", "12", "13a"] * 10, []),
    "rare texts": (
        "time",
        [*["10:00", "10:30", "11:00", "11:30", "12:00"] * 4, *["9:00"] * 10, *["9:30"] * 9, "23:00"],
        ["'time'", "21 of 40", "fewer than 5 rows", "--min-frequency"],
    ),
    "half of the texts rare": (
        "time",
        [*["10:00", "10:30", "11:00", "11:30", "12:00"] * 4, *["9:00"] * 10, *["9:30"] * 10],
        [],
    ),
    "half texts, half numbers": ("age", ["a", 10, 20, "k. A."] * 10, []),
    "codes among which are texts": ("zip", ["01067", "10115", "10117", "k. A."] * 10, []),
    "codes and texts": ("code", ["1", "a", "b", "c"] * 10, []),
}


@pytest.mark.parametrize("kind", READ_OTHERWISE)
def test_what_may_be_read_otherwise_than_expected_is_noted(kind: str, tmp_path: Path) -> None:
    name, cells, facts = READ_OTHERWISE[kind]
    table = pd.DataFrame({name: cells, "size": ["s", "m"] * (len(cells) // 2)}).assign(y=lambda rows: rows["size"])
    path = str(tmp_path / "rows.csv")
    table.to_csv(path, index=False)
    options = FitOptions(target="y", methods="lr", unseen="mask", device="cpu")
    found = notes_of(lambda progress: fit_own_table(path, options, progress))
    assert len(found) == bool(facts)
    for note in found:
        assert_states(note, *facts)
    columns = read_tables(path, options).train_x.columns.tolist()
    assert columns == (["size"] if "left out" in facts else [name or "Unnamed: 0", "size"])


def test_missing_cells_are_noted_but_for_texts_that_the_user_names(tmp_path: Path) -> None:
    table = pd.DataFrame({"size": ["s", "m", "NA", "-"] * 10, "y": ["u", "v"] * 20})
    path = str(tmp_path / "rows.csv")
    table.to_csv(path, index=False)
    sizes = {}
    for missing in (["-"], ["", "-"]):
        options = FitOptions(target="y", methods="lr", missing=missing, device="cpu")
        notes = notes_of(lambda progress: fit_own_table(path, options, progress))  # noqa: B023
        sizes[len(notes)] = {*read_tables(path, options).train_x["size"].dropna()}
        for note in notes:
            assert_states(note, "'size'", "'NA' (10×)", "--missing ''")
            assert "'-'" not in note
    assert sizes == {1: {"s", "m"}, 0: {"s", "m", "NA"}}


def test_a_text_of_missing_cells_that_no_cell_has_is_noted(tmp_path: Path) -> None:
    path = write(tmp_path, "size,n,y\n" + "s,1,u\nm,2,v\n-,3,u\ns,999.0,v\n" * 10)
    for missing, count in ((["-", "k. A."], 1), (["-,k. A."], 1), (["-", "", "999"], 0)):
        options = FitOptions(target="y", methods="lr", missing=missing, device="cpu")
        notes = notes_of(lambda progress: read_tables(path, options, progress))  # noqa: B023
        absent = [note for note in notes if "no cell" in note]
        assert len(absent) == count
        for note in absent:
            assert_states(note, path, repr(missing[-1]), "--missing")


def test_a_few_texts_among_decimal_commas_are_missing_numbers(tmp_path: Path) -> None:
    """And all cells are categories if the user says so."""
    prices = [f"{number},5" for number in range(39)]
    lines = [f"{price};{label}" for price, label in zip([*prices, "k.A."], ["u", "v"] * 20, strict=True)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["price;y", *lines]) + "\n")
    options = FitOptions(target="y", methods="lr", device="cpu", test=str(path))
    notes: list[Progress] = []
    tables = read_tables(str(path), options, notes.append)
    assert tables.train_x["price"].tolist()[:-1] == [number + 0.5 for number in range(39)]
    assert np.isnan(tables.train_x["price"].iloc[-1])
    (note,) = (report.what for report in notes if "'k.A.'" in report.what)
    assert_states(note, "'price'", 1, "row 40", "missing", "--column-type price:category")
    chosen = FitOptions(**{**dict(options), "column_types": {"price": "category"}})
    assert read_tables(str(path), chosen).train_x["price"].tolist() == [*prices, "k.A."]


# Cells of a column beside a few texts, the separator of their file, and the numbers that they are.
BESIDE_TEXTS = {
    "points between thousands": (["1.234", "2.500", "980"], ";", [1234, 2500, 980]),
    "spaces and a decimal comma": (["1 234,5", "7,25", "980"], ";", [1234.5, 7.25, 980]),
    "apostrophes": (["1'234.5", "7.25", "980"], ",", [1234.5, 7.25, 980]),
    "percent": (["12%", "7.5 %", "3%"], ",", [12, 7.5, 3]),
    "decimal points": (["1.234", "2.500", "980"], ",", [1.234, 2.5, 980]),
    "two forms": (["1,5", "2.5", "980"], ";", [1.5, 2.5, 980]),
}


@pytest.mark.parametrize("form", BESIDE_TEXTS)
def test_numbers_beside_a_few_texts_are_those_of_the_form_of_the_file(form: str, tmp_path: Path) -> None:
    """In training, in test rows, at prediction and if the user says that they are numbers."""
    cells, separator, values = BESIDE_TEXTS[form]
    table = pd.DataFrame({"price": [*cells * 13, "k.A."], "town": ["s", "m"] * 20, "y": ["u", "v"] * 20})
    path, other = str(tmp_path / "t.csv"), str(tmp_path / "other.csv")
    table.to_csv(path, index=False, sep=separator)
    table.replace("k.A.", "unknown").to_csv(other, index=False, sep=separator)
    options = FitOptions(target="y", methods="atn", max_epochs=1, device="cpu", test=other, save=str(tmp_path / "m"))
    tables = read_tables(path, options)
    assert tables.train_x["price"].tolist()[:-1] == values * 13
    assert tables.test_x["price"].tolist() == [*values * 13, "unknown"]
    chosen = read_tables(path, options.replace(column_types=["price:number"]))
    assert chosen.train_x["price"].tolist()[:-1] == values * 13
    notes = notes_of(lambda progress: fit_own_table(path, options, progress))
    (note,) = (note for note in notes if "'k.A.'" in note)
    assert (f"{cells[0]!r} is read as {values[0]:g}" in note) == (form not in ("decimal points",))
    known = predict_own_table(tmp_path / "m", path, PredictOptions())
    pd.testing.assert_frame_equal(predict_own_table(tmp_path / "m", other, PredictOptions()), known)
    filled = impute_own_table(tmp_path / "m", path, RowsOptions())
    assert filled["price"].astype(str).tolist()[:-1] == table["price"].tolist()[:-1]


def test_free_texts_are_noted(tmp_path: Path) -> None:
    """Texts that most rows have alone are categories that say nothing of other rows."""
    comments = [f"comment {row}" for row in range(38)] + ["the same"] * 2
    table = pd.DataFrame({"comment": comments, "size": ["s", "m"] * 20}).assign(y=lambda rows: rows["size"])
    path = str(tmp_path / "rows.csv")
    table.to_csv(path, index=False)
    options = FitOptions(target="y", methods="lr", device="cpu")
    (note,) = notes_of(lambda progress: fit_own_table(path, options, progress))
    assert_states(note, path, "'comment'", 39, 40, "--drop")
    kept = FitOptions(target="y", methods="lr", device="cpu", column_types=["comment:category"])
    assert notes_of(lambda progress: fit_own_table(path, kept, progress)) == []


def test_numbers_with_points_and_commas_are_noted_beside_the_option_that_reads_both(tmp_path: Path) -> None:
    cells = [f"{row},5" if row % 4 else f"{row}.5" for row in range(38)] + ["0.5", "0.5"]
    path = str(tmp_path / "rows.csv")
    pd.DataFrame({"size": cells, "shop": ["s", "m"] * 20, "y": ["u", "v"] * 20}).to_csv(path, index=False)
    options = FitOptions(target="y", methods="lr", device="cpu")
    forms, texts = notes_of(lambda progress: fit_own_table(path, options, progress))
    assert_states(forms, path, "'size'", "28 with a decimal comma", "'1,5' in row 2", "12 with a decimal point")
    assert_states(texts, "'size'", "--column-type size:number")


def test_what_is_unlike_the_training_rows_is_noted_at_prediction(tmp_path: Path) -> None:
    """Texts that are new, by column, and what becomes of them and of dates in another form."""
    days = pd.date_range("2023-01-20", periods=40)
    table = pd.DataFrame({"day": days.strftime("%Y-%m-%d"), "town": ["Ulm", "Bonn"] * 20, "y": ["u", "v"] * 20})
    path = str(tmp_path / "t.csv")
    table.to_csv(path, index=False)
    fit_own_table(path, FitOptions(target="y", methods="atn", max_epochs=1, device="cpu", save=str(tmp_path / "m")))
    asked = table.assign(day=days.strftime("%d.%m.%Y")).head(5)
    asked.loc[[1, 4], "town"] = ["Köln", "Kiel"]
    asked.loc[2, "town"] = ""
    asked.to_csv(path, index=False)
    for unseen, outcome in (("category", "a category of their own"), ("mask", "missing")):
        options = PredictOptions(unseen=unseen)
        dates, towns = notes_of(lambda progress: predict_own_table(tmp_path / "m", path, options, progress))  # noqa: B023
        assert_states(dates, "'day'", "5 of 5", "'2023-01-20'", "'20.01.2023' in row 1 as 2023-01-20")
        assert_states(towns, "'town'", "2 of 4", "'Köln' in row 2", outcome)


def test_whole_numbers_in_bins_are_filled_with_one_of_them() -> None:
    table = pd.DataFrame({"shop": [*range(1, 25)] * 5, "size": ["s", "m"] * 60})
    model = AttentionImputer(max_epochs=1, n_bins=10, random_state=0, device="cpu").fit(table)
    holes = table.astype({"shop": "Int64"}).head(6)
    holes.loc[1, "shop"] = pd.NA
    filled = impute_rows(model, holes)["shop"].tolist()
    assert isinstance(filled[1], int)
    assert filled[1] in set(table["shop"])
    assert filled[2:] == table["shop"].tolist()[2:6]


def test_an_error_names_the_row_of_the_file_of_test_rows(tmp_path: Path) -> None:
    train, test = str(tmp_path / "train.csv"), str(tmp_path / "test.csv")
    pd.DataFrame({"age": [1, 2] * 20, "y": ["u", "v"] * 20}).to_csv(train, index=False)
    pd.DataFrame({"age": [1, 2, "n/a"], "y": ["u", None, "v"]}).to_csv(test, index=False)
    options = FitOptions(target="y", test=test, methods="lr", unseen="error")
    with refuses(TableError, f"{test}: row 3: column 'age': 'n/a'", "--unseen mask"):
        fit_own_table(train, options)


@pytest.mark.parametrize("kind", ["whole numbers", "booleans", "fractions"])
def test_one_text_costs_one_row_of_the_test_file(kind: str, tmp_path: Path) -> None:
    """Of 60 rows whose column decides the label, all are right, or all but the one whose cell is masked."""
    ranks = np.arange(120) % 2
    column = {"whole numbers": ranks + 5, "booleans": ranks == 1, "fractions": ranks / 2 + 0.25}[kind]
    table = pd.DataFrame({"a": column, "b": np.arange(120) // 2 % 3, "y": np.where(ranks, "u", "v")})
    train, test = str(tmp_path / "train.csv"), str(tmp_path / "test.csv")
    table[:60].to_csv(train, index=False)
    found = []
    for changed in (table["a"], table["a"].astype(str).where(table.index != 77, "n/a")):
        table.assign(a=changed)[60:].to_csv(test, index=False)
        options = FitOptions(target="y", test=test, methods="lr", unseen="mask")
        found.append(fit_own_table(train, options)["accuracy"].iloc[-1])
    assert found[0] == 1
    assert 59 / 60 <= found[1] <= 1


def test_the_error_of_ordered_labels_is_that_of_their_ranks(tmp_path: Path) -> None:
    """Their dtype has an order that is not the alphabet's."""
    random = np.random.default_rng(0)
    ranks = random.integers(0, 3, 80)
    table = pd.DataFrame({"step": np.where(random.random(80) < 0.5, ranks, random.integers(0, 3, 80))})
    found = []
    for labels in (ranks, pd.Categorical.from_codes(ranks, ["mid", "low", "top"], ordered=True)):
        table.assign(y=labels).to_parquet(tmp_path / "t.parquet")
        options = FitOptions(target="y", methods="lr")
        found.append(fit_table(read_tables(str(tmp_path / "t.parquet"), options), options)[0]["mse"].iloc[-1])
    assert found[0] == found[1] > 0


@pytest.mark.slow
def test_baselines_train_on_all_rows_though_early_stopping_holds_some_out(tmp_path: Path) -> None:
    found = []
    for options in ({}, {"validation_fraction": 0.5, "patience": 1}):
        chosen = FitOptions(target="y", methods="lr,rf", max_epochs=2, device="cpu", **options)
        found.append(fit_table(read_tables(write_rows(tmp_path), chosen), chosen)[0])
    pd.testing.assert_frame_equal(*found)


@pytest.mark.parametrize(
    ("text", "kind", "facts"),
    [
        ("a,b,a\n1,2,3\n", TableError, ["'a'", "rename"]),
        ("a,b\n", TableError, ["0 rows"]),
        ("", TableError, ["t.csv"]),
        ('a,b\n"1,2\n', TableError, ["t.csv"]),
        ("y\n1\n2\n", TableError, ["'y'", "only"]),
        ("a,z\n1,2\n2,3\n", UnknownColumnError, ["'y'", "a, z"]),
    ],
)
def test_files_that_are_no_table_are_refused(text: str, kind: type[Any], facts: list[object], tmp_path: Path) -> None:
    with refuses(kind, *facts):
        read_tables(write(tmp_path, text), FitOptions(target="y"))


def test_a_first_line_that_is_longer_than_what_is_looked_at_may_have_rows(tmp_path: Path) -> None:
    name = "x" * HEAD_BYTES
    path = write(tmp_path, f"{name},y\na,n\nb,y\n")
    assert list(read_tables(path, FitOptions(target="y")).train_x.columns) == [name]


def test_columns_that_options_name_are_wrong_usage(tmp_path: Path) -> None:
    """So is a name in another case, of which the message has the right one."""
    path = write_rows(tmp_path)
    for options, facts in (
        ({"target": "Y"}, ["'Y'", "did you mean y?"]),
        ({"target": "y", "column_types": ["SIZE:category"]}, ["'SIZE'", "did you mean size?"]),
        ({"target": "y", "drop": ["length"]}, ["'length'"]),
    ):
        with refuses(UnknownColumnError, path, *facts) as caught:
            read_tables(path, FitOptions(**options))
        assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (b"a,b,y\n1,2,3\n4,5,6,7\n", ["line 3 has 4 cells", "expected 3", "quotation marks"]),
        (b'a,b,y\n1,2,3\n4,"5,6\n7,8,9\n', ["row 2", "quotation mark", "--no-quotes"]),
        (b"a,b,y\n1,2,3\n4,5\0,6\n", ["line 3", "NUL byte", "--encoding"]),
    ],
)
def test_a_broken_file_is_refused_by_its_line(content: bytes, facts: list[str], tmp_path: Path) -> None:
    path = tmp_path / "broken.csv"
    path.write_bytes(content)
    with refuses(TableError, path, *facts) as caught:
        read_own_table(path)
    assert "tokenizing" not in str(caught.value)


def test_rows_with_fewer_cells_than_columns_are_noted(tmp_path: Path) -> None:
    (note,) = notes_of(lambda bar: read_own_table(write(tmp_path, "a,b,y\n1,2,3\n\n4,5\n6\n7,8,9\n"), progress=bar))
    assert_states(note, "2 rows", "line 4 has 2 of 3", "missing")
    assert notes_of(lambda bar: read_own_table(write(tmp_path, "a,b,y\n1,2,\n7,8,9\n"), progress=bar)) == []


def test_a_target_of_fractions_is_refused_with_one_of_them(tmp_path: Path) -> None:
    path = write(tmp_path, "a,y\n" + "".join(f"{row % 2},{row / 4}\n" for row in range(40)))
    with refuses(TableError, "'y'", "0.25 in row 2", "classes", "pandas.qcut") as caught:
        fit_own_table(path, FitOptions(target="y", methods="lr", test_size=0.1, device="cpu"))
    assert "classifier" not in str(caught.value)


def test_a_kind_that_cells_with_units_lack_is_refused_with_the_unit(tmp_path: Path) -> None:
    path = write(tmp_path, "a,y\n" + "303 kg,u\n5 kg,v\n" * 20)
    with refuses(TableError, path, "'a'", "'303 kg'", "unit 'kg'"):
        read_tables(path, FitOptions(target="y", column_types=["a:number"]))


@pytest.mark.parametrize("other", ["-", "k.A.", "7"])
def test_a_unit_beside_a_few_other_cells_is_refused_too(other: str, tmp_path: Path) -> None:
    path = write(tmp_path, "a,y\n" + f"303 kg,u\n5 kg,v\n{other},v\n" * 20)
    with refuses(TableError, path, "'a'", "'303 kg'", "unit 'kg'") as caught:
        read_tables(path, FitOptions(target="y", column_types=["a:number"]))
    assert (f"--missing {other}" in str(caught.value)) == (other != "7")


def test_other_bad_input_is_refused(tmp_path: Path) -> None:
    with refuses(DataUnavailableError, tmp_path / "no.csv"):
        read_own_table(tmp_path / "no.csv")
    with refuses(DataUnavailableError, "rows.xlsx", ".csv"):
        read_own_table("rows.xlsx")
    (tmp_path / "rows.xlsx").write_bytes(b"PK")
    with refuses(TableError, tmp_path / "rows.xlsx", ".csv"):
        read_own_table(tmp_path / "rows.xlsx")
    path = write_rows(tmp_path)
    with refuses(UnknownColumnError, "'sise'", "size"):
        read_tables(path, FitOptions(target="sise"))
    other = write(tmp_path, "size,y\ns,small\n")
    with refuses(TableError, other, "'mass'"):
        read_tables(path, FitOptions(target="y", test=other))
    with refuses(UsageError, "nn", "methods"):
        FitOptions(target="y", methods="atn,nn")
    (tmp_path / "bin.csv").write_bytes(b"\xff\xfe\x00a")
    with refuses(TableError, tmp_path / "bin.csv"):
        read_own_table(tmp_path / "bin.csv")
    unlabelled = write(tmp_path, "size,mass,y\ns,1.0,\n", "u.csv")
    options = FitOptions(target="y", test=unlabelled, methods="lr")
    with refuses(TableError, "no test row has a label"):
        fit_table(read_tables(path, options), options)


@pytest.fixture(scope="module")
def model() -> AttentionClassifier:
    draw = np.random.default_rng(0)
    x = pd.DataFrame({"colour": draw.choice(["red", "blue"], 40), "size": draw.integers(0, 3, 40)})
    return AttentionClassifier(max_epochs=2, random_state=0).fit(x, pd.Series(x["colour"] == "red", name="warm"))


def test_the_attention_of_each_cell_sums_to_one(model: AttentionClassifier) -> None:
    table = pd.DataFrame({"colour": ["blue", None], "size": [2, 1]})
    rows = tabulate_attention(model, table)
    sums = rows.groupby(["row", "cell", "head"])["attention"].sum()
    assert len(sums) == 2 * 3 * model.n_heads
    np.testing.assert_allclose(sums, 1, atol=1e-5)
    values = [dict(zip(own["on"], own["value"], strict=True)) for _, own in rows.groupby("row")]
    assert values == [{"colour": "blue", "size": "2", "warm": MASK}, {"colour": MASK, "size": "1", "warm": MASK}]
    first = rows[(rows["row"] == 2) & (rows["head"] == 1) & (rows["cell"] == "size") & (rows["on"] == "colour")]
    assert first["attention"].item() == pytest.approx(model.attention(table)[1, 1, 1, 0])


def test_an_unseen_value_that_is_masked_is_shown_as_masked(model: AttentionClassifier) -> None:
    masking = (
        clone(model)
        .set_params(unseen="mask")
        .fit(pd.DataFrame({"colour": ["red", "blue"] * 4, "size": [0, 1] * 4}), pd.Series([0, 1] * 4, name="warm"))
    )
    rows = tabulate_attention(masking, pd.DataFrame({"colour": ["green"], "size": [1]}))
    assert dict(zip(rows["on"], rows["value"], strict=True)) == {"colour": MASK, "size": "1", "warm": MASK}


def test_medians_of_bins_have_no_needless_digits() -> None:
    table = pd.DataFrame(
        {"year": [1937, 1940, 1951, 1960, 1972] * 4, "share": [0.1, 0.2, 0.30000000000000004] * 6 + [0.5] * 2}
    )
    model = AttentionClassifier(max_epochs=1, n_bins=3, random_state=0).fit(table, pd.Series([0, 1] * 10, name="y"))
    rows = tabulate_encodings(model)
    assert rows[rows["column"] == "year"]["value"].tolist() == ["1937", "1951", "1972"]
    assert "0.3" in set(rows[rows["column"] == "share"]["value"])


def test_encodings_keep_the_distances_that_two_dimensions_can(model: AttentionClassifier) -> None:
    rows = tabulate_encodings(model)
    assert set(zip(rows["column"], rows["value"], strict=True)) >= {("colour", "red"), ("size", "2"), ("warm", "True")}
    placed = rows[["x", "y"]].to_numpy()
    whole = model.category_encodings_.to_numpy() + model.feature_encodings_[[0, 0, 1, 1, 1, 2, 2]]
    whole -= whole.mean(0)
    np.testing.assert_allclose(placed.mean(0), 0, atol=1e-6)
    values = np.linalg.svd(whole, compute_uv=False)
    np.testing.assert_allclose(np.linalg.norm(placed, axis=0), values[:2], rtol=1e-4)
    pd.testing.assert_frame_equal(rows, tabulate_encodings(model))


def test_encodings_of_one_number_lie_on_a_line() -> None:
    table = pd.DataFrame({"size": ["s", "m", "l"] * 4})
    model = AttentionClassifier(max_epochs=1, n_heads=1, head_size=1, random_state=0).fit(table, [0, 1, 1] * 4)
    rows = tabulate_encodings(model)
    assert rows["value"].tolist()[:3] == ["l", "m", "s"]
    assert rows["x"].std() > 0
    np.testing.assert_allclose(rows["y"], 0, atol=1e-6 * rows["x"].abs().max())


def test_cells_are_hidden_without_a_target_only_unless_the_user_says_so() -> None:
    assert FitOptions().hidden_share == 0.5
    assert FitOptions(target="y").hidden_share == 0
    assert FitOptions(target="y", hidden_share=0.2).hidden_share == 0.2
