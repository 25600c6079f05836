"""From models and a question set to the tables of results: `attngeo.analogy`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from attngeo.analogies.lexicon import Lexicon
from attngeo.analogies.probe import DEFAULT_MEMORY, EncodedQuestions, ask
from attngeo.analogies.published import published_rows
from attngeo.analogies.questions import GOOGLE, Question, QuestionSet, as_questions
from attngeo.analogies.settings import ProbeSettings
from attngeo.analogies.statistics import Bootstrap
from attngeo.analogies.summary import COLUMNS, compare, summarise
from attngeo.choices import Candidates, Case, Compose, Method, Table
from attngeo.errors import QuestionError, UsageError
from attngeo.progress import Progress
from attngeo.provenance import machine, software

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

QUESTION_COLUMNS = (
    "model", "category", "type", "line", "a", "b", "c", "answer", "known", "common", "rank", "cosine", "top",
    "first_pair", "second_pair",
)  # fmt: skip


class AnalogyResult(NamedTuple):
    """Three tables: `scores` with the columns of `summary.COLUMNS`, `comparisons` of every two models with those of
    `summary.COMPARISON_COLUMNS`, and `questions`, one row per model and question, with `QUESTION_COLUMNS`.
    """

    scores: pd.DataFrame
    comparisons: pd.DataFrame
    questions: pd.DataFrame


def analogy(
    models: Any | Sequence[Any],
    *,
    questions: str | Path | QuestionSet | Iterable[Sequence[str]] = GOOGLE,
    keep_duplicates: bool = False,
    table: Table = "input",
    candidates: Candidates = "words",
    case: Case = "auto",
    compose: Compose = "none",
    limit: int | None = None,
    method: Method = "3cosadd",
    normalise: bool = False,
    centre: bool = False,
    whiten: int = 0,
    top_k: int = 5,
    own: bool = False,
    published: bool = False,
    bootstrap: Bootstrap = Bootstrap(),
    memory: int = DEFAULT_MEMORY,
    device: str = "auto",
    offline: bool = False,
    progress: Callable[[Progress], None] = lambda _: None,
) -> AnalogyResult:
    """Ask the embeddings of one or several models word analogies: a is to b as c is to which word?

    models: each as for `embeddings.opening.open_embedding`: a checkpoint, a file of word vectors, `cbow:TEXT`, or an
    Embedding. Several are compared on the questions that all of them know; own adds each one's on all that it knows.
    questions: "google", a file, a folder of BATS, a list of fours of words, or a QuestionSet; asked once each unless
    keep_duplicates. limit: only the first so many candidates of each table, which most have ordered by frequency.
    table: a checkpoint's "input" embeddings or its "output" ones. candidates, case, compose: which vectors may be
    answers and how words find theirs, see `lexicon.build_lexicon`. method: "3cosadd" is the largest cosine with
    b + c − a, see `methods` for the others. normalise, centre, whiten: see `space.Treatment`; by default vectors are
    taken as they are. top_k: best candidates that are kept of each question. published: add the rows of the paper's
    Table 3. bootstrap: how intervals are made. memory: bytes for blocks of the computation. device: "auto", "cpu",
    "cuda", "cuda:N" or "mps".

    Source: Wibisono and Wang 2023, section 4.1 and appendix F. Raises ModelUnavailableError, CheckpointError,
    QuestionError, UsageError.

    >>> import attngeo
    >>> result = attngeo.analogy("demo:minilm")
    >>> overall = result.scores.query("level == 'overall'").iloc[0]
    >>> int(overall.known), round(float(overall.accuracy), 3)
    (11983, 0.741)
    """
    import pandas as pd

    references = [models] if isinstance(models, str | Path) or not isinstance(models, Iterable) else list(models)
    manner = ProbeSettings(
        table=table, candidates=candidates, case=case, compose=compose, limit=limit, method=method, centre=centre,
        whiten=whiten, normalise=normalise, device=device, offline=offline,
    )  # fmt: skip
    _check(references, published, questions, top_k)
    asked = as_questions(questions)
    asked = asked if keep_duplicates else asked.without_duplicates()
    notes = list(asked.notes)
    frames = []
    with torch.inference_mode():
        for reference in references:
            frame, own_notes = _ask_one(reference, asked, manner, top_k, memory, progress)
            frames.append(frame)
            notes += own_notes
    if len({frame.attrs["model"] for frame in frames}) < len(frames):
        raise UsageError(f"{frames[-1].attrs['model']} is named twice, expected different models")
    answered = pd.concat([frame.assign(common=_common(frames)) for frame in frames], ignore_index=True)
    common = answered.assign(known=answered["common"])
    several = len(frames) > 1
    scores = [summarise(common, which="common", bootstrap=bootstrap)] if several else []
    if own or not several:
        scores.append(summarise(answered, bootstrap=bootstrap))
    scores = [part.assign(note="; ".join(manner.described())) for part in scores]
    if published:
        scores.append(pd.DataFrame(published_rows(), columns=list(COLUMNS)))
    result = AnalogyResult(
        pd.concat([part.astype({"asked": "Int64", "known": "Int64"}) for part in scores], ignore_index=True),
        compare(common, bootstrap=bootstrap),
        answered[list(QUESTION_COLUMNS)],
    )
    about = _provenance(frames, asked, manner, top_k, bootstrap, notes)
    for part in result:
        part.attrs = about
    return result


def _ask_one(
    reference: Any,
    asked: QuestionSet,
    manner: ProbeSettings,
    top_k: int,
    memory: int,
    progress: Callable[[Progress], None],
) -> tuple[pd.DataFrame, list[str]]:
    """One model's answer to every question, and notes about it. What it holds in memory is let go."""
    words = (word for q in asked.questions for word in (q.a, q.b, q.c, *q.answers))
    lexicon = manner.lexicon(reference, words, progress)
    embedding = lexicon.embedding
    rows = [lexicon.rows_of(question) for question in asked.questions]
    known = [place for place, row in enumerate(rows) if row is not None]
    log.info(
        "%s: %d vectors of %d dimensions, %d of them may be answers; %d of %d questions can be asked",
        embedding.ref, *embedding.matrix.shape, len(lexicon.candidates), len(known), len(rows),
    )  # fmt: skip
    notes = [f"{embedding.ref}: {note}" for note in embedding.notes] + _case_notes(lexicon, asked.questions, len(known))
    frame = _questions_frame(asked.questions, embedding.ref)
    frame.attrs = {"model": embedding.ref, "revision": embedding.revision, "candidates": len(lexicon.candidates)}
    frame["known"] = [row is not None for row in rows]
    if known:
        found = _as_rows([row for row in rows if row is not None])
        space = manner.space(lexicon)
        answered = ask(space, found, method=manner.method, top_k=top_k, memory=memory, progress=progress)
        frame.loc[known, "rank"] = answered.rank.tolist()
        frame.loc[known, "cosine"] = answered.cosine.tolist()
        frame.loc[known, "top"] = [" ".join(map(lexicon.label, top)) for top in answered.top.tolist()]
    return frame, notes


