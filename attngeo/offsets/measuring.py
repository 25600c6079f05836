"""From a model to the table of positions: a kept table, or else a computed one.

Imports nothing heavy: pandas when a table is made, torch when it is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.reference import Model
from attngeo.keywords import takes
from attngeo.offsets.options import PositionOptions
from attngeo.progress import ProgressCallback
from attngeo.questions.asking import ask_for_one_table
from attngeo.questions.table import QUESTIONS
from attngeo.session import ResultOptions, Session, StudyOptions

if TYPE_CHECKING:
    import pandas as pd


class PositionKeywords(PositionOptions, HubAccess, ResultOptions, StudyOptions):
    """The keywords of `positions`."""

    options: PositionOptions | None = None
    hub: HubAccess | None = None
    results: ResultOptions | None = None
    study: StudyOptions | None = None
    progress: ProgressCallback | None = None


@takes(PositionKeywords)
def positions(  # noqa: D417 - the keywords are those of a session
    models: Model | Sequence[Model], options: PositionOptions, *, session: Session
) -> pd.DataFrame:
    """Where each head of a model looks by position alone, from its query and key matrices.

    These matrices favour some offsets Δ, the query's position minus the key's, whatever the tokens. The position kernel
    κ(Δ) says how much: see `attngeo.geometry.positions`. Results are kept, as for `score`.

    Args:
        models: a reference (`org/name[@revision]`, folder, file, `demo:NAME`) or a transformers model in memory; or
            several, with patterns as for `attngeo.score`. If one fails, its error is raised after the others are done.
        options: which heads, and which form; its fields are keywords, too:
            {options}
        hub: access to the Hub; its fields are keywords, too:
            {hub}
        results: kept results; its field is a keyword, too:
            {results}
        study: how several models are asked; its fields are keywords, too:
            {study}
        progress: called before each file and layer.

    Returns:
        A DataFrame with one row per head. Its columns are `attngeo.columns("positions")`:

            fast_share         share of the fastest quarter of the rotary pairs in Σ‖M_i‖, in [0, 1]; missing without
                               rotary embeddings
            previous_token     (κ(1) − mean of κ(0), κ(2), κ(3))/Σ‖M_i‖; with a table of positions, divided by the
                               standard deviation of the entries of P·M·Pᵀ instead
            peak               the offset of the largest κ among 0 … 64, or −64 … 64 if tokens attend to later ones
            kernel_0 … _8      κ(Δ), in units of the form
            note               how the head knows positions, and caveats; why numbers are missing

        Its `attrs` say how it was made.

    Raises:
        ModelUnavailableError: the model cannot be found or reached.
        CheckpointError: the model cannot be read.
        UsageError: a value is invalid or outside its limits.

    >>> import attngeo
    >>> rows = attngeo.positions("demo:decoder", layers=[0])
    >>> rows[["head", "peak"]].values.tolist()
    [[0, 1], [1, 1], [2, 1], [3, 1]]
    """
    return ask_for_one_table(QUESTIONS["positions"], models, session, options=options)
