"""A text in which only earlier text predicts what follows: random syllables, repeated.

Frequencies of syllables and fixed distances predict little. To find the last place of the syllable that it reads, and
to say what followed there, a model has two layers of heads work together (Olsson et al. 2022, arXiv 2209.11895).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

DOCUMENTS = 20_000
# Syllables of a document before they repeat, at least and at most.
SHORTEST, LONGEST = 4, 12
# How often a document says the same syllables.
TIMES = 4
SYLLABLES = tuple("".join(letters) for letters in itertools.product("bcdfghjklmnpqrstvwxz", "aeiou"))


def write_repeats() -> Iterator[str]:
    """Yield the documents, the same in each call.

    >>> first = next(write_repeats()).split()
    >>> first[: len(first) // 4] == first[-(len(first) // 4) :]
    True
    """
    random = np.random.default_rng(0)
    for _ in range(DOCUMENTS):
        length = random.integers(SHORTEST, LONGEST, endpoint=True)
        syllables = random.choice(SYLLABLES, length)
        yield " ".join([*syllables] * TIMES)
