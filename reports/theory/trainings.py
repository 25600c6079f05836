"""Correlations of Proposition 9 after other trainings of CBOW, trainings.csv; see attngeo/papers/README.md.

python reports/theory/trainings.py    # a few minutes on two cores
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from attngeo.papers.wibisono2023 import corpus
from attngeo.papers.wibisono2023.corpus import (
    ContinuousBag,
    Examples,
    corpus_loss,
    count_pairs,
    examples_of,
    fit,
    toy_corpus,
)
from attngeo.papers.wibisono2023.factorisation import PUBLISHED, correlate, products_of
from attngeo.progress import Progress
from attngeo.training.loop import seeded

HERE = Path(__file__).parent
EPOCHS = (10, 30, 100)
SEED = 0
# After how many epochs without a lower loss, and at which epoch, `fit` stops.
STOPPING = (corpus.PATIENCE, corpus.MOST_EPOCHS)
Record = Callable[[str, int, ContinuousBag], None]


def train_until_it_stops(model: ContinuousBag, examples: Examples, record: Record) -> None:
    """As Proposition 9 is computed: until the loss stops falling."""
    epochs = 0

    def count(_: Progress) -> None:
        nonlocal epochs
        epochs += 1

    fit(model, examples, SEED, progress=count)
    record("stopped", epochs, model)


def train_on(model: ContinuousBag, examples: Examples, record: Record) -> None:
    """The same without stopping, at the epochs of EPOCHS."""
    epochs = 0

    def count(_: Progress) -> None:
        nonlocal epochs
        epochs += 1
        if epochs in EPOCHS:
            record(f"{epochs} epochs", epochs, model)

    fit(model, examples, SEED, progress=count)


def train_by_lbfgs(model: ContinuousBag, examples: Examples, record: Record) -> None:
    """L-BFGS on the whole corpus, to torch's default tolerances."""
    contexts = torch.from_numpy(examples.contexts)
    centres = torch.from_numpy(examples.centres)
    optimiser = torch.optim.LBFGS(model.parameters(), max_iter=100_000, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        logs = torch.log_softmax(model(contexts), 1)
        loss = -(centres * logs).sum() / centres.sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    record("L-BFGS", optimiser.state_dict()["state"][0]["n_iter"], model)


def measure() -> pd.DataFrame:
    """A row for each training and number of dimensions; epochs are iterations for L-BFGS."""
    examples = examples_of(toy_corpus(seed=SEED))
    pairs = count_pairs(examples)
    lines: list[tuple[Any, ...]] = [
        ("paper", size, None, None, *correlations) for size, correlations in PUBLISHED.items()
    ]
    for dimensions in PUBLISHED:

        def record(training: str, epochs: int, model: ContinuousBag, dimensions: int = dimensions) -> None:
            spearman, pearson = correlate(products_of(model), pairs)
            loss = corpus_loss(model, torch.from_numpy(examples.contexts), torch.from_numpy(examples.centres)).item()
            lines.append((training, dimensions, epochs, loss, spearman, pearson))

        for train in (train_until_it_stops, train_by_lbfgs, train_on):
            corpus.PATIENCE, corpus.MOST_EPOCHS = (max(EPOCHS), max(EPOCHS)) if train is train_on else STOPPING
            with seeded(SEED):
                model = ContinuousBag(len(pairs), dimensions)
            train(model, examples, record)
    return pd.DataFrame(lines, columns=["training", "dimensions", "epochs", "loss", "spearman", "pearson"]).astype(
        {"epochs": "Int64"}
    )


if __name__ == "__main__":
    measure().to_csv(HERE / "trainings.csv", index=False, float_format="%.4f")
