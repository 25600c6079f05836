"""Training of small models: one loop, with seeded batches, early stopping, and a state to resume from.

    loop.train(model, batches, TrainingOptions(epochs=200, seed=1), validation=held_out)

It trains the models of `attngeo.estimators`; `attngeo.pretrain` trains language models. Its options are here, and cost
little to import.
"""

from __future__ import annotations

from typing import Literal

from attngeo.options import OPTIMISATION, RUNNING, Options, device_option, option

Precision = Literal["fp32", "bf16"]


class TrainingOptions(Options):
    """Options of the training loop. Raises UsageError for an invalid value."""

    epochs: int = option(200, "Passes over the training data", panel=OPTIMISATION, least=1)
    learning_rate: float = option(1e-3, "Learning rate of Adam", panel=OPTIMISATION, flags=("--lr",), least=0)
    weight_decay: float = option(0.0, "Weight decay of AdamW; 0 is Adam", advanced=True, panel=OPTIMISATION, least=0)
    patience: int | None = option(
        None, "Stop after this number of epochs without a lower validation loss", panel=OPTIMISATION, least=1
    )
    averaging: float = option(
        0.0,
        "Decay of the running average of the weights, which the fitted model uses; 0 for no averaging",
        advanced=True,
        panel=OPTIMISATION,
        least=0,
        most=0.9999,
    )
    seed: int = option(
        0, "Seed of the initial weights, the batches and the dropout", panel=OPTIMISATION, least=0, most=2**32 - 1
    )
    precision: Precision = option("fp32", "Precision of the products", advanced=True, panel=RUNNING)
    device: str = device_option()
