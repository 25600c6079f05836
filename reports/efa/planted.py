"""Do fits of baskets tell complements from substitutes? Baskets with planted pairs, and the scores of all pairs.

    python reports/efa/planted.py

writes planted.csv beside this file. Each seed draws how popular its products are, its baskets and the starts of its
fits. Rows that the file has already are kept, so that the same command resumes it. All of them take about two
minutes on one core.

Products form groups that are independent of each other: pairs of complements, pairs of substitutes, triples of two
substitutes with a common complement, and single products. Baskets of fewer than two products are left out. Pairs of
products of different groups are unrelated.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from attngeo.estimators import ExponentialFamilyAttention

TARGET = Path(__file__).with_name("planted.csv")
COLUMNS = ("seed", "baskets", "model", "score", "pairs", "count", "positive", "auc", "with_popularity")
SEEDS = range(5)
BASKETS = (500, 2000)
# Groups of each kind.
COMPLEMENTS, SUBSTITUTES, TRIPLES, SINGLES = 6, 6, 6, 12
# The log of the odds ratio of a planted pair; it is negative for substitutes, and twice as large in a triple.
LINK = math.log(4)
# The least and the most probable product, if it were in no group; others are between them, evenly on a log scale.
POPULARITY = (0.05, 0.3)
UNRELATED = "unrelated"
# Kinds of planted pairs, and whether they are bought together more often than by chance.
KINDS = {"complements": True, "substitutes": False, "substitutes with a common complement": False}


class Group(NamedTuple):
    """Products that depend on each other.

    Attributes:
        products: numbers of the products.
        links: first product, second product (places in `products`), and the log of their odds ratio given the third.
        kinds: kind of each link.
    """

    products: list[int]
    links: list[tuple[int, int, float]]
    kinds: list[str]


def plan_groups() -> list[Group]:
    """The groups of products, numbered one after the other."""
    together, instead, shared = KINDS
    plans: list[tuple[int, int, list[tuple[int, int, float]], list[str]]] = [
        (COMPLEMENTS, 2, [(0, 1, LINK)], [together]),
        (SUBSTITUTES, 2, [(0, 1, -LINK)], [instead]),
        (TRIPLES, 3, [(0, 1, LINK), (0, 2, LINK), (1, 2, -2 * LINK)], [together, together, shared]),
        (SINGLES, 1, [], []),
    ]
    groups: list[Group] = []
    first = 0
    for count, size, links, kinds in plans:
        for _ in range(count):
            groups.append(Group(list(range(first, first + size)), links, kinds))
            first += size
    return groups


def list_chances(group: Group, log_odds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All sets of a group's products, [2^size, size] of 0 and 1, and their probabilities, [2^size].

    log_odds: of each product of all groups without the others.
    """
    states = np.array(list(itertools.product((0, 1), repeat=len(group.products))))
    weights = states @ log_odds[group.products]
    for first, second, link in group.links:
        weights = weights + link * states[:, first] * states[:, second]
    chances = np.exp(weights)
    return states, chances / chances.sum()


def draw_popularity(products: int, random: np.random.Generator) -> np.ndarray:
    """The log odds of each product without the others, [products]."""
    least, most = POPULARITY
    chances = random.permutation(np.geomspace(least, most, products))
    log_odds: np.ndarray = np.log(chances / (1 - chances))
    return log_odds


def draw_baskets(groups: list[Group], log_odds: np.ndarray, count: int, random: np.random.Generator) -> pd.DataFrame:
    """Baskets of two products or more: sequence, item.

    Args:
        groups: the groups of products.
        log_odds: of each product without the others, [products].
        count: number of baskets.
        random: the random numbers.
    """
    drawn = np.zeros((2 * count, len(log_odds)), bool)
    for group in groups:
        states, chances = list_chances(group, log_odds)
        drawn[:, group.products] = states[random.choice(len(states), len(drawn), p=chances)]
    kept = drawn[drawn.sum(1) >= 2][:count]
    sequence, item = np.nonzero(kept)
    return pd.DataFrame({"sequence": sequence, "item": item})


def name_pairs(groups: list[Group], products: int) -> np.ndarray:
    """The kind of each pair of products, [products, products]."""
    kinds = np.full((products, products), UNRELATED, dtype=object)
    for group in groups:
        for (first, second, _), kind in zip(group.links, group.kinds, strict=True):
            one, other = group.products[first], group.products[second]
            kinds[one, other] = kinds[other, one] = kind
    return kinds


