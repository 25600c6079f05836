"""The cells of a table as categories, which are learned from the training rows."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split
from sklearn.utils import check_array, column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from attngeo.bounds.names import list_names
from attngeo.errors import TableError, first_line
from attngeo.estimators.shared.cells import (
    UNKNOWN,
    find_values,
    read_like_numbers,
    read_numbers,
    refuse_unread,
    show_value,
)
from attngeo.estimators.shared.files import sort_values
from attngeo.estimators.tabular.cell_layout import MISSING, UNSEEN
from attngeo.estimators.tabular.options import Unseen

# The name of the response if the labels have none.
RESPONSE = "response"
# The advice of errors about values that no training row has.
UNSEEN_CELL = 'leave the row out, or treat such values as missing with unseen="mask" (--unseen mask)'
UNSEEN_LABEL = "these are labels; leave their rows out, or give training rows with these labels"


class TrainingRows(NamedTuple):
    """Rows with a weight.

    Attributes:
        frame: cells of the rows.
        labels: labels, missing for an unlabelled row; None without a response.
        weights: weights of the rows.
    """

    frame: pd.DataFrame
    labels: pd.Series[Any] | None
    weights: np.ndarray


def read_table(table: Any) -> pd.DataFrame:
    """The table as a DataFrame; columns of an array are numbered.

    Raises TableError for a frame without rows or columns, or with equal names; like scikit-learn, ValueError and
    TypeError for anything but a table of finite or missing values.
    """
    if not isinstance(table, pd.DataFrame):
        return pd.DataFrame(check_array(_as_array(table), dtype=None, ensure_all_finite="allow-nan")).infer_objects()
    if table.shape[0] == 0 or table.shape[1] == 0:
        raise TableError(
            f"the table has {table.shape[0]} rows and {table.shape[1]} columns, expected at least 1 of each"
        )
    frame: pd.DataFrame = table
    twice = [name for name, count in Counter(table.columns).items() if count > 1]
    if twice:
        raise TableError("occurs more than once; rename one", column=twice[0])
    return frame


def _as_array(values: Any) -> Any:
    """A list as an array of objects if NumPy would write a missing value among texts as the text "nan"."""
    if isinstance(values, list | tuple) and np.asarray(values).dtype.kind in "US":
        return np.asarray(values, dtype=object)
    return values


def read_labels(labels: Any, rows: int, *, unlabelled: bool = False) -> pd.Series[Any]:
    """The response of each row; missing for an unlabelled row. unlabelled: whether all rows may be unlabelled.

    Raises TableError and ValueError for a wrong number of labels, and for labels that are not classes.
    """
    if labels is None:
        raise TableError("requires y to be passed, but the target y is None")
    if isinstance(labels, pd.Series):
        series: pd.Series[Any] = labels
    else:
        series = pd.Series(column_or_1d(np.asarray(_as_array(labels)), warn=True))
    if len(series) != rows:
        raise TableError(f"y has {len(series)} labels, expected one for each of the {rows} rows")
    series = series.reset_index(drop=True)
    known = series.dropna().infer_objects()
    if known.empty and unlabelled:
        return series
    if known.empty:
        raise TableError("y has no label, expected at least one")
    if not isinstance(series.dtype, pd.CategoricalDtype):
        try:
            with warnings.catch_warnings():
                # About infinity, an error below, and about many classes; one for each row is an error later.
                warnings.simplefilter("ignore")
                check_classification_targets(known.to_numpy())
        except ValueError as error:
            problem = first_line(error).rstrip(".")
            numbers = read_numbers(known) if known.dtype.kind == "f" else np.array([0.0])
            is_fraction = numbers % 1 != 0
            if np.isfinite(numbers).all() and is_fraction.any():
                row = int(known.index[is_fraction.argmax()]) + 1
                example = f"{show_value(known[is_fraction].iloc[0])} in row {row}"
                # It begins as scikit-learn requires of every classifier.
                problem = f"Unknown label type: fractions, such as {example}, expected class names or class numbers"
            raise TableError(
                f"{problem}; use strings or whole numbers, or cut numbers into classes, for "
                "example with pandas.qcut(y, 4, labels=False)",
                column=series.name,
            ) from None
    return series


def read_training_rows(
    frame: pd.DataFrame, labels: Any, weights: Any, *, unlabelled: bool = False, has_response: bool = True
) -> TrainingRows:
    """The rows with a weight above 0, with their labels. Raises what `read_labels` and `read_weights` raise."""
    series = read_labels(labels, len(frame), unlabelled=unlabelled) if has_response else None
    numbers = read_weights(weights, len(frame))
    is_kept = numbers > 0
    if series is not None:
        series = series[is_kept]
    return TrainingRows(frame[is_kept], series, numbers[is_kept])


def hold_out(
    rows: np.ndarray, fraction: float, seed: int, option: str, table: str = ""
) -> tuple[np.ndarray, np.ndarray]:
    """Split row numbers into training rows and a random held-out fraction. Raises TableError if no row would train.

    option: name of the option with the fraction.
    """
    if len(rows) - math.ceil(fraction * len(rows)) < 1:
        raise TableError(
            f"{len(rows)} usable rows, too few to hold out a fraction of {fraction:g}; give more, or a smaller "
            f"${option}",
            option,
            subject=table,
        )
    train, held_out = train_test_split(rows, test_size=fraction, random_state=seed)
    return train, held_out


def read_weights(weights: Any, rows: int) -> np.ndarray:
    """The weight of each row, float64, [rows]; 1 if None. Raises TableError, and ValueError if some are not finite."""
    if weights is None:
        return np.ones(rows)
    weights = check_array(weights, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
    if np.shape(weights) != (rows,):
        raise TableError(f"sample_weight has shape {np.shape(weights)}, expected ({rows},): one for each row")
    if (weights < 0).any() or not weights.any():
        raise TableError(
            "sample_weight has negative values or only zeros, expected none negative and at least one positive"
        )
    return np.asarray(weights)


@dataclass(frozen=True)
class ColumnCoding:
    """How the values of a column become the categories 0, 1, … and back.

    Attributes:
        name: name of the column.
        values: its categories, in order; for numbers, the median of the training values in each bin (for whole numbers,
            the lower of two).
        edges: inclusive upper ends of all bins but the last; None if the column has no numbers. They lie between
            training values, so that rounding leaves a number in its bin; in models of older versions, they are training
            values.
    """

    name: Hashable
    values: tuple[Any, ...]
    edges: tuple[float, ...] | None = None

    @property
    def size(self) -> int:
        """The number of categories; 1 if no training row has a value, so that the column can be masked."""
        return max(len(self.values), 1)

    @property
    def is_of_texts(self) -> bool:
        """Whether all values are texts."""
        return all(isinstance(value, str) for value in self.values)

    def encode(self, column: pd.Series[Any], unseen: Unseen, advice: str = UNSEEN_CELL) -> np.ndarray:
        """Categories of values, [rows]; MISSING for a missing value.

        Each cell is read separately, in the way of the training column. Every number has a bin. With `unseen`, a value
        without a category becomes UNSEEN ("category"; in a number column, MISSING), MISSING ("mask"), or a TableError
        with its row and the advice. Also raises TableError if fewer than nine tenths of the cells of a number column
        are numbers.
        """
        missing = column.isna().to_numpy()
        if self.edges is not None:
            numbers = read_like_numbers(column)
            is_number = np.isfinite(numbers)
            codes = np.where(is_number, np.searchsorted(self.edges, np.where(is_number, numbers, 0)), UNKNOWN)
            expected = f"a finite number as in training, such as {show_value(self.values[0])}"
            if unseen != "error":
                self._refuse_unread(column, numbers)
        else:
            try:
                codes = find_values(column, self.values)
            except TypeError:
                problem = "has values that cannot be compared, expected strings or numbers"
                raise TableError(problem, column=self.name) from None
            expected = f"one of: {list_names(self.values)}" if self.values else "an empty cell"
        unseen_rows = np.flatnonzero((codes == UNKNOWN) & ~missing)
        if unseen == "error" and len(unseen_rows):
            row = int(unseen_rows[0])
            more = f" (nor are {len(unseen_rows) - 1:,} more cells)" if len(unseen_rows) > 1 else ""
            problem = f"{show_value(column.iloc[row])} is not in the training rows{more}; expected {expected}; {advice}"
            raise TableError(problem, row=row + 1, column=self.name)
        has_category = unseen == "category" and self.edges is None
        codes = np.where(codes == UNKNOWN, UNSEEN if has_category else MISSING, codes)
        return np.where(missing, MISSING, codes)

    def _refuse_unread(self, column: pd.Series[Any], numbers: np.ndarray) -> str:
        """A note about the cells that are no numbers; "" for none. Raises TableError for more than a tenth of them."""
        is_wrong = np.isnan(numbers) & column.notna().to_numpy()
        return refuse_unread(column, is_wrong, "number", self.values[0])

    def count_uncertain(self, column: pd.Series[Any]) -> int:
        """The number of single-precision cells with an uncertain bin, because rounding makes them equal to an edge."""
        kind = column.dtype
        if self.edges is None or not isinstance(kind, np.dtype) or kind.kind != "f" or kind.itemsize >= 8:
            return 0
        with np.errstate(over="ignore"):
            edges = np.array(self.edges).astype(kind)
        return int(column.isin(edges[np.isfinite(edges)]).sum())

    def find_unseen(self, column: pd.Series[Any]) -> np.ndarray:
        """The numbers of rows with a cell that has no category; empty for a number column."""
        if self.edges is not None:
            return np.array([], dtype=int)
        return np.flatnonzero((find_values(column, self.values) == UNKNOWN) & column.notna().to_numpy())

    def decode_all(self) -> list[Any]:
        """The values of all categories."""
        return list(self.decode(np.arange(self.size)))

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Values of categories; NaN where no training row has a value."""
        values = np.empty(max(len(self.values), 1), dtype=object)
        values[:] = self.values or [np.nan]
        return np.asarray(values[codes])


