"""A model of one part or both, made from options and what the training data are: networks, families, and their loss."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from scipy.spatial import distance_matrix
from sklearn.metrics.pairwise import haversine_distances
from torch import Tensor, nn

from attngeo.bounds.machine import require_memory
from attngeo.errors import TableError, UsageError
from attngeo.estimators.efa.attention import AttentionShape, MaskedAttention, measure_lengths
from attngeo.estimators.efa.columns import TABLE, TRAINING, measure_scale
from attngeo.estimators.efa.families import FAMILIES, Categorical, ExponentialFamily, Gaussian, parse_family
from attngeo.estimators.efa.networks import (
    Batch,
    ItemAttention,
    ItemFactors,
    SpatialFactors,
    Tokens,
    ValueAttention,
    ValueFactors,
    ValueShape,
    start_like_keras,
)
from attngeo.estimators.efa.options import Architecture, EfaOptions
from attngeo.estimators.efa.sequences import (
    FARTHEST,
    MOST_LEVELS,
    DataShape,
    Sequences,
    ValueColumn,
    check_support,
)

NO_ATTENTION = "a factor model has no attention; fit one that has (attngeo efa fit --model efa)"
NO_CONTEXTS = "a factor model of values has no vectors of contexts; give models of items, or of model efa"
# Positions of a batch that may be padding.
PADDED = 2**12
# Coordinates of one place in two tables differ by less than this share of the largest one in their column.
SAME_PLACE = 1e-6
# The deviation, as a share of their mean, of numbers whose differences single precision rounds by a hundredth or more.
TOO_CLOSE = 2.0**-17
# Radius of the Earth in km.
RADIUS = 6371.0


class PartModel(nn.Module):
    """A network with the families of what it predicts: `model(batch)` is (−Σ log p, number of observations).

    families: one for each column of values, or that of items.
    """

    def __init__(self, network: nn.Module, families: Sequence[ExponentialFamily], shape: DataShape) -> None:
        super().__init__()
        self.network, self.shape = network, shape
        self.families: Any = nn.ModuleList(families)
        self.is_of_items = shape.part == "items"
        self._places: Tensor
        self._values: Tensor
        scales = {"_places": shape.place_scale, "_values": [column.scale for column in shape.values]}
        for name, pairs in scales.items():
            self.register_buffer(name, torch.tensor(pairs).reshape(-1, 2).T, persistent=False)

    @property
    def parts(self) -> list[PartModel]:
        """The model itself, as one of `JointModel`."""
        return [self]

    def check(self, sequences: Sequences, values: Sequence[str], source: str) -> None:
        """Raise TableError for values that their family cannot give, or for other places.

        values, source: the columns of values, none if they are not read; and their table.
        """
        if self.shape.places:
            _check_places(sequences, self.shape.places)
        if not self.is_of_items and values:
            check_support(self.families, sequences, values, source)

    def batch(self, sequences: Sequences) -> Batch:
        """What the network reads of these sequences."""
        shape = self.shape
        counts: dict[str, Any] = dict.fromkeys(("categories", "numbers"), shape.covariates)
        if self.is_of_items:
            counts |= {"items": shape.items}
        else:
            counts |= {"values": 1, "items": shape.items, "coordinates": shape.coordinates, "lagged": shape.lags}
        return sequences.batch(*(name for name, count in counts.items() if count))

    def natural(self, batch: Batch) -> Tensor:
        """The natural parameters at each position, [B, I, columns]; for items, their logits, [B, I, D]."""
        return self._read_natural(self.network(self._scale(batch)))

    def read(self, batch: Batch) -> Tensor:
        """The vector of each position whose linear map gives its natural parameters, [B, I, n]: H(x) of items, K(y) of
        values (section 5.1). Raises UsageError for a factor model of values.
        """
        network = self.network
        if not isinstance(network, ItemAttention | ItemFactors | ValueAttention):
            raise UsageError(NO_CONTEXTS)
        vectors = network.read(self._scale(batch))
        head = network.head if isinstance(network, ValueAttention) else None
        return vectors if head is None else head[:-1](vectors)

    def natural_at(self, position: int, batch: Batch) -> Tensor:
        """The same at one position, [B, columns] or [B, D]; by one pass."""
        if not isinstance(self.network, ItemAttention | ValueAttention):
            return self.natural(batch)[:, position]
        tokens = self.embed(batch)
        read = self.attention.read_one(*tokens[:3], position, causal=self.network.causal)
        return self._read_natural(self.network.decode(read))

    def mean(self, batch: Batch) -> Tensor:
        """The mean of each family at each position, [B, I, columns]; for items, their probabilities, [B, I, D]."""
        return self.change(self.natural(batch), "mean")

    def change(self, natural: Tensor, method: str) -> Tensor:
        """A method of the families, such as "mean", of their numbers, [..., columns] or [..., D]."""
        if self.is_of_items:
            changed: Tensor = getattr(self.families[0], method)(natural)
            return changed
        pairs = zip(self.families, natural.unbind(-1), strict=True)
        return torch.stack([getattr(family, method)(column) for family, column in pairs], -1)

    def log_prob(self, batch: Batch) -> Tensor:
        """Log p of each column at each position, [B, I, columns]; 0 for those that are not known. Items are one column.

        Given its context, the columns of a position are independent.
        """
        observed = batch.items[..., None] if self.is_of_items and batch.items is not None else batch.values
        assert observed is not None
        natural = self.natural(batch)
        columns = [natural] if self.is_of_items else natural.unbind(-1)
        log_probs = []
        for family, parameters, values in zip(self.families, columns, observed.unbind(-1), strict=True):
            known = batch.known & ~values.isnan()
            log_prob = torch.zeros(known.shape, dtype=natural.dtype, device=known.device)
            chosen, values = parameters[known], values[known]
            if family.needs_double and chosen.device.type != "mps":  # which has no double precision
                chosen, values = chosen.double(), values.double()
            log_probs.append(log_prob.masked_scatter(known, family.log_prob(chosen, values).to(log_prob.dtype)))
        return torch.stack(log_probs, -1)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The sum of −log p, and the number of observations."""
        total = -torch.stack([self.log_prob(part).sum() for part in split_lengths(batch)]).sum()
        return total, batch.known.sum().float()

    @property
    def attention(self) -> MaskedAttention:
        """The layers of attention. Raises UsageError for a factor model."""
        attention = getattr(self.network, "attention", None)
        if not isinstance(attention, MaskedAttention):
            raise UsageError(NO_ATTENTION)
        return attention

    def embed(self, batch: Batch) -> Tokens:
        """The input of the layers of attention. Raises UsageError for a factor model."""
        if not isinstance(self.network, ItemAttention | ValueAttention):
            raise UsageError(NO_ATTENTION)
        return self.network.embed(self._scale(batch))

    def _scale(self, batch: Batch) -> Batch:
        """What the network is given: values and coordinates near 1."""
        if self.is_of_items:
            return batch

        def scale(name: str, part: Tensor) -> Tensor:
            if name in ("values", "lagged"):
                return (part - self._values[0]) / self._values[1]
            return (part - self._places[0]) / self._places[1] if name == "coordinates" else part

        return batch.apply(scale)

    def _read_natural(self, raw: Tensor) -> Tensor:
        """Natural parameters from the numbers of the network, which products in half precision may have given.

        A number of a value is the mean of a Gaussian in the units of the values, or counts from where it starts.
        """
        raw = raw.float() if raw.dtype in (torch.bfloat16, torch.float16) else raw
        if self.is_of_items:
            return raw
        moved = []
        for family, column, number in zip(self.families, self.shape.values, raw.unbind(-1), strict=True):
            is_gaussian, (mean, deviation) = isinstance(family, Gaussian), column.scale
            moved.append(family.natural(number * deviation + mean if is_gaussian else number + column.raw_start))
        return torch.stack(moved, -1)


