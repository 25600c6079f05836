"""The options of a classifier for tables: the estimator, `attngeo tabular fit` and recipes read them here."""

from __future__ import annotations

from typing import Literal

from attngeo.errors import UsageError
from attngeo.options import COMPUTATION, MODEL, OPTIMISATION, Options, device_option, option

Vocabulary = Literal["column", "shared"]
Unseen = Literal["error", "mask"]


class ClassifierOptions(Options):
    """Options of `AttentionClassifier`; the defaults are those of the published run."""

    n_heads: int = option(5, "Heads of attention", panel=MODEL, flags=("--heads",), least=1)
    head_size: int = option(4, "Size of a head", panel=MODEL, least=1)
    feed_forward: int = option(5, "Hidden units of the feed-forward layer", panel=MODEL, least=1)
    dropout: float = option(0.1, "Probability of dropout", panel=MODEL, least=0, most=0.99)
    vocabulary: Vocabulary = option(
        "column", "Vectors of categories: one set for each column, or one that columns share by number", panel=MODEL
    )
    n_bins: int = option(
        10, "Bins of a numeric column with fractions or with more values", panel=COMPUTATION, flags=("--bins",), least=2
    )
    unseen: Unseen = option(
        "error", "What a value that no training row has is: an error, or masked as a missing one", panel=COMPUTATION
    )
    epochs: int = option(200, "Passes over the training rows", panel=OPTIMISATION, least=1)
    batch_size: int = option(128, "Masked copies of rows in a batch", panel=OPTIMISATION, least=1)
    learning_rate: float = option(1e-3, "Learning rate of Adam", panel=OPTIMISATION, flags=("--lr",), least=0)
    validation_fraction: float = option(
        0.0, "Fraction of the training rows that are held out for early stopping", panel=OPTIMISATION, least=0, most=0.9
    )
    patience: int | None = option(
        None, "Stop after this number of epochs without a lower loss on held-out rows", panel=OPTIMISATION, least=1
    )
    device: str = device_option()

    def _check(self) -> None:
        if self.patience is not None and not self.validation_fraction:
            raise UsageError("patience requires held-out rows; set validation_fraction, for example to 0.1")
