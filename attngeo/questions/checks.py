"""What conditions may say of the tables of all questions, and of which question a condition or a table is."""

from __future__ import annotations

from collections.abc import Iterable

from attngeo.bounds.names import list_names
from attngeo.errors import DataError, UsageError
from attngeo.questions.conditions import Checkable, Condition
from attngeo.questions.question import Question
from attngeo.questions.table import QUESTIONS


def parse_condition(expression: str, checks: Checkable) -> Condition:
    """A condition on a table. Raises UsageError, which names other questions whose tables have its columns."""
    try:
        return Condition(expression, checks)
    except UsageError as error:
        others = [name for name, question in QUESTIONS.items() if _knows(question, expression, checks)]
        advice = f"; this condition applies to results of {' or '.join(others)}" if others else ""
        raise UsageError(f"{error}{advice}") from None


def _knows(question: Question, expression: str, refused: Checkable) -> bool:
    """Whether this is a condition on the table of a question, other than the table that has refused it."""
    checks = question.find_checks()
    if checks is None or checks.limit(refused.numbers) == refused.limit(refused.numbers):
        return False
    try:
        Condition(expression, checks)
    except UsageError:
        return False
    return True


def join_checks() -> Checkable:
    """The checks allowed on a table that is not read yet: all checks on the table of any question."""
    known = [checks for question in QUESTIONS.values() if (checks := question.find_checks()) is not None]
    numbers = [column for checks in known for column in checks.numbers]
    units = [unit for checks in known for unit in checks.units]
    sizes = [size for checks in known for size in checks.sizes]
    return Checkable(
        tuple(dict.fromkeys(numbers)), units=tuple(dict.fromkeys(units)), sizes=tuple(dict.fromkeys(sizes))
    )


def list_numbers() -> list[str]:
    """The columns of numbers in tables that `build_frame` makes, whose names a reader of their files needs.

    Without its name, a column whose cells are all empty would be one of texts.
    """
    plain = [question for question in QUESTIONS.values() if question.rows is not None and question.build is None]
    known = [question.find_checks() for question in plain]
    return [column for checks in known if checks is not None for column in checks.numbers]


def find_checks(columns: Iterable[str]) -> Checkable:
    """The checks allowed on a table with these columns, which attngeo wrote for some question.

    The question is the one whose table has most of the columns and the fewest others. Raises DataError if there is
    none.
    """
    given = {*columns}
    nearest: Checkable | None = None
    fewest = (len(given), 0)
    for question in QUESTIONS.values():
        known = {*(question.list_columns() or ())}
        distance = (len(given - known), len(known - given))
        checks = question.find_checks()
        if checks is not None and given.issuperset(checks.about) and distance < fewest:
            nearest = checks
            fewest = distance
    if nearest is None:
        checked = [name for name, question in QUESTIONS.items() if question.find_checks() is not None]
        problem = f"its columns are {list_names(sorted(given))}, which no condition can check"
        raise DataError(f"{problem}; expected a table written by one of: {', '.join(checked)}")
    return nearest
