"""Measure Theorem 2.3 by types of tokens: with one sentence a row, and with packed rows; see README.md beside it.

python reports/gradients/measure_types.py    # some minutes on two cores
"""

from __future__ import annotations

import re
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from attngeo.checkpoints.demos import locate_demo
from attngeo.geometry.scores import measure_spread
from attngeo.papers.residuals import USUAL
from attngeo.papers.saponati2025.roles import count_roles
from attngeo.pretrain.sources import open_text
from attngeo.pretrain.tokenizer import load_tokenizer
from attngeo.updates.recording import SiteGradients, record_gradients

HERE = Path(__file__).parent
# The longest row, which the models were trained with; tokens of one run; tokens that are measured.
LONGEST, AT_ONCE, TOKENS = 32, 1024, 40_000
# Types with fewer occurrences are left out: in the text for their places, and in what is measured for their updates.
LEAST = 20
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')]*\s+")
Rows = list[list[int]]


def read_rows(tokenizer: PreTrainedTokenizerBase) -> dict[str, Rows]:
    """The tokens of the embedded novels: sentences of 2 to 32 tokens, and rows of 32 cut out of all documents."""
    documents = list(open_text("austen").read_documents())
    sentences = [sentence for document in documents for sentence in SENTENCE_END.split(document) if sentence]
    ids = tokenizer(sentences, add_special_tokens=False, verbose=False)["input_ids"]
    stream: list[int] = []
    for document in tokenizer(documents, add_special_tokens=False, verbose=False)["input_ids"]:
        stream += [*document, tokenizer.sep_token_id]
    packed = [stream[start : start + LONGEST] for start in range(0, len(stream) - LONGEST + 1, LONGEST)]
    return {"sentences": [row for row in ids if 2 <= len(row) <= LONGEST], "packed": packed}


def measure_places(rows: Rows) -> pd.DataFrame:
    """The types of some rows that occur often enough: token, z of `count_roles`, and group by |z| above 1.96."""
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "rows.txt"
        text.write_text("\n".join(" ".join(map(str, row)) for row in rows), "utf-8")
        roles = count_roles(text)
    roles = roles[roles["count"] >= LEAST]
    group = np.select([roles["z"] > USUAL, roles["z"] < -USUAL], ["early", "late"], "between")
    return roles.assign(token=roles["token"].astype(int), group=group)[["token", "count", "z", "group"]]


def group_rows(rows: Rows) -> Iterator[Tensor]:
    """Rows of one length in each batch, [S, N]: about 40,000 tokens, drawn from all."""
    by_length: dict[int, Rows] = defaultdict(list)
    tokens = 0
    for number in np.random.default_rng(0).permutation(len(rows)):
        if tokens < TOKENS:
            by_length[len(rows[number])].append(rows[number])
            tokens += len(rows[number])
    for length, members in sorted(by_length.items()):
        at_once = AT_ONCE // length
        for first in range(0, len(members), at_once):
            yield torch.tensor(members[first : first + at_once])


def add_contributions(total: Tensor, ids: Tensor, gradients: SiteGradients) -> None:
    """Add to each type [types, heads, d_model, d_model] its part of the update: as context, and as predicted (S89).

    ids: [S, N]. β is that of a mean over predictions. A token is no context of itself.
    """
    x = gradients.x
    predictions = int(gradients.predicted.sum())
    beta = gradients.beta.tril(-1) * predictions
    predicted = (beta.mT @ x[:, None]).transpose(1, 2).flatten(0, 1)  # Σ_i β_it·x_i, [S·N, heads, d_model]
    contexts = (beta @ x[:, None]).transpose(1, 2).flatten(0, 1)  # Σ_j β_tj·x_j
    tokens = x.flatten(0, 1)
    parts = torch.einsum("nhd,ne->nhde", predicted, tokens) + torch.einsum("nd,nhe->nhde", tokens, contexts)
    total.index_add_(0, ids.flatten(), parts)


def measure_updates(model: PreTrainedModel, rows: Rows, places: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """For each layer, head and group of types: how their columns compare with their rows."""
    totals: dict[int, Tensor] = {}
    inputs: dict[int, list[Tensor]] = defaultdict(list)
    counts = torch.zeros(model.config.vocab_size, dtype=torch.long)
    for ids in group_rows(rows):
        counts += torch.bincount(ids.flatten(), minlength=len(counts))
        for gradients in record_gradients(model, [{"input_ids": ids, "labels": ids}], "clm").sites:
            layer = gradients.site.layer
            width = gradients.x.shape[-1]
            totals.setdefault(layer, torch.zeros(len(counts), gradients.beta.shape[1], width, width))
            add_contributions(totals[layer], ids, gradients)
            inputs[layer].append(gradients.x.flatten(0, 1))
    places = places[counts[places["token"].tolist()].numpy() >= LEAST]
    for layer, total in totals.items():
        variances = torch.cat(inputs[layer]).var(0)
        small = variances < variances.mean()
        squares = total.square()
        columns = squares.sum(-2)  # [types, heads, d_model]
        across = squares.sum(-1)
        ratio = (columns[..., small].sum(-1) / across[..., small].sum(-1)).log()
        wider = measure_spread(columns.sqrt()) > measure_spread(across.sqrt())
        for group, members in places.groupby("group"):
            chosen = members["token"].tolist()
            frame = pd.DataFrame(
                {
                    "log_ratio": ratio[chosen].median(0).values,
                    "larger_columns": (ratio[chosen] > 0).float().mean(0),
                    "wider_columns": wider[chosen].float().mean(0),
                }
            ).rename_axis("head")
            yield frame.reset_index().assign(layer=layer, group=group, types=len(members))


if __name__ == "__main__":
    folder = str(locate_demo("decoder"))
    tokenizer = load_tokenizer(folder)
    trained = AutoModelForCausalLM.from_pretrained(folder)
    set_seed(0)
    models = {"untrained": type(trained)(trained.config), "demo:decoder": trained}
    roles, frames = [], []
    for arrangement, rows in read_rows(tokenizer).items():
        places = measure_places(rows)
        roles.append(places.assign(rows=arrangement))
        for name, model in models.items():
            frames += [frame.assign(rows=arrangement, model=name) for frame in measure_updates(model, rows, places)]
    pd.concat(roles).to_csv(HERE / "places.csv", index=False, float_format="%.4g")
    pd.concat(frames).to_csv(HERE / "types.csv", index=False, float_format="%.4g")