class JointModel(nn.Module):
    """Both parts of equation (2), which share nothing, fitted by one objective.

    log p(x, y) = Σ_i log p(x_i | …) + log p(y_i | x, …)
    """

    def __init__(self, parts: Sequence[PartModel]) -> None:
        super().__init__()
        self.parts: Any = nn.ModuleList(parts)

    def forward(self, *batches: Batch) -> tuple[Tensor, Tensor]:
        """The sum of −log p of all parts, and the number of observations. batches: one for each part."""
        losses, counts = zip(*(part(batch) for part, batch in zip(self.parts, batches, strict=True)), strict=True)
        return torch.stack(losses).sum(), counts[0]


def split_lengths(batch: Batch) -> Iterator[Batch]:
    """A batch; sequences less than half as long as the longest one apart, if there is much padding."""
    if batch.known.numel() <= PADDED:  # without a look at the numbers, for which a GPU would be waited for
        yield batch
        return
    measured, order = measure_lengths(batch.present).sort(descending=True, stable=True)
    lengths = measured.tolist()
    while lengths:
        longest, count = lengths[0], len(lengths)
        shorter = [at for at in range(count) if 2 * lengths[at] < longest]
        if shorter and (count - shorter[0]) * (longest - lengths[shorter[0]]) > PADDED:
            count = shorter[0]
        yield _cut(batch, order[:count], longest)
        lengths, order = lengths[count:], order[count:]


