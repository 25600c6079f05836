"""The implicit update of W_qk: a sum of rank-1 matrices. Propositions 2.1 and 2.2, Remark S1.6, Theorem 2.4 (19, 20).

A layer of attention with a residual connection, a tanh layer, and logits; N tokens x_i, rows of X [N, d]. M is W_qk.
Several layers read one another's outputs; the last one has the logits.

Source: Saponati et al. 2025 (arXiv 2502.10927), sections 2.2 to 2.4, appendix S1.4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attngeo.papers.residuals import Residuals, difference
from attngeo.training.loop import seeded

TOKENS = 6
DIMENSIONS = 5
WORDS = 9
TRIALS = 5
# Numbers of layers below whose last one Proposition 2.1 is computed.
DEPTHS = (2, 4)
# The rate of the gradient step of Remark S1.6.
STEP = 1e-2


class TokenSequence(NamedTuple):
    """A layer and one sequence.

    Attributes:
        x: tokens, [N, d].
        form: M, [d, d].
        value: W_v, [d, d].
        inner: the tanh layer, [d, d].
        outer: W_u, [d, |V|].
        targets: token that is predicted at each position, [N].
        allowed: whether i sees j, [N, N].
    """

    x: Tensor
    form: Tensor
    value: Tensor
    inner: Tensor
    outer: Tensor
    targets: Tensor
    allowed: Tensor


def draw_sequence(
    seed: int,
    *,
    bidirectional: bool = False,
    tokens: int = TOKENS,
    dimensions: int = DIMENSIONS,
    words: int = WORDS,
) -> TokenSequence:
    """A random layer and sequence; i sees the tokens before it, or all others if `bidirectional`."""

    def draw_rows(rows: int) -> Tensor:
        return torch.randn(rows, dimensions, dtype=torch.float64) / math.sqrt(dimensions)

    with seeded(seed):
        x = draw_rows(tokens)
        form = draw_rows(dimensions)
        value = draw_rows(dimensions)
        inner = draw_rows(dimensions)
        outer = torch.randn(dimensions, words, dtype=torch.float64)
        targets = torch.randint(words, (tokens,))
    others = ~torch.eye(tokens, dtype=torch.bool)
    allowed = others if bidirectional else others.tril()
    return TokenSequence(x, form, value, inner, outer, targets, allowed)


def draw_layers(seed: int, depth: int, *, bidirectional: bool, **sizes: int) -> list[TokenSequence]:
    """Random layers of linear attention; each reads the outputs of the one before it."""
    layers = [draw_sequence(seed, bidirectional=bidirectional, **sizes)]
    for number in range(1, depth):
        before = layers[-1]
        drawn = draw_sequence(seed + number, bidirectional=bidirectional, **sizes)
        layers.append(drawn._replace(x=run_layer(before, scores_of(before)), targets=before.targets))
    return layers


def draw_sequences(seed: int, trials: int, **sizes: int) -> list[TokenSequence]:
    """Random sequences, for each trial an autoregressive and a bidirectional one."""
    sequences = []
    for trial in range(trials):
        trial_seed = 1000 * seed + trial
        sequences.append(draw_sequence(trial_seed, bidirectional=False, **sizes))
        sequences.append(draw_sequence(trial_seed, bidirectional=True, **sizes))
    return sequences


def scores_of(sequence: TokenSequence) -> Tensor:
    """x_i·M·x_jᵀ, [N, N]; 0 where i does not see j."""
    return (sequence.x @ sequence.form @ sequence.x.T) * sequence.allowed


def attention_weights(sequence: TokenSequence, scores: Tensor) -> Tensor:
    """Softmax of scores/√d over the tokens that each token sees, [N, N]; all 0 for a token that sees none."""
    scaled = (scores / math.sqrt(sequence.x.shape[1])).masked_fill(~sequence.allowed, -torch.inf)
    return torch.softmax(scaled, 1).nan_to_num()


def run_layer(sequence: TokenSequence, weights: Tensor) -> Tensor:
    """The outputs of the layer, [N, d], with these attention weights [N, N]."""
    hidden = sequence.x + weights @ sequence.x @ sequence.value
    return hidden + torch.tanh(hidden @ sequence.inner)


def log_likelihood(sequence: TokenSequence, scores: Tensor, *, softmax: bool) -> Tensor:
    """The log-likelihood of the targets, from raw scores [N, N].

    softmax: whether weights are the softmax of scores/√d over the visible tokens; otherwise they are the scores.
    """
    weights = attention_weights(sequence, scores) if softmax else scores
    logits = run_layer(sequence, weights) @ sequence.outer
    return torch.log_softmax(logits, 1).gather(1, sequence.targets[:, None]).sum()


def contributions(sequence: TokenSequence, *, softmax: bool) -> Tensor:
    """β_ij as the proof derives it, δ_i·(x_j·W_v)ᵀ, [N, N]; 0 where i does not see j.

    δ_i is (t_i − σ(z_i)) carried back through W_u and the tanh layer (S28), here without W_v.
    """
    scores = scores_of(sequence)
    weights = attention_weights(sequence, scores) if softmax else scores
    delta = carry_back(sequence, weights, output_error(sequence, weights))
    return (delta @ (sequence.x @ sequence.value).T) * sequence.allowed


def output_error(sequence: TokenSequence, weights: Tensor) -> Tensor:
    """The derivative of the log-likelihood by the outputs of the last layer: (t_i − σ(z_i))·W_uᵀ, [N, d]."""
    logits = run_layer(sequence, weights) @ sequence.outer
    targets = torch.nn.functional.one_hot(sequence.targets, logits.shape[1])
    return (targets - torch.softmax(logits, 1)) @ sequence.outer.T


def carry_back(sequence: TokenSequence, weights: Tensor, error: Tensor) -> Tensor:
    """δ: the derivative by the outputs of a layer, [N, d], carried back through its tanh layer to its attention."""
    inside = torch.tanh((sequence.x + weights @ sequence.x @ sequence.value) @ sequence.inner)
    return error + (error * (1 - inside**2)) @ sequence.inner.T


def contributions_of_layers(layers: Sequence[TokenSequence], *, own_token: bool) -> list[Tensor]:
    """β_ij of each layer of linear attention, [N, N], with the errors of the last one carried back.

    Args:
        layers: see `draw_layers`.
        own_token: whether δ_i is the error of token i at its own position alone, carried back through the residual
            connections, the tanh layers and the queries of token i, as in (S25) to (S28), with the product over layers
            that (S26) prints as a sum. Otherwise δ_i also has the errors of all tokens that see token i in a layer
            above, carried back through its keys and values. No token sees itself.
    """
    error = output_error(layers[-1], scores_of(layers[-1]))
    betas: list[Tensor] = []
    for layer in reversed(layers):
        scores = scores_of(layer)
        delta = carry_back(layer, scores, error)
        beta = (delta @ (layer.x @ layer.value).T) * layer.allowed
        betas.insert(0, beta)
        error = delta + beta @ layer.x @ layer.form.T
        if not own_token:
            error = error + scores.T @ delta @ layer.value.T + beta.T @ layer.x @ layer.form
    return betas


def softmax_contributions(sequence: TokenSequence) -> Tensor:
    """β_ij for attention with the softmax of equation (1): α_ij/√d·(δ_i·v_j − Σ_k α_ik·δ_i·v_k), [N, N]."""
    beta = contributions(sequence, softmax=True)
    weights = attention_weights(sequence, scores_of(sequence))
    return weights * (beta - (weights * beta).sum(1, keepdim=True)) / math.sqrt(sequence.x.shape[1])


def rank_one_sum(x: Tensor, beta: Tensor) -> Tensor:
    """Σ_ij β_ij·x_iᵀ·x_j, added one rank-1 matrix after the other, [d, d]."""
    total = x.new_zeros(x.shape[1], x.shape[1])
    for i, row in enumerate(beta):
        for j, weight in enumerate(row):
            total = total + weight * torch.outer(x[i], x[j])
    return total


def update_by_autograd(sequence: TokenSequence, *, softmax: bool, pairs: Tensor | None = None) -> Tensor:
    """The gradient of the log-likelihood by M, [d, d]. pairs: only through these scores, [N, N]; default: all."""
    form = sequence.form.clone().requires_grad_()
    scores = scores_of(sequence._replace(form=form))
    if pairs is not None:
        scores = torch.where(pairs, scores, scores.detach())
    (gradient,) = torch.autograd.grad(log_likelihood(sequence, scores, softmax=softmax), form)
    return gradient


def layer_updates_by_autograd(layers: Sequence[TokenSequence]) -> list[Tensor]:
    """The gradient of the log-likelihood by M of each layer of linear attention, [d, d] each."""
    forms = [layer.form.clone().requires_grad_() for layer in layers]
    x = layers[0].x
    likelihood = x.new_zeros(())
    for layer, form in zip(layers, forms, strict=True):
        current = layer._replace(x=x, form=form)
        scores = scores_of(current)
        likelihood = log_likelihood(current, scores, softmax=False)  # that of the last layer counts
        x = run_layer(current, scores)
    return list(torch.autograd.grad(likelihood, forms))


def distance_up_to_scale(total: Tensor, gradient: Tensor) -> float:
    """‖c·total − gradient‖/‖gradient‖ with the best factor c: the proposition is up to a factor."""
    scale = (total * gradient).sum() / (total * total).sum()
    return float((total * scale - gradient).norm() / gradient.norm())


def check_proposition_2_1(seed: int = 0, *, trials: int = TRIALS, **sizes: int) -> Residuals:
    """Proposition 2.1 for linear attention, as the proof has it: Σ β_ij·K_ij against autograd, in both groupings."""
    errors = []
    for sequence in draw_sequences(seed, trials, **sizes):
        beta = contributions(sequence, softmax=False)
        gradient = update_by_autograd(sequence, softmax=False)
        errors.append(difference(rank_one_sum(sequence.x, beta), gradient))
        errors.append(difference(rank_one_sum(sequence.x, beta.T).T, gradient))
    return Residuals(f"gradients of {2 * trials} sequences, autoregressive and bidirectional", tuple(errors))


def check_proposition_2_1_softmax(seed: int = 0, *, trials: int = TRIALS, **sizes: int) -> Residuals:
    """Proposition 2.1 for equation (1), which has a softmax: β gets its derivative. Printed: the proof's β."""
    errors = []
    printed = []
    for sequence in draw_sequences(seed, trials, **sizes):
        gradient = update_by_autograd(sequence, softmax=True)
        errors.append(difference(rank_one_sum(sequence.x, softmax_contributions(sequence)), gradient))
        total = rank_one_sum(sequence.x, contributions(sequence, softmax=True))
        printed.append(distance_up_to_scale(total, gradient))
    computed = f"printed: off by {min(printed):.0%} to {max(printed):.0%} of the gradient, with the best factor"
    return Residuals(computed, tuple(errors), tuple(printed))


