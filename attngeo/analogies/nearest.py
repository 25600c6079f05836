"""One analogy by hand: the words nearest to a sum of words, `attngeo.nearest`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from attngeo.analogies.lexicon import Lexicon
from attngeo.analogies.probe import nearest as nearest_rows
from attngeo.analogies.settings import ProbeSettings
from attngeo.choices import Candidates, Case, Compose, Table
from attngeo.errors import UsageError
from attngeo.progress import Progress

if TYPE_CHECKING:
    import pandas as pd

SIGNS = {"+": 1, "-": -1, "−": -1}
# Words among which one that was meant is looked for.
GUESSED_FROM = 100_000


def nearest(
    model: Any,
    words: str | Sequence[str],
    *,
    signs: Sequence[int] | None = None,
    table: Table = "input",
    candidates: Candidates = "words",
    case: Case = "auto",
    compose: Compose = "none",
    limit: int | None = None,
    normalise: bool = False,
    centre: bool = False,
    whiten: int = 0,
    top_k: int = 10,
    device: str = "auto",
    offline: bool = False,
    progress: Callable[[Progress], None] = lambda _: None,
) -> pd.DataFrame:
    """The words nearest to a sum of words, by cosine; those words themselves left out.

    words: the sum, such as "king - man + woman", with spaces around the signs; or its terms, and in `signs` +1 or −1
    for each, by default all +1. The other arguments are those of `analogy`.
    Returns a DataFrame with the columns rank, word and cosine. Raises UsageError for a word that the model does not
    know, and what `analogy` raises.

    >>> import attngeo
    >>> attngeo.nearest("demo:minilm", "king - man + woman", top_k=1).word.item()
    'queen'
    """
    import pandas as pd

    terms, weights = _terms(words, signs)
    manner = ProbeSettings(
        table=table, candidates=candidates, case=case, compose=compose, limit=limit, centre=centre, whiten=whiten,
        normalise=normalise, device=device, offline=offline,
    )  # fmt: skip
    with torch.inference_mode():
        lexicon = manner.lexicon(model, terms, progress)
        rows = [lexicon.row(word) for word in terms]
        if unknown := [word for word, row in zip(terms, rows, strict=True) if row is None]:
            raise UsageError(_explain(unknown[0], lexicon))
        space = manner.space(lexicon)
        places = torch.tensor(rows)
        if not sum(sign * vector for sign, vector in zip(weights, space.vectors(places), strict=True)).any():
            raise UsageError(f"{' '.join(terms)}: the vectors of this sum cancel out, so nothing is nearest to it")
        answered = nearest_rows(space, places, weights, top_k)
    frame = pd.DataFrame({
        "rank": range(1, top_k + 1),
        "word": [lexicon.label(row) for row in answered.top[0].tolist()],
        "cosine": answered.top_scores[0].tolist(),
    })  # fmt: skip
    embedding = lexicon.embedding
    frame.attrs = {
        "model": embedding.ref,
        **manner.settings(),
        "how": manner.described(),
        "notes": list(embedding.notes),
    }
    return frame


def parse_sum(text: str) -> tuple[list[str], list[int]]:
    """The words of a sum and their signs. Raises UsageError.

    >>> parse_sum("king - man + woman")
    (['king', 'man', 'woman'], [1, -1, 1])
    """
    terms: list[str] = []
    signs: list[int] = []
    sign: int | None = 1
    for part in text.split():
        if part in SIGNS and (sign is None or not terms):
            sign = SIGNS[part]
        elif sign is not None and part not in SIGNS:
            terms.append(part)
            signs.append(sign)
            sign = None
        else:
            raise UsageError(f"{text!r} is no sum of words, expected something like king - man + woman")
    if sign is not None:
        raise UsageError(f"{text!r} ends without a word, expected something like king - man + woman")
    return terms, signs


def _terms(words: str | Sequence[str], signs: Sequence[int] | None) -> tuple[list[str], tuple[int, ...]]:
    if isinstance(words, str):
        terms, found = parse_sum(words)
        return terms, tuple(found if signs is None else signs)
    chosen = tuple([1] * len(words) if signs is None else signs)
    if not words or len(chosen) != len(words) or not {*chosen} <= {1, -1}:
        raise UsageError(
            f"{len(words)} words and the signs {list(chosen)}, expected at least one word, 1 or -1 for each"
        )
    return list(words), chosen


def _explain(word: str, lexicon: Lexicon) -> str:
    """Why a word is not known, and what would help."""
    embedding = lexicon.embedding
    said = f"{embedding.ref} does not know {word!r}"
    if word in embedding.labels:
        return f"{said} as a word by the rules of --candidates words; try --candidates all"
    if close := get_close_matches(word, islice(lexicon.row_of, GUESSED_FROM), 1, cutoff=0.75):
        said += f"; did you mean {close[0]!r}?"
    pieces = embedding.pieces is not None and embedding.pieces(word)
    return f"{said}; --compose mean makes it of {len(pieces)} tokens" if pieces and len(pieces) > 1 else said
