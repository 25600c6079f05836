"""From a model and candidates to the table of lineage: kept results, or computed ones.

Imports nothing heavy: pandas when a table is made, torch when it is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attngeo.changes.lineage_options import LineageOptions
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.local_files import require_model
from attngeo.checkpoints.reference import Model
from attngeo.errors import UsageError
from attngeo.keywords import takes_after_two
from attngeo.progress import ProgressCallback
from attngeo.questions.asking import ask_for_one_table
from attngeo.questions.table import QUESTIONS
from attngeo.session import ResultOptions, Session, StudyOptions
from attngeo.studies.models import find_repeated, name_model

if TYPE_CHECKING:
    import pandas as pd


class LineageKeywords(LineageOptions, HubAccess, ResultOptions, StudyOptions):
    """The keywords of `lineage`."""

    options: LineageOptions | None = None
    hub: HubAccess | None = None
    results: ResultOptions | None = None
    study: StudyOptions | None = None
    progress: ProgressCallback | None = None


@takes_after_two(LineageKeywords)
def lineage(  # noqa: D417 - the keywords are those of a session
    model: Model, candidates: Model | Sequence[Model], options: LineageOptions, *, session: Session
) -> pd.DataFrame:
    """Test whether each candidate shares an origin with a model, by a permutation test on queries and keys.

    The null hypothesis is that the initial weights of both models were drawn independently. The statistic is the mean
    cosine of the forms M = Wq·Wkᵀ of matched heads, over all rotary offsets, with the gain of the norm before attention
    folded into Wq and Wk; see `attngeo.geometry.lineage`. Two models are related if one was fine-tuned, pruned,
    quantised or merged from the other, and also if both were trained from the same initial weights on different data.
    The test cannot tell which model came first, and it misses copies whose residual stream was rotated: no evidence
    does not mean independent.

    Args:
        model: a reference (`org/name[@revision]`, folder, file, `demo:NAME`) or a transformers model in memory.
        candidates: one such model or several, also patterns of revisions. If one fails, the others are still tested and
            kept, then its error is raised.
        options: how to test; its fields are keywords, too:
            {options}
        hub: access to the Hub; its fields are keywords, too:
            {hub}
        results: kept results; its field is a keyword, too:
            {results}
        study: how to test several candidates; its fields are keywords, too:
            {study}
        progress: called before each file and layer.

    Returns:
        A DataFrame with one row per candidate. Its columns are `attngeo.columns("lineage")`; `other` is the candidate:

            verdict       "related" if z is above 10; else "suspicious" if z is above 5, or if the heads of both models
                          have the same singular values, as in a copy whose stream was permuted (`align` finds these) or
                          rotated; "not testable" if the test does not apply; else "no evidence"
            related       true if the verdict is "related", false for "no evidence", missing for the other two
            similarity    mean cosine of matched heads, in [−1, 1]; for models wider than 512, on 512 coordinates of the
                          stream, drawn at random
            p_value       share of the permutations with at least this similarity, counting the observed one
            similarity_z  standard deviations above the mean of the permutations, or of draws of signs if that is less
            layers        the compared layers: both models have them, by stack and number, with heads of the same size
            note          what the verdict means, caveats, and why numbers are missing

        Its `attrs` say how it was made.

    Raises:
        ModelUnavailableError: a model cannot be found or reached.
        CheckpointError: a model cannot be read.
        UsageError: an option has an invalid value; or there is no candidate, or a candidate is given twice or is the
            model itself.
        MissingPackageError: `align` requires scipy, and it is not installed.

    >>> import attngeo
    >>> rows = attngeo.lineage("demo:encoder", "demo:decoder")  # trained from one seed
    >>> rows.related.tolist(), rows.p_value.tolist()
    ([True], [0.005])
    """
    listed = [candidates] if isinstance(candidates, str) or not isinstance(candidates, Sequence) else candidates
    return ask_for_one_table(QUESTIONS["lineage"], [model, *listed], session, options=options)


def list_candidates(models: Sequence[Model], options: LineageOptions) -> list[tuple[Model, Model]]:  # noqa: ARG001 - as `Question.list_subjects`
    """Pairs of the model and each candidate.

    Raises UsageError without candidates, and if a candidate is given twice or is the model itself. Raises
    ModelUnavailableError once if the model is missing, not for each candidate.
    """
    model, *candidates = models
    if not candidates:
        raise UsageError("no candidates, expected at least one")
    for candidate in candidates:
        if find_repeated([model, candidate]) is not None:
            raise UsageError(
                f"{name_model(candidate):.200} is the model itself, expected a different model as candidate"
            )
    repeated = find_repeated(candidates)
    if repeated is not None:
        raise UsageError(f"{name_model(repeated):.200} is given twice, expected each candidate once")
    require_model(model)
    return [(model, candidate) for candidate in candidates]
