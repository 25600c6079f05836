"""How many sequences of a table have an item, or two items."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from attngeo.estimators.efa.sequences import Sequences

# Pairs that are kept: 12 MB of a saved model.
MOST_PAIRS_KEPT = 2**20
# Pairs of items in sequences that are counted, all sequences together: some seconds.
MOST_PAIRS_COUNTED = 2**29
# Items whose pairs are counted at once.
BLOCK = 256


@dataclass(frozen=True)
class ItemCounts:
    """The number of sequences of a table with each item, and with each pair of items.

    Attributes:
        sequences: number of sequences of the table.
        items: sequences with each item, [D].
        pairs: one row per kept pair, [n, 3]: the numbers of its items, the lower one first, and the number of sequences
            with both.
        least: pairs in fewer sequences are not kept.
    """

    sequences: int
    items: np.ndarray
    pairs: np.ndarray
    least: int = 1

    def count_with(self, item: int) -> np.ndarray:
        """The number of sequences with an item and each other item, [D]; NaN for a pair that is not kept.

        If all pairs are kept, a pair without a sequence has 0.
        """
        counts = np.full(len(self.items), 0.0 if self.least == 1 else np.nan)
        first, second, both = self.pairs.T
        counts[second[first == item]] = both[first == item]
        counts[first[second == item]] = both[second == item]
        return counts


def count_items(sequences: Sequences, items: int) -> ItemCounts:
    """Count the sequences of a table by item and pair. An item that occurs twice in a sequence counts once.

    With too many pairs, the rarest are dropped; with too many to count, all are.

    Args:
        sequences: the sequences of the table.
        items: D.
    """
    assert sequences.items is not None
    sequence, _ = sequences.index
    known = sequences.known.numpy()
    places = np.unique(np.stack([sequence.numpy()[known], sequences.items.numpy()[known]]), axis=1)
    marks = sparse.csr_array(
        (np.ones(places.shape[1], np.int32), (places[0], places[1])), shape=(len(sequences), items)
    )
    counts = np.bincount(places[1], minlength=items).astype(np.int32)
    sizes = np.bincount(places[0])
    if (sizes.astype(float) ** 2).sum() > MOST_PAIRS_COUNTED:
        return ItemCounts(len(sequences), counts, np.empty((0, 3), np.int32), least=len(sequences) + 1)
    least = 1
    pairs = np.empty((0, 3), np.int32)
    columns = marks.tocsc()
    for start in range(0, items, BLOCK):
        both = (columns[:, start : start + BLOCK].T @ marks).tocoo()
        first = both.row + start
        is_kept = (first < both.col) & (both.data >= least)
        added = np.stack([first[is_kept], both.col[is_kept], both.data[is_kept]], 1).astype(np.int32)
        pairs = np.concatenate([pairs, added])
        least = max(least, _find_least(pairs[:, 2]))
        pairs = pairs[pairs[:, 2] >= least]
    return ItemCounts(len(sequences), counts, pairs, least)


def _find_least(counts: np.ndarray) -> int:
    """The least count of pairs that are few enough to be kept. counts: of all pairs."""
    at_least = np.bincount(counts, minlength=2)[::-1].cumsum()[::-1]  # of pairs, by their count
    return 1 + int((at_least[1:] > MOST_PAIRS_KEPT).sum())
