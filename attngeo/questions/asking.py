"""Ask a question about one model, or about many: what is kept is taken, and the rest is made and kept.

    frame = ask(QUESTIONS["score"], "demo:minilm", session, options=ScoreOptions())
    outcomes = ask_all(QUESTIONS["score"], ["demo:encoder", "demo:decoder"], session, options=ScoreOptions())

Imports nothing heavy: pandas when a table is made, torch when it is computed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from attngeo.attention.options import ModelReading
from attngeo.bounds.names import in_utf8
from attngeo.checkpoints.identity import Identity, identify
from attngeo.checkpoints.local_files import require_model
from attngeo.checkpoints.reference import Model, ModelRef
from attngeo.errors import UsageError, about
from attngeo.lazy import resolve
from attngeo.options import Options
from attngeo.progress import Progress
from attngeo.provenance import describe_code
from attngeo.questions.frames import build_frame, join_frames
from attngeo.questions.question import Question
from attngeo.session import Session
from attngeo.studies.engine import run_study
from attngeo.studies.models import expand_models, name_model
from attngeo.studies.results import Kept, ResultRecord, locate_record
from attngeo.studies.run import RunOutcome, require_all

if TYPE_CHECKING:
    import pandas as pd

    from attngeo.attention.opened import Attention

log = logging.getLogger(__name__)

# What one asking is about: a model, or a model and another one.
Subject: TypeAlias = "Model | tuple[Model, Model]"
# What only kept results need to know: the `attrs` of a table are without it.
OWN_ENTRIES = ("made", "layers", "options", "content", "other_content", "version")
CONTENTS = ("content", "other_content")


def ask(question: Question, subject: Subject, session: Session, *, options: Any) -> pd.DataFrame:
    """The table of a question about models. Its `attrs` say how it was made.

    Args:
        question: what is asked.
        subject: the model, or the models if `question.subjects` are several.
        session: how it is answered.
        options: of the class of the question.

    Raises what the function raises that makes the rows, and ModelUnavailableError for a model, an adapter or a
    configuration that cannot be found.
    """
    if question.table is not None:
        table: pd.DataFrame = resolve(question.table)(subject, session, options=options)
        return table
    models = [_parse(model) for model in (subject if isinstance(subject, tuple) else (subject,))]
    readings: tuple[ModelReading, ...] = options.readings()
    for model, reading in zip(models, readings, strict=True):
        require_model(model, reading.options.adapter, reading.options.config)
    identities = _identify(models, readings, session)
    record = _find_record(question, identities, options)
    kept = _load_kept(question, record, session)
    if kept is None:
        named = [identity.ref for identity in identities] or models
        kept = _make(question, named, readings, options, session, record)
    columns = question.list_columns(options)
    assert columns is not None
    frame: pd.DataFrame = (resolve(question.build) or build_frame)(kept.rows, columns)
    frame.attrs = _describe(question, kept, options, identities) | frame.attrs
    for name in question.subjects:
        frame[name] = frame.attrs[name]
    return frame


def ask_all(
    question: Question,
    subjects: Sequence[Subject],
    session: Session,
    *,
    options: Any,
    on_outcome: Callable[[RunOutcome[pd.DataFrame]], None] = lambda _: None,
) -> list[RunOutcome[pd.DataFrame]]:
    """The outcomes of a question about many subjects, as from `run_study`: one that fails does not stop the others.

    on_outcome: called with each outcome as it arrives.
    """
    function = partial(ask, question, options=options)
    return run_study(function, subjects, session, names=name_subjects(subjects), on_outcome=on_outcome)


def join_tables(question: Question, frames: Sequence[pd.DataFrame], *, options: Any) -> list[pd.DataFrame]:
    """The tables of a question about several subjects: one table if the question compares them, or one per subject."""
    if not frames or question.join is None:
        return [*frames]
    return [resolve(question.join)(frames, options)]


def ask_for_one_table(
    question: Question, models: Model | Sequence[Model], session: Session, *, options: Any
) -> pd.DataFrame:
    """The table of a question about one model or several. The first failure is raised after the others are finished.

    Raises UsageError if no models are given, or if a model is given twice to a question that cannot use it twice.
    """
    given = expand_models(models, session.hub)
    if len(question.subjects) == 1 and given == [models]:
        return ask(question, given[0], session, options=options)
    subjects = list_subjects(question, given, options)
    outcomes = require_all(ask_all(question, subjects, session, options=options))
    return join_frames([outcome.result for outcome in outcomes if outcome.result is not None])


def list_subjects(question: Question, models: Sequence[Model], options: Any) -> list[Subject]:
    """The subjects of a question for these models. Raises UsageError if there are none."""
    if not models:
        raise UsageError("no models are given, expected at least one")
    if question.list_subjects is None:
        return [*models]
    subjects: list[Subject] = resolve(question.list_subjects)(models, options)
    return subjects


def name_subjects(subjects: Sequence[Subject]) -> list[str]:
    """The name of each subject; for a pair of models, the name of the other."""
    return [name_model(subject[-1] if isinstance(subject, tuple) else subject) for subject in subjects]


def _parse(model: Model) -> Model:
    """The reference of a text or path; a model in memory as it is."""
    return ModelRef.parse(model) if isinstance(model, str | Path) else model


def _identify(models: Sequence[Model], readings: Sequence[ModelReading], session: Session) -> list[Identity]:
    """The identity of each model; none if one of them has none, or adapters or configurations belong to them.

    What these name may change unnoticed.
    """
    if any(reading.options.adapter or reading.options.config for reading in readings):
        return []
    identities = [identity for model in models if (identity := identify(model, session.hub)) is not None]
    return identities if len(identities) == len(models) else []


def _find_record(question: Question, identities: Sequence[Identity], options: Options) -> ResultRecord | None:
    """The record of the result of a question; None if nothing is kept."""
    if not identities or not question.keeps:
        return None
    content = {name: identity.content for name, identity in zip(CONTENTS, identities, strict=False)}
    content |= {"version": describe_code("torch")}  # numbers depend on both
    chosen = {name: value for name, value in options if name != "memory"}  # no number depends on it
    return locate_record(
        question.keeps,
        content | {"options": chosen},
        is_current=lambda: all(identity.is_current() for identity in identities),
        about=content,
        form=resolve(question.form),
    )


def _load_kept(question: Question, record: ResultRecord | None, session: Session) -> Kept | None:
    """What is kept of a result, which is reported; None if it is missing, or the session wants fresh ones."""
    if record is None or session.results.fresh:
        return None
    kept = record.load()
    if kept is not None:
        session.progress(Progress("kept", f"{question.keeps} of {kept.about['made']} from kept results"))
    return kept


def _make(
    question: Question,
    models: Sequence[Model],
    readings: Sequence[ModelReading],
    options: Options,
    session: Session,
    record: ResultRecord | None,
) -> Kept:
    """Make the rows of a question, and keep them."""
    import torch

    from attngeo.questions.making import Making

    started = time.perf_counter()
    make_rows = resolve(question.rows)
    with _open_all(models, readings, session) as attentions, torch.inference_mode():
        making = Making.begin(attentions, options, session, record)
        rows = []
        with closing(make_rows(*attentions, options, making)) as parts:
            for of_part in parts:
                rows += making.finish(of_part)
    if making.record is not None:
        making.record.keep(rows, making.about)
    what = ", ".join(attention.ref for attention in attentions)
    log.info("%s: %d rows in %.1f s", what, len(rows), time.perf_counter() - started)
    return Kept(rows, making.about)


@contextmanager
def _open_all(models: Sequence[Model], readings: Sequence[ModelReading], session: Session) -> Iterator[list[Attention]]:
    """Inside, each model is open. What an error about the only one is about, is said."""
    from attngeo.attention.opened import Attention

    with ExitStack() as stack:
        attentions = []
        for model, reading in zip(models, readings, strict=True):
            opened = Attention.open(
                model, reading.options, session, parts=reading.parts, only_updates=reading.only_updates
            )
            attentions.append(stack.enter_context(opened))
        if len(attentions) == 1:
            stack.enter_context(about(attentions[0].ref))
        yield attentions


def _describe(question: Question, kept: Kept, options: Options, identities: Collection[Identity]) -> dict[Any, Any]:
    """How a result was made, with the models' names as they were given this time."""
    about_all = {name: value for name, value in kept.about.items() if name not in OWN_ENTRIES}
    names = {name: in_utf8(str(one.ref)) for name, one in zip(("model", "other"), identities, strict=False)}
    return {"title": question.title} | about_all | names | dict(options) | {"device": about_all["device"]}
