"""`attngeo plot`: figures of results files or models."""

from __future__ import annotations

import inspect
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from attngeo.checkpoints.access import HubAccess
from attngeo.choices import DRAWING, one_of, whole
from attngeo.errors import GET_BROWSER
from attngeo.figures.fit import fit_figure
from attngeo.figures.kinds import FIGURES, PlotOptions
from attngeo.figures.save import save_figure

from .declare import with_options
from .outputs import Verbosity, check_outputs, complete_models, file_option
from .progress import Bar

INPUT_HELP = (
    "File of score, positions, compare, analogy, pretrain, tabular or efa; folder of pretrain; or model, as for score"
)


# Pixels of a side of a figure, at least and at most: a smaller one has no room for titles.
LIMITS = (300, 10_000)
PIXELS = partial(typer.Option, metavar="PIXELS", rich_help_panel=DRAWING)


@with_options
def plot(
    *,
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="What to draw: a kind listed above",
            autocompletion=lambda: list(FIGURES),
        ),
    ],
    inputs: Annotated[list[str], typer.Argument(metavar="INPUT", help=INPUT_HELP, autocompletion=complete_models)],
    output: Annotated[
        list[Path] | None,
        file_option(
            "-o",
            "--output",
            help="Write the figure to a .html .json .png .svg or .pdf file; may be repeated",
            show_default="KIND.html in the working folder",
        ),
    ] = None,
    width: Annotated[
        int | None, PIXELS(help="Width of the figure", show_default="1000, or that of a wider page")
    ] = None,
    height: Annotated[
        int | None,
        PIXELS(
            help="Height of the figure; it is higher if its panels or legend need it",
            show_default="600, if the kind has no own",
        ),
    ] = None,
    options: PlotOptions,
    hub: HubAccess,
    verbosity: Verbosity,
) -> None:
    """Draw a figure of scores, a matrix, training, analogies, methods on tables or attention over items.

    Figures with a number are like those of Saponati et al. 2025 (arXiv 2502.10927).

    Images (.png, .svg, .pdf) require attngeo[images], and Chromium or Chrome: {browser}.

    Kinds:
    {kinds}

    Examples:
        attngeo plot heatmap demo:minilm
        attngeo plot size scores.parquet --score directionality -o size.png
        attngeo plot matrix demo:minilm --layer 2 --head 5 -o matrix.pdf
    """
    spec = FIGURES[one_of("kind", kind, FIGURES)]
    spec.check_given(options.model_fields_set)
    for side, pixels in (("width", width), ("height", height)):
        if pixels is not None:
            whole(side, pixels, *LIMITS)
    files = output or [Path(f"{kind}.html")]
    check_outputs((), files, inputs)

    from attngeo.reporting.plots import plot as draw_figure

    with Bar(inputs[0], verbosity) as progress:
        figure = draw_figure(kind, inputs, options=options, hub=hub, progress=progress)
    figure.update_layout(width=width or figure.layout.width, height=height or figure.layout.height)
    for path in files:
        save_figure(figure, path)
    is_fitted = any(path.suffix.lower() != ".json" for path in files)
    needed = fit_figure(figure).layout.height if height and is_fitted else None
    if height and needed and needed > height:
        verbosity.note(f"the figure is {needed} pixels high, not {height}: its panels or its legend need them")
    if not output:
        verbosity.note(f"{files[0]}: written")


KINDS = "\n".join(f"    {spec.name}  {spec.describe()}" for spec in FIGURES.values())
# Python removes the indentation of docstrings since version 3.13.
plot.__doc__ = inspect.cleandoc(plot.__doc__ or "").replace("{kinds}", KINDS).replace("{browser}", GET_BROWSER)
