"""`attngeo tabular predict`: the labels of new rows by a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attngeo.options import RESULTS
from attngeo.tabular.own_fit import PredictOptions

from ..declare import take_options
from ..options import Output, OutputFormat, RowsFormat
from ..outputs import check_outputs, deliver_rows

if TYPE_CHECKING:
    import pandas as pd


@take_options(PredictOptions)
def predict(
    options: PredictOptions,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that attngeo tabular fit --save wrote")],
    rows: Annotated[str, typer.Argument(metavar="ROWS", help="Rows to predict: a .csv, .tsv or .parquet file")],
    output: Output = None,
    attention_output: Annotated[
        Path | None,
        typer.Option(
            "--attention-output",
            metavar="FILE",
            help="Write the attention of each row's cells on each other, for attngeo plot row-attention",
            rich_help_panel=RESULTS,
        ),
    ] = None,
    format: RowsFormat = OutputFormat.table,
) -> None:
    """Predict the labels of the rows of a table by a saved model.

    A line for each row: its label, the probability of that label, and the probability of each label. A column of the
    labels in ROWS is ignored.

    Examples:
        attngeo tabular predict model rows.csv
        attngeo tabular predict model rows.csv -o predicted.csv --unseen mask
        attngeo tabular predict model rows.csv --attention-output cells.csv
    """
    outputs = output or []
    check_outputs([*outputs, *([attention_output] if attention_output else [])], inputs=[rows])

    from attngeo.tables.write import write_table
    from attngeo.tabular.own_fit import predict_rows, read_rows
    from attngeo.tabular.saving import load_classifier
    from attngeo.tabular.views import tabulate_attention

    classifier = load_classifier(model)
    frame = read_rows(classifier, rows, options)
    predicted = predict_rows(classifier, frame)
    if attention_output:
        write_table(tabulate_attention(classifier, frame), attention_output)
    deliver_rows(predicted, outputs, format, _print_labels)


def _print_labels(rows: pd.DataFrame) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from attngeo.bounds import printable

    from ..cells import format_number
    from ..console import Terminal

    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("row", justify="right")
    table.add_column("prediction")
    table.add_column("probability", justify="right")
    for row in rows.to_dict("records"):
        table.add_row(str(row["row"]), printable(str(row["prediction"])), format_number(row["probability"]))
    Terminal().print(table)
