"""A model of exponential family attention as its definition reads: a pass of all layers for each masked position."""

from __future__ import annotations

import torch
from torch import Tensor

from attngeo.estimators.efa.attention import find_seen
from attngeo.estimators.efa.model import PartModel
from attngeo.estimators.efa.networks import Batch


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
