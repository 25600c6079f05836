"""`attngeo efa sample`: sequences, or values, that a saved model draws."""

from __future__ import annotations

from typing import Annotated

import typer

from attngeo.options import COMPUTATION, INPUT

from ..options import Output, OutputFormat, RowsFormat
from ..outputs import check_outputs, deliver_rows
from .arguments import SavedModel
from .predict import print_frame


def sample(
    model: SavedModel,
    sequences: Annotated[
        int, typer.Option("--sequences", metavar="N", min=1, help="Sequences of items", rich_help_panel=COMPUTATION)
    ] = 1,
    length: Annotated[
        int | None,
        typer.Option(
            "--length", metavar="N", min=1, help="Items of a sequence; as many as in training", show_default=False,
            rich_help_panel=COMPUTATION,
        ),
    ] = None,
    given: Annotated[
        str | None,
        typer.Option(
            "--given", metavar="DATA", help="Table of sequences whose values are drawn, for a model of values",
            rich_help_panel=INPUT,
        ),
    ] = None,
    sweeps: Annotated[
        int,
        typer.Option(
            "--sweeps", metavar="N", min=1, help="Sweeps over all positions, for a model of both directions",
            rich_help_panel=COMPUTATION,
        ),
    ] = 20,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed", rich_help_panel=COMPUTATION)] = 0,
    output: Output = None,
    format: RowsFormat = OutputFormat.table,
) -> None:  # fmt: skip
    """Draw sequences of items, or the values of given items, from a saved model.

    A model of direction uni draws one position after the other. One of direction bi draws each position given the
    others, in sweeps (Gibbs sampling).

    Examples:
        attngeo efa sample model --sequences 10 --length 8
        attngeo efa sample model --given ratings.csv --seed 1 -o drawn.csv
    """
    outputs = output or []
    check_outputs(outputs, inputs=[given] if given else [])

    from attngeo.efa import load_model
    from attngeo.efa.own_predict import read_like

    loaded = load_model(model)
    frame = None if given is None else read_like(loaded, given)
    drawn = loaded.sample(sequences, length, given=frame, sweeps=sweeps, seed=seed)
    deliver_rows(drawn, outputs, format, print_frame)
