"""Masked positions without copies, against a pass for each of them: forward and backward, in one run.

The models and batches are those of the published experiments. With five positions, 25 pairs of a copy and a token are
few, and no order of computing saves much: the bar of 5 holds for sequences of MovieLens, not for the synthetic ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from torch import Tensor

from attngeo.estimators.efa.attention import find_seen
from attngeo.estimators.efa.making import make_families, make_model
from attngeo.estimators.efa.model import PartModel
from attngeo.estimators.efa.networks import Batch
from attngeo.estimators.efa.sequences import DataShape, ValueColumn
from attngeo.papers.wibisono2025.options import RunOptions, list_settings

# Experiment → part, items, positions that are padded to, lengths that most sequences have, sequences in a batch.
SIZES = {
    "synthetic": ("values", 5, 5, (5, 5), 51),
    "movielens-sequence": ("items", 50, 44, (5, 26), 17),
    "movielens-ratings": ("values", 50, 44, (4, 24), 18),
}
BARS = {"synthetic": 1.0, "movielens-sequence": 5.0, "movielens-ratings": 5.0}


def measure_naively(model: PartModel, batch: Batch, *, causal: bool) -> Tensor:
    """The mean of −log p over known positions; each position is masked in turn in a copy of the sequences."""
    tokens, masked, known, _ = model.embed(batch)
    positions, total = masked.shape[1], tokens.shape[1]
    seen = (find_seen(positions, total, causal=causal, device=tokens.device) & known[:, None])[:, None]
    found = []
    for i in range(positions):
        x = torch.cat([tokens[:, :i], masked[:, i : i + 1], tokens[:, i + 1 :]], 1)
        for layer in model.attention.layers:
            keys = layer.keys(x)
            weights = layer.weigh(layer.queries(x) @ keys.key.mT, seen)
            x = layer.join(x, layer.add(weights @ keys.value))
        found.append(x[:, i])
    read = torch.stack(found, 1)[known]
    network = model.network
    family = model.families[0]
    natural = network.center(read) if model.is_of_items else family.natural(network.head(read)[..., 0])
    observed = batch.items if model.is_of_items or batch.values is None else batch.values[..., 0]
    assert observed is not None
    return -family.log_prob(natural, observed[known]).mean()


def time_best(function: Callable[[], object], repeats: int = 8) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return best


@pytest.mark.parametrize("direction", ["bi", "uni"])
@pytest.mark.parametrize("experiment", SIZES)
def test_masked_positions_are_faster_than_a_pass_for_each(
    experiment: str, direction: str, benchmark: BenchmarkFixture
) -> None:
    part, items, positions, (shortest, longest), sequences = SIZES[experiment]
    settings = list_settings(experiment, RunOptions(settings="code", model="efa", direction=direction))
    options = settings[0].options
    torch.manual_seed(0)
    values_of = () if part == "items" else (ValueColumn(),)
    shape = DataShape(part=part, items=items, longest=positions, levels=9, values=values_of)
    model = make_model(options, settings[0].architecture, make_families(options), shape)
    known = torch.arange(positions) < torch.randint(shortest, longest + 1, (sequences, 1))
    numbers, values = torch.randint(0, items, known.shape), torch.randint(1, 4, (*known.shape, 1)).float()
    batch = Batch(known, numbers, None if part == "items" else values)

    def run_fast() -> Tensor:
        model.zero_grad()
        total, count = model(batch)
        (total / count).backward()
        return total / count

    def run_naively() -> Tensor:
        model.zero_grad()
        loss = measure_naively(model, batch, causal=direction == "uni")
        loss.backward()
        return loss

    assert float(run_fast().detach()) == pytest.approx(float(run_naively().detach()), abs=1e-6)
    naive, fast = time_best(run_naively), time_best(run_fast)
    benchmark.pedantic(run_fast, rounds=3)
    benchmark.extra_info |= {"baseline: a pass for each position, s": naive, "s": fast, "ratio": naive / fast}
    print(f"\n{experiment} {direction}: {fast * 1e3:.1f} ms, naively {naive * 1e3:.1f} ms: {naive / fast:.1f} times")
    assert naive / fast > BARS[experiment]
