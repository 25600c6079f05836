"""Question sets: Google's, BATS's form, own files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from support.messages import assert_states, refuses
from support.vectors import write_questions

from attngeo.analogies import questions
from attngeo.analogies.questions import as_questions, load_questions
from attngeo.errors import DataUnavailableError, QuestionError, UsageError


def test_googles_set_is_the_papers() -> None:
    asked = load_questions("google")
    assert Counter(question.type for question in asked.questions) == {"semantic": 8869, "syntactic": 10675}
    assert len({question.category for question in asked.questions}) == 14
    assert asked.notes == []
    first = asked.questions[0]
    assert (first.a, first.b, first.c, first.answers, first.line) == ("Athens", "Greece", "Baghdad", ("Iraq",), 2)
    once = asked.without_duplicates()
    assert len(once.questions) == 19544 - 171
    (note,) = once.notes
    assert_states(note, "google", 171)
    assert once.questions[0] is first


def test_bad_lines_are_left_out_with_their_numbers(tmp_path: Path) -> None:
    path = write_questions(tmp_path / "q.txt", {"one": ["a b c d", "a b c", "a b c d e", ""], "two": ["e f g h"]})
    asked = load_questions(path)
    assert [(q.category, q.a, q.line) for q in asked.questions] == [("one", "a", 2), ("two", "e", 7)]
    (note,) = asked.notes
    assert_states(note, path, 2, "lines 3, 4")
    assert {q.type for q in asked.questions} == {""}


def test_lines_before_any_category_are_named_after_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("a b c d\n", "utf-8-sig")
    assert load_questions(path).questions[0].category == "mine"


def test_bats(tmp_path: Path) -> None:
    folder = tmp_path / "BATS" / "3_Encyclopedic_semantics"
    folder.mkdir(parents=True)
    (folder / "E01 [country - capital].txt").write_text(
        "athens\tgreece\nberlin  germany/deutschland\nbad\nrome\titaly\n"
    )
    asked = load_questions(tmp_path / "BATS")
    assert [(q.a, q.b, q.c, q.answers) for q in asked.questions[:3]] == [
        ("athens", "greece", "berlin", ("germany", "deutschland")),
        ("athens", "greece", "rome", ("italy",)),
        ("berlin", "germany", "athens", ("greece",)),
    ]
    assert len(asked.questions) == 6
    assert {(q.category, q.type) for q in asked.questions} == {("E01 [country - capital]", "encyclopedic semantics")}
    (note,) = asked.notes
    assert_states(note, "E01 [country - capital].txt", 1, "line 3")
    # Both roles of a pair have one name, so that a bootstrap can draw pairs.
    assert {pair for q in asked.questions for pair in (q.first_pair, q.second_pair)} == {"line 1", "line 2", "line 4"}


def test_a_symbolic_link_is_no_second_file_of_bats(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("athens greece\nrome italy\n")
    (tmp_path / "a.txt").symlink_to(tmp_path / "b.txt")
    assert [(q.category, q.a) for q in load_questions(tmp_path).questions] == [("b", "athens"), ("b", "rome")]


@pytest.mark.parametrize(
    ("content", "facts"),
    [(b"", []), (b": category\n", []), (b"one two\nthree\n", ["lines 1, 2"]), (b"\xff\xfe\x00", ["utf-16"])],
)
def test_a_file_without_a_question_is_refused(tmp_path: Path, content: bytes, facts: list[str]) -> None:
    path = tmp_path / "q.txt"
    path.write_bytes(content)
    with refuses(QuestionError, path, *facts):
        load_questions(path)


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "utf-16-le"])
def test_questions_of_other_encodings_are_read_with_a_note(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "q.txt").write_text("Köln Rhein Wien Donau\n" * 3 + "gut besser süß süßer\n", encoding)
    read = load_questions(tmp_path / "q.txt")
    assert (read.questions[0].a, read.questions[3].answers) == ("Köln", ("süßer",))
    (note,) = read.notes
    assert_states(note, "q.txt", encoding)
    folder = tmp_path / "bats"
    folder.mkdir()
    (folder / "q.txt").write_text("Köln Rhein\nWien Donau\n", encoding)
    assert load_questions(folder).questions[0].a == "Köln"


def test_a_missing_file_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    with refuses(DataUnavailableError, tmp_path / "none.txt", "google"):
        load_questions(tmp_path / "none.txt")
    with refuses(QuestionError, tmp_path, ".txt"):
        load_questions(tmp_path)


def test_more_questions_than_any_set_has_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """BATS has a question for each two pairs of a file: 1,100 pairs, some kilobytes, would make more than a million."""
    (tmp_path / "pairs.txt").write_text("".join(f"a{number}\tb\n" for number in range(1100)))
    with refuses(QuestionError, tmp_path / "pairs.txt", "1,210,000", "1,000,000"):
        load_questions(tmp_path)
    monkeypatch.setattr(questions, "MOST_QUESTIONS", 10)
    path = write_questions(tmp_path / "q.txt", {"own": ["a b c d"] * 12})
    with refuses(QuestionError, path, 11, 10):
        load_questions(path)


def test_the_questions_of_all_files_of_bats_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "MOST_QUESTIONS", 10)
    for name in ("1", "2"):
        (tmp_path / f"{name}.txt").write_text("a\tb\nc\td\ne\tf\n")
    with refuses(QuestionError, tmp_path / "2.txt", 15, 10):
        load_questions(tmp_path)


def test_bats_files_of_one_name_stay_apart(tmp_path: Path) -> None:
    for folder in ("1_Some_kind", "2_Other_kind"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.txt").write_text("a\tb\nc\td\n")
        (tmp_path / folder / "._x.txt").write_bytes(b"\x00\xff")
    asked = load_questions(tmp_path)
    assert Counter((q.category, q.type) for q in asked.questions) == {
        ("1_Some_kind/x", "some kind"): 2, ("2_Other_kind/x", "other kind"): 2,
    }  # fmt: skip


def test_fours_of_words_are_questions() -> None:
    assert [(q.a, q.answers) for q in as_questions([("a", "b", "c", "d"), ["e", "f", "g", "h"]]).questions] == [
        ("a", ("d",)), ("e", ("h",)),
    ]  # fmt: skip
    for bad in ([("a", "b", "c")], ["a b c d"], [(1, 2, 3, 4)]):
        with refuses(UsageError, 1, repr(bad[0])):
            as_questions(bad)  # type: ignore[arg-type]
    with refuses(QuestionError, "questions"):
        as_questions([])
