"""Sets of word analogies to ask: Google's, which the package contains, BATS, and any file of the same form."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from itertools import permutations
from pathlib import Path

from attngeo.analogies.options import GOOGLE
from attngeo.bounds.encodings import UTF8, find_encoding
from attngeo.bounds.links import without_links
from attngeo.bounds.names import list_first
from attngeo.bounds.paths import local_path
from attngeo.bounds.small_files import read_small_text, require_regular_file
from attngeo.choices import advise
from attngeo.errors import DataUnavailableError, ModelNotFoundError, QuestionError, UsageError, about

# A hundred times the largest set that is known; a million take a gigabyte of memory.
MOST_QUESTIONS = 1_000_000


@dataclass(frozen=True)
class Question:
    """One question: a is to b as c is to one of the answers.

    A pair has the same name in both roles.

    Attributes:
        category: category in the file.
        type: kind of the category, such as semantic; "" if the set has no kinds.
        a: first word of the first pair.
        b: second word of the first pair.
        c: first word of the second pair.
        answers: right answers.
        line: line in the file.
        first_pair: name of (a, b) within the category.
        second_pair: name of (c, answers) within the category.
    """

    category: str
    type: str
    a: str
    b: str
    c: str
    answers: tuple[str, ...]
    line: int
    first_pair: str
    second_pair: str


@dataclass(frozen=True)
class QuestionSet:
    """A set of questions.

    Attributes:
        name: name of the set.
        questions: questions in the order of their file.
        notes: notes about lines that were left out.
    """

    name: str
    questions: Sequence[Question]
    notes: list[str] = field(default_factory=list)

    def without_duplicates(self) -> QuestionSet:
        """The set with repeated questions asked only once, and a note with the number of repeats."""
        first: dict[object, Question] = {}
        for question in self.questions:
            first.setdefault((question.a, question.b, question.c, question.answers), question)
        dropped = len(self.questions) - len(first)
        notes = [f"{self.name}: {dropped:,} repeated questions are asked only once"] if dropped else []
        return replace(self, questions=list(first.values()), notes=[*self.notes, *notes])


def load_questions(source: str | Path) -> QuestionSet:
    """Read `google`, a file of lines of four words under `: category` lines, or a folder of BATS files.

    Google's set comes from Mikolov et al. 2013 (arXiv 1301.3781): 19,544 questions in 14 categories; categories named
    gram are syntactic. BATS comes from Gladkova et al. 2016 (https://vecto.space/projects/BATS): each two pairs of a
    file make a question. If a pair has several answers, b is the first of them, and each is a right answer to c.

    Raises DataUnavailableError if the file or folder is missing, QuestionError if it has no question.
    """
    require_questions(source)
    name = str(source)
    path = local_path(source)
    with about(name):
        if name == GOOGLE:
            return _parse(google_text(), GOOGLE, GOOGLE)
        if path.is_dir():
            return _read_bats(path)
        text, notes = _read_text(path)
        questions = _parse(text, name, path.stem)
        return replace(questions, notes=[*notes, *questions.notes])


def require_questions(source: object) -> None:
    """Raise DataUnavailableError if a set of questions is a file or folder that is missing."""
    if not isinstance(source, str | Path) or str(source) == GOOGLE:
        return
    try:
        path = local_path(source)
    except ModelNotFoundError as error:  # such as ~nobody/questions.txt
        raise DataUnavailableError(str(error)) from None
    if not path.is_dir() and not path.is_file():
        advice = advise(source, [GOOGLE], f"expected {GOOGLE}, a file, or a BATS folder")
        raise DataUnavailableError(f"no such file or folder; {advice}", subject=source)


def as_questions(source: str | Path | QuestionSet | Iterable[Sequence[str]]) -> QuestionSet:
    """The set that a name stands for, or a set made of lists of four words. Raises UsageError for anything else."""
    if isinstance(source, QuestionSet):
        return source
    if isinstance(source, str | Path):
        return load_questions(source)
    if not isinstance(source, Iterable):
        raise UsageError(f"$questions is {source!r:.60}, expected a name, a file or lists of four words", "questions")
    questions = []
    for number, words in enumerate(source, 1):
        four = list(words) if isinstance(words, Iterable) and not isinstance(words, str) else []
        if len(four) != 4 or not all(isinstance(word, str) for word in four):
            raise UsageError(f"question {number} is {words!r:.60}, expected four words")
        questions.append(_make_question("questions", four, number))
    with about("questions"):
        return _make_set("questions", questions, [], "lists of four words")


def google_text() -> str:
    """Google's questions, of word2vec (https://code.google.com/p/word2vec), under the Apache License 2.0."""
    return gzip.decompress(resources.files(__package__).joinpath("google.txt.gz").read_bytes()).decode()


def _parse(text: str, name: str, category: str) -> QuestionSet:
    """The questions of lines of four words, after lines of `: category`. Notes have the numbers of other lines.

    category: of the questions before the first title, and of those after a title without a name.
    """
    asked: list[tuple[str, list[str], int]] = []
    left_out: list[int] = []
    untitled = category
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if line.startswith(":"):
            category = " ".join(line.lstrip(": ").split()) or untitled
        elif len(words) == 4:
            asked.append((category, words, number))
            _check_number(len(asked))
        elif words:
            left_out.append(number)
    has_types = any(category.startswith("gram") for category, _, _ in asked)  # named as those of Google's set
    questions = []
    for category, words, number in asked:
        question_type = ""
        if has_types:
            question_type = "syntactic" if category.startswith("gram") else "semantic"
        questions.append(_make_question(category, words, number, question_type))
    return _make_set(name, questions, _note_left_out(name, left_out, "four words"), "four words per line")


def _make_question(category: str, words: Sequence[str], number: int, question_type: str = "") -> Question:
    """A question of four words. number: its line."""
    a, b, c, d = words
    return Question(category, question_type, a, b, c, (d,), number, f"{a} {b}", f"{c} {d}")


def _read_bats(folder: Path) -> QuestionSet:
    """Read a folder of BATS. A line is a word, white space, and its answers separated by slashes."""
    questions: list[Question] = []
    notes: list[str] = []
    paths = without_links(sorted(path for path in folder.rglob("*.txt") if not path.name.startswith(".")))
    names = [path.stem for path in paths]
    for path in paths:
        pairs: list[tuple[str, str, tuple[str, ...], int]] = []
        left_out: list[int] = []
        with about(str(path)):
            text, read_otherwise = _read_text(path)
            notes += read_otherwise
            for number, line in enumerate(text.splitlines(), 1):
                fields = line.split()
                answers: tuple[str, ...] = ()
                if len(fields) == 2:
                    answers = tuple(dict.fromkeys(filter(None, fields[1].split("/"))))
                if answers:
                    pairs.append((f"line {number}", fields[0], answers, number))
                elif fields:
                    left_out.append(number)
            _check_number(len(questions) + len(pairs) ** 2)
        notes += _note_left_out(path.name, left_out, "a word and its answers")
        category = path.stem
        if names.count(category) > 1:
            category = f"{path.parent.name}/{category}"
        question_type = ""
        if path.parent != folder:
            question_type = re.sub(r"^\d+[_ ]*", "", path.parent.name).replace("_", " ").lower()
        for (first, a, b, _), (second, c, d, number) in permutations(pairs, 2):
            questions.append(Question(category, question_type, a, b[0], c, d, number, first, second))
    return _make_set(str(folder), questions, notes, ".txt files with a word and its answers on each line")


def _read_text(path: Path) -> tuple[str, list[str]]:
    """The text of a file, and a note if it is not UTF-8. Raises QuestionError, DataUnavailableError."""
    try:
        require_regular_file(path)
        encoding = find_encoding(path)
        text = read_small_text(path, encoding=encoding)
    except ValueError as error:
        raise QuestionError(f"{error}; expected lines of words") from None
    except OSError as error:
        raise DataUnavailableError(f"cannot be read ({error.strerror})") from None
    return text, [] if encoding == UTF8 else [f"{path.name}: text is {encoding}, expected UTF-8"]


def _check_number(count: int) -> None:
    """Raise QuestionError if there are more questions than any set has: they would fill the memory."""
    if count > MOST_QUESTIONS:
        raise QuestionError(f"it gives {count:,} questions, expected at most {MOST_QUESTIONS:,}")


def _note_left_out(name: str, bad: list[int], expected: str) -> list[str]:
    if not bad:
        return []
    lines, place = ("1 line", "line") if len(bad) == 1 else (f"{len(bad):,} lines", "lines")
    return [f"{name}: {lines} left out, expected {expected} ({place} {list_first(bad)})"]


def _make_set(name: str, questions: list[Question], notes: list[str], expected: str) -> QuestionSet:
    """A set of questions. Raises QuestionError if it is empty."""
    if not questions:
        raise QuestionError("; ".join([f"no questions, expected {expected}", *notes[:1]]))
    return QuestionSet(name, questions, notes)
