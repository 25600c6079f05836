"""Compare MiniLM with what training made of it, and SmolLM2 with itself quantised; see README.md beside it.

python reports/fine-tuning/measure.py    # after train.py and reports/pretrained/fetch.py; a few minutes on one core
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from train import FOLDER, OBJECTIVES, SEEDS
from transformers import AutoModelForCausalLM

import attngeo

HERE = Path(__file__).parent
SMOLLM2 = HERE.parents[1] / "build/pretrained/SmolLM2-135M-Instruct.Q4_1.gguf"
BITS = (8, 4, 3)
# Inputs that share a scale.
GROUP = 64
CURVE = ["symmetry", "directionality"]
GROWTHS = ["symmetric_growth", "antisymmetric_growth", "own_symmetry", "agreement", "cancellation"]


def compare_trained() -> pd.DataFrame:
    """The change of each layer and head of MiniLM by each training."""
    frames = [
        attngeo.compare(["demo:minilm", str(FOLDER / f"{objective}{seed}")], per_head=True)
        .drop(columns=["model", "other"])
        .assign(objective=objective, seed=seed)
        for objective in OBJECTIVES
        for seed in SEEDS
    ]
    return pd.concat(frames, ignore_index=True)


def score_updates() -> pd.DataFrame:
    """Symmetry and directionality of what each training added to M, for each layer and head of MiniLM.

    With queries q and keys k that became q' and k', it is q'ᵀk' − qᵀk = (q' − q)ᵀk + q'ᵀ(k' − k).
    """
    rows = []
    for objective in OBJECTIVES:
        for seed in SEEDS:
            before = attngeo.attention_sites("demo:minilm", dtype=torch.float64)
            after = attngeo.attention_sites(str(FOLDER / f"{objective}{seed}"), dtype=torch.float64)
            for (site, wq, wk), (_, new_wq, new_wk) in zip(before, after, strict=True):
                left = torch.cat([new_wq - wq, new_wq], -1)
                right = torch.cat([wk, new_wk - wk], -1)
                of_layer = (torch.cat([*left], -1)[None], torch.cat([*right], -1)[None])
                for heads, (a, b) in (([None], of_layer), (range(site.heads), (left, right))):
                    scores = zip(attngeo.symmetry(a, b).tolist(), attngeo.directionality(a, b).tolist(), strict=True)
                    for head, (symmetry, directionality) in zip(heads, scores, strict=True):
                        rows.append({
                            "objective": objective, "seed": seed, "layer": site.layer, "head": head,
                            "symmetry": symmetry, "directionality": directionality,
                        })  # fmt: skip
    return pd.DataFrame(rows).astype({"head": "Int64"})


def score_growths() -> pd.DataFrame:
    """How the heads of each layer add up, before the trainings and after each that is there."""
    frames = [attngeo.score("demo:minilm", scores=GROWTHS).assign(objective="none", seed=None)]
    for objective in OBJECTIVES:
        for seed in SEEDS:
            folder = FOLDER / f"{objective}{seed}"
            if folder.is_dir():
                frames.append(attngeo.score(folder, scores=GROWTHS).assign(objective=objective, seed=seed))
    table = pd.concat(frames, ignore_index=True).astype({"seed": "Int64"})
    return table[["objective", "seed", "layer", "symmetry", *GROWTHS]]


def tabulate_curves() -> pd.DataFrame:
    """Medians of the scores over layers, and over heads, at some steps of each training, with its loss."""
    rows = []
    for objective in OBJECTIVES:
        for seed in SEEDS:
            curve = pd.read_csv(FOLDER / f"{objective}{seed}" / "curve.csv")
            for step, members in curve.groupby("step"):
                is_head = members["head"].notna()
                medians = members[~is_head][CURVE].median().to_dict()
                medians |= members[is_head][CURVE].median().add_prefix("heads_").to_dict()
                loss = members["loss"].iloc[0]
                rows.append({"objective": objective, "seed": seed, "step": step, "loss": loss, **medians})
    return pd.DataFrame(rows)


def quantise(weight: Tensor, bits: int) -> Tensor:
    """The nearest of 2^bits − 1 symmetric levels, with one scale for each row and group of inputs."""
    groups = weight.reshape(len(weight), -1, GROUP)
    largest = 2 ** (bits - 1) - 1
    scale = groups.abs().amax(-1, keepdim=True) / largest
    rounded: Tensor = (groups / scale).round().clamp(-largest, largest) * scale
    return rounded.reshape(weight.shape)


def compare_quantized() -> pd.DataFrame:
    """The change of each layer and head of SmolLM2, decoded from its file, by quantising queries and keys."""
    frames = []
    for bits in BITS:
        model: Any = AutoModelForCausalLM.from_pretrained(SMOLLM2.parent, gguf_file=SMOLLM2.name, dtype=torch.float32)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith(("q_proj.weight", "k_proj.weight")):
                    parameter.copy_(quantise(parameter, bits))
        compared = attngeo.compare([str(SMOLLM2), model], per_head=True)
        frames.append(compared.drop(columns=["model", "other"]).assign(bits=bits))
    return pd.concat(frames, ignore_index=True)


def main() -> None:
    """Write trained.csv, updates.csv, growths.csv, curves.csv and quantised.csv."""
    torch.set_num_threads(1)
    tabulate_curves().to_csv(HERE / "curves.csv", index=False, float_format="%.5g")
    compare_trained().to_csv(HERE / "trained.csv", index=False, float_format="%.5g")
    score_updates().to_csv(HERE / "updates.csv", index=False, float_format="%.5g")
    score_growths().to_csv(HERE / "growths.csv", index=False, float_format="%.5g")
    compare_quantized().to_csv(HERE / "quantised.csv", index=False, float_format="%.5g")


if __name__ == "__main__":
    main()
