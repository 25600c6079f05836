"""From a model to the tidy table of its scores: those that are kept, or else computed.

Imports nothing heavy: pandas when a table is made, torch when scores are computed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.reference import Model
from attngeo.choices import Circuit, one_of
from attngeo.keywords import takes
from attngeo.progress import ProgressCallback
from attngeo.questions.asking import ask_for_one_table
from attngeo.questions.rows import ABOUT_MODEL
from attngeo.questions.table import QUESTIONS
from attngeo.scores.options import ScoreOptions, parse_scores
from attngeo.scores.spec import SPREADS, score_names, z_columns
from attngeo.session import ResultOptions, Session, StudyOptions
from attngeo.studies.models import expand_models
from attngeo.studies.revisions import RevisionOptions, refuse_repeated_revisions

if TYPE_CHECKING:
    import pandas as pd


def score_columns(scores: str | Collection[str] = (), circuit: Circuit = "qk") -> tuple[str, ...]:
    """The columns of the table that `score` returns for these options, in order.

    Args:
        scores: optional scores, as for `score`: names, "trace_z,stable_rank" or "all".
        circuit: circuit of the scores; a table of W_qk alone has no column for it.

    Raises:
        UsageError: a score or the circuit is unknown.
    """
    circuits = () if one_of("circuit", circuit, Circuit) == "qk" else ("circuit",)
    return (
        *ABOUT_MODEL, "model_type", "stack", *circuits, "layer", "head", "key_head", "d_model", "head_dim",
        "parameters", "format", *score_names(parse_scores(scores)), "frobenius_norm", *SPREADS, *z_columns(), "note",
    )  # fmt: skip


class ScoreKeywords(ScoreOptions, RevisionOptions, HubAccess, ResultOptions, StudyOptions):
    """The keywords of `score`."""

    options: ScoreOptions | None = None
    revisions: RevisionOptions | None = None
    hub: HubAccess | None = None
    results: ResultOptions | None = None
    study: StudyOptions | None = None
    progress: ProgressCallback | None = None


@takes(ScoreKeywords)
def score(  # noqa: D417 - the keywords are those of a session
    models: Model | Sequence[Model], options: ScoreOptions, *, revisions: RevisionOptions, session: Session
) -> pd.DataFrame:
    """Symmetry and directionality of every attention layer of models, and with `per_head` of every head.

    Scores of a reference are kept in the platform's cache folder, or in the folder ATTNGEO_CACHE. They are reused if
    the model's content (its commit, or the times of its files), the options and the version of the code are the same.
    After an interruption, finished layers are not read again.

    Args:
        models: a reference (`org/name[@revision]`, folder, file, `demo:NAME`) or a transformers model in memory; or
            several, with patterns such as `org/name@step*` and `./checkpoints/*`. If a model fails, its error is raised
            after the others are scored and kept. Checkpoints of a training are sorted by step.
        options: what is scored, and how; its fields are keywords, too:
            {options}
        revisions: which of several revisions of one repository are scored; its field is a keyword, too:
            {revisions}
        hub: access to the Hub; its fields are keywords, too:
            {hub}
        results: kept scores; its field is a keyword, too:
            {results}
        study: how several models are scored; its fields are keywords, too:
            {study}
        progress: called before each file and layer.

    Returns:
        A DataFrame with one row for each layer (`head` is missing) and head, of each circuit. Its columns are
        `attngeo.columns("score", scores=…, circuit=…)`; scores are missing if the form is zero or not finite, and
        `note` says why. Its `attrs` say how it was made.

    Raises:
        ModelUnavailableError: the model cannot be found or reached.
        CheckpointError: the model cannot be read or scored.
        UsageError: a value is not a choice or is outside its limits, or revisions have equal weights.

    >>> import attngeo
    >>> frame = attngeo.score("demo:minilm", layers=[0])
    >>> round(frame.symmetry.item(), 4)
    0.4051
    """
    listed = expand_models(models, session.hub)
    refuse_repeated_revisions(listed, revisions, session)
    return ask_for_one_table(QUESTIONS["score"], models if listed == [models] else listed, session, options=options)
