"""Why analogies hold in embeddings or not: error terms of paraphrases on a small corpus, `attngeo analogy --explain`.

CBOW and one layer of attention are trained on the corpus. For each question a : b = c : d, the terms are those of the
word sets W = {b, c} and W* = {d, a}, from which w_d = w_b − w_a + w_c + C†(ξ + σ^W − σ^W*) follows.
What the center embeddings w do, the token embeddings c do under further conditions: `check_tokens`.
Source: Wibisono and Wang 2023 (arXiv 2307.04057), section 4.2, Propositions 12, 16 and 17.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from attngeo.analogies.options import GOOGLE, ExplainOptions
from attngeo.analogies.questions import Question, as_questions
from attngeo.bounds import MOST_INDEX_BYTES, read_small_text
from attngeo.checkpoints.reference import local_path
from attngeo.errors import DataError, DataUnavailableError, QuestionError
from attngeo.keywords import takes
from attngeo.papers.statements import WIBISONO, Residuals, shortfall, statement
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
from attngeo.papers.wibisono2023.factorisation import (
    FIRST,
    SECOND,
    AttentionSums,
    combine,
    count_sets,
    embed,
    paraphrase_errors,
    solve_factors,
    sum_attention,
)
from attngeo.papers.wibisono2023.options import TOY, require_corpus
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
MOST_WORDS, MOST_CELLS = 3000, 100_000_000
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

    corpus: "toy" (appendix I of the paper), a UTF-8 text with one sentence a line, or a Corpus.
    {options}
    progress: called while the models are trained.

    Returns a row for each model and question, with the columns COLUMNS. `cosine` is that of w_d with w_b − w_a + w_c,
    `cosine_error` 1 minus it, `rank` that of d among the words other than a, b and c. `rho` to `xi` are Euclidean norms
    over the `contexts` in which every probability is positive; NaN if there is none. `zeta_spread` is the range of ζ_j
    over the four words, as a share of its mean. `remainder` is ‖C†(ξ + σ^W − σ^W*)‖, what the error terms add to w_d.
    `context_error` and `scaled_error` are cosine errors of the embeddings of words as context, c and c̃_j = S·ζ_j·c_j.
    `asymmetry` is Σ|p̄ − p̄ᵀ|/Σ(p̄ + p̄ᵀ) over the rows of the four words, from 0 to 1. Questions with words that the
    corpus lacks are left out. With `positions`, words are units such as history@3 (appendix G.2), and a question is
    asked for all positions p, q at which c and b, and a and d occur in one sentence: a@p is to b@q as c@p is to d@q.
    The mask has no position; the positions of the others leave out its own.
    Raises DataUnavailableError, DataError if the corpus is empty or too large, QuestionError if no question is left.
    """
    text = corpus if isinstance(corpus, Corpus) else read_corpus(corpus)
    name = "the corpus" if text is corpus else corpus
    questions, notes = _choose_questions(text, str(name), options)
    if options.positions:
        text, questions = place_words(text), _place_questions(text, str(name), questions)
    cells = text.size * sum(len(sentence) for sentence in text.sentences)
    if text.size > MOST_WORDS or cells > MOST_CELLS:
        raise DataError(
            f"the corpus has {text.size:,} different words and {cells // text.size:,} in all, expected at most "
            f"{MOST_WORDS:,} different ones, and a product of at most {MOST_CELLS:,}; use fewer sentences"
        )
    examples = examples_of(text)
    rows = []
    for model in ("cbow", "attention"):
        vectors, contexts, tau = train_model(model, text, examples, options, progress)
        sums = sum_attention(examples, tau)
        rows += [_make_row(model, text, sums, vectors, contexts, tau, question) for question in questions]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    about: dict[Any, Any] = {
        "title": "Word analogies and paraphrases", "questions": str(options.questions), "seed": options.seed,
        "dimensions": options.dimensions, "positions": options.positions, "sentences": len(text.sentences),
        "words": text.size, "notes": notes,
    }  # fmt: skip
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


def _choose_questions(corpus: Corpus, name: str, options: ExplainOptions) -> tuple[list[Question], list[str]]:
    """The questions whose words the corpus has, and a note about the others. name: of the corpus, for messages."""
    is_toy = options.questions == GOOGLE and corpus.words == WORDS
    asked = as_questions(TOY_QUESTIONS if is_toy else options.questions).without_duplicates()
    words = [{question.a, question.b, question.c, question.answers[0]} for question in asked.questions]
    questions = [
        question
        for question, needed in zip(asked.questions, words, strict=True)
        if len(needed) == 4 and needed.issubset(corpus.words)
    ]
    if not questions:
        raise QuestionError(
            f"{name}: it has all words of none of the {len(asked.questions):,} questions ({asked.name}); "
            "name a file of questions about its words with $questions",
            "questions",
        )
    left = len(asked.questions) - len(questions)
    note = f"{left:,} of {len(asked.questions):,} questions have words that the corpus lacks"
    return questions, [note] if left else []


