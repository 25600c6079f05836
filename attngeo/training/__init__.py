"""Training of small models: one loop, with seeded batches, early stopping, whole checkpoints and signals.

    train(model, batches, TrainingOptions(epochs=200, seed=1), validation=held_out)

The models of `attngeo.tabular` and `attngeo.efa` are trained by it; language models by `attngeo.pretrain`. Names are
imported when they are first used, so that the options of commands cost nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo import import_when_used

if TYPE_CHECKING:
    from attngeo.training.batches import Batches as Batches
    from attngeo.training.batches import TensorBatches as TensorBatches
    from attngeo.training.batches import draw_generator as draw_generator
    from attngeo.training.loop import History as History
    from attngeo.training.loop import make_optimizer as make_optimizer
    from attngeo.training.loop import train as train
    from attngeo.training.options import TrainingOptions as TrainingOptions

_HOMES = {
    "Batches": "batches", "History": "loop", "TensorBatches": "batches", "TrainingOptions": "options",
    "draw_generator": "batches", "make_optimizer": "loop", "train": "loop",
}  # fmt: skip
__all__ = list(_HOMES)


__getattr__ = import_when_used(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
