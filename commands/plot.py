"""`attngeo plot`: figures of results files or models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from attngeo.choices import one_of
from attngeo.errors import UsageError
from attngeo.figures.kinds import FIGURES
from attngeo.figures.options import PlotOptions
from attngeo.options import DRAWING, RESULTS

from .declare import take_given
from .options import Offline, Quiet, Verbose, complete_models
from .outputs import check_outputs

# Pixels of a side of an image; a smaller one has no room for titles.
SMALLEST, LARGEST = 300, 10_000
INPUT_HELP = "Files that score, analogy or pretrain wrote, folders of pretrain, or models as score takes them"


def complete_kinds(incomplete: str) -> list[str]:
    """The kinds of figures that a shell may complete."""
    return [name for name in FIGURES if name.startswith(incomplete)]


@take_given(PlotOptions)
def plot(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND", show_default=False, help="What to draw: a kind listed above", autocompletion=complete_kinds
        ),
    ],
    inputs: Annotated[
        list[str], typer.Argument(metavar="INPUT", show_default=False, help=INPUT_HELP, autocompletion=complete_models)
    ],
    output: Annotated[
        list[Path],
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write the figure to a .html .json .png .svg or .pdf file; may be repeated",
            rich_help_panel=RESULTS,
        ),
    ],
    given: dict[str, Any],
    width: Annotated[
        int | None,
        typer.Option(help="Width of an image; it is drawn at twice that", metavar="PIXELS", rich_help_panel=DRAWING),
    ] = None,
    height: Annotated[
        int | None, typer.Option(help="Height of an image", metavar="PIXELS", rich_help_panel=DRAWING)
    ] = None,
    offline: Offline = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Draw a figure of scores, a matrix, training or analogies.

    Kinds:
    {kinds}

    Examples:
        attngeo plot heatmap demo:minilm -o minilm.html
        attngeo plot size scores.parquet --score directionality -o size.png
        attngeo plot matrix demo:minilm --layer 2 --head 5 -o matrix.pdf
    """
    spec = FIGURES[one_of("kind", kind, FIGURES)]
    spec.check_given(given)
    for name, value in (("width", width), ("height", height)):
        if value is not None and not SMALLEST <= value <= LARGEST:
            raise UsageError(f"{name} is {value}, expected from {SMALLEST} to {LARGEST:,} pixels")
    options = PlotOptions(**given)
    check_outputs((), output, inputs)

    from attngeo.figures.save import save_figure
    from attngeo.reporting.plots import plot as draw_figure

    from .progress import Bar

    with Bar(inputs[0], quiet=quiet, verbose=verbose) as progress:
        figure = draw_figure(kind, inputs, options=options, offline=offline, progress=progress)
    for path in output:
        save_figure(figure, path, width=width, height=height)


def _list_kinds() -> str:
    """A line for each kind, as `--help` shows it."""
    return "\n".join(f"        {spec.name}  {spec.describe()}" for spec in FIGURES.values())


plot.__doc__ = (plot.__doc__ or "").replace("    {kinds}", _list_kinds())
