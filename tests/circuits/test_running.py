"""The script that compares pairs of heads with what they do when the model runs."""

from __future__ import annotations

import itertools
import json
import runpy
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.readme import ROOT
from torch import Tensor
from transformers import AutoTokenizer, BertConfig, BertModel

from attngeo.checkpoints.demos import locate_demo

FOLDER = ROOT / "reports/growths"
HEADS, LENGTH = 3, 7


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(FOLDER / "running.py"))


@pytest.fixture(scope="module")
def model() -> Any:
    """An encoder whose heads 0 and 1 of layer 1 are mirrors: the queries of one are the keys of the other."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=40, hidden_size=24, num_attention_heads=HEADS, num_hidden_layers=2, intermediate_size=16,
        max_position_embeddings=LENGTH, attn_implementation="eager",
    )  # fmt: skip
    model = BertModel(config).eval()
    attention = model.encoder.layer[1].attention.self
    for layer in model.encoder.layer:
        for module in (layer.attention.self.query, layer.attention.self.key, layer.attention.self.value):
            torch.nn.init.normal_(module.weight, std=0.5)
            torch.nn.init.normal_(module.bias)
    with torch.no_grad():
        attention.query.weight[8:16] = attention.key.weight[:8]
        attention.key.weight[8:16] = attention.query.weight[:8]
    return model


@pytest.fixture(scope="module")
def batches(script: dict[str, Any]) -> list[Any]:
    tokens = torch.randint(40, (5, LENGTH), generator=torch.Generator().manual_seed(1))
    return [script["Batch"]([3, 0], tokens[:2]), script["Batch"]([1, 2, 4], tokens[2:, 1:])]


def test_the_committed_tokens_are_those_of_the_sentences() -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(locate_demo("minilm"))
    lines = (FOLDER / "sentences.txt").read_text("utf-8").splitlines()
    sentences = json.loads((FOLDER / "sentences.json").read_text("utf-8"))
    assert sentences == [tokenizer(line)["input_ids"] for line in lines]
    assert len(sentences) == len({*lines}) == 100
    for tokens in sentences:
        assert 12 <= len(tokens) <= 30
        assert (tokens[0], tokens[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
        assert tokenizer.unk_token_id not in tokens


def test_a_mirror_by_its_weights_is_a_transpose_when_the_model_runs(
    script: dict[str, Any], model: Any, batches: list[Any]
) -> None:
    """Biases of queries and keys add the same to a row or a column, which centering removes."""
    pairs = script["find_pairs"](model)
    with torch.inference_mode():
        rows = script["compare_running"](model, pairs, batches).set_index(["layer", "head", "other"])
    columns = ["mirror", "antisymmetric", "running_mirror", "running_antisymmetric", "different_mirror"]
    assert rows.loc[(1, 0, 1), columns].tolist() == pytest.approx([1, -1, 1, -1, 1], abs=1e-4)
    assert rows.loc[(1, 0, 1), ["mirror_rank", "antisymmetric_rank"]].tolist() == [1, 1]
    assert rows.loc[(1, 0, 1), "raw_mirror"] < 0.95
    assert rows.drop((1, 0, 1))["running_mirror"].max() < 0.9
    above = rows.loc[(1, 0, 1), "running_mirror"] - rows.loc[1].drop((0, 1))["running_mirror"].median()
    assert rows.loc[(1, 0, 1), "above_others"] == pytest.approx(above)


def test_pairs_are_chosen_by_weights_alone(script: dict[str, Any]) -> None:
    pairs = pd.DataFrame({
        "mirror": [0.3, -0.1, 0.4, 0.1, 0.2], "twin": [0.1, 0.2, 0.1, 0.6, -0.3],
        "antisymmetric": [-0.4, -0.9, -0.2, 0.3, 0.4],
    })  # fmt: skip
    assert script["name_strongest"](pairs, 1).tolist() == ["mirror", "other", "other", "twin", "other"]


def correlate_entries(first: Tensor, second: Tensor, places: list[tuple[int, int]], others: list[Any]) -> float:
    """The correlation of entries of two matrices."""
    left = [first[place].item() for place in places]
    right = [second[place].item() for place in others]
    return float(np.corrcoef(left, right)[0, 1])


def test_a_shuffled_sentence_is_compared_at_its_positions_and_at_its_tokens(script: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(2)
    logits, shuffled = torch.randn(2, 1, HEADS, 4, 4, generator=generator, dtype=torch.float64)
    order = torch.tensor([[2, 0, 3, 1]])
    compared = script["compare_orders"](logits, shuffled, order)
    places = [*itertools.permutations(range(4), 2)]
    swapped = [(j, i) for i, j in places]
    at = order[0].tolist().index
    tokens = [(at(i), at(j)) for i, j in places]
    swapped_tokens = [(at(j), at(i)) for i, j in places]
    for head, other in itertools.product(range(HEADS), repeat=2):
        for name, transposed in (("position", swapped), ("token", swapped_tokens)):
            forward = correlate_entries(logits[0, head], shuffled[0, other], places, transposed)
            backward = correlate_entries(logits[0, other], shuffled[0, head], places, transposed)
            assert compared[f"by_{name}"][0, head, other].item() == pytest.approx((forward + backward) / 2)
        for name, same in (("position", places), ("token", tokens)):
            expected = correlate_entries(logits[0, head], shuffled[0, other], places, same)
            assert compared[f"own_by_{name}"][0, head, other].item() == pytest.approx(expected)
        expected = correlate_entries(shuffled[0, head], shuffled[0, other], places, swapped)
        assert compared["shuffled"][0, head, other].item() == pytest.approx(expected)


def test_an_ablated_head_writes_its_mean(script: dict[str, Any], model: Any, batches: list[Any]) -> None:
    """The same model without the columns of Wo that read the heads, and what they wrote on average in its bias."""
    inputs = [model.embeddings(batch.tokens) for batch in batches]
    with torch.inference_mode():
        ablation = script["Ablation"](model, inputs, lambda state, _: {"state": state[:, 0, 0]})
        measured = ablation.measure(0, [0, 2])["state"]
        written = [model.encoder.layer[0].attention.self(x)[0].flatten(0, 1) for x in inputs]
        mean = torch.cat(written).mean(0)
        output = model.encoder.layer[0].attention.output.dense
        weight, bias = output.weight.clone(), output.bias.clone()
        columns = [*range(8), *range(16, 24)]
        output.bias += weight[:, columns] @ mean[columns]
        output.weight[:, columns] = 0
        expected = torch.cat([model(batch.tokens).last_hidden_state[:, 0, 0] for batch in batches])
        output.weight.copy_(weight)
        output.bias.copy_(bias)
        intact = torch.cat([model(batch.tokens).last_hidden_state[:, 0, 0] for batch in batches])
    assert measured == pytest.approx(expected.numpy(), abs=1e-4)
    assert abs(intact - expected).min() > 1e-3
    assert ablation.measure_intact()["state"] == pytest.approx(intact.numpy(), abs=1e-4)


def test_offsets_are_those_of_the_attention(script: dict[str, Any], model: Any, batches: list[Any]) -> None:
    with torch.inference_mode():
        rows = script["find_offsets"](model, batches).set_index(["layer", "head"])
        weights = [model(batch.tokens, output_attentions=True).attentions for batch in batches]
    for (layer, head), row in rows.iterrows():
        of_offsets: dict[int, list[float]] = {}
        for batch in weights:
            for matrix in batch[layer][:, head, 1:-1, 1:-1].tolist():
                for query, key in itertools.product(range(len(matrix)), repeat=2):
                    of_offsets.setdefault(key - query, []).append(matrix[query][key])
        means = {offset: np.mean(values) for offset, values in of_offsets.items()}
        assert row["weight"] == pytest.approx(max(means.values()))
        assert means[row["offset"]] == pytest.approx(row["weight"])
        del means[0]
        assert row["beside_weight"] == pytest.approx(max(means.values()))
