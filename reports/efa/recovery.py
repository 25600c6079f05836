"""Is a known model found again, and how fast? Models fitted to more and more sequences that are drawn from it.

    python reports/efa/recovery.py

writes recovery.csv beside this file: test cross-entropies, the epochs of each training, and the excess, which is the
mean divergence of the known model's probabilities of the next item from those of the fit. Each seed draws its own
sequences and starts. Rows that the file has already are kept, so that the same command resumes it. All of them take
about eight minutes on one core.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Sequence
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
# Sequences that train in each setting: the first of those that a seed draws. Further ones validate and test.
SIZES = (100, 200, 400, 800, 1600, 3200)
SEEDS = range(5)
DRAWN, VALIDATION, TEST = 6400, 1000, 2000
# Models have the architecture of the known one.
OPTIONS: dict[str, Any] = {
    "part": "items", "direction": "uni", "width": WIDTH, "n_layers": 1, "order": True, "learning_rate": 0.01,
    "max_epochs": 300, "patience": 15, "batch_size": 64, "context_dropout": 0.0,
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
def draw_sequences(model: ItemAttention, count: int, seed: int = 0) -> pd.DataFrame:
    """Sequences of a model: sequence, position, item, and log_prob, the true one of the item given those before."""
    random = torch.Generator().manual_seed(1 + seed)
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


@torch.no_grad()
def predict_items(model: ItemAttention, rows: pd.DataFrame) -> np.ndarray:
    """The known model's probabilities of each item at the rows of whole sequences, [rows, items]."""
    items = torch.tensor(rows["item"].to_numpy()).reshape(-1, LENGTH)
    logits: torch.Tensor = model(Batch(torch.ones_like(items, dtype=torch.bool), items))
    return logits.softmax(-1).reshape(-1, ITEMS).numpy()


def measure_excess(true: np.ndarray, fitted: np.ndarray) -> float:
    """Mean of Σ p·log(p/q), for the true probabilities p and those of a fit, [rows, items] each.

    This is the expected cross-entropy of the fit above that of the known model in the contexts of the rows. It varies
    less than the difference of both cross-entropies on the items that were drawn there.
    """
    return float((true * np.log(true / fitted)).sum(1).mean())


def split_sequences(frame: pd.DataFrame) -> Split:
    """The first sequences train, the next 1,000 validate and the last 2,000 test."""
    names = frame["sequence"].unique()
    return take_sequences(frame, names[: -TEST - VALIDATION], names[-TEST - VALIDATION : -TEST], names[-TEST:])


def measure_models(
    sizes: Sequence[int] = SIZES, seeds: Sequence[int] = SEEDS, known: Collection[tuple[str, str, int]] = ()
) -> Iterator[list[dict[str, Any]]]:
    """The rows of each baseline and of each model fitted to a number of sequences; columns: `EXPERIMENT_COLUMNS`.

    Args:
        sizes: numbers of training sequences.
        seeds: seeds of the sequences and of the trainings.
        known: model, setting and seed of the rows to leave out.
    """
    known_model = build_known_model()
    fits = [(model, f"N={size}", size) for model in ("efa", "fm") for size in sizes]
    for seed in seeds:
        missing = [fit for fit in fits if (*fit[:2], seed) not in known]
        has_baselines = ("bayes", "", seed) in known
        if has_baselines and not missing:
            continue
        split = split_sequences(draw_sequences(known_model, DRAWN + VALIDATION + TEST, seed))
        if not has_baselines:
            measured = {
                "unigram": measure_unigram(split, "uni", "")["cross_entropy"],
                "bayes": float(-split.test["log_prob"].mean()),
            }
            yield [make_row(name, "", seed, "cross_entropy", value) for name, value in measured.items()]
        true = predict_items(known_model, split.test)
        for model, setting, size in missing:
            metrics = fit_model(model, split, size, seed, true)
            yield [make_row(model, setting, seed, metric, value) for metric, value in metrics.items()]


def fit_model(model: str, split: Split, size: int, seed: int, true: np.ndarray) -> dict[str, float]:
    """The cross-entropy and the excess of a model on test rows, and the epochs of its training.

    Args:
        model: "efa" or "fm".
        split: the sequences of the seed.
        size: number of training sequences.
        seed: seed of the training.
        true: the known model's probabilities at test rows, [rows, items].
    """
    names = split.train["sequence"].unique()[:size]
    train = split.train[split.train["sequence"].isin(names)]
    of_attention = ("n_layers", "context_dropout")
    options = {name: value for name, value in OPTIONS.items() if model == "efa" or name not in of_attention}
    fitted = ExponentialFamilyAttention(**options | {"model": model, "random_state": seed})
    fitted.fit(train, validation=split.validation)
    return {
        "cross_entropy": -fitted.score(split.test),
        "excess": measure_excess(true, fitted.predict_proba(split.test).to_numpy()),
        "epochs": float(len(fitted.history_.train)),
    }


def make_row(model: str, setting: str, seed: int, metric: str, value: float) -> dict[str, Any]:
    """A row of the table, without a published number."""
    about = {"experiment": "recovery", "model": model, "direction": "uni", "setting": setting, "seed": seed}
    return {**about, "metric": metric, "value": value}


def main() -> None:
    """Write the rows that the table lacks, those of each model as soon as they are known."""
    if not TARGET.exists():
        TARGET.write_text(",".join(EXPERIMENT_COLUMNS) + "\n", "utf-8")
    table = pd.read_csv(TARGET, keep_default_na=False)
    known = set(zip(table["model"], table["setting"], table["seed"], strict=True))
    for rows in measure_models(known=known):
        with TARGET.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, EXPERIMENT_COLUMNS, lineterminator="\n")
            writer.writerows(row | {"value": f"{row['value']:.6f}"} for row in rows)


if __name__ == "__main__":
    main()
