"""Training of small models: one loop, with seeded batches, early stopping, and a state from which it resumes.

    train(model, batches, TrainingOptions(epochs=200, seed=1), validation=held_out)

The models of `attngeo.estimators` are trained by it; language models by `attngeo.pretrain`. Names that need torch are
imported when they are first used, so that the options of commands cost nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attngeo import import_when_used
from attngeo.options import OPTIMISATION, RUNNING, Options, device_option, option

if TYPE_CHECKING:
    from attngeo.training.loop import (
        Batches as Batches,
        History as History,
        TensorBatches as TensorBatches,
        draw_generator as draw_generator,
        make_optimizer as make_optimizer,
        seeded as seeded,
        train as train,
    )

Precision = Literal["fp32", "bf16"]


class TrainingOptions(Options):
    """Options of the loop. Raises UsageError for a value outside its limits."""

    epochs: int = option(200, "Passes over the training data", panel=OPTIMISATION, least=1)
    learning_rate: float = option(1e-3, "Learning rate of Adam", panel=OPTIMISATION, flags=("--lr",), least=0)
    weight_decay: float = option(0.0, "Weight decay of AdamW; 0 is Adam", advanced=True, panel=OPTIMISATION, least=0)
    patience: int | None = option(
        None, "Stop after this number of epochs without a lower validation loss", panel=OPTIMISATION, least=1
    )
    seed: int = option(0, "Seed of the start, the batches and the dropout", panel=OPTIMISATION, least=0, most=2**32 - 1)
    precision: Precision = option("fp32", "Precision of the products", advanced=True, panel=RUNNING)
    device: str = device_option()


_HOMES = dict.fromkeys(
    ("Batches", "History", "TensorBatches", "draw_generator", "make_optimizer", "seeded", "train"), "loop"
)
__all__ = ["TrainingOptions", *_HOMES]


__getattr__ = import_when_used(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
