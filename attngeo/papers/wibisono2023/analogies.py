"""Why analogies hold in embeddings or not: error terms of paraphrases on a small corpus, `attngeo analogy --explain`.

CBOW and one layer of attention are trained on the corpus. For each question a : b = c : d, the terms are those of the
word sets W = {b, c} and W* = {d, a}, from which w_d = w_b − w_a + w_c + C†(ξ + σ^W − σ^W*) follows.
Source: Wibisono and Wang 2023 (arXiv 2307.04057), section 4.2, Propositions 12, 16 and 17.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from attngeo.analogies.options import GOOGLE, ExplainOptions
from attngeo.analogies.questions import Question, as_questions
from attngeo.bounds.small_files import MOST_INDEX_BYTES, read_small_text
from attngeo.checkpoints.reference import local_path
from attngeo.errors import DataError, DataUnavailableError, QuestionError
from attngeo.keywords import takes
from attngeo.papers.wibisono2023.corpus import (
    WORDS,
    Array,
    ContinuousBag,
    Corpus,
    Examples,
    WordAttention,
    build_corpus,
    examples_of,
    fit,
    name_unit,
    place_words,
    toy_corpus,
)
from attngeo.papers.wibisono2023.factorisation import AttentionSums, sum_attention
from attngeo.papers.wibisono2023.options import TOY, require_corpus
from attngeo.papers.wibisono2023.paraphrases import combine, count_sets, paraphrase_errors
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.provenance import machine, software
from attngeo.training.loop import seeded

TOY_QUESTIONS = (
    ("statistics", "fun", "history", "boring"),
    ("statistics", "easy", "history", "difficult"),
    ("mathematics", "fun", "sociology", "boring"),
    ("mathematics", "easy", "sociology", "difficult"),
    ("fun", "easy", "boring", "difficult"),
    ("mathematics", "statistics", "sociology", "history"),
)
# Numbers of the products of all words, and of the contexts: more would take gigabytes and hours.
MOST_WORDS = 3000
MOST_CELLS = 100_000_000
TERMS = ("rho", "sigma", "sigma_star", "delta", "xi")
COLUMNS = (
    "model", "a", "b", "c", "answer", "rank", "cosine", "cosine_error", "contexts", *TERMS, "zeta_spread",
    "remainder", "context_error", "scaled_error", "asymmetry",
)  # fmt: skip


class ExplainKeywords(ExplainOptions):
    """The keywords of `explain`."""

    options: ExplainOptions | None = None
    progress: ProgressCallback = ignore_progress


@takes(ExplainKeywords)
def explain(
    corpus: str | Path | Corpus, options: ExplainOptions, *, progress: ProgressCallback = ignore_progress
) -> pd.DataFrame:
    """The error terms of each question beside its cosine error, for CBOW and attention trained on a corpus.

    Questions with words that the corpus lacks are left out. With `positions`, words are units such as history@3
    (appendix G.2), and a question is asked for all positions p, q at which c and b, and a and d occur in one sentence:
    a@p is to b@q as c@p is to d@q. The mask has no position; the positions of the others leave out its own.

    corpus: "toy" (appendix I of the paper), a UTF-8 text with one sentence a line, or a Corpus.
    {options}
    progress: called while the models are trained.

    Returns:
        A row for each model and question, with the columns COLUMNS. `cosine` is that of w_d with w_b − w_a + w_c,
        `cosine_error` 1 minus it, `rank` that of d among the words other than a, b and c. `rho` to `xi` are Euclidean
        norms over the `contexts` in which every probability is positive; NaN if there is none. `zeta_spread` is the
        range of ζ_j over the four words, as a share of its mean. `remainder` is ‖C†(ξ + σ^W − σ^W*)‖, what the error
        terms add to w_d. `context_error` and `scaled_error` are cosine errors of the embeddings of words as context, c
        and c̃_j = S·ζ_j·c_j. `asymmetry` is Σ|p̄ − p̄ᵀ|/Σ(p̄ + p̄ᵀ) over the rows of the four words, from 0 to 1.

    Raises:
        DataUnavailableError: if the corpus cannot be read.
        DataError: if the corpus is empty or too large.
        QuestionError: if no question is left.
    """
    if isinstance(corpus, Corpus):
        text = corpus
        source = "the corpus"
    else:
        text = read_corpus(corpus)
        source = str(corpus)
    questions, notes = _choose_questions(text, source, options)
    if options.positions:
        questions = _place_questions(text, source, questions)
        text = place_words(text)
    tokens = sum(len(sentence) for sentence in text.sentences)
    if text.size > MOST_WORDS or text.size * tokens > MOST_CELLS:
        raise DataError(
            f"the corpus has {text.size:,} different words and {tokens:,} in all, expected at most {MOST_WORDS:,} "
            f"different ones, and a product of at most {MOST_CELLS:,}; use fewer sentences"
        )
    examples = examples_of(text)
    rows = []
    for name in ("cbow", "attention"):
        model = train_model(name, text, examples, options, progress)
        sums = sum_attention(examples, model.tau)
        rows += [_measure_question(model, text, sums, question) for question in questions]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    about: dict[Any, Any] = {
        "title": "Word analogies and paraphrases",
        "questions": str(options.questions),
        "seed": options.seed,
        "dimensions": options.dimensions,
        "positions": options.positions,
        "sentences": len(text.sentences),
        "words": text.size,
        "notes": notes,
    }
    frame.attrs = about | software() | machine()
    return frame


def read_corpus(source: str | Path) -> Corpus:
    """The toy corpus, or that of a text with one sentence a line, split at white space.

    Raises DataUnavailableError, DataError.
    """
    if str(source) == TOY:
        return toy_corpus()
    require_corpus(source)
    try:
        text = read_small_text(local_path(source), MOST_INDEX_BYTES, "utf-8-sig")
        return build_corpus(line.split() for line in text.splitlines())
    except (ValueError, DataError) as error:
        raise DataError(f"{source}: {error}") from None
    except OSError as error:
        raise DataUnavailableError(f"{source} cannot be read ({error.strerror or error})") from None


def _choose_questions(corpus: Corpus, source: str, options: ExplainOptions) -> tuple[list[Question], list[str]]:
    """The questions whose words the corpus has, and a note about the others. source: of the corpus, for messages."""
    is_toy = options.questions == GOOGLE and corpus.words == WORDS
    candidates = as_questions(TOY_QUESTIONS if is_toy else options.questions).without_duplicates()
    questions = []
    for question in candidates.questions:
        words = set(_words_of(question))
        if len(words) == 4 and words.issubset(corpus.words):
            questions.append(question)
    if not questions:
        raise QuestionError(
            f"{source}: it has all words of none of the {len(candidates.questions):,} questions ({candidates.name}); "
            "name a file of questions about its words with $questions",
            "questions",
        )
    left_out = len(candidates.questions) - len(questions)
    if not left_out:
        return questions, []
    return questions, [f"{left_out:,} of {len(candidates.questions):,} questions have words that the corpus lacks"]


def _words_of(question: Question) -> tuple[str, str, str, str]:
    """a, b, c and d."""
    return question.a, question.b, question.c, question.answers[0]


def _place_questions(corpus: Corpus, source: str, questions: Sequence[Question]) -> list[Question]:
    """Each question for all positions at which both of its word sets occur. Raises QuestionError if there is none."""
    placed = []
    for question in questions:
        a, b, c, d = _words_of(question)
        of_first = _find_places(corpus, corpus.find(c), corpus.find(b))
        of_second = _find_places(corpus, corpus.find(a), corpus.find(d))
        placed += [
            replace(question, a=name_unit(a, p), b=name_unit(b, q), c=name_unit(c, p), answers=(name_unit(d, q),))
            for p, q in sorted(of_first & of_second)
        ]
    if not placed:
        raise QuestionError(
            f"{source}: no question has both of its pairs of words at the same positions; leave out $positions",
            "positions",
        )
    return placed


def _find_places(corpus: Corpus, left: int, right: int) -> set[tuple[int, int]]:
    """The pairs of places at which two words occur in one sentence."""
    places: set[tuple[int, int]] = set()
    for sentence, _ in corpus.distinct:
        of_left = np.flatnonzero(sentence == left).tolist()
        of_right = np.flatnonzero(sentence == right).tolist()
        places.update(product(of_left, of_right))
    return places


class TrainedModel(NamedTuple):
    """The embeddings and the attention of cbow or attention. vectors, contexts: w and c, [|V|, p]. tau: τ, [|V| + 1].

    τ of CBOW is 1, and 0 for the mask, which it lacks.
    """

    name: str
    vectors: Array
    contexts: Array
    tau: Array


def train_model(
    name: str, corpus: Corpus, examples: Examples, options: ExplainOptions, progress: ProgressCallback
) -> TrainedModel:
    """The model of this name, trained on a corpus."""

    def report(step: Progress) -> None:
        progress(Progress("prepare", f"{name}  {step.what}"))

    with seeded(options.seed):
        model = (ContinuousBag if name == "cbow" else WordAttention)(corpus.size, options.dimensions)
    fit(model, examples, options.seed, progress=report)
    if isinstance(model, WordAttention):
        tau = model.attention().detach().numpy()
        tokens = model.tokens
    else:
        tau = np.append(np.ones(corpus.size), 0)
        tokens = model.context
    vectors = model.centre.weight.detach().numpy()
    contexts = tokens.weight.detach().numpy()[: corpus.size]
    return TrainedModel(name, vectors, contexts, tau)


def _measure_question(model: TrainedModel, corpus: Corpus, sums: AttentionSums, question: Question) -> dict[str, Any]:
    """A question's row of the table."""
    numbers = [corpus.find(word) for word in _words_of(question)]
    a, b, c, d = numbers
    counts = count_sets(corpus, (b, c), (d, a), model.tau)
    terms = paraphrase_errors(sums.gamma, counts.joint, counts.joint_star, (b, c), (d, a), counts.every)
    defined = ~np.isnan(np.array(terms)).any(0)
    target = model.vectors[b] - model.vectors[a] + model.vectors[c]
    cosines = model.vectors @ target / (np.linalg.norm(model.vectors, axis=1) * np.linalg.norm(target))
    cosine = float(cosines[d])
    zeta = sums.zeta[numbers]
    scaled = model.contexts
    if model.name == "attention":
        length = np.mean([len(sentence) for sentence in corpus.sentences])
        scaled = model.contexts * (length * sums.zeta)[:, None]
    remainder = np.nan
    norms = dict.fromkeys(TERMS, np.nan)
    if defined.any():
        _, added = combine(terms)
        remainder = float(np.linalg.norm(np.linalg.pinv(scaled[defined]) @ added[defined]))
        norms = {name: float(np.linalg.norm(getattr(terms, name)[defined])) for name in TERMS}
    rows = sums.gamma[numbers]
    columns = sums.gamma[:, numbers].T
    return {
        "model": model.name,
        "a": question.a,
        "b": question.b,
        "c": question.c,
        "answer": question.answers[0],
        "rank": 1 + int((np.delete(cosines, numbers) >= cosines[d]).sum()),
        "cosine": cosine,
        "cosine_error": 1 - cosine,
        "contexts": int(defined.sum()),
        **norms,
        "zeta_spread": float(np.ptp(zeta) / zeta.mean()),
        "remainder": remainder,
        "context_error": _measure_error(model.contexts[numbers]),
        "scaled_error": _measure_error(scaled[numbers]),
        "asymmetry": float(np.abs(rows - columns).sum() / (rows + columns).sum()),
    }


def _measure_error(vectors: Array) -> float:
    """1 minus the cosine of d with b − a + c, for rows a, b, c and d, [4, p]."""
    a, b, c, d = vectors
    target = b - a + c
    return 1 - float(d @ target / (np.linalg.norm(d) * np.linalg.norm(target)))
