"""Statistics of updates, against the matrix of each update itself, which is formed here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.dense import dense_directionality, dense_symmetry
from torch import Tensor

from attngeo.updates.change import Projections
from attngeo.updates.recording import SiteGradients
from attngeo.updates.statistics import tabulate_site

HEADS, KEY_HEADS, HEAD_DIM = 4, 2, 3
GROUPS = [0, 0, 1, 1]
# Number of sequences, tokens and width: the Gram form, and the tiled form.
SIZES = [(3, 5, 96), (6, 8, 24)]


def draw_gradients(sequences: int, tokens: int, width: int, *, causal: bool = False, seed: int = 0) -> SiteGradients:
    """A site with random gradients whose rows sum to 0, as those of a softmax do, and tokens with a common mean."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(sequences, tokens, width, generator=random) + torch.linspace(-1, 2, width)
    beta = torch.randn(sequences, HEADS, tokens, tokens, generator=random)
    seen = torch.ones(tokens, tokens, dtype=torch.bool)
    seen = (seen.tril() if causal else seen).expand(beta.shape)
    beta = (beta - (beta * seen).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True)) * seen
    site: Any = SimpleNamespace(
        stack="decoder", layer=3, heads=HEADS, key_heads=KEY_HEADS, d_model=width, head_dim=HEAD_DIM,
        notes=("a caveat",),
    )  # fmt: skip
    predicted = torch.rand(sequences, tokens, generator=random) < 0.6
    wq = torch.randn(HEADS, HEAD_DIM, width, generator=random)
    wk = torch.randn(KEY_HEADS, HEAD_DIM, width, generator=random)
    return SiteGradients(site, x, beta, seen, predicted, Projections(wq, wk, GROUPS, None))


def tabulate(gradients: SiteGradients, seed: int = 0) -> list[dict[str, Any]]:
    return tabulate_site(gradients, torch.Generator().manual_seed(seed))


def form_updates(gradients: SiteGradients) -> list[np.ndarray]:
    """ΔM of the layer, then of each head."""
    beta, x = gradients.beta.double(), gradients.x.double()
    heads = torch.einsum("shij,sid,sje->hde", beta, x, x)
    return [heads.sum(0).numpy(), *heads.numpy()]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("causal", [False, True])
def test_scores_and_spreads_are_those_of_the_matrix(size: tuple[int, int, int], causal: bool) -> None:
    gradients = draw_gradients(*size, causal=causal)
    rows = tabulate(gradients)
    assert [(row["head"], row["key_head"]) for row in rows] == [(None, None), (0, 0), (1, 0), (2, 1), (3, 1)]
    for row, update in zip(rows, form_updates(gradients), strict=True):
        assert row["symmetry"] == pytest.approx(dense_symmetry(update), abs=1e-5)
        assert row["directionality"] == pytest.approx(dense_directionality(update), abs=1e-4)
        assert row["frobenius_norm"] == pytest.approx(np.linalg.norm(update), rel=1e-5)
        for name, axis in (("column_spread", 0), ("row_spread", 1)):
            norms = np.linalg.norm(update, axis=axis)
            assert row[name] == pytest.approx(norms.var() / (norms**2).mean(), rel=1e-3)
        assert row["note"] == "a caveat"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("causal", [False, True])
def test_the_change_is_that_of_the_matrices_of_remark_s1_6(size: tuple[int, int, int], causal: bool) -> None:
    """C = G·Wk·Wkᵀ + Wq·Wqᵀ·G; the key gradients of query heads that share a key head are added up."""
    gradients = draw_gradients(*size, causal=causal)
    assert gradients.projections is not None
    wq, wk = (weight.double().mT.numpy() for weight in gradients.projections[:2])  # [heads, d_model, head_dim]
    _, *updates = form_updates(gradients)
    by_key = [sum(updates[head].T @ wq[head] for head in range(HEADS) if GROUPS[head] == key) for key in (0, 1)]
    changes = [
        update @ wk[key] @ wk[key].T + wq[head] @ by_key[key].T
        for head, (key, update) in enumerate(zip(GROUPS, updates, strict=True))
    ]
    for row, change in zip(tabulate(gradients), [np.sum(changes, 0), *changes], strict=True):
        assert row["change_symmetry"] == pytest.approx(dense_symmetry(change), abs=1e-5)
        assert row["change_directionality"] == pytest.approx(dense_directionality(change), abs=1e-4)
        assert row["change_symmetry"] != pytest.approx(row["symmetry"], abs=1e-3)


