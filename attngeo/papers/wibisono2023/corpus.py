"""Small corpora as bags of words, the toy corpus of appendix I, and the models that are trained on them.

|V| words, the mask is one more token; embeddings of p dimensions.
Source: Wibisono and Wang 2023 (arXiv 2307.04057), appendices E, G and I.

The paper does not say how it trained its toy models. For its other model it names Adam with its default parameters and
batches of 128 (appendix E), which is used here. Training stops once the loss no longer falls, which is as far as
convergence goes: on the toy corpus the loss has no minimum, because some words never occur together, and their logits
fall without end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from attngeo.errors import DataError, TrainingError
from attngeo.progress import Progress, ProgressCallback, ignore_progress
from attngeo.training.loop import seeded

Array = np.ndarray[Any, np.dtype[Any]]

SUBJECTS = ("mathematics", "statistics", "sociology", "history")
ADJECTIVES = ("fun", "boring", "easy", "difficult")
TOY_WORDS = ("I", "like", "and", "is", *SUBJECTS, *ADJECTIVES)
# Appendix I: the level of each adjective of each subject, and how often each subject is liked.
LEVELS = np.array([[4, 2, 4, 2], [6, 0, 5, 1], [1, 5, 2, 4], [0, 6, 0, 6]], dtype=float)
LIKED = np.array([4, 5, 1, 1]) / 11
# Deviation of the weights of BERT before training (Devlin et al. 2019, `initializer_range`).
START = 0.02
BATCH = 128
RATE = 1e-3
# Training stops after this number of epochs in a row that did not lower the loss below its best.
PATIENCE = 3
MOST_EPOCHS = 1000
# Numbers of words; those of SUBJECTS and of ADJECTIVES follow each other.
I_ = 0
LIKE = 1
AND = 2
IS = 3
SUBJECT = 4
ADJECTIVE = 8

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class Corpus:
    """Sentences of words. words: the vocabulary. sentences: the numbers of the words of each sentence."""

    words: tuple[str, ...]
    sentences: tuple[Array, ...]

    @property
    def size(self) -> int:
        """The number of words in the vocabulary, |V|."""
        return len(self.words)

    @cached_property
    def distinct(self) -> list[tuple[Array, int]]:
        """The different sentences, and how often each occurs."""
        counts = Counter(tuple(sentence.tolist()) for sentence in self.sentences)
        return [(np.array(sentence), count) for sentence, count in counts.items()]

    def find(self, word: str) -> int:
        """The number of a word."""
        return self.words.index(word)


def toy_corpus(sentences: int = 10_000, seed: int = 0) -> Corpus:
    """The corpus of appendix I: sentences of 5 words from 12, such as "I like history and statistics".

    sentences: how many, at least 1. A sentence has one of three forms with equal probability: two liked subjects; two
    subjects and an adjective; a subject and two adjectives.

    >>> corpus = toy_corpus(3)
    >>> corpus.size, [len(sentence) for sentence in corpus.sentences]
    (12, [5, 5, 5])
    """
    random = np.random.default_rng(seed)
    forms = (_like_two, _call_two, _call_one)
    choices = random.integers(len(forms), size=sentences)
    return Corpus(TOY_WORDS, tuple(np.array(forms[choice](random)) for choice in choices))


def _like_two(random: np.random.Generator) -> list[int]:
    """I like SUBJECT and SUBJECT."""
    first, second = random.choice(len(SUBJECTS), size=2, p=LIKED).tolist()
    return [I_, LIKE, SUBJECT + first, AND, SUBJECT + second]


def _call_two(random: np.random.Generator) -> list[int]:
    """SUBJECT and SUBJECT is ADJECTIVE."""
    first, second = random.integers(len(SUBJECTS), size=2).tolist()
    (adjective,) = _draw_adjectives(random, LEVELS[first] + LEVELS[second], 1)
    return [SUBJECT + first, AND, SUBJECT + second, IS, adjective]


def _call_one(random: np.random.Generator) -> list[int]:
    """SUBJECT is ADJECTIVE and ADJECTIVE."""
    subject = int(random.integers(len(SUBJECTS)))
    first, second = _draw_adjectives(random, LEVELS[subject], 2)
    return [SUBJECT + subject, IS, first, AND, second]


def _draw_adjectives(random: np.random.Generator, levels: Array, count: int) -> list[int]:
    drawn = random.choice(len(ADJECTIVES), size=count, p=levels / levels.sum())
    return [ADJECTIVE + int(number) for number in drawn]


def build_corpus(sentences: Iterable[Sequence[str]]) -> Corpus:
    """The corpus of sentences as lists of words; the vocabulary is sorted.

    Sentences of fewer than 2 words are left out: they have no context. Raises DataError if none remains.
    """
    kept = [list(sentence) for sentence in sentences if len(sentence) >= 2]
    if not kept:
        raise DataError("the corpus has no sentence of at least 2 words; write one sentence per line")
    words = tuple(sorted({word for sentence in kept for word in sentence}))
    number_of = {word: number for number, word in enumerate(words)}
    return Corpus(words, tuple(np.array([number_of[word] for word in sentence]) for sentence in kept))


def name_unit(word: str, offset: int) -> str:
    """The name of a word at an offset from the start of its sentence: its position is counted from 1."""
    return f"{word}@{offset + 1}"


def place_words(corpus: Corpus) -> Corpus:
    """The same sentences with (word, position) units as their words: the remark at the end of appendix G.2."""
    return build_corpus(
        [name_unit(corpus.words[word], offset) for offset, word in enumerate(sentence)] for sentence in corpus.sentences
    )


@dataclass(frozen=True)
class Examples:
    """The distinct prediction tasks of a corpus: the words around a centre word, and which words the centre is.

    contexts: how often each word is in each context, [n, |V|]; a context is the whole sentence without the centre.
    centres: how often each word is the centre of each context, [n, |V|].
    """

    contexts: Array
    centres: Array

    @property
    def count(self) -> int:
        """The number of tasks, repeated ones included."""
        return int(self.centres.sum())


def examples_of(corpus: Corpus) -> Examples:
    """The prediction tasks of a corpus: each word of each sentence from the others."""
    centres: dict[bytes, Array] = {}
    for sentence, repeats in corpus.distinct:
        counts = np.bincount(sentence, minlength=corpus.size).astype(np.uint16)
        for word in sentence:
            counts[word] -= 1
            centres.setdefault(counts.tobytes(), np.zeros(corpus.size))[word] += repeats
            counts[word] += 1
    contexts = np.stack([np.frombuffer(key, np.uint16) for key in centres]).astype(float)
    return Examples(contexts, np.stack(list(centres.values())))


def count_pairs(examples: Examples) -> Array:
    """#(w_i, c_j): how often word i is a centre with word j in its context, [|V|, |V|]. Symmetric."""
    counts: Array = examples.centres.T @ examples.contexts
    return counts


