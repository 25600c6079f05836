"""Word analogies asked of models, and the tables of their results: `attngeo.analogy`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from attngeo.analogies.lexicon import Lexicon, Space, build_lexicon
from attngeo.analogies.options import COLUMNS, GOOGLE, AnalogyOptions, describe_settings
from attngeo.analogies.probe import ask
from attngeo.analogies.questions import Question, QuestionSet, as_questions
from attngeo.analogies.summary import compare_models, published_rows, summarise_answers
from attngeo.checkpoints.access import HubAccess
from attngeo.devices import pick_device
from attngeo.embeddings.opening import open_embedding
from attngeo.errors import QuestionError, UsageError
from attngeo.keywords import takes
from attngeo.progress import ProgressCallback
from attngeo.provenance import machine, software
from attngeo.session import Session
from attngeo.studies.models import find_repeated, name_model

log = logging.getLogger(__name__)

# Options that make more questions known.
ADVICE = "try --case ignore, --compose mean or --candidates all"

# A note warns if a smaller share of the questions is known.
FEW = 0.1
QUESTION_COLUMNS = (
    "model", "category", "type", "line", "a", "b", "c", "answer", "known", "common", "rank", "cosine", "top",
    "first_pair", "second_pair",
)  # fmt: skip


class AnalogyResult(NamedTuple):
    """Three tables of results.

    scores: accuracies, with the columns `options.COLUMNS`. comparisons: of each two models, with the columns
    `summary.COMPARISON_COLUMNS`. questions: one row for each model and question, with the columns `QUESTION_COLUMNS`.
    """

    scores: pd.DataFrame
    comparisons: pd.DataFrame
    questions: pd.DataFrame


class AnalogyKeywords(AnalogyOptions, HubAccess):
    """The keywords of `analogy`."""

    options: AnalogyOptions | None = None
    hub: HubAccess | None = None
    progress: ProgressCallback | None = None


@takes(AnalogyKeywords)
def analogy(models: Any | Sequence[Any], options: AnalogyOptions, *, session: Session) -> AnalogyResult:
    """Accuracy of the embeddings of one or several models at word analogies: a is to b as c is to a word to be found.

    Several models are compared on the questions that all of them know. How words are found in a table is described at
    `lexicon.build_lexicon`, the methods in `probe`, the preparation of vectors at `lexicon.Space`: by default vectors
    are used as they are, and only whole words may be answers.
    Source: Wibisono and Wang 2023, section 4.1 and appendix F.

    Args:
        models: one or several, each as for `attngeo.open_embedding`: a checkpoint, a file of word vectors, `cbow:TEXT`,
            or an Embedding. `questions` may also be a list of fours of words, or a QuestionSet.
        {options}
        {hub}
        progress: called while tables are read and questions are asked.

    Returns:
        The tables of results.

    Raises:
        ModelUnavailableError: a model cannot be found or reached.
        CheckpointError: it cannot be read, or has no table of vectors.
        QuestionError: the questions cannot be read, or no question is known.
        UsageError: an option has no meaning.

    >>> import attngeo
    >>> result = attngeo.analogy("demo:minilm")
    >>> overall = result.scores.query("level == 'overall'").iloc[0]
    >>> int(overall.known), round(float(overall.accuracy), 3)
    (11983, 0.741)
    """
    references = [models] if isinstance(models, str | Path) or not isinstance(models, Iterable) else list(models)
    if not references:
        raise UsageError("$models is empty, expected at least one model", "models")
    repeated = find_repeated(references)
    if repeated is not None:
        name = getattr(repeated, "ref", name_model(repeated))
        raise UsageError(f"{name} is named twice, expected different models")
    if options.published and options.questions != GOOGLE:
        raise UsageError(f"$published is the paper's Table 3, of the {GOOGLE} questions; leave it out", "published")
    device = str(pick_device(options.device))
    question_set = as_questions(options.questions)
    if not options.keep_duplicates:
        question_set = question_set.without_duplicates()
    notes = list(question_set.notes)
    frames: list[pd.DataFrame] = []
    with torch.inference_mode():
        for reference in references:
            taken = {frame.attrs["model"] for frame in frames}
            frame, model_notes = _ask_one(reference, taken, question_set, options, session)
            frames.append(frame)
            notes += model_notes
    is_common = np.logical_and.reduce([frame["known"].to_numpy() for frame in frames])
    notes += _note_few(frames, is_common)
    result = _summarise([frame.assign(common=is_common) for frame in frames], options)
    # Of several models, the revision of each by its name.
    revisions = {str(frame.attrs["model"]): frame.attrs["revision"] for frame in frames}
    origin: dict[Any, Any] = {
        "title": "Word analogies",
        **software(),
        **machine(),
        "model": ", ".join(revisions),
        "revision": revisions if len(frames) > 1 else frames[0].attrs["revision"],
        **vars(options),
        "questions": question_set.name,
        "asked": len(question_set.questions),
        "device": device,
        "notes": notes,
    }
    for table in result:
        table.attrs = origin
    return result


def _summarise(frames: Sequence[pd.DataFrame], options: AnalogyOptions) -> AnalogyResult:
    """The tables of results from each model's answers; `common` says whether all models know a question."""
    several = len(frames) > 1
    answers = pd.concat(frames, ignore_index=True)
    common = answers.assign(known=answers["common"])
    tables = []
    if several:
        tables.append(summarise_answers(common, which="common", options=options))
    if options.own or not several:
        tables.append(summarise_answers(answers, options=options))
    note = "; ".join(describe_settings(options))
    tables = [table.assign(note=note) for table in tables]
    if options.published:
        tables.append(pd.DataFrame(published_rows(), columns=list(COLUMNS)))
    scores = pd.concat([table.astype({"asked": "Int64", "known": "Int64"}) for table in tables], ignore_index=True)
    return AnalogyResult(scores, compare_models(common, options=options), answers[list(QUESTION_COLUMNS)])


