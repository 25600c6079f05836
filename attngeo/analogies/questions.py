"""Question sets: Google's, which gensim carries, BATS, and any file of the same form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from attngeo.checkpoints.reference import local_path
from attngeo.errors import ModelNotFoundError, QuestionError, UsageError

GOOGLE = "google"
SHOWN = 20


@dataclass(frozen=True)
class Question:
    """a is to b as c is to one of the answers. line: where it stands in its file.

    pairs: what (a, b) and (c, answers) are known by within the category; the two roles of a pair share one name.
    """

    category: str
    type: str
    a: str
    b: str
    c: str
    answers: tuple[str, ...]
    line: int
    pairs: tuple[str, str]


@dataclass(frozen=True)
class QuestionSet:
    """Questions in the order of their file, and notes about lines that are not among them."""

    name: str
    questions: Sequence[Question]
    notes: list[str] = field(default_factory=list)

    def without_duplicates(self) -> QuestionSet:
        """Only the first of questions with the same words, and a note of how many were dropped."""
        seen: set[tuple[object, ...]] = set()
        kept = []
        for question in self.questions:
            words = (question.a, question.b, question.c, question.answers)
            if words not in seen:
                seen.add(words)
                kept.append(question)
        dropped = len(self.questions) - len(kept)
        notes = [f"{self.name}: {dropped:,} questions that were asked before are dropped"] if dropped else []
        return replace(self, questions=kept, notes=[*self.notes, *notes])


def load_questions(source: str | Path) -> QuestionSet:
    """`google`, a file of lines of four words under `: category` lines, or a folder of BATS files.

    Google's set is that of Mikolov et al. 2013 (arXiv 1301.3781), 19,544 questions in 14 categories, of which those
    named gram are syntactic. BATS is that of Gladkova et al. 2016 (https://vecto.space/projects/BATS): every two pairs
    of a file make a question; of several answers to the first pair the first is used, to the second any counts.

    Raises ModelNotFoundError, and QuestionError where there is no question.
    """
    if str(source) == GOOGLE:
        return read_file(google_path(), GOOGLE)
    path = local_path(source)
    if path.is_dir():
        return read_bats(path)
    if path.is_file():
        return read_file(path, str(source))
    raise ModelNotFoundError(f"{source}: no such question file or folder, expected {GOOGLE}, a file, or BATS's folder")


def as_questions(source: str | Path | QuestionSet | Iterable[Sequence[str]]) -> QuestionSet:
    """The set that is named, or one made of fours of words. Raises UsageError for what is neither."""
    if isinstance(source, QuestionSet):
        return source
    if isinstance(source, str | Path):
        return load_questions(source)
    found = []
    for number, words in enumerate(source, 1):
        if isinstance(words, str) or len(words) != 4 or not all(isinstance(word, str) for word in words):
            raise UsageError(f"question {number} is {words!r}, expected four words")
        a, b, c, d = words
        found.append(Question("questions", "", a, b, c, (d,), number, (f"{a} {b}", f"{c} {d}")))
    return _checked(QuestionSet("questions", found), "fours of words")


def google_path() -> Path:
    """Where gensim keeps Google's questions. Raises ModelNotFoundError where it was installed without its test data."""
    spec = find_spec("gensim")
    path = Path(spec.origin).parent / "test/test_data/questions-words.txt" if spec and spec.origin else None
    if path is None or not path.is_file():
        raise ModelNotFoundError(
            "google: the installed gensim does not carry questions-words.txt; run pip install gensim, or name the file"
        )
    return path


def read_file(path: Path, name: str) -> QuestionSet:
    """Lines of four words; `: category` before them. Other lines are left out, and a note gives their numbers."""
    category, found, bad = path.stem, [], []
    for number, line in enumerate(_lines(path, name), 1):
        words = line.split()
        if line.startswith(":"):
            category = " ".join(line.lstrip(": ").split()) or path.stem
        elif len(words) == 4:
            a, b, c, d = words
            found.append(Question(category, "", a, b, c, (d,), number, (f"{a} {b}", f"{c} {d}")))
        elif words:
            bad.append(number)
    return _checked(QuestionSet(name, _typed(found), _account(name, bad, "four words")), "four words a line")


def read_bats(folder: Path) -> QuestionSet:
    """Every ordered two lines of each file: a word, white space, and its answers between slashes."""
    found: list[Question] = []
    notes: list[str] = []
    paths = sorted(path for path in folder.rglob("*.txt") if not path.name.startswith("."))
    names = [path.stem for path in paths]
    for path in paths:
        pairs, bad = [], []
        for number, line in enumerate(_lines(path, str(path)), 1):
            parts = line.split()
            answers = tuple(dict.fromkeys(filter(None, parts[1].split("/")))) if len(parts) == 2 else ()
            if answers:
                pairs.append((number, parts[0], answers))
            elif parts:
                bad.append(number)
        notes += _account(path.name, bad, "a word and its answers")
        category = path.stem if names.count(path.stem) == 1 else f"{path.parent.name}/{path.stem}"
        kind = re.sub(r"^\d+[_ ]*", "", path.parent.name).replace("_", " ").lower() if path.parent != folder else ""
        found += [
            Question(category, kind, a, b[0], c, d, number, (f"line {first}", f"line {number}"))
            for first, a, b in pairs
            for number, c, d in pairs
            if first != number
        ]
    return _checked(QuestionSet(str(folder), found, notes), "BATS's .txt files, a word and its answers a line")


def _typed(questions: Sequence[Question]) -> list[Question]:
    """Questions with the types of Google's set, where a category is named as its are."""
    if not any(question.category.startswith("gram") for question in questions):
        return list(questions)
    types = {True: "syntactic", False: "semantic"}
    return [replace(question, type=types[question.category.startswith("gram")]) for question in questions]


def _lines(path: Path, name: str) -> Iterable[str]:
    try:
        return path.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise QuestionError(f"{name}: not a text in UTF-8, expected lines of four words") from None
    except OSError as error:
        raise ModelNotFoundError(f"{name}: cannot be read ({error.strerror})") from None


def _account(name: str, bad: Sequence[int], expected: str) -> list[str]:
    if not bad:
        return []
    first = ", ".join(map(str, bad[:SHOWN])) + (", …" if len(bad) > SHOWN else "")
    lines = "1 line is" if len(bad) == 1 else f"{len(bad):,} lines are"
    return [f"{name}: {lines} not {expected}, left out (line {first})"]


def _checked(questions: QuestionSet, expected: str) -> QuestionSet:
    if not questions.questions:
        raise QuestionError(
            "; ".join([f"{questions.name}: no question in it, expected {expected}", *questions.notes[:1]])
        )
    return questions
