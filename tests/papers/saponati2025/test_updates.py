"""The update of W_qk: the contributions against finite differences, and that wrong formulas are noticed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attngeo.papers.saponati2025 import updates

CHECKS = [
    updates.check_proposition_2_1, updates.check_proposition_2_1_softmax, updates.check_remark_s1_6,
    updates.check_proposition_2_2,
]  # fmt: skip
# Those of `CHECKS`, and the one of several layers, whose contributions are functions of their own.
ALL_CHECKS = [*CHECKS, updates.check_proposition_2_1_lower_layers]
SIZES = [{"tokens": 3, "dimensions": 2, "words": 2}, {"tokens": 7, "dimensions": 9, "words": 4}]


@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_contributions_are_derivatives_by_each_score(softmax: bool, bidirectional: bool) -> None:
    """β_ij is the derivative of the log-likelihood by x_i·M·x_jᵀ, here by central differences."""
    sequence = updates.draw_sequence(3, bidirectional=bidirectional)
    scores, step = updates.scores_of(sequence), 1e-5
    beta = updates.softmax_contributions(sequence) if softmax else updates.contributions(sequence, softmax=False)
    for i in range(len(scores)):
        for j in range(len(scores)):
            ends = []
            for sign in (1, -1):
                moved = scores.clone()
                moved[i, j] += sign * step
                ends.append(float(updates.log_likelihood(sequence, moved * sequence.allowed, softmax=softmax)))
            assert float(beta[i, j]) == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-8)


def test_who_sees_whom() -> None:
    assert updates.draw_sequence(0).allowed.tolist() == torch.ones(6, 6).tril(-1).bool().tolist()
    assert updates.draw_sequence(0, bidirectional=True).allowed.tolist() == (torch.eye(6) == 0).tolist()


@pytest.mark.parametrize("check", ALL_CHECKS)
@pytest.mark.parametrize("sizes", SIZES)
def test_the_statements_hold_for_any_sizes(check: Any, sizes: dict[str, int]) -> None:
    found = check(7, **sizes)
    assert found.worst < 1e-10
    assert not found.printed or found.worst_printed > 1e-3


@pytest.mark.parametrize("seed", range(3))
def test_the_update_is_a_sum_over_pairs(seed: int) -> None:
    assert updates.check_theorem_2_4_pairs(seed).worst < 1e-10


def test_a_wrong_derivative_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = updates.contributions
    monkeypatch.setattr(updates, "contributions", lambda *args, **more: original(*args, **more) * 1.001)
    for check in CHECKS:
        assert check(0).worst > 1e-5


def differentiate_own_loss(layers: list[updates.TokenSequence], at: int, token: int) -> Tensor:
    """The derivative of a token's log-likelihood by its scores in one layer, [N], with all other states constant."""
    leaf = updates.scores_of(layers[at])[token].clone().requires_grad_()
    x = layers[at].x
    for number, layer in enumerate(layers[at:]):
        others = x.detach()
        own = x[token]
        scores = leaf if number == 0 else (own @ layer.form @ others.T) * layer.allowed[token]
        attended = own + scores @ others @ layer.value  # the token does not see itself
        outputs = updates.run_layer(layer, updates.scores_of(layer)).detach()
        x = outputs.index_copy(0, torch.tensor([token]), (attended + torch.tanh(attended @ layer.inner))[None])
    logits = x[token] @ layers[-1].outer
    (derivative,) = torch.autograd.grad(torch.log_softmax(logits, 0)[layers[-1].targets[token]], leaf)
    return derivative * layers[at].allowed[token]


@pytest.mark.parametrize("bidirectional", [False, True])
def test_errors_of_the_own_token_are_those_with_all_other_states_constant(bidirectional: bool) -> None:
    layers = updates.draw_layers(5, 3, bidirectional=bidirectional)
    for at, beta in enumerate(updates.contributions_of_layers(layers, own_token=True)):
        for token, row in enumerate(beta):
            torch.testing.assert_close(row, differentiate_own_loss(layers, at, token), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_below_the_last_layer_only_the_errors_of_all_tokens_give_the_gradient(seed: int) -> None:
    found = updates.check_proposition_2_1_lower_layers(seed)
    assert found.worst < 1e-12
    assert len(found.printed) == 4 * updates.TRIALS
    assert min(found.printed) > 0.05
    (layer,) = updates.draw_layers(seed, 1, bidirectional=True)  # its own last layer
    (beta,) = updates.contributions_of_layers([layer], own_token=True)
    assert torch.equal(beta, updates.contributions(layer, softmax=False))


def test_a_wrong_path_through_other_tokens_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = updates.carry_back
    monkeypatch.setattr(updates, "carry_back", lambda *args: original(*args) * 1.001)
    assert updates.check_proposition_2_1_lower_layers(0).worst > 1e-5


def test_rank_one_sums_are_products() -> None:
    x, beta = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)
    assert torch.allclose(updates.rank_one_sum(x, beta), x.T @ beta @ x)
