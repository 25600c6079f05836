"""`attngeo tabular fit`: attention and the baselines on a user's own table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attngeo.errors import UsageError
from attngeo.options import RESULTS
from attngeo.progress import is_first_process
from attngeo.tabular.own_fit import FitOptions
from attngeo.tabular.summary import OURS

from ..declare import with_options
from ..messages import say
from ..options import Output, OutputFormat, Quiet, RowsFormat, Verbose
from ..outputs import check_outputs, deliver_rows, hold_folders

if TYPE_CHECKING:
    import pandas as pd

    from attngeo.tabular.classifier import AttentionClassifier


@with_options
def fit(
    options: FitOptions,
    train: Annotated[str, typer.Argument(metavar="TRAIN", help="Training rows: a .csv, .tsv or .parquet file")],
    save: Annotated[
        Path | None,
        typer.Option(
            "--save",
            metavar="FOLDER",
            help="Save the attention model to a new folder, for attngeo tabular predict",
            rich_help_panel=RESULTS,
        ),
    ] = None,
    output: Output = None,
    encodings_output: Annotated[
        Path | None,
        typer.Option(
            "--encodings-output",
            metavar="FILE",
            help="Write the encodings of categories in two dimensions, for attngeo plot encodings",
            rich_help_panel=RESULTS,
        ),
    ] = None,
    format: RowsFormat = OutputFormat.table,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Classify the rows of a table by attention, beside the methods of the paper.

    Each method is fitted to the training rows and measured on the test rows. Numbers with fractions are cut into bins.
    A row without a label trains attention, too. The error of calibration is 0 if a confidence of 0.8 is right 8 times
    in 10.

    Examples:
        attngeo tabular fit cars.csv --target mpg_class
        attngeo tabular fit train.csv --target y --test test.csv --methods atn,lr
        attngeo tabular fit train.csv --target y --methods atn --save model
    """
    outputs = output or []
    files = [*outputs, *([encodings_output] if encodings_output else [])]
    check_outputs(files, inputs=[train, *([options.test] if options.test else [])])
    if OURS not in options.method_names and (save or encodings_output):
        what = "save" if save else "encodings_output"
        raise UsageError(f"{what} requires {OURS} among the methods; the others cannot be saved or drawn")
    with hold_folders(save):
        from attngeo.tabular.own_fit import fit_own_table, read_tables

        from ..progress import Bar

        tables = read_tables(train, options)
        speaks = is_first_process()
        with Bar("fit", quiet=quiet or not speaks, verbose=verbose and speaks) as progress:
            fitted = fit_own_table(tables, options, progress, to_save=save is not None)
        if speaks and fitted.model is not None:
            _keep(fitted.model, save, encodings_output)
    if not speaks:
        return
    if save is not None and not quiet:
        say(f"{save}: saved; attngeo tabular predict {save} ROWS.csv uses it")
    deliver_rows(fitted.rows, outputs, format, _print_scores)


def _keep(model: AttentionClassifier, folder: Path | None, encodings: Path | None) -> None:
    """Write what was learned, where it is asked for."""
    from attngeo.tables.write import write_table
    from attngeo.tabular.saving import save_classifier
    from attngeo.tabular.views import tabulate_encodings

    if folder is not None:
        save_classifier(model, folder)
    if encodings is not None:
        write_table(tabulate_encodings(model), encodings)


def _print_scores(rows: pd.DataFrame) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from attngeo.tabular.methods import METHODS

    from ..cells import format_number
    from ..console import Terminal

    numbers = [name for name in ("accuracy", "mse", "log_loss", "calibration_error") if rows[name].notna().any()]
    first = rows.iloc[0]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("method")
    for name in numbers:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows.to_dict("records"):
        style = "bold" if row["method"] == OURS else ""
        table.add_row(METHODS[row["method"]].label, *(format_number(row[name]) for name in numbers), style=style)
    console = Terminal()
    console.print(table)
    console.print(f"{first['train_rows']:,} rows train, {first['test_rows']:,} test.", highlight=False)
