"""The columns of the table that answers a question, without asking it: `attngeo.columns`. Imports nothing heavy."""

from __future__ import annotations

from typing import Any

from attngeo.choices import one_of
from attngeo.keywords import refuse_unknown
from attngeo.questions.question import Question
from attngeo.questions.table import QUESTIONS, TABLES


def columns(command: str, **options: Any) -> tuple[str, ...]:
    """The columns of the table that a command writes and its function returns, in order.

    Args:
        command: the name of the command or function, such as "score" or "compare".
        **options: options of the question, such as `scores` and `circuit` of score; most do not change the columns.
            Options for how it is answered (`offline`, `jobs`, `fresh` …) are not accepted.

    Returns:
        The names of the columns; for a result with several tables, the columns of `rows`.

    Raises:
        UsageError: the command has no such table, or a value is not a choice or is outside its limits.
        UnknownOptionError: the question has no such option.

    >>> import attngeo
    >>> attngeo.columns("compare")[:4], attngeo.columns("compare", circuit="ov")[4]
    (('model', 'revision', 'other', 'other_revision'), 'circuit')
    """
    known = {name: question for name, question in (QUESTIONS | TABLES).items() if question.columns is not None}
    question: Question = known[one_of("command", command, known)]
    options_class = question.make_options_class()
    refuse_unknown(command, options, options_class.model_fields)
    listed = question.list_columns(options_class(**options))
    assert listed is not None
    return listed