def learn_coding(
    name: Hashable, column: pd.Series[Any], weights: np.ndarray, bins: int, min_frequency: int = 1
) -> ColumnCoding:
    """The coding of a column's training values.

    A numeric column with fractions, or with more than `bins` values, is cut into bins of equal weight; fewer whole
    numbers get one bin each. In other columns, values in at least `min_frequency` rows are categories, in the order of
    the dtype, or sorted. Raises TableError for values that cannot be categories.
    """
    if isinstance(column.dtype, pd.CategoricalDtype):
        used = _list_frequent(column, min_frequency)
        return ColumnCoding(name, tuple(value for value in column.dtype.categories if value in used))
    if column.dtype.kind in "iufc":
        return _learn_numbers(name, column, weights, bins)
    if column.dtype.kind in "mM":
        raise TableError("has dates, expected categories or numbers; convert it to numbers first", column=name)
    try:
        return ColumnCoding(name, tuple(sort_values(_list_frequent(column.astype(object), min_frequency))))
    except TypeError:
        raise TableError("has values that cannot be compared, expected strings or numbers", column=name) from None


def _list_frequent(column: pd.Series[Any], least: int) -> set[Any]:
    """The values that are in so many rows, or in more."""
    counts = column.value_counts()
    return set(counts.index[counts >= least])