def test_what_is_predicted_has_columns_of_its_own() -> None:
    gradients = draw_gradients(4, 7, 6)
    row = tabulate(gradients)[2]
    beta, x = gradients.beta[:, 1].double(), gradients.x.double()
    parts = np.array(
        [[float((torch.outer(x[s, t], beta[s, t] @ x[s]) ** 2).sum()) for t in range(7)] for s in range(4)]
    )
    chosen = parts * gradients.predicted.numpy()
    assert row["predicted_share"] == pytest.approx(chosen.sum() / parts.sum(), rel=1e-5)
    assert row["prediction_share_predicted"] == pytest.approx(chosen[:, :3].sum() / chosen.sum(), rel=1e-5)
    both = [
        (s, i, j)
        for s, i, j in np.ndindex(4, 7, 7)
        if i != j and gradients.predicted[s, i] and gradients.predicted[s, j]
    ]
    forward = [float(beta[s, i, j]) for s, i, j in both]
    backward = [float(beta[s, j, i]) for s, i, j in both]
    assert row["beta_symmetry_predicted"] == pytest.approx(np.corrcoef(forward, backward)[0, 1], abs=1e-6)
    all_predicted = gradients._replace(predicted=torch.ones_like(gradients.predicted))
    for row in tabulate(all_predicted):
        assert row["predicted_share"] == 1.0
        assert row["prediction_share_predicted"] == row["prediction_share"]
        assert row["beta_symmetry_predicted"] == row["beta_symmetry"]


@pytest.mark.parametrize("size", SIZES)
def test_own_token_part_and_the_rest_are_projections_that_sum_to_the_update(size: tuple[int, int, int]) -> None:
    gradients = draw_gradients(*size)
    random = torch.Generator().manual_seed(1)
    beta_own = 0.7 * gradients.beta + 0.4 * torch.randn(gradients.beta.shape, generator=random)
    own = form_updates(gradients._replace(beta=beta_own))
    rows = tabulate(gradients._replace(beta_own=beta_own))
    for row, update, part in zip(rows, form_updates(gradients), own, strict=True):
        square = (update**2).sum()
        assert row["own_token_share"] == pytest.approx((part * update).sum() / square, abs=1e-5)
        assert row["other_tokens_share"] == pytest.approx(((update - part) * update).sum() / square, abs=1e-5)
        assert row["own_token_share"] + row["other_tokens_share"] == pytest.approx(1, abs=1e-12)
        cosine = (part * update).sum() / np.sqrt(square * (part**2).sum())
        assert row["own_token_cosine"] == pytest.approx(cosine, abs=1e-5)


def test_without_other_tokens_the_update_is_its_own_token_part() -> None:
    gradients = draw_gradients(2, 5, 12)
    for factor, share, cosine in ((1.0, 1, 1), (-0.5, -0.5, -1), (1e-6, 1e-6, 1)):
        for row in tabulate(gradients._replace(beta_own=factor * gradients.beta)):
            assert row["own_token_share"] == pytest.approx(share, abs=1e-6)
            assert row["own_token_cosine"] == pytest.approx(cosine, abs=1e-6)
    nothing = torch.zeros_like(gradients.beta)
    for row in tabulate(gradients._replace(beta_own=nothing)):
        assert (row["own_token_share"], row["other_tokens_share"]) == (0, 1)
        assert np.isnan(row["own_token_cosine"])
    for row in tabulate(gradients._replace(beta=nothing, beta_own=nothing)):
        assert np.isnan(row["own_token_share"])
        assert np.isnan(row["other_tokens_share"])
    for row in tabulate(gradients):
        assert np.isnan(row["own_token_share"])
        assert row["note"] == "a caveat"


def test_the_change_is_missing_without_projections_and_nothing_else_is() -> None:
    gradients = draw_gradients(2, 5, 12)
    for row, usual in zip(tabulate(gradients._replace(projections=None)), tabulate(gradients), strict=True):
        assert np.isnan(row["change_symmetry"])
        assert np.isnan(row["change_directionality_chance"])
        assert row["note"].startswith("a caveat; change of W_qk missing")
        assert row["symmetry"] == usual["symmetry"]


