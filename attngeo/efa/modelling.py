"""A model of one part, made from options and what the training data are: a network, a family, and the loss of both."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from attngeo.bounds import require_memory
from attngeo.efa.attention import AttentionShape, MaskedAttention, measure_lengths
from attngeo.efa.description import DataShape, check_places
from attngeo.efa.distances import measure_distances, measure_straight
from attngeo.efa.factors import ItemFactors, SpatialFactors, ValueFactors
from attngeo.efa.families import Categorical, ExponentialFamily, Gaussian
from attngeo.efa.family_names import parse_family
from attngeo.efa.network import ItemAttention, Observations, Tokens, ValueAttention, ValueShape
from attngeo.efa.options import ModelOptions
from attngeo.efa.sequences import Sequences, check_levels, check_support
from attngeo.efa.starts import start_like_keras
from attngeo.errors import UsageError

NO_ATTENTION = "a factor model has no attention; fit one with model efa"
# What a batch of each part is made of, in this order; those that the data lack are left out.
ITEM_FIELDS = ("items", "known")
VALUE_FIELDS = ("values", "known", "items", "coordinates", "lagged")
# Positions of a batch that may be padding.
PADDED = 2**12


class PartModel(nn.Module):
    """A network with the family of what it predicts: `model(*tensors)` is (−Σ log p, number of observations).

    fields: the names of the tensors, of `ITEM_FIELDS` or `VALUE_FIELDS`.
    """

    def __init__(self, network: nn.Module, family: ExponentialFamily, shape: DataShape, fields: Sequence[str]) -> None:
        super().__init__()
        self.network, self.family, self.shape, self.fields = network, family, shape, tuple(fields)
        self.is_of_items = shape.part == "items"
        mean, deviation = shape.value_scale
        self._scale = (mean, deviation)
        self._places: Tensor
        self.register_buffer("_places", torch.tensor(shape.place_scale).reshape(-1, 2).T, persistent=False)

    def check(self, sequences: Sequences, value: str, source: str) -> None:
        """What `check_places` and `check_values` do."""
        self.check_places(sequences)
        self.check_values(sequences, value, source)

    def check_values(self, sequences: Sequences, value: str, source: str) -> None:
        """Raise TableError for values that the family cannot give, or the embedding cannot take.

        value, source: their column and table.
        """
        if not self.is_of_items:
            check_support(self.family, sequences, value, source)
            if isinstance(self.network, ValueAttention) and self.network.shape.value == "levels":
                check_levels(sequences, value, source)

    def check_places(self, sequences: Sequences) -> None:
        """Raise TableError for places whose neighbours are not known, if the model is of places."""
        if self.shape.places:
            check_places(sequences, self.shape.places)

    def tensors(self, sequences: Sequences) -> tuple[Tensor, ...]:
        """What a batch of these sequences is made of, padded to the longest one; numbers in single precision."""
        padded = {name: sequences.pad(getattr(sequences, name)) for name in self.fields}
        if "lagged" in padded:
            padded["lagged"] = padded["lagged"].transpose(1, 2)
        return tuple(each.float() if each.is_floating_point() else each for each in padded.values())

    def natural(self, *tensors: Tensor) -> Tensor:
        """The natural parameter at each position, [B, I]; for items, their logits, [B, I, D]."""
        given = dict(zip(self.fields, tensors, strict=True))
        if self.is_of_items:
            logits: Tensor = self.network(given["items"], given["known"])
            return _at_least_single(logits)
        return self.family.natural(_at_least_single(self._read_values(given)))

    def natural_at(self, position: int, *tensors: Tensor) -> Tensor:
        """The same at one position, [B] or [B, D]; by one pass."""
        if not isinstance(self.network, ItemAttention | ValueAttention):
            return self.natural(*tensors)[:, position]
        read = self.attention.read_one(self.embed(*tensors), position, causal=self.network.causal)
        raw = _at_least_single(self.network.decode(read))
        return raw if self.is_of_items else self.family.natural(self._in_units(raw))

    def mean(self, *tensors: Tensor) -> Tensor:
        """The mean of the family at each position, [B, I]; for items, their probabilities, [B, I, D]."""
        return self.family.mean(self.natural(*tensors))

    def mean_at(self, position: int, *tensors: Tensor) -> Tensor:
        """The same at one position, [B] or [B, D]; by one pass."""
        return self.family.mean(self.natural_at(position, *tensors))

    def log_prob(self, *tensors: Tensor) -> Tensor:
        """Log p at each position, [B, I]; 0 at unknown ones."""
        known, observed = tensors[self.fields.index("known")], tensors[0]
        natural = self.natural(*tensors)
        found = torch.zeros(known.shape, dtype=natural.dtype, device=known.device)
        asked, observed = natural[known], observed[known]
        if self.family.needs_double and asked.device.type != "mps":  # which has no double precision
            asked, observed = asked.double(), observed.double()
        return found.masked_scatter(known, self.family.log_prob(asked, observed).to(found.dtype))

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of −log p, and the number of observations."""
        total = -torch.stack([self.log_prob(*some).sum() for some in self._part_lengths(tensors)]).sum()
        return total, tensors[self.fields.index("known")].sum().float()

    def _part_lengths(self, tensors: tuple[Tensor, ...]) -> Iterator[tuple[Tensor, ...]]:
        """The tensors of a batch; those less than half as long as the longest one apart, if there is much padding."""
        known = tensors[self.fields.index("known")]
        if known.numel() <= PADDED:  # without a look at the numbers, for which a GPU would be waited for
            yield tensors
            return
        found, order = measure_lengths(known).sort(descending=True, stable=True)
        lengths = found.tolist()
        while lengths:
            longest, count = lengths[0], len(lengths)
            shorter = [at for at in range(count) if 2 * lengths[at] < longest]
            if shorter and (count - shorter[0]) * (longest - lengths[shorter[0]]) > PADDED:
                count = shorter[0]
            some = (each[order[:count]] for each in tensors)
            yield tuple(
                each[:, :, :longest] if name == "lagged" else each[:, :longest]
                for name, each in zip(self.fields, some, strict=True)
            )
            lengths, order = lengths[count:], order[count:]

    @property
    def attention(self) -> MaskedAttention:
        """The layers of attention. Raises UsageError for a factor model."""
        found = getattr(self.network, "attention", None)
        if not isinstance(found, MaskedAttention):
            raise UsageError(NO_ATTENTION)
        return found

    def observe(self, given: dict[str, Tensor]) -> Observations:
        """What the value network is given, scaled."""
        mean, deviation = self._scale
        values, lagged = ((each - mean) / deviation if each is not None else None
                          for each in (given["values"], given.get("lagged")))  # fmt: skip
        coordinates = given.get("coordinates")
        if coordinates is not None:
            coordinates = (coordinates - self._places[0]) / self._places[1]
        assert values is not None
        return Observations(values, given["known"], given.get("items"), coordinates, lagged)

    def embed(self, *tensors: Tensor) -> Tokens:
        """The input of the layers of attention. Raises UsageError for a factor model."""
        given = dict(zip(self.fields, tensors, strict=True))
        if isinstance(self.network, ItemAttention):
            return self.network.embed(given["items"], given["known"])
        if isinstance(self.network, ValueAttention):
            return self.network.embed(self.observe(given))
        raise UsageError(NO_ATTENTION)

    def _read_values(self, given: dict[str, Tensor]) -> Tensor:
        """A real number for each position: the mean for a Gaussian, in the units of the values."""
        seen = self.observe(given)
        raw: Tensor
        if isinstance(self.network, ValueAttention):
            raw = self.network(seen)
        elif isinstance(self.network, SpatialFactors):
            assert seen.coordinates is not None
            raw = self.network(seen.values, seen.coordinates[0])
        else:
            assert isinstance(self.network, ValueFactors)
            assert seen.items is not None
            raw = self.network(seen.values, seen.known, seen.items)
        return self._in_units(raw)

    def _in_units(self, raw: Tensor) -> Tensor:
        """The mean of a Gaussian in the units of the values; other numbers from where they start."""
        mean, deviation = self._scale
        return raw * deviation + mean if isinstance(self.family, Gaussian) else raw + self.shape.raw_start