def check_proposition_2_1_lower_layers(seed: int = 0, *, trials: int = TRIALS, **sizes: int) -> Residuals:
    """Proposition 2.1 in every layer of several: Σ β_ij·K_ij against autograd, with δ through all tokens.

    Printed: δ_i is the error of token i at its own position alone (S25 to S28), below the last layer.
    """
    errors = []
    printed = []
    ranges = []
    for depth in DEPTHS:
        misses = []
        for trial in range(2 * trials):
            drawn = draw_layers(1000 * seed + 10 * trial, depth, bidirectional=trial % 2 == 1, **sizes)
            gradients = layer_updates_by_autograd(drawn)
            of_all = contributions_of_layers(drawn, own_token=False)
            of_own = contributions_of_layers(drawn, own_token=True)
            for layer, beta, gradient in zip(drawn, of_all, gradients, strict=True):
                errors.append(difference(rank_one_sum(layer.x, beta), gradient))
            misses.append(distance_up_to_scale(rank_one_sum(drawn[0].x, of_own[0]), gradients[0]))
            errors.append(difference(rank_one_sum(drawn[-1].x, of_own[-1]), gradients[-1]))
        printed += misses
        ranges.append(f"first of {depth} layers off by {min(misses):.0%} to {max(misses):.0%} of the gradient")
    computed = (
        f"gradients of every layer, {2 * trials} random models of each depth, autoregressive and bidirectional; "
        f"printed, with the best factor: {', '.join(ranges)}; last layer exact"
    )
    return Residuals(computed, tuple(errors), tuple(printed))


