"""The symmetry and the directionality score: Definition 3.1, Propositions S1.15 and S1.16, and their cheap forms.

The definitions are computed here densely in float64, and compared with `attngeo.symmetry` and `attngeo.directionality`,
which never form M.
Source: Saponati et al. 2025 (arXiv 2502.10927), section 3, appendices S1.6 and S1.7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from attngeo.geometry.scores import directionality, symmetry
from attngeo.papers.residuals import USUAL, Effect, Residuals, difference, measure_effect, shortfall
from attngeo.papers.saponati2025.simulation import Array

GAMMA = 2.0
SIZES = (3, 10, 40)
MATRICES = 20
# Sizes of random matrices for chance levels, and how many of each.
CHANCE_SIZES = (10, 30, 100)
CHANCE_DRAWS = 1500
# d_model and head_dim of the cheap forms: one for the Gram form of a head, of several blocks, and one for tiles.
FORMS = ((96, 8), (700, 64), (900, 260), (300, 200), (1100, 400))


def split_norms(matrix: Array) -> tuple[float, float, float]:
    """‖M‖², ‖M_s‖² and ‖M_n‖² of a square matrix, with the symmetric part M_s and the skew part M_n."""
    symmetric = (matrix + matrix.T) / 2
    skew = (matrix - matrix.T) / 2
    return float((matrix**2).sum()), float((symmetric**2).sum()), float((skew**2).sum())


def dense_symmetry(matrix: Array) -> float:
    """(‖M_s‖² − ‖M_n‖²)/‖M‖²: Definition 3.1 without its factor 2."""
    total, symmetric, skew = split_norms(matrix)
    return (symmetric - skew) / total


def outlier_sums(matrix: Array, gamma: float = GAMMA) -> tuple[float, float]:
    """r̄ and c̄ of Definition 3.2: the sums of the row and of the column norms above mean + gamma·deviation."""
    sums = []
    for axis in (1, 0):
        norms = np.sqrt((matrix**2).sum(axis))
        sums.append(float(norms[norms > norms.mean() + gamma * norms.std()].sum()))
    return sums[0], sums[1]


def dense_directionality(matrix: Array, gamma: float = GAMMA) -> float:
    """(r̄ − c̄)/(r̄ + c̄): Definition 3.2; 0 if no norm is an outlier."""
    rows, columns = outlier_sums(matrix, gamma)
    if not rows + columns:
        return 0.0
    return (rows - columns) / (rows + columns)


def score_matrix(score: Callable[[Tensor, Tensor], Tensor], matrix: Array) -> float:
    """A score of the library for one square matrix M, from the factors M and I."""
    left = torch.from_numpy(np.ascontiguousarray(matrix))
    return float(score(left, torch.eye(len(matrix), dtype=left.dtype)))


def check_definition_3_1(seed: int = 0) -> Residuals:
    """Definition 3.1 without its factor 2: tr(MM)/‖M‖², 1 for symmetric and −1 for skew M. Printed: with the factor."""
    errors = []
    printed = []
    for matrix in _draw_matrices(seed):
        forms = (matrix, matrix + matrix.T, matrix - matrix.T)
        expected = np.array([float(np.trace(matrix @ matrix) / (matrix**2).sum()), 1.0, -1.0])
        computed = np.array([dense_symmetry(form) for form in forms])
        errors.append(difference(computed, expected))
        errors.append(difference(computed, [score_matrix(symmetry, form) for form in forms]))
        printed.append(difference(2 * computed, expected))
    return Residuals(f"{len(printed)} random matrices; printed: 2 for symmetric ones", tuple(errors), tuple(printed))


def check_proposition_s1_15_range(seed: int = 0) -> Residuals:
    """Proposition S1.15 (1, 2): 1 − s = 2‖M_n‖²/‖M‖² and 1 + s = 2‖M_s‖²/‖M‖², so s is in [−1, 1], with ±1 as said."""
    errors = []
    for matrix in _draw_matrices(seed):
        score = score_matrix(symmetry, matrix)
        total, symmetric, skew = split_norms(matrix)
        errors.append(difference(1 - score, 2 * skew / total))
        errors.append(difference(1 + score, 2 * symmetric / total))
        errors.append(difference(total, symmetric + skew))  # Lemma S1.14
    return Residuals(f"{len(errors) // 3} random matrices", tuple(errors))


def check_proposition_s1_15_chance(seed: int = 0, *, draws: int = CHANCE_DRAWS) -> Residuals:
    """Proposition S1.15 (3): the mean of s over random matrices is 1/n. Printed: 8/n."""
    random = np.random.default_rng(seed)
    effects: dict[int, Effect] = {}
    for size in CHANCE_SIZES:
        scores = [dense_symmetry(_draw_entries(random, draw, (size, size))) for draw in range(draws)]
        effects[size] = measure_effect(np.array(scores))
    scaled = [f"{size * effect.mean:.2f} ± {USUAL * size * effect.error:.2f}" for size, effect in effects.items()]
    return Residuals(
        f"n times the mean {', '.join(scaled)} for n = {', '.join(map(str, effects))}; printed: 8",
        tuple(effect.miss(1 / size) for size, effect in effects.items()),
        tuple(effect.miss(8 / size) for size, effect in effects.items()),
    )


def check_proposition_s1_16_range(seed: int = 0) -> Residuals:
    """Proposition S1.16 (1, 2): d is in [−1, 1], ±1 if only rows or only columns are outliers; d(Mᵀ) = −d(M)."""
    errors = []
    scores = []
    for matrix in _draw_dominated(seed):
        score = score_matrix(directionality, matrix)
        rows, columns = outlier_sums(matrix)
        scores.append(round(score, 12))
        errors.append(max(0.0, abs(score) - 1))
        errors.append(abs(score + score_matrix(directionality, matrix.T)))
        if rows and not columns:
            errors.append(abs(score - 1))
        elif columns and not rows:
            errors.append(abs(score + 1))
        else:
            errors.append(float(abs(score) == 1))
    ends = f"{scores.count(1.0)} equal to 1, {scores.count(-1.0)} equal to -1"
    return Residuals(f"{len(scores)} matrices, {ends}", tuple(errors))


def check_proposition_s1_16_chance(seed: int = 0, *, draws: int = CHANCE_DRAWS // 5) -> Residuals:
    """Proposition S1.16 (3): over random matrices d has the mean 0, and its deviation falls as n grows."""
    random = np.random.default_rng(seed)
    means = []
    deviations = []
    sizes = [size * 2 for size in CHANCE_SIZES]
    for size in sizes:
        values = np.array([dense_directionality(random.normal(size=(size, size)) / size) for _ in range(draws)])
        means.append(measure_effect(values))
        deviations.append(float(values.std()))
    falls = [before - after for before, after in pairwise(deviations)]
    spread = ", ".join(f"{deviation:.2f}" for deviation in deviations)
    return Residuals(
        f"means {', '.join(map(str, means))}, deviations {spread} for n = {', '.join(map(str, sizes))}",
        (*(effect.miss() for effect in means), shortfall(falls)),
    )


def check_cheap_scores(seed: int = 0, *, score: str = "symmetry") -> Residuals:
    """A score from the factors in float32, against the dense definition in float64."""
    if score == "symmetry":
        cheap, dense = symmetry, dense_symmetry
    else:
        cheap, dense = directionality, dense_directionality
    errors = []
    for wq, wk in _draw_factors(seed):
        matrix = (wq.double() @ wk.double().T).numpy()
        errors.append(abs(float(cheap(wq, wk)) - dense(matrix)))
    forms = ", ".join(f"{width}x{rank}" for width, rank in FORMS)
    return Residuals(f"{len(errors)} pairs of factors, {forms}", tuple(errors))


def _draw_matrices(seed: int) -> Iterator[Array]:
    """Random square matrices, from nearly skew to nearly symmetric."""
    random = np.random.default_rng(seed)
    for size in SIZES:
        for mix in np.linspace(-0.9, 0.9, MATRICES):
            matrix = random.normal(size=(size, size))
            yield matrix + mix * matrix.T


def _draw_dominated(seed: int) -> Iterator[Array]:
    """Random square matrices with no, some or only large rows, columns or both."""
    random = np.random.default_rng(seed)
    for size in SIZES:
        for _ in range(MATRICES):
            matrix = random.normal(size=(size, size))
            matrix[random.integers(size)] *= random.choice([1, 10])
            matrix[:, random.integers(size)] *= random.choice([1, 10])
            yield matrix


def _draw_entries(random: np.random.Generator, number: int, shape: tuple[int, int]) -> Array:
    """Independent entries of mean 0: normal, uniform, or heavy-tailed, in turn by the number of the draw."""
    if number % 3 == 0:
        return random.standard_normal(shape)
    if number % 3 == 1:
        return random.uniform(-1, 1, shape)
    return random.standard_t(5, shape)


def _draw_factors(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Factors Wq and Wk [d_model, head_dim] in float32: unrelated, alike, and with a large row or column of M."""
    generator = torch.Generator().manual_seed(seed)
    for width, rank in FORMS:
        wq = torch.randn(width, rank, generator=generator) / rank**0.5
        wk = torch.randn(width, rank, generator=generator) / rank**0.5
        yield wq, wk
        yield wq, wq + 0.5 * wk
        scale = torch.ones(width, 1)
        scale[width // 3] = 20
        yield wq * scale, wk
        yield wq, wk * scale
