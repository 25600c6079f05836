"""Ask a question about the models of a command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from attngeo.options import Options
from attngeo.questions.asking import Subject, ask, name_subjects
from attngeo.questions.question import Question
from attngeo.session import Session
from attngeo.studies.run import RunOutcome

from .outputs import Verbosity
from .study import run_all

if TYPE_CHECKING:
    import pandas as pd


def ask_models(
    question: Question,
    subjects: Sequence[Subject],
    session: Session,
    verbosity: Verbosity,
    *,
    options: Options,
    note: Callable[[RunOutcome[pd.DataFrame]], None] = lambda _: None,
) -> list[RunOutcome[pd.DataFrame]]:
    """The outcomes of a question about models, or about pairs of them. Notes on stderr name the parts left out."""

    def note_all(outcome: RunOutcome[pd.DataFrame]) -> None:
        if outcome.result is not None:
            note_left_out(outcome.result, verbosity)
        note(outcome)

    names = name_subjects(subjects)
    alone = len(subjects) == 1
    return run_all(
        names[0] if alone else question.name,
        partial(ask, question, options=options),
        subjects,
        session,
        verbosity,
        names=names,
        unit="models",
        alone=alone,
        note=note_all,
    )


def note_left_out(frame: pd.DataFrame, verbosity: Verbosity) -> None:
    """List on stderr the parts of its models that a table leaves out."""
    about = frame.attrs
    for of, left_out in (("model", "skipped"), ("other", "other_skipped")):
        for pattern, reason in about.get(left_out, {}).items():
            verbosity.note(f"note: {about[of]}: left out: {pattern}: {reason}")
