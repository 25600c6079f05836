"""What a caller gives as a table: a DataFrame, or anything that scikit-learn takes as an array."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.utils import check_array

from attngeo.errors import TableError, first_line


class TrainingRows(NamedTuple):
    """Rows with a weight: their cells, labels (missing for an unlabelled row) and weights."""

    frame: pd.DataFrame
    labels: pd.Series[Any]
    weights: np.ndarray


def is_frame(table: Any) -> bool:
    """Whether it is a DataFrame of pandas."""
    return isinstance(table, pd.DataFrame)


def read_table(table: Any) -> pd.DataFrame:
    """The table as a DataFrame; columns of an array are numbered.

    Raises TableError for a frame without rows or columns, or with equal names; ValueError and TypeError as scikit-learn
    does for what is no table of finite or missing values.
    """
    if not is_frame(table):
        return pd.DataFrame(check_array(_as_array(table), dtype=None, ensure_all_finite="allow-nan")).infer_objects()
    if table.shape[0] == 0 or table.shape[1] == 0:
        raise TableError(
            f"the table has {table.shape[0]} rows and {table.shape[1]} columns, expected at least 1 of each"
        )
    frame: pd.DataFrame = table
    twice = [name for name, count in Counter(table.columns).items() if count > 1]
    if twice:
        raise TableError(f"column {twice[0]!r} occurs more than once; rename one")
    return frame


def _as_array(values: Any) -> Any:
    """A list as an array of objects if NumPy would write a missing value among texts as the text "nan"."""
    if isinstance(values, list | tuple) and np.asarray(values).dtype.kind in "US":
        return np.asarray(values, dtype=object)
    return values


def _number_rows(labels: Any) -> pd.Series[Any]:
    from sklearn.utils import column_or_1d

    return pd.Series(column_or_1d(np.asarray(_as_array(labels)), warn=True))


def read_labels(labels: Any, rows: int, *, unlabelled: bool = False) -> pd.Series[Any]:
    """The response of each row; missing for an unlabelled one. unlabelled: whether all may be.

    Raises TableError and ValueError for labels of another number, or that are no classes.
    """
    from sklearn.utils.multiclass import check_classification_targets

    if labels is None:
        raise TableError("requires y to be passed, but the target y is None")
    series = labels if isinstance(labels, pd.Series) else _number_rows(labels)
    if len(series) != rows:
        raise TableError(f"y has {len(series)} labels, expected one for each of the {rows} rows")
    series = series.reset_index(drop=True)
    if pd.api.types.is_float_dtype(series.dtype) and np.isinf(series.to_numpy(np.float64, na_value=0)).any():
        raise TableError("Input y contains infinity or a value too large for dtype('float64')")
    known = series.dropna().infer_objects()
    if known.empty and unlabelled:
        return series
    if known.empty:
        raise TableError("y has no label, expected some rows with one")
    if not isinstance(series.dtype, pd.CategoricalDtype):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # about many classes; one for each row is an error later
                check_classification_targets(known.to_numpy())
        except ValueError as error:
            raise TableError(
                f"{first_line(error).rstrip('.')}; use texts or whole numbers, or cut numbers into classes, for "
                "example with pandas.qcut"
            ) from None
    return series


def read_training_rows(frame: pd.DataFrame, labels: Any, weights: Any, *, unlabelled: bool = False) -> TrainingRows:
    """The rows of a frame whose weight is not zero, with their labels. Raises as `read_labels` and `read_weights`."""
    series, numbers = read_labels(labels, len(frame), unlabelled=unlabelled), read_weights(weights, len(frame))
    kept = numbers > 0
    return TrainingRows(frame[kept], series[kept], numbers[kept])


def read_weights(weights: Any, rows: int) -> np.ndarray:
    """The weight of each row, float64, [rows]; 1 if None. Raises TableError, and ValueError if some are not finite."""
    if weights is None:
        return np.ones(rows)
    weights = check_array(weights, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
    if np.shape(weights) != (rows,):
        raise TableError(f"sample_weight has shape {np.shape(weights)}, expected ({rows},): one for each row")
    if (weights < 0).any() or not weights.any():
        raise TableError("sample_weight has negative values or only zeros, expected some positive ones")
    return np.asarray(weights)
