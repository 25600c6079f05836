"""The shape of training data: sizes, scales and places that a model is made for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from attngeo.errors import TableError, UsageError
from attngeo.estimators.efa.columns import TRAINING, measure_scale
from attngeo.estimators.efa.families import ExponentialFamily, Gaussian
from attngeo.estimators.efa.options import Architecture, EfaOptions
from attngeo.estimators.efa.reading import check_places
from attngeo.estimators.efa.sequences import LARGEST_LEVEL, LARGEST_RAW_START, DataShape, Sequences, ValueColumn

# The deviation, as a share of their mean, of numbers whose differences single precision rounds by a hundredth or more.
TOO_CLOSE = 2.0**-17


def describe_data(
    options: EfaOptions,
    architecture: Architecture,
    families: Sequence[ExponentialFamily],
    columns: DataShape,
    tables: Sequence[Sequences],
) -> DataShape:
    """The shape of training data (the first table) and validation data. Raises TableError, UsageError.

    columns: the shape that follows from the columns: part, number of items, covariates and the column of positions.
    """
    train = tables[0]
    trained = max(int(table.lengths.max()) for table in tables)
    if architecture.longest is not None and trained > architecture.longest:
        raise UsageError(f"$longest is {architecture.longest}, but a sequence has {trained} positions", "longest")
    sizes: dict[str, Any] = {"trained": trained, "longest": architecture.longest or trained}
    if columns.part == "items":
        if options.repeats is None:
            sizes["repeats"] = any(table.find_repeats().any() for table in tables)
        return columns.model_copy(update=sizes)
    if options.model == "fm" and not columns.items:
        assert train.coordinates is not None
        sizes["places"] = tuple(tuple(place) for place in train.coordinates[: train.starts[1]].tolist())
        for table in tables:
            check_places(table, sizes["places"])
    has_levels = architecture.value_embedding == "lookup"
    if has_levels:
        sizes["levels"] = _count_levels(tables)
    assert train.values is not None
    values = []
    for numbers, name, family in zip(train.values[train.known].T, options.families, families, strict=True):
        values.append(_describe_values(numbers, name, family, options, has_levels=has_levels))
    place_scale = [(0.0, 1.0)] * len(options.coordinates)
    if options.standardize and train.coordinates is not None:
        pairs = zip(train.coordinates[train.known].T, options.coordinates, strict=True)
        place_scale = [_measure_scale(numbers, name) for numbers, name in pairs]
    sizes |= {
        "values": tuple(values),
        "place_scale": tuple(place_scale),
        "coordinates": len(options.coordinates),
        "lags": len(options.lags),
    }
    return columns.model_copy(update=sizes)


def _count_levels(tables: Sequence[Sequences]) -> int:
    """The number of whole numbers from 0 to the largest value. Raises UsageError for more than may have a vector."""
    largest = int(max(float(table.values.nan_to_num().max()) for table in tables if table.values is not None))
    if largest > LARGEST_LEVEL:
        raise UsageError(
            f"$value_embedding is lookup, one vector for each whole number, but values go up to {largest:,}, expected "
            f"at most {LARGEST_LEVEL:,}; choose network",
            "value_embedding",
        )
    return max(largest, 0) + 1


def _describe_values(
    values: Tensor, name: str, family: ExponentialFamily, options: EfaOptions, *, has_levels: bool
) -> ValueColumn:
    """The scale of a column of values of training rows. Raises TableError if no row has one.

    values: [rows], NaN if a row lacks one. has_levels: whether each whole number has a vector.
    """
    values = values[~values.isnan()]
    if not len(values):
        raise TableError("has no values in the training rows, expected at least one", subject=TRAINING, column=name)
    scale = _measure_scale(values, name)
    column: dict[str, Any] = {"variance": scale[1] ** 2}
    is_scaled = options.standardize and options.model == "efa"
    if is_scaled and not has_levels:
        column["scale"] = scale
    if is_scaled and not isinstance(family, Gaussian):  # which has units
        raw = float(family.find_raw(family.sufficient(values.double()).double().mean()))
        if abs(raw) < LARGEST_RAW_START:
            column["raw_start"] = raw
    return ValueColumn(**column)


def _measure_scale(numbers: Tensor, column: str) -> tuple[float, float]:
    """Mean and deviation of numbers, [rows]; a deviation of 0 counts as 1.

    Raises TableError for numbers that are too close to each other for single precision, in which models compute.
    """
    center, deviation = measure_scale(numbers.double().numpy())
    if 0 < deviation < TOO_CLOSE * abs(center):
        raise TableError(
            f"has a mean of {center:g} and a standard deviation of {deviation:g}, so single precision cannot tell its "
            "values apart; subtract a constant from the column, in all tables",
            subject=TRAINING,
            column=column,
        )
    return center, deviation or 1.0
