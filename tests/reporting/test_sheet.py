"""How tables fit a sheet of paper."""

from __future__ import annotations

import html
from itertools import pairwise

import pandas as pd
import pytest

from attngeo.reporting import sheet
from attngeo.reporting.sheet import break_words, fit_table


def make_texts(*names: str, cell: str = "0.1234") -> pd.DataFrame:
    """Two rows of texts, as a page shows them."""
    return pd.DataFrame({name: [cell, cell] for name in names})


def test_a_narrow_table_has_the_largest_type_and_a_wider_one_smaller() -> None:
    assert fit_table(make_texts("a", "b"), [True] * 2).size == sheet.LARGEST
    fit = fit_table(make_texts(*(f"value_{number}" for number in range(14))), [True] * 14)
    assert sheet.SMALLEST <= fit.size < sheet.LARGEST
    assert fit.starts == ()


@pytest.mark.parametrize("count", [20, 27, 60])
def test_a_wide_table_has_parts_of_like_width_that_begin_with_the_names(count: int) -> None:
    measures = [f"measurement_{number}" for number in range(count)]
    shown = make_texts(*measures)
    shown.insert(0, "model", "organisation/encoder-base")
    shown.insert(1, "layer", "1")
    fit = fit_table(shown, [False] + [True] * (count + 1))
    assert (fit.size, fit.names, fit.starts[0]) == (sheet.OF_PARTS, 2, 2)
    sizes = [end - start for start, end in pairwise((*fit.starts, count + 2))]
    assert max(sizes) - min(sizes) <= len(sizes)
    assert sum(sizes) == count


def test_long_texts_do_not_make_a_table_wide_and_a_column_that_never_fits_is_a_part() -> None:
    assert fit_table(make_texts("note", "a", cell="several words " * 12), [False, False]).starts == ()
    fit = fit_table(make_texts("a", "b", cell="1" * 120), [True, True])
    assert fit.starts == (0, 1)


@pytest.mark.parametrize("text", ["a < b", "organisation/encoder-base@" + "f" * 40, "a  b\n", "x" * 100, "<img src=x>"])
def test_words_break_without_a_change_of_the_text(text: str) -> None:
    shown = break_words(text)
    assert html.unescape(shown.replace("<wbr>", "")) == text
    longest = max(len(html.unescape(word)) for piece in shown.split("<wbr>") for word in piece.split())
    assert longest <= sheet.LONGEST_WORD + 1


def test_short_words_do_not_break() -> None:
    assert break_words("demo:minilm and a/b") == "demo:minilm and a/b"
