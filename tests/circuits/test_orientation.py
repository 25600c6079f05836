"""The test of orientation, against scipy's binomial test."""

from __future__ import annotations

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


def test_the_strongest_pairs_are_matched_first() -> None:
    """Whatever their signs; heads that share keys are never paired, whatever their cosine; one may be left over."""
    cosines = torch.eye(5)
    for (head, other), cosine in {(0, 1): 1.0, (0, 2): -0.5, (1, 2): 0.6, (1, 3): 0.4, (3, 4): -0.1}.items():
        cosines[head, other] = cosines[other, head] = cosine
    assert match_pairs(cosines, [0, 0, 1, 2, 2]) == [(1, 2), (0, 3)]
    assert match_pairs(cosines, [0, 1, 2, 3, 4]) == [(0, 1), (3, 4)]


def test_the_matching_does_not_look_at_signs() -> None:
    """Heads transposed at random have the same partners, each head one."""
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        cosines = torch.randn(6, 6, generator=generator)
        cosines = cosines + cosines.T
        found = match_pairs(cosines, [0, 0, 1, 1, 2, 2])
        assert len({head for pair in found for head in pair}) == 2 * len(found)
        flips = torch.randint(2, (6,), generator=generator) * 2 - 1
        assert match_pairs(cosines * flips[:, None] * flips, [0, 0, 1, 1, 2, 2]) == found


def test_heads_without_a_cosine_have_no_partner() -> None:
    """A head whose form is symmetric or zero."""
    cosines = torch.tensor([[1.0, torch.nan, 0.1], [torch.nan, torch.nan, torch.nan], [0.1, torch.nan, 1.0]])
    assert match_pairs(cosines, [0, 1, 2]) == [(0, 2)]
    assert match_pairs(torch.full((2, 2), torch.nan), [0, 1]) == []