def check_remark_s1_6(seed: int = 0, *, trials: int = TRIALS, rank: int = 2, **sizes: int) -> Residuals:
    """Remark S1.6: a step of Wq and Wk changes M by η(G·Wk·Wkᵀ + Wq·Wqᵀ·G) + η²·G·Wk·Wqᵀ·G. Printed: ∝ G = Σ β·K."""
    errors = []
    printed = []
    for number, drawn in enumerate(draw_sequences(seed, trials, **sizes)):
        with seeded(seed + number):
            wq = torch.randn(drawn.x.shape[1], rank, dtype=torch.float64).requires_grad_()
            wk = torch.randn(drawn.x.shape[1], rank, dtype=torch.float64).requires_grad_()
        sequence = drawn._replace(form=wq @ wk.T)
        likelihood = log_likelihood(sequence, scores_of(sequence), softmax=False)
        by_query, by_key = torch.autograd.grad(likelihood, (wq, wk))
        q = wq.detach()
        k = wk.detach()
        change = (q + STEP * by_query) @ (k + STEP * by_key).T - q @ k.T
        constant = sequence._replace(form=sequence.form.detach())
        g = rank_one_sum(constant.x, contributions(constant, softmax=False))
        expected = STEP * (g @ k @ k.T + q @ q.T @ g) + STEP**2 * g @ k @ q.T @ g
        errors.append(difference(change / STEP, expected / STEP))
        printed.append(1 - float(torch.cosine_similarity(change.flatten(), g.flatten(), dim=0)))
    computed = f"printed: cosine of the change with the sum is {1 - max(printed):.2f} to {1 - min(printed):.2f}"
    return Residuals(computed, tuple(errors), tuple(printed))


