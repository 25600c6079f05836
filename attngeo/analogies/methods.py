"""The methods: how a candidate is scored as the fourth word of an analogy.

All three need only the products of candidates with the words of the questions. There are far fewer words than questions
(Google's 19,544 questions consist of 905 words). So the products are computed once per block of candidates, and each
question adds rows of them, which is orders of magnitude less work than one product for each question.

Source: Levy and Goldberg 2014, "Linguistic Regularities in Sparse and Explicit Word Representations", section 3 to 6.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from attngeo.analogies.space import unit
from attngeo.choices import Method, one_of

# Keeps 3CosMul's quotient finite: the value of Levy and Goldberg.
EPSILON = 0.001
# Questions whose targets are formed at once.
QUESTIONS = 1024


class Scorer(Protocol):
    """Scores of questions against a block of candidates."""

    def prepare(self, x: Tensor) -> None:
        """Take the vectors of a block of candidates, [block, width]."""
        ...

    def scores(self, start: int, stop: int) -> Tensor:
        """The scores of some of the questions, [stop − start, block]; higher is better. The caller may write to it."""
        ...


class CosAdd:
    """cos(x, Σ sign·term): with the terms a, b, c and the signs −1, 1, 1 it is 3CosAdd, cos(x, b + c − a)."""

    def __init__(self, vectors: Tensor, terms: Tensor, signs: tuple[int, ...]) -> None:
        """Take vectors [words, width] and terms [questions, n], places among the words; signs: one for each term."""
        self._vectors, self._terms, self._signs = vectors, terms, signs
        lengths = [
            torch.linalg.vector_norm(sum(sign * vectors[term] for term, sign in zip(part.T, signs, strict=True)), dim=1)
            for part in torch.split(terms, QUESTIONS)
        ]
        length = torch.cat(lengths)
        self._scale = torch.where(length > 0, 1 / length, 0)[:, None]

    def prepare(self, x: Tensor) -> None:
        """The cosine-like products of every word with every candidate."""
        self._products = self._vectors @ unit(x).mT

    def scores(self, start: int, stop: int) -> Tensor:
        """The cosines, [stop − start, block]."""
        (first, *terms), (sign, *signs) = self._terms[start:stop].T, self._signs
        total = self._products[first]
        if sign < 0:
            total.neg_()
        for term, sign in zip(terms, signs, strict=True):
            total.add_(self._products[term], alpha=sign)
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


class PairDirection:
    """cos(x − c, b − a): only the direction of the offset counts. 0 for a candidate equal to c."""

    def __init__(self, vectors: Tensor, terms: Tensor) -> None:
        self._vectors, self._terms = vectors, terms
        self._squares = vectors.square().sum(1)
        lengths, alongs = [], []
        for a, b, c in (part.T for part in torch.split(terms, QUESTIONS)):
            offset = vectors[b] - vectors[a]
            lengths.append(torch.linalg.vector_norm(offset, dim=1))
            alongs.append((vectors[c] * offset).sum(1))
        length = torch.cat(lengths)
        self._scale = torch.where(length > 0, 1 / length, 0)[:, None]
        self._along = torch.cat(alongs)[:, None]

    def prepare(self, x: Tensor) -> None:
        """Products, and one over the distances of every word from every candidate."""
        self._products = self._vectors @ x.mT
        squares = x.square().sum(1)
        sums = self._squares[:, None] + squares
        distances = sums - 2 * self._products
        # Equal vectors have a distance of rounding errors, which must not become a direction.
        apart = distances > sums.mul_(torch.finfo(x.dtype).eps * 64)
        self._nearness = distances.clamp_(min=0).rsqrt_().mul_(apart).nan_to_num_(nan=0.0)

    def scores(self, start: int, stop: int) -> Tensor:
        """The cosines, [stop − start, block]."""
        a, b, c = self._terms[start:stop].T
        along = self._products[b].sub_(self._products[a]).sub_(self._along[start:stop])
        return along.mul_(self._scale[start:stop]).mul_(self._nearness[c])


def scorer_of(method: str, vectors: Tensor, terms: Tensor) -> Scorer:
    """The scorer of a method for questions with the terms a, b, c. Raises UsageError for a name that is none."""
    if one_of("method", method, Method) == "3cosadd":
        return CosAdd(vectors, terms, (-1, 1, 1))
    return CosMul(vectors, terms) if method == "3cosmul" else PairDirection(vectors, terms)
