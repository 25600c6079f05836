"""Rows that pictures of a fitted model are drawn from: the attention between cells, and the encodings of categories."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from sklearn.decomposition import PCA

from attngeo.estimators.tabular.cell_layout import MISSING
from attngeo.estimators.tabular.classifier import TableModel
from attngeo.estimators.tabular.coding import read_table
from attngeo.estimators.tabular.kinds import DAYS, SECONDS_OF_DAY, name_part

MASK = "[MASK]"


def tabulate_attention(model: TableModel, table: Any) -> pd.DataFrame:
    """How much each cell of each row attends to the cells of its row while it is masked.

    Args:
        model: a fitted model.
        table: rows without the response, with the columns of the training rows.

    Returns:
        Columns: row (from 1), cell (the attending cell), on (the cell that it attends to), value (of the second cell,
        as text; [MASK] if masked; days as dates), head, attention.

    Raises:
        TableError: the table cannot be used, as in `model.predict`.
    """
    frame = read_table(table)
    weights = model.attention(table)  # [rows, heads, K, K]
    names = np.array([str(name) for name in model.columns_], dtype=object)
    codes = model.coding_.encode(frame, None, "mask")
    values = np.full(codes.shape, MASK, dtype=object)
    days = _list_days(model)
    for number in range(frame.shape[1]):
        is_known = codes[:, number] != MISSING
        cells = frame.iloc[:, number][is_known]
        values[is_known, number] = cells.map(_write_day) if names[number] in days else cells.astype(str)
    row, head, cell, on = np.indices(weights.shape).reshape(4, -1)
    return pd.DataFrame(
        {
            "row": row + 1,
            "cell": names[cell],
            "on": names[on],
            "value": values[row, on],
            "head": head,
            "attention": weights.reshape(-1),
        }
    )


def tabulate_encodings(model: TableModel) -> pd.DataFrame:
    """The encoding of each category, projected on the first two principal components; one row per category.

    Encodings are the vectors that attention sees: category vector plus column vector.

    Args:
        model: a fitted model.

    Returns:
        Columns: column, value (of a bin, the median of its training values; days as dates), x, y.
    """
    columns = []
    values = []
    days = _list_days(model)
    for coding in model.coding_.columns:
        columns += [str(coding.name)] * coding.size
        write = _write_day if str(coding.name) in days else _write_category
        values += [write(value) for value in coding.decode_all()]
    sizes = [coding.size for coding in model.coding_.columns]
    points = model.category_encodings_.to_numpy() + np.repeat(model.feature_encodings_, sizes, axis=0)
    if points.shape[1] == 1:  # one head of size 1: all lie on a line
        points = np.pad(points, ((0, 0), (0, 1)))
    x, y = PCA(2, svd_solver="full").fit_transform(points).T  # with the largest number of each axis positive
    return pd.DataFrame({"column": columns, "value": values, "x": x, "y": y})


def _list_days(model: TableModel) -> set[str]:
    """The columns of the days of dates."""
    return {name_part(name, DAYS) for name in model.dates}


def _write_day(days: Any) -> str:
    """Days since 1970 as a date, such as 2023-01-31; with the time, as in 2023-01-31T12:30:00, if it has one."""
    seconds = round(float(days) * SECONDS_OF_DAY)
    moment = np.datetime64(seconds, "s")
    return str(moment if seconds % SECONDS_OF_DAY else moment.astype("datetime64[D]"))


def _write_category(value: Any) -> str:
    """A category as text. A median of whole numbers has no fraction."""
    return format(value, ".10g") if isinstance(value, float) else str(value)
