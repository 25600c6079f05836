"""`attngeo.plot`: a figure of any kind, from files, folders of runs, models or DataFrames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attngeo.checkpoints.access import HubAccess
from attngeo.choices import one_of
from attngeo.errors import DataError, UsageError
from attngeo.figures.kinds import FIGURES
from attngeo.figures.options import PlotOptions
from attngeo.options import takes_after_two
from attngeo.progress import ProgressCallback, ignore_progress
from attngeo.reporting.inputs import FigureInputs, read_frames

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


class PlotKeywords(PlotOptions, HubAccess):
    """The keywords of `plot`."""

    options: PlotOptions | None = None
    hub: HubAccess | None = None
    progress: ProgressCallback | None = None


@takes_after_two(PlotKeywords)
def plot(
    kind: str,
    inputs: Any,
    options: PlotOptions,
    *,
    hub: HubAccess,
    progress: ProgressCallback | None = None,
) -> Figure:
    """Draw a figure of one of the kinds in `attngeo.figures.kinds.FIGURES`.

    inputs: one or several of: a file that `attngeo score`, `analogy` or `pretrain` wrote, a folder of `pretrain`,
    a model's reference, a model in memory, a DataFrame of results.
    {options}
    {hub}
    progress: called while models are read.

    An option that a kind does not use has no effect.
    Raises UsageError for an unknown kind or a score that the kind cannot show, DataError for rows that lack what is
    drawn, and what reading the inputs raises.

    >>> figure = plot("layers", "demo:minilm")
    >>> len(figure.data[-1].x)
    6
    """
    spec = FIGURES[one_of("kind", kind, FIGURES)]
    if spec.scores:
        one_of("score", options.score, spec.scores)
    given = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    if not given:
        raise UsageError("there is nothing to plot, expected a model or a file of results")
    sources = FigureInputs(given=given, spec=spec, options=options, hub=hub, progress=progress or ignore_progress)
    frames = read_frames(sources)
    try:
        return spec.draw(*frames, options=options)
    except DataError as error:
        raise DataError(f"{sources.name}: {error}") from None
