"""The test of orientation, against scipy's binomial test and all matchings."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

from attngeo.circuits.orientation import judge_signs, match_pairs


@pytest.mark.parametrize(("opposite", "alike"), [(0, 0), (1, 0), (3, 3), (12, 24), (4, 20), (0, 7), (50, 40)])
def test_the_p_value_is_the_binomial_one(opposite: int, alike: int) -> None:
    """Both sides."""
    stats = pytest.importorskip("scipy.stats")
    judged = judge_signs([-0.5] * opposite + [0.25] * alike + [0.0])
    assert (judged.opposite, judged.alike) == (opposite, alike)
    expected = stats.binomtest(opposite, opposite + alike).pvalue if opposite + alike else 1
    assert judged.p_value == pytest.approx(expected)


def test_the_matching_has_the_largest_sum() -> None:
    """Of all orders of six heads; heads that share keys are never paired, whatever their cosine."""
    key_heads = [0, 0, 1, 1, 2, 2]
    for seed in range(10):
        cosines = torch.randn(6, 6, generator=torch.Generator().manual_seed(seed))
        cosines = (cosines + cosines.T) / 2
        cosines[0, 1] = cosines[1, 0] = 100
        matchings = [[*zip(order[::2], order[1::2], strict=True)] for order in permutations(range(6))]
        allowed = [pairs for pairs in matchings if all(key_heads[a] != key_heads[b] for a, b in pairs)]
        sums = [sum(abs(cosines[pair]) for pair in pairs) for pairs in allowed]
        found = match_pairs(cosines, key_heads)
        assert sorted(head for pair in found for head in pair) == [*range(6)]
        assert sum(abs(cosines[a, b]) for a, b in found) == pytest.approx(max(sums))
        flips = torch.randint(2, (6,), generator=torch.Generator().manual_seed(seed)) * 2 - 1
        assert match_pairs(cosines * flips[:, None] * flips, key_heads) == found


def test_heads_without_a_cosine_have_no_partner() -> None:
    """A head whose form is symmetric or zero."""
    cosines = torch.tensor([[1.0, torch.nan, 0.1], [torch.nan, torch.nan, torch.nan], [0.1, torch.nan, 1.0]])
    assert match_pairs(cosines, [0, 1, 2]) == [(0, 2)]
    assert match_pairs(torch.full((2, 2), torch.nan), [0, 1]) == []
