"""The letters of a layout: queries and keys are cut out of any order of slots, and only their slots are read."""

from __future__ import annotations

import pytest
import torch

from attngeo.layouts.layout import LETTERS, AttentionSite, Family, assemble, make_fused


def make_site(slots: str) -> AttentionSite:
    """Four query heads of width 3 over two key heads, of an input of width 7."""
    return AttentionSite(
        4, 2, 3, 7, 7, stack="decoder", layer=0, module="attn", layout=make_fused("qkv", slots),
        family=Family(source=""), section={}, tensors=dict.fromkeys(LETTERS, "attn.qkv.weight"), rule="rule",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("slots", "rows"), [("qkv", slice(0, 18)), ("gqkv", slice(12, 30)), ("qvk", slice(0, 24)), ("vqk", slice(6, 24))]
)
def test_the_hull_of_queries_and_keys_is_read(slots: str, rows: slice) -> None:
    site = make_site(slots)
    weight = torch.randn(site.rows(slots), 7)
    assert site.reads == {"attn.qkv.weight": rows}
    heads, whole = (assemble(site, {"attn.qkv.weight": tensor}) for tensor in (weight[rows], weight))
    for letter in LETTERS:
        assert torch.equal(heads[letter].weight, whole[letter].weight)
        start = site.rows(slots[: slots.index(letter)])
        expected = weight[start : start + site.rows(letter)]
        assert torch.equal(heads[letter].weight.flatten(0, 1), expected)
