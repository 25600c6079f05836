"""`attngeo efa predict`: what a saved model expects of each row, and how probable the row is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.efa.own_fit import EfaPredictOptions

from ..declare import take_options
from ..options import Output, OutputFormat, RowsFormat
from ..outputs import check_outputs, deliver_rows
from .arguments import Rows, SavedModel

if TYPE_CHECKING:
    import pandas as pd


@take_options(EfaPredictOptions)
def predict(
    options: EfaPredictOptions,
    model: SavedModel,
    data: Rows,
    output: Output = None,
    format: RowsFormat = OutputFormat.table,
) -> None:
    """Predict each row of a table from the other rows of its sequence by a saved model.

    The rows of DATA with further columns: log_prob, and predicted_mean for values, or predicted_item and its
    probability for items. An empty value, or item of a model of items, is predicted from the rows that have one.

    Examples:
        attngeo efa predict model ratings.csv
        attngeo efa predict model baskets.parquet -o predicted.parquet
    """
    outputs = output or []
    check_outputs(outputs, inputs=[data])

    from attngeo.efa.own_fit import predict_file

    deliver_rows(predict_file(model, data, options), outputs, format, print_frame)


def print_frame(rows: pd.DataFrame) -> None:
    """Print all columns of a table."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from attngeo.bounds.escape import printable

    from ..cells import format_number
    from ..console import Terminal

    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    numeric = [name for name in rows.columns if rows[name].dtype.kind == "f"]
    for name in rows.columns:
        table.add_column(printable(str(name)).replace("_", " "), justify="right" if name in numeric else "left")
    for row in rows.to_dict("records"):
        table.add_row(
            *(format_number(row[name]) if name in numeric else printable(str(row[name])) for name in rows.columns)
        )
    Terminal().print(table)
