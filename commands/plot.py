"""`attngeo plot`: figures from results files or from models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from attngeo.choices import FigureKind, Shown
from attngeo.errors import UsageError

from .options import Offline, Quiet, Verbose, model_names
from .outputs import check_outputs

# Pixels of a side of an image; in smaller ones titles have no room.
SMALLEST, LARGEST = 300, 10_000
INPUT_HELP = "Files that score, analogy or pretrain wrote, folders of pretrain, or models as score takes them."


def plot(
    kind: Annotated[FigureKind, typer.Argument(metavar="KIND", show_default=False, help="What to draw; see above.")],
    inputs: Annotated[
        list[str], typer.Argument(metavar="INPUT", show_default=False, help=INPUT_HELP, autocompletion=model_names)
    ],
    output: Annotated[
        list[Path], typer.Option("-o", "--output", help="A .html .json .png .svg or .pdf file; may be repeated.")
    ],
    score: Annotated[
        Shown | None, typer.Option(help="Which score; loss is for training.", show_default="symmetry")
    ] = None,
    layer: Annotated[int | None, typer.Option(help="Of matrix: which layer.", show_default="0")] = None,
    head: Annotated[int | None, typer.Option(help="Of matrix: one head of it.", show_default="the whole layer")] = None,
    stack: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this stack: encoder, decoder, cross, vision …")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="COLUMN=VALUE", help="Only these rows of the results; may be repeated."),
    ] = None,
    published: Annotated[
        bool | None,
        typer.Option(
            "--published/--no-published", help="Of size: the 223 published models behind.", show_default="published"
        ),
    ] = None,
    width: Annotated[int | None, typer.Option(help="Of an image, in pixels; it is drawn at twice that.")] = None,
    height: Annotated[int | None, typer.Option(help="Of an image, in pixels.")] = None,
    offline: Offline = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Draw a figure of scores, of a matrix, of training or of analogies.

    Kinds:
        heatmap  a score of every layer and head
        layers  a score against the layer, with quartiles over heads
        heads  symmetry against directionality, a point for each head
        size  median score against the number of parameters, among published models
        matrix  the entries of one W_qk, and the norms of its rows and columns
        training  loss or scores while a model trained
        training-layers  the same, a line for each layer
        analogies  accuracy at word analogies, with confidence intervals

    Examples:
        attngeo plot heatmap demo:minilm -o minilm.html
        attngeo plot size scores.parquet --score directionality -o size.png
        attngeo plot matrix demo:minilm --layer 2 --head 5 -o matrix.pdf
    """
    check_outputs((), output, inputs)

    from attngeo.figures.save import save_figure
    from attngeo.reporting.plots import USED, View
    from attngeo.reporting.plots import plot as plot_figure

    from .progress import Bar

    options = {"score": score, "layer": layer, "head": head, "stack": stack, "published": published}
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in USED[kind]:
            looked_at = ", ".join(f"--{option}" for option in (*USED[kind], "where"))
            raise UsageError(f"{kind} has no --{name}; what is drawn is chosen with {looked_at}")
    for name, value in (("width", width), ("height", height)):
        if value is not None and not SMALLEST <= value <= LARGEST:
            raise UsageError(f"{name} is {value}, expected from {SMALLEST} to {LARGEST} pixels")
    for text in where or ():
        if "=" not in text.strip("="):
            raise UsageError(f"--where {text!r} is no choice of rows, expected COLUMN=VALUE")
    rows = {text.partition("=")[0]: text.partition("=")[2] for text in where or ()}
    view = View(**given, where=rows)
    with Bar(inputs[0], quiet=quiet, verbose=verbose) as progress:
        figure = plot_figure(kind, inputs, view=view, offline=offline, progress=progress)
    for path in output:
        save_figure(figure, path, width=width, height=height)
