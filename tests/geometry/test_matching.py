"""Heads in another order are found again."""

from __future__ import annotations

import pytest
import torch

from attngeo.geometry.matching import match_heads


@pytest.mark.parametrize("key_heads", [8, 4, 2, 1])
def test_permuted_heads_are_found(key_heads: int) -> None:
    heads = 8
    generator = torch.Generator().manual_seed(key_heads)
    groups = [head // (heads // key_heads) for head in range(heads)]
    for _ in range(20):
        order = torch.randperm(key_heads, generator=generator)
        inner = torch.randperm(heads // key_heads, generator=generator)
        permutation = (order[:, None] * (heads // key_heads) + inner).flatten()
        similarities = 0.3 * torch.rand(heads, heads, generator=generator)
        similarities[torch.arange(heads), permutation] = 0.9
        assert match_heads(similarities, groups, groups) == permutation.tolist()


def test_heads_that_share_keys_go_to_heads_that_share_keys() -> None:
    groups = [0, 0, 1, 1]
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        found = match_heads(torch.rand(4, 4, generator=generator), groups, groups)
        assert sorted(found) == [0, 1, 2, 3]
        assert groups[found[0]] == groups[found[1]]
        assert groups[found[2]] == groups[found[3]]


def test_heads_without_similarity_are_matched_last() -> None:
    similarities = torch.tensor([[torch.nan, torch.nan], [0.5, 0.1]])
    assert match_heads(similarities, [0, 1], [0, 1]) == [1, 0]
