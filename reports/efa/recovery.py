"""Is a known model found again? Models fitted to more and more sequences that are drawn from it.

python reports/efa/recovery.py    # writes recovery.csv beside this file; minutes on one core
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from attngeo.estimators import ExponentialFamilyAttention
from attngeo.estimators.efa.attention import AttentionShape
from attngeo.estimators.efa.networks import Batch, ItemAttention
from attngeo.estimators.efa.options import Architecture
from attngeo.papers.wibisono2025.baselines import measure_unigram
from attngeo.papers.wibisono2025.options import EXPERIMENT_COLUMNS
from attngeo.papers.wibisono2025.splits import Split, take_sequences

TARGET = Path(__file__).with_name("recovery.csv")
# The known model: items, numbers of an embedding, heads, and positions of a sequence.
ITEMS, WIDTH, HEADS, LENGTH = 12, 8, 2, 8
# Sequences that train in each setting, and those that validate and that test.
SIZES, VALIDATION, TEST = (100, 400, 1600, 6400), 1000, 2000
# Models have the architecture of the known one.
OPTIONS: dict[str, Any] = {
    "part": "items", "direction": "uni", "width": WIDTH, "n_layers": 1, "order": True, "learning_rate": 0.01,
    "max_epochs": 300, "patience": 15, "batch_size": 32, "context_dropout": 0.0, "averaging": 0.0,
    "architecture": Architecture(scale="head", longest=LENGTH),
}  # fmt: skip


def build_known_model() -> ItemAttention:
    """One layer of attention with a residual connection, in one direction, with random parameters of variance 1/width.

    Embeddings have variance 1, and queries are three times larger, so that a context says much about the next item.
    """
    shape = AttentionShape(width=WIDTH, heads=HEADS, scale="head")
    model = ItemAttention(ITEMS, shape, positions=LENGTH, causal=True)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            scale = 1.0 if name.startswith(("context", "center")) else WIDTH**-0.5
            if "query" in name:
                scale *= 3
            weight.copy_(torch.randn(weight.shape, generator=random) * scale)
    return model.double().eval()


@torch.no_grad()
def draw_sequences(model: ItemAttention, count: int) -> pd.DataFrame:
    """Sequences of a model: sequence, position, item, and log_prob, the true one of the item given those before."""
    random = torch.Generator().manual_seed(1)
    items = torch.zeros(count, LENGTH, dtype=torch.long)
    log_probs = torch.zeros(count, LENGTH, dtype=torch.float64)
    for position in range(LENGTH):
        context = items[:, : position + 1]
        known = torch.ones_like(context, dtype=torch.bool)
        probabilities = model(Batch(known, context))[:, position].softmax(-1)
        drawn = torch.multinomial(probabilities, 1, generator=random)
        items[:, position] = drawn[:, 0]
        log_probs[:, position] = probabilities.gather(1, drawn)[:, 0].log()
    sequence, position_of = np.indices(items.shape).reshape(2, -1)
    columns = {"sequence": sequence, "position": position_of, "item": items.flatten().numpy()}
    return pd.DataFrame({**columns, "log_prob": log_probs.flatten().numpy()})


def split_sequences(frame: pd.DataFrame) -> Split:
    """The first sequences train, the next 1,000 validate and the last 2,000 test."""
    names = frame["sequence"].unique()
    return take_sequences(frame, names[: -TEST - VALIDATION], names[-TEST - VALIDATION : -TEST], names[-TEST:])


def measure_models(sizes: Sequence[int] = SIZES) -> pd.DataFrame:
    """The cross-entropies of baselines and of models fitted to so many sequences; columns: `EXPERIMENT_COLUMNS`."""
    split = split_sequences(draw_sequences(build_known_model(), max(SIZES) + VALIDATION + TEST))
    rows = [
        make_row("unigram", "", "cross_entropy", measure_unigram(split, "uni", "")["cross_entropy"]),
        make_row("bayes", "", "cross_entropy", float(-split.test["log_prob"].mean())),
    ]
    for model in ("efa", "fm"):
        for size in sizes:
            rows += fit_model(model, split, size)
    return pd.DataFrame(rows, columns=list(EXPERIMENT_COLUMNS))


def fit_model(model: str, split: Split, size: int) -> Iterator[dict[str, Any]]:
    """The cross-entropy of a model on test rows, and the epochs of its training."""
    names = split.train["sequence"].unique()[:size]
    train = split.train[split.train["sequence"].isin(names)]
    of_attention = ("n_layers", "context_dropout")
    options = {name: value for name, value in OPTIONS.items() if model == "efa" or name not in of_attention}
    fitted = ExponentialFamilyAttention(**options | {"model": model}).fit(train, validation=split.validation)
    yield make_row(model, f"N={size}", "cross_entropy", -fitted.score(split.test))
    yield make_row(model, f"N={size}", "epochs", float(len(fitted.history_.train)))


def make_row(model: str, setting: str, metric: str, value: float) -> dict[str, Any]:
    """A row of the table, without a published number."""
    about = {"experiment": "recovery", "model": model, "direction": "uni", "setting": setting, "seed": 0}
    return {**about, "metric": metric, "value": value}


if __name__ == "__main__":
    measure_models().to_csv(TARGET, index=False)
