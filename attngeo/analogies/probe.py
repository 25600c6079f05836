"""All questions asked of one space: the rank of each answer among the candidates, and the best candidates.

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

# Keeps 3CosMul's quotient finite: the value of Levy and Goldberg.
EPSILON = 0.001
# Questions whose targets are formed at once.
QUESTIONS = 1024
# Scores closer than this are a tie, by the precision that they are computed in.
TIED = {torch.float64: 1e-10, torch.float32: 1e-5}
# Questions and candidates that are processed at a time: what fits into caches, and what keeps a GPU busy.
SHAPES = {"cpu": (256, 2048), "cuda": (4096, 16384), "mps": (2048, 8192)}
FEWEST = 16


class CosAdd:
    """3CosAdd, cos(x, b + c − a).

    `prepare` takes the vectors of a block of candidates [block, width]; `scores` gives those of some of the questions
    [stop − start, block], higher is better, which the caller may write to. `CosMul` has the same methods.
    """

    def __init__(self, vectors: Tensor, terms: Tensor) -> None:
        """Take vectors [words, width] and terms [questions, 3], the places of a, b and c among the words."""
        self._vectors, self._terms = vectors, terms
        targets = (
            (vectors[b] + vectors[c]) - vectors[a] for a, b, c in (part.T for part in torch.split(terms, QUESTIONS))
        )
        length = torch.cat([torch.linalg.vector_norm(target, dim=1) for target in targets])
        self._scale = torch.where(length > 0, 1 / length, 0)[:, None]

    def prepare(self, x: Tensor) -> None:
        """The cosine-like products of every word with every candidate."""
        self._products = self._vectors @ unit(x).mT

    def scores(self, start: int, stop: int) -> Tensor:
        """The cosines, [stop − start, block]."""
        a, b, c = self._terms[start:stop].T
        total = self._products[a].neg_().add_(self._products[b]).add_(self._products[c])
        return total.mul_(self._scale[start:stop])


class CosMul:
    """3CosMul, cos(x, b)·cos(x, c) / (cos(x, a) + ε) with cosines moved to [0, 1]."""

    def __init__(self, vectors: Tensor, terms: Tensor) -> None:
        self._vectors, self._terms = unit(vectors), terms

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
    """For each question: the rank [n] of the best right answer among the candidates other than a, b and c (1 is best,
    ties count against it), its cosine [n] with b + c − a, and the rows of the best candidates [n, k].
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
    top_k: int,
    memory: int,
    progress: ProgressCallback,
) -> ProbeResult:
    """Answer every question. Raises UsageError.

    terms: rows [n, 3] of a, b and c. answers: rows [n, m], −1 for an answer that is missing. memory: bytes for the
    blocks, in addition to the table itself.
    """
    probe = _Probe(space, terms, torch.cat([terms, answers], 1), top_k, memory)
    places, asked = probe.places(answers), probe.places(terms)
    # An answer is possible if it exists and is not one of the words of the question.
    possible = (places >= 0) & (places[:, :, None] != asked[:, None, :]).all(2)
    add = CosAdd(probe.vectors, asked)
    scorer: CosAdd | CosMul = add if method == "3cosadd" else CosMul(probe.vectors, asked)
    scores = probe.scores_at(scorer, places).masked_fill_(~possible, -torch.inf)
    best = scores.amax(1)
    cosines = scores if scorer is add else probe.scores_at(add, places)
    chosen = scores.argmax(1, keepdim=True)
    floor = best - TIED[scores.dtype]
    counts, top = probe.run(scorer, floor, progress)
    right = _mark_distinct(places, possible) & (scores >= floor[:, None])
    return ProbeResult(
        rank=(counts - right.sum(1) + 1).cpu(),
        cosine=torch.where(possible.any(1), cosines.gather(1, chosen)[:, 0], torch.nan).cpu(),
        top=top.cpu(),
    )


def check_top_k(space: Space, words: int, top_k: int) -> None:
    """Raise UsageError unless there are as many candidates that are none of the words of a question."""
    ref, candidates = space.lexicon.embedding.ref, len(space.candidates)
    if candidates <= words:
        raise UsageError(
            f"{ref} has {candidates} candidates, expected more than the words of a question; use a larger table, or "
            "set $candidates to all",
            "candidates",
        )
    if not 1 <= top_k <= candidates - words:
        raise UsageError(
            f"$top_k is {top_k}, expected from 1 to {candidates - words:,}: {ref} has {candidates:,} candidates, minus "
            "the words of a question",
            "top_k",
        )


