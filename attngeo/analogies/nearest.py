"""The words nearest to a sum of words, which is an analogy by hand: `attngeo.nearest`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches
from itertools import islice
from typing import Any

import pandas as pd
import torch

from attngeo.analogies.lexicon import Lexicon, Space, build_lexicon, unit
from attngeo.analogies.options import MOST_NEAREST_SHOWN, NEAREST_COLUMNS, NearestOptions, describe_settings, parse_sum
from attngeo.analogies.probe import BLOCKS, check_count
from attngeo.checkpoints.access import HubAccess
from attngeo.devices import pick_device
from attngeo.embeddings.opening import open_embedding
from attngeo.errors import UsageError
from attngeo.keywords import takes_after_two
from attngeo.progress import ProgressCallback
from attngeo.provenance import machine, software
from attngeo.session import Session

# A sign inside a text without spaces.
SIGN = re.compile(r"([+−-])")
# Number of most frequent words among which a mistyped one is looked for.
GUESSED_FROM = 100_000
# How similar a suggested word is, at least; how many such words are ranked, and how many are named.
SIMILAR, MOST_CLOSE, MOST_SIMILAR = 0.75, 100, 3


class NearestKeywords(NearestOptions, HubAccess):
    """The keywords of `nearest`."""

    options: NearestOptions | None = None
    hub: HubAccess | None = None
    progress: ProgressCallback | None = None


@takes_after_two(NearestKeywords)
def nearest(model: Any, words: str, options: NearestOptions, *, session: Session) -> pd.DataFrame:
    """The words nearest to a sum of words, by cosine, without the words of the sum.

    Args:
        model: as for `attngeo.open_embedding`.
        words: the sum, such as "king - man + woman", with spaces around the signs.
        {options}
        {hub}
        progress: called while the table is read.

    Returns:
        A DataFrame with the columns rank, word and cosine. Its `attrs` say how it was made.

    Raises:
        UsageError: the model does not know a word, the sum is 0, or an option is invalid.
        ModelUnavailableError: the model cannot be found or reached.
        CheckpointError: the model cannot be read, or has no table of vectors.

    >>> import attngeo
    >>> attngeo.nearest("demo:minilm", "king - man + woman", top=1).word.item()
    'queen'
    """
    terms, weights = parse_sum(words)
    pick_device(options.device)
    with torch.inference_mode():
        embedding = open_embedding(model, table=options.table, hub=session.hub, progress=session.progress)
        lexicon = build_lexicon(embedding, terms, options)
        rows = [lexicon.row(word) for word in terms]
        for word, row in zip(terms, rows, strict=True):
            if row is None:
                raise _explain(word, lexicon)
        space = Space(lexicon, options)
        term_rows = torch.tensor(rows)
        vectors = space.vectors(term_rows)
        target = unit(vectors.new_tensor(weights)[None] @ vectors)[0]
        if not target.any():
            raise UsageError("the sum of these vectors is 0; use other words", subject=f"{words!r}")
        # If too few words exist to show one, this raises.
        count = options.top or max(1, min(MOST_NEAREST_SHOWN, len(space.candidates) - len(terms)))
        check_count(space, len(terms), count, "top")
        _, block = BLOCKS[vectors.device.type]
        cosines = torch.cat([unit(x) @ target for _, x in space.blocks(block)]).cpu()
        cosines[torch.isin(space.candidates, term_rows)] = -torch.inf
        best = cosines.topk(count)
    labels = [lexicon.label(row) for row in space.candidates[best.indices].tolist()]
    values = (range(1, count + 1), labels, best.values.tolist())
    frame = pd.DataFrame(dict(zip(NEAREST_COLUMNS, values, strict=True)))
    about: dict[Any, Any] = {"title": "Nearest words"}
    about |= software() | machine() | dict(options)
    about |= {"model": embedding.ref, "revision": embedding.revision, "words": words, "top": count}
    frame.attrs = about | {
        "device": str(pick_device(options.device)),
        "how": describe_settings(options),
        "notes": list(embedding.notes),
    }
    return frame


def _explain(word: str, lexicon: Lexicon) -> UsageError:
    """Why a word is unknown, and what would help."""
    embedding = lexicon.embedding
    problem = f"{embedding.ref} does not know {word!r}"
    if word in embedding.labels:
        return UsageError(f"{problem} as a whole word; try $answers all", "answers")
    terms = SIGN.split(word)[::2]
    is_known = [lexicon.row(term) is not None for term in terms]
    # A sum without spaces, and not a word with hyphens.
    if len(terms) > 1 and all(terms) and ("+" in word or all(is_known)):
        return UsageError(f"{problem}; put spaces around the signs: {' '.join(SIGN.split(word))}")
    close = find_similar(word, islice(lexicon.row_of, GUESSED_FROM))
    if close:
        problem += f"; did you mean {' or '.join(map(repr, close))}?"
    pieces = embedding.pieces(word) if embedding.pieces is not None else None
    if pieces and len(pieces) > 1:
        problem += " If not," if close else ";"
        return UsageError(f"{problem} $subwords mean uses the mean of its {len(pieces)} tokens", "subwords")
    return UsageError(problem)


def find_similar(word: str, known: Iterable[str]) -> list[str]:
    """The known words most similar to a mistyped one, at most `MOST_SIMILAR`.

    Those of the same letters come first, then the more frequent ones.

    known: words, the most frequent first.

    >>> find_similar("kng", ["the", "king", "thing", "kung"]), find_similar("woamn", ["women", "woman"])
    (['king', 'kung'], ['woman', 'women'])
    """
    places = {candidate: place for place, candidate in enumerate(known)}
    close = get_close_matches(word, places, MOST_CLOSE, SIMILAR)
    similarities = {candidate: SequenceMatcher(None, candidate, word).ratio() for candidate in close}
    likeliest = [candidate for candidate in close if similarities[candidate] == similarities[close[0]]]
    likeliest.sort(key=lambda candidate: (sorted(candidate) != sorted(word), places[candidate]))
    return likeliest[:MOST_SIMILAR]
