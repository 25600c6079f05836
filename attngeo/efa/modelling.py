"""A model of one part, made from options and what the training data are: a network, a family, and the loss of both."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attngeo.efa.attention import AttentionShape, MaskedAttention
from attngeo.efa.factors import ItemFactors, SpatialFactors, ValueFactors
from attngeo.efa.families import Categorical, ExponentialFamily, Gaussian
from attngeo.efa.family_names import parse_family
from attngeo.efa.network import ItemAttention, Observations, Tokens, ValueAttention, ValueShape
from attngeo.efa.options import ModelOptions
from attngeo.efa.sequences import Sequences
from attngeo.efa.starts import start_like_keras
from attngeo.errors import TableError, UsageError

NO_ATTENTION = "a factor model has no attention; fit one with model efa"
# The sequences of a table in parts, read again at each call.
Parts = Callable[[], Iterable[Sequences]]
# Where a network's number for a mean is looked for, from 0.
FARTHEST = 30.0
# Coordinates of one place in two tables differ by less than this share of the largest one in their column.
SAME_PLACE = 1e-6
# Of the Earth, in km.
RADIUS = 6371.0
# What a batch of each part is made of, in this order; those that the data lack are left out.
ITEM_FIELDS = ("items", "known")
VALUE_FIELDS = ("values", "known", "items", "coordinates", "lagged")


@dataclass(frozen=True, kw_only=True)
class DataShape:
    """What a model has to know of its data; JSON can say all of it.

    part: "items" or "values". items: how many. longest: positions. coordinates, lags: how many. levels: values from 0,
    for one vector for each. value_scale, place_scale: mean and deviation of values, and of each coordinate. variance:
    of values, at which a learned one starts. raw_start: what is added to the number that the network gives a family
    other than the Gaussian, which begins near 0. places: coordinates of the positions, for the spatial factor model.
    position: the column of positions that training rows have, if their order matters.
    """

    part: str
    items: int = 0
    longest: int = 0
    coordinates: int = 0
    lags: int = 0
    levels: int = 0
    value_scale: tuple[float, float] = (0.0, 1.0)
    variance: float = 1.0
    raw_start: float = 0.0
    place_scale: tuple[tuple[float, float], ...] = ()
    places: tuple[tuple[float, ...], ...] = ()
    position: str | None = None


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

    def tensors(self, sequences: Sequences) -> tuple[Tensor, ...]:
        """What a batch of these sequences is made of; numbers in single precision."""
        found = (getattr(sequences, name) for name in self.fields)
        return tuple(each.float() if each.is_floating_point() else each for each in found)

    def trim(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The tensors of a batch without the positions at the end that none of its sequences has."""
        known = tensors[self.fields.index("known")]
        length = max(int(known.sum(1).max()), 1) if len(known) else 1
        return tuple(
            each[:, :, :length] if name == "lagged" else each[:, :length]
            for name, each in zip(self.fields, tensors, strict=True)
        )

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
        return found.masked_scatter(known, self.family.log_prob(natural[known], observed[known]).to(found.dtype))

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of −log p, and the number of observations."""
        return -self.log_prob(*tensors).sum(), tensors[self.fields.index("known")].sum().float()

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


def describe_data(options: ModelOptions, part: str, items: int, data: Sequence[Parts]) -> DataShape:
    """What a model has to know of training data (the first) and validation data. Raises TableError, UsageError.

    data: functions that give the sequences in parts; they are read several times.
    """
    train = data[0]
    longest = max(int(each.known.sum(1).max()) for parts in data for each in parts())
    if options.longest is not None and longest > options.longest:
        raise UsageError(f"longest is {options.longest}, but a sequence has {longest} positions; shorten it")
    longest = options.longest or longest
    if part == "items":
        return DataShape(part=part, items=items, longest=longest)
    scale = _measure_scale(train, lambda each: each.values)[0]
    variance = scale[1] ** 2
    places = [(0.0, 1.0)] * len(options.coordinate_names)
    if options.standardise and options.coordinate_names:
        places = _measure_scale(train, lambda each: each.coordinates)
    is_spatial = options.model == "fm" and not items
    starts_at_mean = options.standardise and options.model == "efa"
    return DataShape(
        part=part, items=items, longest=longest, coordinates=len(options.coordinate_names), lags=len(options.lag_names),
        levels=_count_levels(data) if options.embedding == "levels" else 0,
        value_scale=scale if _scales_values(options) else (0.0, 1.0), variance=variance,
        raw_start=_find_raw(parse_family(options.family), scale[0]) if starts_at_mean else 0.0,
        place_scale=tuple(places), places=_require_places(data) if is_spatial else (),
    )  # fmt: skip


def _find_raw(family: ExponentialFamily, mean: float) -> float:
    """The number of a network for which the family has a mean; 0 if none has, and for a Gaussian, which has units."""
    from scipy.optimize import brentq

    def above(raw: float) -> float:
        return float(family.mean(family.natural(torch.tensor(raw, dtype=torch.float64))).detach()) - mean

    if isinstance(family, Gaussian) or not above(-FARTHEST) < 0 < above(FARTHEST):
        return 0.0
    return float(brentq(above, -FARTHEST, FARTHEST))


def _scales_values(options: ModelOptions) -> bool:
    return options.standardise and options.model == "efa" and options.embedding != "levels"


def _measure_scale(parts: Parts, read: Callable[[Sequences], Tensor | None]) -> list[tuple[float, float]]:
    """Mean and deviation of each of the numbers that known positions have; a deviation of 0 counts as 1."""
    sums: Tensor | None = None
    for each in parts():
        found = read(each)
        assert found is not None
        numbers = found[each.known].double().reshape(int(each.known.sum()), -1)
        if sums is None:
            first = numbers.mean(0)  # so that squares of large numbers are not subtracted from each other
            sums = torch.zeros(3, numbers.shape[1], dtype=torch.float64)
        around = numbers - first
        sums += torch.stack([torch.full_like(first, len(numbers)), around.sum(0), around.square().sum(0)])
    assert sums is not None
    mean = sums[1] / sums[0]
    deviation = (sums[2] / sums[0] - mean.square()).clamp(min=0).sqrt()
    return [(float(m), float(d) or 1.0) for m, d in zip(first + mean, deviation, strict=True)]


def _count_levels(data: Sequence[Parts]) -> int:
    """The number of whole parts from 0 of all values."""
    largest = (each.values.max() for parts in data for each in parts() if each.values is not None)
    return 1 + max(int(each.clamp(min=0)) for each in largest)


def _require_places(data: Sequence[Parts]) -> tuple[tuple[float, ...], ...]:
    """The coordinates of the positions, which must be the same in all sequences."""
    first = next(iter(data[0]())).coordinates
    if first is None:
        raise UsageError("a factor model of values requires items or coordinates; name their columns")
    places = tuple(tuple(map(float, place)) for place in first[0])
    for each in (each for parts in data for each in parts()):
        check_places(each, places)
    return places


def check_places(sequences: Sequences, places: tuple[tuple[float, ...], ...]) -> None:
    """Raise TableError unless each sequence has all these places, in this order: whose neighbours are known."""
    wanted = torch.tensor(places, dtype=torch.float64)
    found = sequences.coordinates
    near = SAME_PLACE * wanted.abs().amax(0)  # in single precision they differ by less
    if (
        found is None
        or found.shape[1:] != wanted.shape
        or not (sequences.known.all() and bool(((found - wanted).abs() <= near).all()))
    ):
        raise TableError(
            f"a factor model of places requires its {len(places)} places in each sequence, in one order; give all "
            "rows, with a column that orders them"
        )


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
    positions = shape.longest if options.order else 0
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
    if isinstance(family, Gaussian) and isinstance(family.log_variance, nn.Parameter):
        nn.init.constant_(family.log_variance, math.log(shape.variance))
    if options.model == "efa":
        tokens = ValueShape(
            items=shape.items, item_size=options.width, both=options.both, coordinates=shape.coordinates,
            coordinate_size=options.width, lags=shape.lags, lag_size=options.width, value=options.embedding,
            levels=shape.levels, value_size=options.width, positions=positions, join=options.join,
            width=options.width, head=options.head_units,
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
    distances = measure_distances(places) if options.distance == "haversine" else _measure_straight(places)
    return SpatialFactors(torch.as_tensor(distances), shape.coordinates, options.width, neighbours=options.neighbours)


def measure_distances(places: np.ndarray) -> np.ndarray:
    """Great-circle distances in km between places, [I, I]; places: latitude and longitude in degrees, [I, 2].

    By the haversine formula on a sphere of radius 6,371 km.
    """
    latitude, longitude = np.radians(places).T
    between = [each[:, None] - each for each in (latitude, longitude)]
    cosines = np.cos(latitude)[:, None] * np.cos(latitude)
    half: Any = np.sin(between[0] / 2) ** 2 + cosines * np.sin(between[1] / 2) ** 2
    found: np.ndarray = 2 * RADIUS * np.arcsin(np.sqrt(half))
    return found


def _measure_straight(places: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.sqrt(((places[:, None] - places) ** 2).sum(-1))
    return found
