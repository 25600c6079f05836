"""What a fitted classifier has learned, as tables that figures are drawn from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from attngeo.tabular.classifier import AttentionClassifier
from attngeo.tabular.tables import read_table

MASK = "[MASK]"


def tabulate_attention(model: AttentionClassifier, row: Any) -> pd.DataFrame:
    """The attention of each cell of one row, when it is masked, on all cells; one row for each pair and head.

    row: a table of one row, without the response. Columns: cell (that attends), on (the cell that it attends to), value
    (of that cell), head, attention. Raises TableError as `model.predict`.
    """
    frame = read_table(row)
    names = [str(name) for name in model.columns_]
    values = [*map(str, frame.iloc[0]), MASK]
    weights = model.attention(row)[0]
    return pd.DataFrame(
        [
            {"cell": names[i], "on": names[j], "value": values[j], "head": head, "attention": float(matrix[i, j])}
            for head, matrix in enumerate(weights)
            for i in range(len(names))
            for j in range(len(names))
        ]
    )


def tabulate_encodings(model: AttentionClassifier) -> pd.DataFrame:
    """The encoding of each category, projected on its two principal components; one row for each category.

    Encodings are the vectors that attention sees: of the category plus of its column. Columns: column, value, x, y.
    """
    columns = model.coding_.columns
    pairs = [(str(column.name), str(value)) for column in columns for value in column.decode_all()]
    of_columns = np.repeat(model.feature_encodings_, [column.size for column in columns], axis=0)
    points = model.category_encodings_.to_numpy() + of_columns
    points = points - points.mean(0)
    directions = np.linalg.svd(points, full_matrices=False)[2][:2]
    largest = np.take_along_axis(directions, np.abs(directions).argmax(1)[:, None], 1)
    placed = (
        points @ (directions * np.sign(largest)).T
    )  # an axis has no sign of its own: its largest number is positive
    return pd.DataFrame(pairs, columns=["column", "value"]).assign(x=placed[:, 0], y=placed[:, 1])