class ContinuousBag(nn.Module):
    """CBOW with the full softmax: the logit of word k is w_k · (the mean of c_j over the context).

    center.weight: the center embeddings w_k, [|V|, p]. tokens.weight: the context embeddings c_j, [|V|, p].
    Both start as torch starts a Linear layer and an Embedding.
    """

    def __init__(self, words: int, dimensions: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, dimensions, dtype=torch.float64)
        self.center = nn.Linear(dimensions, words, bias=False, dtype=torch.float64)

    def attention(self) -> Tensor:
        """τ of each token, [|V| + 1], as for constant attention: 1 for words, 0 for the mask, which CBOW lacks."""
        return F.pad(torch.ones_like(self.tokens.weight[:, 0]), (0, 1))

    def forward(self, contexts: Tensor) -> Tensor:
        """Logits [n, |V|] of the center word, from how often each word is in its context, [n, |V|]."""
        shares = contexts / contexts.sum(1, keepdim=True)
        # In the cheapest order: |V| may be small against a batch.
        logits: Tensor = torch.linalg.multi_dot([shares, self.tokens.weight, self.center.weight.T])
        return logits


class WordAttention(nn.Module):
    """One layer of attention without positions and residual connections: equation (1) of appendix G.2.

    The logit of word k is w_k · Σ_j γ_j c_j over the tokens of the masked sentence, the mask included, with
    γ_j = τ_j / Σ τ and τ_j = exp(c_j·W^KQ·c_mask / √d_w).
    All weights start from a normal distribution of deviation 0.02, as in BERT; larger starts saturate the softmax.

    Attributes:
        center: its weight is w_k, [|V|, p].
        tokens: its weight is c_j, [|V| + 1, p], the mask last.
        key_query: its weight is W^KQ, [p, p].
    """

    def __init__(self, words: int, dimensions: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words + 1, dimensions, dtype=torch.float64)
        self.key_query = nn.Linear(dimensions, dimensions, bias=False, dtype=torch.float64)
        self.center = nn.Linear(dimensions, words, bias=False, dtype=torch.float64)
        for weight in self.parameters():
            nn.init.normal_(weight, std=START)

    def attention(self) -> Tensor:
        """τ of each token, [|V| + 1], up to a common factor."""
        mask = self.tokens.weight[-1]
        scores: Tensor = self.key_query(self.tokens.weight) @ mask / mask.numel() ** 0.5
        return (scores - scores.max()).exp()

    def forward(self, contexts: Tensor) -> Tensor:
        """Logits [n, |V|] of the masked word, from how often each word is around it, [n, |V|]."""
        weights = F.pad(contexts, (0, 1), value=1.0) * self.attention()
        shares = weights / weights.sum(1, keepdim=True)
        logits: Tensor = torch.linalg.multi_dot([shares, self.tokens.weight, self.center.weight.T])
        return logits


