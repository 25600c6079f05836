"""Several files as one table: which cells are missing, what is learned from all of them, and what is noted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.messages import assert_states, refuses

from attngeo.errors import TableError
from attngeo.estimators import AttentionClassifier
from attngeo.estimators.tabular.files import fit_own_table, predict_own_table, read_files, read_tables
from attngeo.estimators.tabular.options import ClassifierOptions, FitOptions, PredictOptions
from attngeo.progress import Progress


def write_files(folder: Path, *tables: dict[str, Any]) -> list[str]:
    """Write tables to files a.csv, b.csv and so on; their paths."""
    paths = []
    for name, table in zip("abc", tables, strict=False):
        pd.DataFrame(table).to_csv(folder / f"{name}.csv", index=False)
        paths.append(str(folder / f"{name}.csv"))
    return paths


def read_notes(paths: list[str], options: FitOptions) -> list[str]:
    notes: list[str] = []
    read_files(paths, options, lambda event: notes.append(event.what))
    return notes


def test_rows_are_joined_by_the_names_of_columns(tmp_path: Path) -> None:
    first = {"y": ["u", "v"], "empty": [None, None], "common": [1, 2], "own": ["s", None]}
    second = {"other": [0.5, 1.5, 2.5], "common": [3, 4, 5], "y": ["v", "u", None]}
    joined = read_files(write_files(tmp_path, first, second), FitOptions(target="y"))
    expected = {
        "y": ["u", "v", "v", "u", None],
        "empty": [None] * 5,
        "common": [1, 2, 3, 4, 5],
        "own": ["s", None, None, None, None],
        "other": [None, None, 0.5, 1.5, 2.5],
    }
    pd.testing.assert_frame_equal(
        joined.astype(object).where(joined.notna(), None), pd.DataFrame(expected, dtype=object), check_column_type=False
    )


def test_labels_are_learned_from_each_file_and_predicted_for_rows_of_one(tmp_path: Path) -> None:
    """Only B shows what the shared column says about labels, and only A what its own column says.

    In A the shared column has a value that B does not have, and A's own column decides; in B the shared column does.
    """
    draw = np.random.default_rng(0)
    own, common, extra = draw.integers(2, size=(3, 60))
    first = {"common": ["none"] * 60, "own": own, "y": own}
    second = {"common": np.where(common, "high", "low"), "extra": extra, "y": common}
    paths = write_files(tmp_path, first, second)
    options = FitOptions(target="y", test=paths[0], max_epochs=40, validation_fraction=0, dropout=0, device="cpu")
    tables = read_tables(paths, options)
    values = {name: getattr(options, name) for name in ClassifierOptions.model_fields}
    model = AttentionClassifier(**values).fit(tables.train_x, tables.train_y)
    assert model.predict(tables.test_x).tolist() == own.tolist()
    rows = pd.DataFrame({"common": ["low", "high"], "own": [None, None], "extra": [None, None]})
    assert model.predict(rows).tolist() == [0, 1]


def fit_two_files(folder: Path) -> tuple[str, list[str]]:
    """A saved model, and its files, which have the target and a feature in common."""
    draw = np.random.default_rng(1)
    common, own = draw.choice(["s", "m"], 80), draw.integers(3, size=80)
    days = [f"2023-{month:02}-{day:02}" for month in (1, 2, 3, 4) for day in range(1, 21)]
    first = {"common": common, "own": own, "y": common == "s"}
    paths = write_files(folder, first, {"common": common, "day": days, "y": common == "s"})
    model = str(folder / "model")
    fit_own_table(paths, FitOptions(target="y", max_epochs=2, save=model, methods="atn", device="cpu"))
    return model, paths


def test_rows_may_lack_the_columns_that_a_training_file_lacked(tmp_path: Path) -> None:
    """They are predicted as rows with empty cells there, also if the column has dates; other columns are needed."""
    model, paths = fit_two_files(tmp_path)
    for path, lacks in zip(paths, ("day", "own"), strict=True):
        rows = pd.read_csv(path)
        rows.assign(**{lacks: None}).to_csv(tmp_path / "empty.csv", index=False)
        complete = predict_own_table(model, str(tmp_path / "empty.csv"), PredictOptions())
        events: list[Progress] = []
        predicted = predict_own_table(model, path, PredictOptions(), events.append)
        pd.testing.assert_frame_equal(predicted, complete)
        (note,) = [event.what for event in events if "missing" in event.what]
        assert_states(note, path, lacks)
        rows.drop(columns="common").to_csv(tmp_path / "thin.csv", index=False)
        with refuses(TableError, "thin.csv", "'common'", "common, own, day"):
            predict_own_table(model, str(tmp_path / "thin.csv"), PredictOptions())


def test_a_model_of_one_file_or_an_older_version_needs_all_columns(tmp_path: Path) -> None:
    model, paths = fit_two_files(tmp_path)
    config = json.loads((tmp_path / "model" / "config.json").read_text("utf-8"))
    assert {*config.pop("partial_columns")} == {"own", "day"}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config), "utf-8")
    with refuses(TableError, "a.csv", "'day'"):
        predict_own_table(model, paths[0], PredictOptions())
    alone = str(tmp_path / "alone")
    fit_own_table(paths[0], FitOptions(target="y", max_epochs=1, save=alone, methods="atn", device="cpu"))
    assert "partial_columns" not in (tmp_path / "alone" / "config.json").read_text("utf-8")
    with refuses(TableError, "b.csv", "'own'"):
        predict_own_table(alone, paths[1], PredictOptions())


def test_rows_without_any_known_column_are_refused(tmp_path: Path) -> None:
    """The files have the target alone in common, so that rows of each lack columns, but not all of them."""
    first = {"x": ["s", "m"] * 20, "y": [0, 1] * 20}
    paths = write_files(tmp_path, first, {"z": ["p", "q"] * 20, "y": [0, 1] * 20}, {"w": [1, 2], "y": [0, 1]})
    model = str(tmp_path / "model")
    fit_own_table(paths[:2], FitOptions(target="y", max_epochs=1, save=model, methods="atn", device="cpu"))
    assert len(predict_own_table(model, paths[0], PredictOptions())) == 40
    with refuses(TableError, "c.csv", "'x'", "x, z"):
        predict_own_table(model, paths[2], PredictOptions())


KINDS: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "texts and numbers": ({"x": [1.5, 2.5] * 9}, {"x": ["big", "small"] * 9}, ["b.csv", "'x'", "'big'", "a.csv"]),
    "numbers after texts": ({"x": ["big", "small"] * 9}, {"x": [1.5, 2.5] * 9}, ["a.csv", "'x'", "'big'", "b.csv"]),
    "numbers and a few texts": ({"x": [1.5, 2.5] * 9}, {"x": [*[3.5] * 17, "k. A."]}, []),
    "an empty column and texts": ({"x": [None] * 18}, {"x": ["big", "small"] * 9}, []),
    "numbers in other ranges": ({"x": [1.5, 2.5] * 9}, {"x": [150, 250] * 9}, []),
    "no label in common": ({"y": ["hi", "lo"] * 9}, {"y": ["HI", "LO"] * 9}, ["b.csv", "'y'", "'HI'", "'hi'", "a.csv"]),
    "no number in common as a label": ({"y": [0, 1] * 9}, {"y": [2, 3] * 9}, ["b.csv", "'y'", 0, 2, "a.csv"]),
    "one label in common": ({"y": ["hi", "lo"] * 9}, {"y": ["hi", "LO"] * 9}, []),
    "equal numbers as labels": ({"y": ["0", "1"] * 9}, {"y": ["0.0", "1.0"] * 9}, []),
    "no text in common": ({"x": ["s", "m"] * 9}, {"x": ["S", "M"] * 9}, ["b.csv", "'x'", "'S'", "'s'", "a.csv"]),
    "free texts": ({"x": [f"a{row}" for row in range(30)]}, {"x": [f"b{row}" for row in range(30)]}, []),
    "dates": ({"x": ["2021-01-31", "2021-02-28"] * 9}, {"x": ["2022-01-31", "2022-02-28"] * 9}, []),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_of_two_meanings_is_noted(kind: str, tmp_path: Path) -> None:
    *tables, facts = KINDS[kind]
    rows = [len(next(iter(table.values()))) for table in tables]
    complete = [{"z": ["p", "q"] * (count // 2), "y": ["hi", "lo"] * (count // 2)} for count in rows]
    paths = write_files(tmp_path, *(plain | table for plain, table in zip(complete, tables, strict=True)))
    notes = [note for note in read_notes(paths, FitOptions(target="y")) if "rename" in note]
    assert len(notes) == bool(facts)
    for note in notes:
        assert_states(note, *facts)


@pytest.mark.parametrize("changed", [{"drop": "x"}, {"columns": "z"}, {"column_types": "x:category"}])
@pytest.mark.parametrize("cells", [[1.5, 2.5], ["s", "m"]])
def test_a_column_that_the_user_decides_about_has_no_note(
    cells: list[Any], changed: dict[str, str], tmp_path: Path
) -> None:
    first = {"x": cells * 9, "z": ["p", "q"] * 9, "y": ["hi", "lo"] * 9}
    paths = write_files(tmp_path, first, first | {"x": ["big", "small"] * 9})
    assert len(read_notes(paths, FitOptions(target="y"))) == 1
    assert read_notes(paths, FitOptions(target="y", **changed)) == []


def test_values_of_any_earlier_file_are_in_common(tmp_path: Path) -> None:
    sizes = (["s", "m"], ["m", "l"], ["l", "xl"])
    paths = write_files(tmp_path, *({"x": size * 9, "y": ["hi", "lo"] * 9} for size in sizes))
    assert read_notes(paths, FitOptions(target="y")) == []
    (note,) = read_notes([paths[0], paths[2]], FitOptions(target="y"))
    assert_states(note, "c.csv", "'x'", "'l'", "a.csv")