def _place_questions(corpus: Corpus, name: str, questions: Sequence[Question]) -> list[Question]:
    """Each question for all positions at which both of its word sets occur. Raises QuestionError if there is none."""
    placed = []
    for question in questions:
        a, b, c, d = question.a, question.b, question.c, question.answers[0]
        first, second = (
            _find_places(corpus, corpus.find(left), corpus.find(right)) for left, right in ((c, b), (a, d))
        )
        placed += [
            replace(question, a=name_unit(a, p), b=name_unit(b, q), c=name_unit(c, p), answers=(name_unit(d, q),))
            for p, q in sorted(first & second)
        ]
    if not placed:
        raise QuestionError(
            f"{name}: no question has both of its pairs of words at the same positions; leave out $positions",
            "positions",
        )
    return placed


def _find_places(corpus: Corpus, left: int, right: int) -> set[tuple[int, int]]:
    """The pairs of places at which two words occur in one sentence."""
    return {
        (int(p), int(q))
        for sentence, _ in corpus.distinct
        for p in np.flatnonzero(sentence == left)
        for q in np.flatnonzero(sentence == right)
    }


def train_model(
    name: str, corpus: Corpus, examples: Examples, options: ExplainOptions, progress: ProgressCallback
) -> tuple[Array, Array, Array]:
    """The embeddings w and c of a trained model, [|V|, p] each, and its τ, [|V| + 1]; 1 and no mask for CBOW."""
    with seeded(options.seed):
        model = (ContinuousBag if name == "cbow" else WordAttention)(corpus.size, options.dimensions)
    fit(model, examples, options.seed, progress=lambda step: progress(Progress("prepare", f"{name}  {step.what}")))
    tau = model.attention().detach().numpy() if isinstance(model, WordAttention) else np.append(np.ones(corpus.size), 0)
    tokens = model.tokens if isinstance(model, WordAttention) else model.context
    return model.centre.weight.detach().numpy(), tokens.weight.detach().numpy()[: corpus.size], tau


def _make_row(
    name: str,
    corpus: Corpus,
    sums: AttentionSums,
    vectors: Array,
    contexts: Array,
    tau: Array,
    question: Question,
) -> tuple[Any, ...]:
    words = question.a, question.b, question.c, question.answers[0]
    a, b, c, d = four = [corpus.find(word) for word in words]
    joint, joint_star, every = count_sets(corpus, ((b, c), (d, a)), tau)
    terms = paraphrase_errors(sums.gamma, joint, joint_star, (b, c), (d, a), every)
    defined = ~np.isnan(np.array(terms)).any(0)
    norms = [float(np.linalg.norm(term[defined])) if defined.any() else float("nan") for term in terms]
    zeta = sums.zeta[four]
    target = vectors[b] - vectors[a] + vectors[c]
    cosines = vectors @ target / (np.linalg.norm(vectors, axis=1) * np.linalg.norm(target))
    rank, cosine = 1 + int((np.delete(cosines, four) >= cosines[d]).sum()), float(cosines[d])
    length = np.mean([len(sentence) for sentence in corpus.sentences])
    scaled = contexts * (length * sums.zeta if name == "attention" else np.ones(corpus.size))[:, None]
    added = np.linalg.pinv(scaled[defined]) @ combine(terms)[1][defined] if defined.any() else np.array([np.nan])
    rows, columns = sums.gamma[four], sums.gamma[:, four].T
    return (
        name, *words, rank, cosine, 1 - cosine, int(defined.sum()), *norms, float(np.ptp(zeta) / zeta.mean()),
        float(np.linalg.norm(added)), *(_measure_error(part[four]) for part in (contexts, scaled)),
        float(np.abs(rows - columns).sum() / (rows + columns).sum()),
    )  # fmt: skip


def _measure_error(four: Array) -> float:
    """1 minus the cosine of d with b − a + c, for rows a, b, c and d, [4, p]."""
    target = four[1] - four[0] + four[2]
    return 1 - float(four[3] @ target / (np.linalg.norm(four[3]) * np.linalg.norm(target)))


@statement(
    "proposition-17-tokens", WIBISONO, "Propositions 8 and 17, conditions",
    "c̃ is linear if p̄ is symmetric, c if ζ is constant as well", 1e-6,
)  # fmt: skip
def check_tokens(seed: int = 0, *, words: int = 7, trials: int = 5) -> Residuals:
    """Propositions 8 and 17: if all assumptions hold, both sums of c̃ are equal, and those of c if ζ is constant.

    These conditions are needed: if only one of them fails, the sums differ. Errors are shares of the largest ‖c‖.
    """
    random = np.random.default_rng(seed)
    errors, unequal, skewed = [], [], []
    for _ in range(trials):
        _, scaled = embed(*solve_factors(random, words))
        zeta = np.ones((words, 1))
        zeta[FIRST[0]] = 1.5
        errors.append(_measure_gap(scaled))
        unequal.append(_measure_gap(scaled / zeta))
        skewed.append(_measure_gap(embed(*solve_factors(random, words, symmetric=False))[1]))
    errors.append(shortfall([*unequal, *skewed], 0.01))
    return Residuals(
        f"if ζ of one word is 1.5 times that of the others, the sums of c are off by {min(unequal):.0%} to "
        f"{max(unequal):.0%}; without symmetry those of c̃ by {min(skewed):.0%} to {max(skewed):.0%}",
        tuple(errors),
    )


def _measure_gap(contexts: Array) -> float:
    """‖c_r + c_s − c_t − c_u‖ as a share of the largest ‖c‖."""
    gap = contexts[list(FIRST)].sum(0) - contexts[list(SECOND)].sum(0)
    return float(np.linalg.norm(gap) / np.linalg.norm(contexts, axis=1).max())
