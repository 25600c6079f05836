"""Error terms of analogies on a small corpus: `attngeo analogy --explain`. They say why an analogy holds or fails.

CBOW and one layer of attention are trained on the corpus. A question a : b = c : d is a paraphrase of the word set
W = {b, c} by W* = {d, a}. Its error terms ξ, σ^W and σ^W* (see `ParaphraseErrors`) give
w_d = w_b − w_a + w_c + C†(ξ + σ^W − σ^W*), where w is the center embedding of a word and C† the pseudoinverse of the
context embeddings. The paper writes a* for c, and b* for d.
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
from attngeo.bounds.paths import local_path
from attngeo.bounds.small_files import MOST_INDEX_BYTES, read_small_text
from attngeo.errors import DataError, DataUnavailableError, QuestionError, about
from attngeo.keywords import takes
from attngeo.papers.wibisono2023.corpus import (
    TOY_WORDS,
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
# Limits of the corpus, above which gigabytes and hours are needed: words of the vocabulary, whose sums of attention are
# [|V|, |V|]; and entries of the contexts [n, |V|], with at most one context for each word of each sentence.
MOST_WORDS = 3000
MOST_CONTEXT_ENTRIES = 100_000_000
TERMS = ("rho", "sigma", "sigma_star", "delta", "xi")
EXPLANATION_COLUMNS = (
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
    """Train CBOW and attention on a corpus, and compute error terms and cosine error for each analogy question.

    Questions with words that the corpus lacks are left out. With `positions`, words are units such as history@3
    (appendix G.2). A question a : b = c : d then becomes one question per pair of positions p and q: a@p is to b@q
    as c@p is to d@q. The corpus must have a sentence with c@p and b@q, and one with a@p and d@q. The mask has no
    position; the model infers it from the positions of the other words.

    Args:
        corpus: "toy" (appendix I of the paper), a UTF-8 text with one sentence per line, or a Corpus.
        {options}
        progress: called while the models train.

    Returns:
        One row per model and question, with the columns EXPLANATION_COLUMNS. Numbers have no unit; logarithms are
        natural.

        - `model`: "cbow" or "attention".
        - `a`, `b`, `c`, `answer`: the words of the question; `answer` is d.
        - `rank`: rank of d among the words other than a, b and c, from 1. A word with the same cosine counts as nearer.
        - `cosine`, `cosine_error`: the cosine of w_d with w_b − w_a + w_c, and 1 minus it.
        - `contexts`: the number of context words whose probabilities are all positive.
        - `rho`, `sigma`, `sigma_star`, `delta`, `xi`: the Euclidean norm of each error term over these contexts; NaN
          without contexts.
        - `zeta_spread`: the range of ζ_j over the four words, as a share of its mean.
        - `remainder`: ‖C†(ξ + σ^W − σ^W*)‖, the part of w_d from the error terms; NaN without contexts.
        - `context_error`: the cosine error of the context embeddings c.
        - `scaled_error`: the cosine error of c̃_j = S·ζ_j·c_j, for a mean of S words per sentence. For CBOW c̃ is c.
        - `asymmetry`: Σ|p̄ − p̄ᵀ|/Σ(p̄ + p̄ᵀ) over the rows of the four words, from 0 to 1.

    Raises:
        DataUnavailableError: the corpus cannot be read.
        DataError: the corpus is empty or too large.
        QuestionError: no question is left.
    """
    training_corpus = corpus if isinstance(corpus, Corpus) else read_corpus(corpus)
    with about("the corpus" if isinstance(corpus, Corpus) else str(corpus)):
        questions, notes = _choose_questions(training_corpus, options)
        if options.positions:
            questions = _place_questions(training_corpus, questions)
            training_corpus = place_words(training_corpus)
        tokens = sum(map(len, training_corpus.sentences))
        if training_corpus.size > MOST_WORDS or training_corpus.size * tokens > MOST_CONTEXT_ENTRIES:
            raise DataError(
                f"too large: {training_corpus.size:,} different words × {tokens:,} words, expected at most "
                f"{MOST_WORDS:,} different words and a product of {MOST_CONTEXT_ENTRIES:,}; use fewer sentences"
            )
    examples = examples_of(training_corpus)
    rows = []
    for model_name in ("cbow", "attention"):
        model = train_model(model_name, training_corpus, examples, options, progress)
        sums = sum_attention(examples, model.tau)
        rows += [_measure_question(model, training_corpus, sums, question) for question in questions]
    frame = pd.DataFrame(rows, columns=list(EXPLANATION_COLUMNS))
    frame.attrs |= {
        "title": "Word analogies and paraphrases",
        **vars(options),
        "questions": str(options.questions),
        "sentences": len(training_corpus.sentences),
        "words": training_corpus.size,
        "notes": notes,
        **software(),
        **machine(),
    }
    return frame


def read_corpus(source: str | Path) -> Corpus:
    """The toy corpus, or the corpus of a text with one sentence per line, split at white space.

    Args:
        source: "toy", or the path of a UTF-8 text.

    Raises:
        DataUnavailableError: the text cannot be read.
        DataError: the text is too large, is not UTF-8, or has no sentence with at least 2 words.
    """
    if str(source) == TOY:
        return toy_corpus()
    require_corpus(source)
    try:
        text = read_small_text(local_path(source), MOST_INDEX_BYTES, "utf-8-sig")
        return build_corpus(line.split() for line in text.splitlines())
    except (ValueError, DataError) as error:
        raise DataError(str(error), subject=source) from None
    except OSError as error:
        raise DataUnavailableError(f"{source} cannot be read ({error.strerror or error})") from None


def _choose_questions(corpus: Corpus, options: ExplainOptions) -> tuple[list[Question], list[str]]:
    """The questions whose four words are different and in the corpus, and notes about those that are left out.

    Args:
        corpus: the corpus before its words are placed.
        options: which questions. The toy corpus has its own in place of Google's.

    Raises:
        QuestionError: No question is left.
    """
    requested = options.questions
    if requested == GOOGLE and corpus.words == TOY_WORDS:
        requested = TOY_QUESTIONS
    candidates = as_questions(requested).without_duplicates()
    questions = []
    for question in candidates.questions:
        words = set(_list_words(question))
        if len(words) == 4 and words.issubset(corpus.words):
            questions.append(question)
    if not questions:
        raise QuestionError(
            f"lacks at least one word of each question ({candidates.name}, {len(candidates.questions):,} questions); "
            "give a file of questions about its words with $questions",
            "questions",
        )
    asked = len(candidates.questions)
    left_out = asked - len(questions)
    notes = [f"{left_out:,} of {asked:,} questions have words that are not in the corpus"] if left_out else []
    return questions, notes


def _list_words(question: Question) -> tuple[str, str, str, str]:
    """The words a, b, c and d of a question, where d is the first of its answers."""
    return question.a, question.b, question.c, question.answers[0]


def _place_questions(corpus: Corpus, questions: Sequence[Question]) -> list[Question]:
    """The questions a@p : b@q = c@p : d@q for all p and q at which c and b, and a and d, occur in one sentence.

    Args:
        corpus: the corpus before its words are placed.
        questions: questions about words of the corpus.

    Raises:
        QuestionError: No question has such positions.
    """
    placed = []
    for question in questions:
        a, b, c, d = _list_words(question)
        offsets_of_c_and_b = _find_offsets(corpus, corpus.find(c), corpus.find(b))
        offsets_of_a_and_d = _find_offsets(corpus, corpus.find(a), corpus.find(d))
        for p, q in sorted(offsets_of_c_and_b & offsets_of_a_and_d):
            answers = (name_unit(d, q),)
            placed.append(replace(question, a=name_unit(a, p), b=name_unit(b, q), c=name_unit(c, p), answers=answers))
    if not placed:
        raise QuestionError(
            "no question has both word pairs at the same positions; leave out $positions",
            "positions",
        )
    return placed


def _find_offsets(corpus: Corpus, left: int, right: int) -> set[tuple[int, int]]:
    """The pairs of offsets, from 0, at which two words occur in one sentence: of `left`, and of `right`.

    Args:
        corpus: the sentences.
        left: the number of one word.
        right: the number of the other.
    """
    offsets: set[tuple[int, int]] = set()
    for sentence, _ in corpus.distinct:
        left_offsets = np.flatnonzero(sentence == left).tolist()
        right_offsets = np.flatnonzero(sentence == right).tolist()
        offsets.update(product(left_offsets, right_offsets))
    return offsets


class TrainedModel(NamedTuple):
    """The embeddings of a trained model, and its attention.

    Attributes:
        name: "cbow" or "attention".
        center_embeddings: w, [|V|, p].
        context_embeddings: c, [|V|, p], without the mask.
        tau: τ, [|V| + 1], the mask last. For CBOW, 1 for words, and 0 for the mask, which it lacks.
    """

    name: str
    center_embeddings: Array
    context_embeddings: Array
    tau: Array


def train_model(
    name: str, corpus: Corpus, examples: Examples, options: ExplainOptions, progress: ProgressCallback
) -> TrainedModel:
    """Train a model on a corpus.

    Args:
        name: "cbow" or "attention".
        corpus: the corpus; only the size of its vocabulary is used.
        examples: the prediction tasks of the corpus.
        options: dimensions and seed.
        progress: called after each epoch.
    """

    def report(step: Progress) -> None:
        progress(Progress("prepare", f"{name}  {step.what}"))

    make_model = ContinuousBag if name == "cbow" else WordAttention
    with seeded(options.seed):
        model = make_model(corpus.size, options.dimensions)
    fit(model, examples, options.seed, progress=report).requires_grad_(False)
    return TrainedModel(
        name,
        center_embeddings=model.center.weight.numpy(),
        context_embeddings=model.tokens.weight[: corpus.size].numpy(),
        tau=model.attention().numpy(),
    )


def _measure_question(model: TrainedModel, corpus: Corpus, sums: AttentionSums, question: Question) -> dict[str, Any]:
    """The row of a question in the table of `explain`: column → value.

    Args:
        model: the trained model.
        corpus: the corpus that it was trained on.
        sums: sums of γ and γ² over the corpus, with τ of the model.
        question: a question about words of the corpus.
    """
    word_numbers = [corpus.find(word) for word in _list_words(question)]
    a, b, c, d = word_numbers
    joint, joint_star, every = count_sets(corpus, (b, c), (d, a), model.tau)
    terms = paraphrase_errors(sums.gamma, joint, joint_star, (b, c), (d, a), every)
    is_defined = ~np.isnan(np.array(terms)).any(axis=0)  # for each context word, [|V|]
    w = model.center_embeddings
    target = w[b] - w[a] + w[c]
    cosines = w @ target / (np.linalg.norm(w, axis=1) * np.linalg.norm(target))  # [|V|]
    cosine = float(cosines[d])
    not_below = np.delete(cosines, word_numbers) >= cosines[d]
    zeta = sums.zeta[word_numbers]
    scaled_embeddings = model.context_embeddings  # c̃ of CBOW is c
    if model.name == "attention":
        mean_length = np.mean([len(sentence) for sentence in corpus.sentences])
        scaled_embeddings = model.context_embeddings * (mean_length * sums.zeta)[:, None]
    remainder = np.nan
    norms = dict.fromkeys(TERMS, np.nan)
    if is_defined.any():
        _, added = combine(terms)  # ξ + σ^W − σ^W*, [|V|]
        inverse = np.linalg.pinv(scaled_embeddings[is_defined])  # C†
        remainder = float(np.linalg.norm(inverse @ added[is_defined]))
        norms = {term: float(np.linalg.norm(getattr(terms, term)[is_defined])) for term in TERMS}
    gamma_rows = sums.gamma[word_numbers]
    gamma_columns = sums.gamma[:, word_numbers].T
    return {
        "model": model.name,
        "a": question.a,
        "b": question.b,
        "c": question.c,
        "answer": question.answers[0],
        "rank": 1 + int(not_below.sum()),
        "cosine": cosine,
        "cosine_error": 1 - cosine,
        "contexts": int(is_defined.sum()),
        **norms,
        "zeta_spread": float(np.ptp(zeta) / zeta.mean()),
        "remainder": remainder,
        "context_error": _measure_cosine_error(model.context_embeddings[word_numbers]),
        "scaled_error": _measure_cosine_error(scaled_embeddings[word_numbers]),
        "asymmetry": float(np.abs(gamma_rows - gamma_columns).sum() / (gamma_rows + gamma_columns).sum()),
    }


def _measure_cosine_error(embeddings: Array) -> float:
    """1 minus the cosine of d with b − a + c. embeddings: rows a, b, c and d, [4, p]."""
    a, b, c, d = embeddings
    target = b - a + c
    return 1 - float(d @ target / (np.linalg.norm(d) * np.linalg.norm(target)))