def test_shares_are_of_the_parts_of_each_token() -> None:
    gradients = draw_gradients(2, 7, 6)
    row = tabulate(gradients)[2]
    beta, x = gradients.beta[:, 1].double(), gradients.x.double()
    for name, weights in (("context_share", beta.mT), ("prediction_share", beta)):
        parts = [
            [float((torch.outer(x[s, t], weights[s, t] @ x[s]) ** 2).sum()) for t in range(7)] for s in range(len(x))
        ]
        assert row[name] == pytest.approx(np.sum([part[:3] for part in parts]) / np.sum(parts), rel=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_early_tokens_are_contexts_under_a_causal_mask_and_no_more_than_others_without(seed: int) -> None:
    for row in tabulate(draw_gradients(16, 12, 40, causal=True, seed=seed)):
        assert row["context_share"] > 0.55 > 0.45 > row["prediction_share"]
    for row in tabulate(draw_gradients(16, 12, 40, seed=seed)):
        assert 0.4 < row["context_share"] < 0.6
        assert 0.4 < row["prediction_share"] < 0.6


def test_correlation_of_pairs_is_that_of_numpy_and_missing_without_pairs() -> None:
    gradients = draw_gradients(4, 6, 8)
    pairs = [(s, i, j) for s in range(4) for i in range(6) for j in range(6) if i != j]
    values = gradients.beta[:, 0]
    own, mirrored = (np.array([float(values[s, a, b]) for s, a, b in order]) for order in
                     (pairs, [(s, j, i) for s, i, j in pairs]))  # fmt: skip
    assert tabulate(gradients)[1]["beta_symmetry"] == pytest.approx(np.corrcoef(own, mirrored)[0, 1], abs=1e-6)
    symmetric = gradients._replace(beta=gradients.beta + gradients.beta.mT)
    assert all(row["beta_symmetry"] == pytest.approx(1) for row in tabulate(symmetric))
    assert all(row["symmetry"] == pytest.approx(1, abs=1e-5) for row in tabulate(symmetric))
    assert all(np.isnan(row["beta_symmetry"]) for row in tabulate(draw_gradients(4, 6, 8, causal=True)))


def test_chance_is_that_of_gradients_without_pairs() -> None:
    """Gradients that have no relation between pairs are at chance; symmetric ones are far above it."""
    differences, symmetric = [], []
    for seed in range(10):
        gradients = draw_gradients(8, 12, 40, seed=seed)
        differences += [row["symmetry"] - row["symmetry_chance"] for row in tabulate(gradients)[1:]]
        mirrored = gradients._replace(beta=gradients.beta + gradients.beta.mT)
        symmetric += [row["symmetry"] - row["symmetry_chance"] for row in tabulate(mirrored)[1:]]
    assert abs(np.mean(differences)) < 3 * np.std(differences) / len(differences) ** 0.5
    assert min(symmetric) > 0.5
    assert tabulate(gradients) == tabulate(gradients)
    assert tabulate(gradients)[1]["symmetry_chance"] != tabulate(gradients, seed=1)[1]["symmetry_chance"]


@pytest.mark.parametrize("causal", [False, True])
def test_a_shuffle_keeps_each_row_and_what_it_sees(causal: bool) -> None:
    """So chance is that of the tokens alone: a head that sees one token from each place cannot be shuffled."""
    gradients = draw_gradients(2, 6, 30, causal=causal)
    few = torch.eye(6, dtype=torch.bool).roll(1, -1).expand(gradients.beta.shape)
    fixed = gradients._replace(beta=gradients.beta.abs() * few, seen=few)
    rows = tabulate(fixed)
    for row in rows:
        for score in ("symmetry", "directionality", "change_symmetry", "change_directionality"):
            assert row[f"{score}_chance"] == pytest.approx(row[score], abs=1e-5)
    for score in ("directionality", "change_directionality"):
        assert max(abs(row[score]) for row in rows) > 0.05
    two = torch.zeros_like(gradients.seen)
    two[..., :2] = True
    equal = gradients._replace(beta=two * torch.ones(6)[:, None], seen=two)
    for row in tabulate(equal):
        assert row["symmetry_chance"] == pytest.approx(row["symmetry"], abs=1e-6)
        assert row["change_symmetry_chance"] == pytest.approx(row["change_symmetry"], abs=1e-5)


@pytest.mark.parametrize("factor", [1e-20, 1e20])
def test_the_size_of_gradients_changes_only_the_norm(factor: float) -> None:
    gradients = draw_gradients(2, 5, 12)
    usual, scaled = tabulate(gradients), tabulate(gradients._replace(beta=gradients.beta * factor))
    for one, other in zip(usual, scaled, strict=True):
        assert other["frobenius_norm"] == pytest.approx(one["frobenius_norm"] * factor, rel=1e-5)
        for name in ("symmetry", "directionality", "column_spread", "symmetry_chance", "change_symmetry"):
            assert other[name] == pytest.approx(one[name], abs=1e-5)


def test_a_head_without_gradients_has_no_scores_and_says_why() -> None:
    gradients = draw_gradients(2, 5, 12)
    gradients.beta[:, 2] = 0
    row = tabulate(gradients)[3]
    assert np.isnan(row["symmetry"])
    assert not np.isnan(row["change_symmetry"])  # the other query head changes the keys that it shares
    gradients.beta[:, 3] = 0
    assert np.isnan(tabulate(gradients)[3]["change_symmetry"])
    assert row["frobenius_norm"] == 0
    assert "zero" in row["note"]


def test_the_update_of_a_row_vector_is_a_column_of_context() -> None:
    """One token as context and many as predicted: columns differ as this token, rows as the others do."""
    x = torch.randn(1, 9, 16, generator=torch.Generator().manual_seed(0))
    x[0, 0] = 0
    x[0, 0, 5] = 1.0
    beta = torch.zeros(1, HEADS, 9, 9)
    beta[..., 0] = 1.0
    gradients: Any = draw_gradients(1, 9, 16)._replace(x=x, beta=beta, seen=torch.ones_like(beta, dtype=torch.bool))
    row = tabulate(gradients)[1]
    assert row["column_spread"] == pytest.approx(1 - 1 / 16, abs=1e-6)  # one column alone
    assert row["directionality"] == -1.0
    assert row["context_share"] == 1.0


def test_nothing_of_the_size_of_a_weight_is_formed() -> None:
    """Memory is linear in the width: no tensor has d_model × d_model entries, nor heads × tokens × d_model."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        most = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if isinstance(result, Tensor):
                self.most = max(self.most, result.numel())
            return result

    gradients = draw_gradients(2, 16, 2048)
    with Largest() as watch:
        tabulate(gradients)
    assert watch.most <= 2 * 16 * 2048
