"""Train a decoder of two layers on repeated syllables, and compare its weights with what it does; see README.md.

python reports/circuits/repeats.py    # eight minutes on one core
"""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

import attngeo
from attngeo.circuits.compose import compose
from attngeo.pretrain import TextPretrainOptions, run
from attngeo.pretrain.repeats import SYLLABLES, TIMES

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / "build/repeats"
CONFIG = {
    "model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
    "hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 64,
}  # fmt: skip
SEEDS = (0, 1, 2)
EDGES = ["kind", "from_layer", "from_head", "to_layer", "to_head", "composition", "z"]
# Sequences, and the syllables of each before they repeat.
SEQUENCES, DRAWN = 64, 8


def train(seed: int) -> Path:
    """Train the model, or find it trained; its folder."""
    folder = FOLDER / f"seed{seed}"
    if not (folder / "summary.json").exists():
        config = FOLDER / "config.json"
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(json.dumps(CONFIG))
        options = TextPretrainOptions.of(
            str(config), objective="clm", data="repeats", vocab_size=200, seq_len=64, steps=4000, batch_size=32,
            grad_accum=1, lr=4e-3, log_every=200, seed=seed,
        )  # fmt: skip
        run(options, folder)
    return folder / "model"


def draw_tokens(tokenizer: Any) -> Tensor:
    """Sequences of different syllables, each said TIMES times, [SEQUENCES, TIMES·DRAWN]."""
    draw = random.Random(0)
    texts = [" ".join(draw.sample(SYLLABLES, DRAWN) * TIMES) for _ in range(SEQUENCES)]
    return torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts])


def tabulate_attention(attentions: tuple[Tensor, ...]) -> pd.DataFrame:
    """The mean weight of each head on the previous token, and of repeated tokens on all that followed their copies."""
    rows = []
    for layer, weights in enumerate(attentions):
        previous = weights.diagonal(-1, dim1=2, dim2=3).mean((0, 2))
        tokens = weights.shape[-1]
        followed = torch.zeros_like(previous)
        for copies in range(1, TIMES):
            diagonal = weights.diagonal(1 - copies * DRAWN, dim1=2, dim2=3)
            repeated = diagonal[..., -(tokens - copies * DRAWN) :]  # those of tokens that have so many copies before
            followed += repeated.sum(-1).mean(0) / (tokens - DRAWN)
        for head, (on_previous, on_followed) in enumerate(zip(previous.tolist(), followed.tolist(), strict=True)):
            rows.append({"layer": layer, "head": head, "previous": on_previous, "induction": on_followed})
    return pd.DataFrame(rows)


def measure_heads(model: Path, seed: int) -> pd.DataFrame:
    """A row for each head: what it attends to, where its weights look, and how far they copy."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    running: Any = AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager")
    running.eval()
    with torch.inference_mode():
        attention = tabulate_attention(running(draw_tokens(tokenizer), output_attentions=True).attentions)
    looks = attngeo.positions(model, fresh=True)[["layer", "head", "fast_share", "previous_token", "peak"]]
    copying = [
        {"layer": layer, "head": head, "copying": written.attrs["copying_score"]}
        for layer, head in itertools.product(range(2), range(4))
        for written in [attngeo.words(model, layer=layer, head=head, circuit="ov", top=1)]
    ]
    rows = attention.merge(looks, on=["layer", "head"]).merge(pd.DataFrame(copying), on=["layer", "head"])
    rows.insert(0, "seed", seed)
    return rows


def main() -> None:
    """Write repeats.csv and repeats-edges.csv."""
    torch.set_num_threads(1)
    heads = []
    edges = []
    for seed in SEEDS:
        model = train(seed)
        heads.append(measure_heads(model, seed))
        composed = compose(model, fresh=True).rename(columns={"composition_z": "z"})
        edges.append(composed[EDGES].assign(seed=seed))
    pd.concat(heads).to_csv(HERE / "repeats.csv", index=False, float_format="%.4g")
    pd.concat(edges).to_csv(HERE / "repeats-edges.csv", index=False, float_format="%.4g")


if __name__ == "__main__":
    main()