def _cut(batch: Batch, rows: Tensor, length: int) -> Batch:
    """Some sequences of a batch, up to a length."""
    return batch.apply(lambda name, part: part[rows, :, :length] if name == "lagged" else part[rows, :length])


def describe_data(
    options: EfaOptions, architecture: Architecture, families: Sequence[ExponentialFamily], known: DataShape,
    tables: Sequence[Sequences],
) -> DataShape:  # fmt: skip
    """What a model has to know of training data (the first) and validation data. Raises TableError, UsageError.

    known: the part, the number of items, the covariates and the column of positions.
    """
    train = tables[0]
    trained = max(int(table.lengths.max()) for table in tables)
    if architecture.longest is not None and trained > architecture.longest:
        raise UsageError(f"$longest is {architecture.longest}, but a sequence has {trained} positions", "longest")
    shape: dict[str, Any] = {"trained": trained, "longest": architecture.longest or trained}
    if known.part == "items":
        return known.model_copy(update=shape)
    assert train.values is not None
    if options.model == "fm" and not known.items:
        shape["places"] = _list_places(train)
        for table in tables:
            _check_places(table, shape["places"])
    has_levels = architecture.embedding == "truncated"
    if has_levels:
        largest = max(int(table.values.nan_to_num().max().clamp(min=0)) for table in tables if table.values is not None)
        if largest > MOST_LEVELS:
            raise UsageError(
                f"$embedding is truncated, one vector for each whole number, but values go up to {largest:,}, expected "
                f"at most {MOST_LEVELS:,}; choose network",
                "embedding",
            )
        shape["levels"] = largest + 1
    names = options.coordinates
    shape["values"] = tuple(
        _describe_values(column, name, family, options, has_levels=has_levels)
        for column, name, family in zip(train.values[train.known].T, options.families, families, strict=True)
    )
    shape["place_scale"] = ((0.0, 1.0),) * len(names)
    if options.standardise and train.coordinates is not None:
        shape["place_scale"] = tuple(_measure_scales(train.coordinates[train.known], names))
    return known.model_copy(update=shape | {"coordinates": len(names), "lags": len(options.lags)})


def _describe_values(
    values: Tensor, name: str, family: ExponentialFamily, options: EfaOptions, *, has_levels: bool
) -> ValueColumn:
    """A column of the values of training rows, [rows], NaN if a row lacks one. Raises TableError if all do."""
    values = values[~values.isnan()]
    if not len(values):
        raise TableError("has no values, expected some in training rows", table=TRAINING, column=name)
    scale = _measure_scales(values[:, None], [name])[0]
    column: dict[str, Any] = {"variance": scale[1] ** 2}
    is_scaled = options.standardise and options.model == "efa"
    if is_scaled and not has_levels:
        column["scale"] = scale
    if is_scaled and not isinstance(family, Gaussian):  # which has units
        raw = float(family.find_raw(family.sufficient(values.double()).double().mean()))
        column["raw_start"] = raw if abs(raw) < FARTHEST else 0.0
    return ValueColumn(**column)


def _list_places(sequences: Sequences) -> tuple[tuple[float, ...], ...]:
    """The coordinates of the positions of the first sequence."""
    if sequences.coordinates is None:
        raise UsageError("a factor model of values requires items or coordinates; name their columns")
    return tuple(tuple(map(float, place)) for place in sequences.coordinates[: sequences.starts[1]])


def _measure_scales(numbers: Tensor, columns: Sequence[str]) -> list[tuple[float, float]]:
    """Mean and deviation of each of n numbers, [rows, n]; a deviation of 0 counts as 1.

    Raises TableError for numbers that are too close to each other for single precision, in which models compute.
    """
    scales = []
    for name, column in zip(columns, numbers.double().numpy().T, strict=True):
        center, deviation = measure_scale(column)
        if 0 < deviation < TOO_CLOSE * abs(center):
            raise TableError(
                f"column {name!r} has a mean of {center:g} and a deviation of {deviation:g}, which single "
                "precision cannot tell apart; subtract a constant from the column, in all tables",
                table=TRAINING,
                column=name,
            )
        scales.append((center, deviation or 1.0))
    return scales


def _check_places(sequences: Sequences, places: tuple[tuple[float, ...], ...]) -> None:
    """Raise TableError unless each sequence has all these places, in this order: whose neighbours are known."""
    wanted = torch.tensor(places, dtype=torch.float64)
    stated = sequences.coordinates
    near = SAME_PLACE * wanted.abs().amax(0)  # in single precision they differ by less
    if (
        stated is None
        or (sequences.lengths != len(places)).any()
        or not (sequences.present.all() and bool(((stated.reshape(-1, *wanted.shape) - wanted).abs() <= near).all()))
    ):
        raise TableError(
            f"a factor model of places requires its {len(places)} places in each sequence, in one order; give "
            "all rows, with a column that orders them",
            table=TABLE,
        )


