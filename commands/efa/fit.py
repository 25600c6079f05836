"""`attngeo efa fit`: a model of a user's own table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attngeo.efa.own_fit import EfaFitOptions
from attngeo.options import RESULTS
from attngeo.progress import is_first_process

from ..declare import with_options
from ..options import Output, OutputFormat, Quiet, RowsFormat, Verbose
from ..outputs import check_outputs, deliver_rows, hold_folders
from .arguments import Rows

if TYPE_CHECKING:
    import pandas as pd


@with_options
def fit(
    options: EfaFitOptions,
    data: Rows,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save",
            metavar="FOLDER",
            help="Save the model to a new folder, for the other commands and for attngeo score",
            rich_help_panel=RESULTS,
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="FOLDER",
            help="Keep the state of an unfinished training there; the same command resumes it",
            rich_help_panel=RESULTS,
        ),
    ] = None,
    output: Output = None,
    format: RowsFormat = OutputFormat.table,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Fit a model to the items of sequences, or to the values of items and places.

    Each row is predicted from the other rows of its sequence, or from those before it. The table has the mean log p of
    a row, constants included, and that of the best distribution which does not see the other rows. If no item occurs
    twice in a sequence, it also has that of the frequencies of items that are not in the context.

    Examples:
        attngeo efa fit baskets.csv --sequence order --item product --save model
        attngeo efa fit ratings.parquet --family poisson --direction uni --save model
        attngeo efa fit days.csv --coordinates lat --coordinates lon --lags yesterday
    """
    outputs = output or []
    inputs = [each for each in (data, options.validation, options.test) if each]
    check_outputs(outputs, inputs=inputs)
    with hold_folders(save, resume):
        from attngeo.efa.own_fit import fit_own_sequences

        from ..progress import Bar

        speaks = is_first_process()
        with Bar("fit", quiet=quiet or not speaks, verbose=verbose and speaks) as progress:
            folder = None if resume is None else str(resume)
            fitted = fit_own_sequences(data, options, folder=folder, save=save, progress=progress)
    if not speaks:
        return
    deliver_rows(fitted.rows, outputs, format, _print_scores)


def _print_scores(rows: pd.DataFrame) -> None:
    from ..tables import Terminal, format_number, start_table

    first = rows.iloc[0]
    baselines = ["without_context", *(["without_repeats"] if rows["without_repeats"].notna().any() else [])]
    table = start_table("data", "sequences", "rows", "log p", *(name.replace("_", " ") for name in baselines))
    for row in rows.to_dict("records"):
        numbers = (format_number(row[name]) for name in ("log_prob", *baselines))
        table.add_row(row["data"], f"{row['sequences']:,}", f"{row['rows']:,}", *numbers)
    console = Terminal()
    console.print(table)
    sees = "all other rows of its sequence" if first["direction"] == "bi" else "the rows of its sequence before it"
    console.print(f"{first['part'].capitalize()}, {first['family']}; each row given {sees}.", highlight=False)
