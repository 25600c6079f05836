"""The column of a table that holds its text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.messages import assert_states, refuses
from support.text_files import read_documents, write_file

from attngeo.errors import DataError
from attngeo.pretrain.text.columns import choose_text_column, classify_columns
from attngeo.pretrain.text.sources import open_text


def test_a_column_by_its_name(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.csv", "title,body,year\nOne,the first,1811\nTwo,the second,1813\n")
    assert read_documents(path, column="title") == ["One", "Two"]
    assert read_documents(path, column="year") == ["1811", "1813"]
    with refuses(DataError, path, "title, body, year", "--text-column"):
        open_text(str(path))
    with refuses(DataError, path, "'tetx'", "title, body, year", "--text-column"):
        open_text(str(path), column="tetx")


def test_many_columns_are_not_all_listed(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.jsonl", json.dumps({f"c{n}": "some text" for n in range(500)}))
    with pytest.raises(DataError) as raised:
        open_text(str(path))
    assert_states(str(raised.value), path, "c0", "c19", "480")
    assert "c20" not in str(raised.value)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["one", "2"], "text"), (["1", "one", 1], "text"), (["1", " -2.5e3 ", "1,000"], "numbers"),
        ([None, "3"], "numbers"), (["", None], "other"), ([1, 2.0], "other"), ([["one"]], "other"),
    ],
)  # fmt: skip
def test_the_kind_of_a_column(values: list[Any], kind: str) -> None:
    assert classify_columns([{"a": value} for value in values]) == {"a": kind}
    assert classify_columns([{"a": value} for value in reversed(values)]) == {"a": kind}


def test_the_choice_without_a_name() -> None:
    assert choose_text_column("a", {"title": "text", "text": "text"}) == "text"
    assert choose_text_column("a", {"id": "numbers", "text": "numbers"}) == "text"
    assert choose_text_column("a", {"id": "numbers", "body": "text", "text": "other"}) == "body"
    with refuses(DataError, "id, n", "--text-column"):
        choose_text_column("a", {"id": "numbers", "n": "other"})
    with refuses(DataError, "'n'", "id, n", "--text-column"):
        choose_text_column("a", {"id": "text", "n": "other"}, "n")
