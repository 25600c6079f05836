"""`attngeo efa attention`: how much the items of a sequence attend to each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attngeo.options import RESULTS

from ..options import Output, OutputFormat, RowsFormat
from ..outputs import check_outputs, deliver_rows
from .arguments import SavedModel

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    import pandas as pd
    from rich.table import Table

# Weights of a row that are listed where there is no room for all.
STRONGEST = 5
# Sequences that are printed.
PRINTED = 4


def attention(
    model: SavedModel,
    basket: Annotated[
        str,
        typer.Argument(
            metavar="BASKET",
            help="Items with commas between them, in quotation marks if an item has one; or a .csv, .tsv or .parquet "
            "file of sequences",
        ),
    ],
    output: Output = None,
    places_output: Annotated[
        Path | None,
        typer.Option(
            "--places-output",
            metavar="FILE",
            help="Write the attention of places with coordinates on each other, for attngeo plot place-attention; "
            "print nothing, unless -o is given",
            rich_help_panel=RESULTS,
        ),
    ] = None,
    format: RowsFormat = OutputFormat.table,
) -> None:
    """Show how much each item attends to the others when it is predicted (figure 3 of the paper).

    On the terminal, each line is a masked item, and weights are means over the heads of a layer; t-1 is the value at
    an earlier time. Files have a row for each pair of items, layer and head; those of places have means over sequences
    and heads.

    Examples:
        attngeo efa attention model "Limes,Large Lemon,Asparagus"
        attngeo efa attention model baskets.csv -o weights.csv
        attngeo efa attention model temperatures.csv --places-output places.csv
    """
    outputs = output or []
    check_outputs([*outputs, *([places_output] if places_output else [])], inputs=[basket])

    from attngeo.efa import load_model
    from attngeo.efa.own_predict import read_basket
    from attngeo.efa.views import tabulate_places
    from attngeo.tables.write import write_table

    loaded = load_model(model)
    rows = read_basket(loaded, basket)
    if places_output:
        write_table(tabulate_places(loaded, rows), places_output)
    if outputs or not places_output:
        deliver_rows(loaded.attention_weights(rows), outputs, format, _print_weights)


def _print_weights(rows: pd.DataFrame) -> None:
    from attngeo.bounds import printable

    from ..tables import Terminal, fits, format_number, start_table

    console = Terminal()
    names = rows.dropna(subset="item").set_index("row")["item"].to_dict() if "item" in rows else {}
    sequences = rows["sequence"].unique()
    shown = rows[rows["sequence"].isin(sequences[:PRINTED])]
    for key, part in shown.groupby(["sequence", "layer"], sort=False):
        sequence, layer = key if isinstance(key, tuple) else (key, 0)
        wide = part.pivot_table(index="row", columns=["lag", "other"], values="weight", aggfunc="mean")
        numbers = {other: str(number) for number, other in enumerate(sorted(part["other"].unique()), 1)}
        columns = wide.columns.to_frame(index=False)
        named = [numbers[other] + (f" t-{lag}" if lag else "") for lag, other in columns.to_numpy()]
        table = start_table(f"layer {layer}", *named)
        table.title, table.title_justify = f"sequence {printable(str(sequence))}", "left"
        for number, (row, weights) in enumerate(zip(wide.index, wide.to_numpy(), strict=True), 1):
            label = f"{number} {printable(str(names.get(row, '')))}".strip()
            table.add_row(label, *(format_number(weight, ".2f") for weight in weights))
        console.print(table if fits(table, console) else _list_strongest(table, wide, numbers, names))
    if len(sequences) > PRINTED:
        left = len(sequences) - PRINTED
        more = f"And {left:,} more sequence{'s' if left > 1 else ''}; -o FILE writes all."
        console.print(more, highlight=False)


def _list_strongest(table: Table, wide: pd.DataFrame, numbers: Mapping[Any, str], names: Mapping[Any, Any]) -> Table:
    """The largest weights of each row, for a table without room for all. numbers: of the rows, as labels have them."""
    import numpy as np

    from attngeo.bounds import printable

    from ..tables import format_number, start_table

    short = start_table(str(table.columns[0].header), f"the {STRONGEST} largest weights")
    short.title, short.title_justify, short.columns[1].justify = table.title, "left", "left"
    for label, weights in zip(table.columns[0].cells, wide.to_numpy(), strict=True):
        shown = []
        for at in np.argsort(-np.nan_to_num(weights), kind="stable")[:STRONGEST]:
            lag, other = wide.columns[at]
            name = f"{numbers[other]} {printable(str(names.get(other, '')))}".strip() + (f" t-{lag}" if lag else "")
            shown.append(f"{name}: {format_number(weights[at], '.2f')}")
        short.add_row(label, ", ".join(shown))
    return short
