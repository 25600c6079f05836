"""From models to the table of what changed between the first one and each other: kept results, or computed ones.

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
    """What changed from the first of some models to each other one, in the attention of every layer and head.

    A form M = Wq·Wkᵀ with rotary embeddings is one of the relative offset of two tokens. Norms and inner products are
    means over all offsets, so that the change is that of what the running model can do: see `attngeo.geometry.offsets`.
    Heads that are at another place in the other model are found if its layers have the same number of heads. If models
    have other numbers of layers, layers at the same relative depth are side by side, and their changes are missing;
    these are missing, too, where sizes differ. Results are kept as those of `score`.

    Args:
        models: two or more, of the kinds that `score` takes, or a glob of revisions such as `org/name@step*`, whose
            first is compared with each later one. One model with an adapter is compared with itself with the adapter.
        options: what is compared, and how; its fields are keywords, too:
            {options}
        revisions: which revisions of one repository are compared, if there are three or more models; its field is a
            keyword, too:
            {revisions}
        hub: access to the Hub; its fields are keywords, too:
            {hub}
        results: kept results; its field is a keyword, too:
            {results}
        study: how several models are compared with the first; its fields are keywords, too:
            {study}
        progress: called before each file and layer.

    Returns:
        A DataFrame with one row for each other model and layer (`head` is missing), and with `per_head` for each head.
        Its columns are `attngeo.columns("compare", circuit=…)`:

            symmetry, symmetry_other, ...   the scores of each, at offset 0 or `rope_offset`
            change                          ‖M' − M‖/‖M‖ over all offsets; of a layer, of the sum over its heads
            cosine                          ⟨M, M'⟩/(‖M‖·‖M'‖) over all offsets
            query_overlap, key_overlap      ‖UᵀV‖²/head_dim of orthonormal bases of the spaces that queries, and keys,
                                            of a head read; by chance head_dim/d_model; missing for layers
            note                            caveats of both; why numbers are missing

        Its `attrs` say how it was made.

    Raises:
        ModelUnavailableError: a model cannot be found or reached.
        CheckpointError: a model cannot be read, or no stack is in both models.
        UsageError: a value is no choice or outside its limits; a model is given twice, or there are fewer than two; of
            three or more, revisions have equal weights.

    >>> import attngeo
    >>> rows = attngeo.compare(["demo:encoder", "demo:decoder"])  # trained from one seed
    >>> rows.layer.tolist(), bool((rows.change > 0.5).all())
    ([0, 1, 2], True)
    """
    listed = expand_models(models, session.hub)
    refuse_repeats(listed, revisions, session)
    return ask_for_one_table(QUESTIONS["compare"], listed, session, options=options)


def list_pairs(models: Sequence[Model], options: CompareOptions) -> list[tuple[Model, Model]]:
    """The first model with each other one.

    Raises UsageError for fewer than two models, unless an adapter makes another one of the first, and for a model that
    is given twice.
    """
    if len(models) == 1 and options.adapter:
        return [(models[0], models[0])]
    if len(models) < 2:
        raise UsageError(
            "compare has fewer than two models, expected a first one and others, a glob of revisions such as "
            "org/name@step*, or one model and an adapter"
        )
    repeated = find_repeated(models)
    if repeated is not None:
        raise UsageError(f"{name_model(repeated)} is given twice, expected each model once")
    return [(models[0], other) for other in models[1:]]


def refuse_repeats(models: Sequence[Model], revisions: RevisionOptions, session: Session) -> None:
    """Refuse revisions with equal weights, as of `score`. Two models alone may be equal: that is what is asked."""
    if len(models) > 2:
        refuse_repeated_revisions(models, revisions, session)
