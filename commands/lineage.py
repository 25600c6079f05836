"""`attngeo lineage`: whether models share an origin, as a table for people and files for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attngeo.changes.lineage import list_candidates
from attngeo.changes.lineage_options import CHECKS, LINEAGE_COLUMNS, VERDICTS, LineageOptions
from attngeo.checkpoints.access import HubAccess
from attngeo.errors import UsageError
from attngeo.options import INPUT
from attngeo.questions.frames import join_frames
from attngeo.questions.table import QUESTIONS
from attngeo.session import ResultOptions, Session, StudyOptions
from attngeo.studies.models import list_models
from attngeo.studies.run import RunOutcome
from attngeo.tables.write import NOTES

from .asking import ask_models
from .checks import Checks, conclude, condition_option, parse_conditions, require_conditions
from .declare import with_options
from .models import Model, ModelOutputs, complete_models
from .outputs import Verbosity
from .selection import Selection
from .tables import Cell, Terminal, is_missing, print_frame, print_table

if TYPE_CHECKING:
    import pandas as pd


# The columns of a table in LaTeX.
BRIEF = ("other", "verdict", "similarity", "p_value", "similarity_z", "layers")
# Verdict → what to conclude from it, and what not, for people who are no statisticians.
MEANINGS = {
    "related": "The initial weights of both models were not drawn independently (z is above 10): one model was made "
    "from the other, or both were made from the same initial weights. The test cannot tell which came first, nor "
    "whether copying was allowed: look at dates, licences and model cards. A similarity near 1 suggests a copy; a "
    "small one, models trained separately from the same initial weights.",
    "no evidence": "No common origin was found. This does not show that the models are independent: the test misses "
    "an origin if a copy was reordered or rotated and then trained, if its queries or keys were replaced, or if it was "
    "trained for very long. A small p with a z below 5 is too little evidence: similar training alone can make models "
    "this similar.",
    "suspicious": "The table gives the reason: heads of both models have nearly the same singular values, as in a "
    "copy whose coordinates were reordered or rotated, or z is high but not decisive. Neither has been seen in "
    "independent models, but neither is proof of a common origin.",
    "not testable": "The test cannot compare these models; the table gives the reason. This says nothing for or "
    "against a common origin.",
}  # fmt: skip
# Verdict → what to do next, without --align and with it.
NEXT = {
    "no evidence": (
        "If you suspect a reordered copy, run the test again with --align.",
        "If the coordinates are the same, the test is stronger without --align: run it both ways.",
    ),
    "suspicious": (
        "Follow the advice in the table. --align recognises a reordered copy if the tokens of both have the same "
        "order.",
        "--align recognises reordered copies whose tokens have the same order, and found none; no option recognises "
        "rotated copies. If the coordinates are the same, the test is stronger without --align: run it both ways. "
        "Compare the answers of both models, or ask the candidate's authors.",
    ),
    "not testable": (
        "If only the names of the stacks differ, pair them with --stack; else compare the answers of both models, or "
        "ask the candidate's authors.",
    )
    * 2,
}

Candidates = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CANDIDATE",
        help="Models that may share its origin; or quoted patterns, 'org/name@step*' or './runs/*'",
        autocompletion=complete_models,
    ),
]
Conditions = Annotated[list[str] | None, condition_option("similarity_z.max > 5", CHECKS)]
CandidatesFile = Annotated[
    str | None,
    typer.Option(
        "--models",
        metavar="FILE",
        help="Also read candidates from FILE, one per line",
        rich_help_panel=INPUT,
    ),
]


@with_options
def lineage(
    *,
    model: Model,
    candidates: Candidates = None,
    models_file: CandidatesFile = None,
    options: LineageOptions,
    outputs: ModelOutputs,
    selection: Selection,
    fail_if: Conditions = None,
    checks: Checks = None,
    hub: HubAccess,
    results: ResultOptions,
    study: StudyOptions,
    verbosity: Verbosity,
) -> None:
    """Test whether models share an origin, or whether their initial weights were drawn independently.

    Similarity is the mean cosine of the query-key matrices of matched heads, over all rotary offsets. The test permutes
    the coordinates of one model at random. p: share of permutations with at least this similarity. z: standard
    deviations above the permutations, or above random signs of the coordinates if that is less. The verdict is related
    if z is above 10; suspicious if one may be a permuted or rotated copy; not testable if the models cannot be
    compared, for example with different widths or fixed sinusoidal positions; else no evidence. Reads queries, keys and
    the gains before them, with --align also the first rows of the token embeddings. Source: Zhu et al. 2025
    (Independence tests for language models).

    Examples:
        attngeo lineage demo:encoder demo:decoder
        attngeo lineage Qwen/Qwen2.5-7B Qwen/Qwen2.5-7B-Instruct -o lineage.csv
        attngeo lineage ./base ./merged ./pruned --align
        attngeo lineage ./base --models candidates.txt --jobs 4
    """
    outputs.check(model, models_file, more=[checks])
    conditions = parse_conditions(fail_if, CHECKS)
    require_conditions(checks, conditions)
    selection.check(LINEAGE_COLUMNS)
    if not candidates and models_file is None:
        raise UsageError(
            "Missing argument 'CANDIDATE...'; name a candidate, or add --models FILE (see attngeo lineage --help)"
        )
    listed = list_models(candidates or [], models_file, hub=hub)
    outputs.check(*listed, more=[checks])
    pairs = list_candidates([model, *listed], options)
    outputs.check_labels([model, *listed])
    session = Session(hub=hub, study=study, results=results)
    outcomes = ask_models(QUESTIONS["lineage"], pairs, session, verbosity, options=options)
    rows = join_frames([outcome.result for outcome in outcomes if outcome.result is not None])
    if len(rows):
        brief = selection.choose(BRIEF)

        def show(selected: pd.DataFrame) -> None:
            if selection.is_given:
                print_frame(selected[brief])
            else:
                _print(selected, _list_notes(outcomes), align=options.align, verbosity=verbosity)

        outputs.deliver(selection.select(rows), show, brief)
    conclude(rows, outcomes, conditions, verbosity, checks)


def _list_notes(outcomes: Iterable[RunOutcome[pd.DataFrame]]) -> dict[str, list[str]]:
    """The notes that the texts of the column `note` are made of."""
    notes: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome.result is not None:
            notes |= outcome.result.attrs.get(NOTES, {})
    return notes


def _print(
    rows: pd.DataFrame, notes_by_text: Mapping[str, Sequence[str]], *, align: bool, verbosity: Verbosity
) -> None:
    """Print a line for each candidate, and what each verdict among them means. Caveats are on stderr."""
    columns: dict[str, Cell] = {
        "other": "other",
        "verdict": "verdict",
        "similarity": "similarity:+.3f",
        "p": "p_value:.3g",
        "z": "similarity_z:+.1f",
        "layers": "layers",
    }
    texts = ["other", "verdict", "layers", "reason"]
    if rows["related"].isna().any():
        columns["reason"] = partial(_show_reason, notes_by_text=notes_by_text)
    print_table(
        rows,
        columns,
        title=rows["model"].iloc[0],
        texts=texts,
        expendable=["layers"],
        last_resort=["p", "similarity", "z"],
    )
    occurring = {*rows["verdict"]}
    for verdict in VERDICTS:
        if verdict in occurring:
            advice = NEXT.get(verdict, ("", ""))[int(align)]
            Terminal().print(f"{verdict}: {MEANINGS[verdict]} {advice}".rstrip())
    for row in rows.to_dict("records"):
        _, *caveats = notes_by_text[row["note"]]
        if caveats and not _shows_all_notes(row):
            verbosity.note(f"note: {row['other']}: {'; '.join(caveats)}")


def _shows_all_notes(row: Mapping[Any, Any]) -> bool:
    """Whether the table shows all notes of a row: those of models that cannot be compared are all reasons."""
    return is_missing(row["related"]) and row["verdict"] != "suspicious"


def _show_reason(row: Mapping[Any, Any], notes_by_text: Mapping[str, Sequence[str]]) -> str:
    """Why there is no answer, for a verdict that is none. What else the note says of numbers is on stderr alone."""
    if not is_missing(row["related"]):
        return ""
    return str(row["note"]) if _shows_all_notes(row) else notes_by_text[row["note"]][0]
