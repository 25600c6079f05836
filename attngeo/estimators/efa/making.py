"""Models with parameters drawn at random, made from options and the shape of training data."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.spatial import distance_matrix
from sklearn.metrics.pairwise import haversine_distances
from torch import nn

from attngeo.bounds.machine import require_memory
from attngeo.errors import TableError, UsageError
from attngeo.estimators.efa.attention import AttentionShape
from attngeo.estimators.efa.factors import ItemFactors, SpatialFactors, ValueFactors
from attngeo.estimators.efa.families import FAMILIES, Categorical, ExponentialFamily, Gaussian, parse_family
from attngeo.estimators.efa.model import PartModel
from attngeo.estimators.efa.networks import (
    ItemAttention,
    ValueAttention,
    ValueShape,
    start_like_keras,
)
from attngeo.estimators.efa.options import Architecture, Distance, EfaOptions
from attngeo.estimators.efa.sequences import DataShape

# The share of rows that others do not see while a model of items trains; without it, small tables are learned by heart.
ITEM_DROPOUT = 0.3
# Radius of the Earth in km.
RADIUS = 6371.0
MOST_DEGREES = {"latitude": 90, "longitude": 360}


def make_families(options: EfaOptions, own: ExponentialFamily | None = None) -> list[ExponentialFamily]:
    """The family of each value column. Raises UsageError.

    own: your own family, used for columns with its text, and for families that attngeo does not have.
    """
    families = []
    for text in options.families.values():
        if own is not None and (text == own.text or text.partition(":")[0] not in FAMILIES):
            families.append(copy.deepcopy(own))
        else:
            families.append(parse_family(text, "family" if text == options.family else "value"))
    return families


def make_model(
    options: EfaOptions, architecture: Architecture, families: Sequence[ExponentialFamily], shape: DataShape
) -> PartModel:
    """A new model, with parameters from torch's random numbers. Raises UsageError for sizes that do not fit.

    families: families of the values, which become parts of the model; the family of items is categorical.
    """
    network = _make_network(options, architecture, shape)
    if shape.part == "items":
        families = [Categorical()]
    for family, column in zip(families, shape.values, strict=False):
        if isinstance(family, Gaussian) and family.log_variance is not None:
            nn.init.constant_(family.log_variance, math.log(column.variance))
    if architecture.init == "keras":
        start_like_keras(network)
    context_dropout = options.context_dropout
    if context_dropout is None:
        context_dropout = ITEM_DROPOUT if shape.part == "items" and options.model == "efa" else 0.0
    return PartModel(network, families, shape, context_dropout=context_dropout)


def _make_network(options: EfaOptions, architecture: Architecture, shape: DataShape) -> nn.Module:
    """The network that the options name. Raises UsageError for sizes that do not fit."""
    if options.model == "efa":
        if shape.part == "values":
            return _make_value_attention(options, architecture, shape)
        return ItemAttention(
            shape.items,
            _shape_attention(options, architecture, options.width),
            positions=_count_positions(options, shape),
            causal=options.causal,
            covariates=shape.covariate_sizes,
        )
    pooling: dict[str, Any] = {
        "causal": options.causal,
        "pooling": architecture.pooling,
        "start": architecture.start,
        "window": options.window,
    }
    if shape.part == "items":
        return ItemFactors(shape.items, options.width, **pooling)
    if shape.items:
        return ValueFactors(shape.items, options.width, **pooling)
    return _make_spatial_factors(options, shape)


def _make_value_attention(options: EfaOptions, architecture: Architecture, shape: DataShape) -> ValueAttention:
    tokens = ValueShape(
        size=options.width,
        items=shape.items,
        two_item_vectors=architecture.two_item_vectors,
        coordinates=shape.coordinates,
        covariates=shape.covariate_sizes,
        columns=len(shape.values),
        lags=shape.lags,
        value=architecture.value_embedding,
        levels=shape.levels,
        positions=_count_positions(options, shape),
        join=architecture.join,
        output_units=tuple(architecture.output_units) if architecture.readout == "network" else None,
        bias=architecture.bias,
    )
    layers = _shape_attention(options, architecture, tokens.attended)
    return ValueAttention(tokens, layers, causal=options.causal)


def _make_spatial_factors(options: EfaOptions, shape: DataShape) -> SpatialFactors:
    if options.causal:
        raise UsageError("$direction is 'uni', expected 'bi' for a factor model: places have no order", "direction")
    places = np.array(shape.places)
    # In double precision: the differences in each coordinate, and what is computed from them.
    require_memory(8 * (4 + shape.coordinates) * len(places) ** 2, f"the distances of {len(places):,} places")
    distances = torch.as_tensor(measure_distances(places, options.distance))
    return SpatialFactors(distances, shape.coordinates, options.width, n_neighbors=options.n_neighbors)


def _count_positions(options: EfaOptions, shape: DataShape) -> int:
    """The number of positions that have a vector."""
    return shape.longest if options.gives_vectors(options.position or shape.position) else 0


def _shape_attention(options: EfaOptions, architecture: Architecture, width: int) -> AttentionShape:
    """The layers. width: of the vectors that they get."""
    return AttentionShape(
        width=width,
        layers=options.n_layers,
        heads=options.n_heads,
        kind=architecture.weights,
        bias=architecture.bias,
        head_size=architecture.head_size,
        scale=architecture.scale,
        residual=architecture.residual,
        norm=architecture.norm,
        feed_forward=architecture.feed_forward,
    )


def measure_distances(places: np.ndarray, distance: Distance) -> np.ndarray:
    """Distances between places, [I, I]; places: [I, dimensions].

    distance: "euclidean"; or "haversine" for great-circle distances in km on a sphere of radius 6,371 km, from latitude
    and longitude in degrees. Raises TableError for degrees out of range, UsageError for other dimensions.
    """
    if distance == "euclidean":
        return np.asarray(distance_matrix(places, places))
    if places.shape[1] != 2:
        raise UsageError(
            f"{places.shape[1]} coordinates, expected latitude and longitude; or set $distance to euclidean", "distance"
        )
    for (name, most), degrees in zip(MOST_DEGREES.items(), places.T, strict=True):
        if np.abs(degrees).max() > most:
            wrong = degrees[np.abs(degrees).argmax()]
            raise TableError(
                f"a place has {name} {wrong:g}, expected -{most} to {most} degrees; name the latitude column "
                "first, then the longitude column, or set distance to euclidean"
            )
    return RADIUS * np.asarray(haversine_distances(np.radians(places)))