def score_pairs(fit: ExponentialFamilyAttention) -> dict[str, np.ndarray]:
    """The scores of all pairs of products, [products, products]; above 0 is for complements.

    vectors: δ·β of both, in both orders. centred vectors: the same without the means of rows and columns. vectors
    through values, of attention: δ·(β·Wv·Wo) of both, in both orders, for the matrices of values and outputs of all
    heads; β·Wv·Wo is what a product adds, beside biases, to a masked position that attends to nothing else.
    probability: log of p(other | item)/p(other), as `attngeo efa similar` ranks by. lift: log of the lift by counts.
    """
    vectors = fit.embeddings()
    center, context = (torch.tensor(vectors[name].to_numpy()) for name in ("center", "context"))
    products = multiply(center, context)
    means = products.mean(0)
    scores = {"vectors": products, "centred vectors": products - means - means[:, None] + means.mean()}
    if fit.options_.model == "efa":
        layer: Any = fit.model_.parts[0].attention.layers[0]
        with torch.no_grad():
            through = context @ layer.value.weight.T @ layer.output.weight.T
        scores["vectors through values"] = multiply(center, through)
    size = len(fit.items_)
    for name in ("probability", "lift"):
        scores[name] = np.zeros((size, size))
    for number, item in enumerate(fit.items_):
        ranked = fit.similar(item, by="probability", top=size)
        others = [fit.items_.index(other) for other in ranked["item"]]
        with np.errstate(divide="ignore"):  # of pairs in no basket
            scores["probability"][number, others] = np.log(ranked["score"])
            scores["lift"][number, others] = np.log(ranked["lift"])
    return scores


def multiply(center: torch.Tensor, context: torch.Tensor) -> np.ndarray:
    """δ_a·β_b + δ_b·β_a of all pairs, [n, n], from δ and β, [n, K]."""
    products = (center @ context.T).numpy()
    both: np.ndarray = products + products.T
    return both


def measure_scores(scores: np.ndarray, kinds: np.ndarray, counts: np.ndarray) -> Iterator[dict[str, Any]]:
    """A row for each kind of pairs.

    Args:
        scores: of each pair, [products, products].
        kinds: kind of each pair, [products, products].
        counts: number of baskets with each product, [products].

    Yields:
        pairs: the kind. count: number of pairs. positive: share of pairs with a score above 0. auc: share of (planted,
        unrelated) pairs of pairs in the right order. with_popularity, of unrelated pairs: rank correlation of the score
        with the product of both counts.
    """
    pair = np.triu_indices(len(scores), 1)
    scores, kinds = scores[pair], kinds[pair]
    is_unrelated = kinds == UNRELATED
    for kind in (*KINDS, UNRELATED):
        some = scores[kinds == kind]
        row: dict[str, Any] = {"pairs": kind, "count": len(some), "positive": float((some > 0).mean())}
        if kind == UNRELATED:
            popularity = np.outer(counts, counts)[pair][is_unrelated]
            row["with_popularity"] = float(spearmanr(some, popularity).statistic)
        else:
            is_compared = is_unrelated | (kinds == kind)
            ranked = np.maximum(scores[is_compared], -1e9)  # −∞ where no basket has both
            row["auc"] = float(roc_auc_score(kinds[is_compared] == kind, ranked if KINDS[kind] else -ranked))
        yield row


def measure_fits(seed: int, size: int) -> Iterator[dict[str, Any]]:
    """The rows of a seed and a number of baskets: of counts, the factor model and attention."""
    groups = plan_groups()
    products = 1 + max(groups[-1].products)
    random = np.random.default_rng(seed)
    baskets = draw_baskets(groups, draw_popularity(products, random), size, random)
    items = np.unique(baskets["item"])
    kinds = name_pairs(groups, products)[np.ix_(items, items)]
    counts = np.bincount(baskets["item"])[items]
    for model in ("fm", "efa"):
        fit = ExponentialFamilyAttention(part="items", model=model, random_state=seed).fit(baskets)
        for score, values in score_pairs(fit).items():
            if score == "lift" and model == "efa":
                continue  # the same counts
            about = {"seed": seed, "baskets": size, "model": "counts" if score == "lift" else model, "score": score}
            for row in measure_scores(values, kinds, counts):
                yield about | row


def main() -> None:
    """Write the rows that the table lacks, those of each seed and size as soon as they are known."""
    if not TARGET.exists():
        TARGET.write_text(",".join(COLUMNS) + "\n", "utf-8")
    table = pd.read_csv(TARGET)
    known = set(zip(table["seed"], table["baskets"], strict=True))
    for seed, size in itertools.product(SEEDS, BASKETS):
        if (seed, size) in known:
            continue
        rows = list(measure_fits(seed, size))
        with TARGET.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            for row in rows:
                writer.writerow(
                    {name: f"{value:.4f}" if isinstance(value, float) else value for name, value in row.items()}
                )


if __name__ == "__main__":
    main()