class _Probe:
    """The words of all questions, and the loop over all candidates."""

    def __init__(self, space: Space, terms: Tensor, rows: Tensor, top_k: int, memory: int) -> None:
        self._space = space
        self._words = torch.unique(rows[rows >= 0])
        self.vectors = space.vectors(self._words)
        device = self.vectors.device
        check_top_k(space, terms.shape[1], top_k)
        self._top_k = top_k
        # The place of each row among the candidates: a question's own words are no answers to it.
        positions = torch.full((int(space.candidates[-1]) + 1,), -1)
        positions[space.candidates] = torch.arange(len(space.candidates))
        self._excluded = positions[terms].to(device)
        self._questions, self._block = _choose_blocks(device.type, self.vectors, len(terms), memory)

    def places(self, rows: Tensor) -> Tensor:
        """The place of each row among the words; −1 for −1."""
        places = torch.searchsorted(self._words, rows.clamp(min=0).contiguous())
        return torch.where(rows >= 0, places, -1).to(self.vectors.device)

    def scores_at(self, scorer: CosAdd | CosMul, places: Tensor) -> Tensor:
        """The score of each question [n] at some of the words [n, m], taken as candidates; −∞ at −1."""
        collected = torch.full(places.shape, -torch.inf, dtype=self.vectors.dtype, device=places.device)
        for first in range(0, len(self.vectors), self._block):
            scorer.prepare(self.vectors[first : first + self._block])
            inside = (places >= first) & (places < first + self._block)
            for start in range(0, len(places), self._questions):
                part = slice(start, min(start + self._questions, len(places)))
                here, columns = inside[part].nonzero(as_tuple=True)
                if len(here):
                    scores = scorer.scores(part.start, part.stop)
                    collected[start + here, columns] = scores[here, places[part][here, columns] - first]
        return collected

    def run(self, scorer: CosAdd | CosMul, floor: Tensor, progress: ProgressCallback) -> tuple[Tensor, Tensor]:
        """Count candidates of at least `floor` [n], and find the best k. A question's own words are left out."""
        count, total = len(floor), len(self._space.candidates)
        counts = torch.zeros(count, dtype=torch.long, device=floor.device)
        top_scores = torch.full((count, self._top_k), -torch.inf, dtype=floor.dtype, device=floor.device)
        top = torch.zeros(count, self._top_k, dtype=torch.long, device=floor.device)
        row_nbytes = self._space.width * self._space.lexicon.embedding.matrix.element_size()
        for first, x in self._space.blocks(self._block):
            progress(Progress("ask", f"{count:,} questions", first * row_nbytes, total * row_nbytes))
            scorer.prepare(x)
            for start in range(0, count, self._questions):
                part = slice(start, min(start + self._questions, count))
                scores = scorer.scores(part.start, part.stop)
                excluded = self._excluded[part] - first
                here, columns = ((excluded >= 0) & (excluded < len(x))).nonzero(as_tuple=True)
                scores[here, excluded[here, columns]] = -torch.inf
                counts[part] += (scores >= floor[part, None]).sum(1)
                values, where = scores.topk(min(self._top_k, len(x)), 1)
                merged = torch.cat([top_scores[part], values], 1).topk(self._top_k, 1)
                top_scores[part] = merged.values
                top[part] = torch.cat([top[part], where + first], 1).gather(1, merged.indices)
        return counts, self._space.candidates.to(top.device)[top]


def _mark_distinct(places: Tensor, possible: Tensor) -> Tensor:
    """The columns that are possible and repeat no earlier column: different candidates."""
    same = (places[:, :, None] == places[:, None, :]) & possible[:, None, :]
    return possible & ~torch.tril(same, diagonal=-1).any(2)


def _choose_blocks(device: str, vectors: Tensor, questions: int, memory: int) -> tuple[int, int]:
    """Questions and candidates per block, such that blocks fit into `memory` bytes. Raises UsageError."""
    most_questions, block = SHAPES[device]
    most_questions = min(most_questions, questions)
    words, width = vectors.shape
    while True:
        # The block of candidates twice, four tables of words by candidates, three of questions by candidates.
        needed = vectors.nbytes + vectors.element_size() * block * (2 * width + 4 * words + 3 * most_questions)
        if needed <= memory:
            return most_questions, block
        if block <= FEWEST:
            raise UsageError(
                f"$memory is {memory:,} bytes, expected at least {needed:,} for {words:,} words of {width} dimensions",
                "memory",
            )
        block //= 2
