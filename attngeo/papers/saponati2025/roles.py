"""Tokens of a text as contexts and as predicted (Remark S1.10), `attngeo theory --text`.

Source: Saponati et al. 2025 (arXiv 2502.10927), appendix S1.5.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from attngeo.papers.wibisono2023.analogies import read_corpus
from attngeo.provenance import software

ROLE_COLUMNS = ("token", "count", "position", "length", "context", "predicted", "ratio", "z")


def count_roles(source: str | Path) -> pd.DataFrame:
    """Count how often each token of a text is context, and how often it is predicted from the tokens before it.

    Args:
        source: a UTF-8 text with one sequence per line, split at white space, or "toy" (see `toy_corpus`). Lines with a
            single token are left out.

    Returns:
        One row per token, with the columns ROLE_COLUMNS, the largest |z| first. `position` μ and `length` N are means
        over the token's occurrences; `context` and `predicted` are the sums of N − k and of k − 1 over its positions k;
        `ratio` is context/predicted = (N − μ)/(μ − 1), infinite for a token that only begins lines. `z` is context −
        predicted, in standard deviations for independent, uniform positions.

    Raises:
        DataUnavailableError: the file does not exist.
        DataError: the file is not a text, or has no line with two tokens.

    >>> float(count_roles("toy").set_index("token").loc["I", "ratio"])
    inf
    """
    corpus = read_corpus(source)
    sizes = [len(sentence) for sentence in corpus.sentences]
    # One entry for each token of the text: its number, the length of its line, and its place there, from 0.
    tokens = np.concatenate(corpus.sentences)
    lengths = np.repeat(sizes, sizes)
    offsets = np.concatenate([np.arange(size) for size in sizes])

    def add_up(weights: np.ndarray) -> np.ndarray:
        return np.bincount(tokens, weights, corpus.size)

    count = add_up(np.ones_like(offsets))
    context = add_up(lengths - 1 - offsets)
    predicted = add_up(offsets)
    variance = add_up((lengths**2 - 1) / 3)
    with np.errstate(divide="ignore"):
        ratio = context / predicted
    frame = pd.DataFrame(
        {
            "token": corpus.words,
            "count": count.astype(int),
            "position": 1 + predicted / count,
            "length": add_up(lengths) / count,
            "context": context.astype(int),
            "predicted": predicted.astype(int),
            "ratio": ratio,
            "z": (context - predicted) / np.sqrt(variance),
        },
        columns=list(ROLE_COLUMNS),
    )
    frame = frame.sort_values("z", key=abs, ascending=False, kind="stable", ignore_index=True)
    frame.attrs |= {"title": "Tokens as contexts and as predicted tokens", "text": str(source), **software()}
    return frame
