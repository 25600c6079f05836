"""What a fitted classifier has learned, as tables that figures are drawn from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from attngeo.tabular.classifier import AttentionClassifier
from attngeo.tabular.network import MISSING
from attngeo.tabular.tables import read_table

MASK = "[MASK]"


def tabulate_attention(model: AttentionClassifier, table: Any) -> pd.DataFrame:
    """The attention of each cell of each row, when it is masked, on the cells of its row.

    table: rows without the response, with the columns of the training rows. Columns: row (from 1), cell (that attends),
    on (the cell that it attends to), value (of that cell, as text; [MASK] for one that is masked), head, attention.
    Raises TableError as `model.predict`.
    """
    frame, weights = read_table(table), model.attention(table)  # [rows, heads, K, K]
    names = np.array([str(name) for name in model.columns_], dtype=object)
    codes = model.coding_.encode(frame, None, "mask")
    values = np.full(codes.shape, MASK, dtype=object)
    for at, place in enumerate(model.coding_.place(frame)):
        known = codes[:, place] != MISSING
        values[known, place] = frame.iloc[:, at][known].astype(str)
    row, head, cell, on = np.indices(weights.shape).reshape(4, -1)
    columns = {"row": row + 1, "cell": names[cell], "on": names[on], "value": values[row, on], "head": head}
    return pd.DataFrame(columns).assign(attention=weights.reshape(-1))


def tabulate_encodings(model: AttentionClassifier) -> pd.DataFrame:
    """The encoding of each category, projected on its two principal components; one row for each category.

    Encodings are the vectors that attention sees: of the category plus of its column. Columns: column, value (of a bin,
    the median of its training values), x, y.
    """
    columns = model.coding_.columns
    pairs = [(str(column.name), _name(value)) for column in columns for value in column.decode_all()]
    of_columns = np.repeat(model.feature_encodings_, [column.size for column in columns], axis=0)
    points = model.category_encodings_.to_numpy() + of_columns
    points = points - points.mean(0)
    directions = np.linalg.svd(points, full_matrices=False)[2][:2]
    largest = np.take_along_axis(directions, np.abs(directions).argmax(1)[:, None], 1)
    placed = (
        points @ (directions * np.sign(largest)).T
    )  # an axis has no sign of its own: its largest number is positive
    return pd.DataFrame(pairs, columns=["column", "value"]).assign(x=placed[:, 0], y=placed[:, 1])


def _name(value: Any) -> str:
    """A category as text. A median of whole numbers has no fraction."""
    return format(value, ".10g") if isinstance(value, float) else str(value)
