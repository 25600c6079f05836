"""`attngeo efa similar`: the items that go with an item."""

from __future__ import annotations

from typing import Annotated

import typer

from attngeo.options import COMPUTATION

from ..options import Output, OutputFormat, RowsFormat
from ..outputs import check_outputs, deliver_rows
from .arguments import SavedModel
from .predict import print_frame


def similar(
    model: SavedModel,
    item: Annotated[str, typer.Argument(metavar="ITEM", help="Item of the training data")],
    top: Annotated[
        int, typer.Option("--top", metavar="N", min=1, help="Number of items", rich_help_panel=COMPUTATION)
    ] = 10,
    output: Output = None,
    format: RowsFormat = OutputFormat.table,
) -> None:
    """List the items that go with an item, such as products bought together.

    The score of two items is δ·β of one and the other, in both orders, for their center and context vectors (section
    6.3 of the paper). The item itself is left out.

    Examples:
        attngeo efa similar model Limes
        attngeo efa similar model 21903 --top 3 --format json
    """
    outputs = output or []
    check_outputs(outputs)

    from attngeo.efa import load_model
    from attngeo.efa.embeddings import rank_similar
    from attngeo.efa.own_predict import find_item

    loaded = load_model(model)
    frame = rank_similar(loaded.model_, loaded.items_, find_item(loaded, item), top)
    deliver_rows(frame, outputs, format, print_frame)
