"""Models of items, of values, or of both: a network with the families of what it predicts, and their loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attngeo.errors import UsageError
from attngeo.estimators.efa.attention import MaskedAttention, measure_lengths
from attngeo.estimators.efa.factors import ItemFactors
from attngeo.estimators.efa.families import (
    ExponentialFamily,
    Gaussian,
)
from attngeo.estimators.efa.networks import (
    AttentionNetwork,
    Batch,
    Tokens,
    ValueAttention,
)
from attngeo.estimators.efa.sequences import DataShape, Sequences

NO_ATTENTION = "a factor model has no attention; fit an attention model (attngeo efa fit --model efa)"
NO_CONTEXTS = "a factor model of values has no context vectors; give models of items, or attention models (--model efa)"
# Positions of a batch that may be padding.
PADDED = 2**12


class PartModel(nn.Module):
    """A network with the families of its predictions: `model(batch)` is (−Σ log p, number of observations).

    Args:
        network: the network.
        families: one family per value column, or the family of items.
        shape: the shape of the data.
        context_dropout: share of rows to hide from the others during training.

    Attributes:
        is_of_items: whether it predicts items; otherwise values.
    """

    def __init__(
        self,
        network: Any,
        families: Sequence[ExponentialFamily],
        shape: DataShape,
        *,
        context_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.context_dropout = context_dropout
        self.network = network
        self.shape = shape
        self.families: Any = nn.ModuleList(families)
        self.is_of_items = shape.part == "items"
        self._place_scale: Tensor
        self._value_scale: Tensor
        self._register_scale("_place_scale", shape.place_scale)
        self._register_scale("_value_scale", [column.scale for column in shape.values])

    @property
    def parts(self) -> list[PartModel]:
        """The model itself, as one of `JointModel`."""
        return [self]

    def batch(self, sequences: Sequences) -> Batch:
        """The tensors of these sequences that the network reads."""
        shape = self.shape
        names = ["categories", "numbers"] if shape.covariates else []
        if not self.is_of_items:
            names.append("values")
        if shape.items:
            names.append("items")
        if shape.coordinates:
            names.append("coordinates")
        if shape.lags:
            names.append("lagged")
        return sequences.batch(*names)

    def natural(self, batch: Batch) -> Tensor:
        """The natural parameters at each position, [B, I, columns]; for items, their logits, [B, I, D]."""
        natural = self._read_natural(self.network(self._scale(self._drop_context(batch))))
        positions = torch.arange(natural.shape[1], device=natural.device)
        return self._exclude(natural, batch, positions)

    def read(self, batch: Batch) -> Tensor:
        """The vector of each position whose linear map gives its natural parameters, [B, I, n].

        This is H(x) for items, K(y) for values (section 5.1), before items of the context get probability 0. Raises
        UsageError for a factor model of values.
        """
        network = self.network
        if not isinstance(network, AttentionNetwork | ItemFactors):
            raise UsageError(NO_CONTEXTS)
        vectors = network.read(self._scale(batch))
        head = network.head if isinstance(network, ValueAttention) else None
        return vectors if head is None else head[:-1](vectors)

    def natural_at(self, position: int, batch: Batch) -> Tensor:
        """The natural parameters at one position, [B, columns] or [B, D], in one pass."""
        if not isinstance(self.network, AttentionNetwork):
            return self.natural(batch)[:, position]
        steps = self.attention.step_copy(*self.embed(batch)[:3], position, causal=self.network.causal)
        *_, (copy, _) = steps
        natural = self._read_natural(self.network.decode(copy[:, position]))
        positions = torch.tensor([position], device=natural.device)
        return self._exclude(natural[:, None], batch, positions)[:, 0]

    def mean(self, batch: Batch) -> Tensor:
        """The mean of each family at each position, [B, I, columns]; for items, their probabilities, [B, I, D]."""
        return self.change(self.natural(batch), "mean")

    def summarize(self, batch: Batch) -> Tensor:
        """`mean`; for items the largest probability and the number of its item, [B, I, 2]."""
        mean = self.mean(batch)
        if not self.is_of_items:
            return mean
        return torch.stack([part.cpu().double() for part in mean.max(-1)], -1)  # some devices have no double

    def change(self, natural: Tensor, method: str) -> Tensor:
        """Apply a method of the families, such as "mean", to their numbers, [..., columns] or [..., D]."""
        if self.is_of_items:
            changed: Tensor = getattr(self.families[0], method)(natural)
            return changed
        columns = []
        for family, column in zip(self.families, natural.unbind(-1), strict=True):
            columns.append(getattr(family, method)(column))
        return torch.stack(columns, -1)

    def log_prob(self, batch: Batch) -> Tensor:
        """Log p of each column at each position, [B, I, columns]; 0 at unknown positions. Items are one column.

        Given its context, the columns of a position are independent.
        """
        natural = self.natural(batch)
        if self.is_of_items:
            assert batch.items is not None
            observed: Sequence[Tensor] = [batch.items]
            parameters: Sequence[Tensor] = [natural]
        else:
            assert batch.values is not None
            observed = batch.values.unbind(-1)
            parameters = natural.unbind(-1)
        log_probs = []
        for family, column, values in zip(self.families, parameters, observed, strict=True):
            known = batch.known & ~values.isnan()
            column = column[known]
            values = values[known]
            if family.needs_double and column.device.type != "mps":  # which has no double precision
                column = column.double()
                values = values.double()
            log_prob = family.log_prob(column, values).to(natural.dtype)
            zeros = torch.zeros(known.shape, dtype=natural.dtype, device=known.device)
            log_probs.append(zeros.masked_scatter(known, log_prob))
        return torch.stack(log_probs, -1)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The sum of −log p, and the number of observations."""
        total = -torch.stack([self.log_prob(group).sum() for group in split_lengths(batch)]).sum()
        return total, batch.known.sum().float()

    def _drop_context(self, batch: Batch) -> Batch:
        """While it trains, a batch with some known rows that others do not see; they are predicted as all are."""
        if not self.training or not self.context_dropout:
            return batch
        kept = torch.rand(batch.known.shape) >= self.context_dropout  # one device draws as any other does
        return replace(batch, known=batch.known & kept.to(batch.known.device))

    def _exclude(self, natural: Tensor, batch: Batch, positions: Tensor) -> Tensor:
        """Logits, [B, positions, D], −∞ for items of the context if none may occur again; other numbers as they are."""
        if self.shape.repeats:
            return natural
        assert batch.items is not None
        length = batch.known.shape[1]
        position = torch.arange(length, device=natural.device).expand(batch.known.shape)
        items = torch.where(batch.known, batch.items, 0)
        # The first and the last known position of each item, [B, 1, D].
        first = torch.full_like(natural[:, 0], length, dtype=torch.long)
        first = first.scatter_reduce(1, items, position.where(batch.known, length), "amin").unsqueeze(1)
        is_in_context = first < positions[:, None]
        if not self.network.causal:
            last = torch.full_like(natural[:, 0], -1, dtype=torch.long)
            last = last.scatter_reduce(1, items, position.where(batch.known, -1), "amax").unsqueeze(1)
            is_in_context = is_in_context | (last > positions[:, None])
        return natural.masked_fill(is_in_context, -torch.inf)

    @property
    def attention(self) -> MaskedAttention:
        """The layers of attention. Raises UsageError for a factor model."""
        if not isinstance(self.network, AttentionNetwork):
            raise UsageError(NO_ATTENTION)
        return self.network.attention

    def embed(self, batch: Batch) -> Tokens:
        """The input of the layers of attention."""
        tokens: Tokens = self.network.embed(self._scale(batch))
        return tokens

    def _register_scale(self, name: str, scales: Sequence[tuple[float, float]]) -> None:
        """Keep means and deviations as a buffer, [2, columns]."""
        self.register_buffer(name, torch.tensor(scales).reshape(-1, 2).T, persistent=False)

    def _scale(self, batch: Batch) -> Batch:
        """The batch that the network is given: values and coordinates are near 1."""
        scales = {"values": self._value_scale, "lagged": self._value_scale, "coordinates": self._place_scale}

        def scale(name: str, tensor: Tensor) -> Tensor:
            if name not in scales:
                return tensor
            mean, deviation = scales[name]
            scaled: Tensor = (tensor - mean) / deviation
            return scaled

        return batch if self.is_of_items else batch.apply(scale)

    def _read_natural(self, raw: Tensor) -> Tensor:
        """Natural parameters from the numbers of the network, which products in half precision may have given.

        A number of a value is the mean of a Gaussian in the units of the values, or counts from where it starts.
        """
        if raw.dtype in (torch.bfloat16, torch.float16):
            raw = raw.float()
        if self.is_of_items:
            return raw
        natural = []
        for family, column, numbers in zip(self.families, self.shape.values, raw.unbind(-1), strict=True):
            if isinstance(family, Gaussian):
                mean, deviation = column.scale
                numbers = numbers * deviation + mean
            else:
                numbers = numbers + column.raw_start
            natural.append(family.natural(numbers))
        return torch.stack(natural, -1)


class JointModel(nn.Module):
    """Both parts of equation (2): log p(x, y) = Σ_i log p(x_i | …) + log p(y_i | x, …).

    They share no parameters, so each trains separately, and the best weights of both are the best weights of the sum.
    """

    def __init__(self, parts: Sequence[PartModel]) -> None:
        super().__init__()
        self.parts: Any = nn.ModuleList(parts)


def split_lengths(batch: Batch) -> Iterator[Batch]:
    """A batch; if it has much padding, sequences less than half as long as the longest form a second batch."""
    if batch.known.numel() <= PADDED:  # without a look at the numbers, for which a GPU would be waited for
        yield batch
        return
    lengths, order = measure_lengths(batch.present).sort(descending=True, stable=True)
    start = 0
    while start < len(order):
        longest = int(lengths[start])
        end = int((2 * lengths >= longest).sum())
        if end < len(order) and (len(order) - end) * (longest - int(lengths[end])) <= PADDED:
            end = len(order)
        yield batch.take(order[start:end], longest)
        start = end
