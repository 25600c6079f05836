"""Symmetry as a constraint of training: a penalty on what is not symmetric, or one matrix for queries and keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from attngeo.attention.finding import sites_of
from attngeo.attention.projections import key_heads_of, projections
from attngeo.checkpoints.opening import open_store
from attngeo.errors import UnsupportedModelError
from attngeo.layouts.layout import AttentionSite, LatentLayout


class TiedKeys:
    """Makes each key weight of a model the query weight itself; biases stay apart.

    Raises UnsupportedModelError if queries and keys are not the whole weights of two layers of the same shape.
    """

    def __init__(self, model: Any) -> None:
        parameters = dict(model.named_parameters())
        names = [_find_pair(site, parameters) for site in _square_sites(model, parameters)]
        self._pairs = [(*_locate(model, query), *_locate(model, key)) for query, key in names]
        self._tie()

    def _tie(self) -> None:
        for query_module, query, key_module, key in self._pairs:
            setattr(key_module, key, getattr(query_module, query))

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Inside the block the key weights are copies, so that a file gets both."""
        with torch.no_grad():
            for query_module, query, key_module, key in self._pairs:
                setattr(key_module, key, torch.nn.Parameter(getattr(query_module, query).clone()))
        try:
            yield
        finally:
            self._tie()


class SymmetryPenalty:
    """λ times the mean over layers of ‖M_n‖²/‖M‖², the share of M that is skew-symmetric: (1 − symmetry)/2.

    M = Wq·Wkᵀ of a whole layer, in the form that `attngeo score` measures: the sum over its heads, at equal positions.

    Args:
        model: a transformers model, whose weights get gradients.
        weight: λ.
    """

    def __init__(self, model: Any, weight: float) -> None:
        self._parameters = dict(model.named_parameters(remove_duplicate=False))
        self._sites = list(_square_sites(model, self._parameters))
        self._weight = weight

    def __call__(self) -> Tensor:
        """The penalty, [], with its gradient."""
        shares = []
        for site in self._sites:
            tensors = {name: self._parameters[name][rows] for name, rows in site.reads.items()}
            first = next(iter(tensors.values()))
            q, k, _ = projections(site, tensors, dtype=first.dtype, device=first.device)
            keys = k[key_heads_of(site, "corrected")]
            with torch.autocast(first.device.type, enabled=False):  # half precision would lose squares
                m = q.flatten(0, 1).T @ keys.flatten(0, 1)  # [d_model, d_model]
                shares.append((m - m.T).square().sum() / (4 * m.square().sum()))
        return self._weight * torch.stack(shares).mean()


def _square_sites(model: Any, parameters: Mapping[str, Tensor]) -> Iterator[AttentionSite]:
    """The sites whose M is square. Raises UnsupportedModelError if training does not change their weights."""
    for site in sites_of(open_store(model))[0]:
        if site.is_cross or site.d_model != site.key_width:
            continue
        for name in site.reads:
            if name not in parameters:
                raise UnsupportedModelError(f"{name} is not a parameter, so training does not change it")
        yield site


def _find_pair(site: AttentionSite, parameters: Mapping[str, Tensor]) -> tuple[str, str]:
    """The names of the query and key weights of a site.

    Raises UnsupportedModelError unless they are two weights of the same shape.
    """
    fused = isinstance(site.layout, LatentLayout) or site.layout.holder("q") is site.layout.holder("k")
    if fused or parameters[site.tensors["q"]].shape != parameters[site.tensors["k"]].shape:
        raise UnsupportedModelError(
            f"{site.module} has no two weights of one shape for queries and keys, so they cannot be one; leave out "
            "$tie_query_key",
            "tie_query_key",
        )
    return site.tensors["q"], site.tensors["k"]


def _locate(model: Any, name: str) -> tuple[torch.nn.Module, str]:
    """The module with a parameter, and its name there."""
    path, _, own = name.rpartition(".")
    return model.get_submodule(path), own
