"""Cells of a column are read one by one, as the training read the column."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from attngeo.estimators.shared.cells import UNKNOWN, find_values, read_like_numbers, read_numbers

NO = UNKNOWN
# Cells of a column, the known values, and the number of each cell among them.
CELLS: dict[str, tuple[Any, list[Any], list[int]]] = {
    "one text among whole numbers": (["1", "2", "n/a", "3"], [1, 2, 3], [0, 1, NO, 2]),
    "a missing cell makes numbers have fractions": ([1.0, None, 3.0], [1, 2, 3], [0, NO, 2]),
    "numbers where the training had texts": ([1.0, None, 2.0], ["1", "2", "n/a"], [0, NO, 1]),
    "texts are themselves first": (["01", "1", 1], ["01", "1"], [0, 1, 1]),
    "what pandas reads as one number": ([" 1", "1 ", "+1", "1.0", "1e0", "01"], [1, 2], [0] * 6),
    "what pandas reads as no number": (["1_0", "0x1", "1,0", "\u0661", "", "nan"], [1, 10, 16], [NO] * 6),
    "booleans": (["True", "false", "TRUE", "n/a", "yes"], [False, True], [1, 0, 1, NO, NO]),
    "no boolean is a number": (["True", "1"], [0, 1], [NO, 1]),
    "all digits": (["9007199254740993", "x"], [2**53, 2**53 + 1], [1, NO]),
    "fractions": (["0.5", "0.50", "x"], [0.25, 0.5], [1, 1, NO]),
    "fractions in single precision": ([np.float32(0.1), 0.1, 0.1 * 3 / 3, "0.10000000149011612"], [0.1, 1.5], [0] * 4),
    "fractions of single precision": ([0.1, "0.1", 0.1001], [float(np.float32(0.1)), 2.0], [0, 0, NO]),
    "fractions that are one in single precision": ([np.float32(0.1), 0.1], [0.1, 0.1 + 1e-10], [NO, 0]),
    "a whole number near a fraction": ([1.0, "2.00000001", 2.0], [1.00000001, 2], [0, NO, 1]),
    "a fraction near a whole number": ([np.nextafter(2, 3), 2.0], [1.5, 2.0], [1, 1]),
    "whole numbers near one another": ([2.0**26 + 1, 2.0**26], [2.0**26 + 2, 2.0**26, 0.5], [NO, 1]),
    "texts and numbers": ([1, "a", "1", None], [1, "a"], [0, 1, 0, NO]),
    "dates": (pd.to_datetime(["2020-01-01"]), [1, 2], [NO]),
    "nothing known": ([1, "a", "True"], [], [NO, NO, NO]),
}


@pytest.mark.parametrize("kind", CELLS)
def test_a_cell_is_found_whatever_the_other_cells_are(kind: str) -> None:
    cells, known, expected = CELLS[kind]
    column = pd.Series(cells)
    assert find_values(column, known).tolist() == expected
    for place, number in enumerate(expected):
        for alone in (column[[place]], column[[place]].infer_objects(), column[[place]].astype(object)):
            assert find_values(alone, known).tolist() == [number]


def test_a_code_is_no_number_where_codes_are_told_apart() -> None:
    assert find_values(pd.Series(["01", "1", "x"]), [1], are_codes=True).tolist() == [NO, 0, NO]


@pytest.mark.parametrize("known", [[0, 1, 7, 30], [-0.5, 1e5, 3.25], [True, False]])
def test_texts_of_a_file_are_found_as_pandas_reads_a_column_of_them(known: list[Any]) -> None:
    texts = pd.Series(known).astype(str)
    found = find_values(pd.concat([texts, pd.Series(["other"])]), known)
    np.testing.assert_array_equal(found, [*range(len(known)), NO])


@pytest.mark.parametrize("others", [[], [2**70], [None], ["x"]])
def test_a_whole_number_that_no_float_has_is_infinite(others: list[Any]) -> None:
    numbers = read_numbers(pd.Series([1, -(10**400), *others], dtype=object))
    assert numbers[:2].tolist() == [1, -np.inf]
    expected = [float(other) if isinstance(other, int) else np.nan for other in others]
    np.testing.assert_array_equal(numbers[2:], expected)


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (["7,5", "-0,25", " ,5 ", "1,5e2"], [7.5, -0.25, 0.5, 150]),
        (["7,5", "1,000", "16.022", "16.022,29", "3"], [7.5, 1, 16022, 16022.29, 3]),
        (["1,000", "16.022", "3"], [None, 16.022, 3]),  # thousands, or a fraction
        (["0,500", "1,000"], [0.5, 1]),
        (["1,000,000", "7,5 kg", "soon", None, ""], [None] * 5),
        (["7,5", "4.72", "16.022", "3"], [7.5, 4.72, 16.022, 3]),  # both marks: each cell by itself
        (["7,5", 16.022, 7, None], [7.5, 16.022, 7, None]),
        ([0.1, None], [0.1, None]),
    ],
)
def test_a_comma_is_a_decimal_mark_where_it_can_be_nothing_else(cells: list[Any], numbers: list[Any]) -> None:
    np.testing.assert_array_equal(read_like_numbers(pd.Series(cells)), np.array(numbers, dtype=float))
