"""What one table of vectors answers to questions of analogies, as a question about a model is asked."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pandas as pd
import torch

from attngeo.analogies.lexicon import Lexicon, Space, build_lexicon
from attngeo.analogies.options import TABLE_LAYER, AnalogyOptions
from attngeo.analogies.probe import ask
from attngeo.analogies.questions import Question, as_questions
from attngeo.devices import pick_device
from attngeo.embeddings.embedding import Embedding
from attngeo.embeddings.opening import open_embedding
from attngeo.session import Session

log = logging.getLogger(__name__)

# A note warns if a smaller share of the questions is known, and names those of these options that make more known.
FEW = 0.1
HELPFUL = {"case": "ignore", "subwords": "mean", "answers": "all"}


@torch.inference_mode()
def answer_questions(model: Any, session: Session, *, options: AnalogyOptions) -> pd.DataFrame:
    """One row per layer and question: whether the model knows it, and its answer. Frees its memory afterwards.

    The first rows are of layer -1, the table itself; each layer has the same questions in the same order.

    model: as for `attngeo.analogy`.
    Raises the errors of `attngeo.analogy`, but none if the model knows no question.
    """
    device = str(pick_device(options.device))
    question_set = as_questions(options.questions)
    if not options.keep_duplicates:
        question_set = question_set.without_duplicates()
    questions = question_set.questions
    words = [*chain.from_iterable((q.a, q.b, q.c, *q.answers) for q in questions)]
    embedding = open_embedding(model, table=options.table, hub=session.hub, progress=session.progress)
    lexicon = build_lexicon(embedding, words, options)
    rows = [lexicon.rows_of(question) for question in questions]
    known = [number for number, row in enumerate(rows) if row is not None]
    log.info(
        "%s: %d vectors of %d dimensions, %d possible answers; %d of %d questions have only known words",
        embedding.ref,
        *embedding.matrix.shape,
        len(lexicon.candidates),
        len(known),
        len(rows),
    )
    frame = _build_frame(questions, embedding.ref)
    frame["known"] = [row is not None for row in rows]
    model_notes = [*embedding.notes, *_describe_case(lexicon, questions, len(known))]
    about: dict[Any, Any] = {
        "model": embedding.ref,
        "revision": embedding.revision,
        "device": device,
        "questions": question_set.name,
        "notes": list(question_set.notes),
        "model_notes": model_notes,
    }
    if len(known) < FEW * len(rows):
        about["helpful"] = _find_helpful(embedding, questions, words, options, len(known))
    frames = [_answer(frame, lexicon, rows, options, session)]
    if options.layers is not None and known:
        from attngeo.analogies.states import describe_frame, find_frame, open_stack, read_states

        frame_of_words = find_frame(embedding, options.first_token)
        model_notes.append(describe_frame(embedding, frame_of_words))
        with open_stack(model, session) as stack:
            if stack.note:
                model_notes.append(stack.note)
            for layer, contextual in read_states(stack, lexicon, frame_of_words, options, session):
                answers = _answer(frame, contextual, rows, options, session)
                frames.append(answers.assign(layer=layer))
    frame = pd.concat(frames, ignore_index=True)
    frame.attrs = about
    return frame


def _answer(
    frame: pd.DataFrame,
    lexicon: Lexicon,
    rows: Sequence[tuple[list[int], list[int]] | None],
    options: AnalogyOptions,
    session: Session,
) -> pd.DataFrame:
    """A copy of the frame with the answers from the vectors of a lexicon.

    rows: of each question, those of its words in the lexicon; None if it is not known.
    """
    frame = frame.copy()
    known = [number for number, row in enumerate(rows) if row is not None]
    if not known:
        return frame
    terms, answers = zip(*(row for row in rows if row is not None), strict=True)
    most = max(map(len, answers))
    result = ask(
        Space(lexicon, options),
        torch.tensor(terms),
        torch.tensor([answer_rows + [-1] * (most - len(answer_rows)) for answer_rows in answers]),
        method=options.method,
        n_answers=options.n_answers,
        memory=options.memory,
        progress=session.progress,
    )
    frame.loc[known, "rank"] = result.rank.tolist()
    frame.loc[known, "cosine"] = result.cosine.tolist()
    frame.loc[known, "top"] = [" ".join(map(lexicon.label, best)) for best in result.top.tolist()]
    return frame


def _find_helpful(
    embedding: Embedding, questions: Sequence[Question], words: Sequence[str], options: AnalogyOptions, known: int
) -> list[str]:
    """The options that make more of the questions known, as the command line writes them. words: of the questions."""
    helpful = []
    for name, value in HELPFUL.items():
        if getattr(options, name) == value or (name == "subwords" and embedding.pieces is None):
            continue
        lexicon = build_lexicon(embedding, words, options.replace(**{name: value}))
        if sum(lexicon.rows_of(question) is not None for question in questions) > known:
            helpful.append(f"--{name} {value}")
    return helpful


def _build_frame(questions: Sequence[Question], ref: str) -> pd.DataFrame:
    """A row for each question, without an answer yet."""
    frame = pd.DataFrame(map(vars, questions))
    return frame.assign(
        model=ref,
        layer=TABLE_LAYER,
        answer=frame["answers"].map("/".join),
        top="",
        cosine=float("nan"),
        rank=pd.array([pd.NA] * len(questions), "Int64"),
    )


def _describe_case(lexicon: Lexicon, questions: Sequence[Question], known: int) -> list[str]:
    """A note if words are looked up in lower case, but more of them would be found as written."""
    if lexicon.case != "lower":
        return []
    as_written = replace(lexicon, case="keep")
    known_as_written = sum(as_written.rows_of(question) is not None for question in questions)
    if known_as_written <= known:
        return []
    return [f"knows {known:,} questions in lower case, but {known_as_written:,} with --case keep"]
