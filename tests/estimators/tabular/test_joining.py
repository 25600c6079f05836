"""Several files as one table: which cells are missing, what is learned from all of them, and what is noted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.messages import assert_states

from attngeo.estimators import AttentionClassifier
from attngeo.estimators.tabular.files import read_files, read_tables
from attngeo.estimators.tabular.options import ClassifierOptions, FitOptions


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
