"""From a model to the tidy table of its scores: those that are kept, or else computed.

Imports nothing heavy: pandas when a table is made, torch when scores are computed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from attngeo.attention.options import SourceOptions
from attngeo.bounds.names import in_utf8
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.identity import Identity, identify
from attngeo.checkpoints.local_files import require_model
from attngeo.checkpoints.reference import Model
from attngeo.choices import Circuit, one_of
from attngeo.errors import UsageError
from attngeo.keywords import takes
from attngeo.options import Options
from attngeo.progress import Progress, ProgressCallback
from attngeo.provenance import describe_code, merge_origins
from attngeo.scores.options import ScoreOptions, parse_scores
from attngeo.scores.spec import SPREADS, score_names, z_columns
from attngeo.session import ResultOptions, Session, StudyOptions
from attngeo.studies.engine import run_study
from attngeo.studies.models import expand_models, name_model
from attngeo.studies.results import Kept, ResultForm, ResultRecord, locate_record
from attngeo.studies.revisions import RevisionOptions, refuse_repeated_revisions
from attngeo.studies.run import require_all
from attngeo.studies.steps import order_steps

if TYPE_CHECKING:
    import pandas as pd

# The form of the rows that are kept: of scores, and of all that is found in the same way.
KEPT_FORM = ResultForm(
    texts=(
        "model", "other", "candidate", "verdict", "revision", "model_type", "format", "circuit", "stack", "layers",
        "kind", "from_route", "to_route", "from_stack", "to_stack", "note",
    ),
    whole=(
        "parameters", "layer", "head", "key_head", "d_model", "head_dim", "peak", "from_layer", "to_layer",
        "from_heads", "to_heads",
    ),
    about=("made", "model", "device"),
)  # fmt: skip
INTEGERS = ("layer", "head", "key_head", "d_model", "head_dim", "parameters")
# What the results of a content with some options depend on besides: the code, as it is when it is imported, and torch.
VERSION = describe_code("torch")
# What is kept about scores for the store alone: the `attrs` of a table are without it.
OWN_ENTRIES = ("made", "layers", "options", "content", "other_content", "version")


def score_columns(scores: str | Collection[str] = (), circuit: Circuit = "qk") -> tuple[str, ...]:
    """The columns of the table of scores, in their order: those of the frame that `score` returns for these options.

    scores: the optional ones that are chosen, as for `score`: names, "trace_z,stable_rank" or "all". circuit: of the
    scores; a table of W_qk alone has no column of it. Raises UsageError for an unknown score or circuit.
    """
    circuits = () if one_of("circuit", circuit, Circuit) == "qk" else ("circuit",)
    return (
        "model", "revision", "model_type", "stack", *circuits, "layer", "head", "key_head", "d_model", "head_dim",
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
    model: Model | Sequence[Model], options: ScoreOptions, *, revisions: RevisionOptions, session: Session
) -> pd.DataFrame:
    """Symmetry and directionality of every layer, and with `per_head` of every head, of the attention of models.

    Scores of a reference are kept in the platform's cache folder, or in that which ATTNGEO_CACHE names, under the
    model's content (its commit, or the times of its files), the options and the version of the code. They are not
    computed twice, and after an interruption no finished layer is read again.

    Args:
        model: a reference (`org/name[@revision]`, folder, file, `demo:NAME`) or a transformers model in memory; or
            several, with patterns such as `org/name@step*` and `./checkpoints/*`. One that fails raises its error after
            the others are scored and kept. Checkpoints of a training are in the order of their steps.
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
        `score_columns(scores, circuit)`; scores are missing if the form is zero or not finite, and `note` says why. Its
        `attrs` say how it was made.

    Raises:
        ModelUnavailableError: the model cannot be found or reached.
        CheckpointError: the model cannot be read or scored.
        UsageError: a value is no choice or outside its limits, or revisions have equal weights.

    >>> import attngeo
    >>> frame = attngeo.score("demo:minilm", layers=[0])
    >>> round(frame.symmetry.item(), 4)
    0.4051
    """
    if isinstance(model, str) or not isinstance(model, Sequence):
        return score_model(model, session, options=options)

    models = expand_models(model, session.hub)
    if not models:
        raise UsageError("no models are given, expected at least one")
    refuse_repeated_revisions(models, revisions, session)
    names = [name_model(one) for one in models]
    outcomes = require_all(run_study(partial(score_model, options=options), models, session, names=names))
    return join_frames([outcome.result for outcome in outcomes if outcome.result is not None])


def score_model(model: Model, session: Session, *, options: ScoreOptions) -> pd.DataFrame:
    """The table of scores of one model: `score` with a session."""
    identity, record = find_record("scores", model, options, session)
    kept = load_kept(record, "scores", session)
    if kept is None:
        from attngeo.scores.computing import compute

        kept = compute(model if identity is None else identity.ref, options, session, record)
    frame = build_frame("Attention scores", kept, score_columns(options.scores, options.circuit), options, identity)
    return frame.astype(dict.fromkeys(INTEGERS, "Int64"))


def find_record(
    kind: str,
    model: Model,
    options: SourceOptions,
    session: Session,
    form: ResultForm = KEPT_FORM,
) -> tuple[Identity | None, ResultRecord | None]:
    """The identity of a model, and the record of what is kept about it; None each if it has none, or nothing is kept.

    kind: of results. form: of their rows. Raises ModelUnavailableError for a model, an adapter or a configuration that
    cannot be found.
    """
    require_model(model, options.adapter, options.config)
    identity = None
    if not options.adapter and not options.config:  # what they name may change
        identity = identify(model, session.hub)
    if identity is None:
        return None, None
    content = {"content": identity.content, "version": VERSION}
    chosen = dict(options.replace(memory=None))  # no number depends on it
    record = locate_record(
        kind, content | {"options": chosen}, is_current=identity.is_current, about=content, form=form
    )
    return identity, record


def find_pair_record(
    kind: str, models: tuple[Model, Model], options: Options, session: Session
) -> tuple[tuple[Identity, Identity] | None, ResultRecord | None]:
    """The identities of two models, and the record of what is kept about both; None each as for `find_record`.

    options: those that numbers depend on.
    """
    first, other = (identify(model, session.hub) for model in models)
    if first is None or other is None:
        return None, None
    content = {"content": first.content, "other_content": other.content, "version": VERSION}
    record = locate_record(
        kind,
        content | {"options": dict(options)},
        is_current=lambda: first.is_current() and other.is_current(),
        about=content,
        form=KEPT_FORM,
    )
    return (first, other), record


def load_kept(record: ResultRecord | None, what: str, session: Session) -> Kept | None:
    """What is kept of a result, which is reported; None if it is missing, or the session wants fresh ones.

    what: the result is, in the plural or a mass noun.
    """
    if record is None or session.results.fresh:
        return None
    kept = record.load()
    if kept is not None:
        session.progress(Progress("kept", f"{what} of {kept.about['made']} from the result store"))
    return kept


def build_frame(
    title: str, kept: Kept, columns: Sequence[str], options: Options, identity: Identity | None
) -> pd.DataFrame:
    """The table of a result, with `describe_result` as its `attrs`."""
    import pandas as pd

    frame = pd.DataFrame(kept.rows, columns=list(columns))
    frame.attrs = describe_result(title, kept, options, identity)
    frame["model"] = frame.attrs["model"]
    return frame


def order_frames(frames: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """The tables of several models, those of the checkpoints of one training in the order of their steps."""
    names = [str(frame.attrs.get("other", frame.attrs.get("model"))) for frame in frames]
    return [frames[place] for place in order_steps(names)]


def join_frames(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The tables of several models as one, see `order_frames`, with their origins; an empty one if there are none."""
    import pandas as pd

    frames = order_frames(frames)
    rows = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
    rows.attrs = merge_origins([frame.attrs for frame in frames])
    return rows


def describe_result(title: str, kept: Kept, options: Options, identity: Identity | None) -> dict[Any, Any]:
    """How a result was made, with the model's name as it was given this time."""
    model = kept.about["model"] if identity is None else in_utf8(identity.ref.text)
    about = {name: value for name, value in kept.about.items() if name not in OWN_ENTRIES}
    return {"title": title} | about | {"model": model} | dict(options) | {"device": about["device"]}
