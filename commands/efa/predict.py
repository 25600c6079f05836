"""`attngeo efa predict`: what a saved model expects of each row, and how probable the row is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.efa.own_files import is_large
from attngeo.efa.own_predict import EfaPredictOptions, predict_file, predict_large_file

from ..declare import with_options
from ..options import Output, OutputFormat, RowsFormat
from ..outputs import check_outputs, check_parts, deliver_rows
from .arguments import Rows, SavedModel

if TYPE_CHECKING:
    import pandas as pd


@with_options
def predict(
    options: EfaPredictOptions,
    model: SavedModel,
    data: Rows,
    output: Output = None,
    format: RowsFormat = OutputFormat.table,
) -> None:
    """Predict each row of a table from the other rows of its sequence by a saved model.

    The rows of DATA with further columns: log_prob, and predicted_mean for values, or predicted_item and its
    probability for items. An empty value, or item of a model of items, is predicted from the rows that have one. A
    large Parquet file, in which the rows of each sequence are together, is read in parts, and only written to files.

    Examples:
        attngeo efa predict model ratings.csv
        attngeo efa predict model baskets.parquet -o predicted.parquet
    """
    outputs = output or []
    check_outputs(outputs, inputs=[data])
    if not is_large(data, options.in_memory):
        deliver_rows(predict_file(model, data, options), outputs, format, print_frame)
        return
    check_parts(outputs, format, data)

    from ..progress import Bar

    with Bar("predict", quiet=False, verbose=False) as progress:
        predict_large_file(model, data, outputs, options, progress=progress)


# Numbers that are the answer.
ADDED = ("log_prob", "predicted_mean", "probability", "score")


def print_frame(rows: pd.DataFrame) -> None:
    """Print the columns of a table; a narrow terminal lacks some numbers of the table itself, the last ones first."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from attngeo.bounds import printable

    from ..tables import Terminal, drop_columns, format_number, is_missing

    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    numeric = [name for name in rows.columns if rows[name].dtype.kind == "f"]
    shown = {name: printable(str(name)).replace("_", " ") for name in rows.columns}
    for name in rows.columns:
        table.add_column(shown[name], justify="right" if name in numeric else "left")
    for row in rows.to_dict("records"):
        table.add_row(
            *(
                format_number(row[name]) if name in numeric or is_missing(row[name]) else printable(str(row[name]))
                for name in rows.columns
            )
        )
    console = Terminal()
    console.print(drop_columns(table, console, [shown[name] for name in reversed(numeric) if name not in ADDED]))
