"""Score three pretrained models, and their heads paired at random; see README.md beside it.

python reports/pretrained/measure.py    # after fetch.py; a few minutes on two cores
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from fetch import SMOLLM2, TARGET, WHISPER
from torch import Tensor

import attngeo

HERE = Path(__file__).parent
MODELS = {
    "all-MiniLM-L6-v2": "demo:minilm",
    "SmolLM2-135M-Instruct": str(TARGET / SMOLLM2),
    "whisper-base": str(TARGET / WHISPER),
}
# Query position minus key position. Only SmolLM2 has rotary embeddings.
OFFSETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
SEED = 0
SHUFFLES = 199
COLUMNS = ["model", "stack", "layer", "head", "key_head", "symmetry", "directionality", "symmetry_z", "frobenius_norm"]


class Variant(NamedTuple):
    """A variant of the form Wq·Wkᵀ: its name, the options of `attngeo.score`, and the models that it changes."""

    name: str
    options: dict[str, Any]
    models: tuple[str, ...]


VARIANTS = [
    Variant("weights", {}, tuple(MODELS)),
    # MiniLM normalises after attention, so that no gain precedes it.
    Variant("gain folded", {"fold_norm": True}, ("SmolLM2-135M-Instruct", "whisper-base")),
    *(Variant(f"offset {offset}", {"rope_offset": offset}, ("SmolLM2-135M-Instruct",)) for offset in OFFSETS),
]


def score_models() -> pd.DataFrame:
    """A row for each layer (`head` is missing) and each head of each model."""
    frames = [attngeo.score(path, per_head=True, fresh=True).assign(model=model) for model, path in MODELS.items()]
    return pd.concat(frames, ignore_index=True)


def measure_variants() -> pd.DataFrame:
    """The summary of each stack by the weights alone, with the gain of the norm before attention, and at offsets."""
    frames = []
    for variant in VARIANTS:
        for model in variant.models:
            scores = attngeo.score(MODELS[model], per_head=True, fresh=True, **variant.options)
            summary = attngeo.summarize(scores).assign(model=model)
            summary.insert(0, "variant", variant.name)
            frames.append(summary)
    return pd.concat(frames, ignore_index=True)


def pair_at_random(wq: Tensor, wk: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Factors [d_model, rank] of a layer whose query heads are dealt to the key heads at random, as many to each."""
    key_heads, width, head_dim = wk.shape
    order = torch.randperm(len(wq), generator=generator)
    queries = wq[order].reshape(key_heads, -1, width, head_dim).sum(1)
    return join(queries), join(wk)


def join(heads: Tensor) -> Tensor:
    """The heads [heads, d_model, head_dim] beside one another, [d_model, heads·head_dim]."""
    return heads.transpose(0, 1).flatten(1)


def measure_pairings() -> pd.DataFrame:
    """For each layer: its scores, those with heads paired at random, and heads with the other heads' keys.

    *_shuffled_lower, _median, _upper: the 2.5%, 50% and 97.5% quantiles over the shuffles. symmetry_p: the share of
    pairings, the layer's own among them, that are at least as symmetric. heads_symmetry: median over heads;
    heads_symmetry_other: over all pairs of a query head and the key head of another. own_first: the share of query
    heads that are most symmetric with their own key head.
    """
    lines = []
    for model, path in MODELS.items():
        for site, wq, wk in attngeo.attention_sites(path):
            group = len(wq) // len(wk)
            own = torch.arange(len(wq)) // group
            generator = torch.Generator().manual_seed(SEED)
            queries = wq.reshape(len(wk), group, *wq.shape[1:]).sum(1)
            line: dict[str, Any] = {"model": model, "stack": site.stack, "layer": site.layer}
            shuffled = [pair_at_random(wq, wk, generator) for _ in range(SHUFFLES)]
            for score, measure in (("symmetry", attngeo.symmetry), ("directionality", attngeo.directionality)):
                actual = measure(join(queries), join(wk))
                others = torch.stack([measure(*factors) for factors in shuffled])
                line[score] = actual.item()
                quantiles = others.quantile(torch.tensor([0.025, 0.5, 0.975])).tolist()
                places = ("lower", "median", "upper")
                line |= {f"{score}_shuffled_{place}": x for place, x in zip(places, quantiles, strict=True)}
                if score == "symmetry":
                    line["symmetry_p"] = (1 + (others >= actual).sum().item()) / (1 + SHUFFLES)
            pairs = attngeo.symmetry(wq[:, None], wk[None])
            is_own = own[:, None] == torch.arange(len(wk))
            line["heads_symmetry"] = pairs[is_own].quantile(0.5).item()
            line["heads_symmetry_other"] = pairs[~is_own].quantile(0.5).item()
            line["own_first"] = (pairs.argmax(1) == own).float().mean().item()
            line["own_first_chance"] = 1 / len(wk)
            lines.append(line)
    return pd.DataFrame(lines)


if __name__ == "__main__":
    scores = score_models().astype({"head": "Int64", "key_head": "Int64"})
    scores[COLUMNS].to_csv(HERE / "scores.csv", index=False, float_format="%.5g")
    measure_variants().to_csv(HERE / "summary.csv", index=False, float_format="%.4f")
    measure_pairings().to_csv(HERE / "pairings.csv", index=False, float_format="%.4f")