def make_families(options: EfaOptions, own: ExponentialFamily | None = None) -> list[ExponentialFamily]:
    """The family of each column of values. Raises UsageError.

    own: in place of the one that has its text, and of those that are not of attngeo.
    """
    return [
        copy.deepcopy(own)
        if own is not None and (text == own.text or text.partition(":")[0] not in FAMILIES)
        else parse_family(text, "family" if text == options.family else "value")
        for text in options.families.values()
    ]


def make_model(
    options: EfaOptions, architecture: Architecture, families: Sequence[ExponentialFamily], shape: DataShape
) -> PartModel:
    """A model whose parameters follow from torch's random numbers. Raises UsageError for sizes that do not fit.

    families: of values, parts of the model; that of items is categorical.
    """
    network = _make_network(options, architecture, shape)
    if shape.part == "items":
        families = [Categorical()]
    for family, column in zip(families, shape.values, strict=False):
        if isinstance(family, Gaussian) and family.log_variance is not None:
            nn.init.constant_(family.log_variance, math.log(column.variance))
    model = PartModel(network, families, shape)
    if architecture.init == "keras":
        start_like_keras(model.network)
    return model


def _make_network(options: EfaOptions, architecture: Architecture, shape: DataShape) -> nn.Module:
    causal = options.causal
    positions = shape.longest if options.gives_vectors(options.position or shape.position) else 0
    pooling: dict[str, Any] = {
        "causal": causal, "pooling": architecture.pooling, "start": architecture.start, "window": options.window
    }  # fmt: skip
    if shape.part == "items":
        if options.model == "fm":
            return ItemFactors(shape.items, options.width, **pooling)
        layers = _shape_attention(options, architecture, options.width)
        covariates = shape.covariate_sizes
        return ItemAttention(shape.items, layers, positions=positions, causal=causal, covariates=covariates)
    if options.model == "efa":
        tokens = ValueShape(
            size=options.width, items=shape.items, both=architecture.both, coordinates=shape.coordinates,
            covariates=shape.covariate_sizes, columns=len(shape.values), lags=shape.lags, value=architecture.embedding,
            levels=shape.levels, positions=positions, join=architecture.join, head=tuple(architecture.head),
        )  # fmt: skip
        return ValueAttention(tokens, _shape_attention(options, architecture, tokens.attended), causal=causal)
    if shape.items:
        return ValueFactors(shape.items, options.width, **pooling)
    if causal:
        raise UsageError("$direction is 'uni', expected 'bi' for a factor model: places have no order", "direction")
    places = np.array(shape.places)
    # In double precision: the differences in each coordinate, and what is computed from them.
    require_memory(8 * (4 + shape.coordinates) * len(places) ** 2, f"the distances of {len(places):,} places")
    distances = measure_distances(places, options.distance)
    return SpatialFactors(torch.as_tensor(distances), shape.coordinates, options.width, neighbours=options.neighbours)


def _shape_attention(options: EfaOptions, architecture: Architecture, width: int) -> AttentionShape:
    """The layers. width: of the vectors that they get."""
    same = {name: getattr(architecture, name) for name in ("head_size", "scale", "residual", "norm", "feed_forward")}
    return AttentionShape(width=width, layers=options.n_layers, heads=options.n_heads, bias=True, **same)


def measure_distances(places: np.ndarray, kind: str) -> np.ndarray:
    """Distances between places, [I, I]; places: [I, dimensions].

    kind: "euclidean"; or "haversine" for great-circle distances in km on a sphere of radius 6,371 km, whose places have
    latitude and longitude in degrees. Raises TableError for degrees that no place has, UsageError for other dimensions.
    """
    if kind == "euclidean":
        return np.asarray(distance_matrix(places, places))
    if places.shape[1] != 2:
        raise UsageError(f"{places.shape[1]} coordinates, expected latitude and longitude; or set distance euclidean")
    for name, degrees, most in zip(("latitude", "longitude"), places.T, (90, 360), strict=True):
        if np.abs(degrees).max() > most:
            wrong = degrees[np.abs(degrees).argmax()]
            raise TableError(
                f"a place has the {name} {wrong:g}, expected degrees from -{most} to {most}; name the columns of "
                "latitude and longitude in this order, or set distance to euclidean"
            )
    return RADIUS * np.asarray(haversine_distances(np.radians(places)))
