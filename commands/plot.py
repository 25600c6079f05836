"""`attngeo plot`: figures of results files or models."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated

import typer

from attngeo.checkpoints.access import HubAccess
from attngeo.choices import one_of
from attngeo.errors import GET_BROWSER
from attngeo.figures.fit import HEIGHT, fit_figure
from attngeo.figures.kinds import FIGURES, FigureSize, PlotOptions
from attngeo.figures.lengths import describe_pixels
from attngeo.figures.save import save_figure

from .declare import with_options
from .models import complete_models
from .outputs import Verbosity, check_outputs, file_option
from .progress import Bar

INPUT_HELP = (
    "File from score, positions, mirrors, compare, analogy, pretrain, tabular or efa; folder from pretrain; model, as "
    "for score; or a quoted pattern of folders or models, 'org/name@step*' or './checkpoints/*'"
)


@with_options
def plot(
    *,
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="Kind of figure, listed above",
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
    size: FigureSize,
    options: PlotOptions,
    hub: HubAccess,
    verbosity: Verbosity,
) -> None:
    """Draw a figure of scores, a matrix, training, analogies, methods on tables or attention over items.

    Figure numbers refer to Saponati et al. 2025 (arXiv 2502.10927).

    Images (.png, .svg, .pdf) require attngeo[images], and Chromium or Chrome: {browser}.
    On paper, 96 pixels of a figure are one inch; a .png file has 192 pixels per inch.

    Kinds:
    {kinds}

    Examples:
        attngeo plot heatmap demo:minilm
        attngeo plot size scores.parquet --score directionality -o size.png
        attngeo plot layers demo:minilm --width 3.4in --title "" -o layers.pdf
    """
    spec = FIGURES[one_of("kind", kind, FIGURES)]
    spec.check_given(options.model_fields_set)
    files = output or [Path(f"{kind}.html")]
    check_outputs((), files, inputs)

    from attngeo.reporting.plots import plot as draw_figure

    with Bar(inputs[0], verbosity) as progress:
        figure = draw_figure(kind, inputs, options=options, size=size, hub=hub, progress=progress)
    for path in files:
        save_figure(figure, path)
    is_fitted = any(path.suffix.lower() != ".json" for path in files)
    unit = size.height if size.height is not None else size.width
    if unit is not None and is_fitted:
        height = figure.layout.height or HEIGHT
        needed = fit_figure(figure).layout.height or HEIGHT
        asked, higher = (describe_pixels(pixels, unit) for pixels in (height, needed))
        if needed > height and higher != asked:  # by more than rounding
            verbosity.note(f"the figure is {higher} high, not {asked}: its panels or its legend need the space")
    if not output:
        verbosity.note(f"{files[0]}: written")


KINDS = "\n".join(f"    {spec.name}  {spec.describe()}" for spec in FIGURES.values())
# Python removes the indentation of docstrings since version 3.13.
plot.__doc__ = inspect.cleandoc(plot.__doc__ or "").replace("{kinds}", KINDS).replace("{browser}", GET_BROWSER)
