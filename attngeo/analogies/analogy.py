"""From models and a question set to the tables of results: `attngeo.analogy`, and `attngeo.nearest` for one by hand."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from attngeo.analogies.lexicon import Lexicon, build_lexicon
from attngeo.analogies.probe import DEFAULT_MEMORY, Asked, ask, precision_of
from attngeo.analogies.probe import nearest as nearest_rows
from attngeo.analogies.published import published_rows
from attngeo.analogies.questions import GOOGLE, Question, QuestionSet, load_questions
from attngeo.analogies.space import Space, Treatment
from attngeo.analogies.statistics import Bootstrap
from attngeo.analogies.summary import COLUMNS, compare, summarise
from attngeo.choices import Candidates, Case, Compose, Method, Table, one_of
from attngeo.devices import pick_device
from attngeo.embeddings.opening import open_embedding
from attngeo.errors import QuestionError, UsageError
from attngeo.progress import Progress

if TYPE_CHECKING:
    import pandas as pd

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


@dataclass(frozen=True)
class _Probe:
    """How every model is asked."""

    table: Table
    candidates: Candidates
    case: Case
    compose: Compose
    method: Method
    treatment: Treatment
    top_k: int
    memory: int
    device: torch.device
    offline: bool


def analogy(
    models: Any | Sequence[Any],
    *,
    questions: str | Path | QuestionSet = GOOGLE,
    keep_duplicates: bool = False,
    table: Table = "input",
    candidates: Candidates = "words",
    case: Case = "auto",
    compose: Compose = "none",
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
    questions: "google", a file, a folder of BATS, or a QuestionSet; asked once each unless keep_duplicates.
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
    probe = _Probe(
        one_of("table", table, Table), one_of("candidates", candidates, Candidates), one_of("case", case, Case),
        one_of("compose", compose, Compose), one_of("method", method, Method), Treatment(centre, whiten, normalise),
        top_k, memory, pick_device(device), offline,
    )  # fmt: skip
    _check(references, published, questions, top_k)
    asked = questions if isinstance(questions, QuestionSet) else load_questions(questions)
    asked = asked if keep_duplicates else asked.without_duplicates()
    notes = list(asked.notes)
    frames = []
    with torch.inference_mode():
        for reference in references:
            frame, own_notes = _ask_one(reference, asked, probe, progress)
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
    if published:
        scores.append(pd.DataFrame(published_rows(), columns=list(COLUMNS)))
    result = AnalogyResult(
        pd.concat([part.astype({"asked": "Int64", "known": "Int64"}) for part in scores], ignore_index=True),
        compare(common, bootstrap=bootstrap),
        answered[list(QUESTION_COLUMNS)],
    )
    about = _provenance(frames, asked, probe, bootstrap, notes)
    for part in result:
        part.attrs = about
    return result


def nearest(
    model: Any,
    words: Sequence[str],
    *,
    signs: Sequence[int] | None = None,
    table: Table = "input",
    candidates: Candidates = "words",
    case: Case = "auto",
    compose: Compose = "none",
    normalise: bool = False,
    centre: bool = False,
    whiten: int = 0,
    top_k: int = 10,
    device: str = "auto",
    offline: bool = False,
    progress: Callable[[Progress], None] = lambda _: None,
) -> pd.DataFrame:
    """The words nearest to a sum of words, such as king − man + woman, by cosine; those words themselves left out.

    words: the terms; signs: +1 or −1 for each, all +1 by default. The other arguments are those of `analogy`.
    Returns a DataFrame with the columns rank, word and cosine. Raises UsageError for a word that the model does not
    know, and what `analogy` raises.

    >>> import attngeo
    >>> attngeo.nearest("demo:minilm", ["king", "man", "woman"], signs=[1, -1, 1], top_k=1).word.item()
    'queen'
    """
    import pandas as pd

    signs = tuple(signs or [1] * len(words))
    if isinstance(words, str):
        raise UsageError(f"words is {words!r}, expected a list of them")
    if not words or len(signs) != len(words) or not {*signs} <= {1, -1}:
        raise UsageError(
            f"{len(words)} words and the signs {list(signs)}, expected at least one word, 1 or -1 for each"
        )
    target = pick_device(device)
    with torch.inference_mode():
        embedding = open_embedding(model, table=table, offline=offline, progress=progress)
        lexicon = build_lexicon(embedding, words, candidates=candidates, case=case, compose=compose)
        rows = [lexicon.row(word) for word in words]
        if unknown := [word for word, row in zip(words, rows, strict=True) if row is None]:
            raise UsageError(
                f"{embedding.ref} does not know {', '.join(map(repr, unknown))}; "
                + "try --compose mean, --case ignore or --candidates all"
            )
        space = Space(lexicon, Treatment(centre, whiten, normalise), target, precision_of(target))
        answered = nearest_rows(space, torch.tensor(rows), signs, top_k)
    frame = pd.DataFrame({
        "rank": range(1, top_k + 1),
        "word": [lexicon.label(row) for row in answered.top[0].tolist()],
        "cosine": answered.top_scores[0].tolist(),
    })  # fmt: skip
    frame.attrs = {"model": embedding.ref, "case": lexicon.case, "notes": list(embedding.notes)}
    return frame


def _ask_one(
    reference: Any, asked: QuestionSet, probe: _Probe, progress: Callable[[Progress], None]
) -> tuple[pd.DataFrame, list[str]]:
    """One model's answer to every question, and notes about it. What it holds in memory is let go."""
    embedding = open_embedding(reference, table=probe.table, offline=probe.offline, progress=progress)
    words = [word for q in asked.questions for word in (q.a, q.b, q.c, *q.answers)] if probe.compose == "mean" else []
    lexicon = build_lexicon(embedding, words, candidates=probe.candidates, case=probe.case, compose=probe.compose)
    rows = [lexicon.rows_of(question) for question in asked.questions]
    known = [place for place, row in enumerate(rows) if row is not None]
    notes = [f"{embedding.ref}: {note}" for note in embedding.notes] + _case_notes(lexicon, asked.questions, len(known))
    frame = _questions_frame(asked.questions, embedding.ref)
    frame.attrs = {"model": embedding.ref, "revision": embedding.revision, "candidates": len(lexicon.candidates)}
    frame["known"] = [row is not None for row in rows]
    if known:
        space = Space(lexicon, probe.treatment, probe.device, precision_of(probe.device))
        answered = ask(
            space, _as_rows([row for row in rows if row is not None]),
            method=probe.method, top_k=probe.top_k, memory=probe.memory, progress=progress,
        )  # fmt: skip
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


def _as_rows(found: Sequence[tuple[int, int, int, list[int]]]) -> Asked:
    """Questions as tensors of rows, answers filled up with −1."""
    most = max(len(answers) for *_, answers in found)
    return Asked(
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
    frames: Sequence[pd.DataFrame], asked: QuestionSet, probe: _Probe, bootstrap: Bootstrap, notes: list[str]
) -> dict[Any, Any]:
    """How the tables were made, for reports."""
    from attngeo import __version__

    return {
        "title": "Word analogies", "attngeo": __version__, "torch": torch.__version__,
        "platform": platform.platform(), "device": str(probe.device),
        "model": ", ".join(str(frame.attrs["model"]) for frame in frames),
        "revision": ", ".join(str(frame.attrs["revision"]) for frame in frames if frame.attrs["revision"]),
        "questions": asked.name, "asked": len(asked.questions), "table": probe.table, "candidates": probe.candidates,
        "case": probe.case, "compose": probe.compose, "method": probe.method, **asdict(probe.treatment),
        "top_k": probe.top_k, **{f"bootstrap_{name}": value for name, value in asdict(bootstrap).items()},
        "notes": notes,
    }  # fmt: skip
