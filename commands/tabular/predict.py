"""`attngeo tabular predict`: the labels of new rows by a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attngeo.options import COMPUTATION, INPUT
from attngeo.tabular.options import Unseen

from ..options import Output, OutputFormat, Quiet, RowsFormat
from ..outputs import check_outputs, print_rows


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that attngeo tabular fit --save wrote")],
    rows: Annotated[str, typer.Argument(metavar="ROWS", help="Rows to predict: a .csv, .tsv or .parquet file")],
    output: Output = None,
    format: RowsFormat = OutputFormat.table,
    unseen: Annotated[
        Unseen | None,
        typer.Option(
            "--unseen",
            help="What a value that no training row has is: an error, or masked as a missing one; by default as fitted",
            rich_help_panel=COMPUTATION,
        ),
    ] = None,
    missing: Annotated[
        list[str] | None,
        typer.Option(
            "--missing",
            metavar="TEXT",
            help="Text that is a missing cell; may be repeated [default: an empty cell, NA, NaN, ?]",
            rich_help_panel=INPUT,
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Predict the labels of the rows of a table by a saved model.

    A line for each row: its label, the probability of that label, and the probability of each label. A column of the
    labels in ROWS is ignored.

    Examples:
        attngeo tabular predict model rows.csv
        attngeo tabular predict model rows.csv -o predicted.csv --unseen mask
    """
    del quiet  # there is nothing to be silent about: no progress, no notes
    check_outputs(output or [], inputs=[rows])

    from attngeo.tables.write import write_table
    from attngeo.tabular.files import MISSING
    from attngeo.tabular.own_fit import predict_own_table
    from attngeo.tabular.saving import load_classifier

    classifier = load_classifier(model)
    if unseen is not None:
        classifier.set_params(unseen=unseen)
    predicted = predict_own_table(classifier, rows, tuple(missing or MISSING))
    for path in output or []:
        write_table(predicted, path)
    if format is not OutputFormat.table:
        print_rows(predicted, format)
        return

    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from attngeo.bounds.escape import printable

    from ..cells import format_number
    from ..console import Terminal

    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("row", justify="right")
    table.add_column("prediction")
    table.add_column("probability", justify="right")
    for row in predicted.to_dict("records"):
        table.add_row(str(row["row"]), printable(str(row["prediction"])), format_number(row["probability"]))
    Terminal().print(table)