def fit(model: Model, examples: Examples, seed: int = 0, *, progress: ProgressCallback = ignore_progress) -> Model:
    """Train a model of contexts, in place, by Adam on shuffled batches of all tasks, until the loss stops improving.

    The loop is not `attngeo.training.loop.train`: a step takes 0.2 ms, and a training of seconds needs no saved state.

    Args:
        model: called as model(contexts [n, |V|]) → logits [n, |V|].
        examples: contexts and words of all tasks.
        seed: seed of the batches.
        progress: called after each epoch.

    Returns:
        The model.

    Raises:
        TrainingError: the loss is not a number.
    """
    contexts = torch.from_numpy(examples.contexts)
    centres = torch.from_numpy(examples.centres)
    words = centres.shape[1]
    # A task is a context and the word in its center, as one number.
    tasks = torch.repeat_interleave(torch.arange(centres.numel()), centres.flatten().long())
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)
    best = math.inf
    waited = 0
    with seeded(seed):
        for epoch in range(1, MOST_EPOCHS + 1):
            for batch in torch.split(tasks[torch.randperm(len(tasks))], BATCH):
                optimiser.zero_grad()
                logits = model(contexts[batch // words])
                F.cross_entropy(logits, batch % words).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            loss = float(corpus_loss(model, contexts, centres))
            if not math.isfinite(loss):
                raise TrainingError(f"the loss is {loss} after {epoch} epochs, expected a finite number")
            progress(Progress("prepare", f"epoch {epoch:,}: loss {loss:.4f}"))
            waited = 0 if loss < best else waited + 1
            best = min(best, loss)
            if waited == PATIENCE:
                break
    return model


@torch.no_grad()
def corpus_loss(model: nn.Module, contexts: Tensor, centres: Tensor) -> Tensor:
    """The mean cross-entropy over all tasks, in nats."""
    return -(centres * torch.log_softmax(model(contexts), 1)).sum() / centres.sum()
