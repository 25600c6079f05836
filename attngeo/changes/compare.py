"""From models to the table of what changed between the first one and each other: kept results, or computed ones.

Imports nothing heavy: pandas when a table is made, torch when it is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from attngeo.bounds.names import in_utf8
from attngeo.changes.compare_options import CompareOptions, compare_columns, number_columns
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.local_files import require_model
from attngeo.checkpoints.reference import Model
from attngeo.errors import UsageError
from attngeo.keywords import takes
from attngeo.progress import ProgressCallback
from attngeo.provenance import merge_origins
from attngeo.scores.score import build_frame, find_pair_record, join_frames, load_kept
from attngeo.session import ResultOptions, Session, StudyOptions
from attngeo.studies.engine import run_study
from attngeo.studies.models import expand_models, find_repeated, name_model
from attngeo.studies.revisions import RevisionOptions, refuse_repeated_revisions
from attngeo.studies.run import require_all

if TYPE_CHECKING:
    import pandas as pd

INTEGERS = ("layer", "head", "key_head")


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
        Its columns are `attngeo.changes.compare_options.compare_columns(circuit)`:

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
    pairs = list_pairs(
        [models] if isinstance(models, str) or not isinstance(models, Sequence) else models, options, session.hub
    )
    refuse_repeats(pairs, revisions, session)
    names = [name_model(other) for _, other in pairs]
    function = partial(compare_pair, options=options)
    outcomes = require_all(run_study(function, pairs, session, names=names))
    return join_changes([outcome.result for outcome in outcomes if outcome.result is not None])


def list_pairs(models: Sequence[Model], options: CompareOptions, hub: HubAccess) -> list[tuple[Model, Model]]:
    """The first model with each other one, with globs of revisions replaced by the revisions.

    Raises UsageError for fewer than two models, unless an adapter makes another one of the first, and for a model that
    is given twice; and as `list_models`.
    """
    listed = expand_models(models, hub)
    if len(listed) == 1 and options.adapter:
        return [(listed[0], listed[0])]
    if len(listed) < 2:
        raise UsageError(
            "compare has fewer than two models, expected a first one and others, a glob of revisions such as "
            "org/name@step*, or one model and an adapter"
        )
    repeated = find_repeated(listed)
    if repeated is not None:
        raise UsageError(f"{name_model(repeated)} is given twice, expected each model once")
    return [(listed[0], other) for other in listed[1:]]


def refuse_repeats(pairs: Sequence[tuple[Model, Model]], revisions: RevisionOptions, session: Session) -> None:
    """Refuse revisions with equal weights, as of `score`. Two models alone may be equal: that is what is asked."""
    if len(pairs) > 1:
        refuse_repeated_revisions([pairs[0][0], *(other for _, other in pairs)], revisions, session)


def compare_pair(models: tuple[Model, Model], session: Session, *, options: CompareOptions) -> pd.DataFrame:
    """The table of changes from one model to another: `compare` of two with a session.

    Raises ModelUnavailableError for a model, an adapter or a configuration that cannot be found.
    """
    first, other = models
    require_model(first, (), options.config)
    require_model(other, options.adapter, options.config)
    identities = record = None
    if not options.adapter and not options.config:  # what they name may change
        without_memory = options.replace(memory=None)  # no number depends on it
        identities, record = find_pair_record("changes", models, without_memory, session)
    kept = load_kept(record, "changes", session)
    if kept is None:
        from attngeo.changes.comparing import compare_models

        if identities is not None:
            first, other = (identity.ref for identity in identities)
        kept = compare_models((first, other), options, session, record)
    identity = None if identities is None else identities[0]
    frame = build_frame("What changed between models", kept, compare_columns(options.circuit), options, identity)
    if identities is not None:
        frame.attrs["other"] = in_utf8(identities[1].ref.text)
    frame["other"] = frame.attrs["other"]
    numbers = [name for name in number_columns() if name in frame]
    return frame.astype(dict.fromkeys(INTEGERS, "Int64") | dict.fromkeys(numbers, "float64"))


def join_changes(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The changes of several other models as one table."""
    if len(frames) == 1:
        return frames[0]
    rows = join_frames(frames)
    merged = merge_origins([{**frame.attrs, "model": frame.attrs["other"]} for frame in frames])
    rows.attrs = merged | {"model": frames[0].attrs["model"], "other": merged["model"]}
    return rows
