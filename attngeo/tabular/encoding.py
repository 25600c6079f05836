"""The columns of a table as categories: what they are is learned from the training rows."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from attngeo.bounds import list_names
from attngeo.errors import TableError
from attngeo.tabular.network import ABSENT, MISSING
from attngeo.tabular.options import Unseen

# The name of the response if the labels have none.
RESPONSE = "response"
SHOWN = 3
# What to do about values that no training row has.
UNSEEN_CELL = 'leave the column out, or treat them as missing with unseen="mask" (--unseen mask)'
UNSEEN_LABEL = "these are labels; leave their rows out, or give training rows that have them"


@dataclass(frozen=True)
class ColumnCoding:
    """How the values of a column become the categories 0, 1, … and back.

    name: of the column. values: its categories, in order; of a column in bins, the median of the training values in
    each bin. edges: the upper ends of all bins but the last one, which are inclusive; None for a column whose values
    are the categories.
    """

    name: Hashable
    values: tuple[Any, ...]
    edges: tuple[float, ...] | None = None

    @property
    def size(self) -> int:
        """The number of categories; 1 if no training row has a value, so that the column can be masked."""
        return max(len(self.values), 1)

    def encode(self, column: pd.Series[Any], unseen: Unseen, advice: str = UNSEEN_CELL) -> np.ndarray:
        """Categories of values, [rows]; MISSING for a missing one, and for an unseen one if it is to be masked.

        Raises TableError for an unseen value otherwise, with the advice.
        """
        missing = column.isna().to_numpy()
        if self.edges is not None:
            numbers = _to_numbers(column)
            return np.where(missing, MISSING, np.searchsorted(self.edges, np.where(missing, 0, numbers), side="left"))
        codes = pd.Index(self.values, dtype=object).get_indexer(pd.Index(column.astype(object)))
        if unseen == "error" and (codes[~missing] < 0).any():
            new = list(dict.fromkeys(column[~missing][codes[~missing] < 0].tolist()))
            shown = ", ".join(f"{value!r:.40}" for value in new[:SHOWN]) + (", …" if len(new) > SHOWN else "")
            raise TableError(f"column {self.name!r:.60} has values that no training row has: {shown}; {advice}")
        return np.where(missing, MISSING, codes)

    def labels(self) -> np.ndarray:
        """The values as an array of their own kind, [values]."""
        return np.array(self.values)

    def decode_all(self) -> list[Any]:
        """The values of all categories."""
        return list(self.decode(np.arange(self.size)))

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Values of categories; NaN where no training row has a value."""
        values = np.empty(max(len(self.values), 1), dtype=object)
        values[:] = self.values or [np.nan]
        return np.asarray(values[codes])

    def extend(self, column: pd.Series[Any], bins: int | None = None) -> ColumnCoding:
        """The coding with the new values of a column as its last categories. Bins stay as they are.

        bins: raise TableError for numbers that would be in bins, had they been there at first: with fractions, or more
        than so many. None for labels.
        """
        if self.edges is not None:
            return self
        known = set(self.values)
        new = [value for value in _sort(column.dropna().astype(object).unique()) if value not in known]
        are_many = bins is not None and len(known) + len(new) > bins
        if bins is not None and new and _is_number(column) and (are_many or any(value % 1 for value in new)):
            raise TableError(
                f"column {self.name!r} had {len(known)} numbers, which are categories, and now has {len(new)} others, "
                f"expected whole ones, at most {bins} in all; begin with the data set that has more of them, or set "
                "n_bins"
            )
        return replace(self, values=(*self.values, *new))


def learn_coding(name: Hashable, column: pd.Series[Any], weights: np.ndarray, bins: int) -> ColumnCoding:
    """The coding of a column's training values.

    A numeric column with fractions, or with more than `bins` values, is cut into bins of equal weight. The values of
    any other one are its categories: in the order of its dtype, or sorted. Raises TableError for a kind of value that
    has no categories.
    """
    if isinstance(column.dtype, pd.CategoricalDtype):
        used = set(column.dropna().unique())
        return ColumnCoding(name, tuple(value for value in column.dtype.categories if value in used))
    if _is_number(column):
        numbers, known = _to_numbers(column), column.notna().to_numpy()
        numbers, weights = numbers[known], weights[known]
        distinct = np.unique(numbers)
        if len(distinct) > bins or (distinct != np.floor(distinct)).any():
            return _cut(name, numbers, weights, bins)
        if pd.api.types.is_integer_dtype(column.dtype):  # float64 has whole numbers up to 2**53 only
            distinct = column.dropna().unique()
        return ColumnCoding(name, tuple(sorted(map(int, distinct))))
    if pd.api.types.is_datetime64_any_dtype(column.dtype) or pd.api.types.is_timedelta64_dtype(column.dtype):
        raise TableError(f"column {name!r} has dates, expected categories or numbers; convert it to numbers first")
    try:
        return ColumnCoding(name, tuple(_sort(column.dropna().astype(object).unique())))
    except TypeError:
        raise TableError(f"column {name!r} has values that cannot be compared, expected texts or numbers") from None


def _cut(name: Hashable, numbers: np.ndarray, weights: np.ndarray, bins: int) -> ColumnCoding:
    """Bins whose edges are quantiles of the training values. Equal values are in one bin, so there may be fewer."""
    shares = np.arange(1, bins) / bins
    edges = np.unique(np.quantile(numbers, shares, weights=weights, method="inverted_cdf"))
    edges = edges[edges < numbers.max()]  # the last bin has values
    codes = np.searchsorted(edges, numbers, side="left")
    medians = [float(np.median(numbers[codes == code])) for code in range(len(edges) + 1)]
    return ColumnCoding(name, tuple(medians), tuple(edges.tolist()))


