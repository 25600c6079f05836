"""From models to the table of changes between the first and each other model: kept results, or computed ones.

Imports nothing heavy: pandas when a table is made, torch when it is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attngeo.changes.compare_options import CompareOptions
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.reference import Model
from attngeo.errors import UsageError
from attngeo.keywords import takes
from attngeo.progress import ProgressCallback
from attngeo.questions.asking import ask_for_one_table
from attngeo.questions.table import QUESTIONS
from attngeo.session import ResultOptions, Session, StudyOptions
from attngeo.studies.models import expand_models, find_repeated, name_model
from attngeo.studies.revisions import RevisionOptions, refuse_repeated_revisions

if TYPE_CHECKING:
    import pandas as pd


class ChangeKeywords(CompareOptions, RevisionOptions, HubAccess, ResultOptions, StudyOptions):
    """The keywords of `compare`."""

    options: CompareOptions | None = None
    revisions: RevisionOptions | None = None
    hub: HubAccess | None = None
    results: ResultOptions | None = None
    study: StudyOptions | None = None
    progress: ProgressCallback | None = None


@takes(ChangeKeywords)
def compare(  # noqa: D417 - the keywords are those of a session
    models: Model | Sequence[Model], options: CompareOptions, *, revisions: RevisionOptions, session: Session
) -> pd.DataFrame:
    """Changes from the first model to each of the others, in the attention of every layer and head.

    With rotary embeddings, the form M = Wq·Wkᵀ depends on the relative offset of two tokens. Norms and inner products
    are means over all offsets, so that `change` covers all relative positions of the running model: see
    `attngeo.geometry.offsets`. If the other model has the same heads in another order, they are matched. Layers of
    models with different numbers of layers are paired by relative depth, and `change` is missing; it is also missing if
    the sizes differ. Results are kept, as for `score`.

    Args:
        models: two or more models, each as for `score`, or a pattern of revisions such as `org/name@step*`, whose first
            is compared with each later one. With an adapter, one model is enough: it is compared with itself plus the
            adapter.
        options: what is compared, and how; its fields are keywords, too:
            {options}
        revisions: what to do about revisions with equal weights, among three or more models; its field is a keyword,
            too:
            {revisions}
        hub: access to the Hub; its fields are keywords, too:
            {hub}
        results: kept results; its field is a keyword, too:
            {results}
        study: how to compare several models with the first; its fields are keywords, too:
            {study}
        progress: called before each file and layer.

    Returns:
        A DataFrame with one row per layer of each other model (`head` is missing) and, with `per_head`, one per head.
        Its columns are `attngeo.columns("compare", circuit=…)`:

            symmetry, symmetry_other, ...   scores of both models, at offset 0 or `rope_offset`
            change                          ‖M' − M‖/‖M‖ over all offsets; for a layer, of the sum over its heads
            cosine                          ⟨M, M'⟩/(‖M‖·‖M'‖) over all offsets
            query_overlap, key_overlap      ‖UᵀV‖²/head_dim, with orthonormal bases U and V of the directions that the
                                            queries (keys) of a head read; head_dim/d_model by chance; missing for
                                            layers
            note                            caveats about both models, and why numbers are missing

        Its `attrs` say how it was made.

    Raises:
        ModelUnavailableError: a model cannot be found or reached.
        CheckpointError: a model cannot be read, or the models have no stack in common.
        UsageError: an option has an invalid value; a model is given twice; there are fewer than two models; or, with
            three or more, two revisions have equal weights.

    >>> import attngeo
    >>> rows = attngeo.compare(["demo:encoder", "demo:decoder"])  # trained from one seed
    >>> rows.layer.tolist(), bool((rows.change > 0.5).all())
    ([0, 1, 2], True)
    """
    listed = expand_models(models, session.hub)
    refuse_repeats(listed, revisions, session)
    return ask_for_one_table(QUESTIONS["compare"], listed, session, options=options)


def list_pairs(models: Sequence[Model], options: CompareOptions) -> list[tuple[Model, Model]]:
    """Pairs of the first model and each other model.

    Raises UsageError for fewer than two models, unless an adapter is given, and for a model that is given twice.
    """
    if len(models) == 1 and options.adapter:
        return [(models[0], models[0])]
    if len(models) < 2:
        raise UsageError(
            "compare needs at least two models; give two or more, a pattern of revisions such as org/name@step*, or "
            "one model and an adapter"
        )
    repeated = find_repeated(models)
    if repeated is not None:
        raise UsageError(f"{name_model(repeated)} is given twice, expected each model once")
    return [(models[0], other) for other in models[1:]]


def refuse_repeats(models: Sequence[Model], revisions: RevisionOptions, session: Session) -> None:
    """Refuse revisions with equal weights, as `score` does. Exactly two models may have equal weights."""
    if len(models) > 2:
        refuse_repeated_revisions(models, revisions, session)
