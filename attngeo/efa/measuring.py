"""How probable the rows of a table are by a fitted model, beside what is known of them without a context."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from attngeo.efa.columns import TABLE, TRAINING
from attngeo.efa.marginal import measure_baselines
from attngeo.efa.modelling import PartModel
from attngeo.efa.options import EfaOptions
from attngeo.efa.reading import read_all, split_sequences
from attngeo.efa.sequences import NO_SEQUENCE, TableReading
from attngeo.efa.stores import SequenceStore
from attngeo.errors import TableError

# Sequences that are read at once for the baselines, and the numbers of each position while they are.
MOST, COPIES = 2**16, 8


class Measured(NamedTuple):
    """What is read of a table, and the mean log p of a row: by the model, and by the best one without a context.

    without_repeats: by the frequencies of items that are not in the context; NaN for values, and if an item occurs
    twice in a sequence.
    """

    sequences: int
    rows: int
    log_prob: float
    without_context: float
    without_repeats: float


def measure_rows(
    model: PartModel, data: SequenceStore, train: SequenceStore, reading: TableReading, options: EfaOptions
) -> Measured:
    """The rows of a table; train: those that the baselines learn from. Raises TableError for values of no family."""
    sequences = rows = 0
    total = 0.0
    for part in data.parts(reading):
        model.check(part, options.value, TABLE)
        sequences += len(part)
        rows += int(part.known.sum())
        total += float(read_all(model, part, model.log_prob, options).double().sum())
    if not rows:
        raise TableError(f"{TABLE} {NO_SEQUENCE}")

    def read(store: SequenceStore, source: str) -> Iterator[tuple[Tensor, ...]]:
        for part in store.parts(reading):
            model.check(part, options.value, source)
            yield from map(model.tensors, split_sequences(part, COPIES * part.lengths, MOST))

    baselines = measure_baselines(model, read(train, TRAINING), read(data, TABLE), causal=options.direction == "uni")
    return Measured(sequences, rows, total / rows, *baselines)