def _at_least_single(numbers: Tensor) -> Tensor:
    """Numbers that products in half precision gave, in single precision; others as they are."""
    return numbers.float() if numbers.dtype in (torch.bfloat16, torch.float16) else numbers


def make_model(options: ModelOptions, shape: DataShape) -> PartModel:
    """A model whose parameters follow from torch's random numbers. Raises UsageError for sizes that do not fit."""
    model = _make_part(options, shape)
    if options.init == "keras":
        start_like_keras(model.network)
    return model


def _make_part(options: ModelOptions, shape: DataShape) -> PartModel:
    causal = options.direction == "uni"
    fields = [
        name for name in (ITEM_FIELDS if shape.part == "items" else VALUE_FIELDS)
        if not (name == "items" and not shape.items) and not (name == "coordinates" and not shape.coordinates)
        and not (name == "lagged" and not shape.lags)
    ]  # fmt: skip
    positions = shape.longest if options.gives_vectors(options.position or shape.position) else 0
    network: nn.Module
    if shape.part == "items":
        if options.model == "fm":
            network = ItemFactors(
                shape.items, options.width, causal=causal, pooling=options.pooling, start=options.start
            )
        else:
            layers = _shape_attention(options, options.width)
            network = ItemAttention(shape.items, layers, positions=positions, causal=causal)
        return PartModel(network, Categorical(), shape, fields)
    family = parse_family(options.family)
    if isinstance(family, Gaussian) and family.log_variance is not None:
        nn.init.constant_(family.log_variance, math.log(shape.variance))
    if options.model == "efa":
        tokens = ValueShape(
            items=shape.items, item_size=options.width, both=options.both, coordinates=shape.coordinates,
            coordinate_size=options.width, lags=shape.lags, lag_size=options.width, value=options.embedding,
            levels=shape.levels, value_size=options.width, positions=positions, join=options.join,
            width=options.width, head=options.head_units if options.readout == "network" else None,
        )  # fmt: skip
        network = ValueAttention(tokens, _shape_attention(options, tokens.attended), causal=causal)
    elif shape.items:
        network = ValueFactors(shape.items, options.width, causal=causal, pooling=options.pooling, start=options.start)
    else:
        network = _make_spatial(options, shape)
    return PartModel(network, family, shape, fields)