def _ask_one(
    reference: Any,
    taken: Collection[str],
    question_set: QuestionSet,
    options: AnalogyOptions,
    session: Session,
) -> tuple[pd.DataFrame, list[str]]:
    """One model's answer to each question, and notes about it. Its memory is free afterwards.

    taken: names of other models. A model in memory may have the name of its class only, and then gets a number.
    """
    questions = question_set.questions
    words = chain.from_iterable((q.a, q.b, q.c, *q.answers) for q in questions)
    embedding = open_embedding(reference, table=options.table, hub=session.hub, progress=session.progress)
    names = (embedding.ref if number == 1 else f"{embedding.ref} ({number})" for number in count(1))
    embedding = replace(embedding, ref=next(name for name in names if name not in taken))
    lexicon = build_lexicon(embedding, words, options)
    rows = [lexicon.rows_of(question) for question in questions]
    known = [number for number, row in enumerate(rows) if row is not None]
    log.info(
        "%s: %d vectors of %d dimensions, %d candidates; %d of %d questions have only known words",
        embedding.ref,
        *embedding.matrix.shape,
        len(lexicon.candidates),
        len(known),
        len(rows),
    )
    notes = [f"{embedding.ref}: {note}" for note in embedding.notes]
    notes += _describe_case(lexicon, questions, len(known))
    frame = _build_frame(questions, embedding.ref)
    frame.attrs = {"model": embedding.ref, "revision": embedding.revision, "candidates": len(lexicon.candidates)}
    frame["known"] = [row is not None for row in rows]
    if known:
        terms, answers = zip(*(row for row in rows if row is not None), strict=True)
        most = max(map(len, answers))
        result = ask(
            Space(lexicon, options),
            torch.tensor(terms),
            torch.tensor([answer_rows + [-1] * (most - len(answer_rows)) for answer_rows in answers]),
            method=options.method,
            top_k=options.top_k,
            memory=int(options.memory),
            progress=session.progress,
        )
        frame.loc[known, "rank"] = result.rank.tolist()
        frame.loc[known, "cosine"] = result.cosine.tolist()
        frame.loc[known, "top"] = [" ".join(map(lexicon.label, top)) for top in result.top.tolist()]
    return frame, notes


def _build_frame(questions: Sequence[Question], ref: str) -> pd.DataFrame:
    """A row for each question, without an answer yet."""
    frame = pd.DataFrame(map(vars, questions))
    return frame.assign(
        model=ref,
        answer=frame["answers"].map("/".join),
        top="",
        cosine=float("nan"),
        rank=pd.array([pd.NA] * len(questions), "Int64"),
    )


def _note_few(frames: Sequence[pd.DataFrame], is_common: Any) -> list[str]:
    """A note if the results are about a small share of the questions. Raises QuestionError if they are about none.

    is_common: whether every model knows a question, [questions].
    """
    known = int(is_common.sum())
    asked = len(is_common)
    if known >= FEW * asked:
        return []
    counts = ", ".join(f"{frame.attrs['model']} knows {int(frame['known'].sum()):,}" for frame in frames)
    are_known = "known to all models" if len(frames) > 1 else "known"
    note = f"only {known:,} of {asked:,} questions are {are_known} ({counts} of {asked:,}); {ADVICE}"
    if not known:
        raise QuestionError(note)
    return [note]


def _describe_case(lexicon: Lexicon, questions: Sequence[Question], known: int) -> list[str]:
    """A note if words are looked up in lower case, and more of them would be found as they are written."""
    if lexicon.case != "lower":
        return []
    as_written = replace(lexicon, case="keep")
    known_as_written = sum(as_written.rows_of(question) is not None for question in questions)
    if known_as_written <= known:
        return []
    return [f"{lexicon.embedding.ref}: knows {known:,} questions in lower case; with --case keep {known_as_written:,}"]
