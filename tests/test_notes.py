"""Notes of a table are data: each text in the column `note` is known by the notes that it is made of."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import attngeo
from attngeo.changes.lineage_options import VERDICTS
from attngeo.questions.making import NoteText
from attngeo.tables.write import NOTES, to_html

NOTES_OF_A_ROW = ("the family is not listed; a rule matched", "biases included")


def test_a_text_of_notes_knows_them_also_as_a_copy() -> None:
    """A semicolon inside a note divides nothing."""
    text = NoteText(NOTES_OF_A_ROW)
    for same in (text, copy.deepcopy(text), pickle.loads(pickle.dumps(text))):
        assert same == "; ".join(NOTES_OF_A_ROW)
        assert same.notes == NOTES_OF_A_ROW
    assert NoteText([]) == ""


def test_a_table_states_the_notes_of_each_text_fresh_and_kept(cache: Path) -> None:
    for _ in range(2):
        frame = attngeo.score("demo:decoder", with_bias=True, rope_offset=2)
        assert {*frame["note"]} == frame.attrs[NOTES].keys()
        assert all(len(notes) > 1 and "; ".join(notes) == text for text, notes in frame.attrs[NOTES].items())
        assert NOTES not in to_html(frame)
    assert [*cache.rglob("*.parquet")]


def test_the_reason_of_a_verdict_is_its_first_note() -> None:
    frame = attngeo.lineage("demo:encoder", "demo:decoder", n_permutations=19)
    (notes,) = frame.attrs[NOTES].values()
    assert frame["verdict"].item() in VERDICTS
    assert frame["note"].item().startswith(notes[0])