def check_proposition_2_2(seed: int = 0, *, trials: int = TRIALS, **sizes: int) -> Residuals:
    """Proposition 2.2: columns and rows of the update by one token as context, and as prediction (13 to 16).

    Printed: (15) names row k where its text and its proof mean column k.
    """
    errors = []
    printed = []
    for number, sequence in enumerate(draw_sequences(seed, trials, **sizes)):
        x = sequence.x
        beta = contributions(sequence, softmax=False)
        token = 1 + number % (len(x) - 2)  # both a context and a prediction
        of_token = torch.zeros_like(sequence.allowed)
        of_token[:, token] = True
        context = update_by_autograd(sequence, softmax=False, pairs=of_token)
        prediction = update_by_autograd(sequence, softmax=False, pairs=of_token.T)
        predicted = beta[:, token] @ x  # Σ_i β_i*·x_i, [d]
        seen = beta[token] @ x  # Σ_j β_*j·x_j, [d]
        for k in range(x.shape[1]):
            errors += [
                difference(x[token, k] * predicted, context[:, k]),  # (13)
                difference(predicted[k] * x[token], context[k]),  # (14)
                difference(seen[k] * x[token], prediction[:, k]),  # (15), of the column
                difference(x[token, k] * seen, prediction[k]),  # (16)
            ]
            printed.append(float((seen[k] * x[token] - prediction[k]).norm() / prediction.norm(dim=1).max()))
    computed = f"{len(errors)} columns and rows; (15) as printed is off by up to {max(printed):.0%} of the largest row"
    return Residuals(computed, tuple(errors), tuple(printed))


def check_theorem_2_4_pairs(seed: int = 0, *, trials: int = TRIALS) -> Residuals:
    """Theorem 2.4 (19, 20): the update is Σ_i<j (β_ij + β_ji)·S_ij + (β_ij − β_ji)·N_ij, by autograd.

    S_ij and N_ij are the symmetric and skew parts of K_ij. No token sees itself here, so there is no diagonal term.
    """
    errors = []
    for trial in range(trials):
        sequence = draw_sequence(1000 * seed + trial, bidirectional=True)
        beta = contributions(sequence, softmax=False)
        x = sequence.x
        total = torch.zeros_like(sequence.form)
        for i in range(len(x)):
            for j in range(i + 1, len(x)):
                outer = torch.outer(x[i], x[j])
                total += (beta[i, j] + beta[j, i]) * (outer + outer.T) / 2
                total += (beta[i, j] - beta[j, i]) * (outer - outer.T) / 2
        errors.append(difference(total, update_by_autograd(sequence, softmax=False)))
    return Residuals(f"gradients of {trials} sequences", tuple(errors))
