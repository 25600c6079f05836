"""The training of a model on sequences, and which of them are held out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from attngeo.efa.options import EfaOptions
from attngeo.efa.reading import batch_similar
from attngeo.errors import TableError
from attngeo.training import History, TrainingOptions, draw_generator, train
from attngeo.training.loop import Batch

if TYPE_CHECKING:
    from attngeo.efa.modelling import PartModel
    from attngeo.efa.sequences import TableReading
    from attngeo.efa.stores import SequenceStore
    from attngeo.progress import ProgressCallback


def hold_out(store: SequenceStore, reading: TableReading, options: EfaOptions) -> list[SequenceStore]:
    """Training sequences, and a random fraction that is held out. Raises TableError if one of them has none."""
    total = store.count(reading)
    count = round(options.validation_fraction * total)
    if not 0 < count < total:
        raise TableError(
            f"{total} sequences, of which a fraction of {options.validation_fraction:g} cannot be held out; "
            "give more, or a validation table, or set validation_fraction to 0"
        )
    order = torch.randperm(total, generator=draw_generator(options.seed, 2)).numpy()
    return [store.take(np.sort(some), reading) for some in (order[count:], order[:count])]


@dataclass(frozen=True)
class HeldOutBatches:
    """Batches of sequences of about one length, so that a long one is read with few others, and without an order."""

    store: SequenceStore
    reading: TableReading
    model: PartModel
    options: EfaOptions

    def __len__(self) -> int:
        return sum(1 for _ in self.epoch(0))

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The same batches in each epoch, without the first `start` ones."""
        del number
        parts = self.store.parts(self.reading)
        batches = (batch for part in parts for _, batch in batch_similar(self.model, part, self.options))
        return islice(batches, start, None)


def train_model(
    model: PartModel,
    stores: Sequence[SequenceStore],
    reading: TableReading,
    options: EfaOptions,
    *,
    folder: str | Path | None,
    progress: ProgressCallback,
) -> History:
    """Train on the first store, and end with the weights of the lowest loss on the second one, if there is one.

    folder, progress, and what it raises: as in `attngeo.training.train`.
    """
    batches = stores[0].batches(reading, model, options.batch_size, options.seed)
    held_out = HeldOutBatches(stores[1], reading, model, options) if len(stores) > 1 else None
    own = {name: getattr(options, name) for name in TrainingOptions.model_fields}
    about = [repr(options.replace(device="cpu")), *(each.fingerprint(reading) for each in stores)]
    return train(
        model, batches, options=TrainingOptions(**own | {"patience": options.patience or None}), validation=held_out,
        folder=folder, progress=progress, identity=hashlib.sha256(" ".join(about).encode()).hexdigest(),
    )  # fmt: skip
