"""The probe, which answers questions from vectors: the rank of each answer, and the best candidates.

A method scores a candidate as the fourth word of an analogy. It needs only the products of candidates with the words of
the questions. There are far fewer words than questions (Google's 19,544 questions consist of 905 words). So the
products are computed once per block of candidates, and each question adds rows of them, which is orders of magnitude
less work than one product for each question.

A block of candidates and some questions are processed at a time, small enough for the processor's caches. Products
are float64: ranks are exact, and two candidates are tied only if their scores are equal.

Source of the methods: Levy and Goldberg 2014, "Linguistic Regularities in Sparse and Explicit Word Representations".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attngeo.analogies.lexicon import Space, unit
from attngeo.analogies.options import Method
from attngeo.errors import UsageError
from attngeo.progress import Progress, ProgressCallback

# Keeps the quotient of 3CosMul finite: the value of Levy and Goldberg.
EPSILON = 0.001
# Questions whose targets are formed at once.
QUESTIONS_AT_ONCE = 1024
# Precision of the scores → the distance below which two scores are tied.
TIED = {torch.float64: 1e-10, torch.float32: 1e-5}
# Device → questions and candidates that are processed at a time: as fit into caches, or keep a GPU busy.
BLOCKS = {"cpu": (256, 2048), "cuda": (4096, 16384), "mps": (2048, 8192)}
# Candidates of the smallest block.
FEWEST_CANDIDATES = 16


class CosAdd:
    """Scores by 3CosAdd, cos(x, b + c − a).

    `prepare` receives the vectors of a block of candidates [block, width]; `scores` returns the scores of some of the
    questions [stop − start, block], higher is better; the caller may write to them. `CosMul` has the same methods.
    """

    def __init__(self, vectors: Tensor, terms: Tensor) -> None:
        """Take vectors [words, width] and terms [questions, 3], the numbers of a, b and c among the words."""
        self._vectors = vectors
        self._terms = terms
        # Sets of questions ask about each pair of a and b again and again, in a row: their difference is made once.
        self._pairs, self._pair_numbers = torch.unique_consecutive(terms[:, :2], dim=0, return_inverse=True)
        lengths = []
        for block in torch.split(terms, QUESTIONS_AT_ONCE):
            a, b, c = block.T
            targets = (vectors[b] + vectors[c]) - vectors[a]
            lengths.append(torch.linalg.vector_norm(targets, dim=1))
        length = torch.cat(lengths)
        self._scale = torch.where(length > 0, 1 / length, 0)[:, None]

    def prepare(self, x: Tensor) -> None:
        """The cosine-like products of every word with every candidate."""
        self._products = self._vectors @ unit(x).mT

    def scores(self, start: int, stop: int) -> Tensor:
        """The cosines, [stop − start, block]."""
        numbers = self._pair_numbers[start:stop]
        first = numbers[0]
        a, b = self._pairs[first : numbers[-1] + 1].T
        differences = self._products.index_select(0, b).sub_(self._products.index_select(0, a))
        total = differences.index_select(0, numbers - first)
        total += self._products.index_select(0, self._terms[start:stop, 2])
        return total.mul_(self._scale[start:stop])


class CosMul:
    """Scores by 3CosMul, cos(x, b)·cos(x, c) / (cos(x, a) + ε) with cosines moved to [0, 1]."""

    def __init__(self, vectors: Tensor, terms: Tensor) -> None:
        self._vectors = unit(vectors)
        self._terms = terms

    def prepare(self, x: Tensor) -> None:
        """The moved cosines of every word with every candidate, and one over the denominators."""
        self._cosines = (self._vectors @ unit(x).mT).add_(1).div_(2).clamp_(min=0)
        self._inverses = (self._cosines + EPSILON).reciprocal_()

    def scores(self, start: int, stop: int) -> Tensor:
        """The scores, [stop − start, block]."""
        a, b, c = self._terms[start:stop].T
        return self._cosines[b].mul_(self._cosines[c]).mul_(self._inverses[a])


@dataclass(frozen=True)
class ProbeResult:
    """The results of n questions.

    Attributes:
        rank: rank of the best right answer among the candidates other than a, b and c, [n]; 1 is best, and ties count
            against it.
        cosine: cosine of this answer with b + c − a, [n].
        top: rows of the best candidates, [n, k].
    """

    rank: Tensor
    cosine: Tensor
    top: Tensor


def ask(
    space: Space,
    terms: Tensor,
    answers: Tensor,
    *,
    method: Method,
    n_answers: int,
    memory: int,
    progress: ProgressCallback,
) -> ProbeResult:
    """Answer every question.

    Args:
        space: the vectors of the candidates.
        terms: rows of a, b and c, [n, 3].
        answers: rows of the right answers, [n, m]; −1 for a missing one.
        method: score of a candidate.
        n_answers: number of best candidates to keep.
        memory: bytes for the blocks, in addition to the table itself.
        progress: called after each block.

    Raises:
        UsageError: the memory is too small.
    """
    probe = _Probe(space, terms, torch.cat([terms, answers], 1), n_answers, memory)
    answer_words = probe.find_words(answers)
    question_words = probe.find_words(terms)
    # An answer is possible if it exists and is not one of the words of the question.
    is_other_word = (answer_words[:, :, None] != question_words[:, None, :]).all(2)
    is_possible = (answer_words >= 0) & is_other_word
    cos_add = CosAdd(probe.vectors, question_words)
    scorer: CosAdd | CosMul = cos_add if method == "3cosadd" else CosMul(probe.vectors, question_words)
    scores = probe.score_words(scorer, answer_words).masked_fill_(~is_possible, -torch.inf)
    best = scores.argmax(1, keepdim=True)
    cosines = scores if scorer is cos_add else probe.score_words(cos_add, answer_words)
    floor = scores.amax(1) - TIED[scores.dtype]
    counts, best_rows = probe.run(scorer, floor, progress)
    # Answers that are the same candidate count once.
    is_same = (answer_words[:, :, None] == answer_words[:, None, :]) & is_possible[:, None, :]
    is_distinct = is_possible & ~torch.tril(is_same, diagonal=-1).any(2)
    is_best_answer = is_distinct & (scores >= floor[:, None])
    return ProbeResult(
        rank=(counts - is_best_answer.sum(1) + 1).cpu(),
        cosine=torch.where(is_possible.any(1), cosines.gather(1, best)[:, 0], torch.nan).cpu(),
        top=best_rows.cpu(),
    )


def check_count(space: Space, words: int, count: int, option: str) -> None:
    """Raise UsageError unless `count` candidates remain besides the words of a question.

    option: the option that sets the count.
    """
    ref = space.lexicon.embedding.ref
    candidates = len(space.candidates)
    if candidates <= words:
        raise UsageError(
            f"{ref} has {candidates} possible answers, expected more than the {words} words of a question; use a "
            "larger table, or set $answers to all",
            "answers",
        )
    if not 1 <= count <= candidates - words:
        raise UsageError(
            f"${option} is {count}, expected 1 to {candidates - words:,}: {ref} has {candidates:,} possible "
            f"answers, minus the {words} words of a question",
            option,
        )


class _Probe:
    """The words of all questions, and the loop over all candidates."""

    def __init__(self, space: Space, terms: Tensor, rows: Tensor, n_answers: int, memory: int) -> None:
        self._space = space
        self._words = torch.unique(rows[rows >= 0])
        self.vectors = space.vectors(self._words)
        device = self.vectors.device
        check_count(space, terms.shape[1], n_answers, "n_answers")
        self._n_answers = n_answers
        # The number of each row among the candidates: a question's own words are no answers to it.
        candidate_of_row = torch.full((int(space.candidates[-1]) + 1,), -1)
        candidate_of_row[space.candidates] = torch.arange(len(space.candidates))
        self._excluded = candidate_of_row[terms].to(device)
        self._question_block, self._block = _choose_blocks(device.type, self.vectors, len(terms), memory)

    def find_words(self, rows: Tensor) -> Tensor:
        """The number of each row among the words; −1 for −1."""
        words = torch.searchsorted(self._words, rows.clamp(min=0).contiguous())
        return torch.where(rows >= 0, words, -1).to(self.vectors.device)

    def score_words(self, scorer: CosAdd | CosMul, words: Tensor) -> Tensor:
        """The score of each question [n] for some of the words [n, m] as candidates; −∞ at −1."""
        count = len(words)
        collected = torch.full(words.shape, -torch.inf, dtype=self.vectors.dtype, device=words.device)
        for first in range(0, len(self.vectors), self._block):
            scorer.prepare(self.vectors[first : first + self._block])
            is_inside = (words >= first) & (words < first + self._block)
            for start in range(0, count, self._question_block):
                stop = min(start + self._question_block, count)
                questions, columns = is_inside[start:stop].nonzero(as_tuple=True)
                if not len(questions):
                    continue
                scores = scorer.scores(start, stop)
                candidates = words[start:stop][questions, columns] - first
                collected[start + questions, columns] = scores[questions, candidates]
        return collected

    def run(self, scorer: CosAdd | CosMul, floor: Tensor, progress: ProgressCallback) -> tuple[Tensor, Tensor]:
        """Count candidates of at least `floor` [n], and find the best k. A question's own words are left out."""
        count = len(floor)
        total = len(self._space.candidates)
        counts = torch.zeros(count, dtype=torch.long, device=floor.device)
        top_scores = torch.full((count, self._n_answers), -torch.inf, dtype=floor.dtype, device=floor.device)
        top = torch.zeros(count, self._n_answers, dtype=torch.long, device=floor.device)
        row_nbytes = self._space.width * self._space.lexicon.embedding.matrix.element_size()
        for first, x in self._space.blocks(self._block):
            progress(Progress("ask", f"{count:,} questions", first * row_nbytes, total * row_nbytes))
            scorer.prepare(x)
            for start in range(0, count, self._question_block):
                stop = min(start + self._question_block, count)
                scores = scorer.scores(start, stop)
                excluded = self._excluded[start:stop] - first
                questions, columns = ((excluded >= 0) & (excluded < len(x))).nonzero(as_tuple=True)
                scores[questions, excluded[questions, columns]] = -torch.inf
                best = scores.amax(1)
                # Most questions have no candidate in this block that counts, or that is better than their best k.
                reaching = (best >= floor[start:stop]).nonzero()[:, 0]
                questions = start + reaching
                counts[questions] += (scores.index_select(0, reaching) >= floor[questions, None]).sum(1)
                improving = (best > top_scores[start:stop, -1]).nonzero()[:, 0]
                questions = start + improving
                block_top = scores.index_select(0, improving).topk(min(self._n_answers, len(x)), 1)
                merged = torch.cat([top_scores[questions], block_top.values], 1).topk(self._n_answers, 1)
                top_scores[questions] = merged.values
                top[questions] = torch.cat([top[questions], block_top.indices + first], 1).gather(1, merged.indices)
        return counts, self._space.candidates.to(top.device)[top]


def _choose_blocks(device: str, vectors: Tensor, questions: int, memory: int) -> tuple[int, int]:
    """Questions and candidates per block, such that blocks fit into `memory` bytes. Raises UsageError."""
    most_questions, block = BLOCKS[device]
    most_questions = min(most_questions, questions)
    words, width = vectors.shape
    while True:
        # The block of candidates twice, four tables of words by candidates, three of questions by candidates.
        needed = vectors.nbytes + vectors.element_size() * block * (2 * width + 4 * words + 3 * most_questions)
        if needed <= memory:
            return most_questions, block
        if block <= FEWEST_CANDIDATES:
            raise UsageError(
                f"$memory is {memory:,} bytes, expected at least {needed:,} for {words:,} words of {width} dimensions",
                "memory",
            )
        block //= 2
