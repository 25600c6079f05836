"""All questions asked of one space: the rank of each answer among the candidates, and the best candidates.

A block of candidates and some questions are processed at a time, small enough for the processor's caches. Products
are float64: ranks are exact, and two candidates are tied only if their scores are equal.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attngeo.analogies.methods import CosAdd, Scorer, scorer_of
from attngeo.analogies.space import Space
from attngeo.errors import UsageError
from attngeo.progress import Progress, ProgressCallback, ignore_progress

# Scores closer than this are a tie, by the precision that they are computed in.
TIED = {torch.float64: 1e-10, torch.float32: 1e-5}
# Questions and candidates that are processed at a time: what fits into caches, and what keeps a GPU busy.
SHAPES = {"cpu": (256, 2048), "cuda": (4096, 16384), "mps": (2048, 8192)}
FEWEST = 16
DEFAULT_MEMORY = 1 << 30


@dataclass(frozen=True)
class EncodedQuestions:
    """Questions as rows of a lexicon: terms [n, 3] for a, b, c; answers [n, m], −1 for an answer that is missing."""

    terms: Tensor
    answers: Tensor


@dataclass(frozen=True)
class ProbeResult:
    """For each question: the rank [n] of the best right answer among the candidates other than a, b and c (1 is best,
    ties count against it), its cosine [n] with b + c − a, and the best candidates, rows and scores [n, k].
    """

    rank: Tensor
    cosine: Tensor
    top: Tensor
    top_scores: Tensor


def ask(
    space: Space,
    questions: EncodedQuestions,
    *,
    method: str = "3cosadd",
    top_k: int = 5,
    memory: int = DEFAULT_MEMORY,
    progress: ProgressCallback = ignore_progress,
) -> ProbeResult:
    """Answer every question. memory: bytes for the blocks, in addition to the table itself. Raises UsageError."""
    probe = _Probe(space, questions.terms, torch.cat([questions.terms, questions.answers], 1), top_k, memory)
    places = probe.places(questions.answers)
    terms = probe.places(questions.terms)
    # An answer is possible if it exists and is not one of the words of the question.
    possible = (places >= 0) & (places[:, :, None] != terms[:, None, :]).all(2)
    scorer = scorer_of(method, probe.vectors, terms)
    scores = probe.scores_at(scorer, places).masked_fill_(~possible, -torch.inf)
    best = scores.amax(1)
    cosines = scores if method == "3cosadd" else probe.scores_at(CosAdd(probe.vectors, terms, (-1, 1, 1)), places)
    chosen = scores.argmax(1, keepdim=True)
    floor = best - TIED[scores.dtype]
    counts, top, top_scores = probe.run(scorer, floor, progress)
    right = _mark_distinct(places, possible) & (scores >= floor[:, None])
    return ProbeResult(
        rank=(counts - right.sum(1) + 1).cpu(),
        cosine=torch.where(possible.any(1), cosines.gather(1, chosen)[:, 0], torch.nan).cpu(),
        top=top.cpu(),
        top_scores=top_scores.cpu(),
    )


def nearest_rows(
    space: Space, terms: Tensor, signs: tuple[int, ...], top_k: int, memory: int = DEFAULT_MEMORY
) -> ProbeResult:
    """The candidates of largest cosine with Σ sign·term, other than the terms [n] themselves; ranks are not set."""
    probe = _Probe(space, terms[None], terms[None], top_k, memory)
    floor = torch.full((1,), torch.inf, dtype=probe.vectors.dtype, device=probe.vectors.device)
    counts, top, scores = probe.run(CosAdd(probe.vectors, probe.places(terms[None]), signs), floor, ignore_progress)
    return ProbeResult(counts.cpu(), floor.cpu(), top.cpu(), scores.cpu())


class _Probe:
    """The words of all questions, and the loop over all candidates."""

    def __init__(self, space: Space, terms: Tensor, rows: Tensor, top_k: int, memory: int) -> None:
        self._space = space
        self._words = torch.unique(rows[rows >= 0])
        self.vectors = space.vectors(self._words)
        device = self.vectors.device
        allowed = len(space.candidates) - terms.shape[1]
        if allowed < 1:
            raise UsageError(
                f"{space.lexicon.embedding.ref} has {len(space.candidates)} candidates, expected more than the words "
                "of a question; use a larger table, or --candidates all"
            )
        if not 1 <= top_k <= allowed:
            raise UsageError(
                f"top_k is {top_k}, expected from 1 to {allowed:,}: {space.lexicon.embedding.ref} has "
                f"{len(space.candidates):,} candidates, minus the words of a question"
            )
        self._top_k = top_k
        # The place of each row among the candidates: a question's own words are no answers to it.
        positions = torch.full((int(space.candidates[-1]) + 1,), -1)
        positions[space.candidates] = torch.arange(len(space.candidates))
        self._own = positions[terms].to(device)
        self._questions, self._block = _choose_blocks(device.type, self.vectors, len(terms), memory)

    def places(self, rows: Tensor) -> Tensor:
        """The place of each row among the words; −1 for −1."""
        places = torch.searchsorted(self._words, rows.clamp(min=0).contiguous())
        return torch.where(rows >= 0, places, -1).to(self.vectors.device)

    def scores_at(self, scorer: Scorer, places: Tensor) -> Tensor:
        """The score of each question [n] at some of the words [n, m], taken as candidates; −∞ at −1."""
        found = torch.full(places.shape, -torch.inf, dtype=self.vectors.dtype, device=places.device)
        for first in range(0, len(self.vectors), self._block):
            scorer.prepare(self.vectors[first : first + self._block])
            inside = (places >= first) & (places < first + self._block)
            for start in range(0, len(places), self._questions):
                part = slice(start, min(start + self._questions, len(places)))
                here, columns = inside[part].nonzero(as_tuple=True)
                if len(here):
                    scores = scorer.scores(part.start, part.stop)
                    found[start + here, columns] = scores[here, places[part][here, columns] - first]
        return found

    def run(self, scorer: Scorer, floor: Tensor, progress: ProgressCallback) -> tuple[Tensor, Tensor, Tensor]:
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
                own = self._own[part] - first
                here, columns = ((own >= 0) & (own < len(x))).nonzero(as_tuple=True)
                scores[here, own[here, columns]] = -torch.inf
                counts[part] += (scores >= floor[part, None]).sum(1)
                values, where = scores.topk(min(self._top_k, len(x)), 1)
                merged = torch.cat([top_scores[part], values], 1).topk(self._top_k, 1)
                top_scores[part] = merged.values
                top[part] = torch.cat([top[part], where + first], 1).gather(1, merged.indices)
        return counts, self._space.candidates.to(top.device)[top], top_scores


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
                f"memory is {memory:,} bytes, expected at least {needed:,} for {words:,} words of {width} dimensions"
            )
        block //= 2