def _shape_attention(options: ModelOptions, width: int) -> AttentionShape:
    """The layers. width: of the vectors that they get, which a value as a number makes one larger than its parts."""
    size = options.head_size
    if size is None and options.width % options.heads == 0:
        size = width // options.heads
    return AttentionShape(
        width=width, layers=options.layers, heads=options.heads, head_size=size, kind=options.kind,
        scale=options.scale, residual=options.residual, bias=True, norm=options.norm, feed_forward=options.feed_forward,
    )  # fmt: skip


def _make_spatial(options: ModelOptions, shape: DataShape) -> SpatialFactors:
    if options.direction == "uni":
        raise UsageError("direction is 'uni', expected 'bi' for a factor model of places, which have no order")
    if options.distance == "haversine" and shape.coordinates != 2:
        raise UsageError(f"{shape.coordinates} coordinates, expected latitude and longitude; or set distance euclidean")
    places = np.array(shape.places)
    # In double precision: the differences in each coordinate, and what is computed from them.
    require_memory(8 * (4 + shape.coordinates) * len(places) ** 2, f"the distances of {len(places):,} places")
    distances = measure_distances(places) if options.distance == "haversine" else measure_straight(places)
    return SpatialFactors(torch.as_tensor(distances), shape.coordinates, options.width, neighbours=options.neighbours)
