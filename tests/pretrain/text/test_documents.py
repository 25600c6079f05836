"""The documents of a text, in batches."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.text_files import read_documents, write_file

from attngeo.pretrain.text import documents
from attngeo.pretrain.text.sources import open_text


def test_batches_hold_about_the_same_number_of_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "BATCH_CHARACTERS", 10)
    path = write_file(tmp_path / "a.txt", "\n".join(["four"] * 5 + ["and " * 9, " ", "end"]))
    batches = list(open_text(str(path)).read_batches())
    assert batches == [["four"] * 3, ["four", "four", "and " * 9], ["end"]]


def test_characters_are_joined_with_spaces(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.txt", "one two\n\nx\n")
    assert read_documents(path, space_characters=True) == [" ".join("one two"), "x"] == ["o n e   t w o", "x"]
