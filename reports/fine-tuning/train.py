"""Train MiniLM further, as a decoder and as an encoder, and save what comes out; see README.md beside it.

python reports/fine-tuning/train.py    # an hour on one core; a training that is finished is not repeated
"""

from __future__ import annotations

import lzma
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoTokenizer, BertForMaskedLM, BertLMHeadModel

import attngeo
from attngeo.checkpoints.demos import require_demo

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / "build/fine-tuning"
OBJECTIVES = {"clm": BertLMHeadModel, "mlm": BertForMaskedLM}
SEEDS = (0, 1)
STEPS, WARMUP, RATE, BATCH, TOKENS = 1000, 100, 3e-4, 16, 64
SCORE_EVERY = 100
MASKED = 0.15
# Sequences that are not trained on.
HELD_OUT = 200
IGNORED = -100  # of labels, by transformers


def read_sequences(tokenizer: Any) -> tuple[Tensor, list[int]]:
    """The novels as sequences of tokens that are numbered anew, and the old number of each: those that occur.

    The tokens of MiniLM that are in no sentence would take most of the time.
    """
    text = lzma.decompress((files("attngeo.pretrain") / "corpora/austen.txt.xz").read_bytes()).decode()
    ids = torch.tensor(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    every: Any = torch.cat([torch.tensor([tokenizer.mask_token_id]), ids])
    kept, numbers = every.unique(return_inverse=True)
    sequences = numbers[1:]
    return sequences[: len(sequences) // TOKENS * TOKENS].reshape(-1, TOKENS), kept.tolist()


def build(objective: str, kept: list[int]) -> Any:
    """MiniLM with a new head over the tokens that are kept; a decoder attends to earlier tokens only."""
    folder = require_demo("minilm")
    model: Any = OBJECTIVES[objective].from_pretrained(folder, is_decoder=objective == "clm")
    table = model.get_input_embeddings().weight.data[kept]
    model.resize_token_embeddings(len(kept))
    model.get_input_embeddings().weight.data.copy_(table)
    return model


def make_batch(objective: str, tokens: Tensor, mask: int, generator: torch.Generator) -> dict[str, Tensor]:
    """The arguments of the model: a decoder predicts every next token, an encoder those that are masked."""
    if objective == "clm":
        return {"input_ids": tokens, "labels": tokens}
    is_masked = torch.rand(tokens.shape, generator=generator) < MASKED
    return {"input_ids": tokens.where(~is_masked, mask), "labels": tokens.where(is_masked, IGNORED)}


def train(objective: str, seed: int) -> None:
    """Train one model, and save it with its scores at some steps and its loss on held-out sequences."""
    folder = FOLDER / f"{objective}{seed}"
    if (folder / "curve.csv").exists():
        return
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(require_demo("minilm"))
    sequences, kept = read_sequences(tokenizer)
    mask = kept.index(tokenizer.mask_token_id)
    model = build(objective, kept)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    schedule = LambdaLR(optimiser, lambda step: min(step / WARMUP, (STEPS - step) / (STEPS - WARMUP)))
    rows = []
    for step in range(STEPS + 1):
        if step % SCORE_EVERY == 0:
            loss = evaluate(model, objective, sequences[-HELD_OUT:], mask)
            scores = attngeo.score(model, per_head=True)
            rows.append(scores.assign(step=step, loss=loss))
            print(f"{objective} {seed}: step {step}, loss {loss:.3f}", flush=True)
        if step == STEPS:
            break
        chosen = torch.randint(len(sequences) - HELD_OUT, (BATCH,), generator=generator)
        model.train()
        model(**make_batch(objective, sequences[chosen], mask, generator)).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
    model.save_pretrained(folder)
    pd.concat(rows).to_csv(folder / "curve.csv", index=False)


def evaluate(model: Any, objective: str, sequences: Tensor, mask: int) -> float:
    """The mean loss over held-out sequences, in nats for each predicted token."""
    model.eval()
    generator = torch.Generator().manual_seed(0)
    total = 0.0
    count = 0
    with torch.inference_mode():
        for tokens in torch.split(sequences, BATCH):
            batch = make_batch(objective, tokens, mask, generator)
            predicted = int((batch["labels"] != IGNORED).sum())
            total += model(**batch).loss.item() * predicted
            count += predicted
    return total / count


def main() -> None:
    """Train a decoder and an encoder with each seed."""
    torch.set_num_threads(1)
    for seed in SEEDS:
        for objective in OBJECTIVES:
            train(objective, seed)


if __name__ == "__main__":
    main()
