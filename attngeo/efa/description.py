"""What a model has to know of its data: sizes, scales and places, found by reading the data once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attngeo.efa.columns import TABLE, TRAINING
from attngeo.efa.families import ExponentialFamily, Gaussian
from attngeo.efa.family_names import parse_family
from attngeo.efa.network import LEVELS
from attngeo.efa.options import ModelOptions
from attngeo.efa.sequences import Sequences
from attngeo.errors import TableError, UsageError

# Reads the sequences of a table, in parts.
Parts = Callable[[], Iterable[Sequences]]
# Where a network's number for a mean is looked for, from 0.
FARTHEST = 30.0
# Coordinates of one place in two tables differ by less than this share of the largest one in their column.
SAME_PLACE = 1e-6
# Deviations of numbers as shares of their mean: of equal ones, whose mean is rounded, and of such whose differences
# single precision rounds by a hundredth or more.
ROUNDING, TOO_CLOSE = 2.0**-48, 2.0**-17
# The largest value that may have a vector of its own.
MOST_LEVELS = 100_000


@dataclass(frozen=True, kw_only=True)
class DataShape:
    """What a model has to know of its data; JSON can say all of it.

    part: "items" or "values". items: how many. longest: positions that a sequence may have. trained: positions of the
    longest sequence that was read. coordinates, lags: how many. levels: values from 0, for one vector for each.
    value_scale, place_scale: mean and deviation of values, and of each coordinate. variance: of values, at which a
    learned one starts. raw_start: what is added to the number that the network gives a family other than the Gaussian,
    which begins near 0. places: coordinates of the positions, for the spatial factor model. position: the column of
    positions that training rows have, if their order matters.
    """

    part: str
    items: int = 0
    longest: int = 0
    trained: int = 0
    coordinates: int = 0
    lags: int = 0
    levels: int = 0
    value_scale: tuple[float, float] = (0.0, 1.0)
    variance: float = 1.0
    raw_start: float = 0.0
    place_scale: tuple[tuple[float, float], ...] = ()
    places: tuple[tuple[float, ...], ...] = ()
    position: str | None = None


@dataclass
class _Moments:
    """Sums over rows of numbers, around the mean of the first ones: squares of large numbers are not subtracted."""

    count: int = 0
    around: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    sums: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))

    def add(self, numbers: Tensor, known: Tensor) -> None:
        """Count the numbers of known places; numbers: [P] or [P, n]."""
        rows = numbers[known].double().reshape(int(known.sum()), -1)
        if not self.count:
            self.around = rows.mean(0)
            self.sums = torch.zeros(2, rows.shape[1], dtype=torch.float64)
        moved = rows - self.around
        self.sums += torch.stack([moved.sum(0), moved.square().sum(0)])
        self.count += len(rows)

    def scales(self, columns: Sequence[str]) -> list[tuple[float, float]]:
        """Mean and deviation of each of the n numbers; a deviation of 0 counts as 1.

        Raises TableError for numbers that are too close to each other for single precision, in which models compute.
        """
        moved, square = self.sums / self.count
        mean, deviation = self.around + moved, (square - moved.square()).clamp(min=0).sqrt()
        found = []
        for name, m, d in zip(columns, mean.tolist(), deviation.tolist(), strict=True):
            is_constant = d <= ROUNDING * abs(m)
            if not is_constant and d < TOO_CLOSE * abs(m):
                raise TableError(
                    f"{TRAINING}: column {name!r} has a mean of {m:g} and a deviation of {d:g}, which single precision "
                    "cannot tell apart; subtract a constant from the column, in all tables"
                )
            found.append((m, 1.0 if is_constant else d))
        return found


def describe_data(options: ModelOptions, part: str, items: int, data: Sequence[Parts]) -> DataShape:
    """What a model has to know of training data (the first) and validation data. Raises TableError, UsageError."""
    longest = levels = 0
    values, coordinates = _Moments(), _Moments()
    places: tuple[tuple[float, ...], ...] = ()
    is_spatial = part == "values" and options.model == "fm" and not items
    for table, parts in enumerate(data):
        for each in parts():
            longest = max(longest, int(each.lengths.max()))
            if is_spatial:
                places = places or _list_places(each)
                check_places(each, places)
            if each.values is not None:
                levels = max(levels, 1 + int(each.values.max().clamp(min=0)))
                if table == 0:
                    values.add(each.values, each.known)
            if each.coordinates is not None and table == 0:
                coordinates.add(each.coordinates, each.known)
    if options.longest is not None and longest > options.longest:
        raise UsageError(f"longest is {options.longest}, but a sequence has {longest} positions; shorten it")
    trained, longest = longest, options.longest or longest
    if part == "items":
        return DataShape(part=part, items=items, longest=longest, trained=trained)
    has_levels = options.embedding in LEVELS
    if has_levels and levels - 1 > MOST_LEVELS:
        raise UsageError(
            f"embedding is {options.embedding}, one vector for each whole number, but values go up to {levels - 1:,}, "
            f"expected at most {MOST_LEVELS:,}; choose network"
        )
    scale, dimensions = values.scales([options.value])[0], len(options.coordinate_names)
    is_scaled = options.standardise and options.model == "efa"
    is_placed = options.standardise and dimensions
    place_scale = coordinates.scales(options.coordinate_names) if is_placed else [(0.0, 1.0)] * dimensions
    return DataShape(
        part=part, items=items, longest=longest, trained=trained, coordinates=dimensions, lags=len(options.lag_names),
        levels=levels if has_levels else 0,
        value_scale=scale if is_scaled and not has_levels else (0.0, 1.0), variance=scale[1] ** 2,
        raw_start=_find_raw(parse_family(options.family), scale[0]) if is_scaled else 0.0,
        place_scale=tuple(place_scale), places=places,
    )  # fmt: skip


def _find_raw(family: ExponentialFamily, mean: float) -> float:
    """The number of a network for which the family has a mean; 0 if none has, and for a Gaussian, which has units."""

    def above(raw: float) -> float:
        return float(family.mean(family.natural(torch.tensor(raw, dtype=torch.float64))).detach()) - mean

    if isinstance(family, Gaussian) or not above(-FARTHEST) < 0 < above(FARTHEST):
        return 0.0
    from scipy.optimize import brentq

    return float(brentq(above, -FARTHEST, FARTHEST))


def _list_places(sequences: Sequences) -> tuple[tuple[float, ...], ...]:
    """The coordinates of the positions of the first sequence."""
    if sequences.coordinates is None:
        raise UsageError("a factor model of values requires items or coordinates; name their columns")
    return tuple(tuple(map(float, place)) for place in sequences.coordinates[: sequences.starts[1]])


def check_places(sequences: Sequences, places: tuple[tuple[float, ...], ...]) -> None:
    """Raise TableError unless each sequence has all these places, in this order: whose neighbours are known."""
    wanted = torch.tensor(places, dtype=torch.float64)
    found = sequences.coordinates
    near = SAME_PLACE * wanted.abs().amax(0)  # in single precision they differ by less
    if (
        found is None
        or (sequences.lengths != len(places)).any()
        or not (sequences.known.all() and bool(((found.reshape(-1, *wanted.shape) - wanted).abs() <= near).all()))
    ):
        raise TableError(
            f"{TABLE}: a factor model of places requires its {len(places)} places in each sequence, in one order; give "
            "all rows, with a column that orders them"
        )
