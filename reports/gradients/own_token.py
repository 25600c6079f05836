"""Measure which part of the updates is due to the error of each token at its own position; see README.md beside it.

python reports/gradients/own_token.py          # after reports/pretrained/fetch.py; some minutes on one core
python reports/gradients/own_token.py --fresh  # compute also the rows that are in own-token.csv
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer, set_seed

import attngeo
from attngeo.checkpoints.demos import locate_demo

HERE = Path(__file__).parent
TABLE = HERE / "own-token.csv"
SMOLLM2 = HERE.parents[1] / "build/pretrained/SmolLM2-135M-Instruct.Q4_1.gguf"
CLASSES = {"encoder": AutoModelForMaskedLM, "decoder": AutoModelForCausalLM}
SEEDS = range(5)
# The novels of the demo models. These were trained with 32 tokens, SmolLM2 with more.
DEMO_TEXT: dict[str, Any] = {"sequences": 96, "seq_len": 32}
SMOLLM2_TEXT: dict[str, Any] = {"sequences": 16, "seq_len": 64}
COLUMNS = [
    "model", "weights", "seed", "objective", "loss", "layer", "head", "own_token_share", "other_tokens_share",
    "own_token_cosine",
]  # fmt: skip


def measure_demo(name: str, weights: str, seed: int) -> pd.DataFrame:
    """The updates of a demo model, trained or with random weights, on one draw of sequences."""
    if weights == "trained":
        return attngeo.gradients(f"demo:{name}", own_token=True, seed=seed, **DEMO_TEXT).rows
    folder = locate_demo(name)
    assert folder is not None
    set_seed(seed)
    model_class: Any = CLASSES[name]
    model = model_class.from_config(AutoConfig.from_pretrained(folder))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return attngeo.gradients(model, tokenizer=tokenizer, own_token=True, seed=seed, **DEMO_TEXT).rows


def measure_smollm2(seed: int) -> pd.DataFrame:
    """The updates of SmolLM2, decoded from its file, on one draw of sequences."""
    model: Any = AutoModelForCausalLM.from_pretrained(SMOLLM2.parent, gguf_file=SMOLLM2.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(SMOLLM2.parent, gguf_file=SMOLLM2.name)
    return attngeo.gradients(model, tokenizer=tokenizer, own_token=True, seed=seed, **SMOLLM2_TEXT).rows


def main() -> None:
    """Write own-token.csv after each draw; rows that it has are not computed again."""
    torch.set_num_threads(1)
    table = pd.DataFrame(columns=COLUMNS)
    if TABLE.exists() and "--fresh" not in sys.argv[1:]:
        table = pd.read_csv(TABLE)
    runs = [(f"demo:{name}", weights, seed) for name in CLASSES for weights in ("trained", "random") for seed in SEEDS]
    runs += [("SmolLM2-135M", "trained", seed) for seed in SEEDS]
    known = {*table[["model", "weights", "seed"]].itertuples(index=False, name=None)}
    for model, weights, seed in runs:
        if (model, weights, seed) in known:
            continue
        name = model.removeprefix("demo:")
        rows = measure_demo(name, weights, seed) if name in CLASSES else measure_smollm2(seed)
        rows = rows.assign(model=model, weights=weights, seed=seed)[COLUMNS]
        table = pd.concat([table, rows], ignore_index=True) if len(table) else rows
        table.astype({"head": "Int64"}).to_csv(TABLE, index=False, float_format="%.5g")


if __name__ == "__main__":
    main()