def _learn_numbers(name: Hashable, column: pd.Series[Any], weights: np.ndarray, bins: int) -> ColumnCoding:
    """The coding of a column of numbers. Raises TableError for infinite ones."""
    numbers = read_numbers(column)
    infinite = np.isinf(numbers)
    if infinite.any():
        problem = "contains infinity, expected finite numbers or missing values"
        raise TableError(problem, row=int(infinite.argmax()) + 1, column=column.name)
    is_known = column.notna().to_numpy()
    numbers = numbers[is_known]
    values = numbers
    if column.dtype.kind in "iu":  # float64 has whole numbers up to 2**53 only
        values = column.dropna().to_numpy()
    distinct = np.unique(values)
    is_whole = bool((distinct == np.floor(distinct)).all())
    if is_whole and len(distinct) <= bins:
        whole = tuple(int(value) for value in distinct)
        as_floats = [float(value) for value in whole]
        are_apart = all(low < high for low, high in pairwise(as_floats))  # not above 2**53
        middles = tuple(part_numbers(low, high) for low, high in pairwise(as_floats))
        return ColumnCoding(name, whole, middles if whole and are_apart else None)
    shares = np.arange(1, bins) / bins
    ends = np.unique(np.quantile(numbers, shares, weights=weights[is_known], method="inverted_cdf"))
    ends = ends[ends < numbers.max()]  # the last bin has values; equal ones are in one bin, so there may be fewer
    in_order = np.unique(numbers)
    following = in_order[np.searchsorted(in_order, ends, side="right")]
    edges = [part_numbers(low, high) for low, high in zip(ends.tolist(), following.tolist(), strict=True)]
    codes = np.searchsorted(edges, numbers, side="left")
    in_bins = [values[codes == code] for code in range(len(edges) + 1)]
    medians: list[float] = [float(np.median(some)) for some in in_bins]
    if is_whole:
        medians = [int(median_low(some.astype(object))) for some in in_bins]  # with all digits
    return ColumnCoding(name, tuple(medians), tuple(edges))


def part_numbers(low: float, high: float) -> float:
    """An edge in the middle of two numbers, low < high: low ≤ edge < high.

    If single precision keeps both apart, the edge also separates their roundings: rounding keeps the order, so low and
    its rounding are both less than high and its rounding. The middle of the numbers themselves might not separate them:
    near a power of two, roundings of smaller numbers are closer together than roundings of larger numbers.
    """
    with np.errstate(over="ignore"):
        rounded_low, rounded_high = np.array([low, high]).astype(np.float32).tolist()
    if rounded_low < rounded_high:
        low = max(low, rounded_low)
        high = min(high, rounded_high)
    middle = low / 2 + high / 2
    return middle if low <= middle < high else low


