"""`attngeo lineage`: whether models share an origin, as a table for people and files for programs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attngeo.changes.lineage import build_lineage, check_candidates, relate_candidate
from attngeo.changes.lineage_options import LineageOptions
from attngeo.checkpoints.access import HubAccess
from attngeo.errors import UsageError
from attngeo.options import INPUT
from attngeo.session import ResultOptions, Session, StudyOptions
from attngeo.studies.models import list_models

from .declare import with_options
from .outputs import Model, ModelOutputs, Verbosity, complete_models
from .study import deliver, run_all
from .tables import Cell, Terminal, is_missing, print_table

if TYPE_CHECKING:
    import pandas as pd


MEANING = (
    "The null hypothesis is that the initial weights of both models were drawn independently. Related means that it is "
    "rejected (z above 10): one model descends from the other, or both from the same initial weights. Which came first "
    "cannot be told. No evidence is not independence: this test does not see a rotated stream."
)
# The columns of a table in LaTeX.
BRIEF = ("candidate", "related", "similarity", "p_value", "z", "layers")
ANSWERS = {True: "yes", False: "no evidence"}

Candidates = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CANDIDATE",
        help="Models that may share its origin; or org/name@step* for all revisions of this pattern",
        autocompletion=complete_models,
    ),
]
CandidatesFile = Annotated[
    str | None,
    typer.Option(
        "--models",
        metavar="FILE",
        help="Take also the candidates of a file, one on each line",
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
    hub: HubAccess,
    results: ResultOptions,
    study: StudyOptions,
    verbosity: Verbosity,
) -> None:
    """Test whether models share an origin: whether their initial weights were drawn independently.

    Similarity is the mean cosine of the query-key matrices of matched heads, over all rotary offsets. It is compared
    with that of models whose coordinates are permuted: p is the share of these that reach it. z is its distance from
    them in standard deviations, or from models whose coordinates have random signs, if that is less. Related means z
    above 10. It is missing if the test does not apply, for example to other widths or fixed sinusoidal positions, and
    for a copy that may be rotated. Reads queries, keys and the gains before them, and with --align the first rows of
    the token embeddings. The test is that of Zhu et al. 2025 (Independence tests for language models).

    Examples:
        attngeo lineage demo:encoder demo:decoder
        attngeo lineage Qwen/Qwen2.5-7B Qwen/Qwen2.5-7B-Instruct -o lineage.csv
        attngeo lineage ./base ./merged ./pruned --align
        attngeo lineage ./base --models candidates.txt --jobs 4
    """
    outputs.check(model, models_file)
    if not candidates and models_file is None:
        raise UsageError("Missing argument 'CANDIDATE...', or --models FILE (see attngeo lineage --help)")
    listed = list_models(candidates or [], models_file, hub=hub)
    outputs.check(*listed)
    check_candidates(model, listed)
    outputs.check_labels([model, *listed])
    alone = len(listed) == 1
    outcomes = run_all(
        listed[0] if alone else "lineage",
        partial(relate_candidate, model=model, options=options),
        listed,
        Session(hub=hub, study=study, results=results),
        verbosity,
        unit="candidates",
        alone=alone,
    )
    kept = [outcome.result for outcome in outcomes if outcome.result is not None]
    deliver(build_lineage(kept, options), outcomes, outputs, partial(_print, verbosity=verbosity), BRIEF)


def _print(rows: pd.DataFrame, verbosity: Verbosity) -> None:
    """Print a line for each candidate, and what related means. Notes are on stderr."""
    columns: dict[str, Cell] = {
        "candidate": "candidate",
        "related": _show_answer,
        "similarity": "similarity:+.3f",
        "p": "p_value:.3g",
        "z": "z:+.1f",
        "layers": "layers",
    }
    texts = ["candidate", "related", "layers"]
    print_table(rows, columns, title=rows["model"].iloc[0], texts=texts, expendable=["layers", "p"])
    Terminal().print(MEANING)
    for row in rows.to_dict("records"):
        verbosity.note(f"note: {row['candidate']}: {row['note']}")


def _show_answer(row: dict[str, Any]) -> str:
    related = row["related"]
    return "cannot say" if is_missing(related) else ANSWERS[bool(related)]