def _is_number(column: pd.Series[Any]) -> bool:
    return pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype)


def _to_numbers(column: pd.Series[Any]) -> np.ndarray:
    """Numbers as float64, NaN where they are missing. Raises TableError for texts and infinite ones."""
    try:
        numbers = pd.to_numeric(column).to_numpy(np.float64, na_value=np.nan)
    except (ValueError, TypeError):
        raise TableError(f"column {column.name!r:.60} has texts, expected numbers as in training") from None
    if np.isinf(numbers).any():
        raise TableError(f"column {column.name!r} contains infinity, expected finite numbers or missing values")
    return numbers


def _sort(values: Sequence[Any] | np.ndarray) -> list[Any]:
    """Sorted; values of different kinds by the name of the kind first."""
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=lambda value: (type(value).__name__, value))


@dataclass(frozen=True)
class TableCoding:
    """The codings of all columns; the response is the last one.

    columns: of the features, then of the response. named: whether tables name their columns.
    """

    columns: tuple[ColumnCoding, ...]
    named: bool

    @property
    def names(self) -> list[Hashable]:
        """The names of the features."""
        return [column.name for column in self.columns[:-1]]

    @property
    def response(self) -> ColumnCoding:
        """The coding of the labels."""
        return self.columns[-1]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of categories of each column."""
        return tuple(column.size for column in self.columns)

    def place(self, frame: pd.DataFrame) -> list[int]:
        """The numbers of the columns of a table. Raises TableError for one that is unknown."""
        if not self.named:
            self._check_count(frame)
            return list(range(frame.shape[1]))
        numbers = {name: at for at, name in enumerate(self.names)}
        unknown = [name for name in frame.columns if name not in numbers]
        if unknown:
            raise TableError(f"column {unknown[0]!r:.60} is unknown; expected: {list_names(self.names)}")
        return [numbers[name] for name in frame.columns]

    def encode(self, frame: pd.DataFrame, labels: pd.Series[Any] | None, unseen: Unseen) -> np.ndarray:
        """Categories of cells and labels, [rows, K]. A column that the table lacks is ABSENT. Raises TableError."""
        codes = np.full((len(frame), len(self.columns)), ABSENT, dtype=np.int64)
        for at, place in enumerate(self.place(frame)):
            codes[:, place] = self.columns[place].encode(frame.iloc[:, at], unseen)
        codes[:, -1] = MISSING if labels is None else self.response.encode(labels, "error", UNSEEN_LABEL)
        return codes

    def extend(self, frame: pd.DataFrame, labels: pd.Series[Any], weights: np.ndarray, bins: int) -> TableCoding:
        """The coding with the new columns and values of more rows; the columns so far stay in their order."""
        if not self.named:
            self._check_count(frame)
        known = {name: at for at, name in enumerate(self.names)} if self.named else {}
        columns = list(self.columns[:-1])
        for at, name in enumerate(frame.columns):
            place = known.get(name, at if not self.named else None)
            if place is None:
                columns.append(learn_coding(name, frame.iloc[:, at], weights, bins))
            else:
                columns[place] = columns[place].extend(frame.iloc[:, at], bins)
        return replace(self, columns=(*columns, self.response.extend(labels)))

    def _check_count(self, frame: pd.DataFrame) -> None:
        """Raise TableError if columns that are known by their place are not all there."""
        if frame.shape[1] != len(self.names):
            raise TableError(
                f"the table has {frame.shape[1]} columns, expected {len(self.names)}: columns whose names are no texts "
                "are known by their place; name them by texts"
            )


def learn_table(
    frame: pd.DataFrame, labels: pd.Series[Any], weights: np.ndarray, bins: int, classes: Sequence[Any] | None = None
) -> TableCoding:
    """The coding of a table's training rows. classes: all labels, if they may not all be there. Raises TableError."""
    features = [learn_coding(name, frame.iloc[:, at], weights, bins) for at, name in enumerate(frame.columns)]
    response = ColumnCoding(RESPONSE if labels.name is None else labels.name, _learn_classes(labels.dropna(), classes))
    return TableCoding((*features, response), all(isinstance(name, str) for name in frame.columns))


def _learn_classes(labels: pd.Series[Any], classes: Sequence[Any] | None) -> tuple[Any, ...]:
    """The labels in order. Raises TableError if there is nothing to learn."""
    if classes is not None:
        found = np.unique(np.asarray(classes)).tolist()
        if not set(labels) <= set(found):
            raise TableError(f"y has labels that classes lacks; expected some of: {list_names(found)}")
    elif isinstance(labels.dtype, pd.CategoricalDtype):
        used = set(labels.unique())
        found = [value for value in labels.dtype.categories if value in used]
    else:
        found = np.unique(labels.to_numpy()).tolist()
    if len(found) < 2:
        raise TableError(f"y has one class ({found[0]!r}), expected at least 2; choose a response that varies")
    if len(found) == len(labels) > 2:
        raise TableError(
            f"y has {len(found)} classes in {len(labels)} labelled rows, one row for each; choose a response whose "
            "labels occur several times, or cut it into classes"
        )
    return tuple(found)