@dataclass(frozen=True)
class TableCoding:
    """The codings of all columns: of the features, in the order of the table, then of the response, if there is one."""

    columns: tuple[ColumnCoding, ...]
    has_response: bool = True

    @property
    def features(self) -> tuple[ColumnCoding, ...]:
        """The codings of the features."""
        return self.columns[:-1] if self.has_response else self.columns

    @property
    def names(self) -> list[Hashable]:
        """The names of the features."""
        return [column.name for column in self.features]

    @property
    def response(self) -> ColumnCoding:
        """The coding of the labels."""
        return self.columns[-1]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of categories of each column."""
        return tuple(column.size for column in self.columns)

    def describe_cells(self, frame: pd.DataFrame, unseen: Unseen) -> Iterator[str]:
        """Notes about cells that are read in another way than in training. Raises TableError, as `encode` does."""
        for coding in self.features:
            if coding.name not in frame:
                continue
            column = frame[coding.name]
            if coding.edges is not None and unseen != "error":
                unread = coding._refuse_unread(column, read_like_numbers(column))
                if unread:
                    yield f"column {coding.name!r:.60}: {unread}"
            unseen_rows = coding.find_unseen(column)
            if unseen != "error" and len(unseen_rows):
                row = int(unseen_rows[0])
                outcome = "form a category of their own" if unseen == "category" else "count as missing"
                yield (
                    f"column {coding.name!r:.60}: {len(unseen_rows):,} of {column.count():,} cells are not in the "
                    f"training rows and {outcome}, such as {show_value(column.iloc[row])} in row {row + 1}"
                )
            uncertain = coding.count_uncertain(column)
            if uncertain:
                yield (
                    f"column {coding.name!r:.60}: {uncertain:,} of {len(column):,} cells are in single precision, and "
                    "so close to the edge of a bin that their side is uncertain, but they are used unchanged; write "
                    "the column in double precision"
                )

    def encode(self, frame: pd.DataFrame, labels: pd.Series[Any] | None, unseen: Unseen) -> np.ndarray:
        """Categories of cells and labels, [rows, K], of a table with these columns. Raises TableError."""
        codes = np.full((len(frame), len(self.columns)), MISSING, dtype=np.int64)
        for number, column in enumerate(self.features):
            codes[:, number] = column.encode(frame.iloc[:, number], unseen)
        if labels is not None:
            codes[:, -1] = self.response.encode(labels, "error", UNSEEN_LABEL)
        return codes


def learn_table(
    frame: pd.DataFrame,
    labels: pd.Series[Any] | None,
    weights: np.ndarray,
    bins: int,
    classes: Sequence[Any] | None = None,
    min_frequency: int = 1,
) -> TableCoding:
    """The coding of a table's training rows.

    Args:
        frame: features, [rows, columns].
        labels: [rows]; None without a response.
        weights: weights of the rows, [rows].
        bins: number of bins of a numeric column.
        classes: all labels, if `labels` may lack some.
        min_frequency: minimum number of rows with a category; rarer values have none.

    Raises:
        TableError: there is nothing to learn, or values cannot be categories.
    """
    features = []
    for number, name in enumerate(frame.columns):
        features.append(learn_coding(name, frame.iloc[:, number], weights, bins, min_frequency))
    if labels is not None:
        values = _learn_classes(labels.dropna(), classes)
        response = ColumnCoding(RESPONSE if labels.name is None else labels.name, values)
        return TableCoding((*features, response))
    if len(features) < 2:
        raise TableError(
            f"the table has {len(features)} feature(s) without a response, expected two or more, so that "
            "they can predict each other"
        )
    if all(column.size < 2 for column in features):
        raise TableError(
            f"{len(frame)} sample(s) without a response, expected a column with two or more values; give rows that "
            "differ"
        )
    return TableCoding(tuple(features), has_response=False)


def _learn_classes(labels: pd.Series[Any], classes: Sequence[Any] | None) -> tuple[Any, ...]:
    """The labels as `numpy.unique` sorts them, whatever order a dtype has: scikit-learn's scorers expect that order.

    Raises TableError if there is nothing to learn, or for labels that cannot be sorted.
    """
    subject = "y " if labels.name is None else ""
    try:
        values = np.unique(np.asarray(labels if classes is None else classes)).tolist()
    except TypeError:
        problem = f"{subject}has labels that cannot be sorted; convert them all to strings, or all to numbers"
        raise TableError(problem, column=labels.name) from None
    if not set(labels) <= set(values):
        problem = f"{subject}has labels that are not in classes; expected some of: {list_names(values)}"
        raise TableError(problem, column=labels.name)
    if len(values) < 2:
        problem = f"{subject}has one class ({values[0]!r}), expected at least 2; choose a response that varies"
        raise TableError(problem, column=labels.name)
    if len(values) == len(labels) > 2:
        raise TableError(
            f"{subject}has {len(values)} classes in {len(labels)} labelled rows, one row for each; choose a response "
            "whose labels repeat, or cut it into classes",
            column=labels.name,
        )
    return tuple(values)
