"""Differences between the outputs of a running model and the outputs that its weights give."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from attngeo.verification.comparing import TOLERANCE, arrange_heads, changes_of
from attngeo.verification.mixing import Mixture, MixtureRecorder
from attngeo.verification.probing import align, stack_starts
from attngeo.verification.recording import Recorder

# See `OutputComparison.verdict`.
OutputVerdict = Literal["agrees", "heads agree", "parts agree", "differs"]


@dataclass(frozen=True)
class OutputPrediction:
    """Outputs of one site for known inputs, from its weights.

    Attributes:
        values: Wv applied to the inputs, [value heads, runs, value_dim].
        o: Wo, [heads, value_dim, output_width].
        written: what all heads write together if every token is this input, [runs, output_width].
    """

    values: Tensor
    o: Tensor
    written: Tensor


class OutputComparison(NamedTuple):
    """Relative differences between a running model and weights; infinite if something does not fit or did not run.

    Attributes:
        written: difference of the output, if attention weights sum to 1 and nothing comes between values and output.
        heads: difference of the output computed from what each head read of the values, whatever the attention weights.
        values: difference of the values.
        projected: difference of the output computed from the input of the output projection.
    """

    written: float = math.inf
    heads: float = math.inf
    values: float = math.inf
    projected: float = math.inf

    @property
    def verdict(self) -> OutputVerdict:
        """What agrees: all; each head, but attention weights do not sum to 1; or only values and output projection.

        The output of all heads together does not show their order. So the values of each head must agree, too, unless
        it is unknown how the running model stores heads.
        """
        if self.written < TOLERANCE and not TOLERANCE <= self.values < math.inf:
            return "agrees"
        if max(self.heads, self.values) < TOLERANCE:
            return "heads agree"
        if max(self.projected, self.values) < TOLERANCE:
            return "parts agree"
        return "differs"

    @property
    def of_verdict(self) -> float:
        """The difference that decides the verdict."""
        match self.verdict:
            case "heads agree":
                return max(self.heads, self.values)
            case "parts agree":
                return max(self.projected, self.values)
        return max(self.written, self.values) if self.values < math.inf else self.written

    @property
    def rank(self) -> tuple[int, float]:
        """Sort key: lower is better."""
        return get_args(OutputVerdict).index(self.verdict), self.written


def align_mixtures(recordings: Iterable[Recorder]) -> Iterator[Mixture]:
    """The mixtures that every run computed, with the runs as an additional first dimension."""
    by_run = [recording.mixtures for recording in recordings if isinstance(recording, MixtureRecorder)]
    for mixtures in align(by_run):
        if len({(mixture.values.shape[::2], mixture.result.shape[::2]) for mixture in mixtures}) > 1:
            continue
        yield replace(
            mixtures[0],
            values=stack_starts([mixture.values for mixture in mixtures]),
            result=stack_starts([mixture.result for mixture in mixtures]),
            projected=_stack_rows([mixture.projected for mixture in mixtures]),
            written=_stack_rows([mixture.written for mixture in mixtures]),
        )


def _stack_rows(matrices: list[Tensor | None]) -> Tensor | None:
    """Matrices [rows, width] as one tensor [runs, rows, width], with the rows that all have; None if one is missing."""
    present = [matrix for matrix in matrices if matrix is not None]
    if len(present) < len(matrices):
        return None
    rows = min(len(matrix) for matrix in present)
    return torch.stack([matrix[:rows].float() for matrix in present])


def compare_outputs(predicted: OutputPrediction, mixture: Mixture) -> OutputComparison:
    """Differences between a mixture of the running model, over all runs, and the prediction of a site."""
    values = _compare_values(predicted.values, mixture.values, len(predicted.o))
    if mixture.written is None or mixture.projected is None:
        return OutputComparison(values=values)
    ran = changes_of(mixture.written.transpose(0, 1))  # [rows, runs - 1, output width]
    written = _least_difference(ran, changes_of(predicted.written[None]))
    heads = math.inf
    if mixture.result.shape[-1] == predicted.o.shape[1]:
        for read, _ in arrange_heads(mixture.result, mixture.result, len(predicted.o), 0):
            of_heads = torch.einsum("hrk,hkd->rd", changes_of(read), predicted.o)
            heads = min(heads, _least_difference(ran, of_heads[None]))
    projected = math.inf
    stacked = predicted.o.flatten(0, 1)
    if mixture.projected.shape[-1] == len(stacked):
        inputs = changes_of(mixture.projected.transpose(0, 1))
        projected = _least_difference(ran, inputs @ stacked)
    return OutputComparison(written, heads, values, projected)


def _compare_values(predicted: Tensor, values: Tensor, query_heads: int) -> float:
    """The least difference for any order in which a model may store its heads, each perhaps several times."""
    expected = changes_of(predicted)
    difference = math.inf
    if values.shape[-1] != predicted.shape[-1]:
        return difference
    n = values.shape[1]
    # In a block of keys, tokens may be padding: one that is not is taken, too.
    strongest = int(values.square().sum((0, 1, 3)).argmax())
    one_token = values[:, :, strongest : strongest + 1]
    for heads in dict.fromkeys((len(predicted), query_heads, n)):
        if n % heads or heads % len(predicted):
            continue
        repeated = expected.repeat_interleave(heads // len(predicted), 0)
        arrangements = chain(arrange_heads(values, values, heads, 0), arrange_heads(one_token, one_token, heads, 0))
        for arranged, _ in arrangements:
            difference = min(difference, _least_difference(changes_of(arranged)[None], repeated[None]))
    return difference


def _least_difference(ran: Tensor, expected: Tensor) -> float:
    """The least relative difference of [rows, ...] and [rows or 1, ...] among rows; infinite if shapes do not fit."""
    if ran.shape[1:] != expected.shape[1:] or not len(ran):
        return math.inf
    size = expected.flatten(1).norm(dim=1)
    differences = (ran - expected).flatten(1).norm(dim=1) / size
    differences = differences[differences.isfinite()]
    return float(differences.min()) if len(differences) else math.inf
