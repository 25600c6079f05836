"""Word analogies asked of models, and the tables of their results: `attngeo.analogy`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from attngeo.analogies.answering import FEW
from attngeo.analogies.options import TABLE_LAYER, AnalogyOptions, add_layer, analogy_columns, describe_settings
from attngeo.analogies.summary import compare_models, published_rows, summarize_answers
from attngeo.checkpoints.access import HubAccess
from attngeo.embeddings.reference import parse_reference
from attngeo.errors import QuestionError, UsageError
from attngeo.keywords import takes
from attngeo.progress import ProgressCallback
from attngeo.provenance import machine, software
from attngeo.questions.asking import ask_all
from attngeo.questions.frames import order_frames, set_types
from attngeo.questions.rows import ABOUT_MODEL
from attngeo.questions.table import QUESTIONS
from attngeo.session import Session, StudyOptions
from attngeo.studies.models import expand_models, find_repeated, name_model
from attngeo.studies.run import require_all

QUESTION_COLUMNS = (
    *ABOUT_MODEL, "category", "type", "line", "a", "b", "c", "answer", "known", "common", "rank", "cosine", "top",
    "first_pair", "second_pair",
)  # fmt: skip


class AnalogyResult(NamedTuple):
    """Three tables of results.

    Attributes:
        rows: accuracies, one row per model and category, type or whole set; and per layer, if layers are asked.
        comparisons: tests of the differences, one row per pair of models, and per layer with the table of its model,
            for each type and overall.
        questions: answers, one row per model, layer and question.
    """

    rows: pd.DataFrame
    comparisons: pd.DataFrame
    questions: pd.DataFrame


class AnalogyKeywords(AnalogyOptions, HubAccess, StudyOptions):
    """The keywords of `analogy`."""

    options: AnalogyOptions | None = None
    hub: HubAccess | None = None
    study: StudyOptions | None = None
    progress: ProgressCallback | None = None


@takes(AnalogyKeywords)
def analogy(models: Any | Sequence[Any], options: AnalogyOptions, *, session: Session) -> AnalogyResult:
    """Accuracy of embeddings on word analogies, such as man is to king as woman is to queen.

    Several models are compared on the questions that all of them know. By default, vectors are used unchanged, and only
    whole words may be answers. With `layers`, the model runs on each word alone, and its hidden states are asked, too.
    Source: Wibisono and Wang 2023, section 4.1 and appendix F.

    Args:
        models: one or several, each as for `attngeo.open_embedding`: a checkpoint, a file of word vectors, `cbow:TEXT`,
            or an Embedding. `questions` may also be a list of lists of four words, or a QuestionSet.
        {options}
        {hub}
        study: how several models are run; its fields are keywords, too:
            {study}
        progress: called while tables are read and questions are asked.

    Returns:
        The tables of results.

    Raises:
        ModelUnavailableError: a model cannot be found or reached.
        CheckpointError: a model cannot be read, or has no table of vectors.
        QuestionError: the questions cannot be read, or the models know no question in common.
        UsageError: an option is invalid.

    >>> import attngeo
    >>> result = attngeo.analogy("demo:minilm")
    >>> overall = result.rows.query("level == 'overall'").iloc[0]
    >>> int(overall.known), round(float(overall.accuracy), 3)
    (11983, 0.741)
    """
    references = [models] if isinstance(models, str | Path) or not isinstance(models, Iterable) else list(models)
    if not references:
        raise UsageError("$models is empty, expected at least one model", "models")
    references = expand_models(references, session.hub, parse_reference)
    repeated = find_repeated(references)
    if repeated is not None:
        name = getattr(repeated, "ref", name_model(repeated))
        raise UsageError(f"{name} is given twice, expected different models")
    outcomes = require_all(ask_all(QUESTIONS["analogy"], references, session, options=options))
    return join_answers([outcome.result for outcome in outcomes if outcome.result is not None], options)


def join_answers(frames: Sequence[pd.DataFrame], options: AnalogyOptions) -> AnalogyResult:
    """The tables of results of the answers of one or several models, see `answer_questions`.

    Raises QuestionError if no question is known to all of them.
    """
    frames = _name_apart(order_frames(frames))
    # Each layer of a model has the questions of its table, and knows the same.
    is_common = np.logical_and.reduce(
        [frame.loc[frame["layer"] == TABLE_LAYER, "known"].to_numpy() for frame in frames]
    )
    about = frames[0].attrs
    notes = [*about["notes"]]
    for frame in frames:
        notes += [f"{frame.attrs['model']}: {note}" for note in frame.attrs["model_notes"]]
    notes += _note_few(frames, is_common)
    # The revision of each model by its name.
    revisions = {str(frame.attrs["model"]): frame.attrs["revision"] for frame in frames}
    marked = [frame.assign(common=np.resize(is_common, len(frame))) for frame in frames]
    result = _summarize(marked, revisions, options)
    origin: dict[Any, Any] = {
        "title": QUESTIONS["analogy"].title,
        **software(),
        **machine(),
        "model": ", ".join(revisions),
        "revision": revisions if len(frames) > 1 else about["revision"],
        **vars(options),
        "questions": about["questions"],
        "asked": len(is_common),
        "device": about["device"],
        "notes": notes,
    }
    for table in result:
        table.attrs = origin
    return result


def join_scores(frames: Sequence[pd.DataFrame], options: AnalogyOptions) -> pd.DataFrame:
    """The main table of `join_answers`."""
    return join_answers(frames, options).rows


def _name_apart(frames: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """The answers of models with different names: one in memory may have that of its class only, and gets a number."""
    named: list[pd.DataFrame] = []
    for frame in frames:
        taken = {other.attrs["model"] for other in named}
        ref = frame.attrs["model"]
        names = (ref if number == 1 else f"{ref} ({number})" for number in count(1))
        name = next(name for name in names if name not in taken)
        renamed = frame.assign(model=name)
        renamed.attrs = frame.attrs | {"model": name}
        named.append(renamed)
    return named


def _summarize(
    frames: Sequence[pd.DataFrame], revisions: Mapping[str, str | None], options: AnalogyOptions
) -> AnalogyResult:
    """The tables of results from each model's answers; `common` says whether all models know a question."""
    several = len(frames) > 1
    answers = pd.concat(frames, ignore_index=True)
    common = answers.assign(known=answers["common"])
    tables = []
    if several:
        tables.append(summarize_answers(common, which="common", options=options))
    if options.own or not several:
        tables.append(summarize_answers(answers, options=options))
    note = "; ".join(describe_settings(options))
    tables = [table.assign(note=note) for table in tables]
    if options.published:
        tables.append(pd.DataFrame(published_rows(), columns=list(analogy_columns(options.layers))))
    rows = pd.concat([set_types(table) for table in tables], ignore_index=True)
    comparisons = compare_models(common, options=options)
    for table in (rows, comparisons, answers):
        table["revision"] = table["model"].map(revisions).astype("str")
    comparisons["other_revision"] = comparisons["other"].map(revisions).astype("str")
    return AnalogyResult(rows, comparisons, answers[list(add_layer(QUESTION_COLUMNS, options.layers))])


def _note_few(frames: Sequence[pd.DataFrame], is_common: Any) -> list[str]:
    """A note if the results are about a small share of the questions. Raises QuestionError if they are about none.

    is_common: whether every model knows a question, [questions].
    """
    known = int(is_common.sum())
    asked = len(is_common)
    if known >= FEW * asked:
        return []
    counts = ", ".join(f"{frame.attrs['model']} knows {_count_known(frame):,}" for frame in frames)
    are_known = "known to all models" if len(frames) > 1 else "known"
    note = f"only {known:,} of {asked:,} questions are {are_known} ({counts} of {asked:,})"
    helpful = [*dict.fromkeys(option for frame in frames for option in frame.attrs.get("helpful", ()))]
    if helpful:
        note += f"; to use more of them, set {' or '.join(helpful)}"
    if not known:
        raise QuestionError(note)
    return [note]


def _count_known(frame: pd.DataFrame) -> int:
    """The questions that a model knows."""
    return int(frame.loc[frame["layer"] == TABLE_LAYER, "known"].sum())
