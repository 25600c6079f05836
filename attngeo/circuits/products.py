"""Values of a head's matrix for pairs of tokens: the products of its factors with two tables of embeddings."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from attngeo.bounds.names import printable
from attngeo.embeddings.embedding import Embedding
from attngeo.geometry.pairs import largest_of_all, largest_of_rows
from attngeo.geometry.spectra import eigenvalues, positive_share
from attngeo.progress import Progress, ProgressCallback

# Rows of embeddings that are multiplied at a time, so that no second table of them is in memory.
ROWS = 8192


class HeadFactors(NamedTuple):
    """A head's matrix as two factors: its value for tokens x and y is (left·x)·(right·y).

    Attributes:
        left: [rank, d_model].
        right: [rank, d_model].
        notes: caveats for readers of the values.
    """

    left: Tensor
    right: Tensor
    notes: list[str]

    def shuffle(self, seed: int) -> HeadFactors:
        """Factors that give the values of these factors for embeddings with shuffled dimensions."""
        generator = torch.Generator().manual_seed(seed)
        left, right = (
            factor[:, torch.randperm(factor.shape[1], generator=generator)] for factor in (self.left, self.right)
        )
        return HeadFactors(left, right, self.notes)


class Side(NamedTuple):
    """One side of the pairs: a table of embeddings, and the rows of the tokens in the pairs, [n], int64."""

    embedding: Embedding
    rows: Tensor

    def project(self, factor: Tensor, device: torch.device) -> Tensor:
        """The rows times a factor [rank, d_model]: [n, rank], float32, on the device."""
        weight = factor.T.to(device)
        matrix = self.embedding.matrix
        return torch.cat([matrix[rows].to(device, torch.float32) @ weight for rows in torch.split(self.rows, ROWS)])

    def name(self, title: str, numbers: Tensor) -> dict[str, list[Any]]:
        """The labels and the numbers of tokens, as two columns named after the title."""
        ids = self.rows[numbers.flatten().cpu()].tolist()
        return {title: [printable(self.embedding.labels[token]) for token in ids], f"{title}_id": ids}


def find_pairs(
    tokens: Side,
    others: Side,
    circuit: HeadFactors,
    *,
    count: int,
    each: bool,
    largest: bool,
    device: torch.device,
    progress: ProgressCallback,
) -> dict[str, list[Any]]:
    """The token pairs with the largest or smallest values.

    Args:
        tokens: the left side.
        others: the right side.
        circuit: the factors that give the values.
        count: number of pairs to list.
        each: whether to list this number for each token.
        largest: whether to list the largest values, not the smallest.
        device: where to compute.
        progress: called as rows are finished.

    Returns:
        Columns: token, token_id, target, target_id, rank, value.
    """
    sign = 1 if largest else -1
    left = sign * tokens.project(circuit.left, device)
    right = others.project(circuit.right, device)
    if each:
        entries = largest_of_rows(left, right, count)
        ranks = [*range(1, entries.values.shape[1] + 1)] * len(left)
    else:

        def report(done: int) -> None:
            progress(Progress("ask", "pairs of tokens", done, len(left), "steps"))

        entries = largest_of_all(left, right, count, report)
        ranks = [*range(1, len(entries.values) + 1)]
    values = (sign * entries.values).flatten().tolist()
    return {
        **tokens.name("token", entries.rows),
        **others.name("target", entries.columns),
        "rank": ranks,
        "value": values,
    }


def copying_score(inputs: Side, outputs: Side, circuit: HeadFactors) -> float:
    """Σ Re λ / Σ |λ| over the eigenvalues λ of E·M·Uᵀ, with the same tokens on both sides; NaN if all are 0.

    In [−1, 1]: 1 if the head raises the logits of the tokens it attends to. The nonzero eigenvalues are computed from a
    rank × rank matrix.

    Source: Elhage et al. 2021, "Summarizing OV/QK matrices".
    """
    cpu = torch.device("cpu")
    common = inputs.rows
    if not torch.equal(inputs.rows, outputs.rows):
        common = common[torch.isin(common, outputs.rows)]
    left = Side(inputs.embedding, common).project(circuit.left, cpu)
    right = Side(outputs.embedding, common).project(circuit.right, cpu)
    return positive_share(eigenvalues(left.T, right.T)).item()