def _questions_frame(questions: Sequence[Question], ref: str) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame({
        "model": ref,
        "category": [q.category for q in questions], "type": [q.type for q in questions],
        "line": [q.line for q in questions],
        "a": [q.a for q in questions], "b": [q.b for q in questions], "c": [q.c for q in questions],
        "answer": ["/".join(q.answers) for q in questions],
        "rank": pd.array([pd.NA] * len(questions), "Int64"), "cosine": float("nan"),
        "top": pd.array([""] * len(questions), "str"),
        "first_pair": [q.pairs[0] for q in questions], "second_pair": [q.pairs[1] for q in questions],
    })  # fmt: skip


def _as_rows(found: Sequence[tuple[int, int, int, list[int]]]) -> EncodedQuestions:
    """Questions as tensors of rows, answers filled up with −1."""
    most = max(len(answers) for *_, answers in found)
    return EncodedQuestions(
        torch.tensor([terms for *terms, _ in found]),
        torch.tensor([answers + [-1] * (most - len(answers)) for *_, answers in found]),
    )


def _common(frames: Sequence[pd.DataFrame]) -> Any:
    """Which questions every model knows, [questions]. Raises QuestionError where there is none."""
    common = frames[0]["known"].to_numpy().copy()
    for frame in frames[1:]:
        common &= frame["known"].to_numpy()
    if not common.any():
        counts = ", ".join(f"{frame.attrs['model']} knows {int(frame['known'].sum()):,}" for frame in frames)
        raise QuestionError(
            f"no question that {'all models know' if len(frames) > 1 else 'the model knows'} ({counts} of "
            f"{len(common):,}); try --case ignore, --compose mean or --candidates all"
        )
    return common


def _case_notes(lexicon: Lexicon, questions: Sequence[Question], known: int) -> list[str]:
    """A note where words that are asked for in lower case are not found, but would be as they are written."""
    if lexicon.case != "lower":
        return []
    kept = replace(lexicon, case="keep")
    would = sum(kept.rows_of(question) is not None for question in questions)
    return [
        f"{lexicon.embedding.ref}: asked in lower case, it knows {known:,} questions; with --case keep {would:,}"
    ] * (would > known)


def _check(references: Sequence[Any], published: bool, questions: Any, top_k: int) -> None:
    """Refuse what cannot work before anything is read."""
    if not references:
        raise UsageError("no model is named, expected at least one")
    texts = [str(reference) for reference in references if isinstance(reference, str | Path)]
    if twice := [text for text in texts if texts.count(text) > 1]:
        raise UsageError(f"{twice[0]} is named twice, expected different models")
    if top_k < 1:
        raise UsageError(f"top-k is {top_k}, expected at least 1")
    if published and questions != GOOGLE:
        raise UsageError(f"the paper's Table 3 is about the {GOOGLE} questions; leave out --published")


def _provenance(
    frames: Sequence[pd.DataFrame],
    asked: QuestionSet,
    manner: ProbeSettings,
    top_k: int,
    bootstrap: Bootstrap,
    notes: list[str],
) -> dict[Any, Any]:
    """How the tables were made, for reports."""
    return {
        "title": "Word analogies", **software(), **machine(),
        "model": ", ".join(str(frame.attrs["model"]) for frame in frames),
        "revision": ", ".join(str(frame.attrs["revision"]) for frame in frames if frame.attrs["revision"]),
        "questions": asked.name, "asked": len(asked.questions), **manner.settings(), "top_k": top_k,
        **{f"bootstrap_{name}": value for name, value in asdict(bootstrap).items()}, "notes": notes,
    }  # fmt: skip
