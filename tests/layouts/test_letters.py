"""The letters of a layout: values are cut as queries and keys are, and only the wanted slots are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from attngeo.layouts.layout import AttentionSite, Family, assemble, make_fused, make_sizes
from attngeo.layouts.sites import find_sites

Build = Callable[[str], Any]


def read(site: AttentionSite, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensors[name].detach()[rows] for name, rows in site.reads.items()}


@pytest.mark.parametrize("name", ["gpt2", "phi3", "gpt_neox", "codegen"])
def test_values_are_cut_beside_queries_and_keys(name: str, built: Build) -> None:
    model = built(name)
    tensors = model.state_dict()
    found = [
        find_sites(
            tensors, model.config.to_dict(), shape_of=lambda tensor: tensors[tensor].shape, ref=name, letters=letters,
        )[0][0]
        for letters in ("qk", "qkv")
    ]  # fmt: skip
    few, more = (assemble(site, read(site, tensors)) for site in found)
    assert (set(few), set(more)) == ({"q", "k"}, {"q", "k", "v"})
    assert all(torch.equal(few[letter].weight, more[letter].weight) for letter in few)
    assert more["v"].weight.shape == few["k"].weight.shape
    stored = sorted(tensors[found[0].tensors["q"]].flatten().tolist())
    assert sorted(torch.cat([part.weight.flatten() for part in more.values()]).tolist()) == stored


def make_site(slots: str, parts: str) -> AttentionSite:
    """Four query heads of width 3 over two key heads, whose values are 5 wide, of an input of width 7."""
    return AttentionSite(
        "decoder", 0, "attn", make_fused("qkv", slots), Family(source=""), {}, dict.fromkeys(parts, "attn.qkv.weight"),
        make_sizes(4, 2, 3, 7, 7, value_dim=5), "rule", parts,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("slots", "parts", "rows"),
    [
        ("qkv", "qk", slice(0, 18)),
        ("gqkv", "qk", slice(12, 30)),
        ("qkv", "v", slice(18, 28)),
        ("vqk", "k", slice(22, 28)),
    ],
)
def test_the_hull_of_the_wanted_slots_is_read(slots: str, parts: str, rows: slice) -> None:
    site = make_site(slots, parts)
    weight = torch.randn(site.sizes.rows(slots), 7)
    assert site.reads == {"attn.qkv.weight": rows}
    heads, whole = (assemble(site, {"attn.qkv.weight": tensor}) for tensor in (weight[rows], weight))
    for letter in parts:
        assert torch.equal(heads[letter].weight, whole[letter].weight)
        start = site.sizes.rows(slots[: slots.index(letter)])
        expected = weight[start : start + site.sizes.rows(letter)]
        assert torch.equal(heads[letter].weight.flatten(0, 1), expected)
    assert site.sizes.widths["v"] == 5
