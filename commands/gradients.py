"""`attngeo gradients`: where a score comes from, as tables for people and files for programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attngeo
from attngeo.bounds.names import printable
from attngeo.checkpoints.access import HubAccess
from attngeo.checkpoints.local_files import require_model
from attngeo.errors import UsageError
from attngeo.pretrain.sources import require_text_data
from attngeo.questions.conditions import Condition
from attngeo.questions.frames import join_frames
from attngeo.questions.table import QUESTIONS
from attngeo.scores.spec import default_scores
from attngeo.session import Session, StudyOptions
from attngeo.studies.run import RunOutcome
from attngeo.tables.write import write_table
from attngeo.updates.options import CHANGE, CHECKS, OWN_TOKEN, GradientOptions, gradient_columns

from .asking import ask_models, note_left_out
from .cells import score_format
from .checks import Checks, conclude, condition_option, parse_conditions, require_conditions
from .declare import with_options
from .models import ModelOutputs, Models, ModelsFile, list_all
from .outputs import Verbosity, file_option, plot_option
from .progress import Bar
from .score import print_stacks
from .selection import Selection
from .tables import Cell, print_frame, print_table

if TYPE_CHECKING:
    import pandas as pd

    from attngeo.updates.measuring import Gradients

PairsOutput = Annotated[
    Path | None,
    file_option(
        "--pairs-output",
        help="Write the gradient with respect to each attention logit of the first sequence, one row per pair of "
        "tokens",
    ),
]
Plots = Annotated[list[Path] | None, plot_option("the updates of each layer")]
Conditions = Annotated[list[str] | None, condition_option("symmetry.median < 0", CHECKS)]
# The columns of a table of selected rows.
BRIEF = ("stack", "layer", "head", "symmetry", "directionality", "symmetry_chance", "directionality_chance")
# Titles of the columns of an update, as a terminal has room for them.
TITLES = {
    "column_spread": "columns", "row_spread": "rows", "beta_symmetry": "pairs", "context_share": "context",
    "prediction_share": "attending",
}  # fmt: skip
OWN_TOKEN_TITLES = ("own token", "other tokens", "cosine of own")


@with_options
def gradients(
    *,
    options: GradientOptions,
    models: Models = None,
    models_file: ModelsFile = None,
    outputs: ModelOutputs,
    pairs_output: PairsOutput = None,
    selection: Selection,
    plot: Plots = None,
    fail_if: Conditions = None,
    checks: Checks = None,
    hub: HubAccess,
    study: StudyOptions,
    verbosity: Verbosity,
) -> None:
    """Score the gradient of every query-key matrix on a text, to see where its structure comes from.

    The model runs on sequences of the text. The gradient of W_qk, its update, is Xᵀ·β·X, where X holds the inputs of
    attention and β the gradient of the loss with respect to the attention logits (Saponati et al. 2025, Proposition
    2.1). It is scored like W_qk; chance is the score with each row of β shuffled. Columns and rows: variance of their
    norms, over the mean square. Pairs: correlation of β between both directions of two tokens. Context: share of the
    update that comes from the first half of the positions as contexts; attending: the same for attending tokens.
    A second table scores the change of W_qk by a step of gradient descent on Wq and Wk (Remark S1.6). With --own-token,
    a third one shows how much of the update is due to the error of each token at its own position, and how much comes
    through other tokens. Files, csv and json also have rows for heads, and more columns.

    Examples:
        attngeo gradients demo:encoder
        attngeo gradients demo:decoder --text notes.txt --sequences 48 -o updates.csv
        attngeo gradients ./checkpoint --text Salesforce/wikitext --objective clm
        attngeo gradients demo:decoder --pairs-output pairs.parquet
        attngeo gradients demo:decoder --own-token
        attngeo gradients './checkpoints/*' --plot updates.html --jobs 2
    """
    more = [pairs_output, checks]
    figures = plot or []
    outputs.check(models_file, more=more, figures=figures, data=options.text)
    conditions = parse_conditions(fail_if, CHECKS)
    require_conditions(checks, conditions)
    if not options.own_token:
        _refuse_own_token(conditions, selection)
    selection.check(gradient_columns(options.own_token))
    listed = list_all(models, models_file, hub, command="gradients", verbosity=verbosity)
    outputs.check(*listed, more=more, figures=figures, data=options.text)
    outputs.check_labels(listed)
    if len(listed) == 1:
        require_model(listed[0])  # one of several fails alone
    require_text_data(options.text)
    if pairs_output is None:
        session = Session(hub=hub, study=study)
        outcomes = ask_models(QUESTIONS["gradients"], listed, session, verbosity, options=options)
    else:
        found = _measure_pairs(listed, pairs_output, options, hub, verbosity)
        outcomes = [RunOutcome(0, listed[0], found.rows)]
        note_left_out(found.rows, verbosity)
    frames = [outcome.result for outcome in outcomes if outcome.result is not None]
    rows = join_frames(frames)
    if frames:
        several = ["model"] if len(frames) > 1 else []
        brief = selection.choose([*several, *BRIEF])

        def print_tables(selected: pd.DataFrame) -> None:
            if selection.is_given:
                print_frame(selected[brief])
                return
            for frame in frames:
                _print_updates(outputs.name(frame))

        outputs.deliver(selection.select(rows), print_tables, brief)
        for frame in frames:
            for text in _list_notes(frame):
                verbosity.note(f"note: {frame.attrs['model']}: {text}")
        outputs.draw("updates", frames, figures)
    conclude(rows, outcomes, conditions, verbosity, checks)


def _refuse_own_token(conditions: list[Condition], selection: Selection) -> None:
    """Raise UsageError for a column that only the tables of another option have."""
    in_conditions = {quantity.column for condition in conditions for quantity in condition.quantities.values()}
    for name in (*selection.named_columns, *in_conditions):
        if name in OWN_TOKEN:
            raise UsageError(f"{name} is an optional column; add $own_token", "own_token")


def _measure_pairs(
    models: list[str], path: Path, options: GradientOptions, hub: HubAccess, verbosity: Verbosity
) -> Gradients:
    """The updates of the only model. Writes its gradients of pairs of tokens to a file."""
    if len(models) > 1:
        raise UsageError(f"--pairs-output needs exactly one model, got {len(models)}; leave out the others")
    (model,) = models
    with Bar(model, verbosity) as progress:
        found = attngeo.gradients(model, options=options, hub=hub, progress=progress)
    write_table(found.tabulate_pairs(), path)
    return found


def _print_updates(frame: pd.DataFrame) -> None:
    """Print a line for each layer and the quartiles of each stack: of the updates, then of the change of W_qk."""
    about = frame.attrs
    size = f"{about['sequences']} × {about['seq_len']} tokens of {about['text']}"
    parts = [about["model"], about["model_type"], about["objective"], f"loss {about['loss']:.3f}", size]
    layers = frame[frame["head"].isna()]
    tokens: list[tuple[str, Cell]] = [(title, f"{name}:.2f") for name, title in TITLES.items()]
    print_table(
        layers,
        [*_list_columns(), *tokens],
        title=printable(" · ".join(map(str, parts))),
        section=["stack"],
        expendable=["stack", "attending", "context", "rows", "columns", "pairs"],
    )
    print_stacks(frame)
    _print_change(frame, layers)
    if OWN_TOKEN[0] in frame and frame[OWN_TOKEN[0]].notna().any():
        columns = [(title, f"{name}:.3f") for name, title in zip(OWN_TOKEN, OWN_TOKEN_TITLES, strict=True)]
        title = "\npart of the update by the error of each token at its own position"
        place: list[tuple[str, Cell]] = [("stack", "stack"), ("layer", "layer")]
        print_table(layers, [*place, *columns], title=title, section=["stack"], expendable=["stack"])


def _print_change(frame: pd.DataFrame, layers: pd.DataFrame) -> None:
    """Print the scores of the change of W_qk by a step, if it is known."""
    if frame[f"{CHANGE}symmetry"].isna().all():
        return
    title = "\nchange of W_qk by a step of gradient descent on Wq and Wk"
    print_table(layers, _list_columns(CHANGE), title=title, section=["stack"], expendable=["stack"])
    print_stacks(frame.assign(**{name: frame[f"{CHANGE}{name}"] for name in default_scores()}))


def _list_columns(prefix: str = "") -> list[tuple[str, Cell]]:
    """Stack, layer, and each score beside its chance; prefix: of the scores' columns."""
    columns: list[tuple[str, Cell]] = [("stack", "stack"), ("layer", "layer")]
    for name, spec in default_scores().items():
        form = score_format(name)
        columns += [(spec.label, f"{prefix}{name}:{form}"), ("chance", f"{prefix}{name}_chance:{form}")]
    return columns


def _list_notes(frame: pd.DataFrame) -> list[str]:
    """What the table does not say: a foreign objective, what is left out, and caveats of the model."""
    about: dict[Any, Any] = frame.attrs
    notes = []
    if about["objective"] != about["trained_on"]:
        trained_on = about["trained_on"]
        notes.append(
            f"the model was trained on {trained_on}; compare updates at equal loss, or during one training run"
        )
    return notes + [note for note in frame["note"].unique() if note]
